"""What every chunk policy is measured by: decisions, latency, and jerk at the borders of chunks."""

from __future__ import annotations

import numpy as np


class ChunkMeter:
    """Counts decisions and compares |second difference of the action| at chunk borders with that inside chunks.

    A second difference a_t - 2 a_{t-1} + a_{t-2} belongs to a border when a chunk began at t or at t - 1.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.decisions, self.ticks = 0, 0
        self.latency: list[float] = []
        self._sum, self._count = np.zeros(2), np.zeros(2, np.int64)
        self._before: np.ndarray = np.zeros((2, 0, 0))
        self._age = np.zeros(0, np.int64)
        self._start = np.zeros(0, bool)

    def count_decision(self, rows: int, seconds: float) -> None:
        """One call of the policy for so many rows."""
        self.decisions += rows
        self.latency.append(seconds)

    def tick(self, action: np.ndarray, start: np.ndarray) -> None:
        """Actions (N, A) that go out now, and where a new chunk began (N,)."""
        if self._before.shape[1:] != action.shape:
            self._before = np.zeros((2, *action.shape))
            self._age, self._start = np.zeros(len(action), np.int64), np.zeros(len(action), bool)
        bend = np.abs(action - 2.0 * self._before[0] + self._before[1]).mean(1)
        for i, border in enumerate((False, True)):
            chosen = (self._age >= 2) & ((start | self._start) == border)
            self._sum[i] += bend[chosen].sum()
            self._count[i] += chosen.sum()
        self._before = np.stack([action, self._before[0]])
        self._start = start.copy()
        self._age += 1
        self.ticks += len(action)

    def end_episodes(self, rows: np.ndarray) -> None:
        """Episodes of these rows ((N,) bool) ended: nothing is compared across."""
        if len(self._age) == len(rows):
            self._age[rows] = 0

    def metrics(self, episodes: int) -> dict[str, float]:
        """decisions (per episode), border_jerk (ratio; above 1 = chunks do not join), latency_ms and latency_p95_ms."""
        inside, border = self._sum / np.maximum(self._count, 1)
        found = {"decisions": self.decisions / max(episodes, 1)}
        if self._count.all() and inside > 0:
            found["border_jerk"] = float(border / inside)
        if self.latency:
            found["latency_ms"] = 1e3 * float(np.mean(self.latency))
            found["latency_p95_ms"] = 1e3 * float(np.percentile(self.latency, 95))
        return found
