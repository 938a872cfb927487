"""What a policy with a memory has: a recurrent summary of the last steps, and the steps themselves while it acts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import AutogradMlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.types import Action, IOSpec, Obs


class HistoryEncoder:
    """z_i = GRU over (o_0, 0), (o_1, a_0), ... (o_i, a_{i-1}); what came before o_0 is not known.

    Args:
        state: n.
        actions: A.
        width: of z.
        device: torch device.
        generator: of the initial weights (uniform within 1 / sqrt(width), as torch.nn.GRU).
    """

    def __init__(self, state: int, actions: int, width: int, *, device: str, generator: torch.Generator) -> None:
        self.width = width
        size = state + actions
        shapes = {"gate_in": (3 * width, size), "gate_hidden": (3 * width, width)}
        self.params = FlatParams({**shapes, "in_bias": (3 * width,), "hidden_bias": (3 * width,)}, device=device)
        bound = 1.0 / math.sqrt(width)
        with torch.no_grad():
            for view in self.params.view.values():
                view.copy_(torch.rand(view.shape, generator=generator, device=device) * (2 * bound) - bound)
        self.params.require_grad()

    def __call__(self, state: Tensor, previous: Tensor) -> Tensor:
        """(B, L, width) of states (B, L, n) and the actions before them (B, L, A)."""
        p = self.params.view
        x, out = torch.cat([state, previous], -1), []
        h = x.new_zeros(len(x), self.width)
        for i in range(x.shape[1]):
            h = torch.gru_cell(x[:, i], h, p["gate_in"], p["gate_hidden"], p["in_bias"], p["hidden_bias"])
            out.append(h)
        return torch.stack(out, 1)


class HistoryPolicy:
    """tanh of a network of z over the last `history` observations; forgets at every reset.

    Attributes:
        remembers: True: its answer depends on more than the observation, so estimators of single states refuse it.
    """

    remembers = True

    def __init__(
        self,
        io: IOSpec,
        encoder: HistoryEncoder,
        actor: AutogradMlp,
        *,
        history: int,
        norm: FixedNorm | None,
        noise: float,
        seed: int,
    ) -> None:
        """Share the learner's parameters.

        Args:
            io: interface.
            encoder: of the history.
            actor: (1, B, width) -> (1, B, A).
            history: observations that are remembered.
            norm: of states, or None.
            noise: standard deviation when it acts stochastically.
            seed: of that noise.
        """
        self.io, self._encoder, self._actor, self._history = io, encoder, actor, history
        self._norm, self._noise = norm, noise
        self._device = encoder.params.flat.device
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        self._state = torch.zeros(0, history, io.obs["state"][0][0], device=self._device)
        self._previous = torch.zeros(0, history, io.action_dim, device=self._device)
        self._count = torch.zeros(0, dtype=torch.int64, device=self._device)

    def reset(self, rows: Any = None) -> None:
        """Forget what these rows saw; None: all."""
        if rows is None:
            self._count.zero_()
        else:
            self._count[torch.as_tensor(np.asarray(rows), device=self._device).bool()] = 0

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, n) -> (B, A) in [-1, 1], in the kind of the observation.

        Args:
            obs: another number of rows than before begins anew for all.
            deterministic: without noise.
        """
        state = torch.as_tensor(obs["state"]).to(self._device, torch.float32)
        state = state if self._norm is None else self._norm(state)
        size, last = len(state), self._history - 1
        if size != len(self._count):
            self._state = state.new_zeros(size, self._history, state.shape[1])
            self._previous = state.new_zeros(size, self._history, self.io.action_dim)
            self._count = torch.zeros(size, dtype=torch.int64, device=self._device)
            self._taken = state.new_zeros(size, self.io.action_dim)
        full = self._count > last
        if bool(full.any()):
            for memory in (self._state, self._previous):
                memory[full] = memory[full].roll(-1, 1)
            self._previous[full, 0] = 0.0  # the action before the oldest observation is forgotten with it
            self._count[full] = last
        rows = torch.arange(size, device=self._device)
        self._state[rows, self._count] = state
        self._previous[rows, self._count] = torch.where((self._count > 0)[:, None], self._taken, 0.0)
        longest = int(self._count.max()) + 1
        z = self._encoder(self._state[:, :longest], self._previous[:, :longest])[rows, self._count]
        action = self._actor.compute(z[None])[0].tanh()
        if self._noise and not deterministic:
            noise = torch.randn(action.shape, generator=self._generator, device=self._device)
            action = (action + self._noise * noise).clamp(-1.0, 1.0)
        self._taken, self._count = action.clone(), self._count + 1
        return Action(action.cpu().numpy() if isinstance(obs["state"], np.ndarray) else action)

    def state_dict(self) -> dict[str, Any]:
        """Weights, normaliser and noise generator; what was seen is not kept."""
        state: dict[str, Any] = {
            "encoder": self._encoder.params.flat.detach().clone(),
            "actor": self._actor.params.flat.detach().clone(),
            "generator": self._generator.get_state(),
        }
        if self._norm is not None:
            state["normalizer"] = self._norm.state_dict()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a policy of other sizes or parts.
        """
        own = self.state_dict()
        if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in ("encoder", "actor")):
            raise ValueError("the saved policy has other sizes; build it with the configuration that it was saved with")
        self._encoder.params.flat.copy_(state["encoder"])
        self._actor.params.flat.copy_(state["actor"])
        if self._norm is not None:
            self._norm.load_state_dict(state["normalizer"])
        self._generator.set_state(state["generator"].cpu())
