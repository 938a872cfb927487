"""Batches for a critic that can be shown its goal: how each goal of a batch is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from robot_rl.policies.nets.reference import (
    BOTH,
    FRAMES,
    MOST,
    SHOWN,
    TOLD,
    RefClip,
    announced_progress,
    reference_indices,
)
from robot_rl.policies.vla.critic_clips import Clips, ClipSampler, DrawOptions, FrameBatch
from robot_rl.types.options import NotNegative, Share


@dataclass(frozen=True)
class ContextBatch(FrameBatch):
    """`FrameBatch` whose goals are told, shown or both.

    Attributes:
        shown: (M, R, H, W, 3) uint8, references; shorter ones are filled up behind.
        progress: (M, R) float32, announced; there: (M, R) bool.
        shows: (M,) int64, the goal that each shows.
        which: (I G,) int64, the reference of each goal; 0 where there is none.
        how: (I G,) int64, `TOLD`, `SHOWN` or `BOTH`.
        goal: (I G,) int64, what the sentence says.
    """

    shown: Tensor
    progress: Tensor
    there: Tensor
    shows: Tensor
    which: Tensor
    how: Tensor
    goal: Tensor


def _four(shares: tuple[float, ...]) -> tuple[float, ...]:
    if len(shares) != 4 or sum(shares) <= 0:
        raise ValueError("expected four numbers of at least 0, not all of them 0: told, shown, alike, differently")
    return shares


class ShowOptions(DrawOptions):
    """What a batch holds of the clips, and how its goals are given."""

    references: Annotated[int, Field(ge=2)] = 2
    """Clips that are drawn to show each goal of a batch; a clip is never its own reference."""
    frames_shown: Annotated[int, Field(ge=1, le=MOST)] = FRAMES
    """R, frames of a reference; 1 is a picture of the goal."""
    picture: Share = 0.25
    """Share of references that are a picture of the goal, R = 1."""
    shares: Annotated[tuple[NotNegative, ...], AfterValidator(_four)] = (0.25, 0.45, 0.2, 0.1)
    """Of goals that are told, shown, told and shown alike, told and shown differently."""


class ContextSampler(ClipSampler):
    """`ClipSampler` that gives each goal by a sentence, by a reference, or by both.

    A few references of each goal are drawn for a batch and serve all of its clips but the one that they are from. Where
    the reference shows another goal than the sentence names, both are asked: the remaining work is the larger, and done
    is both.

    The remaining work of every goal is known, failures too; labels by time do not know it.

    Args:
        clips: to draw from, references too.
        options: what a batch holds, and how its goals are given.
        words: of the tokenizer.
        seed: of all draws.

    Raises:
        ValueError: no goal with two clips that show it.
    """

    saved = ("_random", "_drawing")

    def __init__(self, clips: Clips, options: ShowOptions, *, words: int = 509, seed: int = 0) -> None:
        super().__init__(clips, options, words=words, seed=seed)
        shares = np.array(options.shares)
        self._shares = shares / shares.sum()
        self._count, self._length, self._picture = options.references, options.frames_shown, options.picture
        self._pool = [rows if len(rows) > 1 else rows[:0] for rows in clips.showing(self._length)]
        if not any(len(rows) for rows in self._pool):
            raise ValueError(
                "no goal is met in two clips or more, so nothing can be shown; make more clips (robot-rl critic clips "
                "count=480) or train with critic=tiny"
            )
        self._drawing = np.random.default_rng([seed, 2])

    def __next__(self) -> ContextBatch:
        rows = [
            (goal, int(row))
            for goal, pool in enumerate(self._pool)
            for row in self._drawing.choice(pool, size=min(self._count, len(pool)), replace=False)
        ]
        self._rows_shown = np.array([row for _, row in rows])
        self._goals_shown = np.array([goal for goal, _ in rows])
        self._slots: list[tuple[int, int, int]] = []
        batch = super().__next__()
        refs = [self._reference(row) for row in self._rows_shown]
        shown = np.zeros((len(refs), self._length, *self.clips.frames.shape[1:]), np.uint8)
        progress, there = np.zeros((2, len(refs), self._length), np.float32)
        for i, ref in enumerate(refs):
            here = slice(0, len(ref.frames))
            shown[i, here], progress[i, here], there[i, here] = ref.frames, ref.progress, 1
        which, how, goal = np.array(self._slots).T
        return ContextBatch(
            **vars(batch),
            shown=torch.as_tensor(shown),
            progress=torch.as_tensor(progress),
            there=torch.as_tensor(there) > 0,
            shows=torch.as_tensor(self._goals_shown),
            which=torch.as_tensor(which),
            how=torch.as_tensor(how),
            goal=torch.as_tensor(goal),
        )

    def _asked_for(self, row: int, at: np.ndarray, goal: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws how this goal is given; see `ClipSampler`."""
        work, done = super()._asked_for(row, at, goal)
        kind = int(self._drawing.choice(4, p=self._shares))
        other = kind == 3
        wanted = (self._goals_shown != goal) if other else (self._goals_shown == goal)
        fit = np.flatnonzero(wanted & (self._rows_shown != row))
        if kind == 0 or len(fit) == 0:
            self._slots.append((0, TOLD, goal))
            return work, done
        which = int(self._drawing.choice(fit))
        self._slots.append((which, SHOWN if kind == 1 else BOTH, goal))
        if other:
            second = super()._asked_for(row, at, int(self._goals_shown[which]))
            work, done = np.maximum(work, second[0]), done & second[1]
        return work, done

    def _reference(self, row: int) -> RefClip:
        """A clip as a reference: sometimes its last frame alone, sometimes after it stood still at its end."""
        random = self._drawing
        first, last = int(self.clips.start[row]), int(self.clips.start[row + 1]) - 1
        count = last - first + 1
        length = 1 if random.random() < self._picture else self._length
        if random.random() < 0.3:
            count += int(random.integers(count))
        index = reference_indices(count, length)
        frames = self._augment(self.clips.frames[np.minimum(first + index, last)])
        return RefClip(frames, announced_progress(index, count))
