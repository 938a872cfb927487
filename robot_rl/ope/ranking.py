"""How well estimates of several policies order them, against true returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def regret_at_k(estimate: Sequence[float], truth: Sequence[float], k: int = 1) -> float:
    """Best true value minus the best true value among the k policies that were estimated highest."""
    top = np.argsort(-np.asarray(estimate), kind="stable")[:k]
    values = np.asarray(truth, np.float64)
    return float(values.max() - values[top].max())
