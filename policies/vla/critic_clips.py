"""Labelled clips, and batches of frames from them with the labels of every pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Self

from robot_rl.policies.nets.progress import CLIP, work_share
from robot_rl.policies.nets.reference import FRAMES, RefClip
from robot_rl.policies.nets.vla_words import HashedWords
from robot_rl.state import Saved
from robot_rl.types import Options
from robot_rl.types.options import Count, Share


@dataclass(frozen=True)
class Clips:
    """C clips, one after another.

    Attributes:
        frames: (F, H, W, 3) uint8.
        start: (C + 1,) int64, where each clip begins.
        work: (F, G) float32 > 0, remaining work under every goal.
        done: (F, G) bool.
        goal: (C,) int64, the goal that is asked.
        kind: (C,) int64 into `kinds`.
        kinds: names.
        successes: names of the kinds that meet their goal and stay there.
        phrasings: sentences of each goal.
        held_out: sentences that no training uses.
        stride_s: seconds between frames.
    """

    frames: np.ndarray
    start: np.ndarray
    work: np.ndarray
    done: np.ndarray
    goal: np.ndarray
    kind: np.ndarray
    kinds: tuple[str, ...]
    successes: tuple[str, ...]
    phrasings: list[list[str]]
    held_out: list[list[str]]
    stride_s: float

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> Clips:
        """From the arrays and the facts of a generator.

        Raises:
            ValueError: lengths that do not fit each other, or work that is not positive.
        """
        names = ("frames", "start", "work", "done", "goal", "kind")
        clips = cls(
            **{name: arrays[name] for name in names},
            kinds=tuple(facts["kinds"]),
            successes=tuple(facts["successes"]),
            phrasings=list(facts["phrasings"]),
            held_out=list(facts["held_out_phrasings"]),
            stride_s=float(facts["stride_s"]),
        )
        count, frames = len(clips.goal), len(clips.frames)
        if len(clips.start) != count + 1 or clips.start[-1] != frames or len(clips.work) != frames:
            raise ValueError(
                f"{count} clips, {frames} frames, {len(clips.work)} rows of work and starts up to {clips.start[-1]} "
                "do not fit each other"
            )
        if not (clips.work > 0).all():
            raise ValueError("remaining work must be > 0 everywhere; a goal that is met keeps its floor")
        if len(clips.phrasings) != clips.work.shape[1]:
            raise ValueError(f"sentences for {len(clips.phrasings)} goals, labels for {clips.work.shape[1]}")
        return clips

    def __len__(self) -> int:
        return len(self.goal)

    @property
    def gap_s(self) -> tuple[float, float]:
        """Seconds between two frames of a clip, shortest and longest."""
        return self.stride_s, round(self.stride_s * (int(np.diff(self.start).max()) - 1), 3)

    def meets_goal(self) -> np.ndarray:
        """(C,) bool: clips of a kind that meets its goal."""
        return np.isin(self.kind, [self.kinds.index(name) for name in self.successes])

    def showing(self, frames: int = 1) -> list[np.ndarray]:
        """For each goal, the clips that may show it: met at the end, not at the start, and no other goal on the way.

        What was asked of a clip does not matter: a wrong block well placed shows the goal of that block.

        Args:
            frames: length that a clip needs at least.
        """
        first, last = self.start[:-1], self.start[1:] - 1
        ever = np.stack([self.done[a : b + 1].any(axis=0) for a, b in zip(first, last)])
        good = self.done[last] & ~self.done[first] & (ever.sum(axis=1, keepdims=True) == 1)
        good &= (last - first + 1 >= frames)[:, None]
        return [np.flatnonzero(good[:, goal]) for goal in range(good.shape[1])]

    def reference(self, row: int, frames: int = FRAMES) -> RefClip:
        """A clip as a reference of R frames."""
        return RefClip.of(self.frames[self.start[row] : self.start[row + 1]], frames, source=f"clip {row}")

    def part(self, rows: np.ndarray) -> Clips:
        """Some of the clips."""
        pieces = [np.arange(int(self.start[i]), int(self.start[i + 1])) for i in rows]
        index = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
        return Clips(
            self.frames[index],
            np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64),
            self.work[index],
            self.done[index],
            self.goal[rows],
            self.kind[rows],
            self.kinds,
            self.successes,
            self.phrasings,
            self.held_out,
            self.stride_s,
        )


@dataclass(frozen=True)
class FrameBatch:
    """I items of K frames of one clip, each under G goals, in any order, with the labels of all ordered pairs.

    Attributes:
        images: (I, K, H, W, 3) uint8.
        ids: (I G, L) int64, the sentences, those of one item after another; length: (I G,) int64.
        share: (I G, K, K) float32, c from frame a to frame b; pair_mask: (I G, K, K) bool.
        log_work: (I G, K) float32, ln of the remaining work over the reference work; log_mask: (I G, K) bool.
        done: (I G, K) float32; done_mask: (I G, K) bool.
    """

    images: Tensor
    ids: Tensor
    length: Tensor
    share: Tensor
    pair_mask: Tensor
    log_work: Tensor
    log_mask: Tensor
    done: Tensor
    done_mask: Tensor


class DrawOptions(Options):
    """What a batch holds of the clips."""

    items: Count = 12
    """I, clips in a batch."""
    frames: Annotated[int, Field(ge=2)] = 4
    """K, frames of each; all ordered pairs of them count."""
    goals: Count = 6
    """G, under which each clip of a batch is read; more than there are means all."""
    other_goals: Share = 0.5
    """Share of clips whose first goal is not theirs; the further ones are drawn from the rest."""


class ClipSampler(Saved):
    """Endless batches by one recipe.

    All ordered pairs of an item's frames are labelled, so adjacent frames, long gaps, reversals and regressions come
    in every batch. Brightness, colour and a small shift are drawn once for an item, pixel noise for each frame.

    Args:
        clips: to draw from.
        options: what a batch holds.
        labels: "work" (remaining work of the simulator, any goal) or "vlac" (by time, as published: (j - i) / (T - i),
            cut at -1 backwards; 0 under a goal that is not the clip's; done 0 before .8 T, 1 after .95 T).
        successes_only: draw only from clips that meet their goal.
        words: of the tokenizer.
        seed: of all draws.

    Raises:
        ValueError: unknown labels; nothing to draw from; "vlac" labels with failures.
    """

    saved = ("_random",)

    def __init__(
        self,
        clips: Clips,
        options: DrawOptions,
        *,
        labels: str = "work",
        successes_only: bool = False,
        words: int = 509,
        seed: int = 0,
    ) -> None:
        if labels not in ("work", "vlac"):
            raise ValueError(f"labels is '{labels}', expected 'work' or 'vlac'")
        if labels == "vlac" and not successes_only:
            raise ValueError("labels=vlac count time as progress, which only holds in successes: set successes_only")
        self.clips, self.labels, self.other_goals = clips, labels, options.other_goals
        self.items, self.frames = options.items, options.frames
        self.goals = min(options.goals, len(clips.phrasings))
        # Words of every goal's sentences say nothing about which goal it is.
        said = [{word for text in texts for word in text.split()} for texts in clips.phrasings]
        self._common = set.intersection(*said)
        length = np.diff(clips.start)
        allowed = (length >= 3) & (clips.meets_goal() | (not successes_only))
        self._rows = np.flatnonzero(allowed)
        if len(self._rows) == 0:
            raise ValueError("no clip to draw from: none of three frames or more that the recipe allows")
        # Kinds count alike, successes as much as half of the failures together.
        kinds = clips.kind[self._rows]
        weight = np.zeros(len(self._rows))
        present = np.unique(kinds)
        good = [k for k in present if clips.kinds[k] in clips.successes]
        for k in present:
            share = 1.0 / (3 * len(good)) if k in good else 2.0 / (3 * (len(present) - len(good)))
            weight[kinds == k] = share / np.sum(kinds == k)
        self._weight = weight / weight.sum()
        self._random = np.random.default_rng(seed)
        self._noise = np.random.default_rng([seed, 1]).normal(0.0, 3.0, 2**18).astype(np.float32)
        self._tokens = HashedWords(words)
        self.reference_work = float(np.median(clips.work[clips.start[:-1], clips.goal]))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FrameBatch:
        random, clips, K = self._random, self.clips, self.frames
        rows = random.choice(self._rows, size=self.items, p=self._weight)
        images, share, pair_mask, log_work, log_mask, done, done_mask, texts = [], [], [], [], [], [], [], []
        for row in rows:
            first, last = int(clips.start[row]), int(clips.start[row + 1]) - 1
            asked = int(clips.goal[row])
            index = self._draw_frames(last - first)
            at, same = first + index, np.eye(K, dtype=bool)
            images.append(self._augment(clips.frames[at]))
            for goal in self._draw_goals(asked):
                texts.append(str(random.choice(clips.phrasings[goal])))
                if self.labels == "work":
                    left, met = self._asked_for(int(row), at, int(goal))
                    work = left.astype(np.float64)
                    share.append(work_share(work[:, None], work[None, :]))
                    log_work.append(np.log(work / self.reference_work))
                    log_mask.append(np.ones(K, bool))
                    done.append(met)
                    done_mask.append(np.ones(K, bool))
                else:
                    T = last - first
                    # A pair that starts at the last frame has nothing left to divide by: one frame stands in.
                    left = np.maximum(T - index[:, None], 1)
                    published = np.clip((index[None, :] - index[:, None]) / left, -1 + CLIP, 1 - CLIP)
                    share.append(np.where(same, 0.0, published) if goal == asked else np.zeros((K, K)))
                    log_work.append(np.log((T - index + 1) / (T + 1)))
                    log_mask.append(np.full(K, goal == asked))
                    done.append(index > 0.95 * T if goal == asked else np.zeros(K, bool))
                    done_mask.append((index < 0.8 * T) | (index > 0.95 * T) | (goal != asked))
                pair_mask.append(~same)
        ids, length = self._tokens([self._fill(text) for text in texts])

        def tensor(rows: list[np.ndarray], dtype: torch.dtype) -> Tensor:
            return torch.as_tensor(np.stack(rows)).to(dtype)

        return FrameBatch(
            torch.as_tensor(np.stack(images)),
            torch.as_tensor(ids),
            torch.as_tensor(length),
            tensor(share, torch.float32),
            tensor(pair_mask, torch.bool),
            tensor(log_work, torch.float32),
            tensor(log_mask, torch.bool),
            tensor(done, torch.float32),
            tensor(done_mask, torch.bool),
        )

    def _asked_for(self, row: int, at: np.ndarray, goal: int) -> tuple[np.ndarray, np.ndarray]:
        """Remaining work (K,) and whether the goal is met (K,) in the frames `at` of clip `row`."""
        return self.clips.work[at, goal], self.clips.done[at, goal]

    def _draw_goals(self, asked: int) -> np.ndarray:
        """(G,) different ones."""
        count, random = len(self.clips.phrasings), self._random
        other = random.random() < self.other_goals and count > 1
        first = int((asked + random.integers(1, count)) % count) if other else asked
        if self.goals == 1:
            return np.array([first])
        rest = random.permutation(np.delete(np.arange(count), first))
        return np.concatenate([[first], rest[: self.goals - 1]])

    def _draw_frames(self, last: int) -> np.ndarray:
        """(K,) of 0..last: a group of near and far frames, else anywhere; the end often, for the sake of done."""
        random = self._random
        index = random.integers(0, last + 1, self.frames)
        if random.random() < 0.6:
            i = int(index[0])
            gap = int(np.exp(random.uniform(0.0, np.log(max(last, 1) + 1.0))))
            index[1 : min(3, self.frames)] = np.minimum([i + 1, i + max(gap, 1)], last)[: self.frames - 1]
        if random.random() < 0.35:
            index[-1] = last
        return random.permutation(index)

    def _augment(self, frames: np.ndarray) -> np.ndarray:
        random = self._random
        gain = random.uniform(0.88, 1.12) * random.uniform(0.96, 1.04, 3)
        height, width = frames.shape[1:3]
        most = min(height, width) // 48  # pixels
        down, right = random.integers(0, 2 * most + 1, 2)
        x = np.pad(frames, ((0, 0), (most, most), (most, most), (0, 0)), mode="edge")
        x = x[:, down : down + height, right : right + width]
        x = x * gain.astype(np.float32) + self._pixel_noise((*x.shape[:3], 1))
        return np.clip(x, 0, 255).astype(np.uint8)

    def _pixel_noise(self, shape: tuple[int, ...]) -> np.ndarray:
        """Normal, 3 grey levels wide: a piece of a strip drawn once, since fresh draws took a third of a batch."""
        count = int(np.prod(shape))
        at = int(self._random.integers(len(self._noise) - count)) if count < len(self._noise) else 0
        return np.resize(self._noise[at : at + count], shape)

    def _fill(self, text: str) -> str:
        """Unknown words among the known ones and in place of common ones, so that new fillers mean nothing."""
        words = text.split()
        chance, fresh = self._random.random((2, len(words))), self._random.integers(0, 10_000, len(words))
        out = []
        for word, insert, drop, number in zip(words, *chance, fresh):
            if insert < 0.12:
                out.append(f"x{number}")
            if drop < 0.3 and word in self._common:
                if drop < 0.15:
                    out.append(f"y{number}")
                continue
            out.append(word)
        return " ".join(out) or text
