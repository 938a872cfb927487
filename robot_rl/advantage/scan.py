"""The one recursion of all temporal credit assignment: y_t = x_t + a_t y_{t+1}."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from robot_rl.advantage.arrays import needs_torch, to_numpy, to_torch
from robot_rl.advantage.backends.select import backend, kernels
from robot_rl.advantage.kinds import Array

A = TypeVar("A", np.ndarray, Tensor)


def scan(delta: A, trace: A) -> A:
    """Discounted sum of everything that follows, time on the last axis: A_t = delta_t + trace_t A_{t+1}.

    Differentiable in both arguments for tensors that require a gradient.

    Args:
        delta: (..., T) float32 or float64.
        trace: (..., T) or anything that broadcasts to it; 0 wherever credit must not pass from t + 1 to t. The last
            entry is ignored.

    Returns:
        (..., T), kind and dtype of `delta`.

    Raises:
        ValueError: shapes that do not broadcast, or a dtype that is neither float32 nor float64.
    """
    whole = _expand(trace, delta, name="trace", of="delta")
    steps = delta.shape[-1] if delta.ndim else 0
    if delta.ndim <= 1 or not 0 not in delta.shape:
        return reverse_linear_scan(delta, whole)
    # Rows of a C-ordered array lie one behind the other: cut at every row end they are one flat scan.
    flat: Array = whole.reshape(-1, steps)
    if isinstance(flat, np.ndarray):
        joined: Array = np.concatenate((flat[:, :-1], np.zeros_like(flat[:, :1])), axis=1)
    else:
        joined = torch.cat((flat[:, :-1], torch.zeros_like(flat[:, :1])), dim=1)
    return reverse_linear_scan(delta.reshape(-1), joined.reshape(-1)).reshape(delta.shape)


def reverse_linear_scan(x: A, a: A, *, out: A | None = None) -> A:
    """Solve y_t = x_t + a_t y_{t+1} along axis 0, y beyond the end being 0.

    A coefficient of exactly 0 is a cut that not even NaN passes. Runs on NumPy or numba for arrays and CPU tensors
    (sharing their memory), on Triton or torch for CUDA tensors. With a tensor that requires a gradient the result is
    differentiable: the adjoint is the forward scan z_t = g_t + a_{t-1} z_{t-1}, giving z for x and z_t y_{t+1} for a.

    Args:
        x: (N,), (T, B) or (T, B, F) float32 or float64.
        a: coefficients that broadcast to `x`; trailing axes may be missing. The last row is ignored.
        out: array that receives the result; may be `x` itself.

    Returns:
        y, shape, kind and dtype of `x`; `out` if given.

    Raises:
        ValueError: shapes that do not fit, or a dtype that is neither float32 nor float64.
    """
    if str(x.dtype).rpartition(".")[2] not in ("float32", "float64"):
        raise ValueError(f"x is {x.dtype}, expected float32 or float64; convert it first")
    if a.ndim < x.ndim:
        a = a.reshape(tuple(a.shape) + (1,) * (x.ndim - a.ndim))
    whole = _expand(a, x, name="a", of="x")
    y: Array
    if isinstance(x, Tensor) or isinstance(whole, Tensor):
        first, second = to_torch(x), to_torch(whole).to(to_torch(x))
        if needs_torch(first, second):
            y = _apply(first, second)
        else:
            y = to_torch(_on_cpu(to_numpy(first), to_numpy(second)))
    else:
        y = _on_cpu(x, whole)
    if out is None:
        return y
    out[...] = y
    return out


def solve(x: Array, a: Array) -> Array:
    """The recursion as the estimators of this package call it: arguments are their scratch and may be overwritten.

    Who prepares the rows has chosen the precision already.

    Args:
        x: (N,) or (T, B) float32 or float64.
        a: same shape, kind and dtype.

    Returns:
        y with y_t = x_t + a_t y_{t+1} along axis 0.
    """
    if isinstance(x, np.ndarray) and x.ndim <= 2 and backend("cpu") != "torch":
        return kernels(backend("cpu")).scan(np.ascontiguousarray(x), np.ascontiguousarray(a, x.dtype), overwrite=True)
    return reverse_linear_scan(x, a)


def _expand(a: Array, x: Array, *, name: str, of: str) -> Array:
    try:
        if isinstance(a, Tensor):
            return a.expand(tuple(x.shape))
        return np.broadcast_to(a, tuple(x.shape))
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{name} has shape {tuple(a.shape)}, expected one that broadcasts to {of}, {tuple(x.shape)}"
        ) from error


def _on_cpu(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    name = backend("cpu")
    if name == "torch":
        return to_numpy(_on_torch(torch.from_numpy(np.array(x)), torch.from_numpy(np.array(a, x.dtype))))
    shape = x.shape if x.ndim == 1 else (x.shape[0], -1 if x.size else 0)
    first, second = (np.ascontiguousarray(y, x.dtype).reshape(shape) for y in (x, a))
    return kernels(name).scan(first, second).reshape(x.shape)


def _on_torch(x: Tensor, a: Tensor) -> Tensor:
    kind = torch.float64 if x.ndim == 1 else x.dtype
    shape = x.shape if x.ndim == 1 else (x.shape[0], -1 if x.numel() else 0)
    name = "torch" if x.device.type == "cpu" else backend(x.device.type)
    first, second = x.to(kind).reshape(shape), a.to(kind).reshape(shape)
    return kernels(name).scan(first, second).to(x.dtype).reshape(x.shape)


def _plain(x: Tensor, a: Tensor) -> Tensor:
    if x.device.type == "cpu":
        return to_torch(_on_cpu(to_numpy(x), to_numpy(a)))
    return _on_torch(x, a)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor) -> Tensor:
        y = _plain(x.detach(), a.detach())
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        a, y = ctx.saved_tensors
        nothing = torch.zeros_like(a[:1])
        # The forward scan is the reverse scan of the arrays read backwards; written with `_apply`, so that it can be
        # differentiated again.
        previous = torch.cat((nothing, a[:-1]))
        z = _apply(grads[0].flip(0), previous.flip(0)).flip(0)
        return z, z * torch.cat((y[1:], torch.zeros_like(y[:1])))


def _apply(x: Tensor, a: Tensor) -> Tensor:
    return _Scan.apply(x, a)
