"""Frames of image (and token) observations, each stored once, found by number.

Frame numbers only grow; number f lies in slot f modulo the capacity. A transition names two numbers, its own frame and
its true successor's, so a batch never assumes that the successor is "the next row".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from torch import Tensor

from robot_rl.data.arrays import Arrays, Store
from robot_rl.data.columns import ColumnRing

PROBES = 24
"""Values compared to see whether an observation continues the stored successor."""


class FrameRing(ColumnRing):
    """A ring of observations that share one numbering.

    Args:
        arrays: kind of memory.
        keys: observation key -> (shape, dtype name).
        capacity: frames kept.
        room: frames that there is memory for at first, see `ColumnRing`.
    """

    def __init__(
        self, arrays: Arrays, keys: dict[str, tuple[tuple[int, ...], str]], capacity: int, room: int | None = None
    ) -> None:
        super().__init__(arrays, keys, capacity, room)
        self._probe = {key: slice(None, None, max(1, math.prod(s) // PROBES)) for key, (s, _) in keys.items()}

    @property
    def oldest(self) -> int:
        """Smallest number that is still there."""
        return max(0, self.count - self.capacity)

    def gather(self, slots: Store, keys: Collection[str] | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tensors of the frames at `slots` (..., 2): the first of every pair, and the second; of all keys or of some.

        Pairs mostly lie side by side, and fetching them together is a good deal faster than one after the other; the
        price is that the result is contiguous only within a frame.
        """
        here, there = {}, {}
        for key in self.store if keys is None else keys:
            pairs = self.arrays.tensor(self.arrays.take(self.store[key], slots))
            here[key], there[key] = pairs.unbind(slots.ndim - 1)
        return here, there

    def same(self, frames: Mapping[str, object], numbers: np.ndarray) -> np.ndarray:
        """(n,) bool: do `frames` look like the stored ones with these numbers (compared at `PROBES` places)?"""
        equal = np.ones(len(numbers), bool)
        slots = self.arrays.put(numbers % self.capacity, "int64")
        for key, (_, dtype) in self.kinds.items():
            probe = self._probe[key]
            mine = self.store[key].reshape(len(self.store[key]), -1)[:, probe][slots]
            theirs = self.arrays.put(frames[key], dtype).reshape(len(numbers), -1)[:, probe]
            equal &= self.arrays.host((mine == theirs).all(1))
        return equal

    def fingerprint(self, frames: dict[str, np.ndarray]) -> bytes:
        """The probed values of NumPy frames as bytes."""
        parts = [frames[key].reshape(-1)[probe].tobytes() for key, probe in self._probe.items()]
        return parts[0] if len(parts) == 1 else b"".join(parts)
