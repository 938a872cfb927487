"""Compiled backend of `fused_policy_loss`: loss and gradients of one minibatch in one pass over its rows.

Every constant comes in `numbers`, in the dtype of the data: a Python number would widen each operation of float32 rows
to double. Loss and counts add up in double, once a row.
"""

from __future__ import annotations

import math

import numpy as np

from robot_rl.advantage.backends.compiled import njit

_REASSOCIATE = {"reassoc", "contract", "nsz"}  # sums may be reordered for vector units; NaN keeps its meaning


@njit(error_model="numpy")
def _count(mask: np.ndarray, rows: int) -> int:
    if len(mask) == 0:
        return rows
    used = 0
    for i in range(rows):
        if mask[i]:
            used += 1
    return used


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def _policy_row(gap: float, advantage: float, numbers: np.ndarray) -> tuple[float, float, float]:
    """(clamped log-ratio, loss, d loss / d logp) of one row."""
    low, high, dual, limit, zero = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    log_ratio = min(max(gap, -limit), limit)
    ratio = math.exp(log_ratio)
    gain = ratio * advantage
    bounded = min(max(ratio, low), high) * advantage
    loss, slope = -gain, -gain
    if bounded < gain:
        loss, slope = -bounded, zero
    if dual > zero and advantage < zero and loss > -dual * advantage:
        loss, slope = -dual * advantage, zero
    if log_ratio != gap:
        slope = zero
    return log_ratio, loss, slope


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def _value_row(value: float, target: float, old: float, numbers: np.ndarray) -> tuple[float, float]:
    """(squared error, half its slope) of one row; the larger of two errors where the value is clipped."""
    zero, limit = numbers[4], numbers[5]
    error = value - target
    if limit < zero:
        return error * error, error
    moved = value - old
    near = old + min(max(moved, -limit), limit) - target
    if near * near > error * error:
        return near * near, near if abs(moved) <= limit else zero
    return error * error, error


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def gaussian_rows(
    given: tuple[np.ndarray, ...],
    rows: tuple[np.ndarray, ...],
    numbers: np.ndarray,
    found: tuple[np.ndarray, ...],
    log_ratio: np.ndarray,
) -> float:
    """See `fused.gaussian_rows`; `found`, in the order of `given`, and `log_ratio` receive the results."""
    mean, log_std, value = given
    action, old_logp, advantage, mask, target, old_value = rows
    d_mean, d_log_std, d_value = found
    zero, one, half = numbers[4], numbers[10], numbers[11]
    value_coef, entropy_coef, low, high = numbers[6], numbers[7], numbers[8], numbers[9]
    half_log_2pi, two = numbers[12], numbers[13]
    size, dims = mean.shape
    free = log_std.shape[0] == 1
    count = _count(mask, size)
    share = one / log_std.dtype.type(max(count, 1))
    z, inverse = np.empty(dims, mean.dtype), np.empty(dims, mean.dtype)
    spread = zero
    if free:
        for j in range(dims):
            bounded = min(max(log_std[0, j], low), high)
            inverse[j] = math.exp(-bounded)
            spread += bounded
            d_log_std[0, j] = zero
    total = 0.0
    for i in range(size):
        if len(mask) and not mask[i]:
            log_ratio[i] = zero
            for j in range(dims):
                d_mean[i, j] = zero
                if not free:
                    d_log_std[i, j] = zero
            if len(value):
                d_value[i] = zero
            continue
        if not free:
            spread = zero
            for j in range(dims):
                bounded = min(max(log_std[i, j], low), high)
                inverse[j] = math.exp(-bounded)
                spread += bounded
        square = zero
        for j in range(dims):
            z[j] = (action[i, j] - mean[i, j]) * inverse[j]
            square += z[j] * z[j]
        constant = half_log_2pi * log_std.dtype.type(dims)
        gap = -half * square - spread - constant - old_logp[i]
        log_ratio[i], loss, slope = _policy_row(gap, advantage[i], numbers)
        total += loss - entropy_coef * (spread + constant + half * log_std.dtype.type(dims))
        slope *= share
        for j in range(dims):
            d_mean[i, j] = slope * z[j] * inverse[j]
            bend = slope * (z[j] * z[j] - one) - entropy_coef * share
            if free:
                d_log_std[0, j] += bend
            else:
                inside = low <= log_std[i, j] and log_std[i, j] <= high
                d_log_std[i, j] = bend if inside else zero
        if len(value):
            square, bend = _value_row(value[i], target[i], old_value[i], numbers)
            total += value_coef * square
            d_value[i] = two * value_coef * share * bend
    if free:
        for j in range(dims):
            if not (low <= log_std[0, j] and log_std[0, j] <= high):
                d_log_std[0, j] = zero
    return total / max(count, 1)


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def token_rows(
    given: tuple[np.ndarray, ...],
    rows: tuple[np.ndarray, ...],
    numbers: np.ndarray,
    found: tuple[np.ndarray, ...],
    log_ratio: np.ndarray,
) -> float:
    """See `fused.token_rows`; `found`, in the order of `given`, and `log_ratio` receive the results."""
    logp, value = given
    old_logp, advantage, mask, target, old_value = rows
    d_logp, d_value = found
    zero, one, value_coef, two = numbers[4], numbers[10], numbers[6], numbers[13]
    size = len(logp)
    count = _count(mask, size)
    share = one / logp.dtype.type(max(count, 1))
    total = 0.0
    for i in range(size):
        if len(mask) and not mask[i]:
            log_ratio[i], d_logp[i] = zero, zero
            if len(value):
                d_value[i] = zero
            continue
        log_ratio[i], loss, slope = _policy_row(logp[i] - old_logp[i], advantage[i], numbers)
        total += loss
        d_logp[i] = slope * share
        if len(value):
            square, bend = _value_row(value[i], target[i], old_value[i], numbers)
            total += value_coef * square
            d_value[i] = two * value_coef * share * bend
    return total / max(count, 1)
