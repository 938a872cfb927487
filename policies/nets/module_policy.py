"""What every policy of one torch module saves: weights, the generator of its draws, and moments where it has them."""

from __future__ import annotations

import torch
from torch import nn

from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.state import Saved
from robot_rl.types import PolicyParts


class ModulePolicy(Saved):
    """State of a policy; what acts is its subclass.

    Args:
        name: of the weights in the state.
        module: what acts.
        generator: of its draws.
        norm: moments of its observations, or None.
    """

    parts = PolicyParts()

    def __init__(
        self, name: str, module: nn.Module, generator: torch.Generator, norm: RunningNorm | None = None
    ) -> None:
        self._kept, self._generator = (name, module, norm), generator

    def saved_parts(self) -> dict[str, object]:
        """Weights, moments and generator."""
        name, module, norm = self._kept
        return {name: module, "normalizer": norm, "generator": self._generator}
