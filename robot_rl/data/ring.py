"""Storage of transitions in time order, with explicit links between the rows of an episode.

`onward` holds for every slot the signed distance to the slot that continues the episode, 0 where none does. A link
always points from an older to a newer row, and the oldest rows are overwritten first, so whoever follows links never
meets a foreign row.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from robot_rl.data.arrays import Arrays, Store
from robot_rl.data.chains import all_true
from robot_rl.data.columns import ColumnRing
from robot_rl.data.frames import FrameRing
from robot_rl.data.layout import RecordLayout
from robot_rl.types import Episode, StateDict, Transitions


class TransitionRing(ColumnRing):
    """The rows of a replay buffer.

    Frames have room for 1/16 more than rows (every chain costs one frame more than it has rows); rows whose frames were
    overwritten are forgotten with them.

    Args:
        arrays: kind of memory.
        layout: of the records.
        capacity: rows kept.
        slack: a row refers to no frame older than this many before those that were there when it arrived.
        room: frames that there is memory for at first, see `ColumnRing`.
    """

    def __init__(
        self, arrays: Arrays, layout: RecordLayout, capacity: int, slack: int, room: int | None = None
    ) -> None:
        columns: dict[str, tuple[tuple[int, ...], str]] = {"record": ((layout.width,), "float32")}
        if layout.frames:
            columns["slots"] = ((2,), "int64")
        super().__init__(arrays, columns, capacity)
        self.layout, self.slack, self.oldest = layout, slack, 0
        self.record = self.store["record"]
        self.flags = layout.read_flags(arrays, self.record)
        self.onward = arrays.zeros((capacity,), "int32")
        self.frames: FrameRing | None = None
        if layout.frames:
            self.frames = FrameRing(arrays, layout.frames, self.frame_room(capacity), room)
            self.slots = self.store["slots"]
            """Frame slots of the row's own observation and of its successor's."""
            self.born = np.zeros(capacity, np.int64)
            """Frame count when the row arrived; never falls from one row to the next."""

    def __len__(self) -> int:
        return self.count - self.oldest

    def frame_room(self, capacity: int) -> int:
        """Frames kept beside `capacity` rows."""
        return capacity + capacity // 16 + 2 * self.slack + 2

    def extends(self, capacity: int, rows: int, frames: int) -> bool:
        """Whether a ring of `capacity` rows, never full so far, may go on in this one, which would not be full either.

        Rows and frames then lie where they would lie here. So a run may be resumed for more steps than it was begun
        with, or for fewer.

        Args:
            capacity: of the other ring.
            rows: that it has taken so far.
            frames: likewise.
        """
        least = min(capacity, self.capacity)
        return rows <= least and frames <= self.frame_room(least)

    def add_rows(self, rows: Store, previous: np.ndarray, frames: tuple[np.ndarray, np.ndarray, Any] | None) -> None:
        """Write records behind the newest row.

        Args:
            rows: (n, width) records, n at most the capacity.
            previous: (n,) number of the row that each continues, -1 for none.
            frames: (n,) own frame numbers, (n,) successors' numbers, frame counts on arrival; None without frames.
        """
        number = np.arange(self.count, self.count + len(rows))
        values = {"record": rows}
        if self.frames is not None and frames is not None:
            own, after, self.born[number % self.capacity] = frames
            values["slots"] = np.stack((own, after), 1) % self.frames.capacity
        self.onward[self.next_slots(len(rows))] = 0
        self.append(values, len(rows))
        # A continued row may be overwritten in this very call, when rows come in from many environments at once.
        linked = np.flatnonzero(previous >= max(0, self.count - self.capacity))
        if len(linked):
            self._link(previous[linked], number[linked])
        self.retire()

    def distances(self) -> np.ndarray:
        """(n,) int64: how many rows behind each living one that lies which continues its episode, 0 for none."""
        slots = self.arrays.put(np.arange(self.oldest, self.count) % self.capacity, "int64")
        return self.arrays.host(self.arrays.take(self.onward, slots)).astype(np.int64) % self.capacity

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

    def draw(self, size: int, generator: Generator) -> Store:
        """(size,) slots, uniform over the living rows, with replacement."""
        length = len(self)
        index = self.arrays.draw(size, length, generator)
        if length < self.capacity and self.oldest:
            index = (index + self.oldest) % self.capacity
        return index

    def gather(self, slots: Store, keys: Collection[str] | None = None) -> Transitions:
        """The rows in `slots` (B,) as they are; of observations that are frames those named by `keys`, or all."""
        rows = self.arrays.take(self.record, slots)
        reward, discount = rows[..., self.layout.reward], rows[..., self.layout.discount]
        mask = all_true(len(rows), self.arrays.device)
        return self.layout.unpack(
            self.arrays, rows, rows, reward, discount, mask, self.gather_frames(slots, slots, keys)
        )

    def gather_frames(
        self, first: Store, last: Store, keys: Collection[str] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Observations of the rows in the slots `first` (...) and successors of those in `last`, so far as frames."""
        if self.frames is None:
            return {}, {}
        slots = self.arrays.take(self.slots, first)
        if last is not first:
            slots[..., 1] = self.arrays.take(self.slots, last)[..., 1]
        return self.frames.gather(slots, keys)

    def episodes(self, rows: int | None = None) -> list[Episode]:
        """What it holds as episodes, in the order in which they began; rows that are no transitions are left out.

        Args:
            rows: only this many of the oldest rows; None: all.

        Returns:
            Copies. An episode that runs on behind the rows taken is cut (neither terminated nor truncated), one whose
            beginning was overwritten begins later; stamps count steps; `meta["columns"]` holds the extras.
        """
        arrays = self.arrays
        stop = self.count if rows is None else min(self.count, self.oldest + rows)
        numbers = np.arange(self.oldest, stop)
        distance = self.distances()[: len(numbers)]
        follower = np.where(distance != 0, numbers + distance, stop)  # of a row, by number
        kept = ~arrays.host(self.flags[arrays.put(numbers % self.capacity, "int64"), 2])
        chains: list[list[int]] = []
        chain_of: dict[int, int] = {}  # number of the row that continues a chain -> chain
        for number, after in zip(numbers[kept].tolist(), follower[kept].tolist()):
            which = chain_of.pop(number, None)
            if which is None:
                which = len(chains)
                chains.append([])
            chains[which].append(number)
            if after < stop:
                chain_of[after] = which
        return [self._episode(arrays.put(np.array(chain) % self.capacity, "int64")) for chain in chains]

    def _episode(self, slots: Store) -> Episode:
        """The rows in `slots` (T,), each the successor of the one before."""
        got = self.gather(slots)
        obs = {
            key: np.concatenate([value.cpu().numpy(), got.next_obs[key][-1:].cpu().numpy()])
            for key, value in got.obs.items()
        }
        columns = {name: value.cpu().numpy().copy() for name, value in got.extras.items()}
        action = got.action.cpu().numpy().copy()
        terminated, truncated = bool(got.terminated[-1]), bool(got.truncated[-1])
        return Episode(
            obs=obs,
            action=action,
            proposed=columns.get("proposed", action),
            reward=got.reward.cpu().numpy().copy(),
            terminated=terminated,
            truncated=truncated and not terminated,
            intervened=got.intervened.cpu().numpy().copy(),
            stamp=np.arange(len(action) + 1, dtype=np.float64),
            meta={"columns": columns} if columns else {},
        )

    def state_dict(self) -> StateDict:
        """Views of rows and frames, and the links between them."""
        state = {**super().state_dict(), "oldest": self.oldest, "distance": torch.from_numpy(self.distances())}
        if self.frames is not None:
            state["born"] = torch.from_numpy(self.born[: min(self.count, self.capacity)])
            state["frames"] = self.frames.state_dict()
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Take over rows, frames and links; of more rows than there is room for, the newest."""
        super().load_state_dict(state)
        if self.frames is not None:
            self.born[: len(state["born"])] = state["born"].cpu().numpy()
            self.frames.load_state_dict(state["frames"])
        self.restore_links(int(state["oldest"]), state["distance"].cpu().numpy())

    def restore_links(self, oldest: int, distances: np.ndarray) -> None:
        """Inverse of `distances` (n,), of a ring whose oldest living row had the number `oldest`."""
        self.oldest = max(oldest, self.count - self.capacity)
        number, distance = np.arange(self.oldest, self.count), distances[self.oldest - oldest :]
        self.onward[:] = 0
        self._link(number[distance > 0], (number + distance)[distance > 0])

    def _link(self, before: np.ndarray, after: np.ndarray) -> None:
        """The rows `after` (n,) continue the rows `before` (n,), by number."""
        slots = before % self.capacity
        distance = (after % self.capacity - slots).astype(np.int32)
        self.onward[self.arrays.put(slots, "int64")] = self.arrays.put(distance, "int32")
