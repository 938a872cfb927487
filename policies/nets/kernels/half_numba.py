"""Compiled steps between the bfloat16 products of a perceptron, each one pass over the activations. Needs numba.

Arrays begin with the members, (E, B, H), so that one call serves several. bfloat16 arrays travel as int16 bits: NumPy
has no such type. Rounding is to the nearest, ties to even, as in torch;
sums are float32. ReLU lets NaN through, so that divergence stays visible.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from robot_rl.extras import require

numba = require("numba")
_ir = require("llvmlite.ir")
_intrinsic: Any = require("numba.extending").intrinsic

from robot_rl.advantage.backends.compiled import njit  # noqa: E402

_F = np.float32
_ZERO, _ONE = _F(0.0), _F(1.0)
_REASSOCIATE = {"reassoc", "contract", "nsz"}  # sums may be reordered for vector units; NaN keeps its meaning


@_intrinsic
def _as_float(context: object, bits: object = None) -> Any:
    def build(context: object, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _ir.FloatType())

    return numba.types.float32(numba.types.int32), build


@_intrinsic
def _as_bits(context: object, number: object = None) -> Any:
    def build(context: object, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _ir.IntType(32))

    return numba.types.uint32(numba.types.float32), build


@numba.njit(inline="always")
def _wide(bits: Any) -> Any:
    return _as_float(np.int32(np.int32(bits) << np.int32(16)))


@numba.njit(inline="always")
def _round(number: Any) -> Any:
    bits = _as_bits(_F(number))
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.int16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def relu_first(z: np.ndarray, bias: np.ndarray, h: np.ndarray) -> None:
    """h (E, B, H) int16 <- round(max(0, z + bias)) of float32 z (E, B, H), bias (E, H)."""
    members, rows, width = z.shape
    for e in range(members):
        for i in range(rows):
            for j in range(width):
                a = z[e, i, j] + bias[e, j]
                h[e, i, j] = _round(_ZERO if a <= _ZERO else a)


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def relu_next(h: np.ndarray, bias: np.ndarray) -> None:
    """h (E, B, H) int16 <- round(max(0, h + bias)), in place."""
    members, rows, width = h.shape
    for e in range(members):
        for i in range(rows):
            for j in range(width):
                a = _wide(h[e, i, j]) + bias[e, j]
                h[e, i, j] = _round(_ZERO if a <= _ZERO else a)


@numba.njit(inline="always")
def _norm_row(z: Any, total: object, scale: Any, shift: Any, eps: Any, h: Any) -> Any:
    """Normalise a row z (H,) of the given sum in place, write its activation h; one over its deviation."""
    width = z.shape[0]
    share = _ONE / _F(width)
    mean = total * share
    square = _ZERO
    for j in range(width):
        c = z[j] - mean
        square += c * c
    inverse = _F(_ONE / math.sqrt(square * share + _F(eps)))
    for j in range(width):
        unit = (z[j] - mean) * inverse
        z[j] = unit
        a = unit * scale[j] + shift[j]
        h[j] = _round(_ZERO if a <= _ZERO else a)
    return inverse


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def norm_first(
    z: np.ndarray, bias: np.ndarray, scale: np.ndarray, shift: np.ndarray, eps: float, h: np.ndarray, rstd: np.ndarray
) -> None:
    """LayerNorm and ReLU: z (E, B, H) float32 becomes the normalised z + bias, h (E, B, H) int16 the activation.

    Variance of the centred values, as in torch; rstd (E, B) is one over the deviation.
    """
    members, rows, width = z.shape
    for e in range(members):
        for i in range(rows):
            total = _ZERO
            for j in range(width):
                z[e, i, j] += bias[e, j]
                total += z[e, i, j]
            rstd[e, i] = _norm_row(z[e, i], total, scale[e], shift[e], eps, h[e, i])


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def norm_next(
    h: np.ndarray, bias: np.ndarray, scale: np.ndarray, shift: np.ndarray, eps: float, z: np.ndarray, rstd: np.ndarray
) -> None:
    """`norm_first` of what stands in h (E, B, H) int16; z (E, B, H) float32 receives the normalised values."""
    members, rows, width = z.shape
    for e in range(members):
        for i in range(rows):
            total = _ZERO
            for j in range(width):
                z[e, i, j] = _wide(h[e, i, j]) + bias[e, j]
                total += z[e, i, j]
            rstd[e, i] = _norm_row(z[e, i], total, scale[e], shift[e], eps, h[e, i])


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def head(h: np.ndarray, weight: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
    """out (E, B) <- h (E, B, H) int16 times weight (E, H) plus bias (E, 1)."""
    members, rows, width = h.shape
    for e in range(members):
        for i in range(rows):
            total = _ZERO
            for j in range(width):
                total += _wide(h[e, i, j]) * weight[e, j]
            out[e, i] = total + bias[e, 0]


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def head_back(
    d: np.ndarray,
    h: np.ndarray,
    weight: np.ndarray,
    grow: float,
    d_z: np.ndarray,
    d_weight: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Backward of `head`: d (E, B) -> d_z (E, B, H) int16 behind the ReLU's mask; d_weight, sums of d_z (E, H)."""
    members, rows, width = h.shape
    g = _F(grow)
    for e in range(members):
        for j in range(width):
            d_weight[e, j] = _ZERO
            sums[e, j] = _ZERO
        for i in range(rows):
            slope = d[e, i]
            wide = slope * g
            for j in range(width):
                a = _wide(h[e, i, j])
                d_weight[e, j] += slope * a
                s = wide * weight[e, j] if a > _ZERO else _ZERO
                sums[e, j] += s
                d_z[e, i, j] = _round(s)


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def mask_wide(d: np.ndarray, h: np.ndarray, grow: float, d_z: np.ndarray, sums: np.ndarray) -> None:
    """d_z (E, B, H) int16 <- d (E, B, H) float32 where h > 0, else 0; sums (E, H) over rows."""
    members, rows, width = h.shape
    g = _F(grow)
    for e in range(members):
        for j in range(width):
            sums[e, j] = _ZERO
        for i in range(rows):
            for j in range(width):
                s = d[e, i, j] * g if h[e, i, j] > 0 else _ZERO
                sums[e, j] += s
                d_z[e, i, j] = _round(s)


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def mask_next(d_z: np.ndarray, h: np.ndarray, grow: float, sums: np.ndarray) -> None:
    """d_z (E, B, H) int16 <- d_z where h > 0, else 0, in place; sums (E, H) over rows."""
    members, rows, width = h.shape
    g = _F(grow)
    for e in range(members):
        for j in range(width):
            sums[e, j] = _ZERO
        for i in range(rows):
            for j in range(width):
                s = _wide(d_z[e, i, j]) * g if h[e, i, j] > 0 else _ZERO
                sums[e, j] += s
                d_z[e, i, j] = _round(s)


@njit(error_model="numpy", fastmath=_REASSOCIATE)
def norm_back(
    d_z: np.ndarray, unit: np.ndarray, rstd: np.ndarray, scale: np.ndarray, d_scale: np.ndarray, sums: np.ndarray
) -> None:
    """Backward of LayerNorm in place: d_z (E, B, H) int16 by its output -> by its input.

    With v = d scale and means over the row: rstd (v - mean(v) - unit mean(v unit)). unit (E, B, H) are the normalised
    values, d_scale (E, H) sums d unit, sums (E, H) the result.
    """
    members, rows, width = d_z.shape
    share = _ONE / _F(width)
    for e in range(members):
        for j in range(width):
            d_scale[e, j] = _ZERO
            sums[e, j] = _ZERO
        for i in range(rows):
            first, second = _ZERO, _ZERO
            for j in range(width):
                d = _wide(d_z[e, i, j])
                d_scale[e, j] += d * unit[e, i, j]
                v = d * scale[e, j]
                first += v
                second += v * unit[e, i, j]
            first *= share
            second *= share
            for j in range(width):
                s = rstd[e, i] * (_wide(d_z[e, i, j]) * scale[e, j] - first - unit[e, i, j] * second)
                sums[e, j] += s
                d_z[e, i, j] = _round(s)
