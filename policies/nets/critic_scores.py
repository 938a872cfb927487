"""What a progress critic is judged by: order on successes, rank on failures, goals told apart, "done" that is right.

Rank correlations use average ranks of tied values. The published VOC ranks the indices of the sorted values instead,
which differs where values tie; `voc(..., ties="argsort")` gives it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robot_rl.stats import rank_correlation


def voc(values: np.ndarray, *, ties: str = "ranks") -> float:
    """Value-order correlation of one clip: Spearman of its values with time.

    Args:
        values: (n,) in the order of the frames.
        ties: "ranks" (average ranks) or "argsort" (as printed with VLAC: correlation of argsort(values) with time).

    Returns:
        In [-1, 1]; NaN for constant values, which a report counts and takes as 0.

    Raises:
        ValueError: fewer than two values.
    """
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        raise ValueError(f"{len(values)} values, expected at least 2")
    order = np.arange(len(values))
    return rank_correlation(np.argsort(values, kind="stable") if ties == "argsort" else values, order)


def voc_f1(forward: float, reverse: float) -> float:
    """Harmonic mean of VOC and VROC (the same on the reversed clip, against its order); 0 if either is <= 0."""
    if not (forward > 0 and reverse > 0):
        return 0.0
    return 2.0 * forward * reverse / (forward + reverse)


def kendall(x: np.ndarray, y: np.ndarray, *, kind: str = "a") -> float:
    """Kendall's tau: "a" divides by all pairs, so that ties count 0; "b" corrects for ties."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    upper = np.triu_indices(len(x), 1)
    dx, dy = np.sign(x[:, None] - x)[upper], np.sign(y[:, None] - y)[upper]
    total = float(np.sum(dx * dy))
    if kind == "a":
        return total / len(dx)
    scale = np.sqrt(float(np.sum(dx != 0)) * float(np.sum(dy != 0)))
    return total / scale if scale > 0 else float("nan")


def auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """P(a positive scores higher than a negative), ties counted half."""
    difference = np.asarray(positive, np.float64)[:, None] - np.asarray(negative, np.float64)[None, :]
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


@dataclass(frozen=True)
class Platt:
    """P = sigmoid(slope * logit + bias): the repair of a head that ranks well but never passes one half."""

    slope: float = 1.0
    bias: float = 0.0

    def __call__(self, logit: np.ndarray) -> np.ndarray:
        """(...) logits -> (...) probabilities."""
        return 1.0 / (1.0 + np.exp(-np.clip(self.slope * np.asarray(logit, np.float64) + self.bias, -60, 60)))


def fit_platt(logit: np.ndarray, label: np.ndarray, *, steps: int = 100) -> Platt:
    """Slope in [.05, 20] and bias by Newton's method on the log-likelihood with Platt's smoothed targets.

    Source: Platt, Probabilistic Outputs for Support Vector Machines, 1999: targets (n+ + 1) / (n+ + 2) and
    1 / (n- + 2), which keep the fit finite where the classes are separable.

    Raises:
        ValueError: only one class.
    """
    x, y = np.asarray(logit, np.float64), np.asarray(label, bool)
    positive = int(y.sum())
    if positive in (0, len(y)):
        raise ValueError(f"{positive} of {len(y)} labels are positive; calibration needs both classes")
    target = np.where(y, (positive + 1) / (positive + 2), 1 / (len(y) - positive + 2))
    scale = float(np.std(x)) or 1.0
    design = np.stack([x / scale, np.ones_like(x)], axis=1)
    weights = np.array([1.0, 0.0])

    def loss(w: np.ndarray) -> float:
        z = design @ w
        return float(np.mean(np.logaddexp(0.0, z) - target * z))

    for _ in range(steps):
        p = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -60, 60)))
        gradient = design.T @ (p - target) / len(x)
        curvature = (design * (p * (1 - p))[:, None]).T @ design / len(x) + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        size, before = 1.0, loss(weights)
        while size > 1e-6 and loss(weights - size * step) > before:
            size *= 0.5
        weights = weights - size * step
        if float(np.abs(size * step).max()) < 1e-9:
            break
    return Platt(float(np.clip(weights[0] / scale, 0.05, 20.0)), float(weights[1]))


def calibration_error(probability: np.ndarray, label: np.ndarray, *, bins: int = 10) -> float:
    """Expected calibration error: mean over bins of |mean probability - share of positives|, weighted by count."""
    p, y = np.asarray(probability, np.float64), np.asarray(label, np.float64)
    index = np.minimum((p * bins).astype(int), bins - 1)
    total = 0.0
    for k in range(bins):
        here = index == k
        if here.any():
            total += float(here.sum()) * abs(float(p[here].mean()) - float(y[here].mean()))
    return total / max(len(p), 1)


def precision_recall(probability: np.ndarray, label: np.ndarray, *, threshold: float = 0.5) -> tuple[float, float]:
    """Precision and recall of "done"; NaN where nothing is called or nothing is true."""
    called, y = np.asarray(probability) > threshold, np.asarray(label, bool)
    hit = float((called & y).sum())
    nan = float("nan")
    return (hit / called.sum() if called.any() else nan), (hit / y.sum() if y.any() else nan)
