"""Runs a trained policy on the robot's topics: a lifecycle node with hot swap and constant latency."""

from __future__ import annotations

import functools
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rcl_interfaces.msg import SetParametersResult
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.task import Future
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from robot_rl.data.flight import FlightWriter
from robot_rl.real.core.flight import spec_table
from robot_rl.real.core.scheduler import Tick
from robot_rl.real.core.shadow_report import missing_leave
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import bound, has_card
from robot_rl.real.legged_port import COMMAND, IMU
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions, Setpoints, Unfit, fit_policy
from robot_rl.real.port import IMAGE
from robot_rl.real.robot import RobotState
from robot_rl.real.ros.camera_inputs import CameraInputs
from robot_rl.real.ros.flight_option import LAST, declare_flight, open_flight, tell_flight
from robot_rl.real.ros.inputs import RobotInputs
from robot_rl.real.ros.io import FIELDS, JointTrajectory, trajectory
from robot_rl.real.ros.node_base import (
    ERROR,
    OK,
    WARN,
    ControlLoop,
    Health,
    Ring,
    Seen,
    freeze_garbage,
    publisher,
    steady_timer,
    subscribe,
    thaw_garbage,
)
from robot_rl.real.ros.parameters import check_parameters, declare
from robot_rl.real.ros.shadow_watch import ShadowWatch, shadow_facts
from robot_rl.real.runner_flight import RecordedRunner, digests
from robot_rl.types import Loaded, Port


class LoadPolicy(Protocol):
    """Reads a policy for a robot."""

    def __call__(self, path: str, *, device: str, threads: int, trust: bool) -> Loaded:
        """The policy in a run or checkpoint folder; code that the folder names runs only where it is trusted."""
        ...


class PolicyNode(LifecycleNode):
    """See docs/ros2.md for topics, services and parameters.

    Configure loads and proves the policy; activate publishes; deactivate lets go; cleanup forgets the policy.
    """

    def __init__(self, load: LoadPolicy, **options: Any) -> None:
        """Declare parameters and services.

        Args:
            load: reads a policy; what it raises is the reason why the node does not configure.
            options: of the node.
        """
        super().__init__("policy", **options)
        self._load_policy = load
        declare(self, "robot_spec", "", "path of the RobotSpec YAML")
        declare(self, "policy_path", "", "run or checkpoint folder", read_only=False)
        declare(self, "policy_root", "", "folder that policies must lie in; empty = anywhere")
        declare(self, "trust", False, "run a method of somebody's own that the run folder names; it is a program")
        declare(self, "device", "cpu", "where the policy computes")
        declare(self, "threads", 1, "CPU threads of torch", low=1, high=256)
        declare(self, "rate", 100.0, "commands per second", low=1.0, high=1000.0)
        self._phase = declare(self, "publish_phase", 0.3, "when in the period a command goes out", low=0.0, high=0.9)
        declare(self, "action", "", "normalised: -1 and +1 of its log are the robot's bounds", read_only=False)
        declare(self, "action_low", "", "lower bound of the actions of its log: a number or a list", read_only=False)
        declare(self, "action_high", "", "upper bound", read_only=False)
        declare(self, "deterministic", True, "the policy's mean instead of a sample")
        declare(
            self, "dither", -1.0, "share of its noise that it keeps all the same, -1 = as trained", low=-1.0, high=1.0
        )
        declare(self, "interpolate", True, "go straight from target to target between decisions")
        declare(self, "chunk_steps", 1, "points per chunk, 1 = steps", low=1, high=1000)
        declare(self, "blend_steps", 5, "decisions over which a new policy takes over", low=0, high=1000)
        self._state_timeout = declare(self, "state_timeout", 0.1, "oldest that is acted on [s]", low=0.001, high=10.0)
        self._task_timeout = declare(self, "task_timeout", 0.0, "oldest that is acted on [s], 0 = any age", low=0.0)
        declare(self, "camera_freeze", 1.0, "identical pictures for so long are a frozen camera [s], 0 = off", low=0.0)
        declare(self, "realtime", 0, "SCHED_FIFO priority of the loop, 0 = ordinary", high=98)
        declare(self, "autostart", False, "configure and activate at once")
        declare(
            self, "propose", False, "shadow: propose on robot_rl/proposal/policy, move nothing, compare; docs/ros2.md"
        )
        declare(
            self, "shadow", "", "folder of shadows' reports: one is written, or a clean one asked for; empty = neither"
        )
        declare_flight(self)
        check_parameters(self, sys.argv)
        self._problem = ""
        self._instance = secrets.token_hex(2)  # a restarted process counts from 1 again and must not look like a replay
        self.runner: PolicyRunner | None = None
        self._shadow: ShadowWatch | None = None
        self.flight: FlightWriter | None = None
        self.loop: ControlLoop | None = None
        self._next: PolicyRunner | None = None
        self._task: dict[str, tuple[np.ndarray, float]] = {}
        self._task_topics: dict[str, Any] = {}
        self._made: list[object] = []
        self._swaps, self._refused = 0, ""
        self._worker: threading.Thread | None = None
        self._loading = ""
        self._finished: list[tuple[Future, str]] = []
        self.create_service(Trigger, "~/reload", self._on_reload)  # type: ignore[arg-type]  # rclpy awaits coroutines
        self._poll = steady_timer(self, 0.05, self._answer)
        self.add_on_set_parameters_callback(self._on_parameters)
        if self._value("autostart"):
            for step in (self.trigger_configure, self.trigger_activate):
                if step() is not TransitionCallbackReturn.SUCCESS:
                    raise ValueError(self._problem or "the policy could not be started; see the log above")

    def _value(self, name: str) -> Any:
        return self.get_parameter(name).value

    # ------------------------------------------------------------ lifecycle

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load and prove the policy, open the topics."""
        try:
            if not self._value("robot_spec"):
                raise ValueError("robot_spec is empty; give the path of the robot's YAML")
            self.spec = RobotSpec.load(self._value("robot_spec"))
            self.runner = self._load(self._value("policy_path"))  # it begins the flight, once it is fit
        except Exception as error:  # a damaged checkpoint may raise anything
            self._problem = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
            self.get_logger().error(f"not configured: {self._problem}")
            if self.flight is not None:  # nothing flew
                self.flight.close(LAST)
                self.flight.path.unlink(missing_ok=True)
                self.flight = None
            return TransitionCallbackReturn.FAILURE
        self._open()
        self._watch(self.runner.port)
        if self._shadow is not None:
            self._shadow.open(self.health)
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begin to publish."""
        self.loop = ControlLoop(
            self._value("rate"), self._tick, on_error=self._on_error, priority=int(self._value("realtime"))
        )
        self.health.watch_loop(self.loop)
        freeze_garbage()
        self.loop.start()
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let go: the supervisor brakes and holds."""
        self._let_go()
        return TransitionCallbackReturn.SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Forget the policy."""
        self.runner = self._next = None
        self._close_flight()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let go."""
        self._let_go()
        return TransitionCallbackReturn.SUCCESS

    def wind_down(self) -> None:
        """Let go before the process ends."""
        self._let_go()
        self._close_flight()

    def _close_flight(self) -> None:
        if self._shadow is not None:
            self._shadow.close()
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.close(LAST)

    def _let_go(self) -> None:
        if self.loop is None:
            return
        self.loop.stop()
        self._publish(np.zeros(0), np.zeros((0, len(self.spec.joints))), self._now_ros())
        time.sleep(0.05)  # the message has to leave the process
        self.loop = None
        thaw_garbage()

    def _open(self) -> None:
        if self._made:
            return
        self.health = Health(self, self.spec.name)
        self.inputs = RobotInputs(self, self.spec, self.health)
        freeze = float(self._value("camera_freeze"))
        self._cameras = CameraInputs(self, self.health, {}, freeze_time=freeze, eager=True)
        topic = "robot_rl/proposal/policy" if self._shadow is not None else "robot_rl/command/policy"
        self._out = publisher(self, JointTrajectory, topic, "command", self.health)
        self._followed = False
        self._seq = 0
        self._pending: tuple[Setpoints, float] | None = None
        self._latency = Ring(2048, ("seconds",))
        self._misses = self._stale = 0
        self._silent: list[str] = []
        self._blind = ""
        self._made += [
            self._out,
            subscribe(self, String, "robot_rl/authority", self._on_authority, "latched", self.health),
        ]
        self.health.add("policy", self._aspect)

    # ------------------------------------------------------------ loading

    def _load(self, path: str) -> PolicyRunner:
        """Load, prove and wrap a policy.

        Raises:
            ValueError: outside the policy root, not loadable, or unfit for the robot.
        """
        if not path:
            raise ValueError("policy_path is empty; give a run or checkpoint folder")
        root = self._value("policy_root")
        where = Path(path).expanduser().resolve()
        if root and not where.is_relative_to(Path(root).expanduser().resolve()):
            raise ValueError(f"policy_path {where} lies outside policy_root {root}")
        loaded = self._load_policy(
            str(where),
            device=str(self._value("device")),
            threads=int(self._value("threads")),
            trust=bool(self._value("trust")),
        )
        said = {key: bound(key, self._value(key)) for key in ("action_low", "action_high")}
        said["action"] = self._value("action") or None
        policy, port = fit_policy(loaded, self.spec, said, self.get_logger().warning)
        for task in port.external:
            if task not in (*self._task_topics, IMU, COMMAND):
                self._task_topics[task] = self.create_subscription(
                    Float64MultiArray, f"robot_rl/task/{task}", functools.partial(self._on_task, task), 1
                )
        options = RunnerOptions(
            rate=self._value("rate"),
            mode=self.spec.mode,
            deterministic=bool(self._value("deterministic")),
            dither=None if self._value("dither") < 0.0 else self._value("dither"),
            interpolate=bool(self._value("interpolate")),
            chunk_steps=int(self._value("chunk_steps")),
            blend_steps=int(self._value("blend_steps")),
        )
        identity = f"{loaded.identity.replace('|', '_')}.{self._instance}"
        if shadow := self._value("shadow"):
            facts = shadow_facts(self.spec, self._value("robot_spec"), str(where), loaded)
            if self._value("propose"):
                self._shadow = ShadowWatch(self, self.spec, loaded.io.seen, port, facts, Path(shadow))
            elif lacking := missing_leave(Path(shadow), self.spec.name, str(facts["card"]), facts["files"]):
                raise Unfit(f"the policy may not drive yet: {lacking}")
        say, seen = self.get_logger().warning, loaded.io.seen
        if self.runner is None:  # whoever takes over later is recorded as the first one was, or not
            self.flight = open_flight(self, "policy", self.spec)
        if self.flight is None:
            return PolicyRunner(policy, port, options, identity=identity, seen=seen, say=say)
        facts = {"path": str(where), "files": digests(loaded.files), "said": said, "spec": spec_table(self.spec)}
        facts |= {"device": str(self._value("device")), "threads": int(self._value("threads"))}
        return RecordedRunner(
            policy, port, options, identity=identity, flight=self.flight, facts=facts, seen=seen, say=say
        )

    def _watch(self, port: Port) -> None:
        """Subscribe to the cameras that this policy is the first to need."""
        for name in port.cameras:
            self._cameras.add(name, self.spec.cameras[name])

    def _swap(self, path: str, done: Future | None) -> None:
        """In a worker thread; it keeps the priority of its process, because a nice thread that holds the interpreter
        lock while others have the processor stops the control thread too.
        """
        try:
            runner = self._load(path)
            self._watch(runner.port)
            self._next = runner
            self._refused = message = ""
        except Exception as error:  # whatever is wrong with it, the old policy goes on
            self._refused = message = f"{path} refused: {error}"
        if done is not None:
            self._finished.append((done, message))

    def _begin_swap(self, path: str, done: Future | None = None) -> str:
        if self.runner is None:
            return "not configured yet"
        if self._shadow is not None:
            return "propose=true compares one policy: end it and start anew with the other"
        if self._worker is not None and self._worker.is_alive():
            if done is None and path == self._loading:
                return ""  # asked twice, e.g. because the answer was late: one load serves both
            return "another policy is being loaded"
        self._loading = path
        self._worker = threading.Thread(target=self._swap, args=(path, done), name="load", daemon=True)
        self._worker.start()
        return ""

    def _answer(self) -> None:
        while self._finished:
            future, message = self._finished.pop()
            future.set_result(message)
            if message:
                self.get_logger().error(message)

    async def _on_reload(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        future: Future = Future()
        refused = self._begin_swap(self._value("policy_path"), future)
        message = refused or await future
        response.success, response.message = not message, str(message)
        return response

    def _on_parameters(self, changes: list[Parameter]) -> SetParametersResult:
        for change in changes:
            if change.name == "policy_path" and self.runner is not None:
                folder = Path(str(change.value)).expanduser()
                if not (folder.is_dir() or has_card(folder)):
                    return SetParametersResult(successful=False, reason=f"policy_path {folder} is no folder")
                refused = self._begin_swap(str(change.value))
                if refused:
                    return SetParametersResult(successful=False, reason=refused)
        return SetParametersResult(successful=True)

    # ------------------------------------------------------------ callbacks

    def _on_task(self, name: str, message: Float64MultiArray) -> None:
        self._task[name] = (np.array(message.data, float), time.monotonic())

    def _on_authority(self, message: String) -> None:
        self._followed = message.data == "policy"

    # ------------------------------------------------------------ one tick, in the control thread

    def _tick(self, tick: Tick) -> float | None:
        begin = time.monotonic()
        new, self._next = self._next, None
        if new is not None and self.runner is not None:
            new.follow(self.runner)
            self.runner = new
            self._swaps += 1
        runner = self.runner
        assert runner is not None
        assert self.loop is not None
        self._out.assert_liveliness()
        state = self.inputs.latest(begin)
        task, self._silent = self._task_now(runner, state, begin)
        pictures, self._blind = self._cameras.look(begin, runner.port.cameras)
        if self._shadow is not None and state is not None:
            self._shadow.take(begin, state, self._cameras)
        if state is None or begin - state.stamp > self._state_timeout or self._silent or self._blind:
            self._stale += 1
            runner.restart()
            return None
        if self._shadow is not None and tick.index % runner.every:
            return begin - state.stamp  # it proposes at its own rate; somebody else's processor may be needed
        if not self._followed:
            runner.restart()  # somebody else moves the robot: stay with it, so that taking over does not jump
        wanted = runner.tick(
            state.position, state.velocity, task | {IMAGE + name: pixels for name, pixels in pictures.items()}
        )
        if self._shadow is not None and runner.asked is not None and wanted is not None:
            self._shadow.watched.propose(begin, *runner.asked, wanted.values[-1])
        stamp = self._now_ros() - (time.monotonic() - state.stamp)
        self._latency.add(time.monotonic() - begin)
        due = tick.deadline + self._phase / self.loop.rate
        ready = time.monotonic()
        late = False
        if wanted is not None and ready > due and wanted.decided:
            # constant latency: a late result waits for the next period, the last command goes on
            late = True
            self._misses += 1
            held, self._pending = self._pending, (wanted, stamp)
            wanted, stamp = held if held is not None else (None, stamp)
        if ready < due:
            time.sleep(due - ready)
        if wanted is not None:
            if not late:
                self._pending = None
            self._publish(wanted.times, wanted.values, stamp)
        elif not late and self._pending is not None:
            (kept, kept_stamp), self._pending = self._pending, None
            self._publish(kept.times, kept.values, kept_stamp)
        return begin - state.stamp

    def _task_now(
        self, runner: PolicyRunner, state: RobotState | None, now: float
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        found, silent = {}, []
        patience = self._task_timeout or np.inf
        for name in runner.port.external:
            if name in (IMU, COMMAND):
                value = self._of_body(name, state, now)
                if value is None:
                    silent.append(f"sensor {name}")
                else:
                    found[name] = value
                continue
            value, when = self._task.get(name, (None, -np.inf))
            if value is None or now - when > patience:
                silent.append(name)
            else:
                found[name] = value
        return found, silent

    def _of_body(self, name: str, state: RobotState | None, now: float) -> np.ndarray | None:
        """A reading of the IMU, None when there is no fresh one; the wanted velocity, 0 when nobody asks for one."""
        sensor = self.spec.imu if name == IMU else self.spec.velocity_command
        fresh = (
            state is not None
            and sensor in state.sensors
            and self.inputs.age(sensor, now) <= self.spec.sensors[sensor].timeout
        )
        value = state.sensors[sensor] if fresh and state is not None else None
        if name == IMU:
            return value
        return np.zeros(3) if value is None else value[[0, 1, 5]]

    def _publish(self, times: np.ndarray, values: np.ndarray, stamp: float) -> None:
        identity = self.runner.identity if self.runner is not None else "policy"
        if len(times) and not np.isfinite(values).all():
            self._refused = "the policy answered with values that are not finite"
            return
        self._seq += 1
        message = trajectory(
            self.spec.names, stamp, identity, self._seq, times.tolist(), values, FIELDS[self.spec.mode]
        )
        self._out.publish(message)

    def _now_ros(self) -> float:
        return 1e-9 * self.get_clock().now().nanoseconds

    def _on_error(self, error: Exception) -> None:
        self._refused = f"{type(error).__name__}: {error}"
        self.get_logger().error(f"exception in the policy loop: {self._refused}", throttle_duration_sec=1.0)

    def _aspect(self) -> Seen:
        runner = self.runner
        if runner is None or self.loop is None:
            return WARN, "not active", {}
        times = self._latency.last()[:, 0] * 1e3
        values: dict[str, object] = {
            "id": runner.identity,
            "swaps": self._swaps,
            "deadline_misses": self._misses,
            "stale_ticks": self._stale,
            "followed": self._followed,
            **tell_flight(self.flight),
        }
        if len(times):
            p50, p95 = np.percentile(times, [50, 95])
            values |= {"latency_p50_ms": float(p50), "latency_p95_ms": float(p95), "latency_max_ms": float(times.max())}
        if self.loop.errors:
            return ERROR, f"{self.loop.errors} exceptions, the last: {self._refused}", values
        if self._silent:
            names = (name if name.startswith("sensor ") else f"robot_rl/task/{name}" for name in self._silent)
            return WARN, f"no value yet on {', '.join(names)}", values
        if self._blind:
            return WARN, self._blind, values
        if self._refused:
            return WARN, self._refused, values
        if self._shadow is not None:
            return self._shadow.aspect(values)
        return OK, "deciding" if self._followed else "ready, not followed", values
