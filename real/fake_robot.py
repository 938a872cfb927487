"""A robot without hardware: joints that follow commands with latency, jitter, loss and noise."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from robot_rl.real.core.clock import Clock, SteadyClock
from robot_rl.real.core.spec import EFFORT, POSITION, RobotSpec
from robot_rl.real.robot import Command, RobotState, StaleState
from robot_rl.types.options import NotNegative, Options, Positive, Share

FRICTION = 0.5
"""Of joints under effort commands [1/s]."""


class FakeOptions(Options):
    """How a robot without hardware follows, and what it costs to talk to it."""

    lag: NotNegative = 0.02
    """Time constant of the position servo [s]."""
    latency: NotNegative = 0.0
    """Mean delay of states and of commands, each [s]."""
    jitter: NotNegative = 0.0
    """Standard deviation of either delay [s]; delays are never negative."""
    loss: Share = 0.0
    """Probability that a state or a command is lost."""
    noise: NotNegative = 0.0
    """Standard deviation of measured positions [rad]; velocities get ten times as much."""
    state_timeout: Positive = 0.1
    """Age at which `read` gives up [s]."""
    physics_dt: Positive = 0.002
    """Integration step [s]."""


IDEAL = FakeOptions()
"""Without delays, losses and noise."""


class FakeRobot:
    """A robot on integrated joints, for tests, demonstrations and jobs without a robot.

    Joints follow position commands with a first-order lag and velocity commands (or a twist) at once; efforts
    accelerate them, the largest effort with the largest acceleration, against a friction that stops them in about 2 s.
    Never faster than 1.2 times their largest speed and never through their hard stops.

    Args:
        spec: of the robot.
        options: how it follows, and what it costs to talk to it.
        clock: source of time; default the machine's steady clock.
        start: (J,) first position; default the spec's home, else the middle of the ranges.
        seed: of all randomness.

    Raises:
        ValueError: a start of another shape.
    """

    def __init__(
        self,
        spec: RobotSpec,
        options: FakeOptions = IDEAL,
        *,
        clock: Clock | None = None,
        start: np.ndarray | None = None,
        seed: int = 0,
    ) -> None:
        self.spec, self.o = spec, options
        self.blocked = np.zeros(len(spec.joints), bool)  # joints that do not move whatever is commanded
        self.frozen = False  # no new states from now on
        self._clock: Clock = clock or SteadyClock()
        self._rng = np.random.default_rng(seed)
        self._lower, self._upper = spec.hard_bounds()
        ranged = np.isfinite(self._lower)
        middle = 0.5 * (np.where(ranged, self._lower, 0.0) + np.where(ranged, self._upper, 0.0))
        self.position = np.array(start if start is not None else (spec.home or middle), float)
        if self.position.shape != self._lower.shape:
            raise ValueError(f"start has shape {self.position.shape}, expected {self._lower.shape}: one per joint")
        self.velocity = np.zeros_like(self.position)
        self._fast = 1.2 * spec.array("velocity")
        self._goal = self.position.copy() if spec.mode == POSITION else np.zeros_like(self.position)
        self._mass = spec.array("effort") / spec.array("acceleration")
        self._time = self._clock.now()
        self._on_the_way: list[tuple[float, np.ndarray]] = []
        self._history: deque[tuple[float, RobotState]] = deque([(self._time, self._measure(self._time))], maxlen=4096)
        self._newest = self._history[0][1]
        self._lock = threading.RLock()

    def read(self) -> RobotState:
        """Newest state that has arrived by now.

        Raises:
            StaleState: it is older than `state_timeout`.
        """
        with self._lock:
            now = self._clock.now()
            self._run(now)
            while self._history and self._history[0][0] <= now:
                state = self._history.popleft()[1]
                if state.stamp > self._newest.stamp:
                    self._newest = state
            age = now - self._newest.stamp
            if age > self.o.state_timeout:
                raise StaleState(f"the newest state is {age:.3f} s old, timeout {self.o.state_timeout:.3f} s")
            return self._newest

    def write(self, command: Command) -> Command:
        """Send a command; it takes effect after the latency, if it is not lost. Returns it.

        Raises:
            ValueError: wrong shape or a value that is not finite.
        """
        value = np.array(command.value, float)
        if value.shape != self.position.shape or not np.isfinite(value).all():
            raise ValueError(f"command is {value}, expected {self.position.shape} finite numbers")
        with self._lock:
            now = self._clock.now()
            self._run(now)
            if self._rng.random() >= self.o.loss:
                self._on_the_way.append((now + self._delay(), value))
                self._on_the_way.sort(key=lambda item: item[0])
        return command

    def stop(self) -> None:
        """Hold the present position at once; idempotent, callable from any thread."""
        with self._lock:
            self._run(self._clock.now())
            self._on_the_way.clear()
            self._goal = self.position.copy() if self.spec.mode == POSITION else np.zeros_like(self.position)

    def push(self, offset: np.ndarray) -> None:
        """Displace the joints by (J,) [rad], as somebody leaning on the arm would; the servo pulls back."""
        with self._lock:
            self._run(self._clock.now())
            self.position = self.position + offset

    def _delay(self) -> float:
        return max(0.0, self.o.latency + self.o.jitter * float(self._rng.standard_normal()))

    def _run(self, now: float) -> None:
        """Integrate up to `now`; every physics step gives one measurement."""
        steps = int((now - self._time) / self.o.physics_dt + 1e-9)
        if steps > 5000:  # nobody looked for long: the joints stand where they stand
            self._time, steps = now - 5000 * self.o.physics_dt, 5000
        for _ in range(steps):
            self._time += self.o.physics_dt
            while self._on_the_way and self._on_the_way[0][0] <= self._time + 1e-12:
                self._goal = self._on_the_way.pop(0)[1]
            if self.spec.mode == EFFORT:
                speed = self.velocity + (self._goal / self._mass - FRICTION * self.velocity) * self.o.physics_dt
            elif self.spec.mode != POSITION:
                speed = self._goal
            else:
                speed = (self._goal - self.position) / max(self.o.lag, self.o.physics_dt)
            speed = np.where(self.blocked, 0.0, np.clip(speed, -self._fast, self._fast))
            place = np.clip(self.position + speed * self.o.physics_dt, self._lower, self._upper)
            free = ~self.blocked & (self.position >= self._lower) & (self.position <= self._upper)
            self.velocity = np.where(free, (place - self.position) / self.o.physics_dt, speed)
            self.position = np.where(free, place, self.position + speed * self.o.physics_dt)
            if not self.frozen and self._rng.random() >= self.o.loss:
                self._history.append((self._time + self._delay(), self._measure(self._time)))

    def _measure(self, time: float) -> RobotState:
        noise = self.o.noise * self._rng.standard_normal((2, len(self.position)))
        return RobotState(time, self.position + noise[0], self.velocity + 10.0 * noise[1])
