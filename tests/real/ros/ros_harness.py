"""Processes, commands and a station that plays operator, policy and observer: what the ROS tests are made of."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import Parameter, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import Bool, String
from std_srvs.srv import SetBool, Trigger

from robot_rl.real.core.priority import RESENDS
from robot_rl.real.ros.env import Ros2Env, Ros2Options
from robot_rl.real.ros.executor import TopicExecutor
from robot_rl.real.ros.io import JointState, JointTrajectory, qos, read_executed, trajectory
from robot_rl.real.ros.sim_robot_node import INJECT

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["j0", "j1", "j2"]
SPEC = """
name: arm
command_mode: {mode}
controller_timeout: {timeout}
dead_time: 0.03
joints:
  - {{name: j0, lower: -2.0, upper: 2.0, velocity: 1.0, acceleration: 5.0, effort: 10.0}}
  - {{name: j1, lower: -2.0, upper: 2.0, velocity: 1.0, acceleration: 5.0, effort: 10.0}}
  - {{name: j2, lower: -2.0, upper: 2.0, velocity: 1.0, acceleration: 5.0, effort: 10.0}}
home: [0.0, 0.0, 0.0]
"""
FOREIGN_CLOCK = """
sensors: {joint_states: {topic: joint_states, type: sensor_msgs/JointState, clock: foreign}}
"""
"""The robot's stamps are of another host's clock, although all processes are on this one."""
TIMEOUT = 0.4  # of commands and states here; the machine may be loaded
STOP = TIMEOUT + 1.0 / 5.0 + 2 * 0.01  # timeout + v / a + 2 dt
SLACK = 0.4  # for a loaded machine and for the way of a message to us


def wait(condition, limit=10.0, what="condition"):
    """Poll until true."""
    end = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} not within {limit} s"
        time.sleep(0.005)
    return found


def fifo(priority=30):
    """Real-time priority for the calling thread where allowed: late test threads look like faults."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))


@contextlib.contextmanager
def lifted(priority=30):
    """Real-time priority, where allowed, for what are ordinary threads of this process when the block begins.

    A robot that lives in this process waits for the interpreter lock of whoever has it, and is as late as that thread.
    The middleware's threads have the priority of those that move the robot: behind them, on a machine whose other work
    is of real time, too, states would go on while commands wait for half a second, and that is a frozen driver.
    Children begin as ordinary processes. The thread that resends is left as it is: it spins while another thread has
    its writer, and lifted above that one it had the machine to itself for 0.8 s.
    """
    raised = []
    for thread in map(int, os.listdir("/proc/self/task") if sys.platform == "linux" else ()):
        with contextlib.suppress(OSError):  # it has ended, or this is not allowed
            resends = Path(f"/proc/self/task/{thread}/comm").read_text().startswith(RESENDS)
            if os.sched_getscheduler(thread) == os.SCHED_OTHER and not resends:
                os.sched_setscheduler(thread, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
                raised.append(thread)
    try:
        yield
    finally:
        for thread in raised:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def stream(publisher, make, seconds, rate=50.0):
    """Publish `make()` for a while, on time even on a busy machine."""
    fifo()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            publisher.publish(make())
            time.sleep(1.0 / rate)
    finally:
        with contextlib.suppress(OSError, AttributeError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Driver(threading.Thread):
    """Sends commands at a rate, as a policy would; every part of the message can be changed while it runs."""

    def __init__(self, station):
        super().__init__(daemon=True)
        self.station, self.rate, self.on, self.running = station, 100.0, False, True
        self.value = lambda t: np.zeros(3)
        self.alter = lambda fields: fields
        self.seq = 0
        self.tag = f"stub{time.time_ns()}"
        self.start()

    def run(self):
        fifo()
        due = time.monotonic()
        while self.running:
            due = max(due + 1.0 / self.rate, time.monotonic() - 0.02)
            time.sleep(max(due - time.monotonic(), 0.0))
            if self.on:
                self.once()

    def once(self, publisher=None):
        self.seq += 1
        fields = {
            "names": NAMES,
            "stamp": time.time(),
            "tag": self.tag,
            "seq": self.seq,
            "times": [0.01],
            "values": np.atleast_2d(self.value(time.time())),
            "field": "positions",
        }
        fields = self.alter(fields)
        if fields is not None:
            (publisher or self.station.policy).publish(trajectory(**fields))


class Station:
    """Everything that is not under test: operator, policy stub, observer."""

    def __init__(self, namespace=""):
        self.context = rclpy.Context()
        rclpy.init(context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node(
            "policy",
            context=self.context,
            namespace=namespace or None,
            start_parameter_services=False,  # those of the policy node under test have the same names
        )
        self.robot = f"{namespace}/arm".strip("/")
        self.states, self.authority, self.executed, self.joints = [], [], [], None
        self.diagnostics, self.success = {}, []
        node = self.node
        node.create_subscription(String, "robot_rl/safety/state", lambda m: self.states.append(m.data), qos("latched"))
        node.create_subscription(String, "robot_rl/authority", lambda m: self.authority.append(m.data), qos("latched"))
        node.create_subscription(JointTrajectory, "robot_rl/executed", self._on_executed, qos("executed"))
        node.create_subscription(JointState, "joint_states", self._on_joints, qos("state"))
        node.create_subscription(Bool, "robot_rl/success", lambda m: self.success.append(m.data), qos("event"))
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 50)
        self.policy = node.create_publisher(JointTrajectory, "robot_rl/command/policy", qos("command"))
        self.teleop = node.create_publisher(JointTrajectory, "robot_rl/command/teleop", qos("command"))
        self.takeover = node.create_publisher(Bool, "robot_rl/takeover", qos("takeover"))
        self.estop = node.create_publisher(Bool, "robot_rl/estop", qos("event"))
        self.inject_out = node.create_publisher(String, "safety_supervisor/inject", qos("event"))
        self.services = {
            name: node.create_client(kind, name)
            for name, kind in (
                ("safety_supervisor/enable", SetBool),
                ("safety_supervisor/estop", Trigger),
                ("safety_supervisor/reset", Trigger),
                ("sim_robot/reset", Trigger),
                ("sim_robot/next_task", Trigger),
                ("sim_robot/set_parameters", SetParameters),
                ("safety_supervisor/set_parameters", SetParameters),
                ("policy/set_parameters", SetParameters),
                ("policy/reload", Trigger),
            )
        }
        self.executor = TopicExecutor(context=self.context)
        self.executor.add_node(node)
        self.over = False
        self.thread = threading.Thread(target=self._spin, daemon=True)
        self.thread.start()
        self.driver = Driver(self)

    def _spin(self):
        fifo(29)
        while not self.over:
            self.executor.spin_once(timeout_sec=0.1)

    def _on_executed(self, message):
        self.executed.append((time.monotonic(), read_executed(message)))

    def _on_joints(self, message):
        self.joints = dict(zip(message.name, message.position))

    def _on_diagnostics(self, message):
        for status in message.status:
            if status.hardware_id not in (self.robot, "desk_arm", "base"):
                continue
            values = {item.key: item.value for item in status.values}
            self.diagnostics[status.name.removeprefix("robot_rl/")] = (status.level[0], status.message, values)

    # ---------------------------------------------------------------- asking

    @property
    def state(self):
        return self.states[-1] if self.states else ""

    @property
    def position(self):
        return np.array([self.joints[name] for name in NAMES])

    @property
    def last(self):
        """Newest executed command; a test may just have cleared the list."""
        return wait(lambda: self.executed, what="an executed command")[-1][1]

    def diagnostic(self, name):
        return self.diagnostics.get(name, (3, "", {}))

    def until(self, condition, limit=10.0, what="condition"):
        """`wait`, and what the supervisor said meanwhile where it was for nothing."""
        try:
            return wait(condition, limit, what)
        except AssertionError as error:
            seen = self.diagnostic("safety_supervisor: safety")
            raise AssertionError(f"{error}; states {self.states[-6:]}, now {seen}") from None

    def wait_state(self, *names, limit=10.0):
        self.until(lambda: self.state in names, limit, f"state {names}")

    def call(self, name, request=None, limit=10.0):
        client = self.services[name]
        wait(client.service_is_ready, 60.0, f"service {name}")
        if request is None:
            request = Trigger.Request()
        end = time.monotonic() + 3.0 * limit
        while True:  # a killed server stays in discovery for a while and swallows requests: ask again
            future = client.call_async(request)
            try:
                wait(future.done, 4.0, f"answer of {name}")
                break
            except AssertionError:
                client.remove_pending_request(future)
                if time.monotonic() > end:
                    raise
        return future.result()

    def enable(self, on=True):
        return self.call("safety_supervisor/enable", SetBool.Request(data=on))

    def reset(self):
        return self.call("safety_supervisor/reset")

    def set(self, node, **values):
        items = [Parameter(name=name.replace("__", "."), value=_value(v)) for name, v in values.items()]
        results = self.call(f"{node}/set_parameters", SetParameters.Request(parameters=items)).results
        return [result.reason for result in results if not result.successful]

    def inject(self, **values):
        assert not self.set("sim_robot", **{f"inject__{name}": value for name, value in values.items()})

    # ---------------------------------------------------------------- bringing the robot somewhere

    def close(self):
        self.driver.running = False
        self.driver.join(2.0)  # it publishes
        self.over = True
        self.thread.join(2.0)
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)

    def quiet(self):
        self.driver.on, self.driver.rate = False, 100.0
        self.driver.alter = lambda fields: fields

    def connected(self):
        """Discovery has joined us both ways: the robot is heard, and commands and takeovers arrive somewhere."""
        wait(lambda: self.state, limit=60.0, what="a supervisor")
        wait(lambda: self.joints is not None, limit=30.0, what="joint states")
        for out in (self.policy, self.takeover):
            wait(out.get_subscription_count, limit=30.0, what=f"who listens on {out.topic_name}")
        return self

    def ready(self, arm=True):
        """Everything undone: robot at home, nothing injected, ARMED with a silent policy."""
        self.quiet()
        self.inject(**INJECT)  # first, so that a frozen robot speaks again
        self.set("sim_robot", obs_delay=0.0, obs_jitter=0.0, drop_prob=0.0, noise=0.0)
        self.connected()
        self.takeover.publish(Bool(data=False))
        self.estop.publish(Bool(data=False))
        if self.state in ("ARMED", "ACTIVE", "STOPPING"):
            self.enable(False)
            wait(lambda: self.state in ("IDLE", "FAULT", "ESTOP"), what="the end of motion")
        if self.state in ("FAULT", "ESTOP"):
            wait(lambda: self.reset().success or self.state == "IDLE", limit=30.0, what="a reset")
        self.wait_state("IDLE", limit=60.0)
        self.call("sim_robot/reset")
        wait(lambda: self.joints is not None and np.abs(self.position).max() < 1e-3, what="home")
        time.sleep(0.3)  # the supervisor has seen the jump home too, and takes it for the truth while IDLE
        self.executed.clear()
        if arm:
            wait(lambda: self.enable().success, what="enable")
            self.wait_state("ARMED")
            wait(lambda: self.executed and np.abs(self.last.value).max() < 1e-3, what="holding at home")
        return self

    def active(self, value=None):
        """ACTIVE, following `value(t)`; default holds at home."""
        self.driver.value = value or (lambda t: np.zeros(3))
        self.driver.on = True
        self.wait_state("ACTIVE")
        return self

    def moving(self, target=1.5):
        """ACTIVE at more than half of the largest speed on the way to `target`."""
        self.active()
        self.driver.value = lambda t: np.full(3, target)
        self.until(lambda: np.abs(self.last.velocity).min() > 0.5, what="motion")
        return self

    def stopped_after(self, since, limit=STOP + SLACK):
        """Wait for zero commanded velocity; seconds from `since` [monotonic] to the message that said so."""

        def standing():
            found = [when for when, item in list(self.executed) if when > since and np.abs(item.velocity).max() < 1e-4]
            return found[0] if found else None

        took = wait(standing, limit + 5.0, "a standing command") - since
        assert took <= limit, f"stopped after {took:.2f} s, expected within {limit:.2f} s"
        return took

    def check_limits(self, velocity=1.0, acceleration=5.0, upper=1.98):
        """No command on `executed` left position, velocity or acceleration limits."""
        items = [item for _, item in list(self.executed)]
        assert items
        before = None
        for item in items:
            assert np.abs(item.value).max() <= upper + 1e-9
            assert np.abs(item.velocity).max() <= velocity + 1e-9
            if before is not None and item.period > 0.0 and item.stamp - before.stamp < 0.05:
                # the numbers themselves moved by v * T, and v changed by at most a * T (T is cut to nanoseconds)
                way = item.value - before.value
                if np.abs(way - item.velocity * item.period).max() < 1e-7:
                    change = np.abs(item.velocity - before.velocity).max()
                    assert change <= acceleration * item.period + 1e-7, f"{change} in {item.period}"
            before = item


def open_env(robot, **options):
    """A robot of the live graph as an environment."""
    return Ros2Env(Ros2Options(robot_spec=robot.name, **options), robot=robot)


def _value(value):
    if isinstance(value, bool):
        return ParameterValue(type=1, bool_value=value)
    if isinstance(value, int):
        return ParameterValue(type=2, integer_value=value)
    if isinstance(value, float):
        return ParameterValue(type=3, double_value=value)
    return ParameterValue(type=4, string_value=value)


class Processes:
    """Nodes as real processes, with their output in files."""

    def __init__(self, folder):
        self.folder, self.running = folder, {}
        (folder / "arm.yaml").write_text(SPEC.format(mode="forward_position", timeout=0.0) + FOREIGN_CLOCK)

    def start(self, module, *parameters, spec="arm.yaml", key=None, args=(), environment=None):
        key = key or module
        program = ["-m", "robot_rl.nodes", module]
        if module == "policy_node":  # with toy policies
            program = [Path(__file__).parent / "toy_policies.py"]
        command = [sys.executable, *program, "--ros-args"]
        command += ["-p", f"robot_spec:={self.folder / spec}", *args]
        for parameter in parameters:
            command += ["-p", parameter]
        log = (self.folder / f"{key}.log").open("ab")
        env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}", "OMP_NUM_THREADS": "1"}
        env.pop("FASTDDS_DEFAULT_PROFILES_FILE", None)  # of this process; a node finds its own
        env |= {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", **(environment or {})}
        env["PYTHONFAULTHANDLER"] = "1"
        env["ROBOT_RL_PARENT"] = str(os.getpid())  # no orphans, even when the tests are killed
        self.running[key] = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=self.folder)
        return self.running[key]

    def log(self, key):
        return (self.folder / f"{key}.log").read_text()

    def end(self, key, sign=signal.SIGTERM, limit=10.0):
        process = self.running.pop(key, None)
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(sign)
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired as error:
                process.send_signal(signal.SIGABRT)  # Python's fault handler says where each thread was
                process.wait(5.0)
                raise AssertionError(f"{key} did not end within {limit} s:\n{self.log(key)[-4000:]}") from error
        return process.returncode

    def close(self):
        for key in list(self.running):
            process = self.running.pop(key)
            process.kill()
            process.wait()


RT = "realtime:=40"
SUPERVISOR = (
    RT,
    "autostart:=true",
    "discovery_time:=0.3",  # nobody else is about; who looks for twins takes the default
    f"state_timeout:={TIMEOUT}",
    f"command_timeout:={TIMEOUT}",
    "settle_time:=0.3",
    "lead_fault_time:=1.0",  # a silent state is found first
    "max_rearm_per_minute:=1000",
    "overrun_ticks:=40",
    "fault_injection:=true",
    "allow_external:=true",
)
