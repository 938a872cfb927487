"""What every policy of one torch module saves: weights, the generator of its draws, and moments where it has them."""

from __future__ import annotations

import torch
from torch import nn

from robot_rl.policies.nets.module_step import load_module, module_state
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.types import PolicyParts, StateDict


class ModulePolicy:
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

    def state_dict(self) -> StateDict:
        """Weights, moments and generator."""
        name, module, norm = self._kept
        moments = {} if norm is None else {"normalizer": norm.state_dict()}
        return {name: module_state(module), **moments, "generator": self._generator.get_state()}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a policy of other sizes.
        """
        name, module, norm = self._kept
        load_module(module, state[name])
        if norm is not None:
            norm.load_state_dict(state["normalizer"])
        self._generator.set_state(state["generator"].cpu())
