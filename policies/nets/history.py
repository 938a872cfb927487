"""What a policy with a memory has: a recurrent summary of the last steps, and the steps themselves while it acts."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.initial import draw_uniform
from robot_rl.policies.nets.net import Leaves, Net
from robot_rl.policies.nets.normalizer import FixedNorm, RunningNorm
from robot_rl.state import Saved
from robot_rl.types import Action, Array, IOSpec, Obs, PolicyParts, Recurrence, StateDict


class HistoryEncoder(Leaves):
    """z_i = GRU over (o_0, 0), (o_1, a_0), ... (o_i, a_{i-1}); what came before o_0 is not known.

    Args:
        state: n.
        actions: A.
        width: of z.
        lr: step size.
        generator: of the initial weights (uniform within 1 / sqrt(width), as torch.nn.GRU).
        name: under which it is saved.
    """

    def __init__(
        self, state: int, actions: int, width: int, *, lr: float, generator: torch.Generator, name: str = "encoder"
    ) -> None:
        self.width, device = width, generator.device
        size = state + actions
        shapes = {"gate_in": (3 * width, size), "gate_hidden": (3 * width, width)}
        params = FlatParams({**shapes, "in_bias": (3 * width,), "hidden_bias": (3 * width,)}, device=device)
        for view in params.view.values():
            draw_uniform(view, 1.0 / math.sqrt(width), generator)
        super().__init__(name, params, lr=lr, free=list(params.shapes))

    def __call__(self, state: Tensor, previous: Tensor, known: Tensor | None = None) -> Tensor:
        """(B, L, width) of states (B, L, n) and the actions before them (B, L, A).

        Args:
            state: of the steps.
            previous: that led to them.
            known: (B, L) 1 where there was a step, 0 before the first: z begins behind those. None: all were.
        """
        weights = [self[name] for name in ("gate_in", "gate_hidden", "in_bias", "hidden_bias")]
        x, out = torch.cat([state, previous], -1), []
        h = x.new_zeros(len(x), self.width)
        for i in range(x.shape[1]):
            h = torch.gru_cell(x[:, i], h, *weights)
            h = h if known is None else h * known[:, i, None]
            out.append(h)
        return torch.stack(out, 1)


class Memory:
    """The last `size` states of B rows, the action before each, and how many there are; rows forget by themselves.

    Attributes:
        state: (B, size, n), the oldest first.
        previous: (B, size, A): the action that led to each state; zeros for the oldest, whose past is not known.
        count: (B,) int64 states seen since the last reset, at most `size`.
    """

    def __init__(self, size: int, state: int, actions: int, *, device: torch.device) -> None:
        self._size = size
        self.state = torch.zeros(0, size, state, device=device)
        self.previous = torch.zeros(0, size, actions, device=device)
        self.count = torch.zeros(0, dtype=torch.int64, device=device)
        self._taken = torch.zeros(0, actions, device=device)

    def forget(self, rows: Array | None = None) -> None:
        """Forget what these rows saw; None: all."""
        if rows is None:
            self.count.zero_()
        elif len(self.count) == len(rows):  # else nothing was seen yet
            self.count[torch.as_tensor(rows, device=self.count.device).bool()] = 0

    def see(self, state: Tensor) -> Tensor:
        """Add the states (B, n) of now; (B,) int64 where they lie. Another number of rows begins anew for all."""
        rows = torch.arange(len(state), device=state.device)
        if len(state) != len(self.count):
            self.state = state.new_zeros(len(state), self._size, state.shape[1])
            self.previous = state.new_zeros(len(state), self._size, self.previous.shape[2])
            self.count = torch.zeros(len(state), dtype=torch.int64, device=state.device)
            self._taken = self.previous[:, 0].clone()
        full = self.count >= self._size
        if bool(full.any()):
            for memory in (self.state, self.previous):
                memory[full] = memory[full].roll(-1, 1)
            self.previous[full, 0] = 0.0  # the action before the oldest state is forgotten with what it came from
            self.count[full] = self._size - 1
        place = self.count.clone()
        self.state[rows, place] = state
        self.previous[rows, place] = torch.where((place > 0)[:, None], self._taken, 0.0)
        self.count += 1
        return place

    def took(self, action: Tensor) -> None:
        """The actions (B, A) of now."""
        self._taken = action.clone()

    def state_dict(self) -> StateDict:
        """What is remembered."""
        columns = {"state": self.state, "previous": self.previous, "count": self.count, "taken": self._taken}
        return {name: x.clone() for name, x in columns.items()}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Remember what `state_dict` gave, of however many rows."""
        device = self.count.device
        self.state, self.previous, self.count, self._taken = (
            state[name].to(device).clone() for name in ("state", "previous", "count", "taken")
        )


class HistoryPolicy(Saved):
    """tanh of a network of z over the last `history` observations; forgets at every reset."""

    def __init__(
        self,
        io: IOSpec,
        encoder: HistoryEncoder,
        actor: Net,
        *,
        history: int,
        norm: FixedNorm | RunningNorm | None,
        noise: float,
        seed: int,
    ) -> None:
        """Share the learner's parameters.

        Args:
            io: interface.
            encoder: of the history.
            actor: (B, width) -> (B, A).
            history: observations that are remembered.
            norm: of states, or None.
            noise: standard deviation when it acts stochastically.
            seed: of that noise.
        """
        self.io, self._encoder, self._actor = io, encoder, actor
        self._norm, self._noise = norm, noise
        self._device = encoder.params.flat.device
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        state, actions = io.obs["state"][0][0], io.action_dim
        self.memory = Memory(history, state, actions, device=self._device)
        # what `Memory` holds, but with the newest step always last, so that no row needs an index
        sizes = {"states": (history, state), "known": (history,), "actions": (history, actions), "last": (actions,)}
        start = {name: torch.zeros(1, *size, device=self._device) for name, size in sizes.items()}
        self._recurrence = Recurrence(start, self._step)

    @property
    def parts(self) -> PolicyParts:
        """It remembers."""
        return PolicyParts(remembers=True, recurrence=self._recurrence)

    def reset(self, rows: Array | None = None) -> None:
        """Forget what these rows saw; None: all."""
        self.memory.forget(rows)

    def _step(self, obs: Obs, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        state = torch.as_tensor(obs["state"]).to(self._device, torch.float32)
        state = state if self._norm is None else self._norm(state)
        known = torch.cat([memory["known"][:, 1:], torch.ones_like(memory["known"][:, :1])], 1)
        size = known.shape[1]  # not -1: exporters cut wrongly with it
        states = torch.cat([memory["states"][:, 1:], state[:, None]], 1)
        actions = torch.cat([memory["actions"][:, 1:], memory["last"][:, None]], 1)
        # the action before the oldest known state is forgotten with what it came from
        inner = torch.cat([torch.zeros_like(known[:, :1]), known[:, : size - 1]], 1)
        z = self._encoder(states, actions * inner[..., None], known)[:, size - 1]
        action = self.choose(self._actor(z), True)
        return action, {"states": states, "known": known, "actions": actions, "last": action}

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, n) -> (B, A) in [-1, 1], in the kind of the observation.

        Args:
            obs: another number of rows than before begins anew for all.
            deterministic: without noise.
        """
        state = torch.as_tensor(obs["state"]).to(self._device, torch.float32)
        state = state if self._norm is None else self._norm(state)
        place = self.memory.see(state)
        longest = int(place.max()) + 1
        rows = torch.arange(len(state), device=self._device)
        z = self._encoder(self.memory.state[:, :longest], self.memory.previous[:, :longest])[rows, place]
        action = self.choose(self._actor(z), deterministic)
        self.memory.took(action)
        return Action(action.cpu().numpy() if isinstance(obs["state"], np.ndarray) else action)

    def choose(self, out: Tensor, deterministic: bool) -> Tensor:
        """Actions (B, A) of what the actor puts out."""
        action = out.tanh()
        if self._noise and not deterministic:
            noise = torch.randn(action.shape, generator=self._generator, device=self._device)
            action = (action + self._noise * noise).clamp(-1.0, 1.0)
        return action

    def saved_parts(self) -> dict[str, object]:
        """Weights, noise generator, and normaliser, where there is one; what was seen is not kept."""
        nets = {"encoder": self._encoder.params.flat, "actor": self._actor.params.flat}
        return {**nets, "generator": self._generator, "normalizer": self._norm}

    def after_load(self) -> None:
        """Take over the new weights."""
        self._actor.kernel.refresh()
