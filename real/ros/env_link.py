"""The side of `Ros2Env` that talks: one node, its topics and services, and the stream of setpoints."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from robot_rl.extras import require

require("rclpy")

import rclpy  # noqa: E402  (after the check that it is there)
from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rclpy.signals import SignalHandlerOptions  # noqa: E402
from std_msgs.msg import Bool, Float64, Float64MultiArray, String  # noqa: E402
from std_srvs.srv import SetBool, Trigger  # noqa: E402

from robot_rl.real.core.priority import lift  # noqa: E402
from robot_rl.real.core.scheduler import Tick  # noqa: E402
from robot_rl.real.core.spec import RobotSpec  # noqa: E402
from robot_rl.real.robot import RobotState  # noqa: E402
from robot_rl.real.ros.camera_inputs import CameraInputs  # noqa: E402
from robot_rl.real.ros.executor import TopicExecutor  # noqa: E402
from robot_rl.real.ros.inputs import RobotInputs  # noqa: E402
from robot_rl.real.ros.io import (  # noqa: E402
    FIELDS,
    Executed,
    JointTrajectory,
    read_executed,
    trajectory,
)
from robot_rl.real.ros.node_base import (  # noqa: E402
    OK,
    WARN,
    ControlLoop,
    Health,
    Seen,
    hardware_id,
    publisher,
    spare_garbage,
    spin,
    subscribe,
)


class EnvLink:
    """Node `robot_env`: what the environment reads and says, with a thread for callbacks and one for setpoints.

    Between two decisions the setpoint runs straight from where the last one ended to the new target, at `rate`, each
    message stamped with the newest state: the supervisor sees a live source as long as the environment is served.

    Args:
        spec: of the robot.
        rate: setpoints per second.
        external: task variables that the observation needs.
        namespace: of the robot's graph.
        use_sim_time: take stamps from /clock.
        state_timeout: oldest state on which setpoints are sent [s].
        freeze_time: seconds of identical pictures that count as a frozen camera; 0 = not watched.
        realtime: SCHED_FIFO priority of the two threads, 0 = ordinary. The caller's thread, which may be a learner's,
            stays as it is.
    """

    def __init__(
        self,
        spec: RobotSpec,
        *,
        rate: float,
        external: tuple[str, ...] = (),
        namespace: str = "",
        use_sim_time: bool = False,
        state_timeout: float = 0.1,
        freeze_time: float = 1.0,
        realtime: int = 0,
    ) -> None:
        self.spec, self.external, self.state_timeout = spec, external, state_timeout
        self.context = Context()
        rclpy.init(context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = Node(
            "robot_env",
            context=self.context,
            namespace=namespace or None,
            parameter_overrides=[Parameter("use_sim_time", value=use_sim_time)],
        )
        node = self.node
        self._robot = hardware_id(spec.name, node.get_namespace())
        self.health = health = Health(node, spec.name)
        self.inputs = RobotInputs(node, spec, health)
        self.executed: tuple[Executed, float] | None = None
        self.state, self.authority = "", "none"
        self.fault = ""
        self.flags: set[str] = set()
        self.human = False
        self.task: dict[str, np.ndarray] = {}
        self.reward, self.rewarded = 0.0, False
        self.success: bool | None = None
        self.label: bool | None = None
        self.go_on = threading.Event()
        self.cameras = CameraInputs(node, health, spec.cameras, freeze_time=freeze_time)
        self._external_sensors = [name for name in external if name in spec.sensors]
        self._out = publisher(node, JointTrajectory, "robot_rl/command/policy", "command", health)
        self._estop = publisher(node, Bool, "robot_rl/estop", "event", health)
        subscribe(node, JointTrajectory, "robot_rl/executed", self._on_executed, "executed", health)
        subscribe(node, String, "robot_rl/safety/state", self._on_state, "latched", health)
        subscribe(node, String, "robot_rl/authority", self._on_authority, "latched", health)
        subscribe(node, Float64, "robot_rl/reward", self._on_reward, "event", health)
        subscribe(node, Bool, "robot_rl/success", self._on_success, "event", health)
        subscribe(node, DiagnosticArray, "/diagnostics", self._on_diagnostics, "event", health)
        for name in external:
            if name not in spec.sensors:
                keep = lambda message, name=name: self.task.update({name: np.array(message.data, float)})  # noqa: E731
                subscribe(node, Float64MultiArray, f"robot_rl/task/{name}", keep, "state", health)
        node.create_service(Trigger, "~/continue", self._on_continue)
        node.create_service(Trigger, "~/label_success", lambda _, answer: self._on_label(True, answer))
        node.create_service(Trigger, "~/label_failure", lambda _, answer: self._on_label(False, answer))
        self._clients: dict[str, Any] = {}
        self._tag, self._seq = f"robot_env-{time.time_ns() // 1_000_000:x}", 0
        self._lock = threading.Lock()
        self._from = self._to = np.zeros(len(spec.joints))
        self._begin = self._end = self._until = -np.inf
        self.stalls, self.fifo = 0, "off"
        health.add("env", self._aspect)
        self._over = threading.Event()
        self._executor = TopicExecutor(context=self.context)
        self._executor.add_node(node)
        self._spinning = threading.Thread(target=spin, args=(self._executor, self._over), name="callbacks", daemon=True)
        self._spinning.start()
        self.loop = ControlLoop(rate, self._tick, on_error=self._on_error)
        spare_garbage()  # a collection in its course would make a silence of a fault's length
        self.loop.start()
        self.fifo = lift(realtime, ("control", "callbacks"))

    # ------------------------------------------------------------ reading

    def latest(self) -> RobotState | None:
        """Newest state; None until every joint has been heard. Callable from any thread."""
        with self._lock:
            return self.inputs.latest(time.monotonic())

    def variables(self, state: RobotState) -> dict[str, np.ndarray]:
        """Values of `external` that are known."""
        found = {name: self.task[name] for name in self.external if name in self.task}
        return found | {name: state.sensors[name] for name in self._external_sensors if name in state.sensors}

    def last_command(self, state: RobotState) -> np.ndarray:
        """(J,) command that the supervisor sent last; the measured position where it sends none."""
        executed = self.executed
        if executed is None or time.monotonic() - executed[1] > 1.0 or executed[0].value.shape != state.position.shape:
            return state.position.copy()
        return executed[0].value.copy()

    def missing(self) -> list[str]:
        """What keeps the environment from working, one line each."""
        lines = []
        state = self.latest()
        if state is None:
            topics = ", ".join(self.spec.state_topics)
            lines.append(f"no state of joints {', '.join(self.inputs.missing())} on {topics}")
        else:
            known = self.variables(state)
            lines += [f"no message on robot_rl/task/{name}" for name in self.external if name not in known]
        now = time.monotonic()
        for name, sensor in self.spec.cameras.items():
            camera = self.cameras[name]
            if sensor.required and camera.picture(now) is None:
                why = f": {camera.last_error}" if camera.last_error else ""
                lines.append(f"no picture of camera {name} on {sensor.topic}{why}")
        if not self.state:
            lines.append("no safety supervisor: nothing on robot_rl/safety/state")
        elif not self._out.get_subscription_count():  # whom one hears need not have found this publisher yet
            lines.append(f"nobody listens on {self._out.topic_name}")
        lines += [f"QoS {policy} of {topic} does not match" for topic, policy in self.health.mismatches.items()]
        return lines

    def camera_fault(self) -> str:
        """First problem of a required camera, "" when all live."""
        needed = [name for name, sensor in self.spec.cameras.items() if sensor.required]
        return self.cameras.look(time.monotonic(), needed)[1]

    def take_reward(self) -> tuple[float, bool | None]:
        """Reward since the last call, and a label since then; without one the newest success message, which stands."""
        reward, self.reward = self.reward, 0.0
        label, self.label = self.label, None
        return reward, self.success if label is None else label

    def now_ros(self) -> float:
        """ROS time [s]."""
        return 1e-9 * self.node.get_clock().now().nanoseconds

    # ------------------------------------------------------------ speaking

    def aim(self, start: np.ndarray, target: np.ndarray, begin: float, end: float, until: float) -> None:
        """Run from `start` to `target` (J,) between `begin` and `end`, hold there, let go at `until` [s]."""
        with self._lock:
            self._from, self._to = np.array(start, float), np.array(target, float)
            self._begin, self._end, self._until = begin, end, until

    def setpoint(self, now: float) -> np.ndarray:
        """(J,) setpoint of the stream at `now`."""
        if self.spec.mode != "position":
            return self._to
        share = (now - self._begin) / max(self._end - self._begin, 1e-6)
        return self._from + min(max(share, 0.0), 1.0) * (self._to - self._from)

    def release(self) -> None:
        """Let go: the supervisor brakes and holds."""
        with self._lock:
            self._until = -np.inf
            with contextlib.suppress(Exception):
                self._publish(None)

    def estop(self, pressed: bool) -> None:
        """A person presses or releases the supervisor's e-stop; from any thread, waits for nothing."""
        self._estop.publish(Bool(data=pressed))

    def call(self, name: str, *, data: bool | None = None, timeout: float = 3.0) -> tuple[bool, str]:
        """Call a Trigger service, or a SetBool one with `data`; success and message."""
        kind = Trigger if data is None else SetBool
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self.node.create_client(kind, name)
        if not client.wait_for_service(timeout):
            return False, f"there is no service {name}"
        request = kind.Request() if data is None else SetBool.Request(data=data)
        answered = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(timeout):
            return False, f"{name} did not answer within {timeout:g} s"
        answer: Any = future.result()
        return bool(answer.success), str(answer.message)

    def close(self) -> None:
        """Let go and end node and threads; a second call does nothing."""
        if self._over.is_set():
            return
        self.release()
        self.loop.stop(1.0)
        time.sleep(0.02)  # the last message has to leave the process
        self._over.set()
        self._spinning.join(1.0)
        with contextlib.suppress(Exception):
            self._executor.shutdown(timeout_sec=0.5)
        with contextlib.suppress(Exception):
            self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)

    # ------------------------------------------------------------ threads

    def _tick(self, tick: Tick) -> float | None:
        self._out.assert_liveliness()
        with self._lock:
            now = time.monotonic()
            if now > self._until:
                if np.isfinite(self._until):  # the learner is late: say so, or it counts as a lost command
                    self._until = -np.inf
                    self._publish(None)
                return None
            state = self.inputs.latest(now)
            if state is None or now - state.stamp > self.state_timeout:
                return None
            # inside the lock: after `release` not one setpoint more may go out
            self._publish(self.setpoint(now), age=now - state.stamp)
            return now - state.stamp

    def _publish(self, value: np.ndarray | None, *, age: float = 0.0) -> None:
        self._seq += 1
        times = [] if value is None else [1.0 / self.loop.rate]
        values = np.zeros((0, len(self.spec.joints))) if value is None else value[None]
        self._out.publish(
            trajectory(
                self.spec.names, self.now_ros() - age, self._tag, self._seq, times, values, FIELDS[self.spec.mode]
            )
        )

    def _on_error(self, error: Exception) -> None:
        self.node.get_logger().error(f"exception in the setpoint loop: {error}", throttle_duration_sec=1.0)

    # ------------------------------------------------------------ callbacks: store and return

    def _on_executed(self, message: JointTrajectory) -> None:
        try:
            sent = read_executed(message)
        except ValueError:
            return
        self.executed = (sent, time.monotonic())
        self.flags |= set(sent.flags)
        self.human = self.human or sent.authority == "human"

    def _on_state(self, message: String) -> None:
        self.state = message.data
        if message.data not in ("FAULT", "ESTOP"):
            self.fault = ""

    def _on_authority(self, message: String) -> None:
        self.authority = message.data
        self.human = self.human or message.data == "human"

    def _on_reward(self, message: Float64) -> None:
        self.reward += float(message.data)
        self.rewarded = True

    def _on_success(self, message: Bool) -> None:
        self.success = bool(message.data)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            if status.name == "robot_rl/safety_supervisor: safety" and status.hardware_id == self._robot:
                table = {item.key: item.value for item in status.values}
                self.fault = table.get("faults", "").split(",")[0].strip()

    def _on_continue(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.go_on.set()
        response.success = True
        return response

    def _on_label(self, value: bool, response: Trigger.Response) -> Trigger.Response:
        self.label = value
        response.success, response.message = True, "labelled " + ("success" if value else "failure")
        return response

    def _aspect(self) -> Seen:
        values: Mapping[str, object] = {
            "state": self.state,
            "authority": self.authority,
            "sent": self._seq,
            "stalls": self.stalls,
            "fifo": self.fifo,
            **{f"camera_{name}_errors": camera.errors for name, camera in self.cameras.items()},
        }
        problem = self.camera_fault()
        return (WARN, problem, dict(values)) if problem else (OK, "ready", dict(values))
