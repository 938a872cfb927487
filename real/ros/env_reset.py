"""How `Ros2Env` brings a robot to the start of an episode: through the supervisor, never around it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from robot_rl.real.core.limiter import short_way
from robot_rl.real.ros.env_link import EnvLink
from robot_rl.types.options import NotNegative, Number, Options, Positive

MODES = ("home", "manual", "policy", "none")
LATCHED = ("FAULT", "ESTOP")


class RobotUnavailable(RuntimeError):
    """The graph is not there; the message names every missing topic and every QoS mismatch."""


class ResetBlocked(RuntimeError):
    """The supervisor is latched; an operator has to clear the cause and reset it.

    Attributes:
        cause: fault code, or the state's name.
    """

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


class ResetFailed(RuntimeError):
    """The start was not reached in time; the environment needs another reset."""


class EnvClosed(RuntimeError):
    """The environment was closed during this call; the robot brakes."""


class StartOptions(Options):
    """How a robot gets to the start of an episode."""

    reset_service: str = ""
    """Trigger service called in every reset, e.g. sim_robot/next_task."""
    reset_timeout: Positive = 20.0
    """[s]."""
    start: tuple[Number, ...] | None = None
    """(J,) start of mode `home`; null: the spec's home."""
    start_noise: NotNegative = 0.0
    """Half width of the start's uniform noise [rad]."""
    start_tolerance: Positive = 0.05
    """[rad]."""
    arm: bool = False
    """Enable the supervisor by itself; for simulation. Otherwise the operator calls safety_supervisor/enable."""


class StartWay:
    """The way to the start.

    Args:
        link: to the robot.
        options: how the start is reached.
        closing: set when the environment is being closed.
        home: (J,) start of mode `home` where the options say none; empty = stay.
        policy: brings the scene back in mode `policy`.
    """

    def __init__(
        self,
        link: EnvLink,
        options: StartOptions,
        *,
        closing: threading.Event,
        home: Sequence[float],
        policy: Callable[[], None] | None,
    ) -> None:
        self._link, self._closing, self.o = link, closing, options
        self._start = np.array(home if options.start is None else options.start, float)
        self._policy = policy
        self._still = math.inf

    def bring(self, mode: str, *, operator_reset: bool, rng: np.random.Generator) -> None:
        """One reset of the robot and the scene; see `Ros2Env.reset`.

        Raises:
            ResetBlocked: the supervisor is latched.
            ResetFailed: the start was not reached in time.
            EnvClosed: closed meanwhile.
        """
        link, deadline = self._link, time.monotonic() + self.o.reset_timeout
        link.release()
        if operator_reset and link.state in LATCHED:
            link.call("safety_supervisor/reset")
            self._wait(lambda: link.state not in LATCHED, min(deadline, time.monotonic() + 1.0))
        self._refuse_latched()
        if self.o.arm and self._wait(lambda: link.state != "STARTUP", deadline):
            self._enable(deadline)
        ready = self._wait(lambda: link.state in LATCHED or (link.state == "ARMED" and self._at_rest()), deadline)
        self._refuse_latched()
        if not ready:
            hint = "; an operator has to call safety_supervisor/enable" if link.state == "IDLE" else ""
            raise ResetFailed(
                f"the robot did not come to rest in ARMED within {self.o.reset_timeout:g} s: {link.state}{hint}"
            )
        if mode == "manual":
            link.go_on.clear()
            if not self._wait(link.go_on.is_set, math.inf):
                raise ResetFailed("nobody called robot_env/continue")
        elif mode == "policy":
            if self._policy is None:
                raise ValueError("reset mode is 'policy', but no reset_policy was given")
            self._policy()
        if self.o.reset_service:
            done, why = link.call(self.o.reset_service)
            if not done:
                raise ResetFailed(f"{self.o.reset_service} failed: {why}")
        if mode == "home":
            self._go_home(deadline, rng)
        link.label, link.success = None, None

    def _refuse_latched(self) -> None:
        link = self._link
        if link.state in LATCHED:
            self._wait(lambda: bool(link.fault), time.monotonic() + 0.5)  # the code follows with the diagnostics
            cause = link.fault or link.state
            raise ResetBlocked(
                cause,
                f"the supervisor is in {link.state} ({cause}); remove the cause, then call safety_supervisor/reset",
            )

    def _enable(self, deadline: float) -> None:
        """Ask until it is granted: what blocks (a state that has to settle) may pass by itself."""
        while self._link.state == "IDLE":
            done, why = self._link.call("safety_supervisor/enable", data=True)
            if done:
                return
            if time.monotonic() > deadline:
                raise ResetFailed(f"the supervisor refuses to be enabled: {why}")
            patience = min(deadline, time.monotonic() + 0.2)
            self._wait(lambda patience=patience: time.monotonic() >= patience, patience)

    def _go_home(self, deadline: float, rng: np.random.Generator) -> None:
        """Minimum-time quintic to the start, inside the limits of speed and acceleration."""
        link, state = self._link, self._link.latest()
        if not len(self._start) or state is None:
            return
        lower, upper = link.spec.bounds()
        wish = self._start + rng.uniform(-self.o.start_noise, self.o.start_noise, len(self._start))
        goal, begin, turning = np.clip(wish, lower, upper), link.last_command(state), link.spec.turning
        goal = begin + short_way(goal - begin, turning)
        if link.spec.mode != "position":
            raise ValueError("reset mode 'home' needs a position controller; use manual, policy or none")
        seconds = quintic_seconds(goal - begin, link.spec.array("velocity"), link.spec.array("acceleration"))
        clock = time.monotonic()
        while True:
            now = time.monotonic()
            share = min((now - clock) / max(seconds, 1e-6), 1.0)
            point = begin + share**3 * (10.0 - 15.0 * share + 6.0 * share**2) * (goal - begin)
            link.aim(point, point, now, now, now + 0.2)
            if share >= 1.0 or self._closing.is_set() or link.state in LATCHED:
                break
            time.sleep(0.01)
        now = time.monotonic()
        link.aim(goal, goal, now, now, deadline)

        def there() -> bool:
            newest = link.latest()
            away = None if newest is None else np.abs(short_way(newest.position - goal, turning))
            return away is not None and bool((away <= self.o.start_tolerance).all())

        arrived = self._wait(lambda: (there() and self._at_rest()) or link.state in LATCHED, deadline)
        self._refuse_latched()
        if not arrived:
            raise ResetFailed(f"the start was not reached within {self.o.reset_timeout:g} s; state {link.state}")

    def _at_rest(self) -> bool:
        state = self._link.latest()
        slow = state is not None and bool((np.abs(state.velocity) < 0.05).all())
        if not slow:
            self._still = math.inf
        elif not math.isfinite(self._still):
            self._still = time.monotonic()
        return slow and time.monotonic() - self._still > 0.2

    def _wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        while not condition():
            if self._closing.is_set():
                raise EnvClosed("the environment was closed; the robot brakes")
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def quintic_seconds(distance: np.ndarray, velocity: np.ndarray, acceleration: np.ndarray) -> float:
    """Shortest duration [s] of a rest-to-rest quintic of (J,) distances inside (J,) limits, with 10 % to spare.

    A quintic of distance d in T seconds peaks at 15/8 d/T and 10/sqrt(3) d/T^2.
    """
    d = np.abs(distance)
    return 1.1 * float(np.max(np.maximum(1.875 * d / velocity, np.sqrt(10.0 / math.sqrt(3.0) * d / acceleration))))
