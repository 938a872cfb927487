"""Ensembles of plain multi-layer perceptrons with hand-written forward and backward passes on flat parameters.

Four kernels of one interface: `ExplicitMlp` calls the matrix products itself and knows its own gradient, member by
member; `HalfMlp` does so in bfloat16, some members at a time, with compiled steps between the products;
`BatchedMlp` has all members in one product, for where there is no compiler and for losses of slopes; `AutogradMlp`
builds the same function from torch operators and is the reference for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
_MANY = 5  # from so many members on, bfloat16 products of all at once are faster than a loop over them


@dataclass
class _Layer:
    """What the backward pass needs of one hidden layer of one member."""

    x: Tensor  # its input, in the type of the weight-gradient product
    h: Tensor  # its output after the ReLU, in the type of the mask
    z: Tensor | None = None  # before LayerNorm
    mean: Tensor | None = None
    rstd: Tensor | None = None
    grown: float = 1.0  # of the units that dropout kept


class ExplicitMlp:
    """Forward and backward without autograd.

    The square products run in bfloat16 when asked: the first layer, the output layer, LayerNorm, losses, gradients and
    masters stay float32, so observations keep their precision and outputs their resolution.

    One forward pass is kept for the backward passes that follow it.
    """

    def __init__(self, shape: MlpShape, params: FlatParams, *, matmul: str = "float32") -> None:
        """Bind to parameters.

        Args:
            shape: sizes.
            params: holds `shape.shapes()`.
            matmul: "float32", "bf16" or "auto".
        """
        self.shape, self.params = shape, params
        depth = len(shape.hidden)
        view, grad = params.view, params.grad_view
        self.low = resolve_precision(matmul, params.flat.device) == "bf16"
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
        # bfloat16 copies of the weights: index 0 is read by input gradients only
        self._full_of = self.weight[:depth] if self.low else []
        self._half_of = [view[name].to(torch.bfloat16).unbind(0) for name in names[:depth]] if self.low else []
        self._stale: set[int] = set()
        self._saved: list[list[_Layer]] = []
        self._members: Sequence[int] = ()
        self._groups = 0

    def refresh(self) -> None:
        """Tell that the parameters changed: bfloat16 copies are renewed member by member when next read."""
        if self.low:
            self._stale = set(range(self.shape.members))

    def _renew(self, e: int) -> None:
        self._stale.discard(e)
        for full, half in zip(self._full_of, self._half_of):
            half[e].copy_(full[e])

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
        x_grad = x.to(torch.bfloat16) if self.low else x
        self._groups = groups = 0 if x.dim() == 2 else len(x)
        factors = None if drop is None else drop.factors(self.shape, len(chosen), x)
        for row, e in enumerate(chosen):
            group = self._group_of(e)
            own = None if factors is None else [factor[row] for factor in factors]
            h, layers = self._hidden(x[group], x_grad[group], e, own) if groups else self._hidden(x, x_grad, e, own)
            if drop is not None:
                for layer in layers[:-1]:
                    layer.grown = 1.0 / (1.0 - drop.rate)
            self._saved.append(layers)
            self._last(h, e, out[row])
        return out

    def take(self) -> Any:
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

    @torch.no_grad()
    def fit(
        self, x: Tensor, loss_grad: Callable[[Tensor], Tensor], *, inputs: slice | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Forward and backward of a loss that is a sum over members, one member after the other.

        Same result as `forward`, `loss_grad` and `backward`, but a member's activations are used while they are still
        in the processor's cache and dropped before the next member needs room.

        Args:
            x: (B, inputs).
            loss_grad: outputs (1, B, outputs) of one member -> gradient of the loss by them.
            inputs: which input columns need a gradient, or None for none.

        Returns:
            (E, B, outputs) outputs, and the input gradient as in `backward`.
        """
        out = x.new_empty(self.shape.members, x.shape[0], self.shape.outputs)
        x_grad = x.to(torch.bfloat16) if self.low else x
        total: Tensor | None = None
        for e in range(self.shape.members):
            h, layers = self._hidden(x, x_grad, e)
            self._last(h, e, out[e])
            part = self._member_backward(loss_grad(out[e : e + 1])[0], e, layers, True, inputs, None)
            if part is not None:
                total = part if total is None else total.add_(part)
        return out, total

    def _hidden(
        self, x: Tensor, x_grad: Tensor, e: int, factors: list[Tensor] | None = None
    ) -> tuple[Tensor, list[_Layer]]:
        """Last hidden activation in full precision, and what backward needs."""
        if e in self._stale:
            self._renew(e)
        norm, low, last = self.shape.layer_norm, self.low, len(self.shape.hidden) - 1
        layers: list[_Layer] = []
        h = x
        for i, width in enumerate(self.shape.hidden):
            half = low and i > 0
            weight = self._half_of[i][e] if half else self.weight[i][e]
            z = affine(x_grad if half else h, weight, self.bias[i][e], relu=not norm)
            if factors is not None and not norm:
                z = z * factors[i].to(z.dtype)
            layer = _Layer(x=x_grad, h=z)
            layers.append(layer)
            if norm:
                layer.z = z.float() if half else z
                h, layer.mean, layer.rstd = torch.native_layer_norm(
                    layer.z, [width], self.scale[i][e], self.shift[i][e], LN_EPS
                )
                layer.h = h = h.relu_() if factors is None else h.relu_() * factors[i]
                if low and i < last:
                    x_grad = h.to(torch.bfloat16)
            elif low:
                x_grad = layer.h = z if half else z.to(torch.bfloat16)
                h = z.float() if half and i == last else z
            else:
                h = z
            if not low:
                x_grad = h
        layers.append(_Layer(x=h, h=h))
        return h, layers

    def _last(self, h: Tensor, e: int, out: Tensor) -> None:
        weight, bias = self.weight[-1][e], self.bias[-1][e]
        if self.shape.outputs == 1:  # a matrix-vector product: a general product is far slower at width 1
            torch.addmv(bias, h, weight[:, 0], out=out[:, 0])
        else:
            out.copy_(affine(h, weight, bias, relu=False))

    @torch.no_grad()
    def backward(
        self, d: Tensor, *, weights: bool = True, inputs: slice | None = None, rows: slice | None = None
    ) -> Tensor | None:
        """Gradients of the last forward pass.

        Args:
            d: (E, B', outputs) gradient of the loss by the output, for the members of the forward pass.
            weights: write the parameter gradients (overwriting, not adding).
            inputs: which input columns need a gradient, or None for none.
            rows: rows of the batch that `d` speaks of, or None for all.

        Returns:
            (B', columns) gradient by the chosen input columns, summed over members, or (G, B', columns) where the
            input had groups; None if not asked.
        """
        totals: list[Tensor | None] = [None] * max(self._groups, 1)
        for row, e in enumerate(self._members):
            part = self._member_backward(d[row], e, self._saved[row], weights, inputs, rows)
            if part is not None:
                group = self._group_of(e)
                total = totals[group]
                totals[group] = part if total is None else total.add_(part)
        if inputs is None:
            return None
        return torch.stack([t for t in totals if t is not None]) if self._groups else totals[0]

    def _member_backward(
        self, d: Tensor, e: int, layers: list[_Layer], weights: bool, inputs: slice | None, rows: slice | None
    ) -> Tensor | None:
        depth = len(self.shape.hidden)
        top = layers[depth].x if rows is None else layers[depth].x[rows]
        weight = self.weight[depth][e]
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
            x, h = (layer.x, layer.h) if rows is None else (layer.x[rows], layer.h[rows])
            if layer.grown != 1.0:  # units that were left out are 0 in h, like those of the ReLU
                d_h = d_h * layer.grown
            if self.shape.layer_norm:
                d_z = self._norm_backward(d_h.to(h.dtype), h, layer, i, e, weights, rows)
                if self.low:
                    d_z = d_z.to(torch.bfloat16)
            else:
                d_z = mask_by(d_h.to(h.dtype), h)
            if weights:
                weight_grad(x, d_z, self.weight_grad[i][e])
                if d_z.dtype == torch.bfloat16:
                    self.bias_grad[i][e].copy_(d_z.sum(0))
                else:
                    torch.sum(d_z, 0, out=self.bias_grad[i][e])
            if i > 0:
                d_h = times_transposed(d_z, self._half_of[i][e] if self.low else self.weight[i][e])
            elif inputs is not None:
                first = self._half_of[0][e] if self.low else self.weight[0][e]
                return times_transposed(d_z, first[inputs]).to(self.params.flat.dtype)
        return None

    def _norm_backward(
        self, d_h: Tensor, h: Tensor, layer: _Layer, i: int, e: int, weights: bool, rows: slice | None
    ) -> Tensor:
        assert layer.z is not None
        assert layer.mean is not None
        assert layer.rstd is not None
        z, mean, rstd = layer.z, layer.mean, layer.rstd
        if rows is not None:
            z, mean, rstd = z[rows], mean[rows], rstd[rows]
        d_z, d_scale, d_shift = torch.ops.aten.native_layer_norm_backward(
            mask_by(d_h, h),
            z,
            [h.shape[1]],
            mean,
            rstd,
            self.scale[i][e],
            self.shift[i][e],
            [True, weights, weights],
        )
        if weights:
            self.scale_grad[i][e].copy_(d_scale)
            self.shift_grad[i][e].copy_(d_shift)
        return d_z


class AutogradMlp:
    """The same network through autograd: batched products over members, the plain way."""

    def __init__(self, shape: MlpShape, params: FlatParams, *, matmul: str = "float32") -> None:
        """Bind to parameters; arguments as in `ExplicitMlp` (bfloat16 applies to the square products here too)."""
        self.shape, self.params = shape, params
        self.low = resolve_precision(matmul, params.flat.device) == "bf16"
        if params.trainable:
            params.require_grad()
        self._x: Tensor | None = None
        self._out: Tensor | None = None
        self._names = list(shape.shapes())

    def refresh(self) -> None:
        """Nothing to do: no copies are kept."""

    def take(self) -> Any:
        """As `ExplicitMlp.take`."""
        saved, self._x, self._out = (self._x, self._out), None, None
        return saved

    def restore(self, saved: Any) -> None:
        """As `ExplicitMlp.restore`."""
        self._x, self._out = saved

    def release(self, saved: object) -> None:
        """As `ExplicitMlp.release`."""

    def fit(
        self, x: Tensor, loss_grad: Callable[[Tensor], Tensor], *, inputs: slice | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """As `ExplicitMlp.fit`."""
        out = self.forward(x)
        return out, self.backward(loss_grad(out), inputs=inputs)

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

    def backward(
        self, d: Tensor, *, weights: bool = True, inputs: slice | None = None, rows: slice | None = None
    ) -> Tensor | None:
        """As `ExplicitMlp.backward`."""
        assert self._x is not None
        assert self._out is not None
        with torch.enable_grad():
            out = self._out if rows is None else self._out[:, rows]
        leaves = [self.params.view[name] for name in self._names] if weights else []
        wanted = [*leaves, self._x] if inputs is not None else leaves
        grads = torch.autograd.grad(out, wanted, d, retain_graph=True)
        with torch.no_grad():
            for name, grad in zip(self._names, grads if weights else ()):
                self.params.grad_view[name].copy_(grad)
        if inputs is None:
            return None
        return grads[-1][..., inputs] if rows is None else grads[-1][..., rows, :][..., inputs]


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
        if shape.members >= _MANY:
            return BatchedMlp(shape, params, matmul=matmul)
    return ExplicitMlp(shape, params, matmul=matmul)
