"""Torch backend: the scan as pairs (a, x) combined in log2(T) doublings, for tensors on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def scan(x: Tensor, a: Tensor) -> Tensor:
    """Reverse linear scan y_t = x_t + a_t y_{t+1} along axis 0, without a host synchronisation.

    Args:
        x: (N,) or (T, B) float32 or float64, any device.
        a: same shape, dtype and device; the last row is ignored.

    Returns:
        y, a new tensor like `x`.

    Source: Hillis and Steele, Data parallel algorithms, inclusive scan with (a1, x1) o (a2, x2) = (a1 a2, x1 + a1 x2).
    """
    steps = x.shape[0]
    y, factor = x.clone(), a.clone()
    if steps:
        factor[-1] = 0
    reach = 1
    while reach < steps:
        head = factor[:-reach]
        # `where`, not a product alone: a cut also stops NaN.
        tail = torch.where(head == 0, 0, head * y[reach:])
        product = head * factor[reach:]
        y = torch.cat((y[:-reach] + tail, y[-reach:]))
        # Coefficients that reach beyond the end multiply nothing.
        factor = torch.cat((product, torch.zeros_like(factor[-reach:])))
        reach *= 2
    return y
