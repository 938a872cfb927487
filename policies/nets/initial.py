"""Initial weights that some methods ask for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape


@torch.no_grad()
def draw_uniform(weight: Tensor, bound: float, generator: torch.Generator) -> None:
    """Draw a weight anew, in place, from [-bound, bound)."""
    draw = torch.rand(weight.shape, generator=generator, device=generator.device)
    weight.copy_(draw * (2 * bound) - bound)


@torch.no_grad()
def small_outputs(shape: MlpShape, params: FlatParams, generator: torch.Generator, *, last: float) -> None:
    """Weights U(-1/sqrt(fan_in), 1/sqrt(fan_in)), hidden biases 0.1, output weights and biases U(-last, last).

    Source: CORL rebrac.py, sac_n.py and edac.py.
    """
    shape.initialise(params, generator)
    depth = len(shape.hidden)
    for i in range(depth):
        params.view[f"{shape.prefix}bias{i}"].fill_(0.1)
    for kind in ("weight", "bias"):
        view = params.view[f"{shape.prefix}{kind}{depth}"]
        view.copy_((torch.rand(view.shape, generator=generator, device=view.device) * 2 - 1) * last)


@torch.no_grad()
def orthogonal(shape: MlpShape, params: FlatParams, generator: torch.Generator, *, last: float = 1e-2) -> None:
    """Orthogonal weights with gain sqrt(2), output weights with gain `last`, all biases 0.

    Source: Saxe et al., Exact solutions to the nonlinear dynamics of learning; gains of CORL cql.py.
    """
    shape.initialise(params, generator)
    depth = len(shape.hidden)
    for i in range(depth + 1):
        gain = last if i == depth else math.sqrt(2.0)
        params.view[f"{shape.prefix}bias{i}"].zero_()
        for weight in params.view[f"{shape.prefix}weight{i}"]:
            rows, columns = weight.shape
            draw = torch.randn(max(rows, columns), min(rows, columns), generator=generator, device=weight.device)
            q, r = torch.linalg.qr(draw)
            q *= torch.sign(torch.diagonal(r))
            weight.copy_(gain * (q if rows >= columns else q.T))
