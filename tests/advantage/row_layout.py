"""Padded, time-major and packed views of flat ragged columns, with exact inverses."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from robot_rl.advantage.kinds import Array


class RowLayout:
    """Where each row of the flat storage sits in the other layouts.

    Padding holds 0, never stale data. When all episodes have one length, the padded view is a reshape and the
    time-major view its transpose, without a copy.
    """

    def __init__(self, start: np.ndarray, length: np.ndarray, rows: int) -> None:
        """Describe E episodes that lie one behind the other.

        Args:
            start: (E,) first row of each episode.
            length: (E,) rows of each episode, at least 1.
            rows: N, the sum of the lengths.

        Raises:
            ValueError: lengths that do not add up to `rows`.
        """
        if int(np.sum(length)) != rows:
            raise ValueError(f"episode lengths add up to {int(np.sum(length))}, expected {rows}, the rows of the batch")
        self.start, self.length, self.rows = np.asarray(start, np.int64), np.asarray(length, np.int64), rows
        self.width = int(self.length.max()) if len(self.length) else 0
        self.equal = bool((self.length == self.width).all())

    @cached_property
    def valid(self) -> np.ndarray:
        """(E, Tmax) bool, False on padding."""
        return np.arange(self.width) < self.length[:, None]

    @cached_property
    def _gather(self) -> np.ndarray:
        # Padding points at row 0 and is zeroed afterwards.
        return np.where(self.valid, self.start[:, None] + np.arange(self.width), 0)

    @cached_property
    def _scatter(self) -> np.ndarray:
        return np.flatnonzero(self.valid)

    def padded(self, x: Array) -> Array:
        """(N, ...) as (E, Tmax, ...), padding 0."""
        self._check(x)
        if self.equal:
            return x.reshape((len(self.length), self.width, *x.shape[1:]))
        if isinstance(x, torch.Tensor):
            mask = torch.from_numpy(self.valid).to(x.device).reshape(self.valid.shape + (1,) * (x.ndim - 1))
            return torch.where(mask, x[torch.from_numpy(self._gather).to(x.device)], torch.zeros_like(x[:1]))
        mask = self.valid.reshape(self.valid.shape + (1,) * (x.ndim - 1))
        return np.where(mask, x[self._gather], x.dtype.type(0))

    def time_major(self, x: Array) -> Array:
        """(N, ...) as (Tmax, E, ...), padding 0."""
        return self.padded(x).swapaxes(0, 1)

    def packed(self, x: Array) -> tuple[Any, np.ndarray]:
        """(N, ...) as it is, and cu_seqlens (E + 1,) int32: where episodes begin and the last one ends."""
        self._check(x)
        return x, np.concatenate(([0], np.cumsum(self.length))).astype(np.int32)

    def from_padded(self, y: Array) -> Array:
        """Exact inverse of `padded`: (E, T, ...) with T at least Tmax back to (N, ...), whatever the padding holds."""
        if y.shape[0] != len(self.length) or y.shape[1] < self.width:
            raise ValueError(
                f"padded view has shape {tuple(y.shape)}, expected ({len(self.length)}, {self.width} or more, ...)"
            )
        y = y[:, : self.width]
        flat = y.reshape((len(self.length) * self.width, *y.shape[2:]))
        if self.equal:
            return flat
        return flat[torch.from_numpy(self._scatter).to(y.device) if isinstance(y, torch.Tensor) else self._scatter]

    def from_time_major(self, y: Array) -> Array:
        """Exact inverse of `time_major`."""
        return self.from_padded(y.swapaxes(0, 1))

    def _check(self, x: Array) -> None:
        if x.shape[0] != self.rows:
            raise ValueError(f"column has {x.shape[0]} rows, expected {self.rows}, the rows of the batch")
