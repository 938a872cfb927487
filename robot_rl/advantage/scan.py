"""The one recursion of all temporal credit assignment: y_t = x_t + a_t y_{t+1}."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.backends.select import backend, kernels
from robot_rl.advantage.kinds import Array


@in_torch
def scan(delta: Array, trace: Array) -> Array:
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
    if delta.ndim <= 1 or 0 in delta.shape:
        return reverse_linear_scan(delta, whole)
    # Rows of a C-ordered array lie one behind the other: cut at every row end they are one flat scan.
    flat = whole.reshape(-1, delta.shape[-1])
    joined = torch.cat((flat[:, :-1], torch.zeros_like(flat[:, :1])), dim=1)
    return reverse_linear_scan(delta.reshape(-1), joined.reshape(-1)).reshape(delta.shape)


@in_torch
def reverse_linear_scan(x: Array, a: Array) -> Array:
    """Solve y_t = x_t + a_t y_{t+1} along axis 0, y beyond the end being 0.

    A coefficient of exactly 0 is a cut that not even NaN passes. Runs on NumPy or numba for arrays and CPU tensors
    (sharing their memory), on Triton or torch for CUDA tensors. With a tensor that requires a gradient the result is
    differentiable: the adjoint is the forward scan z_t = g_t + a_{t-1} z_{t-1}, giving z for x and z_t y_{t+1} for a.

    Args:
        x: (N,), (T, B) or (T, B, F) float32 or float64.
        a: coefficients that broadcast to `x`; trailing axes may be missing. The last row is ignored.

    Returns:
        y, shape, kind and dtype of `x`.

    Raises:
        ValueError: shapes that do not fit, or a dtype that is neither float32 nor float64.
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x is {str(x.dtype).rpartition('.')[2]}, expected float32 or float64; convert it first")
    if a.ndim < x.ndim:
        a = a.reshape(tuple(a.shape) + (1,) * (x.ndim - a.ndim))
    a = _expand(a, x, name="a", of="x").to(x)
    recorded = torch.is_grad_enabled() and (x.requires_grad or a.requires_grad)
    return _apply(x, a) if recorded else _plain(x.detach(), a.detach())


def solve(x: Array, a: Array) -> Array:
    """The recursion as the estimators of this package call it: arguments are their scratch and may be overwritten.

    Who prepares the rows has chosen the precision already.

    Args:
        x: (N,) or (T, B) float32 or float64.
        a: same shape, kind and dtype.

    Returns:
        y with y_t = x_t + a_t y_{t+1} along axis 0.
    """
    recorded = torch.is_grad_enabled() and (x.requires_grad or a.requires_grad)
    if x.device.type == "cpu" and x.ndim <= 2 and not recorded and backend("cpu") != "torch":
        first, second = x.detach().contiguous().numpy(), a.detach().to(x).contiguous().numpy()
        return torch.from_numpy(kernels(backend("cpu")).scan(first, second, overwrite=True))
    return reverse_linear_scan(x, a)


def _expand(a: Tensor, x: Tensor, *, name: str, of: str) -> Tensor:
    try:
        return a.expand(tuple(x.shape))
    except RuntimeError as error:
        raise ValueError(
            f"{name} has shape {tuple(a.shape)}, expected one that broadcasts to {of}, {tuple(x.shape)}"
        ) from error


def _plain(x: Tensor, a: Tensor) -> Tensor:
    """The scan without a gradient, by the backend of the device."""
    name = backend(x.device.type)
    torch_like = name not in ("numba", "numpy")
    kind = torch.float64 if torch_like and x.ndim == 1 else x.dtype
    shape = x.shape if x.ndim == 1 else (x.shape[0], -1 if x.numel() else 0)
    first, second = (y.to(kind).reshape(shape).contiguous() for y in (x, a))
    if torch_like:
        return kernels(name).scan(first, second).to(x.dtype).reshape(x.shape)
    return torch.from_numpy(kernels(name).scan(first.numpy(), second.numpy())).reshape(x.shape)


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
