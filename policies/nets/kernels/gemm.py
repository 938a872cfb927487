"""Matrix products of small dense layers through the fastest kernel that torch offers on this processor.

On x86 processors torch sends float32 products to MKL, which on processors of other vendors runs at half the speed of
oneDNN; and oneDNN adds bias and ReLU to the product for free. Both are reached through torch's own operator for fused
linear layers. Everywhere else (GPU, float64, builds without oneDNN) plain torch operators do the same.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

PRECISIONS = ("float32", "bf16", "auto")
_SMALL = 64  # a product with a side below this is faster in MKL


def _find_fused(dtype: torch.dtype) -> torch._ops.OpOverloadPacket | None:
    """The fused operator if it works with this type: for bfloat16 it has no kernel on processors with AVX2 alone."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        op = torch.ops.mkldnn._linear_pointwise
        probe = torch.ones(2, 2, dtype=dtype)
        right = bool((op(probe, probe, probe[0], "relu", [], "") == 3.0).all())
    except (AttributeError, RuntimeError):
        return None
    return op if right else None


_FUSED = _find_fused(torch.float32)
_TYPES = {torch.float32} | ({torch.bfloat16} if _FUSED is not None and _find_fused(torch.bfloat16) else set())


def resolve_precision(matmul: str, device: str | torch.device) -> str:
    """Turn "auto" into "bf16" where products of bfloat16 are native, else "float32".

    Args:
        matmul: "float32", "bf16" or "auto".
        device: where the products run.

    Raises:
        ValueError: unknown name.
    """
    if matmul not in PRECISIONS:
        raise ValueError(f"matmul is '{matmul}', expected one of {', '.join(PRECISIONS)}")
    on_cpu = torch.device(device).type == "cpu"
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    native = any(getattr(torch.cpu, name, bool)() for name in probes)
    if matmul == "bf16" and on_cpu and not native:
        message = (
            "this processor has no products of bfloat16: matmul=bf16 emulates them, many times slower than float32; "
            "use matmul=float32 or auto"
        )
        warnings.warn(message, stacklevel=2)
    if matmul != "auto":
        return matmul
    return "bf16" if on_cpu and native and torch.bfloat16 in _TYPES else "float32"


def _is_fused(x: Tensor) -> bool:
    here = _FUSED is not None and x.device.type == "cpu" and x.dtype in _TYPES
    return here and not torch.compiler.is_compiling()  # a graph for elsewhere knows no operator of this processor


def affine(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    """x @ weight + bias, with ReLU on top if asked.

    Args:
        x: (B, I), float32, float64 or bfloat16; rows may be strided.
        weight: (I, O), the type of `x`.
        bias: (O,), the type of `x`, or float32 beside bfloat16.
        relu: apply max(0, .).

    Returns:
        (B, O) in the type of `x`.
    """
    if _is_fused(x):
        return _FUSED(x, weight.t(), bias, "relu" if relu else "none", [], "")  # type: ignore[misc]
    out = torch.addmm(bias.to(x.dtype), x, weight)
    return out.relu_() if relu else out


def times_transposed(d: Tensor, weight: Tensor) -> Tensor:
    """d @ weight.T: the gradient of the input of a layer.

    Args:
        d: (B, O) gradient of the output.
        weight: (I, O).

    Returns:
        (B, I).
    """
    if _is_fused(d) and d.dtype == torch.float32 and min(*d.shape, *weight.shape) >= _SMALL:
        return _FUSED(d, weight, None, "none", [], "")  # type: ignore[misc]
    return torch.mm(d, weight.t())


def weight_grad(x: Tensor, d: Tensor, out: Tensor) -> None:
    """out <- x.T @ d: the gradient of a layer's weight.

    Args:
        x: (B, I) input of the layer.
        d: (B, O) gradient of its output, the type of `x`.
        out: (I, O) gradient to fill; float32 or the type of `x`.
    """
    if x.dtype != out.dtype:
        out.copy_(torch.mm(x.t(), d))
    elif _is_fused(x) and min(*x.shape, *d.shape) >= _SMALL:
        out.copy_(_FUSED(x.t(), d.t(), None, "none", [], ""))  # type: ignore[misc]
    else:
        torch.mm(x.t(), d, out=out)


def mask_by(d: Tensor, h: Tensor) -> Tensor:
    """d where h > 0, else 0: the gradient of ReLU.

    bfloat16 goes through its bits: a bfloat16 is positive exactly when the same bits read as int16 are, and torch's
    integer kernel is several times faster than its bfloat16 kernel.

    Args:
        d: gradient of the ReLU's output.
        h: the ReLU's output, same shape and type.
    """
    if d.dtype == torch.bfloat16 and d.device.type == "cpu":
        bits = torch.ops.aten.threshold_backward(d.view(torch.int16), h.view(torch.int16), 0)
        return bits.view(torch.bfloat16)
    return torch.ops.aten.threshold_backward(d, h, 0)


def relu_(z: Tensor) -> Tensor:
    """max(0, z) in place; bfloat16 through its bits, like `mask_by`."""
    if z.dtype == torch.bfloat16 and z.device.type == "cpu":
        z.view(torch.int16).clamp_min_(0)
        return z
    return z.relu_()
