"""Frames of image (and token) observations, each stored once, found by number.

Frame numbers only grow; number f lies in slot f modulo the capacity. A transition names two numbers, its own frame and
its true successor's, so a batch never assumes that the successor is "the next row".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from robot_rl.data.arrays import Arrays, HostArrays, Store

PROBES = 24
"""Values compared to see whether an observation continues the stored successor."""


class FrameRing:
    """A ring of observations that share one numbering.

    Args:
        arrays: kind of memory.
        keys: observation key -> (shape, dtype name).
        capacity: frames kept.
    """

    def __init__(self, arrays: Arrays, keys: dict[str, tuple[tuple[int, ...], str]], capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.keys = keys
        self._arrays = arrays
        self.store: dict[str, Store] = {
            key: arrays.zeros((capacity, *shape), dtype) for key, (shape, dtype) in keys.items()
        }
        self._kind = np.ndarray if isinstance(arrays, HostArrays) else None  # needs no conversion
        self._probe = {key: slice(None, None, max(1, math.prod(s) // PROBES)) for key, (s, _) in keys.items()}

    @property
    def oldest(self) -> int:
        """Smallest number that is still there."""
        return max(0, self.count - self.capacity)

    def append(self, frames: Mapping[str, object], size: int) -> int:
        """Store `size` frames of every key and return the number of the first."""
        first, start = self.count, self.count % self.capacity
        if start + size <= self.capacity:
            where = slice(start, start + size)
        else:
            where = self._arrays.put(np.arange(start, start + size) % self.capacity, "int64")
        for key, (_, dtype) in self.keys.items():
            frame = frames[key]
            self.store[key][where] = frame if type(frame) is self._kind else self._arrays.put(frame, dtype)
        self.count += size
        return first

    def gather(self, slots: Store) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors of the frames at `slots` (..., 2): the first of every pair, and the second.

        Pairs mostly lie side by side, and fetching them together is a good deal faster than one after the other; the
        price is that the result is contiguous only within a frame.
        """
        here, there = {}, {}
        for key, store in self.store.items():
            pairs = self._arrays.tensor(self._arrays.take(store, slots))
            here[key], there[key] = pairs.unbind(slots.ndim - 1)
        return here, there

    def same(self, frames: Mapping[str, object], numbers: np.ndarray) -> np.ndarray:
        """(n,) bool: do `frames` look like the stored ones with these numbers (compared at `PROBES` places)?"""
        equal = np.ones(len(numbers), bool)
        slots = self._arrays.put(numbers % self.capacity, "int64")
        for key, (_, dtype) in self.keys.items():
            probe = self._probe[key]
            mine = self.store[key].reshape(self.capacity, -1)[:, probe][slots]
            theirs = self._arrays.put(frames[key], dtype).reshape(len(numbers), -1)[:, probe]
            equal &= self._arrays.host((mine == theirs).all(1))
        return equal

    def fingerprint(self, frames: dict[str, Any]) -> bytes:
        """The probed values of NumPy frames as bytes."""
        parts = [frames[key].reshape(-1)[probe].tobytes() for key, probe in self._probe.items()]
        return parts[0] if len(parts) == 1 else b"".join(parts)
