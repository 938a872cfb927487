"""Online transitions in the reward units of a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from robot_rl.types import Sampler, StateDict, Transitions


class Rescaled:
    """A sampler whose rewards are scale * r + bias.

    Args:
        source: of the batches, single steps or windows of them: a bias does not pass through sums over several.
        scale: factor.
        bias: added afterwards.
    """

    def __init__(self, source: Sampler, *, scale: float = 1.0, bias: float = 0.0) -> None:
        self.source, self.scale, self.bias = source, scale, bias

    def __len__(self) -> int:
        return len(self.source)

    def batches(self, size: int) -> Iterator[Transitions]:
        """Endless batches of `size` rows."""
        for batch in self.source.batches(size):
            bias = self.bias * batch.mask if batch.reward.dim() > 1 else self.bias  # a window's missing steps stay 0
            yield replace(batch, reward=batch.reward * self.scale + bias)

    def state_dict(self) -> StateDict:
        """That of the source."""
        return self.source.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Inverse of `state_dict`."""
        self.source.load_state_dict(state)
