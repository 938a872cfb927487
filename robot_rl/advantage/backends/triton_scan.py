"""Triton backend for CUDA tensors: one program per block of columns, sequential in time. The only file with triton."""

from __future__ import annotations

from typing import Any, cast

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from robot_rl.advantage.backends import torch_scan

WIDE = 1024  # columns from which walking through time beats the logarithmic scan
BLOCK = 128


@triton.jit
def _kernel(x, a, y, steps, width, BLOCK: tl.constexpr):
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    carry = tl.zeros((BLOCK,), tl.float64)
    for i in range(steps):
        place = (steps - 1 - i) * width + column
        factor = tl.load(a + place, mask=inside, other=0.0).to(tl.float64)
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float64)
        # A cut is tested, not multiplied: not even NaN passes it.
        carry = tl.where(factor == 0, value, value + factor * carry)
        tl.store(y + place, carry, mask=inside)


def scan(x: Tensor, a: Tensor) -> Tensor:
    """Reverse linear scan y_t = x_t + a_t y_{t+1} along axis 0, carried in double.

    Args:
        x: (N,) or (T, B) float32 or float64 on a CUDA device.
        a: same shape, dtype and device; the last row is ignored because the carry starts at 0.

    Returns:
        y, a new tensor like `x`. Flat and narrow data take the logarithmic scan of the torch backend.
    """
    if x.ndim == 1 or x.shape[1] < WIDE:
        return torch_scan.scan(x, a)
    x, a = x.contiguous(), a.contiguous()
    y = torch.empty_like(x)
    steps, width = x.shape
    grid = (triton.cdiv(width, BLOCK),)
    cast(Any, _kernel)[grid](x, a, y, steps, width, BLOCK=BLOCK)
    return y
