"""What a learner that trains an encoder reads of the pictures that are kept, and what it writes beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Run:
    """Frames that were seen one after another, without a gap.

    Attributes:
        first: number of the first.
        last: number of the last, included.
        success: the episode ended in success with the last one.
    """

    first: int
    last: int
    success: bool


class Frames(Protocol):
    """Observations of a replay memory, each kept once, numbered in the order in which they were seen.

    Attributes:
        encoded: which fit of an encoder made what lies beside the frames; -1 for none.
        unseen: frames came without what an encoder saw (an old log, a label after the end); NaN lies beside them.
    """

    encoded: int
    unseen: bool

    def runs(self) -> list[Run]:
        """All frames that are kept, in order; of those that nobody may learn from no run is a success."""
        ...

    def read(self, key: str, numbers: np.ndarray) -> np.ndarray:
        """(n, ...) of the observation `key` at these frames (n,)."""
        ...

    def write(self, first: int, sight: np.ndarray) -> None:
        """What an encoder made of the frames from number `first` on, (n, W) float32."""
        ...
