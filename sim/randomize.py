"""Domain randomisation: what differs from one simulated copy to the next, described once for every engine.

Factors multiply the nominal model. Each body's mass (and inertia), each joint's damping and each actuator's gain is
scaled on its own; friction is one factor for the whole world, since a contact takes the larger of two frictions and
independent factors would bias it upwards. Draws come from each environment's own stream, so they are reproducible and
do not depend on the number of environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_rl.sim.world import Draw

SCALED = ("mass", "friction", "damping", "gain")
"""Factors that change the model, so that every environment needs a model of its own."""


@dataclass(frozen=True)
class Randomize:
    """Ranges to draw from; None or 0 leaves a quantity as it is.

    Attributes:
        mass: (low, high) factor on the mass and inertia of each body.
        friction: (low, high) factor on the sliding, torsional and rolling friction of all geoms together.
        damping: (low, high) factor on the damping of each degree of freedom.
        gain: (low, high) factor on the strength of each actuator (gain and bias alike, so that a position servo
            keeps its rest point and becomes stiffer or softer).
        latency: (low, high) seconds between a decision and its effect, rounded to whole physics steps; whole control
            steps and parts of one are both possible.
        noise: standard deviation of the Gaussian noise added to "state", one number or one per component, in the
            component's own unit; drawn anew at every step.
        per: "episode" draws factors and latency at every reset, "environment" once after seeding.
    """

    mass: Sequence[float] | None = None
    friction: Sequence[float] | None = None
    damping: Sequence[float] | None = None
    gain: Sequence[float] | None = None
    latency: Sequence[float] | None = None
    noise: float | Sequence[float] = 0.0
    per: str = "episode"

    def __post_init__(self) -> None:
        for name in (*SCALED, "latency"):
            value = getattr(self, name)
            if value is None:
                continue
            if len(value) != 2 or not 0 <= value[0] <= value[1] < float("inf"):
                raise ValueError(f"randomize.{name} is {list(value)}, expected [low, high] with 0 <= low <= high")
            if name in ("mass", "gain") and value[0] == 0:
                raise ValueError(f"randomize.{name} starts at 0; a factor of 0 removes the body or the motor, use > 0")
        if self.per not in ("episode", "environment"):
            raise ValueError(f"randomize.per is '{self.per}', expected 'episode' or 'environment'")
        if np.any(np.asarray(self.noise) < 0):
            raise ValueError(f"randomize.noise is {self.noise}, expected standard deviations >= 0")

    @property
    def needs_models(self) -> bool:
        """Whether each environment needs a model of its own."""
        return any(getattr(self, name) is not None for name in SCALED)

    @property
    def noisy(self) -> bool:
        """Whether observations get noise."""
        return bool(np.any(np.asarray(self.noise) > 0))

    def factors(self, draw: Draw, sizes: dict[str, int], timestep: float) -> dict[str, Any]:
        """Draw for the environments of `draw`.

        Args:
            draw: random numbers for n environments.
            sizes: name of a factor -> how many there are (bodies, 1, degrees of freedom, actuators).
            timestep: seconds of one physics step.

        Returns:
            Name -> (n, size) float32 factors, and "latency": (n,) int64 physics steps; only what is randomised.
        """
        out: dict[str, Any] = {}
        for name in SCALED:
            limits = getattr(self, name)
            if limits is not None:
                out[name] = draw.uniform(sizes[name], low=limits[0], high=limits[1])
        if self.latency is not None:
            seconds = draw.uniform(low=self.latency[0], high=self.latency[1])
            out["latency"] = np.rint(seconds / timestep).astype(np.int64)
        return out

    def longest_latency(self, timestep: float) -> int:
        """Upper bound of the drawn latency in physics steps."""
        return 0 if self.latency is None else int(np.rint(self.latency[1] / timestep))
