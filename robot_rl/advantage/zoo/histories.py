"""Histories of past iterations: entropy per turn index (EPO) and scores of recent groups (SPEAR)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from robot_rl.advantage.arrays import host, in_torch
from robot_rl.advantage.kinds import Array, match_dtype
from robot_rl.advantage.layout import row_mask
from robot_rl.advantage.normalise import as_cells
from robot_rl.advantage.segments import seg_count, seg_sum, seg_var


class EntropySums(NamedTuple):
    """Summed entropy and rows per turn index of one worker's batch."""

    total: np.ndarray
    rows: np.ndarray


class EntropyHistory:
    """Mean entropy per turn index over past iterations, each iteration with equal weight.

    Source: EPO; WujiangXu/EPO.
    """

    def __init__(self, max_turns: int) -> None:
        """Empty history.

        Args:
            max_turns: turn indices 0 .. max_turns - 1 are kept.

        Raises:
            ValueError: max_turns is not positive.
        """
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}, expected a positive number")
        self.max_turns = max_turns
        self._mean = np.zeros(max_turns)
        self._iterations = np.zeros(max_turns)

    @in_torch
    def collect(self, entropy: Array, turn_index: Array, *, mask: Array | None = None) -> EntropySums:
        """Sums of this worker's rows.

        Args:
            entropy: (N,) policy entropy.
            turn_index: (N,) turn index of each row, -1 = none.
            mask: (N,) rows of the loss, default all.

        Raises:
            ValueError: shapes differ or an index is not below max_turns.
        """
        entropy = entropy.detach().double()
        index = turn_index.long()
        use = row_mask(mask, entropy) & (index >= 0)
        safe = torch.where(use, index, 0)
        total = seg_sum(entropy, safe, self.max_turns, mask=use)
        count = seg_count(safe, self.max_turns, mask=use)
        return EntropySums(host(total), host(count))

    @staticmethod
    def reduce(updates: Sequence[EntropySums]) -> EntropySums:
        """Sums of all workers, added in the order of the list.

        Raises:
            ValueError: the list is empty.
        """
        if not updates:
            raise ValueError("updates is empty, expected the sums of at least one worker")
        total, count = updates[0]
        for update in updates[1:]:
            total, count = total + update.total, count + update.rows
        return EntropySums(total, count)

    def apply(self, sums: EntropySums) -> None:
        """Add one iteration."""
        seen = sums.rows > 0
        batch = sums.total / np.where(seen, sums.rows, 1.0)
        self._iterations = self._iterations + seen
        self._mean = self._mean + np.where(seen, (batch - self._mean) / np.maximum(self._iterations, 1.0), 0.0)

    @in_torch
    def rows(self, turn_index: Array, like: Array) -> Array:
        """History of each row's turn index, NaN where there is none yet.

        Args:
            turn_index: (N,) turn index of each row, -1 = none.
            like: array that decides kind, dtype and device.
        """
        table = np.append(np.where(self._iterations > 0, self._mean, np.nan), np.nan)  # -1 reads the last entry
        values = torch.from_numpy(table).to(like.device)
        return match_dtype(values[turn_index.long()], like)

    def active(self) -> bool:
        """Whether the penalty applies: some turn index of at least max_turns / 2 has been seen."""
        return bool((self._iterations[math.ceil(self.max_turns / 2) :] > 0).any())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Tensors for the checkpoint."""
        return {"mean": torch.from_numpy(self._mean.copy()), "iterations": torch.from_numpy(self._iterations.copy())}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Inverse of `state_dict`."""
        self._mean = state["mean"].cpu().numpy().astype(np.float64).copy()
        self._iterations = state["iterations"].cpu().numpy().astype(np.float64).copy()


class GroupHistory:
    """Means and deviations of recent groups; their medians recalibrate the advantage of replayed successes.

    Source: SPEAR, self-imitation with progressive exploration; TencentYoutuResearch/SPEAR.
    """

    def __init__(self, capacity: int = 10_240) -> None:
        """Empty history of at most `capacity` groups.

        Args:
            capacity: groups kept, the oldest leave first.
        """
        self._mean: deque[float] = deque(maxlen=capacity)
        self._std: deque[float] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._mean)

    @in_torch
    def collect(self, score: Array, group: Array) -> np.ndarray:
        """(groups, 2) mean and deviation (0 for single members) of this worker's groups, which must not span workers.

        Args:
            score: (E,) outcomes, NaN = unscorable.
            group: (E,) group ids, -1 = none.

        Raises:
            ValueError: wrong shapes or ids.
        """
        cells = as_cells(group, score)
        ok = cells.inside & ~torch.isnan(score)
        count = seg_count(cells.ids, cells.n, mask=ok)
        mean = seg_sum(score, cells.ids, cells.n, mask=ok) / torch.where(count > 0, count, 1.0)
        var = seg_var(score, cells.ids, cells.n, mask=ok)
        std = torch.sqrt(torch.where(torch.isnan(var), 0.0, var))
        return host(torch.stack([mean, std], -1)[count > 0])

    @staticmethod
    def reduce(updates: Sequence[np.ndarray]) -> np.ndarray:
        """Groups of all workers in the order of the list.

        Raises:
            ValueError: the list is empty.
        """
        if not len(updates):
            raise ValueError("updates is empty, expected the groups of at least one worker")
        return np.concatenate(list(updates))

    def apply(self, groups: np.ndarray) -> None:
        """Append groups."""
        self._mean.extend(groups[:, 0].tolist())
        self._std.extend(groups[:, 1].tolist())

    @in_torch
    def recalibrate(
        self, score: Array, *, scale: bool = False, std_floor: float = 1e-3, eps: float = 1e-6
    ) -> tuple[Array, Array]:
        """Advantage of replayed episodes against the present level of the policy.

        Args:
            score: (E,) outcomes of replayed episodes.
            scale: also divide by the median deviation.
            std_floor: smallest deviation.
            eps: added to the deviation.

        Returns:
            ((E,) score minus median of the group means, 0 where dropped; (E,) bool kept: advantage >= 0).

        Raises:
            ValueError: the history is empty.
        """
        if not self._mean:
            raise ValueError("the history of groups is empty; apply() at least one batch before replaying")
        gap = score.double() - float(np.median(self._mean))
        if scale:
            gap = gap / (max(float(np.median(self._std)), std_floor) + eps)
        kept = gap >= 0
        return match_dtype(torch.where(kept, gap, 0.0), score), kept

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Tensors for the checkpoint."""
        return {
            name: torch.tensor(list(x), dtype=torch.float64) for name, x in (("mean", self._mean), ("std", self._std))
        }

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Inverse of `state_dict`."""
        self._mean = deque(state["mean"].tolist(), maxlen=self._mean.maxlen)
        self._std = deque(state["std"].tolist(), maxlen=self._std.maxlen)
