"""How a policy that learnt tasks one after another does on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Continual:
    """Numbers of a sequence of tasks.

    Attributes:
        average: mean return over all tasks after the last one.
        forgetting: mean over the earlier tasks of the return right after learning it minus that at the end.
        forward: mean over the later tasks of the return just before learning it minus that of the untrained policy; NaN
            where that was not measured.
    """

    average: float
    forgetting: float
    forward: float


def continual(returns: Sequence[Sequence[float]], untrained: Sequence[float] | None = None) -> Continual:
    """Summarise returns[i][j]: of task j after learning task i.

    Args:
        returns: (n, n).
        untrained: (n,) returns before any learning, for the forward transfer.

    Raises:
        ValueError: the table is not square, or has another number of tasks than `untrained`.

    Source: Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning, section 2 (there backward transfer
    is the negative of the forgetting).
    """
    table = np.asarray(returns, np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not len(table):
        raise ValueError(f"returns have shape {table.shape}, expected (n, n): task j after learning task i")
    if untrained is not None and len(untrained) != len(table):
        raise ValueError(f"untrained has {len(untrained)} returns of {len(table)} tasks")
    lost = np.diag(table)[:-1] - table[-1, :-1]
    forward = float("nan")
    if untrained is not None and len(table) > 1:
        forward = float(np.mean(np.diag(table, 1) - np.asarray(untrained)[1:]))
    return Continual(float(table[-1].mean()), float(lost.mean()) if len(lost) else 0.0, forward)
