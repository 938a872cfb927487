"""How well estimates of several policies order them, against true returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def regret_at_k(estimate: Sequence[float], truth: Sequence[float], k: int = 1) -> float:
    """Best true value minus the best true value among the k policies that were estimated highest."""
    top = np.argsort(-np.asarray(estimate), kind="stable")[:k]
    values = np.asarray(truth, np.float64)
    return float(values.max() - values[top].max())


def recall_at_k(estimate: Sequence[float], truth: Sequence[float], k: int = 1) -> float:
    """Share of the k truly best policies among the k that were estimated highest."""
    ours = set(np.argsort(-np.asarray(estimate), kind="stable")[:k].tolist())
    best = set(np.argsort(-np.asarray(truth), kind="stable")[:k].tolist())
    return len(ours & best) / k


def mean_absolute_error(estimate: Sequence[float], truth: Sequence[float]) -> float:
    """Mean absolute error divided by the range of the true values (plain where they are all equal)."""
    x, y = np.asarray(estimate, np.float64), np.asarray(truth, np.float64)
    span = float(y.max() - y.min())
    return float(np.abs(x - y).mean() / (span or 1.0))
