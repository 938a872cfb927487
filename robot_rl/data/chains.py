"""What every store of steps asks when it draws samples: sums along an episode, masks, and sizes in their range."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.arrays import Store


def sum_ahead(
    total: Store, row: Store, powers: Store, onward: Callable[[Store], Store], reward: Callable[[Store], Store]
) -> tuple[Store, Store, Store]:
    """n-step returns, which end where no row follows.

    Args:
        total: (...) rewards of the first rows.
        row: (...) numbers of these.
        powers: (n,) of the discount per step, from 1.
        onward: rows -> distance to the row that continues the episode, 0 where none does.
        reward: rows -> their rewards.

    Returns:
        (...) sums, rows summed up beyond the first, and the number of the last.
    """
    steps = 0 * row
    for i in range(1, len(powers)):
        distance = onward(row)
        row = row + distance
        moved = distance != 0
        total = total + reward(row) * moved * powers[i]
        steps = steps + moved
    return total, steps, row


def draw_between(low: np.ndarray, high: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """Uniform integers in [low, high]; `high` where the range is empty.

    Args:
        low: (B,).
        high: (B,).
        draw: (B,) in [0, 1).
    """
    return np.minimum(low + (draw * np.maximum(high - low + 1, 1)).astype(np.int64), high)


@lru_cache(maxsize=256)
def all_true(size: int, device: torch.device) -> Tensor:
    """(size,) True, read-only: one byte of memory whatever its size."""
    return torch.ones(1, dtype=torch.bool, device=device).expand(size)


def check_sizes(gamma: float, **sizes: int) -> None:
    """Refuse what nothing can be drawn with.

    Raises:
        ValueError: a size below 1, or a discount outside [0, 1].
    """
    for name, number in sizes.items():
        if number < 1:
            raise ValueError(f"{name} is {number}, expected at least 1")
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma is {gamma}, expected a number in [0, 1]")
