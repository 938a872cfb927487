"""Perceptrons with bfloat16 products and compiled steps between them: for a few members on one processor core.

At the sizes of usual critics and actors much of an update went into small steps: ReLU, rounding, masks, sums, heads of
width 1. Here each is one compiled pass (`half_numba`) for up to `_BLOCK` members, whose products are one batched call
(a call costs as much as the product of 256 rows with 128x128 weights), and what products write stays in buffers that
are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp_shape import LN_EPS, Dropout, MlpShape

_SIZES = 8  # batch sizes whose buffers are kept
_BLOCK = 4  # members at a time: what a layer writes should stay in the core's own cache


class _Half:
    """A bfloat16 tensor, and its bits as NumPy sees them."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.bits = value, value.view(torch.int16).numpy()

    @classmethod
    def empty(cls, *shape: int) -> _Half:
        return cls(torch.empty(shape, dtype=torch.bfloat16))


@dataclass
class _Layer:
    """Buffers of one hidden layer of a block of n members."""

    h: _Half  # (n, B, width) after ReLU and dropout
    unit: np.ndarray | None = None  # (n, B, width) normalised values, float32
    rstd: np.ndarray | None = None  # (n, B)


@dataclass
class _Room:
    """What a block of n members keeps of a forward pass of B rows."""

    layers: list[_Layer]
    x: Tensor  # (n, B, inputs) bfloat16, set by each pass


@dataclass(frozen=True)
class _Block:
    """Members [first, last) that are computed together; `row` is the place of the first among those asked for."""

    row: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """How many."""
        return self.last - self.first

    @property
    def members(self) -> slice:
        """Of the network."""
        return slice(self.first, self.last)

    @property
    def rows(self) -> slice:
        """Of what is asked for."""
        return slice(self.row, self.row + self.size)


def _blocks(chosen: Sequence[int], most: int) -> list[_Block]:
    """Runs of neighbouring members, each of `most` at most."""
    found: list[_Block] = []
    for row, e in enumerate(chosen):
        last = found[-1] if found else None
        if last is not None and last.last == e and last.size < most:
            found[-1] = _Block(last.row, last.first, e + 1)
        else:
            found.append(_Block(row, e, e + 1))
    return found


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
        from robot_rl.policies.nets.kernels import half_numba  # needs numba, which only this kernel does

        self._steps = half_numba
        depth = len(shape.hidden)

        def parts(views: dict[str, Tensor], kind: str, count: int) -> list[Tensor]:
            return [views[f"{shape.prefix}{kind}{i}"].detach() for i in range(count)]

        def arrays(views: dict[str, Tensor], kind: str, count: int) -> list[np.ndarray]:
            return [part.numpy() for part in parts(views, kind, count)]

        self._weight = parts(params.view, "weight", depth + 1)
        self._bias_of = parts(params.view, "bias", depth + 1)
        self._bias = arrays(params.view, "bias", depth + 1)
        norms = depth if shape.layer_norm else 0
        self._scale, self._shift = arrays(params.view, "scale", norms), arrays(params.view, "shift", norms)
        # a target network has no gradients: what the passes sum up goes nowhere
        nowhere = FlatParams(shape.shapes(), trainable=False)
        self._nowhere = {
            kind: arrays(nowhere.view, kind, depth) for kind in ("bias", "shift", "scale")[: 1 + 2 * bool(norms)]
        }
        self._nowhere_top = nowhere.view[f"{shape.prefix}weight{depth}"][..., 0].contiguous().numpy()
        if params.grad_view:
            self._weight_grad = parts(params.grad_view, "weight", depth + 1)
            self._sum_grad = {kind: arrays(params.grad_view, kind, depth) for kind in self._nowhere}
            self._last_bias_grad = params.grad_view[f"{shape.prefix}bias{depth}"].detach()
        self._half_flat = params.flat.detach().to(torch.bfloat16)
        half = {name: self._half_flat[part].view(params.shapes[name]) for name, part in params.slices.items()}
        self._half = parts(half, "weight", depth)
        self._stale = True
        self._rooms: dict[tuple[int, int], list[_Room]] = {}  # that no pass holds, by members and rows
        self._scratch: dict[tuple[str | int, ...], Any] = {}
        self._now: list[tuple[_Block, _Room]] = []
        self._groups, self._grown = 0, 1.0

    def refresh(self) -> None:
        """Tell that the parameters changed: the bfloat16 copies are renewed when next read."""
        self._stale = True

    def take(self) -> object:
        """As `ExplicitMlp.take`: the buffers of the pass are its own until they are released."""
        saved, self._now = (self._now, self._groups, self._grown), []
        return saved

    def restore(self, saved: Any) -> None:
        """As `ExplicitMlp.restore`."""
        self._free(room for _, room in self._now)
        self._now, self._groups, self._grown = saved

    def release(self, saved: Any) -> None:
        """As `ExplicitMlp.release`: the next pass may write into these buffers."""
        if saved[0] is self._now:
            self._now = []
        self._free(room for _, room in saved[0])

    def _free(self, rooms: Iterable[_Room]) -> None:
        for room in rooms:
            count, size = room.layers[0].h.value.shape[:2]
            self._rooms.setdefault((count, size), []).append(room)

    def _room(self, count: int, size: int) -> _Room:
        """Buffers that no pass holds."""
        waiting = self._rooms.get((count, size))
        if waiting:
            return waiting.pop()
        if len({b for _, b in self._rooms} | {size}) > _SIZES:
            self._rooms.clear()
            self._scratch.clear()
        layers = []
        for width in self.shape.hidden:
            layer = _Layer(_Half.empty(count, size, width))
            if self.shape.layer_norm:
                layer.unit = np.empty((count, size, width), np.float32)
                layer.rstd = np.empty((count, size), np.float32)
            layers.append(layer)
        return _Room(layers, layers[0].h.value)

    def _half_buffer(self, name: str, *shape: int) -> _Half:
        key = (name, *shape)
        if key not in self._scratch:
            self._scratch[key] = _Half.empty(*shape)
        return self._scratch[key]

    def _buffer(self, name: str, *shape: int) -> Tensor:
        key = (name, *shape)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(shape)
        return self._scratch[key]

    @torch.no_grad()
    def forward(self, x: Tensor, members: Sequence[int] | None = None, drop: Dropout | None = None) -> Tensor:
        """As `ExplicitMlp.forward`."""
        self._begin(x, drop)
        chosen = range(self.shape.members) if members is None else members
        low_x = x.to(torch.bfloat16)
        out = x.new_empty(len(chosen), x.shape[-2], self.shape.outputs)
        factors = None if drop is None else drop.factors(self.shape, len(chosen), x)
        for block in _blocks(chosen, _BLOCK):
            room = self._room(block.size, x.shape[-2])
            room.x = self._inputs(low_x, block)
            own = None if factors is None else [factor[block.rows] for factor in factors]
            self._hidden(self._inputs(x, block), room, block.members, own)
            self._last(room, block.members, out[block.rows])
            self._now.append((block, room))
        return out

    def _begin(self, x: Tensor, drop: Dropout | None) -> None:
        if self._stale:
            self._half_flat.copy_(self.params.flat)
            self._stale = False
        self._free(room for _, room in self._now)
        self._now = []
        self._groups = 0 if x.dim() == 2 else len(x)
        self._grown = 1.0 if drop is None else 1.0 / (1.0 - drop.rate)

    def _group_of(self, e: int) -> int:
        return e * self._groups // self.shape.members

    def _inputs(self, x: Tensor, block: _Block) -> Tensor:
        """(n, B, inputs): each member's own rows."""
        if not self._groups:
            return x.expand(block.size, *x.shape)
        groups = [self._group_of(e) for e in range(block.first, block.last)]
        if groups[0] == groups[-1]:
            return x[groups[0]].expand(block.size, *x.shape[1:])
        return x[groups]

    def _hidden(self, x: Tensor, room: _Room, own: slice, factors: list[Tensor] | None) -> None:
        steps, (count, size) = self._steps, x.shape[:2]
        for i, (layer, width) in enumerate(zip(room.layers, self.shape.hidden)):
            bias, unit = self._bias[i][own], layer.unit
            if i == 0:
                z = self._buffer("first", count, size, width) if unit is None else torch.from_numpy(unit)
                torch.bmm(x, self._weight[0][own], out=z)
                if unit is None:
                    steps.relu_first(z.numpy(), bias, layer.h.bits)
                else:
                    scale, shift = self._scale[i][own], self._shift[i][own]
                    steps.norm_first(unit, bias, scale, shift, LN_EPS, layer.h.bits, layer.rstd)
            else:
                torch.bmm(room.layers[i - 1].h.value, self._half[i][own], out=layer.h.value)
                if unit is None:
                    steps.relu_next(layer.h.bits, bias)
                else:
                    scale, shift = self._scale[i][own], self._shift[i][own]
                    steps.norm_next(layer.h.bits, bias, scale, shift, LN_EPS, unit, layer.rstd)
            if factors is not None:
                layer.h.value.copy_(layer.h.value * factors[i])  # a float32 factor: computed in float32

    def _last(self, room: _Room, own: slice, out: Tensor) -> None:
        top = room.layers[-1].h
        if self.shape.outputs == 1:
            weight = self._weight[-1][own, :, 0].numpy()
            self._steps.head(top.bits, weight, self._bias[-1][own], out[..., 0].numpy())
        else:
            wide = self._buffer("top", *top.value.shape).copy_(top.value)
            torch.baddbmm(self._bias_of[-1][own, None], wide, self._weight[-1][own], out=out)

    @torch.no_grad()
    def backward(self, d: Tensor, *, weights: bool = True, inputs: slice | None = None) -> Tensor | None:
        """As `ExplicitMlp.backward`."""
        totals: list[Tensor | None] = [None] * max(self._groups, 1)
        for block, room in self._now:
            found = self._backward(d[block.rows], block.members, room, weights, inputs)
            for e, one in zip(range(block.first, block.last), () if found is None else found):
                group = self._group_of(e)
                total = totals[group]
                totals[group] = one if total is None else total.add_(one)
        if inputs is None:
            return None
        return torch.stack([t for t in totals if t is not None]) if self._groups else totals[0]

    def _backward(self, d: Tensor, own: slice, room: _Room, weights: bool, inputs: slice | None) -> Tensor | None:
        """Of members `own`, which a room holds; (n, B, columns) by the chosen input columns."""
        steps, depth = self._steps, len(self.shape.hidden)
        count, size = d.shape[:2]
        sums = self._sum_grad if weights else self._nowhere
        behind = sums["shift" if self.shape.layer_norm else "bias"]  # gets the sum behind the ReLU's mask
        layer = room.layers[-1]
        d_z = self._half_buffer(f"d{depth % 2}", count, size, self.shape.hidden[-1])
        weight, top = self._weight[depth][own], layer.h.bits
        if self.shape.outputs == 1:
            d_weight = (self._weight_grad[depth][own, :, 0].numpy()) if weights else self._nowhere_top[own]
            slope = d[..., 0].contiguous().numpy()
            steps.head_back(slope, top, weight[..., 0].numpy(), self._grown, d_z.bits, d_weight, behind[depth - 1][own])
        else:
            if weights:
                wide = self._buffer("top", count, size, top.shape[-1]).copy_(layer.h.value)
                torch.bmm(wide.transpose(1, 2), d, out=self._weight_grad[depth][own])
            d_h = torch.bmm(d, weight.transpose(1, 2)).numpy()
            steps.mask_wide(d_h, top, self._grown, d_z.bits, behind[depth - 1][own])
        if weights:
            torch.sum(d, 1, out=self._last_bias_grad[own])
        for i in range(depth - 1, -1, -1):
            layer = room.layers[i]
            if layer.unit is not None and layer.rstd is not None:
                scale, d_scale, d_bias = self._scale[i][own], sums["scale"][i][own], sums["bias"][i][own]
                steps.norm_back(d_z.bits, layer.unit, layer.rstd, scale, d_scale, d_bias)
            if weights:
                x = room.layers[i - 1].h.value if i else room.x
                grad = self._weight_grad[i][own]
                grad.copy_(torch.bmm(x.transpose(1, 2), d_z.value, out=self._half_buffer("grad", *grad.shape).value))
            if i > 0:
                after = self._half_buffer(f"d{i % 2}", count, size, self.shape.hidden[i - 1])
                torch.bmm(d_z.value, self._half[i][own].transpose(1, 2), out=after.value)
                steps.mask_next(after.bits, room.layers[i - 1].h.bits, self._grown, behind[i - 1][own])
                d_z = after
            elif inputs is not None:
                return torch.bmm(d_z.value, self._half[0][own, inputs].transpose(1, 2)).float()
        return None
