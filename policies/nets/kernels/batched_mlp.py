"""Ensembles of perceptrons with hand-written passes, all members in one batched product; bfloat16 where asked.

Where `ExplicitMlp` walks from member to member (one or two of them stay in the cache that way), this kernel computes
every layer for all members at once: with ten members one batched bfloat16 product runs at up to twice the rate of small
ones in a loop, and the calls around the products are paid once. It also knows the gradient of a loss of its own slopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.kernels.gemm import mask_by, relu_, resolve_precision
from robot_rl.policies.nets.mlp_shape import LN_EPS, Dropout, MlpShape

Index = slice | Tensor


@dataclass
class _Layer:
    """What the backward pass needs of one hidden layer."""

    x: Tensor  # (E, B, in) its input, in the type of the products
    h: Tensor  # (E, B, width) its output after ReLU and dropout, in the type of the products
    norms: list[tuple[Tensor, Tensor, Tensor]] | None = None  # per member: before LayerNorm, mean, 1 / deviation


class BatchedMlp:
    """Forward and backward of all members together, without autograd.

    In bfloat16 the square products take bfloat16 copies of weights and biases, made of the float32 masters once per
    step; the first layer, the output layer, LayerNorm, losses, gradients and masters stay float32, so observations keep
    their precision and outputs their resolution. Interface of `ExplicitMlp`.

    The first layer's bias is a row of its weight, read by a constant input of 1: one product gives both, and both
    gradients.
    """

    def __init__(self, shape: MlpShape, params: FlatParams, *, matmul: str = "bf16") -> None:
        """Bind to parameters; arguments as in `ExplicitMlp`."""
        self.shape, self.params = shape, params
        self.low = resolve_precision(matmul, params.flat.device) == "bf16"
        self._type = torch.bfloat16 if self.low else params.flat.dtype
        depth = len(shape.hidden)
        view = {name.removeprefix(shape.prefix): part.detach() for name, part in params.view.items()}
        self._grad = {name.removeprefix(shape.prefix): part for name, part in params.grad_view.items()}
        self._view = view
        self._half_flat = params.flat.detach().to(self._type)  # the masters themselves where the type is theirs
        half = {
            name.removeprefix(shape.prefix): self._half_flat[part].view(params.shapes[name])
            for name, part in params.slices.items()
        }
        self._weight = [half[f"weight{i}"] for i in range(depth)]
        self._bias = [half[f"bias{i}"][:, None] for i in range(depth)]
        self._first = torch.empty(shape.members, shape.inputs + 1, shape.hidden[0]).to(params.flat)
        self._top = view[f"weight{depth}"], view[f"bias{depth}"][:, None]
        self._norm = [(view[f"scale{i}"], view[f"shift{i}"]) for i in range(depth)] if shape.layer_norm else []
        self._stale = True
        self._layers: list[_Layer] = []
        self._h: Tensor = self._first  # last hidden activation in the type of the parameters
        self._pick: Index = slice(None)
        self._chosen: Sequence[int] = range(shape.members)
        self._grown, self._groups = 1.0, 0
        self._slopes: list[Tensor] = []

    def refresh(self) -> None:
        """Tell that the parameters changed: copies are renewed when next read."""
        self._stale = True

    def _renew(self) -> None:
        self._stale = False
        if self.low:
            self._half_flat.copy_(self.params.flat)
        self._first[:, :-1].copy_(self._view["weight0"])
        self._first[:, -1].copy_(self._view["bias0"])

    def take(self) -> object:
        """As `ExplicitMlp.take`."""
        saved = self._layers, self._h, self._pick, self._chosen, self._grown, self._groups
        self._layers, self._h = [], self._first
        return saved

    def restore(self, saved: Any) -> None:
        """As `ExplicitMlp.restore`."""
        self._layers, self._h, self._pick, self._chosen, self._grown, self._groups = saved

    def release(self, saved: object) -> None:
        """As `ExplicitMlp.release`."""

    @torch.no_grad()
    def forward(self, x: Tensor, members: Sequence[int] | None = None, drop: Dropout | None = None) -> Tensor:
        """As `ExplicitMlp.forward`."""
        if self._stale:
            self._renew()
        self._choose(x, members)
        pick, count = self._pick, len(self._chosen)
        self._grown = 1.0 if drop is None else 1.0 / (1.0 - drop.rate)
        factors = None if drop is None else drop.factors(self.shape, count, x)
        x = self._spread(pad(x, (0, 1), value=1.0))
        low_x = x.to(self._type)
        z = torch.bmm(x, self._first[pick])
        self._layers = []
        h = z
        for i in range(len(self.shape.hidden)):
            if i:
                z = torch.baddbmm(self._bias[i][pick], low_x, self._weight[i][pick])
            norms = None
            if self.shape.layer_norm:
                h, norms = self._normalise(z.to(self.params.flat.dtype), i)
                h = h.relu_() if factors is None else h.relu_().mul_(factors[i])
                low_h = h.to(self._type)
            else:
                low_h = relu_(z.to(self._type))
                if factors is not None:
                    low_h.mul_(factors[i])
            self._layers.append(_Layer(low_x, low_h, norms))
            low_x = low_h
        self._h = h if self.shape.layer_norm else low_x.to(self.params.flat.dtype)
        return self._last()

    def _last(self) -> Tensor:
        weight, bias = self._top
        if self.shape.outputs > 1:
            return torch.baddbmm(bias[self._pick], self._h, weight[self._pick])
        out = self._h.new_empty(*self._h.shape[:2], 1)
        for row, e in enumerate(self._chosen):  # a product of width 1 is far slower than as many matrix-vector products
            torch.addmv(bias[e, 0], self._h[row], weight[e, :, 0], out=out[row, :, 0])
        return out

    def _choose(self, x: Tensor, members: Sequence[int] | None) -> None:
        """Which members, as a view where they are evenly spaced; which group of rows each reads."""
        self._groups = 0 if x.dim() == 2 else len(x)
        if members is None:
            self._chosen, self._pick = range(self.shape.members), slice(None)
        elif isinstance(members, range) and members.step > 0:
            self._chosen, self._pick = members, slice(members.start, members.stop, members.step)
        else:
            self._chosen = list(members)
            self._pick = torch.tensor(self._chosen, device=x.device)

    def _group_of(self) -> list[int]:
        return [e * self._groups // self.shape.members for e in self._chosen]

    def _spread(self, x: Tensor) -> Tensor:
        """(B, n) or (G, B, n) -> (E, B, n), the rows of every chosen member."""
        if not self._groups:
            return x.expand(len(self._chosen), *x.shape)
        group = self._group_of()
        if group == list(range(self._groups)):
            return x
        return x[torch.tensor(group, device=x.device)]

    def _normalise(self, z: Tensor, i: int) -> tuple[Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
        scale, shift = self._norm[i]
        out, kept = torch.empty_like(z), []
        for row, e in enumerate(self._chosen):
            part, mean, rstd = torch.native_layer_norm(z[row], [z.shape[-1]], scale[e], shift[e], LN_EPS)
            out[row] = part
            kept.append((z[row], mean, rstd))
        return out, kept

    @torch.no_grad()
    def backward(self, d: Tensor, *, weights: bool = True, inputs: slice | None = None) -> Tensor | None:
        """As `ExplicitMlp.backward`."""
        depth, pick = len(self.shape.hidden), self._pick
        if weights:
            self._write(f"weight{depth}", _top_grad(self._h, d))
            self._write(f"bias{depth}", d.sum(1))
        weight = self._top[0][pick]
        d_h = d * weight.transpose(1, 2) if self.shape.outputs == 1 else torch.bmm(d, weight.transpose(1, 2))
        if self._grown != 1.0:  # units that were left out are 0 in h, like those of the ReLU
            d_h = d_h * self._grown
        d_h = d_h.to(self._type)
        for i in range(depth - 1, -1, -1):
            layer = self._layers[i]
            d_z = mask_by(d_h, layer.h)
            if layer.norms is not None:
                d_z = self._norm_backward(d_z, layer.norms, i, weights)
            if weights:
                self._write_layer(i, torch.bmm(layer.x.transpose(1, 2), d_z), d_z)
            if i > 0:
                d_h = torch.bmm(d_z, self._weight[i][pick].transpose(1, 2))
                if self._grown != 1.0:
                    d_h.mul_(self._grown)
            elif inputs is not None:
                d_x = torch.bmm(d_z, self._weight[0][pick][:, inputs].transpose(1, 2)).to(d.dtype)
                return self._gather(d_x)
        return None

    def _gather(self, d_x: Tensor) -> Tensor:
        """Sum of the members' input gradients (E, B, n): over all, or over those of each group."""
        if not self._groups:
            return d_x.sum(0)
        group = self._group_of()
        if group == list(range(self._groups)):
            return d_x
        total = d_x.new_zeros(self._groups, *d_x.shape[1:])
        return total.index_add_(0, torch.tensor(group, device=d_x.device), d_x)

    def _norm_backward(self, d_h: Tensor, norms: list[tuple[Tensor, Tensor, Tensor]], i: int, weights: bool) -> Tensor:
        """Through LayerNorm, given the gradient behind the ReLU's mask; in the type of the products."""
        scale, shift = self._norm[i]
        wide, out = d_h.to(self.params.flat.dtype), torch.empty_like(d_h)
        for row, (e, (z, mean, rstd)) in enumerate(zip(self._chosen, norms)):
            d_z, d_scale, d_shift = torch.ops.aten.native_layer_norm_backward(
                wide[row], z, [z.shape[-1]], mean, rstd, scale[e], shift[e], [True, weights, weights]
            )
            out[row] = d_z
            if weights:
                self._grad[f"scale{i}"][e].copy_(d_scale)
                self._grad[f"shift{i}"][e].copy_(d_shift)
        return out

    def _write(self, name: str, grad: Tensor) -> None:
        self._grad[name][self._pick] = grad.to(self._grad[name].dtype)  # rows that are picked one by one take no other

    def _write_layer(self, i: int, d_weight: Tensor, d_z: Tensor) -> None:
        """Gradients of a hidden layer; the first one's bias is the last row of its weight."""
        if i:
            self._write(f"weight{i}", d_weight)
            self._write(f"bias{i}", d_z.sum(1))
        else:
            self._write("weight0", d_weight[:, :-1])
            self._write("bias0", d_weight[:, -1])

    @torch.no_grad()
    def slopes(self, inputs: slice) -> Tensor:
        """(E, B, columns) every member's gradient of its output by the chosen inputs, at the last forward pass.

        Raises:
            ValueError: LayerNorm, dropout or several outputs; there it is not written out.
        """
        if self.shape.layer_norm or self._grown != 1.0 or self.shape.outputs != 1:
            raise ValueError(f"slopes need one output, no LayerNorm and no dropout, got {self.shape}")
        depth, pick = len(self.shape.hidden), self._pick
        top = self._layers[-1].h
        g = mask_by(self._top[0][pick].transpose(1, 2).to(self._type).expand_as(top).contiguous(), top)
        self._slopes = [g]
        for i in range(depth - 1, 0, -1):
            g = mask_by(torch.bmm(g, self._weight[i][pick].transpose(1, 2)), self._layers[i - 1].h)
            self._slopes.insert(0, g)
        return torch.bmm(g, self._weight[0][pick][:, inputs].transpose(1, 2)).to(self.params.flat.dtype)

    @torch.no_grad()
    def backward_slopes(self, d: Tensor, d_slope: Tensor, inputs: slice) -> None:
        """Parameter gradients of a loss of both the outputs and the `slopes` of the last forward pass.

        A ReLU network is linear in its input but for the masks, whose derivative is zero. With g_i the slope of the
        output by layer i before its ReLU and t_i the tangent that `d_slope` makes in layer i, the gradient of weight i
        is (d h_{i-1} + t_{i-1})^T g_i: second derivatives cost one more forward pass.

        Args:
            d: (E, B, 1) gradient of the loss by the outputs.
            d_slope: (E, B, columns) gradient of the loss by the slopes.
            inputs: as given to `slopes`.
        """
        depth, pick = len(self.shape.hidden), self._pick
        low_d = d.to(self._type)
        tangent = torch.zeros_like(self._layers[0].x)
        columns = slice(*inputs.indices(self.shape.inputs))
        tangent[..., columns] = d_slope
        for i, g in enumerate(self._slopes):
            x = self._layers[i].x
            left = torch.addcmul(tangent, x, low_d).transpose(1, 2)
            d_weight = torch.bmm(left, g)
            if i:
                self._write(f"weight{i}", d_weight)
                self._write(f"bias{i}", torch.bmm(low_d.transpose(1, 2), g)[:, 0])
                t = torch.bmm(tangent, self._weight[i][pick])
            else:
                self._write_layer(0, d_weight, g)
                t = torch.bmm(d_slope, self._view["weight0"][pick][:, inputs]).to(self._type)
            tangent = mask_by(t, self._layers[i].h)
        wide = tangent.to(d.dtype).sum(1)[..., None]
        self._write(f"weight{depth}", _top_grad(self._h, d) + wide)
        self._write(f"bias{depth}", d.sum(1))


def _top_grad(h: Tensor, d: Tensor) -> Tensor:
    """(E, width, outputs): one matrix-vector product per member where the output is one number."""
    if d.shape[-1] > 1:
        return torch.bmm(h.transpose(1, 2), d)
    return torch.stack([torch.mv(a.t(), b[:, 0]) for a, b in zip(h, d)])[..., None]
