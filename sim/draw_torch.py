"""The random streams of `sim.draw` on tensors: the same numbers from the same seed, drawn on the device.

Tensors have no unsigned 64-bit integers, so the mixing runs on signed ones, whose products and sums wrap alike; shifts
to the right are masked. Drawing is masked, too: every row gets numbers, only the rows that reset move on in their
stream, and nothing has to be known on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsInt

import torch
from torch import Tensor

from robot_rl.sim import draw
from robot_rl.sim.arrays import constant
from robot_rl.types import StateDict


def _sign(value: SupportsInt) -> int:
    value = int(value)
    return value - 2**64 if value >= 2**63 else value


_GAMMA, _MIX1, _MIX2 = (_sign(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shift(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)


class TorchStreams(draw.Streams):
    """`sim.draw.Streams` with its state on a device, drawn for a mask of rows: only those of it (N,) bool move on.

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
        self.key, self.counter = (torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in range(2))
        self._copy()

    def seed(self, seed: int | Sequence[int]) -> None:
        """Start all streams anew."""
        self._host.seed(seed)
        self._copy()

    def _copy(self) -> None:
        for mine, theirs in ((self.key, self._host.key), (self.counter, self._host.counter)):
            mine.copy_(torch.from_numpy(theirs.view("int64")))

    def bits(self, rows: Tensor, count: int) -> Tensor:
        """(N, count) int64, the next `count` numbers of each stream."""
        steps = torch.arange(1, count + 1, device=self.key.device)
        x = (self.counter[:, None] + steps) * _GAMMA + self.key[:, None]
        self.counter += count * rows
        x = (x ^ _shift(x, 30)) * _MIX1
        x = (x ^ _shift(x, 27)) * _MIX2
        return x ^ _shift(x, 31)

    def top(self, bits: Tensor, count: int) -> Tensor:
        """The highest `count` bits of each number, as float64."""
        return _shift(bits, 64 - count).double()

    def limit(self, value: object) -> Tensor:
        """A bound as a float32 tensor, without a copy from the host after the first time."""
        if isinstance(value, Tensor):
            return value.float()
        return constant(value, self.key, dtype=torch.float32)  # type: ignore[return-value]

    def state_dict(self) -> StateDict:
        """Copies of keys and counters, as `sim.draw.Streams` saves them."""
        parts = {"key": self.key, "counter": self.counter}
        return {name: value.cpu().numpy().view("uint64").copy() for name, value in parts.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue where the saved streams were."""
        self._host.load_state_dict(state)
        self._copy()
