"""From states to setpoints without ROS: a decision every n ticks, a straight way between decisions, a soft swap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_rl.data.units import in_units, meaning_of
from robot_rl.real.core.spec import POSITION, Mode, RobotSpec
from robot_rl.real.port import SpecPort, TrainedPort, with_sight
from robot_rl.types import Loaded, Options, Policy, Port, Seen
from robot_rl.types.options import Count, Positive, Share, Whole


class Unfit(ValueError):
    """A policy that must not drive the robot; the message says why."""


@dataclass(frozen=True)
class Setpoints:
    """What to command.

    Args:
        times: (n,) seconds after the observation; one is a step, more are a chunk.
        values: (n, J).
        decided: whether the policy was asked in this tick.
    """

    times: np.ndarray
    values: np.ndarray
    decided: bool


class RunnerOptions(Options):
    """How a policy is asked, and how its targets become commands."""

    rate: Positive
    """Ticks per second; a whole multiple of the policy's rate."""
    mode: Mode = "position"
    """Of the RobotSpec."""
    deterministic: bool = True
    """The policy's mean instead of a sample."""
    dither: Share | None = None
    """Share of its noise that it keeps all the same; None as it was trained to."""
    interpolate: bool = True
    """Go straight to the next target; false commands it at once."""
    chunk_steps: Count = 1
    """Points per chunk, 1 = steps."""
    blend_steps: Whole = 5
    """Decisions over which a swapped policy takes over."""


class PolicyRunner:
    """Asks a policy at its own rate and answers at the rate of the loop.

    In position modes the command runs straight from one target to the next over the decision's period, so that a slow
    policy does not jerk a fast loop; `chunk_steps` > 1 sends that way as one chunk instead, with half a period of
    holding behind it for a late successor.

    Args:
        policy: to ask.
        port: of the robot.
        options: rates and ways.
        identity: for recordings.
        seen: what its training saw; a first observation far from it is told before the robot moves.
        say: is told so.

    Attributes:
        asked: what the policy saw last and what it answered, (1, A) in [-1, 1]; None before it was asked.

    Raises:
        Unfit: rates that do not fit.
    """

    asked: tuple[dict[str, Any], np.ndarray] | None = None

    def __init__(
        self,
        policy: Policy,
        port: Port,
        options: RunnerOptions,
        *,
        identity: str,
        seen: Seen | None = None,
        say: Callable[[str], object] = print,
    ) -> None:
        o, rate, mode = options, options.rate, options.mode
        ratio = rate / port.io.control_hz
        if abs(ratio - round(ratio)) > 1e-6 or ratio < 1.0 - 1e-6:
            raise Unfit(f"rate is {rate:g} Hz, expected a whole multiple of the policy's {port.io.control_hz:g} Hz")
        self.policy, self.port, self.identity = policy, port, identity
        self.every = round(ratio)
        self._period = 1.0 / port.io.control_hz
        self._deterministic, self._blend_steps = o.deterministic, o.blend_steps
        if o.dither is not None:
            if policy.parts.set_dither is None:
                raise Unfit(f"dither is {o.dither:g}, and {type(policy).__name__} has no noise to keep; leave it at -1")
            policy.parts.set_dither(o.dither)
        self._interpolate = o.interpolate and mode == POSITION
        self._direct = mode != POSITION
        self._chunk = o.chunk_steps
        self._count = 0
        self._from = self._to = np.zeros(0)
        self._started = False
        self._seen, self._say = seen, say
        self._blend_from: tuple[Policy, Port] | None = None
        self._blend_left = 0

    def restart(self) -> None:
        """Begin anew at the robot's next measured state: it is somebody else's turn, or was."""
        self._started, self._count, self._to = False, 0, np.zeros(0)
        self._blend_from = None

    def follow(self, other: PolicyRunner) -> None:
        """Take over from `other` in mid-motion: targets fade over within `blend_steps` decisions."""
        if other._started:
            self._from, self._to, self._started = other._from, other._last_command(), False
            self._blend_from = (other.policy, other.port) if self._blend_steps else None
            self._blend_left = self._blend_steps
            self._count = 0

    def _last_command(self) -> np.ndarray:
        """(J,) what was commanded last, which may be on the way to a target."""
        done = (self._count - 1) % self.every + 1
        share = done / self.every if self._interpolate or (self._chunk > 1 and not self._direct) else 1.0
        return self._from + share * (self._to - self._from)

    def tick(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> Setpoints | None:
        """One period.

        Args:
            position: (J,) measured.
            velocity: (J,) measured.
            task: values of `port.external`.

        Returns:
            What to command; None between two chunks.
        """
        step, decided = self._count % self.every, False
        self._count += 1
        if step == 0:
            self._decide(position, velocity, task)
            decided = True
        if self._chunk > 1 and not self._direct:
            return self._as_chunk() if decided else None
        share = (step + 1) / self.every if self._interpolate else 1.0
        value = self._from + share * (self._to - self._from)
        return Setpoints(np.array([self._period / self.every]), value[None], decided)

    def _decide(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> None:
        if not self._started:
            self.port.reset(position, velocity, task)
            self.policy.reset()
            self._started = True
            if not len(self._to):  # of another policy that it follows
                self._to = np.zeros(len(position)) if self._direct else np.array(position, float)
        target = self._ask(self.policy, self.port, position, velocity, task)
        if self._blend_from is not None:
            old = self._ask(*self._blend_from, position, velocity, task)
            share = 1.0 - self._blend_left / (self._blend_steps + 1)
            target = share * target + (1.0 - share) * old
            self._blend_left -= 1
            if self._blend_left <= 0:
                self._blend_from = None
        self._from, self._to = self._to, target

    def _ask(
        self,
        policy: Policy,
        port: Port,
        position: np.ndarray,
        velocity: np.ndarray,
        task: Mapping[str, np.ndarray],
    ) -> np.ndarray:
        obs = port.observe(position, velocity, task)
        if self._seen is not None and port is self.port:
            strange, self._seen = self._seen.strange(obs, port.io.obs_names), None  # once: it is read in a control loop
            if strange:
                more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
                self._say(f"the robot is where training never was: {'; '.join(strange[:3])}{more}")
        action = np.asarray(policy.act(obs, deterministic=self._deterministic).value, np.float32)
        if port is self.port:
            self.asked = obs, action
        return port.act(action)

    def _as_chunk(self) -> Setpoints:
        n = self._chunk
        moving = np.arange(1, n + 1) / n
        values = self._from + moving[:, None] * (self._to - self._from)
        behind = max(n // 2, 1)
        times = np.arange(1, n + behind + 1) * (self._period / n)
        return Setpoints(times, np.concatenate([values, np.tile(self._to, (behind, 1))]), True)


def fit_policy(
    loaded: Loaded, spec: RobotSpec, said: Mapping[str, object], say: Callable[[str], object]
) -> tuple[Policy, Port]:
    """A policy in the units of a robot, proven, and the port that it sees and moves the robot through.

    What it commands is what its training meant in physical units: where the robot's range is another one its actions
    are scaled, and clipped to what the robot can do.

    Args:
        loaded: as its loader gave it.
        spec: of the robot.
        said: what a person says of its actions: `action`, `action_low`, `action_high`, where given (docs/data.md).
        say: is told once that an action was clipped.

    Raises:
        Unfit: it fits neither the robot nor itself, or nobody knows what its actions mean; says what is wrong.
    """
    try:
        io, known = meaning_of(loaded.io, loaded.known, said)
        port = SpecPort(spec, io.control_hz) if loaded.make_port is None else loaded.make_port(spec.names)
        if isinstance(port, TrainedPort):
            port.check(spec)
        port = with_sight(port, io, spec.cameras)
        policy = in_units(loaded.policy, io, port.io, known, say)
    except ValueError as error:
        raise Unfit(f"the policy does not fit the robot: {error}") from error
    prove(policy, port)
    return policy, port


def prove(policy: Policy, port: Port, *, passes: int = 50) -> None:
    """Check a policy before it may drive: warm-up, finite output of the right shape.

    Args:
        policy: to check, in the robot's units.
        port: of the robot.
        passes: calls to warm up.

    Raises:
        Unfit: says what is wrong.
    """
    io = port.io
    rng = np.random.default_rng(0)
    still = {key: np.zeros((1, *shape), kind) for key, (shape, kind) in io.obs.items()}
    if isinstance(port, TrainedPort):
        still |= port.neutral
    for k in range(passes + 1):
        obs = still if k == 0 else {key: _random(rng, shape, kind) for key, (shape, kind) in io.obs.items()}
        action = np.asarray(policy.act(obs, deterministic=True).value)
        if action.shape != (1, io.action_dim):
            raise Unfit(f"the policy answers with shape {action.shape}, expected (1, {io.action_dim})")
        if not np.isfinite(action).all():
            raise Unfit("the policy answers with values that are not finite")
    policy.reset()


def _random(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    if kind == "uint8":
        return rng.integers(0, 256, (1, *shape), np.uint8)
    return rng.standard_normal((1, *shape)).astype(kind)
