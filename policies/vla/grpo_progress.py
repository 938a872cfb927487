"""Progress of failed episodes by their distance to remembered successes, so that groups without a success still teach.

The released form rescales distances inside a batch: it cannot tell a near miss from nothing at all, and has no answer
where a batch holds no success (`robot_rl.advantage.zoo.progress.srpo_reward`). Here both ends of the scale are
remembered: successes of each task, and clips in which nothing happened.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from robot_rl.advantage.anchors import components
from robot_rl.types import StateDict


class SuccessMemory:
    """Embeddings of successes and of clips without motion, for each task.

    Args:
        capacity: successes kept for each task; the oldest leave first.
        idle: clips without motion kept for each task.

    Source: Fei et al., SRPO (self-referential progress); clusters, scales and the memory are ours.
    """

    def __init__(self, capacity: int = 256, idle: int = 64) -> None:
        self._sizes = (capacity, idle)
        self._won: dict[str, deque[np.ndarray]] = {}
        self._idle: dict[str, deque[np.ndarray]] = {}

    def add(self, task: str, embedding: np.ndarray) -> None:
        """One more success (D,)."""
        self._won.setdefault(task, deque(maxlen=self._sizes[0])).append(np.asarray(embedding, np.float64))

    def add_idle(self, task: str, embedding: np.ndarray) -> None:
        """One more clip (D,) in which nothing happened: its first moment repeated."""
        self._idle.setdefault(task, deque(maxlen=self._sizes[1])).append(np.asarray(embedding, np.float64))

    def count(self, task: str) -> int:
        """Successes that are remembered."""
        return len(self._won.get(task, ()))

    def progress(self, task: str, embedding: np.ndarray) -> np.ndarray:
        """(n, D) -> (n,) in [0, 1]: 1 as near as successes are to each other, 0 as far as clips without motion.

        p = clip((f - d) / (f - s), 0, 1), d the distance to the nearest medoid, s the median distance of successes to
        their nearest other (0 for one), f the median distance of clips without motion. NaN without a success or a clip
        without motion, 0 where f - s is not above 0.
        """
        x = np.asarray(embedding, np.float64)
        if not self._won.get(task) or not self._idle.get(task):
            return np.full(len(x), np.nan)
        won = np.stack(list(self._won[task]))
        medoids, near = clusters(won)
        far = float(np.median(_distance(np.stack(list(self._idle[task])), medoids).min(1)))
        if far - near < 1e-6 * max(far, 1e-12):
            return np.zeros(len(x))
        return np.clip((far - _distance(x, medoids).min(1)) / (far - near), 0.0, 1.0)

    def state_dict(self) -> StateDict:
        """All embeddings, as tensors."""
        kinds = {"won": self._won, "idle": self._idle}
        return {
            kind: {task: torch.as_tensor(np.stack(list(rows))) for task, rows in kept.items()}
            for kind, kept in kinds.items()
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Inverse of `state_dict`."""
        self._won, self._idle = {}, {}
        for task, rows in state["won"].items():
            for row in np.asarray(torch.as_tensor(rows).cpu()):
                self.add(task, row)
        for task, rows in state["idle"].items():
            for row in np.asarray(torch.as_tensor(rows).cpu()):
                self.add_idle(task, row)


def clusters(won: np.ndarray) -> tuple[np.ndarray, float]:
    """Successes (S, D) -> medoids (C, D) of their clusters, and the median distance to the nearest other success.

    Single linkage at twice that distance; fewer than four successes are one cluster.
    """
    gap = _distance(won, won)
    if len(won) == 1:
        return won, 0.0
    nearest = np.where(np.eye(len(won), dtype=bool), np.inf, gap).min(1)
    near = float(np.median(nearest))
    label = np.zeros(len(won), np.int64)
    if len(won) >= 4:
        label = components((gap <= 2.0 * near) | np.eye(len(won), dtype=bool))
    found = []
    for one in np.unique(label):
        rows = np.flatnonzero(label == one)
        found.append(won[rows[gap[np.ix_(rows, rows)].sum(1).argmin()]])
    return np.stack(found), near


def embed(features: np.ndarray, length: np.ndarray, parts: int = 4) -> np.ndarray:
    """Features (T, N, D) of N clips of `length` (N,) moments -> (N, parts D): means over equal parts of each clip.

    A mean over the whole clip would forget the order; a part without a moment takes the one that it lies in.
    """
    found = []
    for i, steps in enumerate(np.asarray(length, np.int64)):
        edge = np.linspace(0, steps, parts + 1)
        spans = [(int(a), max(int(np.ceil(b)), int(a) + 1)) for a, b in zip(np.minimum(edge[:-1], steps - 1), edge[1:])]
        found.append(np.concatenate([features[a:b, i].mean(0) for a, b in spans]))
    return np.stack(found)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.linalg.norm(a[:, None] - b[None], axis=2)
