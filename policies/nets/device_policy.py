"""The acting half of the device learners: one tower, one rule that turns its output into an action."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from robot_rl.policies.nets.device_mlp import Tower, freeze
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts

Rule = Callable[[Tensor, "Tensor | None"], Tensor]
"""(B, O) output of the tower and (B, A) standard normal noise, or None for the most likely action -> (B, A) action."""


class DevicePolicy(Saved):
    """Shares its parameters with the learner that trains it; takes arrays or tensors from anywhere.

    Args:
        io: what the policy sees and does.
        tower: one member.
        params: its parameters, shared.
        rule: turns outputs into actions.
        seed: of the noise.
        normalizer: of the observation, shared; None for raw.
    """

    parts = PolicyParts()

    def __init__(
        self,
        io: IOSpec,
        tower: Tower,
        params: FlatParams,
        rule: Rule,
        *,
        seed: int,
        normalizer: RunningNorm | None,
    ) -> None:
        self.io, self._tower, self._params, self._rule, self._normalizer = io, tower, params, rule, normalizer
        self._keys, self._device = sorted(io.obs), params.flat.device
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._view = freeze(params)

    @property
    def generator(self) -> torch.Generator:
        """Of the noise."""
        return self._generator

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget: the policy has no memory."""

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions.

        Args:
            obs: vectors of floats (B, ...), all NumPy or all torch.
            deterministic: the most likely action instead of a sample.

        Returns:
            Action of (B, A) in [-1, 1], float32, in the kind and on the device of the observation.
        """
        first, raw = obs[self._keys[0]], self.raw(self.feature(obs))
        noise = None if deterministic else self.noise(len(raw))
        action = self._rule(raw, noise).clamp(-1.0, 1.0)
        return Action(action.to(first.device) if isinstance(first, Tensor) else action.cpu().numpy())

    def join(self, obs: Obs) -> Tensor:
        """(B, S) all components, as they came."""
        columns = [torch.as_tensor(obs[key]).to(self._device, torch.float32) for key in self._keys]
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)

    def feature(self, obs: Obs) -> Tensor:
        """(B, S) all components, normalised."""
        x = self.join(obs)
        return x if self._normalizer is None else self._normalizer(x)

    def raw(self, feature: Tensor) -> Tensor:
        """(B, O) of normalised features (B, S), without gradient."""
        return self._tower(self._view, feature)[0].float()

    def noise(self, rows: int) -> Tensor:
        """(rows, A) standard normal."""
        return torch.randn(rows, self.io.action_dim, generator=self._generator, device=self._device)

    def saved_parts(self) -> dict[str, object]:
        """Weights, noise generator and normaliser, where there is one."""
        return {"actor": self._params.flat, "generator": self._generator, "normalizer": self._normalizer}
