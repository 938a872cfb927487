"""The step size of a method over a run: kept, falling, or led by how far the policy moves."""

from __future__ import annotations

import math
from typing import Literal

from robot_rl.state import Saved
from robot_rl.types import StateDict

LrSchedule = Literal["constant", "linear", "cosine", "adaptive"]
"""Names of the schedules, see `StepSize`."""


def limits_of(lr: float) -> tuple[float, float]:
    """Between which a step size that follows the divergence stays: those of rsl_rl, or `lr` where it begins beyond."""
    return min(1e-5, lr), max(1e-2, lr)


class StepSize(Saved):
    """What Adam's step size is now.

    - constant: `lr`.
    - linear, cosine: from `lr` at the run's start to 0 at its end, along a line or half a cosine. `progress` is set by
      the loop; where nobody sets it, `lr` stays.
    - adaptive: it begins with `lr`, is divided by 1.5 whenever the KL divergence of an update exceeds twice `kl`, and
      multiplied by 1.5 where it is below half of it.

    Args:
        lr: where it begins.
        schedule: see above.
        kl: KL divergence that `adaptive` aims at [nats].

    Attributes:
        progress: share of the run that is over, 0 to 1.
        value: the step size that `adaptive` has come to.

    Source: Schulman et al., Proximal Policy Optimization Algorithms, section 4 (adaptive KL penalty, whose thresholds
    are used here for the step size); Rudin et al., Learning to Walk in Minutes, for legged robots.
    """

    saved = ("value",)

    def __init__(self, lr: float, schedule: LrSchedule = "constant", kl: float = 0.01) -> None:
        self.value, self.progress, self._schedule, self._kl = lr, 0.0, schedule, kl
        self._limits = limits_of(lr)

    def __call__(self) -> float:
        """Now."""
        if self._schedule == "linear":
            return self.value * (1.0 - self.progress)
        if self._schedule == "cosine":
            return self.value * 0.5 * (1.0 + math.cos(math.pi * self.progress))
        return self.value

    def load_state_dict(self, state: StateDict, /) -> None:
        """Go on from what `adaptive` had come to; any other begins with its own `lr`, which may be another by now."""
        if self._schedule == "adaptive":
            super().load_state_dict(state)

    def follow(self, kl: float) -> None:
        """Take notice of the KL divergence (old, new) of an update; only `adaptive` cares."""
        if self._schedule != "adaptive":
            return
        low, high = self._limits
        if kl > 2.0 * self._kl:
            self.value = max(self.value / 1.5, low)
        elif kl < 0.5 * self._kl:
            self.value = min(self.value * 1.5, high)
