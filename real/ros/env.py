"""`Ros2Env`: a Gymnasium environment on the live graph of a robot, real or simulated, behind its safety supervisor."""

from __future__ import annotations

import atexit
import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from pydantic import Field

from robot_rl.real.cameras import WHOLE, Crop, crop_pixels, resize_picture
from robot_rl.real.core.codec import ActionCodec
from robot_rl.real.core.priority import lift
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import find_file
from robot_rl.real.port import JudgePort, SpecPort
from robot_rl.real.robot import RobotState
from robot_rl.real.ros.env_link import EnvLink
from robot_rl.real.ros.env_reset import LATCHED, MODES, EnvClosed, ResetFailed, RobotUnavailable, StartOptions, StartWay
from robot_rl.types import IOSpec, Obs, Port
from robot_rl.types.options import NotNegative, Pixels, Positive, Whole


class Ros2Options(StartOptions):
    """Of a robot as an environment."""

    robot_spec: str
    """Path of the RobotSpec, or the bare name of one that comes with the package."""
    rate: Positive | None = None
    """Decisions per second; null takes the port's, or 20."""
    port: Any = None
    """Observation and action terms; null takes those of the RobotSpec. A function of the joint names makes one."""
    episode_seconds: NotNegative = 10.0
    """Time limit; 0: none."""
    reset_mode: Literal["home", "manual", "policy", "none"] = "home"
    """Who brings the robot to a start; see `Ros2Env.reset`."""
    terminate_on_success: bool = False
    """End the episode at success."""
    takeover_ends_episode: bool = False
    """Truncate when a human takes over."""
    command_rate: Positive = 100.0
    """Setpoints per second between decisions."""
    max_hold: Positive = 0.5
    """Lateness of a step call that ends the episode as `learner_stall` [s]."""
    state_timeout: Positive = 0.1
    """Oldest state [s]."""
    connect_timeout: Positive = 10.0
    """Patience for topics at construction [s]."""
    image_size: Pixels = (128, 128)
    """(height, width) of camera observations."""
    crop: dict[str, Crop] = Field(default_factory=dict)
    """Camera -> (left, top, right, bottom) of what a policy sees of its pictures, as shares of width and height."""
    freeze_time: NotNegative = 1.0
    """Seconds of identical pictures that count as a frozen camera; 0: not watched."""
    namespace: str = ""
    """Of the robot's graph."""
    use_sim_time: bool = False
    """Stamps from /clock."""
    realtime: Whole = 0
    """SCHED_FIFO priority of the threads that talk to the robot, 0: ordinary."""
    realtime_caller: bool = False
    """Give the thread that calls `reset` the same priority: for processes that only act. A thread of ordinary priority
    that is put aside while it holds the interpreter's lock stops the others, too; a learner at real-time priority would
    stop the machine."""
    latency_mode: Literal["trained", "predicted", "none"] = "none"
    """What is done about latency, for `info`."""


class Ros2Env(gymnasium.Env):
    """One robot as an environment that steps in real time.

    A step sends its target and returns at the next deadline t_0 + k / rate, whatever the caller did in between; the
    action reported and to be learned from is the one that the supervisor executed. Faults, operator stops and a
    learner that does not come back truncate the episode with the reason in `info["fault"]`; they never terminate it.

    Args:
        options: numbers and choices.
        robot: the spec; None reads that of the options.
        reset_policy: called with this environment in mode `policy`; brings the scene back by itself.

    Raises:
        RobotUnavailable: names what is missing.
        ValueError: names the argument.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium's own type)

    def __init__(
        self,
        options: Ros2Options,
        *,
        robot: RobotSpec | None = None,
        reset_policy: Callable[[Any], None] | None = None,
    ) -> None:
        self._o = o = options
        self.robot = spec = robot or RobotSpec.load(find_file(o.robot_spec))
        if o.port is None:
            self.port: Port = SpecPort(spec, o.rate or 20.0)
        else:
            self.port = cast(Port, o.port(spec.names) if callable(o.port) else o.port)
        self._judge_port = self.port if isinstance(self.port, JudgePort) else None
        if o.rate is not None and not math.isclose(o.rate, self.port.io.control_hz):
            raise ValueError(f"rate is {o.rate:g} Hz, but the port decides at {self.port.io.control_hz:g} Hz")
        self.rate = self.port.io.control_hz
        self.period = 1.0 / self.rate
        unknown = sorted(set(o.crop) - set(spec.cameras))
        if unknown:
            has = ", ".join(spec.cameras) or "none"
            raise ValueError(f"crop names camera {', '.join(unknown)}, and the cameras of {spec.name} are: {has}")
        self.io = self._passport(o.image_size)
        self.observation_space, self.action_space = _spaces(self.io)
        self.metadata = {**self.metadata, "render_fps": max(1, round(self.rate))}
        self.render_mode = "rgb_array" if spec.cameras else None
        self._codec = ActionCodec(spec, self.rate) if isinstance(self.port, SpecPort) else None
        self._limit = round(o.episode_seconds * self.rate)
        self._priority = o.realtime if o.realtime_caller else 0
        self._busy, self._closing = threading.Lock(), threading.Event()
        self._closed = False
        self._unlocked = False
        self._needs_reset = "reset() has not been called yet"
        self._steps = self._missed = 0
        self._deadline = self._published = 0.0
        self._command = np.zeros(len(spec.joints))
        self._followed = False
        self._unfollowed = 0
        self.link = EnvLink(
            spec,
            rate=o.command_rate,
            external=tuple(self.port.external),
            namespace=o.namespace,
            use_sim_time=o.use_sim_time,
            state_timeout=o.state_timeout,
            freeze_time=o.freeze_time,
            realtime=o.realtime,
        )
        self._way = StartWay(
            self.link,
            o,
            closing=self._closing,
            home=spec.home,
            policy=None if reset_policy is None else lambda: reset_policy(self),
        )
        _alive.add(self)
        self._wait_for_graph(o.connect_timeout)

    # ------------------------------------------------------------ Gymnasium

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Bring robot and scene to a start and return a fresh observation.

        Args:
            seed: of sampled starts only; the world is real.
            options: `mode`: `home` (minimum-time quintic inside the limits), `manual` (hold until robot_env/continue
                is called), `policy` (the `reset_policy`) or `none`; `operator_reset`: True asks the supervisor once to
                clear its latch.

        Raises:
            ResetBlocked: the supervisor is latched.
            ResetFailed: the start was not reached in time.
            EnvClosed: closed meanwhile.
        """
        super().reset(seed=seed)
        options = options or {}
        mode = str(options.get("mode", self._o.reset_mode))
        if mode not in MODES:
            raise ValueError(f"reset mode is {mode!r}, expected one of {', '.join(MODES)}")
        with self._alone("reset"):
            lift(self._priority)
            self._needs_reset = "the last reset failed; call reset() again"
            try:
                operator = bool(options.get("operator_reset", False)) or self._unlocked
                self._unlocked = False
                self._way.bring(mode, operator_reset=operator, rng=self.np_random)
            except BaseException:
                self.link.release()
                raise
            state = self._fresh(time.monotonic())
            if state is None:
                raise ResetFailed(f"no state of the robot within {self._o.state_timeout:g} s after the reset")
            variables = self.link.variables(state)
            self.port.reset(state.position, state.velocity, variables)
            self._command = self.link.last_command(state)
            self._steps = self._missed = 0
            self._followed, self._unfollowed = False, 0
            self.link.take_reward()
            self.link.human = False
            self._deadline = time.monotonic()
            self._needs_reset = ""
            obs = self._observe(state)
            return obs, self._info(state, np.zeros(self.io.action_dim, np.float32), fault="")

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Execute an action and return at the next deadline.

        Raises:
            ResetNeeded: the episode is over, or none has begun.
            RuntimeError: another thread is inside step or reset.
            EnvClosed: closed meanwhile.
            ValueError: wrong shape, or not finite.
        """
        with self._alone("step"):
            if self._needs_reset:
                raise ResetNeeded(f"call reset() before step(): {self._needs_reset}")
            value = np.asarray(action, np.float32)
            if value.shape != (self.io.action_dim,) or not np.isfinite(value).all():
                raise ValueError(f"action is {value}, expected {self.io.action_dim} finite numbers in [-1, 1]")
            try:
                return self._step(np.clip(value, -1.0, 1.0))
            except BaseException:  # whatever went wrong, the robot must not go on
                self._needs_reset = "the last step raised"
                self.link.release()
                raise

    def cut(self, fault: str) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """What a step returns that ends the episode by a fault, without a step: somebody else has used the robot."""
        with self._alone("cut"):
            return self._truncate(np.zeros(self.io.action_dim, np.float32), fault)

    def look(self) -> Obs:
        """A fresh observation between two episodes, or while the robot holds; moves nothing.

        Raises:
            RobotUnavailable: no state of the robot came in time.
            EnvClosed: closed meanwhile.
        """
        with self._alone("look"):
            state = self._fresh(time.monotonic() - self._o.state_timeout)
            if state is None:
                raise RobotUnavailable(f"no state of the robot for {self._o.state_timeout:g} s")
            return self._observe(state)

    def pictures(self) -> dict[str, tuple[np.ndarray | bytes, float]]:
        """Camera -> its newest picture, a JPEG or (H, W, 3) uint8, and when it was taken [s of the steady clock]."""
        return self.link.cameras.films()

    def render(self) -> np.ndarray | None:
        """Newest picture of the first camera, (H, W, 3) uint8; None without cameras."""
        for camera in self.link.cameras.values():
            picture = camera.picture(time.monotonic())
            if picture is not None:
                return resize_picture(picture, *picture.shape[:2])
        return None

    def stop(self) -> None:
        """A person's STOP: the supervisor latches at once, also while `reset` or `step` runs; from any thread."""
        self._unlocked = False
        self.link.estop(True)

    def unlock(self) -> None:
        """The person lets go of STOP; the next `reset` asks the supervisor once to clear its latch."""
        self.link.estop(False)
        self._unlocked = True

    def close(self) -> None:
        """Let the robot go (brake and hold; disabled when we armed it), end node and threads; callable twice."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        if self._busy.acquire(timeout=1.0):
            self._busy.release()
        with contextlib.suppress(Exception):
            if self._o.arm and self.link.state in ("ARMED", "ACTIVE", "STOPPING"):
                self.link.release()
                self.link.call("safety_supervisor/enable", data=False, timeout=0.5)
        self.link.close()
        _alive.discard(self)

    # ------------------------------------------------------------ one step

    def _step(self, action: np.ndarray) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        link, now = self.link, time.monotonic()
        if not self._steps:  # whoever waits for a person between reset and the first step is not late
            self._deadline = now
        late = now - self._deadline
        if late > self._o.max_hold:  # the stream has let go meanwhile and the supervisor has braked
            link.stalls += 1
            return self._truncate(action, "learner_stall")
        skipped = max(math.floor(late / self.period + 1e-9), 0) if self._steps else 0
        self._missed += skipped
        begin = self._deadline + skipped * self.period
        self._deadline = begin + self.period
        before = self._command
        target = np.asarray(self.port.act(action[None]), float)
        link.flags = set()
        self._published = time.monotonic()
        # lets go before max_hold, so that the supervisor stops a robot whose learner does not come back
        until = self._deadline + max(self._o.max_hold - 0.15, 0.0)
        link.aim(link.setpoint(now) if self._steps else before, target, now, self._deadline, until)
        period = self._deadline - now
        self._sleep_until(self._deadline)
        state = self._fresh(self._published)
        if state is None:
            return self._truncate(action, "state_stale")
        fault = self._fault()
        if fault:
            return self._truncate(action, fault)
        self._steps += 1
        self._command = self.link.last_command(state)
        obs = self._observe(state)
        reward, terminated, success = self._judge()
        truncated = not terminated and bool(self._limit and self._steps >= self._limit)
        reason = ""
        if self._o.takeover_ends_episode and link.human and not terminated:
            truncated, reason = True, "takeover"
        info = self._info(state, action, fault="", before=before)
        info |= {"period": period, "success": success, "missed_ticks": self._missed, "deadline_miss": skipped > 0}
        if reason:
            info["fault"] = reason
        if terminated or truncated:
            self._needs_reset = "the episode has ended"
            link.release()
        if link.human and self._codec is not None:  # moves go on from where a person has left the robot
            self.port.reset(self._command, state.velocity, {})
        link.human = link.authority == "human"
        return obs, reward, terminated, truncated, info

    def _truncate(self, action: np.ndarray, fault: str) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """End of the episode by a fault: no transition to learn from."""
        self.link.release()
        self._needs_reset = f"the episode ended: {fault}"
        state = self.link.latest()
        assert state is not None
        info = self._info(state, action, fault=fault)
        info |= {"valid": False, "success": False, "missed_ticks": self._missed}
        return self._observe(state), 0.0, False, True, info

    def _fault(self) -> str:
        """Why the robot no longer follows, "" while it does."""
        link, now = self.link, time.monotonic()
        if link.state in LATCHED:
            patience = time.monotonic() + 0.5  # the code comes with the diagnostics, a moment later
            while not link.fault and time.monotonic() < patience:
                time.sleep(0.01)
            return link.fault or link.state.lower()
        if link.executed is None or now - link.executed[1] > 5.0 * self._o.state_timeout:
            return "supervisor_silent"
        camera = link.camera_fault()
        if camera:
            return f"camera: {camera}"
        if link.state == "ACTIVE":
            self._followed, self._unfollowed = True, 0
        elif link.state in ("IDLE", "STARTUP"):
            return "disabled"
        elif self._followed:
            return "stopped"
        else:  # a first command takes a moment to be followed
            self._unfollowed += 1
            if self._unfollowed * self.period > 1.0:
                return "not_followed"
        return ""

    def _judge(self) -> tuple[float, bool, bool]:
        """Reward, terminated, success: of the port where it can tell, else of topics and labels."""
        reward, outcome = self.link.take_reward()
        terminated = success = False
        judge = self._judge_port
        if judge is not None:
            own, terminated, success = judge.judge()
            reward = reward if self.link.rewarded else float(own)
        if outcome is not None:
            success = outcome
            if judge is None and not self.link.rewarded:
                reward = float(success)
        return float(reward), bool(terminated or (success and self._o.terminate_on_success)), bool(success)

    def _info(
        self, state: RobotState, action: np.ndarray, *, fault: str, before: np.ndarray | None = None
    ) -> dict[str, Any]:
        link, now = self.link, time.monotonic()
        executed = action
        if self._codec is not None and before is not None:
            executed = self._codec.action(self._command, before)
        info: dict[str, object] = {
            "t_obs": state.stamp,
            "t_act": self._published,
            "obs_age": now - state.stamp,
            "period": self.period,
            "missed_ticks": 0,
            "deadline_miss": False,
            "action_requested": action,
            "action_executed": executed,
            "command_executed": self._command.copy(),
            "clipped": "c" in link.flags,
            "authority": link.authority,
            "intervened": link.human,
            "safety_state": link.state,
            "fault": fault,
            # what a human did can be learned from only where it can be written as an action
            "valid": not fault and (self._codec is not None or not link.human),
            "latency_mode": self._o.latency_mode,
            "success": False,
            "cam_age_ms": {
                name: 1e3 * link.cameras[name].age(now)
                for name, sensor in self.robot.cameras.items()
                if sensor.required
            },
        }
        if link.human and self._codec is not None:
            info["intervene_action"] = executed
        return info

    def _observe(self, state: RobotState) -> Obs:
        raw = self.port.observe(state.position, state.velocity, self.link.variables(state))
        obs = {key: np.asarray(value[0]) for key, value in raw.items()}
        for name, camera in self.link.cameras.items():
            picture = camera.picture(time.monotonic())
            if picture is None:
                picture = np.zeros((*self._o.image_size, 3), np.uint8)
            obs[f"image.{name}"] = resize_picture(
                crop_pixels(picture, self._o.crop.get(name, WHOLE)), *self._o.image_size
            )
        return obs

    # ------------------------------------------------------------ waiting

    def _sleep_until(self, deadline: float) -> None:
        rest = deadline - time.monotonic()
        if rest > 0.0 and self._closing.wait(rest):
            raise EnvClosed("the environment was closed during a step; the robot brakes")

    def _fresh(self, after: float) -> RobotState | None:
        """Newest state, later than `after`; None when none comes within the timeout."""
        patience = time.monotonic() + self._o.state_timeout
        while True:
            state = self.link.latest()
            if state is not None and state.stamp > after:
                return state
            if time.monotonic() > patience:
                return None
            if self._closing.is_set():
                raise EnvClosed("the environment was closed during a step; the robot brakes")
            time.sleep(0.001)

    def _wait_for_graph(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            missing = self.link.missing()
            if not missing:
                return
            if time.monotonic() > deadline:
                self.close()
                lines = "\n  - ".join(missing)
                raise RobotUnavailable(
                    f"{self.robot.name} is not there after {timeout:g} s:\n  - {lines}\nrobot-rl doctor ros says more"
                )
            time.sleep(0.02)

    @contextlib.contextmanager
    def _alone(self, what: str) -> Any:
        if self._closed:
            raise EnvClosed(f"{what}() after close()")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(f"{what}() while another thread is inside step() or reset(); one robot has one driver")
        try:
            yield
        finally:
            self._busy.release()

    def _passport(self, size: Sequence[int]) -> IOSpec:
        own, (height, width) = self.port.io.to_dict(), size
        own["obs"] |= {
            f"image.{name}": {"shape": [*map(int, size), 3], "dtype": "uint8"} for name in self.robot.cameras
        }
        known = {name: camera.calibration for name, camera in self.robot.cameras.items()}
        own["calibration"] = {  # the hand's frame on a card is that of its tool, and "tool" tells a turn about z alone
            f"image.{name}": found.of_size(height, width, self._o.crop.get(name, WHOLE)).to_dict()
            for name, found in known.items()
            if found is not None and found.mount == "world"
        }
        own["crop"] = {f"image.{name}": part for name, part in self._o.crop.items()}
        return IOSpec.from_dict(own)


_alive: weakref.WeakSet[Ros2Env] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for env in list(_alive):
        with contextlib.suppress(Exception):
            env.close()


def _spaces(io: IOSpec) -> tuple[gymnasium.spaces.Dict, gymnasium.spaces.Box]:
    boxes: dict[str, gymnasium.Space] = {}
    for key, (shape, dtype) in io.obs.items():
        low, high = (0, 255) if dtype == "uint8" else (-np.inf, np.inf)
        boxes[key] = gymnasium.spaces.Box(low, high, shape, np.dtype(dtype).type)
    return gymnasium.spaces.Dict(boxes), gymnasium.spaces.Box(-1.0, 1.0, (io.action_dim,), np.float32)
