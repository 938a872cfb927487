"""Sizes and initial weights of ensembles of perceptrons, and the units that dropout leaves out."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams

LN_EPS = 1e-5


@dataclass(frozen=True)
class MlpShape:
    """Sizes of E perceptrons: inputs -> hidden (ReLU, optional LayerNorm before it) -> outputs.

    Attributes:
        members: E.
        inputs: width of the shared input.
        hidden: widths of the hidden layers, at least one.
        outputs: width of the output.
        layer_norm: normalise every hidden layer before its ReLU.
        prefix: of the parameter names.
    """

    members: int
    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    layer_norm: bool = False
    prefix: str = ""

    def __post_init__(self) -> None:
        if not self.hidden or min(self.members, self.inputs, self.outputs, *self.hidden) < 1:
            raise ValueError(
                f"a network of {self.inputs} inputs, layers of {list(self.hidden)} and {self.outputs} outputs is none; "
                "expected at least one hidden layer, and no size below 1, such as hidden=[256,256]"
            )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape: weights (E, in, out), biases (E, out), LayerNorm scale and shift (E, out)."""
        widths = (self.inputs, *self.hidden, self.outputs)
        result: dict[str, tuple[int, ...]] = {}
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
            result[f"{self.prefix}weight{i}"] = (self.members, fan_in, fan_out)
            result[f"{self.prefix}bias{i}"] = (self.members, fan_out)
            if self.layer_norm and i < len(self.hidden):
                result[f"{self.prefix}scale{i}"] = (self.members, fan_out)
                result[f"{self.prefix}shift{i}"] = (self.members, fan_out)
        return result

    @torch.no_grad()
    def initialise(self, params: FlatParams, generator: torch.Generator) -> None:
        """Fill with U(-1/sqrt(fan_in), 1/sqrt(fan_in)), torch's own default for linear layers; LayerNorm 1 and 0."""
        for name, shape in self.shapes().items():
            kind = name.removeprefix(self.prefix).rstrip("0123456789")
            layer = int(name.removeprefix(self.prefix + kind))
            view = params.view[name]
            if kind == "scale":
                view.fill_(1.0)
            elif kind == "shift":
                view.zero_()
            else:
                bound = 1.0 / math.sqrt((self.inputs, *self.hidden)[layer])
                draw = torch.rand(shape, generator=generator, device=generator.device, dtype=view.dtype)
                view.copy_(draw.mul_(2 * bound).sub_(bound))


@dataclass(frozen=True)
class Dropout:
    """Hidden units that a forward pass leaves out: each with probability `rate`, the others grow by 1 / (1 - rate).

    Source: Srivastava et al., Dropout (inverted, as torch has it).
    """

    rate: float
    generator: torch.Generator

    def factors(self, shape: MlpShape, members: int, like: Tensor) -> list[Tensor]:
        """(E, B, width) factors of every hidden layer, 0 or 1 / (1 - rate), for rows `like` (..., B, inputs)."""
        keep = 1.0 - self.rate
        return [
            torch.rand(members, like.shape[-2], width, generator=self.generator, device=like.device, dtype=like.dtype)
            .lt_(keep)
            .div_(keep)
            for width in shape.hidden
        ]
