"""Perceptrons with bfloat16 products and compiled steps between them: for a few members on one processor core.

At the sizes of usual critics and actors much of an update went into small steps: ReLU, rounding, masks, sums, heads of
width 1. Here each is one compiled pass (`half_numba`), and what products write stays in buffers that are kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.gemm import affine, times_transposed, weight_grad
from robot_rl.policies.nets.mlp_shape import LN_EPS, Dropout, MlpShape

_SIZES = 8  # batch sizes whose buffers are kept


class _Half:
    """A bfloat16 tensor, and its bits as NumPy sees them."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.bits = value, value.view(torch.int16).numpy()

    @classmethod
    def empty(cls, *shape: int) -> _Half:
        return cls(torch.empty(shape, dtype=torch.bfloat16))


@dataclass
class _Layer:
    """Buffers of one hidden layer of one member."""

    h: _Half  # (B, width) after ReLU and dropout
    unit: np.ndarray | None = None  # (B, width) normalised values, float32
    rstd: np.ndarray | None = None  # (B,)


@dataclass
class _Room:
    """What one member keeps of a forward pass of B rows."""

    layers: list[_Layer]
    x: Tensor  # (B, inputs) bfloat16, set by each pass


class HalfMlp:
    """Forward and backward without autograd; bfloat16 products, float32 masters; CPU only, needs numba.

    The square products run in bfloat16: the first layer, the output layer, LayerNorm, losses, gradients and masters
    stay float32, so observations keep their precision and outputs their resolution. Interface of `ExplicitMlp`; one
    forward pass is kept for the backward passes that follow it.
    """

    low = True

    def __init__(self, shape: MlpShape, params: FlatParams) -> None:
        """Bind to float32 parameters on the CPU; arguments as in `ExplicitMlp`."""
        self.shape, self.params = shape, params
        self._steps: Any = importlib.import_module(f"{__package__}.half_numba")
        depth = len(shape.hidden)

        def members(views: dict[str, Tensor], kind: str, i: int) -> list[Tensor]:
            return [part.detach() for part in views[f"{shape.prefix}{kind}{i}"].unbind(0)]

        def arrays(views: dict[str, Tensor], kind: str, count: int) -> list[list[np.ndarray]]:
            return [[part.numpy() for part in members(views, kind, i)] for i in range(count)]

        self._weight = [members(params.view, "weight", i) for i in range(depth + 1)]
        self._bias = arrays(params.view, "bias", depth + 1)
        self._bias_of = [members(params.view, "bias", i) for i in range(depth + 1)]
        self._zero = np.zeros(max(shape.hidden), np.float32)
        norms = depth if shape.layer_norm else 0
        self._scale, self._shift = arrays(params.view, "scale", norms), arrays(params.view, "shift", norms)
        # a target network has no gradients: what the passes sum up goes nowhere
        nowhere = FlatParams(shape.shapes(), trainable=False)
        self._nowhere = {
            kind: arrays(nowhere.view, kind, depth) for kind in ("bias", "shift", "scale")[: 1 + 2 * bool(norms)]
        }
        self._nowhere_top = nowhere.view[f"{shape.prefix}weight{depth}"][..., 0].contiguous().numpy()
        if params.grad_view:
            self._weight_grad = [members(params.grad_view, "weight", i) for i in range(depth + 1)]
            self._sum_grad = {kind: arrays(params.grad_view, kind, depth) for kind in self._nowhere}
            self._last_bias_grad = members(params.grad_view, "bias", depth)
        self._half_flat = params.flat.detach().to(torch.bfloat16)
        half = {name: self._half_flat[part].view(params.shapes[name]) for name, part in params.slices.items()}
        self._half = [members(half, "weight", i) for i in range(depth)]
        self._stale = True
        self._rooms: dict[tuple[int, int], _Room] = {}
        self._scratch: dict[tuple[str, int, int], Any] = {}
        self._now: list[_Room] = []
        self._members: Sequence[int] = ()
        self._groups, self._grown = 0, 1.0

    def refresh(self) -> None:
        """Tell that the parameters changed: the bfloat16 copies are renewed when next read."""
        self._stale = True

    def _room(self, row: int, size: int) -> _Room:
        room = self._rooms.get((row, size))
        if room is None:
            if len({b for _, b in self._rooms} | {size}) > _SIZES:
                self._rooms.clear()
                self._scratch.clear()
            layers = []
            for width in self.shape.hidden:
                layer = _Layer(_Half.empty(size, width))
                if self.shape.layer_norm:
                    layer.unit, layer.rstd = np.empty((size, width), np.float32), np.empty(size, np.float32)
                layers.append(layer)
            room = self._rooms[row, size] = _Room(layers, layers[0].h.value)
        return room

    def _half_buffer(self, name: str, rows: int, width: int) -> _Half:
        key = (name, rows, width)
        if key not in self._scratch:
            self._scratch[key] = _Half.empty(rows, width)
        return self._scratch[key]

    def _buffer(self, name: str, rows: int, width: int) -> Tensor:
        key = (name, rows, width)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(rows, width)
        return self._scratch[key]

    @torch.no_grad()
    def forward(self, x: Tensor, members: Sequence[int] | None = None, drop: Dropout | None = None) -> Tensor:
        """As `ExplicitMlp.forward`."""
        self._begin(x, drop)
        chosen = range(self.shape.members) if members is None else members
        self._members, self._now = chosen, []
        low_x = x.to(torch.bfloat16)
        out = x.new_empty(len(chosen), x.shape[-2], self.shape.outputs)
        factors = None if drop is None else drop.factors(self.shape, len(chosen), x)
        for row, e in enumerate(chosen):
            group = self._group_of(e)
            room = self._room(row, x.shape[-2])
            room.x = low_x[group] if self._groups else low_x
            own = None if factors is None else [factor[row] for factor in factors]
            self._hidden(x[group] if self._groups else x, room, e, own)
            self._last(room, e, out[row])
            self._now.append(room)
        return out

    def _begin(self, x: Tensor, drop: Dropout | None) -> None:
        if self._stale:
            self._half_flat.copy_(self.params.flat)
            self._stale = False
        self._groups = 0 if x.dim() == 2 else len(x)
        self._grown = 1.0 if drop is None else 1.0 / (1.0 - drop.rate)

    def _group_of(self, e: int) -> int:
        return e * self._groups // self.shape.members

    @torch.no_grad()
    def fit(
        self, x: Tensor, loss_grad: Callable[[Tensor], Tensor], *, inputs: slice | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """As `ExplicitMlp.fit`."""
        self._begin(x, None)
        out = x.new_empty(self.shape.members, x.shape[0], self.shape.outputs)
        low_x = x.to(torch.bfloat16)
        total: Tensor | None = None
        for e in range(self.shape.members):
            room = self._room(0, len(x))
            room.x = low_x
            self._hidden(x, room, e, None)
            self._last(room, e, out[e])
            part = self._member_backward(loss_grad(out[e : e + 1])[0], e, room, True, inputs, None)
            if part is not None:
                total = part if total is None else total.add_(part)
        return out, total

    def _hidden(self, x: Tensor, room: _Room, e: int, factors: list[Tensor] | None) -> None:
        steps, size = self._steps, len(x)
        for i, (layer, width) in enumerate(zip(room.layers, self.shape.hidden)):
            if i == 0:
                z = self._buffer("first", size, width) if layer.unit is None else torch.from_numpy(layer.unit)
                torch.mm(x, self._weight[0][e], out=z)
            else:  # bias and ReLU before the rounding
                before, bias = room.layers[i - 1].h.value, self._bias_of[i][e]
                layer.h = _Half(affine(before, self._half[i][e], bias, relu=layer.unit is None))
            if layer.unit is not None:
                if i:
                    torch.from_numpy(layer.unit).copy_(layer.h.value)
                bias = self._bias[i][e] if i == 0 else self._zero[:width]
                steps.norm_relu(
                    layer.unit, bias, self._scale[i][e], self._shift[i][e], LN_EPS, layer.h.bits, layer.rstd
                )
            elif i == 0:
                steps.relu_first(self._buffer("first", size, width).numpy(), self._bias[0][e], layer.h.bits)
            if factors is not None:
                layer.h.value.copy_(layer.h.value * factors[i])  # a float32 factor: computed in float32

    def _last(self, room: _Room, e: int, out: Tensor) -> None:
        top = room.layers[-1].h
        if self.shape.outputs == 1:
            self._steps.head(top.bits, self._weight[-1][e][:, 0].numpy(), self._bias[-1][e], out[:, 0].numpy())
        else:
            out.copy_(affine(self._wide_top(room, None), self._weight[-1][e], self._bias_of[-1][e], relu=False))

    def _wide_top(self, room: _Room, rows: slice | None) -> Tensor:
        top = room.layers[-1].h.value if rows is None else room.layers[-1].h.value[rows]
        return self._buffer("top", *top.shape).copy_(top)

    @torch.no_grad()
    def backward(
        self, d: Tensor, *, weights: bool = True, inputs: slice | None = None, rows: slice | None = None
    ) -> Tensor | None:
        """As `ExplicitMlp.backward`."""
        totals: list[Tensor | None] = [None] * max(self._groups, 1)
        for row, e in enumerate(self._members):
            part = self._member_backward(d[row], e, self._now[row], weights, inputs, rows)
            if part is not None:
                group = self._group_of(e)
                total = totals[group]
                totals[group] = part if total is None else total.add_(part)
        if inputs is None:
            return None
        return torch.stack([t for t in totals if t is not None]) if self._groups else totals[0]

    def _sums(self, kind: str, i: int, e: int, weights: bool) -> np.ndarray:
        return (self._sum_grad if weights else self._nowhere)[kind][i][e]

    def _member_backward(
        self, d: Tensor, e: int, room: _Room, weights: bool, inputs: slice | None, rows: slice | None
    ) -> Tensor | None:
        steps, depth, size, part = self._steps, len(self.shape.hidden), len(d), rows or slice(None)
        behind = "shift" if self.shape.layer_norm else "bias"  # whose gradient is the sum behind the ReLU's mask
        layer = room.layers[-1]
        d_z = self._half_buffer(f"d{depth % 2}", size, self.shape.hidden[-1])
        sums = self._sums(behind, depth - 1, e, weights)
        weight = self._weight[depth][e]
        if self.shape.outputs == 1:
            top = self._weight_grad[depth][e][:, 0].numpy() if weights else self._nowhere_top[e]
            slope = d[:, 0].contiguous().numpy()
            steps.head_back(slope, layer.h.bits[part], weight[:, 0].numpy(), self._grown, d_z.bits, top, sums)
        else:
            if weights:
                weight_grad(self._wide_top(room, rows), d, self._weight_grad[depth][e])
            d_h = times_transposed(d, weight)
            steps.mask_wide(d_h.contiguous().numpy(), layer.h.bits[part], self._grown, d_z.bits, sums)
        if weights:
            torch.sum(d, 0, out=self._last_bias_grad[e])
        for i in range(depth - 1, -1, -1):
            layer = room.layers[i]
            if layer.unit is not None and layer.rstd is not None:
                d_scale, bias = self._sums("scale", i, e, weights), self._sums("bias", i, e, weights)
                steps.norm_back(d_z.bits, layer.unit[part], layer.rstd[part], self._scale[i][e], d_scale, bias)
            if weights:
                x = (room.layers[i - 1].h.value if i else room.x)[part]
                grad = self._weight_grad[i][e]
                grad.copy_(torch.mm(x.t(), d_z.value, out=self._half_buffer("grad", *grad.shape).value))
            if i > 0:
                after = self._half_buffer(f"d{i % 2}", size, self.shape.hidden[i - 1])
                torch.mm(d_z.value, self._half[i][e].t(), out=after.value)
                sums = self._sums(behind, i - 1, e, weights)
                steps.mask_next(after.bits, room.layers[i - 1].h.bits[part], self._grown, sums)
                d_z = after
            elif inputs is not None:
                return torch.mm(d_z.value, self._half[0][e][inputs].t()).float()
        return None
