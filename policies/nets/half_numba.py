"""Compiled steps between the bfloat16 products of a perceptron, each one pass over the activations. Needs numba.

bfloat16 arrays travel as int16 bits: NumPy has no such type. Rounding is to the nearest, ties to even, as in torch;
sums are float32. ReLU lets NaN through, so that divergence stays visible.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from robot_rl.extras import require

numba: Any = require("numba", extra="fast")
_ir: Any = require("llvmlite.ir", extra="fast")
_intrinsic: Any = require("numba.extending", extra="fast").intrinsic
_F = np.float32
_ZERO, _ONE = _F(0.0), _F(1.0)
_REASSOCIATE = {"reassoc", "contract", "nsz"}  # sums may be reordered for vector units; NaN keeps its meaning


@_intrinsic
def _as_float(context: Any, bits: Any = None) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _ir.FloatType())

    return numba.types.float32(numba.types.int32), build


@_intrinsic
def _as_bits(context: Any, number: Any = None) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
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


@numba.njit(cache=True, error_model="numpy", fastmath=_REASSOCIATE)
def relu_first(z: np.ndarray, bias: np.ndarray, h: np.ndarray) -> None:
    """h (B, H) int16 <- round(max(0, z + bias)) of float32 z (B, H)."""
    rows, width = z.shape
    for i in range(rows):
        for j in range(width):
            a = z[i, j] + bias[j]
            h[i, j] = _round(_ZERO if a <= _ZERO else a)


@numba.njit(cache=True, error_model="numpy", fastmath=_REASSOCIATE)
def norm_relu(
    z: np.ndarray, bias: np.ndarray, scale: np.ndarray, shift: np.ndarray, eps: float, h: np.ndarray, rstd: np.ndarray
) -> None:
    """LayerNorm and ReLU: z (B, H) float32 becomes the normalised z + bias, h (B, H) int16 the activation.

    Variance of the centred values, as in torch; rstd (B,) is one over the deviation.
    """
    rows, width = z.shape
    share = _ONE / _F(width)
    for i in range(rows):
        total = _ZERO
        for j in range(width):
            z[i, j] += bias[j]
            total += z[i, j]
        mean = total * share
        square = _ZERO
        for j in range(width):
            c = z[i, j] - mean
            square += c * c
        inverse = _F(_ONE / math.sqrt(square * share + _F(eps)))
        rstd[i] = inverse
        for j in range(width):
            unit = (z[i, j] - mean) * inverse
            z[i, j] = unit
            a = unit * scale[j] + shift[j]
            h[i, j] = _round(_ZERO if a <= _ZERO else a)


@numba.njit(cache=True, error_model="numpy", fastmath=_REASSOCIATE)
def head(h: np.ndarray, weight: np.ndarray, bias: np.ndarray, out: np.ndarray) -> None:
    """out (B,) <- h (B, H) int16 times weight (H,) plus bias (1,)."""
    rows, width = h.shape
    for i in range(rows):
        total = _ZERO
        for j in range(width):
            total += _wide(h[i, j]) * weight[j]
        out[i] = total + bias[0]


@numba.njit(cache=True, error_model="numpy", fastmath=_REASSOCIATE)
def head_back(
    d: np.ndarray,
    h: np.ndarray,
    weight: np.ndarray,
    grow: float,
    d_z: np.ndarray,
    d_weight: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Backward of `head`: d (B,) -> d_z (B, H) int16 behind the ReLU's mask, d_weight (H,), sums (H,) of d_z."""
    rows, width = h.shape
    g = _F(grow)
    for j in range(width):
        d_weight[j] = _ZERO
        sums[j] = _ZERO
    for i in range(rows):
        slope = d[i]
        wide = slope * g
        for j in range(width):
            a = _wide(h[i, j])
            d_weight[j] += slope * a
            s = wide * weight[j] if a > _ZERO else _ZERO
            sums[j] += s
            d_z[i, j] = _round(s)


@numba.njit(cache=True, error_model="numpy", fastmath=_REASSOCIATE)
def mask_wide(d: np.ndarray, h: np.ndarray, grow: float, d_z: np.ndarray, sums: np.ndarray) -> None:
    """d_z (B, H) int16 <- d (B, H) float32 where h > 0, else 0; sums (H,) over rows."""
    rows, width = h.shape
    g = _F(grow)
    for j in range(width):
        sums[j] = _ZERO
    for i in range(rows):
        for j in range(width):
            s = d[i, j] * g if h[i, j] > 0 else _ZERO
            sums[j] += s
            d_z[i, j] = _round(s)


@numba.njit(cache=True, error_model="numpy", fastmath=_REASSOCIATE)
def mask_next(d_z: np.ndarray, h: np.ndarray, grow: float, sums: np.ndarray) -> None:
    """d_z (B, H) int16 <- d_z where h > 0, else 0, in place; sums (H,) over rows."""
    rows, width = h.shape
    g = _F(grow)
    for j in range(width):
        sums[j] = _ZERO
    for i in range(rows):
        for j in range(width):
            s = _wide(d_z[i, j]) * g if h[i, j] > 0 else _ZERO
            sums[j] += s
            d_z[i, j] = _round(s)


@numba.njit(cache=True, error_model="numpy", fastmath=_REASSOCIATE)
def norm_back(
    d_z: np.ndarray, unit: np.ndarray, rstd: np.ndarray, scale: np.ndarray, d_scale: np.ndarray, sums: np.ndarray
) -> None:
    """Backward of LayerNorm in place: d_z (B, H) int16 by its output -> by its input.

    With v = d scale and means over the row: rstd (v - mean(v) - unit mean(v unit)). unit (B, H) are the normalised
    values, d_scale (H,) sums d unit, sums (H,) the result.
    """
    rows, width = d_z.shape
    share = _ONE / _F(width)
    for j in range(width):
        d_scale[j] = _ZERO
        sums[j] = _ZERO
    for i in range(rows):
        first, second = _ZERO, _ZERO
        for j in range(width):
            d = _wide(d_z[i, j])
            d_scale[j] += d * unit[i, j]
            v = d * scale[j]
            first += v
            second += v * unit[i, j]
        first *= share
        second *= share
        for j in range(width):
            s = rstd[i] * (_wide(d_z[i, j]) * scale[j] - first - unit[i, j] * second)
            sums[j] += s
            d_z[i, j] = _round(s)
