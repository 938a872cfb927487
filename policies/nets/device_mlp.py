"""Perceptrons for large batches on a device: members evaluated together, made of torch operators that compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape

ACTIVATIONS = {
    "relu": torch.relu,
    "silu": functional.silu,
    "elu": functional.elu,
    "tanh": torch.tanh,
}
Views = Mapping[str, Tensor]


@dataclass(frozen=True)
class Tower:
    """A perceptron of E members as a function of named parameters: no state of its own.

    Attributes:
        shape: sizes and parameter names.
        activation: "relu", "silu", "elu" or "tanh"; with LayerNorm, after it.
    """

    shape: MlpShape
    activation: str = "relu"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation is '{self.activation}', expected one of {', '.join(ACTIVATIONS)}")

    def __call__(self, view: Views, x: Tensor) -> Tensor:
        """(B, inputs), the same for all members -> (E, B, outputs)."""
        shape, function = self.shape, ACTIVATIONS[self.activation]
        depth = len(shape.hidden)
        h = x.expand(shape.members, *x.shape)
        for i in range(depth + 1):
            name = f"{shape.prefix}weight{i}"
            h = torch.baddbmm(view[name.replace("weight", "bias")].unsqueeze(1), h, view[name])
            if i < depth:
                if shape.layer_norm:
                    h = functional.layer_norm(h, (shape.hidden[i],))
                    scale, shift = view[f"{shape.prefix}scale{i}"], view[f"{shape.prefix}shift{i}"]
                    h = torch.addcmul(shift.unsqueeze(1), h, scale.unsqueeze(1))
                h = function(h)
        return h

    @torch.no_grad()
    def small_outputs(self, params: FlatParams, generator: torch.Generator, std: float) -> None:
        """Output weights from N(0, std), output biases 0: the first actions are near zero."""
        depth = len(self.shape.hidden)
        weight = params.view[f"{self.shape.prefix}weight{depth}"]
        weight.copy_(torch.randn(weight.shape, generator=generator, device=weight.device) * std)
        params.view[f"{self.shape.prefix}bias{depth}"].zero_()


def leaves(params: FlatParams) -> dict[str, Tensor]:
    """Parameters as autograd leaves whose gradients are `params.grad_view`: backward adds to the flat gradient."""
    made = {}
    for name, view in params.view.items():
        made[name] = view.detach().requires_grad_()
        made[name].grad = params.grad_view[name]
    return made


def freeze(params: FlatParams) -> dict[str, Tensor]:
    """Parameters that autograd does not see."""
    return {name: view.detach() for name, view in params.view.items()}
