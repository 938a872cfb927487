"""How well estimates of several policies order them, against true returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 1, ties averaged."""
    x = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def rank_correlation(estimate: Sequence[float], truth: Sequence[float]) -> float:
    """Spearman's correlation with averaged ties; NaN where either does not vary.

    Raises:
        ValueError: lengths differ, or fewer than two policies.
    """
    if len(estimate) != len(truth) or len(truth) < 2:
        raise ValueError(f"got {len(estimate)} estimates of {len(truth)} policies, expected equal numbers, at least 2")
    a, b = ranks(estimate), ranks(truth)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / scale) if scale else float("nan")


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
