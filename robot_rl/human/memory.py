"""Replay of control steps: each stored once, demonstrations, own experience and human spans as views of it.

Every row names its two observations by frame number, so nothing is ever read from "the next row": a sample cannot
bootstrap across a gap, an episode's end or the ring's seam, whatever the order in which spans arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from robot_rl.data.arrays import HostArrays
from robot_rl.data.hil_record import ControlStep, Source
from robot_rl.data.layout import RecordLayout
from robot_rl.data.ring import TransitionRing
from robot_rl.data.seen import MOST_PICTURES, space_rows
from robot_rl.types import Batches, IOSpec, Obs, StateDict, Transitions
from robot_rl.types.frames import FrameRun

VIEWS = ("online", "demo", "human")
EXTRAS = ("imitate", "grip_action", "grip_penalty", "reward_rlif", "reward_task")
HANDOVER_WEIGHT = 0.3
"""Imitation weight of the first two steps of a span, where the person is still taking over."""
_PERSON = (Source.HUMAN, Source.BLEND)  # a person had a hand in it: never the policy's own action


class HilMemory:
    """Ring of control steps with views.

    The extras of a batch, (B,) each: "imitate" weight for imitation losses (0 for the policy's own steps, those that it
    drove together with a person, and interventions of one step, which are glitches of the device), "grip_action",
    "grip_penalty", "reward_task" and "reward_rlif" (-1 where a person took over at the next step).

    Args:
        io: interface of the robot.
        capacity: steps kept; frames have room for 1/16 more than that.
        learn_from: "cmd" trains on the command before safety (the safety layer is part of the world), "exec" on what
            it let through.
        dup_human: human steps are in the demo view besides the online view.
        store_human: which human steps are kept for learning: "all", "last" of every span, or "none".
        seed: of the sampling.
        keys: observations that batches hold; None for all. Pictures that an encoder has looked at stay out of them.
        sight: width of what an encoder saw in each frame, kept as an observation "sight"; 0 for none.

    Attributes:
        encoded: which fit of the encoder that is of; -1 for none, and after a restart with other frames.
        unseen: frames came without; NaN lies beside them.

    Raises:
        ValueError: an option outside its range.

    Source: Ball et al., Efficient Online RL with Offline Data (symmetric sampling); Luo et al., HIL-SERL (human steps
    in both buffers). Where we differ: one store with index views instead of copies, and explicit successors.
    """

    def __init__(
        self,
        io: IOSpec,
        capacity: int,
        *,
        learn_from: str = "cmd",
        dup_human: bool = True,
        store_human: str = "all",
        seed: int = 0,
        keys: tuple[str, ...] | None = None,
        sight: int = 0,
    ) -> None:
        if capacity < 2:
            raise ValueError(f"capacity is {capacity}, expected at least 2 steps")
        if learn_from not in ("cmd", "exec"):
            raise ValueError(f"learn_from is '{learn_from}', expected 'cmd' (before safety) or 'exec' (after it)")
        if store_human not in ("all", "last", "none"):
            raise ValueError(f"store_human is '{store_human}', expected 'all', 'last' or 'none'")
        self.io, self.capacity = io, capacity
        self._learn_from, self._dup_human, self._store_human = learn_from, dup_human, store_human
        obs = {**io.obs, "sight": ((sight,), "float32")} if sight else io.obs
        layout = RecordLayout(replace(io, obs=obs), dict.fromkeys(EXTRAS, ()), largest=0)
        self._ring = TransitionRing(HostArrays(), layout, capacity, slack=0, room=1024)
        assert self._ring.frames is not None
        self._frames = self._ring.frames
        self._last_frame: tuple[int, Obs] | None = None
        self._sight, self._keys = sight, tuple(obs if keys is None else keys)
        self.encoded, self.unseen = -1, False
        self.views = {name: MemoryView(self, seed + i) for i, name in enumerate(VIEWS)}

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def count(self) -> int:
        """Rows ever stored; they are numbered in order."""
        return self._ring.count

    @property
    def oldest(self) -> int:
        """Number of the oldest row that is still whole."""
        return self._ring.oldest

    def extend(self, steps: Iterable[ControlStep], *, demo: bool = False) -> int:
        """Store the valid ones among settled steps of one episode.

        Args:
            steps: in order.
            demo: they are demonstrations: the demo view alone sees them.

        Returns:
            How many were stored.
        """
        stored = 0
        for step in steps:
            if not step.valid:
                continue
            if step.source in _PERSON and not demo and not self._keep_human(step):
                continue
            views = ["demo"] if demo else ["online"]
            if step.human:
                views += ["human"] + (["demo"] if self._dup_human and not demo else [])
            self._store(step, views, demo)
            stored += 1
        return stored

    def promote(self, rows: Sequence[int]) -> None:
        """Let the demo view see these rows too, e.g. those of a success without help."""
        self.views["demo"].add([row for row in rows if row >= self.oldest])

    def demote(self, rows: Sequence[int]) -> None:
        """The demo view sees them no more: it was no success after all."""
        self.views["demo"].remove(rows)

    def is_joined(self, rows: np.ndarray) -> np.ndarray:
        """(B,) bool: the next of these rows (B,) begins with the very observation that this one ends with."""
        slots = self._ring.slots[rows % self.capacity]
        return np.append(slots[:-1, 1] == slots[1:, 0], np.zeros(min(len(rows), 1), bool))

    def forget(self, rows: Sequence[int]) -> None:
        """Nobody samples these rows any more: the episode was thrown away, or did not happen as it was recorded."""
        for view in self.views.values():
            view.remove(rows)

    def amend(self, row: int, step: ControlStep) -> bool:
        """A person changed the outcome of this row; False when it is no longer kept."""
        if not self.oldest <= row < self.count:
            return False
        self._write_outcome(row % self.capacity, step)
        return True

    def take(self, rows: np.ndarray) -> Transitions:
        """A batch of rows by number (B,).

        Raises:
            ValueError: a row was overwritten, or never stored.
        """
        if len(rows) and (rows.min() < self.oldest or rows.max() >= self.count):
            raise ValueError(f"rows {rows.min()} to {rows.max()} wanted, {self.oldest} to {self.count - 1} are kept")
        return self._ring.gather(rows % self.capacity, self._keys)

    def look(self, most: int) -> tuple[Obs, Any, int]:
        """Observations and actions of evenly spaced rows, and how many came in; see `data.seen.Looked`."""
        slot = (self.oldest + space_rows(len(self), most)) % self.capacity
        vectors = [key for key, (shape, _) in self.io.obs.items() if len(shape) == 1]
        batch = self._ring.gather(slot, vectors)
        pictures = [key for key in self.io.obs if key.startswith("image.")]
        few = self._ring.gather(slot[space_rows(len(slot), MOST_PICTURES)], pictures).obs if pictures else {}
        return {**batch.obs, **{key: few[key] for key in pictures}}, batch.action, self.count

    def state_dict(self) -> StateDict:
        """Generators of the views, and what an encoder saw; the rows are in the episode log, which is the buffer."""
        views = {name: view.state_dict() for name, view in self.views.items()}
        return {"count": self.count, "views": views, **({"frames": self._encoder_state()} if self._sight else {})}

    def _encoder_state(self) -> dict[str, object]:
        numbers = np.arange(self._frames.oldest, self._frames.count)
        return {"count": self._frames.count, "encoded": self.encoded, "sight": self.read("sight", numbers)}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue the sampling; the rows have to be back already."""
        for name, view in self.views.items():
            view.load_state_dict(state["views"][name])
        self.encoded = -1
        seen = state.get("frames")
        if seen is not None and int(seen["count"]) == self._frames.count:
            sight = np.asarray(seen["sight"], np.float32)
            self.write(self._frames.count - len(sight), sight)
            self.encoded, self.unseen = int(seen["encoded"]), bool(np.isnan(sight).any())

    # ------------------------------------------------------------ frames, for who trains an encoder

    def runs(self) -> list[FrameRun]:
        """Frames that followed one another, with whether success came at their end; see `types.frames.Frames`."""
        rows = np.arange(self.oldest, self.count)
        if not len(rows):
            return []
        batch, frames = self._ring.gather(rows % self.capacity, ()), self._frames
        learned = np.isin(rows, np.concatenate([view.rows() for view in self.views.values()]))
        won = (batch.terminated & (batch.extras["reward_task"] > 0.0)).numpy() & learned
        ends = np.flatnonzero(~self.is_joined(rows))
        begins = np.concatenate([[0], ends[:-1] + 1])
        newest = frames.count - 1
        number = newest - (newest - self._ring.slots[rows % self.capacity]) % frames.capacity
        return [FrameRun(int(number[a, 0]), int(number[b, 1]), bool(won[b])) for a, b in zip(begins, ends)]

    def read(self, key: str, numbers: np.ndarray) -> np.ndarray:
        """(n, ...) of the observation `key` at the frames (n,)."""
        return self._frames.store[key][numbers % self._frames.capacity]

    def write(self, first: int, sight: np.ndarray) -> None:
        """What an encoder saw in the frames from number `first` on, (n, W)."""
        self._frames.store["sight"][np.arange(first, first + len(sight)) % self._frames.capacity] = sight

    def _keep_human(self, step: ControlStep) -> bool:
        return self._store_human == "all" or (self._store_human == "last" and step.intv_end)

    def _store(self, step: ControlStep, views: list[str], demo: bool) -> None:
        ring, layout, frames = self._ring, self._ring.layout, self._frames
        here = self._frame(step.obs, step.sight, shared=True)
        there = self._frame(step.next_obs, step.next_sight, shared=False)
        number, slot = ring.count, ring.count % ring.capacity
        ring.slots[slot] = here % frames.capacity, there % frames.capacity
        ring.born[slot] = here
        ring.record[slot, layout.action] = step.action_cmd if self._learn_from == "cmd" else step.action_exec
        # the record ends with the extras, in their order; the outcome has the last one
        ring.record[slot, -len(EXTRAS) : -1] = (
            self._imitation(step, demo),
            step.grip_action,
            step.grip_penalty,
            step.reward_rlif,
        )
        ring.flags[slot, 3] = step.source in _PERSON
        self._write_outcome(slot, step)
        ring.count += 1
        ring.retire()
        for name in views:
            self.views[name].add([number])

    def _write_outcome(self, slot: int, step: ControlStep) -> None:
        """What a word of a person may change in a row."""
        record, layout = self._ring.record[slot], self._ring.layout
        record[layout.reward], record[layout.discount], record[-1] = step.reward, step.discount, step.reward_task
        self._ring.flags[slot, :2] = step.terminated, step.truncated

    def _imitation(self, step: ControlStep, demo: bool) -> float:
        if demo:
            return 1.0
        if not step.human or (step.intv_start and step.intv_end):
            return 0.0
        return HANDOVER_WEIGHT if step.intv_step < 2 else 1.0

    def _frame(self, obs: Obs, sight: np.ndarray | None, *, shared: bool) -> int:
        """Number of a frame; the newest one is used again only if it is the same observation, byte for byte."""
        if shared and self._last_frame is not None:
            number, last = self._last_frame
            if all(last[key] is value or np.array_equal(last[key], value) for key, value in obs.items()):
                return number
        if sight is None and self._sight:
            sight, self.unseen = np.full(self._sight, np.nan, np.float32), True
        number = self._frames.append({**obs, "sight": sight}, 1)
        self._last_frame = number, {key: obs[key] for key in self.io.obs}
        return number


class MemoryView:
    """Some rows of a memory as a `Sampler`: uniform with replacement.

    Args:
        memory: that holds the rows.
        seed: of the sampling.
    """

    def __init__(self, memory: HilMemory, seed: int) -> None:
        self._memory = memory
        self._rows = np.zeros(1024, np.int64)
        self._begin = self._end = 0
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.rows())

    def rows(self) -> np.ndarray:
        """Numbers of the rows that are still kept, ascending."""
        while self._begin < self._end and self._rows[self._begin] < self._memory.oldest:
            self._begin += 1
        return self._rows[self._begin : self._end]

    def add(self, rows: Sequence[int]) -> None:
        """See more rows; those that lie before the newest are sorted in, those that are seen already are left out."""
        for row in rows:
            self._reserve()
            seen = self.rows()  # moves `_begin`
            place = self._begin + int(np.searchsorted(seen, row))
            if place == self._end or self._rows[place] != row:
                self._rows[place + 1 : self._end + 1] = self._rows[place : self._end].copy()
                self._rows[place] = row
                self._end += 1

    def remove(self, rows: Sequence[int]) -> None:
        """See these rows no more."""
        seen = self.rows()
        kept = seen[~np.isin(seen, np.asarray(rows, np.int64))]
        self._rows[self._begin : self._begin + len(kept)] = kept
        self._end = self._begin + len(kept)

    def batches(self, size: int) -> Batches:
        """Endless batches of `size` rows."""
        return Batches(self.sample, size)

    def sample(self, size: int) -> Transitions:
        """One batch.

        Raises:
            ValueError: the view is empty.
        """
        rows = self.rows()
        if not len(rows):
            raise ValueError("this view of the memory is empty; record steps or demonstrations before sampling")
        return self._memory.take(rows[self._rng.integers(0, len(rows), size)])

    def state_dict(self) -> StateDict:
        """The generator's state."""
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue the generator."""
        self._rng.bit_generator.state = state["rng"]

    def _reserve(self) -> None:
        if self._end < len(self._rows):
            return
        alive = self._rows[self._begin : self._end].copy()
        self._rows = np.zeros(max(1024, 2 * len(alive)), np.int64)
        self._rows[: len(alive)] = alive
        self._begin, self._end = 0, len(alive)
