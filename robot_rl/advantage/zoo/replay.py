"""Replay of successful rollouts when a group has none, with the behaviour log-probabilities they were made with."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from robot_rl.advantage.arrays import host
from robot_rl.advantage.kinds import Array


class Substitute(NamedTuple):
    """Episode of the batch to be replaced, the stored rollout that replaces it, and that rollout's score."""

    episode: int
    rollout: object
    score: float


class SuccessReplay:
    """A few successes per task, put into groups that failed as a whole.

    Rows of a replayed rollout need their ratio against their own behaviour policy, so the stored rollout must contain
    its behaviour log-probabilities.

    Source: ARPO for GUI agents; dvlab-research/ARPO.
    """

    def __init__(
        self, per_task: int = 8, *, min_score: float = 0.1, max_std: float = 0.05, max_mean: float = 0.2
    ) -> None:
        """Empty buffer.

        Args:
            per_task: rollouts kept per task, first in first out.
            min_score: only better rollouts are stored.
            max_std: a group with a smaller deviation (ddof 0) ...
            max_mean: ... and a lower mean gets a success.

        Raises:
            ValueError: per_task is not positive.
        """
        if per_task < 1:
            raise ValueError(f"per_task is {per_task}, expected a positive number of rollouts")
        self.per_task, self.min_score, self.max_std, self.max_mean = per_task, min_score, max_std, max_mean
        self._stored: dict[int, deque[tuple[object, float]]] = {}
        self._turn: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._stored.values())

    def add(self, task: int, rollout: object, score: float) -> bool:
        """Store a rollout if its score is above `min_score`; returns whether it was stored."""
        if not score > self.min_score:
            return False
        self._stored.setdefault(int(task), deque(maxlen=self.per_task)).append((rollout, float(score)))
        return True

    def substitutes(self, score: Array, group: Array, task: Array) -> list[Substitute]:
        """Replacements for the first rollout of every group without success and without spread.

        Args:
            score: (E,) outcomes, NaN = unscorable (not counted).
            group: (E,) group ids, -1 = none.
            task: (E,) task ids.

        Returns:
            At most one substitute per group; stored rollouts of a task take turns.
        """
        scores, groups, tasks = (host(x) for x in (score, group, task))
        out = []
        for one in np.unique(groups[groups >= 0]):
            rows = np.flatnonzero(groups == one)
            known = scores[rows][~np.isnan(scores[rows])]
            stored = self._stored.get(int(tasks[rows[0]]))
            if not stored or not len(known) or known.std() >= self.max_std or known.mean() >= self.max_mean:
                continue
            turn = self._turn.get(int(tasks[rows[0]]), 0)
            self._turn[int(tasks[rows[0]])] = turn + 1
            out.append(Substitute(int(rows[0]), *stored[turn % len(stored)]))
        return out

    def state_dict(self) -> dict[str, object]:
        """Stored rollouts and turns."""
        return {"stored": {task: list(queue) for task, queue in self._stored.items()}, "turn": dict(self._turn)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._stored = {task: deque(queue, maxlen=self.per_task) for task, queue in state["stored"].items()}
        self._turn = dict(state["turn"])


class TrajectoryBuffer:
    """Recent trajectories with the update that made them; `histories.GroupHistory` recalibrates their advantage.

    Source: SPEAR; TencentYoutuResearch/SPEAR.
    """

    def __init__(self, capacity: int = 10_240, *, max_age: int = 10) -> None:
        """Empty buffer.

        Args:
            capacity: trajectories kept, the oldest leave first.
            max_age: a trajectory older than this many updates is not used.

        Raises:
            ValueError: capacity is not positive.
        """
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, expected a positive number of trajectories")
        self.max_age = max_age
        self._items: deque[tuple[object, float, int]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, trajectory: object, score: float, update: int) -> None:
        """Store a trajectory with its behaviour log-probabilities, its score and the update that made it."""
        self._items.append((trajectory, float(score), int(update)))

    def fresh(self, update: int) -> tuple[list[object], np.ndarray]:
        """Trajectories that are at most `max_age` updates old, and their (n,) scores; older ones are dropped."""
        kept = [item for item in self._items if update - item[2] <= self.max_age]
        self._items = deque(kept, maxlen=self._items.maxlen)
        return [item[0] for item in kept], np.array([item[1] for item in kept])

    def state_dict(self) -> dict[str, object]:
        """Stored trajectories."""
        return {"items": list(self._items)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._items = deque((tuple(item) for item in state["items"]), maxlen=self._items.maxlen)


def replay_coefficient(step: int, warmup: int, *, coefficient: float = 1.0) -> float:
    """coefficient · (1 - cos(pi · min(step / warmup, 1))) / 2: replay enters slowly.

    Args:
        step: optimiser steps done.
        warmup: steps until the full coefficient.
        coefficient: final value.

    Raises:
        ValueError: warmup is not positive.

    Source: SPEAR; TencentYoutuResearch/SPEAR.
    """
    if warmup < 1:
        raise ValueError(f"warmup is {warmup}, expected a positive number of steps")
    return coefficient * (1.0 - math.cos(math.pi * min(step / warmup, 1.0))) / 2.0


def tool_reward_coefficient(step: int, total: int, *, coefficient: float = 1.0) -> float:
    """coefficient · (1 + cos(pi · min(step / total, 1))) / 2: the reward for using tools fades out.

    Args:
        step: optimiser steps done.
        total: steps until 0.
        coefficient: first value.

    Raises:
        ValueError: total is not positive.

    Source: SPEAR; TencentYoutuResearch/SPEAR.
    """
    return coefficient - replay_coefficient(step, total, coefficient=coefficient)
