"""Named columns of one length as a ring, in either kind of memory: what every replay keeps its rows and frames in.

Row numbers only grow; row r lies in slot r modulo the capacity.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robot_rl.data.arrays import Arrays, HostArrays, Store
from robot_rl.types import Array, StateDict


class ColumnRing:
    """The last `capacity` rows of named columns.

    Args:
        arrays: kind of memory.
        kinds: name -> (shape of a row, dtype).
        capacity: rows kept.
        room: rows that there is memory for at first; it doubles when it is full, up to the capacity. None: all at once.

    Attributes:
        count: rows ever stored.
        store: name -> (room, ...) the memory itself.
    """

    def __init__(
        self, arrays: Arrays, kinds: Mapping[str, tuple[tuple[int, ...], str]], capacity: int, room: int | None = None
    ) -> None:
        self.arrays, self.kinds, self.capacity, self.count = arrays, kinds, capacity, 0
        self._room = capacity if room is None else min(room, capacity)
        self.store: dict[str, Store] = {
            name: arrays.zeros((self._room, *shape), dtype) for name, (shape, dtype) in kinds.items()
        }
        self._kind = np.ndarray if isinstance(arrays, HostArrays) else None  # needs no conversion

    def append(self, values: Mapping[str, object], size: int) -> int:
        """Store `size` rows, at most the capacity, of every column and return the number of the first."""
        first, where = self.count, self.next_slots(size)
        for name, (_, dtype) in self.kinds.items():
            value = values[name]
            self.store[name][where] = value if type(value) is self._kind else self.arrays.put(value, dtype)
        self.count += size
        return first

    def next_slots(self, size: int) -> slice | Array:
        """Where the next `size` rows go: a slice, or (size,) slots where they reach over the seam."""
        start = self.count % self.capacity
        stop = start + size
        if stop > self._room and self._room < self.capacity:
            self._grow(min(stop, self.capacity))
        if stop <= self.capacity:
            return slice(start, stop)
        return self.arrays.put(np.arange(start, stop) % self.capacity, "int64")

    def state_dict(self) -> StateDict:
        """The count, and views of what is filled."""
        filled = min(self.count, self.capacity)
        return {"count": self.count, **{name: self.arrays.tensor(x[:filled]) for name, x in self.store.items()}}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over the newest rows that there is room for, each with its number; in place."""
        self.count = int(state["count"])
        for name, store in self.store.items():
            saved = state[name].cpu().numpy()
            number = np.arange(self.count - min(len(saved), self.capacity), self.count)
            if len(number):
                self.arrays.load(store, number % self.capacity, saved[number % len(saved)])

    def _grow(self, least: int) -> None:
        self._room = min(max(least, 2 * self._room), self.capacity)
        for name, (shape, dtype) in self.kinds.items():
            larger = self.arrays.zeros((self._room, *shape), dtype)
            larger[: len(self.store[name])] = self.store[name]
            self.store[name] = larger
