"""Trajectories as tokens - return to go, state, (region,) action - and what a policy on them remembers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.policies.nets.attention import Drop, Transformer
from robot_rl.types import Array


class TrajectoryNet(nn.Module):
    """A causal transformer over three tokens per step, or four with regions.

    Each token is a linear embedding plus that of the step's time inside its episode; there is no other position.
    """

    def __init__(
        self, state: int, actions: int, *, width: int, layers: int, heads: int, times: int, regions: int = 0
    ) -> None:
        """Build embeddings and body.

        Args:
            state: S.
            actions: A.
            width: of the tokens.
            layers: blocks.
            heads: of attention.
            times: embeddings of time; later steps share the last.
            regions: cells of the action space; 0: no region tokens.
        """
        super().__init__()
        self.tokens, self.times = (4 if regions else 3), times
        self.goal, self.state, self.action = nn.Linear(1, width), nn.Linear(state, width), nn.Linear(actions, width)
        self.region = nn.Embedding(regions, width) if regions else None
        self.time, self.norm = nn.Embedding(times, width), nn.LayerNorm(width)
        self.body = Transformer(width, layers, heads, causal=True, rectified=True)

    def embed(self, goal: Tensor, state: Tensor, action: Tensor, time: Tensor, region: Tensor | None) -> Tensor:
        """(B, L * tokens, width) before the body; arguments as in `forward`."""
        at = self.time(time.clamp(0, self.times - 1))
        parts = [self.goal(goal[..., None]), self.state(state), self.action(action)]
        if self.region is not None:
            assert region is not None
            parts.insert(2, self.region(region))
        x = torch.stack([part + at for part in parts], 2)
        return self.norm(x.flatten(1, 2))

    def forward(
        self,
        goal: Tensor,
        state: Tensor,
        action: Tensor,
        time: Tensor,
        region: Tensor | None = None,
        drop: Drop | None = None,
    ) -> Tensor:
        """(B, L, tokens, width): what each token knows; return, state, (region,) action.

        Args:
            goal: (B, L) scaled return to go.
            state: (B, L, S).
            action: (B, L, A).
            time: (B, L) int64 step inside the episode.
            region: (B, L) int64.
            drop: dropout.
        """
        x = self.embed(goal, state, action, time, region)
        x = self.body(x if drop is None else drop(x), drop)
        return x.view(*state.shape[:2], self.tokens, -1)


class TrajectoryMemory:
    """The last steps of N rows while a policy acts; each row's oldest step lies at place 0.

    Args:
        size: steps.
        state: S.
        actions: A.
        device: torch device.
    """

    def __init__(self, size: int, state: int, actions: int, *, device: torch.device) -> None:
        self._size, self._device = size, device
        self._widths = state, actions
        self.begin(0)

    def begin(self, rows: int) -> None:
        """Nothing is known of `rows` rows."""
        state, actions = self._widths
        self.goal = torch.zeros(rows, self._size, device=self._device)
        self.state = torch.zeros(rows, self._size, state, device=self._device)
        self.action = torch.zeros(rows, self._size, actions, device=self._device)
        self.time = torch.zeros(rows, self._size, dtype=torch.int64, device=self._device)
        self.region = torch.zeros_like(self.time)
        self.count = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self.ticks = torch.zeros(rows, dtype=torch.int64, device=self._device)

    def forget(self, rows: Array | None = None) -> None:
        """Forget what these rows ((N,) bool) saw; None: all."""
        if rows is not None and len(rows) != len(self.count):  # nothing was seen yet
            return
        mask = slice(None) if rows is None else torch.as_tensor(np.asarray(rows), device=self._device).bool()
        self.count[mask] = 0
        self.ticks[mask] = 0

    def see(self, state: Tensor, goal: Tensor) -> tuple[Tensor, int]:
        """Add a step (N, S), (N,); (N,) places where it lies, and the number of steps of the longest row."""
        rows, full = torch.arange(len(state), device=self._device), self.count >= self._size
        if bool(full.any()):
            for memory in (self.goal, self.state, self.action, self.time, self.region):
                memory[full] = memory[full].roll(-1, 1)
            self.count[full] = self._size - 1
        place = self.count.clone()
        self.state[rows, place], self.goal[rows, place], self.time[rows, place] = state, goal, self.ticks
        self.action[rows, place] = 0.0  # not known yet; the token stands behind those that are read
        self.count += 1
        self.ticks += 1
        return place, int(place.max()) + 1

    def note(self, memory: Tensor, value: Tensor) -> None:
        """Fill in `action` or `region` of the newest step of every row."""
        memory[torch.arange(len(value), device=self._device), (self.count - 1).clamp_min(0)] = value

    def columns(self, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """goal, state, action, time, region of the first `length` places."""
        return (
            self.goal[:, :length], self.state[:, :length], self.action[:, :length], self.time[:, :length],
            self.region[:, :length],
        )  # fmt: skip
