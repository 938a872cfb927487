"""A world model in a normalised latent space: encoder, dynamics, reward, an ensemble of values and a policy prior."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, mish

_LOG_STD = (-10.0, 2.0)
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def sim_norm(x: Tensor, group: int) -> Tensor:
    """Softmax within groups of `group` numbers: (..., n) -> (..., n), each group a point of a simplex.

    Source: Hansen et al., TD-MPC2 (2024), section 3.1; a code that can neither grow nor collapse to one scale.
    """
    return x.unflatten(-1, (-1, group)).softmax(-1).flatten(-2)


class Stack(nn.Module):
    """E networks side by side: hidden layers linear, LayerNorm, Mish; the last one linear, with SimNorm or nothing.

    Args:
        members: E.
        sizes: inputs, hidden widths and outputs.
        group: of the SimNorm behind the last layer, after its LayerNorm; 0: neither.
        generator: of the weights, normal with 0.02 as in the source, biases 0.
        zero: the last layer begins at 0, so that distributions over bins begin alike.
    """

    def __init__(
        self, members: int, sizes: Sequence[int], generator: torch.Generator, *, group: int = 0, zero: bool = False
    ) -> None:
        super().__init__()
        self.group = group
        weights, biases, gains, shifts = [], [], [], []
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            last = i == len(sizes) - 2
            draw = torch.zeros(members, a, b) if last and zero else torch.empty(members, a, b)
            if not (last and zero):
                nn.init.trunc_normal_(draw, std=0.02, generator=generator)
            weights.append(nn.Parameter(draw))
            biases.append(nn.Parameter(torch.zeros(members, 1, b)))
            if not last or group:
                gains.append(nn.Parameter(torch.ones(members, 1, b)))
                shifts.append(nn.Parameter(torch.zeros(members, 1, b)))
        self.weights, self.biases = nn.ParameterList(weights), nn.ParameterList(biases)
        self.gains, self.shifts = nn.ParameterList(gains), nn.ParameterList(shifts)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs), the same for all, -> (E, B, outputs)."""
        x = x.expand(len(self.weights[0]), *x.shape)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            x = torch.baddbmm(bias, x, weight)
            if i < len(self.gains):
                x = layer_norm(x, x.shape[-1:]) * self.gains[i] + self.shifts[i]
            if i < len(self.weights) - 1:
                x = mish(x)
        return sim_norm(x, self.group) if self.group else x


class LatentModel(nn.Module):
    """What is learnt of the task, all in the latent space of the encoder.

    Attributes:
        encoder: (B, S) -> (1, B, Z).
        dynamics: (B, Z + A) -> (1, B, Z).
        reward: (B, Z + A) -> (1, B, bins).
        critics: (B, Z + A) -> (E, B, bins).
    """

    def __init__(
        self, state: int, actions: int, *, latent: int, hidden: int, group: int, critics: int, bins: int,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        """Build the parts; `state` S, `actions` A, `latent` Z."""
        super().__init__()
        self.encoder = Stack(1, (state, hidden, latent), generator, group=group)
        both = latent + actions
        self.dynamics = Stack(1, (both, hidden, hidden, latent), generator, group=group)
        self.reward = Stack(1, (both, hidden, hidden, bins), generator, zero=True)
        self.critics = Stack(critics, (both, hidden, hidden, bins), generator, zero=True)

    def next(self, z: Tensor, action: Tensor) -> Tensor:
        """(B, Z) the latent after an action."""
        return self.dynamics(torch.cat([z, action], -1))[0]


class Prior(nn.Module):
    """Gaussian through tanh, from latents."""

    def __init__(self, latent: int, actions: int, hidden: int, generator: torch.Generator) -> None:
        """Sizes as in `LatentModel`."""
        super().__init__()
        self.net = Stack(1, (latent, hidden, hidden, 2 * actions), generator)

    def forward(self, z: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Actions (B, A) and their log-densities (B,); the mean action where `noise` (B, A) is None.

        Log standard deviations are squashed between -10 and 2, as in the source.
        """
        mean, raw = self.net(z)[0].chunk(2, -1)
        log_std = _LOG_STD[0] + 0.5 * (_LOG_STD[1] - _LOG_STD[0]) * (raw.tanh() + 1.0)
        if noise is None:
            return mean.tanh(), torch.zeros_like(mean[:, 0])
        action = (mean + log_std.exp() * noise).tanh()
        density = -0.5 * noise.square() - log_std - _HALF_LOG_TAU - (1.0 - action.square() + 1e-6).log()
        return action, density.sum(-1)
