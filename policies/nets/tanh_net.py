"""A plain perceptron of tanh layers as a module."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from robot_rl.policies.nets.initial import draw_uniform


class TanhNet(nn.Module):
    """(..., widths[0]) -> (..., widths[-1]); weights within 1 / sqrt(fan-in), the last `last` times it, biases 0."""

    def __init__(self, widths: Sequence[int], generator: torch.Generator, *, last: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)])
        for i, layer in enumerate(self.layers, 2):
            assert isinstance(layer, nn.Linear)
            bound = (last if i == len(widths) else 1.0) * layer.in_features**-0.5
            draw_uniform(layer.weight, bound, generator)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, without a bound."""
        for layer in self.layers[:-1]:
            x = layer(x).tanh()
        return self.layers[-1](x)
