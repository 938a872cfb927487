"""Compiled backend: one loop per recursion, carries in double. The only file that imports numba (optional).

Kernels are compiled on first use and cached on disk. Boundaries are tested per element and assigned, never multiplied,
so nothing behind a cut can leak, not even NaN.
"""

from __future__ import annotations

import numpy as np
from numba import njit

TILE = 512  # columns that travel through time together: their carries stay in the first-level cache


@njit(cache=True, error_model="numpy", nogil=True)
def _scan_flat(x, a, y):
    carry = 0.0
    for t in range(x.size - 1, -1, -1):
        factor = np.float64(a[t])
        carry = np.float64(x[t]) + factor * carry if factor != 0.0 else np.float64(x[t])
        y[t] = carry


@njit(cache=True, error_model="numpy", nogil=True)
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


@njit(cache=True, error_model="numpy", nogil=True)
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


@njit(cache=True, error_model="numpy", nogil=True)
def _gae_rows(reward, value, next_value, terminated, boundary, gamma, decay, advantage, target):
    steps, width = reward.shape
    carry = np.zeros(TILE)
    for low in range(0, width, TILE):
        count = min(TILE, width - low)
        for t in range(steps - 1, -1, -1):
            r, v = reward[t, low : low + count], value[t, low : low + count]
            ends, done = boundary[t, low : low + count], terminated[t, low : low + count]
            last = t == steps - 1
            some = 0
            for j in range(count):
                some |= ends[j] | done[j]
            if some or last:
                for j in range(count):
                    if ends[j] or done[j] or last:
                        carry[j] = 0.0 if done[j] else gamma * np.float64(next_value[t, low + j])
            # Two short loops: with more arrays in one, the compiler gives up on proving that they do not overlap.
            g = target[t, low : low + count]
            for j in range(count):
                g[j] = np.float64(r[j]) + carry[j]
            a = advantage[t, low : low + count]
            for j in range(count):
                now = np.float64(v[j])
                total = np.float64(r[j]) + carry[j] - now
                a[j] = total
                carry[j] = gamma * now + decay * total


def scan(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Reverse linear scan y_t = x_t + a_t y_{t+1} along axis 0, carried in double.

    Args:
        x: (N,) or (T, B) float32 or float64, C-contiguous.
        a: same shape and dtype, C-contiguous; the last row is ignored because the carry starts at 0.

    Returns:
        y, a new array of the shape and dtype of `x`.
    """
    y = np.empty_like(x)
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
) -> tuple[np.ndarray, np.ndarray]:
    """GAE with one decision per row, carried in double; arguments as in `numpy_scan.gae`.

    Returns:
        (advantage, return), same shape and dtype as `reward`.
    """
    advantage, target = np.empty_like(reward), np.empty_like(reward)
    kernel = _gae_flat if reward.ndim == 1 else _gae_rows
    kernel(reward, value, next_value, terminated, boundary, float(gamma), float(gamma * gae_lambda), advantage, target)
    return advantage, target
