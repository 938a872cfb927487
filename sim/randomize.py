"""Domain randomisation: what differs from one simulated copy to the next, described once for every engine.

Factors multiply the nominal model. Each body's mass (and inertia), each joint's damping and each actuator's gain is
scaled on its own; friction is one factor for the whole world, since a contact takes the larger of two frictions and
independent factors would bias it upwards. Draws come from each environment's own stream, so they are reproducible and
do not depend on the number of environments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import array_api_compat
import numpy as np
from pydantic import AfterValidator

from robot_rl.sim.draw import Streams
from robot_rl.sim.world import Draw
from robot_rl.types import Array, StateDict
from robot_rl.types.options import Bound, Interval, Options

if TYPE_CHECKING:
    from mujoco import MjModel

PUSH_SECONDS = 4.0
"""Mean time between two pushes."""
A = TypeVar("A", bound=Array)


def _not_negative(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] < 0:
        raise ValueError("the first is below 0, expected [low,high] with 0 <= low <= high")
    return ends


def _above_zero(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] == 0:
        raise ValueError("the first is 0, and a factor of 0 removes the body or the motor; use more than 0")
    return ends


def _no_negative(noise: float | tuple[float, ...]) -> float | tuple[float, ...]:
    if np.any(np.asarray(noise) < 0):
        raise ValueError("one is below 0, expected standard deviations")
    return noise


Range = Annotated[Interval, AfterValidator(_not_negative)]
Strength = Annotated[Range, AfterValidator(_above_zero)]


class Randomize(Options):
    """Ranges to draw from; None or 0 leaves a quantity as it is."""

    mass: Strength | None = None
    """[low,high] factor on the mass and inertia of each body."""
    friction: Range | None = None
    """[low,high] factor on the sliding, torsional and rolling friction of all geoms together."""
    damping: Range | None = None
    """[low,high] factor on the damping of each degree of freedom."""
    gain: Strength | None = None
    """[low,high] factor on the strength of each actuator (gain and bias alike, so that a position servo keeps its rest
    point and becomes stiffer or softer)."""
    latency: Range | None = None
    """[low,high] seconds between a decision and its effect, rounded to whole physics steps; whole control steps and
    parts of one are both possible."""
    noise: Annotated[Bound, AfterValidator(_no_negative)] = 0.0
    """Standard deviation of the Gaussian noise added to "state", one number or one per component, in the component's
    own unit; drawn anew at every step."""
    push: Range | None = None
    """[low,high] change of the horizontal speed [m/s] of a robot whose trunk is free, in any direction, every four
    seconds on average."""
    per: Literal["episode", "environment"] = "episode"
    """"episode" draws factors and latency at every reset, "environment" once after seeding."""

    @property
    def factor_ranges(self) -> dict[str, tuple[float, float]]:
        """Name -> range of the factors that change the model; only what is randomised."""
        ranges = {"mass": self.mass, "friction": self.friction, "damping": self.damping, "gain": self.gain}
        return {name: limits for name, limits in ranges.items() if limits is not None}

    @property
    def needs_models(self) -> bool:
        """Whether each environment needs a model of its own."""
        return bool(self.factor_ranges)

    @property
    def noisy(self) -> bool:
        """Whether observations get noise."""
        return bool(np.any(np.asarray(self.noise) > 0))

    def factors(self, draw: Draw, sizes: dict[str, int], timestep: float) -> dict[str, np.ndarray]:
        """Draw for the environments of `draw`.

        Args:
            draw: random numbers for n environments.
            sizes: name of a factor -> how many there are (bodies, 1, degrees of freedom, actuators).
            timestep: seconds of one physics step.

        Returns:
            Name -> (n, size) float32 factors, and "latency": (n,) int64 physics steps; only what is randomised.
        """
        out: dict[str, Any] = {}
        for name, (low, high) in self.factor_ranges.items():
            out[name] = draw.uniform(sizes[name], low=low, high=high)
        if self.latency is not None:
            seconds = draw.uniform(low=self.latency[0], high=self.latency[1])
            out["latency"] = np.rint(seconds / timestep).astype(np.int64)
        return out

    def longest_latency(self, timestep: float) -> int:
        """Upper bound of the drawn latency in physics steps."""
        return 0 if self.latency is None else int(np.rint(self.latency[1] / timestep))


def horizontal_push(chance: A, speed: tuple[float, float], share: float) -> A:
    """Changes of speed (N, 2) [m/s] in this step.

    Args:
        chance: (N, 3) uniform in [0, 1).
        speed: range of their size [m/s].
        share: of steps in which there is one; in the others it is 0.
    """
    (low, high), xp = speed, array_api_compat.array_namespace(chance)
    size = (low + (high - low) * chance[:, 1]) * (chance[:, 0] < share)
    angle = 2.0 * math.pi * chance[:, 2]
    return xp.stack([size * xp.cos(angle), size * xp.sin(angle)], axis=1)


def check_push(options: Randomize, model: MjModel) -> None:
    """Refuse pushes of a robot that stands fast.

    Raises:
        ValueError: the model does not begin with a free joint.
    """
    if options.push is not None and (not model.njnt or model.jnt_type[0] != 0):  # 0: mjJNT_FREE
        raise ValueError("randomize.push pushes a trunk that is free to move, and this world's robot has none")


def factor_sizes(model: MjModel) -> dict[str, int]:
    """Name of a factor that changes the model -> how many there are."""
    return {"mass": model.nbody, "friction": 1, "damping": model.nv, "gain": model.nu}


class Randomizer:
    """What randomisation has done to N environments: their factors, the controls on their way, the streams drawn from.

    Args:
        options: what to randomise.
        num_envs: N.
        seed: as in `Streams`.
        model: the nominal one.
        substeps: physics steps per control step.
    """

    def __init__(self, options: Randomize, num_envs: int, seed: int, model: MjModel, substeps: int) -> None:
        check_push(options, model)
        self.options = options
        self._sizes, self._substeps, self._timestep = factor_sizes(model), substeps, float(model.opt.timestep)
        purposes = {"factors": 1, "noise": 2} | ({} if options.push is None else {"pushes": 3})
        self._streams = {name: self._stream(num_envs, seed, i) for name, i in purposes.items()}
        self._noise, self._noisy = self._streams["noise"].limit(options.noise), options.noisy
        depth = 1 + -(-options.longest_latency(self._timestep) // substeps)
        self.factors = {
            key: self.place(np.ones((num_envs, self._sizes[key]), np.float32)) for key in options.factor_ranges
        }
        self._drawn = self.place(np.zeros(num_envs, bool))
        self._history = self.place(np.zeros((num_envs, depth, model.nu)))  # controls, newest first
        self._age = self.place(np.zeros((num_envs, substeps), np.int64))  # entry of the history per physics step
        self._everyone: Any = np.arange(num_envs)

    def place(self, values: np.ndarray) -> Any:
        """The values where the environments are."""
        return values

    def _stream(self, num_envs: int, seed: int, purpose: int) -> Streams:
        return Streams(num_envs, seed, purpose)

    def seed(self, seed: int | Sequence[int]) -> None:
        """Start all streams anew and forget what was drawn once per environment."""
        for streams in self._streams.values():
            streams.seed(seed)
        self._drawn[:] = False

    def restart(self, rows: Any, ctrl: Any) -> tuple[Any, dict[str, Any]]:
        """Begin episodes of environments `rows` with (n, nu) controls in force.

        Returns:
            Rows whose factors were drawn anew, and these factors by name; latency is kept here.
        """
        self._history[rows] = np.asarray(ctrl)[:, None, :]
        rows = rows if self.options.per == "episode" else rows[~self._drawn[rows]]
        if not len(rows) or not (self.options.needs_models or self.options.latency is not None):
            return rows, {}
        self._drawn[rows] = True
        drawn = self.options.factors(self._streams["factors"].draw(rows), self._sizes, self._timestep)
        for key, value in drawn.items():
            self.factors.setdefault(key, np.ones((len(self._drawn), *value.shape[1:]), value.dtype))[rows] = value
        if "latency" in drawn:
            # physics step j of a control step follows the decision taken ceil((latency - j) / substeps) steps ago
            late = drawn["latency"][:, None] - np.arange(self._substeps)
            self._age[rows] = np.maximum(0, -(-late // self._substeps))
        return rows, drawn

    def delay(self, control: Any) -> Any:
        """What acts when (N, nu) `control` is decided: itself, or (N, substeps, nu) with latency."""
        if self.options.latency is None:
            return control
        self._history[:, 1:] = self._history[:, :-1].copy()
        self._history[:, 0] = control
        return self._history[self._everyone[:, None], self._age]

    def push(self) -> Any:
        """(N, 2) by how much the horizontal speeds of the trunks change now [m/s]; None where nothing pushes."""
        if self.options.push is None:
            return None
        chance = self._streams["pushes"].draw(self._everyone).uniform(3)
        return horizontal_push(chance, self.options.push, self._substeps * self._timestep / PUSH_SECONDS)

    def noisy(self, state: Any, rows: Any) -> Any:
        """(n, S) observations of environments `rows` with noise."""
        if not self._noisy:
            return state
        return state + self._streams["noise"].draw(rows).normal(state.shape[1], std=self._noise)

    def state_dict(self) -> StateDict:
        """All of it, as NumPy arrays."""
        out = {name: np.array(array_api_compat.to_device(value, "cpu")) for name, value in self._tensors().items()}
        for name, streams in self._streams.items():
            out |= {f"{name}.{key}": value for key, value in streams.state_dict().items()}
        return out

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from `state_dict` of the same options.

        Raises:
            ValueError: saved with other options or another number of environments.
        """
        if "factor.latency" in state:  # which is told once it was drawn
            self.factors.setdefault("latency", np.array(state["factor.latency"]))
        for name, target in self._tensors().items():
            found = np.shape(state[name]) if name in state else "nothing"
            if found != tuple(target.shape):
                raise ValueError(
                    f"saved randomisation has {name} of shape {found}, expected {tuple(target.shape)}; make the "
                    "environment with the options that it was saved with"
                )
            target[:] = self.place(np.asarray(state[name]))
        for name, streams in self._streams.items():
            streams.load_state_dict({key: state[f"{name}.{key}"] for key in ("key", "counter")})

    def _tensors(self) -> dict[str, Any]:
        kept = {"history": self._history, "age": self._age, "drawn": self._drawn}
        return kept | {f"factor.{key}": value for key, value in self.factors.items()}
