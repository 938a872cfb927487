"""Storage of transitions in time order, with explicit links between the rows of an episode.

Row numbers only grow; row r lies in slot r modulo the capacity. `onward` holds for every slot the signed distance to
the slot that continues the episode, 0 where none does. A link always points from an older to a newer row, and the
oldest rows are overwritten first, so whoever follows links never meets a foreign row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from robot_rl.data.arrays import Arrays, Store
from robot_rl.data.frames import FrameRing
from robot_rl.data.layout import RecordLayout


class TransitionRing:
    """The rows of a replay buffer.

    Frames have room for 1/16 more than rows (every chain costs one frame more than it has rows); rows whose frames were
    overwritten are forgotten with them.

    Args:
        arrays: kind of memory.
        layout: of the records.
        capacity: rows kept.
        num_envs: most rows that arrive at once outside whole episodes.
    """

    def frame_room(self, capacity: int) -> int:
        """Frames kept beside `capacity` rows."""
        return capacity + capacity // 16 + 2 * self.slack + 2

    def extends(self, capacity: int, rows: int, frames: int) -> bool:
        """Whether this ring is one of `capacity` rows that has been given more room before it was ever full.

        Rows and frames then lie where they would lie here. So a run may be resumed for more steps than it was begun
        with.

        Args:
            capacity: of the other ring.
            rows: that it has taken so far.
            frames: likewise.
        """
        return capacity <= self.capacity and rows <= capacity and frames <= self.frame_room(capacity)

    def __init__(self, arrays: Arrays, layout: RecordLayout, capacity: int, num_envs: int) -> None:
        self.arrays, self.layout, self.capacity = arrays, layout, capacity
        self.record = arrays.zeros((capacity, layout.width), "float32")
        self.onward = arrays.zeros((capacity,), "int32")
        self.count = 0
        self.oldest = 0
        self.slack = 2 * num_envs
        """A row refers to no frame older than this many before those that arrived with it."""
        self.frames: FrameRing | None = None
        if layout.frames:
            self.frames = FrameRing(arrays, layout.frames, self.frame_room(capacity))
            self.slots = arrays.zeros((capacity, 2), "int64")
            """Frame slots of the row's own observation and of its successor's."""
            self.born = np.zeros(capacity, np.int64)
            """Frame count when the row arrived; never falls from one row to the next."""

    def __len__(self) -> int:
        return self.count - self.oldest

    def append(self, rows: Store, previous: np.ndarray, frames: tuple[np.ndarray, np.ndarray, Any] | None) -> None:
        """Write records behind the newest row.

        Args:
            rows: (n, width) records, n at most the capacity.
            previous: (n,) number of the row that each continues, -1 for none.
            frames: (n,) own frame numbers, (n,) successors' numbers, frame counts on arrival; None without frames.
        """
        number = np.arange(self.count, self.count + len(rows))
        slots = self.arrays.put(number % self.capacity, "int64")
        self.record[slots] = rows
        self.onward[slots] = 0
        self.count += len(rows)
        # A continued row may be overwritten in this very call, when rows come in from many environments at once.
        linked = np.flatnonzero(previous >= max(0, self.count - self.capacity))
        if len(linked):
            before = previous[linked] % self.capacity
            distance = (number[linked] % self.capacity - before).astype(np.int32)
            self.onward[self.arrays.put(before, "int64")] = self.arrays.put(distance, "int32")
        if self.frames is not None and frames is not None:
            own, after, born = frames
            self.slots[slots] = self.arrays.put(np.stack((own, after), 1) % self.frames.capacity, "int64")
            self.born[number % self.capacity] = born
        self.retire()

    def retire(self) -> None:
        """Forget the rows that were overwritten, or whose frames were."""
        oldest, frames = self.count - self.capacity, self.frames
        if oldest > self.oldest:
            self.oldest = oldest
        if frames is not None and frames.count > frames.capacity:
            limit = frames.count - frames.capacity + self.slack
            while self.oldest < self.count and self.born[self.oldest % self.capacity] < limit:
                self.oldest += 1

    def continues(self, rows: Store, previous: np.ndarray) -> np.ndarray:
        """(n,) bool: does the vector observation of each record equal the stored successor of row `previous`?

        Catches gaps that nobody announced, such as a step that was never added. Rows that are gone count as different.
        """
        alive = previous >= self.oldest
        alive &= previous >= 0
        if not alive.any() or not self.layout.states:
            return alive
        before = self.record[self.arrays.put(np.maximum(previous, 0) % self.capacity, "int64")]
        for state in self.layout.states:
            alive &= self.arrays.host((rows[:, state.here] == before[:, state.successor]).all(1))
        return alive

    def draw(self, size: int, generator: Any) -> Store:
        """(size,) slots, uniform over the living rows, with replacement."""
        length = len(self)
        index = self.arrays.draw(size, length, generator)
        if length < self.capacity and self.oldest:
            index = (index + self.oldest) % self.capacity
        return index
