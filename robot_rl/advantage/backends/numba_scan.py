"""Compiled backend: one loop per recursion, carries in double. Needs numba (optional).

Kernels are compiled on first use and cached on disk. Boundaries are tested per element and assigned, never multiplied,
so nothing behind a cut can leak, not even NaN.
"""

from __future__ import annotations

import sys

import numpy as np

from robot_rl.advantage.backends.compiled import njit

TILE = 1024  # columns that travel through time together: what they carry stays in the first-level cache


@njit(error_model="numpy", nogil=True)
def _scan_flat(x, a, y):
    carry = 0.0
    for t in range(x.size - 1, -1, -1):
        factor = np.float64(a[t])
        carry = np.float64(x[t]) + factor * carry if factor != 0.0 else np.float64(x[t])
        y[t] = carry


@njit(error_model="numpy", nogil=True)
def _scan_rows(x, a, y):
    steps, width = x.shape
    carry = np.zeros(width)
    for t in range(steps - 1, -1, -1):
        for j in range(width):
            factor = np.float64(a[t, j])
            tail = factor * carry[j]
            tail = tail if factor != 0.0 else 0.0
            carry[j] = np.float64(x[t, j]) + tail
            y[t, j] = carry[j]


@njit(error_model="numpy", nogil=True)
def _gae_flat(reward, value, next_value, terminated, boundary, gamma, decay, advantage, target):
    carry, successor = 0.0, 0.0
    for t in range(reward.size - 1, -1, -1):
        if boundary[t] or terminated[t] or t == reward.size - 1:
            carry = 0.0
            successor = 0.0 if terminated[t] else np.float64(next_value[t])
        now = np.float64(value[t])
        carry = np.float64(reward[t]) + gamma * successor - now + decay * carry
        successor = now
        advantage[t] = carry
        target[t] = carry + now


@njit(error_model="numpy", nogil=True)
def _gae_rows(reward, value, next_value, terminated, ends, done, gamma, decay, advantage, target):
    steps, width = reward.shape
    group = width // ends.shape[1]
    total = np.zeros(TILE)  # return of the row at hand
    blend = gamma - decay
    for low in range(0, width, TILE):
        count = min(TILE, width - low)
        first, stop = low // group, (low + count) // group
        for j in range(count):
            ahead = 0.0 if terminated[steps - 1, low + j] else gamma * np.float64(next_value[steps - 1, low + j])
            total[j] = np.float64(reward[steps - 1, low + j]) + ahead
        for t in range(steps - 1, -1, -1):
            v = value[t, low : low + count]
            a, g = advantage[t, low : low + count], target[t, low : low + count]
            # Two arrays written per loop at most: with three the compiler does not turn it into vector operations.
            for j in range(count):
                x = total[j]
                g[j] = x
                a[j] = x - np.float64(v[j])
            if t == 0:
                break
            # The row before, as if no episode ended in it: r + gamma ((1 - lambda) V' + lambda G').
            r = reward[t - 1, low : low + count]
            for j in range(count):
                total[j] = np.float64(r[j]) + (blend * np.float64(v[j]) + decay * total[j])
            # Ends are rare: whole words of flags are skipped at once, and the main loops never see `next_value`.
            marks, over = ends[t - 1, first:stop], done[t - 1, first:stop]
            some = np.uint64(0)
            for w in range(marks.size):
                some |= marks[w] | over[w]
            if not some:
                continue
            for w in range(marks.size):
                word = np.uint64(marks[w] | over[w])
                j = w * group
                while word:
                    if word & np.uint64(255):
                        total[j] = np.float64(r[j])
                        if not over[w] >> np.uint64(8 * (j - w * group)) & np.uint64(255):
                            total[j] += gamma * np.float64(next_value[t - 1, low + j])
                    word >>= np.uint64(8)
                    j += 1


def scan(x: np.ndarray, a: np.ndarray, *, overwrite: bool = False) -> np.ndarray:
    """Reverse linear scan y_t = x_t + a_t y_{t+1} along axis 0, carried in double.

    Args:
        x: (N,) or (T, B) float32 or float64, C-contiguous.
        a: same shape and dtype, C-contiguous; the last row is ignored because the carry starts at 0.
        overwrite: the arguments are the caller's scratch, to be used up.

    Returns:
        y, of the shape and dtype of `x`.
    """
    y = x if overwrite else np.empty_like(x)
    if x.ndim == 1:
        _scan_flat(x, a, y)
    else:
        _scan_rows(x, a, y)
    return y


def gae(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    boundary: np.ndarray,
    gamma: float,
    gae_lambda: float,
    out: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """GAE with one decision per row, deltas and returns included, carried in double.

    Args:
        reward: (N,) or (T, B) float32 or float64, C-contiguous like all the others, at least one row.
        value: same shape and dtype.
        next_value: same shape and dtype; read only where `boundary`.
        terminated: same shape, bool: no bootstrap.
        boundary: same shape, bool; terminated rows and the last row count as boundaries whatever it says.
        gamma: discount per row.
        gae_lambda: trace decay per row.
        out: C-contiguous arrays for the two results, or None for new ones.

    Returns:
        (advantage, return), same shape and dtype.
    """
    advantage, target = (np.empty_like(reward), np.empty_like(reward)) if out is None else out
    numbers = (float(gamma), float(gamma * gae_lambda))
    if reward.ndim == 1:
        _gae_flat(reward, value, next_value, terminated, boundary, *numbers, advantage, target)
    else:
        # Eight flags to a word where rows divide into words (little-endian, as the kernel unpacks them).
        word = np.uint64 if reward.shape[1] % 8 == 0 and sys.byteorder == "little" else np.uint8
        ends, done = boundary.view(word), terminated.view(word)
        _gae_rows(reward, value, next_value, terminated, ends, done, *numbers, advantage, target)
    return advantage, target
