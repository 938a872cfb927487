"""Critics with batch renormalisation: batch moments where they agree with the running ones, those where they do not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.initial import draw_uniform
from robot_rl.policies.nets.net import Leaves
from robot_rl.types import StateDict

_R_MAX, _D_MAX = 3.0, 5.0
_EPS = 1e-3


@dataclass(frozen=True)
class Renorm:
    """How running moments move: `momentum` per pass, after `warm` training passes of plain batch normalisation."""

    momentum: float
    warm: int


class RenormCritic(Leaves):
    """E perceptrons (E, B) with batch renormalisation of the input and behind every hidden ReLU.

    Training: (x - m) / s r + d with the batch's moments m, s; r = s / s' and d = (m - m') / s' have no gradient and are
    clipped to [1/3, 3] and [-5, 5], so that a batch that agrees with the running moments m', s' is normalised by them.
    In the first `warm` passes r = 1, d = 0 (plain batch normalisation). Otherwise: (x - m') / s'.

    Args:
        members: E.
        inputs: width of the input.
        hidden: widths.
        renorm: how running moments move.
        generator: of the weights (uniform within 1 / sqrt(width)).
        lr: step size.
        beta1: of Adam.

    Source: Ioffe, Batch Renormalization; Bhatt et al., CrossQ (adityab/CrossQ).
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: tuple[int, ...],
        renorm: Renorm,
        *,
        generator: torch.Generator,
        lr: float = 1e-3,
        beta1: float = 0.9,
    ) -> None:
        device = generator.device
        widths = (inputs, *hidden, 1)
        self._depth, self._renorm, self.beta1 = len(hidden), renorm, beta1
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (low, high) in enumerate(itertools.pairwise(widths)):
            shapes |= {f"scale{i}": (members, low), f"shift{i}": (members, low)}
            shapes |= {f"weight{i}": (members, low, high), f"bias{i}": (members, high)}
        params = FlatParams(shapes, device=device)
        for i, low in enumerate(widths[:-1]):
            for name in (f"weight{i}", f"bias{i}"):
                draw_uniform(params.view[name], low**-0.5, generator)
            params.view[f"scale{i}"].fill_(1.0)
        super().__init__("critic", params, lr=lr, free=list(shapes))
        self.mean = [torch.zeros(members, low, device=device) for low in widths[:-1]]
        self.square = [torch.ones(members, low, device=device) for low in widths[:-1]]  # variances
        self.passes = torch.zeros((), dtype=torch.int64, device=device)

    def forward(self, x: Tensor, *, train: bool) -> Tensor:
        """(E, B) values of inputs (B, inputs), with gradient.

        Args:
            x: inputs.
            train: normalise by the batch and move the running moments.
        """
        h = x.expand(len(self.mean[0]), -1, -1)
        for i in range(self._depth + 1):
            h = torch.addcmul(self[f"shift{i}"][:, None], self._normal(h, i, train), self[f"scale{i}"][:, None])
            h = torch.baddbmm(self[f"bias{i}"][:, None], h, self[f"weight{i}"])
            if i < self._depth:
                h = h.relu()
        if train:
            self.passes += 1
        return h[..., 0]

    def _normal(self, h: Tensor, i: int, train: bool) -> Tensor:
        mean, var = self.mean[i], self.square[i]
        old = (var + _EPS).sqrt()
        if not train:
            return (h - mean[:, None]) / old[:, None]
        m, v = h.mean(1), h.var(1, correction=0)
        s = (v + _EPS).sqrt()
        out = (h - m[:, None]) / s[:, None]
        with torch.no_grad():
            if int(self.passes) >= self._renorm.warm:
                r = (s / old).clamp(1.0 / _R_MAX, _R_MAX)
                d = ((m - mean) / old).clamp(-_D_MAX, _D_MAX)
            else:
                r, d = torch.ones_like(s), torch.zeros_like(s)
        out = out * r[:, None] + d[:, None]
        with torch.no_grad():
            mean.lerp_(m, 1.0 - self._renorm.momentum)
            var.lerp_(v, 1.0 - self._renorm.momentum)
        return out

    def state_dict(self) -> StateDict:
        """Weights, Adam's moments and running moments."""
        moments = {f"mean{i}": x.clone() for i, x in enumerate(self.mean)}
        moments |= {f"square{i}": x.clone() for i, x in enumerate(self.square)}
        return {**super().state_dict(), **moments, "passes": self.passes.clone()}

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place."""
        super().load_state_dict(state)
        for name, moments in (("mean", self.mean), ("square", self.square)):
            for i, x in enumerate(moments):
                x.copy_(state[f"{name}{i}"])
        self.passes.copy_(state["passes"])
