"""The random streams of `sim.draw` on tensors: the same numbers from the same seed, drawn on the device.

Tensors have no unsigned 64-bit integers, so the mixing runs on signed ones, whose products and sums wrap alike; shifts
to the right are masked. Drawing is masked, too: every row gets numbers, only the rows that reset move on in their
stream, and nothing has to be known on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsInt

import torch
from torch import Tensor

from robot_rl.sim import draw
from robot_rl.sim.arrays import constant
from robot_rl.types import StateDict


def _signed(value: SupportsInt) -> int:
    value = int(value)
    return value - 2**64 if value >= 2**63 else value


_GAMMA, _MIX1, _MIX2 = (_signed(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shift(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


class TorchStreams:
    """`sim.draw.Streams` with its state on a device; arguments as there.

    Args:
        num_envs: N.
        seed: one integer, or one per environment.
        purpose: streams of different purposes never share numbers.
        device: where the numbers are drawn.
    """

    def __init__(
        self, num_envs: int, seed: int | Sequence[int], purpose: int = 0, *, device: torch.device | str = "cpu"
    ) -> None:
        self._host = draw.Streams(num_envs, seed, purpose)
        self.key = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.counter = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.seed(seed)

    def seed(self, seed: int | Sequence[int]) -> None:
        """Start all streams anew.

        Raises:
            ValueError: the sequence has another length than `num_envs`.
        """
        self._host.seed(seed)
        self.key.copy_(torch.from_numpy(self._host.key.view("int64")))
        self.counter.zero_()

    def draw(self, mask: Tensor) -> MaskedDraw:
        """A `sim.world.Draw` of N rows for which only the rows of `mask` (N,) bool move on."""
        return MaskedDraw(self, mask)

    def bits(self, mask: Tensor, count: int) -> Tensor:
        """(N, count) int64, the next `count` numbers of each stream."""
        steps = torch.arange(1, count + 1, device=self.key.device)
        position = (self.counter[:, None] + steps) * _GAMMA + self.key[:, None]
        self.counter += count * mask
        return _mix(position)

    def state_dict(self) -> StateDict:
        """Copies of keys and counters, as `sim.draw.Streams` saves them."""
        return {
            "key": self.key.cpu().numpy().view("uint64").copy(),
            "counter": self.counter.cpu().numpy().view("uint64").copy(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue where the saved streams were."""
        self._host.load_state_dict(state)
        self.key.copy_(torch.from_numpy(self._host.key.view("int64")))
        self.counter.copy_(torch.from_numpy(self._host.counter.view("int64")))


class MaskedDraw:
    """Implements `sim.world.Draw` for all N rows of `TorchStreams`."""

    def __init__(self, streams: TorchStreams, mask: Tensor) -> None:
        self._streams, self._mask = streams, mask

    def uniform(self, *shape: int, low: object = 0.0, high: object = 1.0) -> Tensor:
        """(N, *shape) float32 uniform in [low, high); `low` and `high` may be arrays that broadcast."""
        bits = self._streams.bits(self._mask, math.prod(shape))
        unit = _shift(bits, 40).double().reshape(-1, *shape) * 2.0**-24
        low32, high32 = self._limit(low), self._limit(high)
        value = (low32 + unit * (high32.double() - low32)).float()
        return torch.minimum(value, torch.maximum(torch.nextafter(high32, low32), low32))

    def normal(self, *shape: int, std: object = 1.0) -> Tensor:
        """(N, *shape) float32 normal with mean 0 (Box-Muller); `std` may be an array that broadcasts."""
        bits = self._streams.bits(self._mask, math.prod(shape))
        radius = torch.sqrt(-2.0 * torch.log((_shift(bits, 32).double() + 1.0) * 2.0**-32))
        angle = (bits & 0xFFFFFFFF).double() * (2.0 * math.pi * 2.0**-32)
        if not isinstance(std, (int, float)):
            std = self._limit(std)
        return ((radius * torch.cos(angle)).reshape(-1, *shape) * std).float()

    def _limit(self, value: object) -> Tensor:
        """A bound as a float32 tensor, without a copy from the host after the first time."""
        if isinstance(value, Tensor):
            return value.float()
        return constant(value, self._streams.key, dtype=torch.float32)  # type: ignore[return-value]
