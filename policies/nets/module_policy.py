"""What every policy of one torch module has: what it reads and answers, weights, draws, moments where it has them."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class ModulePolicy(Saved, Generic[ModuleT]):
    """Base of such policies: a subclass says how it acts. It shares the learner's module and moments.

    Args:
        io: interface.
        module: what acts.
        seed: of its draws.
        norm: moments of its observations, or None.
    """

    parts = PolicyParts()
    weights = "net"
    """Name of the weights in the state."""

    def __init__(self, io: IOSpec, module: ModuleT, seed: int, norm: RunningNorm | None = None) -> None:
        self.io, self._net, self._norm, self._device = io, module, norm, next(module.parameters()).device
        self._generator = torch.Generator(device=self._device).manual_seed(seed)

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget: the policy has no memory."""

    def see(self, obs: Obs) -> Tensor:
        """(B, S) "state" on the module's device, by its moments where it has them."""
        state = torch.as_tensor(obs["state"]).to(self._device, torch.float32)
        return state if self._norm is None else self._norm(state)

    @staticmethod
    def answer(obs: Obs, action: Tensor, logp: Tensor | None = None, **extras: Tensor) -> Action:
        """An action in the kind of the observation."""
        if not isinstance(obs["state"], np.ndarray):
            return Action(action, logp, dict[str, Array](extras))
        told: dict[str, Array] = {name: value.cpu().numpy() for name, value in extras.items()}
        return Action(action.cpu().numpy(), None if logp is None else logp.cpu().numpy(), told)

    def saved_parts(self) -> dict[str, object]:
        """Weights, moments and generator."""
        return {self.weights: self._net, "normalizer": self._norm, "generator": self._generator}
