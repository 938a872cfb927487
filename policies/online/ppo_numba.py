"""Compiled parts of PPO: loss gradient of a minibatch, clipped Adam, acting on a few rows. Needs numba.

Products stay in BLAS; what is compiled here is the many small steps between them. Same arithmetic as in `ppo_kernel`
and `ppo_policy`, up to rounding. Constants are float32 by construction: a Python number would widen every operation.
"""

from __future__ import annotations

import math

import numpy as np

from robot_rl.extras import require

require("numba")

from robot_rl.advantage.backends.compiled import njit  # noqa: E402

_F = np.float32
_LOW, _HIGH, _HALF, _ONE, _ZERO = _F(-5.0), _F(2.0), _F(0.5), _F(1.0), _F(0.0)
_LIMIT = _F(20.0)
_HALF_LOG_2PI = _F(0.5 * math.log(2.0 * math.pi))
_REASSOCIATE = {"reassoc", "contract", "nsz"}  # sums may be reordered for vector units; NaN keeps its meaning


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def loss_rows(
    head: np.ndarray,
    free_std: np.ndarray,
    action: np.ndarray,
    logp: np.ndarray,
    advantage: np.ndarray,
    target: np.ndarray,
    old_value: np.ndarray,
    value: np.ndarray,
    coefficients: np.ndarray,
    d_head: np.ndarray,
    d_free_std: np.ndarray,
    d_value: np.ndarray,
    log_ratio: np.ndarray,
) -> None:
    """See `ppo_kernel.loss_rows`, whose arguments these are."""
    count, dims = action.shape
    free = len(free_std) > 0
    clip, value_clip, value_coef, entropy_coef = coefficients
    share = _ONE / _F(count)
    z, inv = np.empty(dims, np.float32), np.empty(dims, np.float32)
    sums = _ZERO
    if free:
        for j in range(dims):
            bounded = min(max(free_std[j], _LOW), _HIGH)
            inv[j] = math.exp(-bounded)
            sums += bounded
            d_free_std[j] = _ZERO
    for i in range(count):
        if not free:
            sums = _ZERO
            for j in range(dims):
                bounded = min(max(head[i, dims + j], _LOW), _HIGH)
                inv[j] = math.exp(-bounded)
                sums += bounded
        square = _ZERO
        for j in range(dims):
            z[j] = (action[i, j] - head[i, j]) * inv[j]
            square += z[j] * z[j]
        ratio_log = -_HALF * square - sums - _HALF_LOG_2PI * _F(dims) - logp[i]
        ratio_log = min(max(ratio_log, -_LIMIT), _LIMIT)
        log_ratio[i] = ratio_log
        ratio = math.exp(ratio_log)
        bounded_ratio = min(max(ratio, _ONE - clip), _ONE + clip)
        gain = ratio * advantage[i]
        g = -gain * share if bounded_ratio * advantage[i] >= gain else _ZERO
        for j in range(dims):
            d_head[i, j] = g * z[j] * inv[j]
            slope = g * (z[j] * z[j] - _ONE)
            if free:
                d_free_std[j] += slope
            else:
                inside = head[i, dims + j] >= _LOW and head[i, dims + j] <= _HIGH
                d_head[i, dims + j] = slope - entropy_coef * share if inside else _ZERO
        error = value[i] - target[i]
        if value_clip >= _ZERO:
            moved = value[i] - old_value[i]
            near = old_value[i] + min(max(moved, -value_clip), value_clip) - target[i]
            if near * near > error * error and abs(moved) > value_clip:
                error = _ZERO
        d_value[i] = _F(2.0) * value_coef * share * error
    if free:
        for j in range(dims):
            inside = free_std[j] >= _LOW and free_std[j] <= _HIGH
            d_free_std[j] = d_free_std[j] - entropy_coef if inside else _ZERO


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def adam(params: np.ndarray, grad: np.ndarray, first: np.ndarray, second: np.ndarray, numbers: np.ndarray) -> float:
    """Clip the gradient to a norm and take one Adam step in place.

    Args:
        params: (P,).
        grad: (P,), read only.
        first: (P,) running mean of the gradient.
        second: (P,) running mean of its square.
        numbers: (6,) float32 largest norm, step size over the first bias correction, inverse root of the second bias
            correction, eps, beta1, beta2.

    Returns:
        The norm before clipping.
    """
    largest, rate, root_scale, eps, beta1, beta2 = numbers
    square = _ZERO
    for i in range(len(grad)):
        square += grad[i] * grad[i]
    norm = math.sqrt(square)
    scale = largest / (norm + _F(1e-6)) if norm > largest else _ONE
    for i in range(len(grad)):
        g = grad[i] * scale
        m = first[i] + (_ONE - beta1) * (g - first[i])
        v = beta2 * second[i] + (_ONE - beta2) * g * g
        first[i] = m
        second[i] = v
        params[i] -= rate * m / (math.sqrt(v) * root_scale + eps)
    return norm


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def act_rows(
    params: np.ndarray,
    table: np.ndarray,
    activation: int,
    obs: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
    limit: float,
    noise: np.ndarray,
    log_std_at: int,
    raw: np.ndarray,
    value: np.ndarray,
    logp: np.ndarray,
) -> None:
    """Sample actions of a few rows.

    Args:
        params: flat parameters.
        table: (L, 4) int64 per layer, the head last: where weight and bias start, inputs, outputs.
        activation: 0 tanh, 1 relu, 2 elu.
        obs: (B, S).
        mean: (S,) shift of the observation.
        scale: (S,) its factor.
        limit: bound of the normalised observation; 0 means that observations are not normalised.
        noise: (B, A) standard normal, or zeros for the mean action.
        log_std_at: where the free log standard deviations start, or -1 when the head gives them.
        raw: (B, A) receives the sample.
        value: (B, A) receives it clipped to [-1, 1].
        logp: (B,) receives its log density.
    """
    rows, dims = raw.shape
    last = len(table) - 1
    bound = _F(limit)
    width = 0
    for layer in range(len(table)):
        width = max(width, table[layer, 2], table[layer, 3])
    x, y = np.empty(width, np.float32), np.empty(width, np.float32)
    for row in range(rows):
        for i in range(obs.shape[1]):
            x[i] = obs[row, i]
            if bound > _ZERO:
                x[i] = min(max((x[i] - mean[i]) * scale[i], -bound), bound)
        for layer in range(last + 1):
            weight, bias, inputs, outputs = table[layer]
            for j in range(outputs):
                y[j] = params[bias + j]
            whole = inputs // 4 * 4
            for i in range(0, whole, 4):  # four rows of the weight at a time: y is loaded and stored a quarter as often
                x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
                block = params[weight + i * outputs : weight + (i + 4) * outputs]
                for j in range(outputs):
                    y[j] += (
                        x0 * block[j]
                        + x1 * block[outputs + j]
                        + x2 * block[2 * outputs + j]
                        + x3 * block[3 * outputs + j]
                    )
            for i in range(whole, inputs):
                for j in range(outputs):
                    y[j] += x[i] * params[weight + i * outputs + j]
            if layer < last:
                for j in range(outputs):
                    if activation == 0:
                        y[j] = math.tanh(y[j])
                    elif activation == 1:
                        y[j] = max(y[j], _ZERO)
                    elif y[j] < _ZERO:
                        y[j] = math.expm1(y[j])
            x, y = y, x
        total = _ZERO
        for j in range(dims):
            log_std = params[log_std_at + j] if log_std_at >= 0 else x[dims + j]
            log_std = min(max(log_std, _LOW), _HIGH)
            total += log_std + _HALF_LOG_2PI + _HALF * noise[row, j] * noise[row, j]
            sample = x[j] + math.exp(log_std) * noise[row, j]
            raw[row, j] = sample
            value[row, j] = min(max(sample, -_ONE), _ONE)
        logp[row] = -total
