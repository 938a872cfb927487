"""NumPy backend: the plain loop over time, for where numba is not installed. Imports no torch."""

from __future__ import annotations

import numpy as np

BLOCK = 4096  # rows that are Python numbers at a time


def scan(x: np.ndarray, a: np.ndarray, *, overwrite: bool = False) -> np.ndarray:
    """Reverse linear scan y_t = x_t + a_t y_{t+1} along axis 0, carried in double.

    A coefficient of exactly 0 cuts: what lies behind it cannot reach earlier rows, not even as NaN.

    Args:
        x: (N,) or (T, B) float32 or float64.
        a: same shape and dtype; the last row is ignored.
        overwrite: `x` is the caller's scratch, to be used up.

    Returns:
        y, of the shape and dtype of `x`.
    """
    y = x if overwrite else np.empty_like(x)
    if x.ndim == 1:
        total = 0.0
        for end in range(len(x), 0, -BLOCK):
            rows = slice(max(end - BLOCK, 0), end)
            values, factors = x[rows].tolist(), a[rows].tolist()
            for t in range(len(values) - 1, -1, -1):
                total = values[t] + factors[t] * total if factors[t] and total else values[t]
                values[t] = total
            y[rows] = values
        return y
    carry = np.zeros(x.shape[1:])
    with np.errstate(invalid="ignore", over="ignore"):
        for t in range(len(x) - 1, -1, -1):
            ahead = a[t] * carry if t < len(x) - 1 else carry
            carry = x[t] + np.where(a[t] == 0, 0.0, ahead)
            y[t] = carry
    return y
