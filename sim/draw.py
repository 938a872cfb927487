"""Random numbers for batched environments: one independent counter-based stream per environment.

The k-th number of environment i depends on the seed, i and k alone: not on how many environments there are, nor on
when the others reset. All rows are drawn in one pass of array operations.

Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators (2014): the SplitMix64 mixing function,
here applied to `key + k * gamma` with a key that is itself a hash of seed, purpose and environment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np

from robot_rl.types import StateDict

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, in place on a fresh uint64 array of at least one dimension (so that it wraps)."""
    x ^= x >> np.uint64(30)
    x *= _MIX1
    x ^= x >> np.uint64(27)
    x *= _MIX2
    x ^= x >> np.uint64(31)
    return x


def seed_list(seed: Sequence[int], num_envs: int) -> list[int]:
    """The seeds of N environments, each of which decides its environment alone.

    Raises:
        ValueError: they are not N.
    """
    if len(seed) != num_envs:
        raise ValueError(f"seed has {len(seed)} entries, expected {num_envs}: one per environment, or one int")
    return [int(item) for item in seed]


class Streams:
    """The streams of N environments for one purpose (resets, observation noise, randomisation).

    Args:
        num_envs: N.
        seed: one integer for all (environment i gets stream i of it), or one per environment, each of which then
            decides its environment's stream alone.
        purpose: streams of different purposes never share numbers.
    """

    def __init__(self, num_envs: int, seed: int | Sequence[int], purpose: int = 0) -> None:
        self.num_envs, self._purpose = num_envs, purpose
        self.key: Any = np.zeros(num_envs, np.uint64)
        self.counter: Any = np.zeros(num_envs, np.uint64)
        self.seed(seed)

    def seed(self, seed: int | Sequence[int]) -> None:
        """Start all streams anew.

        Raises:
            ValueError: the sequence has another length than `num_envs`.
        """
        index = np.arange(self.num_envs, dtype=np.uint64)
        if isinstance(seed, (int, np.integer)):
            words = np.full(self.num_envs, int(seed) % 2**64, np.uint64)
        else:
            words = np.array([item % 2**64 for item in seed_list(seed, self.num_envs)], np.uint64)
            index = np.zeros_like(index)
        key = _mix(words + _GAMMA)
        key = _mix(key ^ (np.full_like(key, self._purpose + 1) * _GAMMA))
        self.key[:] = _mix(key + (index + np.uint64(1)) * _MIX1)
        self.counter[:] = 0

    def draw(self, rows: Any = slice(None)) -> RowDraw:
        """A `sim.world.Draw` for these environments (index array or slice)."""
        return RowDraw(self, rows)

    def bits(self, rows: Any, count: int) -> Any:
        """(n, count) uint64, the next `count` numbers of each of these streams."""
        first = self.counter[rows]
        position = first[:, None] + np.arange(1, count + 1, dtype=np.uint64)
        self.counter[rows] = first + np.uint64(count)
        position *= _GAMMA
        position += self.key[rows][:, None]
        return _mix(position)

    def top(self, bits: Any, count: int) -> Any:
        """The highest `count` bits of each number, as float64."""
        return (bits >> np.uint64(64 - count)).astype(np.float64)

    def limit(self, value: object) -> Any:
        """A bound of what is drawn, as float32."""
        return np.asarray(value, np.float32)

    def state_dict(self) -> StateDict:
        """Copies of keys and counters."""
        return {"key": self.key.copy(), "counter": self.counter.copy()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue where the saved streams were."""
        self.key[:] = np.asarray(state["key"], np.uint64)
        self.counter[:] = np.asarray(state["counter"], np.uint64)


class RowDraw:
    """Implements `sim.world.Draw` for some rows of `Streams`, in the arrays that these have."""

    def __init__(self, streams: Streams, rows: Any) -> None:
        self._streams, self._rows = streams, rows

    def uniform(self, *shape: int, low: object = 0.0, high: object = 1.0) -> Any:
        """(n, *shape) float32 uniform in [low, high); `low` and `high` may be arrays that broadcast."""
        streams = self._streams
        bits = streams.bits(self._rows, math.prod(shape))
        xp = array_api_compat.array_namespace(bits)
        unit = streams.top(bits, 24).reshape(-1, *shape) * 2.0**-24
        low32, high32 = streams.limit(low), streams.limit(high)
        value = xp.astype(low32 + unit * (xp.astype(high32, xp.float64) - low32), xp.float32)
        # float32 rounding may reach `high`; keep the interval half open unless it is a single point
        return xp.minimum(value, xp.maximum(xp.nextafter(high32, low32), low32))

    def normal(self, *shape: int, std: object = 1.0) -> Any:
        """(n, *shape) float32 normal with mean 0 (Box-Muller); `std` may be an array that broadcasts."""
        bits = self._streams.bits(self._rows, math.prod(shape))
        xp = array_api_compat.array_namespace(bits)
        radius = xp.sqrt(-2.0 * xp.log((self._streams.top(bits, 32) + 1.0) * 2.0**-32))
        angle = xp.astype(bits & 0xFFFFFFFF, xp.float64) * (2.0 * math.pi * 2.0**-32)
        wide = std if isinstance(std, (int, float)) else self._streams.limit(std)
        return xp.astype((radius * xp.cos(angle)).reshape(-1, *shape) * wide, xp.float32)
