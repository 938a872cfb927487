"""Ensembles of plain multi-layer perceptrons with hand-written forward and backward passes on flat parameters.

Four kernels of one interface: `ExplicitMlp` calls the matrix products itself and knows its own gradient, member by
member, in float32; `HalfMlp` does so in bfloat16, some members at a time, with compiled steps between the products;
`BatchedMlp` has all members in one product, for where there is no compiler and for losses of slopes; `AutogradMlp`
builds the same function from torch operators and is the reference for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.kernels.batched_mlp import BatchedMlp
from robot_rl.policies.nets.kernels.gemm import affine, mask_by, resolve_precision, times_transposed, weight_grad
from robot_rl.policies.nets.kernels.half_mlp import HalfMlp
from robot_rl.policies.nets.mlp_shape import LN_EPS, Dropout, MlpShape

__all__ = ["KERNELS", "AutogradMlp", "BatchedMlp", "Dropout", "ExplicitMlp", "HalfMlp", "Mlp", "MlpShape", "build_mlp"]

KERNELS = ("auto", "explicit", "autograd")


@dataclass
class _Layer:
    """What the backward pass needs of one hidden layer of one member."""

    x: Tensor  # its input
    h: Tensor  # its output after ReLU and dropout
    z: Tensor | None = None  # before LayerNorm
    mean: Tensor | None = None
    rstd: Tensor | None = None
    grown: float = 1.0  # of the units that dropout kept


class ExplicitMlp:
    """Forward and backward without autograd, in the type of the parameters.

    One forward pass is kept for the backward passes that follow it.
    """

    def __init__(self, shape: MlpShape, params: FlatParams) -> None:
        """Bind to parameters.

        Args:
            shape: sizes.
            params: holds `shape.shapes()`.
        """
        self.shape, self.params = shape, params
        depth = len(shape.hidden)
        view, grad = params.view, params.grad_view
        names = [f"{shape.prefix}weight{i}" for i in range(depth + 1)]
        self.weight = [view[name].unbind(0) for name in names]
        self.bias = [view[name.replace("weight", "bias")].unbind(0) for name in names]
        self.weight_grad = [grad[name].unbind(0) for name in names] if grad else []
        self.bias_grad = [grad[name.replace("weight", "bias")].unbind(0) for name in names] if grad else []
        if shape.layer_norm:
            norms = [(f"{shape.prefix}scale{i}", f"{shape.prefix}shift{i}") for i in range(depth)]
            self.scale = [view[a].unbind(0) for a, _ in norms]
            self.shift = [view[b].unbind(0) for _, b in norms]
            self.scale_grad = [grad[a].unbind(0) for a, _ in norms] if grad else []
            self.shift_grad = [grad[b].unbind(0) for _, b in norms] if grad else []
        self._saved: list[list[_Layer]] = []
        self._members: Sequence[int] = ()
        self._groups = 0

    def refresh(self) -> None:
        """Tell that the parameters changed; nothing to do where no copies are kept."""

    @torch.no_grad()
    def forward(self, x: Tensor, members: Sequence[int] | None = None, drop: Dropout | None = None) -> Tensor:
        """Outputs of the members.

        Args:
            x: (B, inputs) in the type of the parameters, or (G, B, inputs): the first E / G members read the first
                group of rows, and so on (several seeds, each with batches and members of its own).
            members: which members, or None for all E.
            drop: leaves out hidden units (while training); None for all units.

        Returns:
            (E, B, outputs), E the number of chosen members.
        """
        chosen = range(self.shape.members) if members is None else members
        out = x.new_empty(len(chosen), x.shape[-2], self.shape.outputs)
        self._members, self._saved = chosen, []
        self._groups = 0 if x.dim() == 2 else len(x)
        factors = None if drop is None else drop.factors(self.shape, len(chosen), x)
        for row, e in enumerate(chosen):
            own = None if factors is None else [factor[row] for factor in factors]
            h, layers = self._hidden(x[self._group_of(e)] if self._groups else x, e, own)
            if drop is not None:
                for layer in layers[:-1]:
                    layer.grown = 1.0 / (1.0 - drop.rate)
            self._saved.append(layers)
            self._last(h, e, out[row])
        return out

    def take(self) -> object:
        """Hand over what the last forward pass kept for its backward pass; see `Net`."""
        saved, self._saved = (self._saved, self._members, self._groups), []
        return saved

    def restore(self, saved: Any) -> None:
        """Make a forward pass the last one again: `backward` is then its backward."""
        self._saved, self._members, self._groups = saved

    def release(self, saved: object) -> None:
        """Nobody will restore `saved` any more; nothing to do where passes share no buffers."""

    def _group_of(self, e: int) -> int:
        return e * self._groups // self.shape.members

    def _hidden(self, x: Tensor, e: int, factors: list[Tensor] | None) -> tuple[Tensor, list[_Layer]]:
        """Last hidden activation, and what backward needs."""
        norm = self.shape.layer_norm
        layers: list[_Layer] = []
        h = x
        for i, width in enumerate(self.shape.hidden):
            z = affine(h, self.weight[i][e], self.bias[i][e], relu=not norm)
            layer = _Layer(x=h, h=z)
            layers.append(layer)
            if norm:
                layer.z = z
                z, layer.mean, layer.rstd = torch.native_layer_norm(
                    z, [width], self.scale[i][e], self.shift[i][e], LN_EPS
                )
                z = z.relu_()
            layer.h = h = z if factors is None else z * factors[i]
        layers.append(_Layer(x=h, h=h))
        return h, layers

    def _last(self, h: Tensor, e: int, out: Tensor) -> None:
        weight, bias = self.weight[-1][e], self.bias[-1][e]
        if self.shape.outputs == 1:  # a matrix-vector product: a general product is far slower at width 1
            torch.addmv(bias, h, weight[:, 0], out=out[:, 0])
        else:
            out.copy_(affine(h, weight, bias, relu=False))

    @torch.no_grad()
    def backward(self, d: Tensor, *, weights: bool = True, inputs: slice | None = None) -> Tensor | None:
        """Gradients of the last forward pass.

        Args:
            d: (E, B, outputs) gradient of the loss by the output, for the members of the forward pass.
            weights: write the parameter gradients (overwriting, not adding).
            inputs: which input columns need a gradient, or None for none.

        Returns:
            (B, columns) gradient by the chosen input columns, summed over members, or (G, B, columns) where the
            input had groups; None if not asked.
        """
        totals: list[Tensor | None] = [None] * max(self._groups, 1)
        for row, e in enumerate(self._members):
            part = self._member_backward(d[row], e, self._saved[row], weights, inputs)
            if part is not None:
                group = self._group_of(e)
                total = totals[group]
                totals[group] = part if total is None else total.add_(part)
        if inputs is None:
            return None
        return torch.stack([t for t in totals if t is not None]) if self._groups else totals[0]

    def _member_backward(
        self, d: Tensor, e: int, layers: list[_Layer], weights: bool, inputs: slice | None
    ) -> Tensor | None:
        depth = len(self.shape.hidden)
        top, weight = layers[depth].x, self.weight[depth][e]
        if self.shape.outputs == 1:
            if weights:
                torch.mv(top.t(), d[:, 0], out=self.weight_grad[depth][e][:, 0])
            d_h = d * weight.t()
        else:
            if weights:
                weight_grad(top, d, self.weight_grad[depth][e])
            d_h = times_transposed(d, weight)
        if weights:
            torch.sum(d, 0, out=self.bias_grad[depth][e])
        for i in range(depth - 1, -1, -1):
            layer = layers[i]
            if layer.grown != 1.0:  # units that were left out are 0 in h, like those of the ReLU
                d_h = d_h * layer.grown
            d_z = mask_by(d_h, layer.h)
            if self.shape.layer_norm:
                d_z = self._norm_backward(d_z, layer, i, e, weights)
            if weights:
                weight_grad(layer.x, d_z, self.weight_grad[i][e])
                torch.sum(d_z, 0, out=self.bias_grad[i][e])
            if i > 0:
                d_h = times_transposed(d_z, self.weight[i][e])
            elif inputs is not None:
                return times_transposed(d_z, self.weight[0][e][inputs])
        return None

    def _norm_backward(self, d_z: Tensor, layer: _Layer, i: int, e: int, weights: bool) -> Tensor:
        assert layer.z is not None
        assert layer.mean is not None
        assert layer.rstd is not None
        scale, shift, width = self.scale[i][e], self.shift[i][e], layer.z.shape[1]
        d_z, d_scale, d_shift = torch.ops.aten.native_layer_norm_backward(
            d_z, layer.z, [width], layer.mean, layer.rstd, scale, shift, [True, weights, weights]
        )
        if weights:
            self.scale_grad[i][e].copy_(d_scale)
            self.shift_grad[i][e].copy_(d_shift)
        return d_z


class AutogradMlp:
    """The same network through autograd: batched products over members, the plain way."""

    def __init__(self, shape: MlpShape, params: FlatParams, *, matmul: str = "float32") -> None:
        """Bind to parameters; arguments as in `build_mlp` (bfloat16 applies to the square products alone)."""
        self.shape, self.params = shape, params
        self.low = resolve_precision(matmul, params.flat.device) == "bf16"
        if params.trainable:
            params.require_grad()
        self._x: Tensor | None = None
        self._out: Tensor | None = None
        self._names = list(shape.shapes())

    def refresh(self) -> None:
        """Nothing to do: no copies are kept."""

    def take(self) -> object:
        """As `ExplicitMlp.take`."""
        saved, self._x, self._out = (self._x, self._out), None, None
        return saved

    def restore(self, saved: Any) -> None:
        """As `ExplicitMlp.restore`."""
        self._x, self._out = saved

    def release(self, saved: object) -> None:
        """As `ExplicitMlp.release`."""

    def forward(self, x: Tensor, members: Sequence[int] | None = None, drop: Dropout | None = None) -> Tensor:
        """As `ExplicitMlp.forward`."""
        with torch.set_grad_enabled(self.params.trainable):
            self._x = x.detach().requires_grad_(self.params.trainable)
            out = self.compute(self._x, members, drop)
        self._out = out
        return out.detach()

    def compute(self, x: Tensor, members: Sequence[int] | None = None, drop: Dropout | None = None) -> Tensor:
        """(E, B, outputs) with the graph attached."""
        shape, view = self.shape, self.params.view

        def part(kind: str, i: int) -> Tensor:
            tensor = view[f"{shape.prefix}{kind}{i}"]
            return tensor if members is None else tensor[list(members)]

        count = shape.members if members is None else len(members)
        if x.dim() == 2:
            h = x.expand(count, *x.shape)
        else:
            group = torch.arange(shape.members) * len(x) // shape.members
            h = x[group if members is None else group[list(members)]]
        factors = None if drop is None else drop.factors(shape, count, x)
        for i, width in enumerate(shape.hidden):
            weight, bias = part("weight", i), part("bias", i)
            if self.low and i > 0:
                h = torch.bmm(h.bfloat16(), weight.bfloat16()).to(x.dtype) + bias[:, None]
            else:
                h = torch.baddbmm(bias[:, None], h, weight)
            if shape.layer_norm:
                h = torch.nn.functional.layer_norm(h, (width,), eps=LN_EPS)
                h = torch.addcmul(part("shift", i)[:, None], h, part("scale", i)[:, None])
            h = h.relu() if factors is None else h.relu() * factors[i]
        last = len(shape.hidden)
        return torch.baddbmm(part("bias", last)[:, None], h, part("weight", last))

    def backward(self, d: Tensor, *, weights: bool = True, inputs: slice | None = None) -> Tensor | None:
        """As `ExplicitMlp.backward`."""
        assert self._x is not None
        assert self._out is not None
        leaves = [self.params.view[name] for name in self._names] if weights else []
        wanted = [*leaves, self._x] if inputs is not None else leaves
        grads = torch.autograd.grad(self._out, wanted, d, retain_graph=True)
        with torch.no_grad():
            for name, grad in zip(self._names, grads if weights else ()):
                self.params.grad_view[name].copy_(grad)
        return None if inputs is None else grads[-1][..., inputs]


Mlp = ExplicitMlp | HalfMlp | BatchedMlp | AutogradMlp


def build_mlp(shape: MlpShape, params: FlatParams, *, kernel: str = "auto", matmul: str = "auto") -> Mlp:
    """Choose the kernel.

    Args:
        shape: sizes.
        params: holds `shape.shapes()`.
        kernel: "autograd", "explicit" or "auto" (both are written out: they cover every network described by a shape).
        matmul: "float32", "bf16" or "auto".

    Raises:
        ValueError: unknown kernel.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel is '{kernel}', expected one of {', '.join(KERNELS)}")
    if kernel == "autograd":
        return AutogradMlp(shape, params, matmul=matmul)
    if resolve_precision(matmul, params.flat.device) == "bf16":
        if params.flat.device.type == "cpu" and params.flat.dtype == torch.float32 and find_spec("numba"):
            return HalfMlp(shape, params)
        return BatchedMlp(shape, params, matmul=matmul)
    return ExplicitMlp(shape, params)
