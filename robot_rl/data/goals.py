"""Goals for goal-conditioned learning from logs: reached later in the episode, or in one that passes close by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from robot_rl.data.chains import draw_between
from robot_rl.data.log_dataset import LogDataset
from robot_rl.state import Saved
from robot_rl.types import Transitions


class GoalStream(Saved, ABC):
    """A `LogDataset` whose batches are given goals, with a generator of their own."""

    saved = ("data", "_generator")

    def __init__(self, data: LogDataset, *, seed: int) -> None:
        self.data = data
        self._generator = torch.Generator().manual_seed(seed)
        self._start = np.asarray(data.store.start_obs)
        # The last observation of an episode may never have been recorded; it is no goal then.
        valid = np.asarray(data.store.final_obs_valid)
        self._last = np.asarray(data.store.length) - (~valid).astype(np.int64)

    def __len__(self) -> int:
        return len(self.data)

    def batches(self, size: int) -> Iterator[Transitions]:
        """Endless batches of `size` rows with goals."""
        return map(self._with_goals, self.data.batches(size))

    @abstractmethod
    def _with_goals(self, batch: Transitions) -> Transitions:
        """The batch under goals."""


class GoalDataset(GoalStream):
    """A `LogDataset` whose batches have `extras["goal"]` (B, G): a goal that the step's action leads towards.

    For step t a later time w of the same episode is drawn. With probability `stitch` the goal is drawn behind a random
    state of any episode that lies in the same cluster as the state at w, from that state to the end of its episode;
    else the goal is what was achieved at w. The first kind joins episodes that were never recorded as one.

    Args:
        data: with extras "episode" and "step"; single steps.
        achieved: components of "state" that goals are made of; None for all.
        stitch: probability of a goal beyond another episode.
        clusters: k of the k-means clustering of the goal components; at most the number of states.
        seed: of clustering and sampling.

    Raises:
        ValueError: a component that the state does not have, a probability outside [0, 1], or data without "episode"
            and "step".

    Source: Ghugare et al., Closing the Gap between TD Learning and Supervised Learning: a Generalisation Point of View
    (temporal goal augmentation), algorithm 1; k-means on states as in RajGhugare19/stitching-is-combinatorial-
    generalisation. Here goals are clustered and compared in the same components.
    """

    def __init__(
        self,
        data: LogDataset,
        *,
        achieved: Sequence[int] | None = None,
        stitch: float = 0.5,
        clusters: int = 40,
        seed: int = 0,
    ) -> None:
        store = data.store
        size = store.column("obs/state").shape[1]
        self.achieved = tuple(range(size)) if achieved is None else tuple(achieved)
        if not self.achieved or min(self.achieved) < 0 or max(self.achieved) >= size:
            raise ValueError(f"goal components are {self.achieved}, expected some of 0 ... {size - 1}")
        if not 0.0 <= stitch <= 1.0 or clusters < 1:
            raise ValueError(f"stitch is {stitch} and clusters {clusters}, expected [0, 1] and at least 1")
        super().__init__(data, seed=seed)
        self.stitch = stitch
        states = store.column("obs/state")
        begins, lasts = self._start[data.episodes].tolist(), self._last[data.episodes].tolist()
        parts = [np.arange(begin, begin + last + 1) for begin, last in zip(begins, lasts)]
        self._rows = np.concatenate(parts)  # observations of the episodes in use
        self._owner = np.repeat(data.episodes, [len(part) for part in parts])
        points = np.asarray(states[self._rows])[:, list(self.achieved)].astype(np.float64)
        self._cluster_of = np.full(len(states), -1, np.int32)
        label = kmeans(points, clusters, seed=seed)
        self._cluster_of[self._rows] = label
        order = np.argsort(label, kind="stable")
        self._members, self._begin = order, np.searchsorted(label[order], np.arange(label.max() + 2))

    def _with_goals(self, batch: Transitions) -> Transitions:
        episode, step = (batch.extras[name].cpu().numpy() for name in ("episode", "step"))
        size = len(step)
        draw = torch.rand((4, size), generator=self._generator, dtype=torch.float64).numpy()
        later = draw_between(step + 1, self._last[episode], draw[0])
        row = self._start[episode] + later
        cluster = self._cluster_of[row]
        begin, end = self._begin[cluster], self._begin[cluster + 1]
        near = self._members[begin + (draw[1] * (end - begin)).astype(np.int64)]  # a state of that cluster
        owner, place = self._owner[near], self._rows[near] - self._start[self._owner[near]]
        beyond = self._start[owner] + draw_between(place, self._last[owner], draw[2])
        goal_row = np.where(draw[3] < self.stitch, beyond, row)
        goal = np.asarray(self.data.store.column("obs/state")[goal_row])[:, list(self.achieved)]
        extras = {**batch.extras, "goal": torch.from_numpy(goal.astype(np.float32)).to(batch.reward.device)}
        return replace(batch, extras=extras)


def kmeans(points: np.ndarray, clusters: int, *, seed: int = 0, rounds: int = 20, sample: int = 20_000) -> np.ndarray:
    """Cluster of every point by Lloyd's algorithm in standardised components, k-means++ start.

    Args:
        points: (N, D).
        clusters: k; fewer where there are fewer different points.
        seed: of start and subsample.
        rounds: most iterations.
        sample: centres are found on so many points at most.

    Returns:
        (N,) int32 in 0 ... k - 1.

    Source: Lloyd, Least squares quantization in PCM; Arthur and Vassilvitskii, k-means++.
    """
    spread = points.std(0)
    scaled = (points - points.mean(0)) / np.where(spread < 1e-6, 1.0, spread)
    rng = np.random.default_rng(seed)
    some = scaled if len(scaled) <= sample else scaled[rng.choice(len(scaled), sample, replace=False)]
    centres = some[rng.integers(len(some))][None]
    nearest = ((some - centres[0]) ** 2).sum(1)
    while len(centres) < clusters and nearest.sum() > 1e-12:
        centres = np.concatenate([centres, some[rng.choice(len(some), p=nearest / nearest.sum())][None]])
        nearest = np.minimum(nearest, ((some - centres[-1]) ** 2).sum(1))
    for _ in range(rounds):
        label = _nearest(some, centres)
        count = np.bincount(label, minlength=len(centres))
        total = np.zeros_like(centres)
        np.add.at(total, label, some)
        moved = np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], centres)
        if np.allclose(moved, centres):
            break
        centres = moved
    return _nearest(scaled, centres)


def _nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    label = np.empty(len(points), np.int32)
    square = (centres**2).sum(1)
    for begin in range(0, len(points), 1 << 16):
        part = points[begin : begin + (1 << 16)]
        label[begin : begin + len(part)] = np.argmin(square - 2.0 * part @ centres.T, axis=1)
    return label
