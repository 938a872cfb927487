"""Distributional critics for large batches: twin towers over one support, targets projected or blurred onto it."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from robot_rl import parallel
from robot_rl.policies.nets.device_mlp import Tower, freeze, leaves
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape
from robot_rl.policies.nets.value_heads import hl_gauss_head, project
from robot_rl.state import Saved
from robot_rl.types import Options
from robot_rl.types.options import Count, NotNegative, Support

AUTO_RANGE = 5.0
"""Values live in [-5, 5] when the support is automatic."""


class DeviceCriticOptions(Options):
    """Of distributional critics on a device."""

    critics: Count = 2
    """How many."""
    critic_hidden: tuple[Count, ...] = (1024, 512, 256)
    """Widths of their hidden layers."""
    activation: Literal["relu", "silu", "elu", "tanh"] = "relu"
    """Of the hidden layers of actor and critics."""
    layer_norm: bool = False
    """Normalise hidden layers of actor and critics."""
    reduce: Literal["min", "mean"] = "min"
    """How critics agree on a value: min (of the target distributions, the one with the smallest mean) or mean."""
    value_head: Literal["c51", "hlgauss"] = "c51"
    """Project the target distribution, or blur the target's mean."""
    value_range: Support | Literal["auto"] = "auto"
    """Support of the critics in units of return; auto: rewards are divided by a running scale so that values fit
    [-5, 5]."""
    bins: Annotated[int, Field(ge=2)] = 101
    """Of the support."""
    lr: NotNegative = 3e-4
    """Step size of the critics."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Of AdamW."""
    weight_decay: NotNegative = 0.0
    """Of AdamW, for all parameters of actor and critics."""
    max_grad_norm: NotNegative = 0.0
    """Largest norm of a gradient; 0 for no limit."""

    @property
    def support(self) -> tuple[float, float]:
        """Its two ends."""
        return (-AUTO_RANGE, AUTO_RANGE) if isinstance(self.value_range, str) else self.value_range


class DeviceRewardScale(Saved):
    """`value_heads.RewardScale` without a wait: the divisor of rewards that keeps values inside [-v_max, v_max].

    scale = max(headroom E|r| / (1 - E discount), max |r|) / v_max, over all rewards seen, on all processes.

    Args:
        v_max: half the width of the support.
        headroom: space for the policy to get better.
        device: of the rewards.

    Source: Lee et al., Hyperspherical Normalization for Scalable Deep RL (reward scaling); the estimate from single
    transitions is ours (docs/sac.md).
    """

    saved = ("_sum", "_largest", "scale")

    def __init__(self, v_max: float, *, headroom: float = 2.0, device: torch.device) -> None:
        self._v_max, self._headroom = v_max, headroom
        self._sum = torch.zeros(3, dtype=torch.float64, device=device)  # rows, |r|, 1 - discount
        self._largest = torch.zeros((), dtype=torch.float64, device=device)
        self.scale = torch.ones((), device=device)

    @torch.no_grad()
    def observe(self, reward: Tensor, discount: Tensor, weight: Tensor) -> None:
        """Count (B,) rewards, discounts and weights (0 leaves a row out)."""
        size, row = (reward.abs() * weight).double(), weight.double()
        here = torch.stack([row.sum(), size.sum(), ((1.0 - discount.double()) * row).sum()])
        self._sum += parallel.sum_(here)
        self._largest.copy_(torch.maximum(self._largest, parallel.max_(size.max())))
        expected = self._headroom * self._sum[1] / self._sum[2].clamp_min(1e-6)
        self.scale.copy_(torch.maximum(expected, self._largest).clamp_min(1e-8) / self._v_max)


class DeviceCritic(Saved):
    """E distributional critics and their Polyak copies.

    Attributes:
        tower: the network.
        params: online parameters; `target` the averaged ones.
        atoms: (M,) values of the bins.
        low: first value of the support.
        high: last value.
    """

    saved = ("params", "target")

    def __init__(
        self, options: DeviceCriticOptions, features: int, actions: int, *, generator: torch.Generator
    ) -> None:
        """Build and initialise.

        Args:
            options: of the critics.
            features: width of the observation.
            actions: action dimensions.
            generator: of the initial weights; its device is theirs.
        """
        o, device = options, generator.device
        shape = MlpShape(o.critics, features + actions, o.critic_hidden, o.bins, o.layer_norm, "critic.")
        self.o, self.tower = o, Tower(shape, o.activation)
        self.params = FlatParams(shape.shapes(), device=device)
        shape.initialise(self.params, generator)
        self.target = self.params.twin()
        low, high = self.low, self.high = o.support
        self._blur = hl_gauss_head(low, high, o.bins, device=device) if o.value_head == "hlgauss" else None
        grid = torch.linspace(low, high, o.bins, device=device)
        self.atoms = grid if self._blur is None else self._blur.centres
        self._leaf, self._frozen, self._aim = leaves(self.params), freeze(self.params), freeze(self.target)

    def target_distribution(
        self, feature: Tensor, action: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None
    ) -> Tensor:
        """(B, M) what the critics should say of s, a.

        Args:
            feature: (B, S) of s'.
            action: (B, A) at s'.
            reward: (B,).
            discount: (B,) gamma^k (1 - terminated).
            cost: (B,) subtracted from the value of s', e.g. alpha log pi; None for nothing.
        """
        logits = self.tower(self._aim, torch.cat([feature, action], dim=-1)).float()
        p = logits.softmax(-1)
        atoms = self.atoms if cost is None else self.atoms - cost[:, None]
        moved = torch.addcmul(reward[:, None], discount[:, None], atoms)  # (B, M)
        if self._blur is not None:
            value = (p * moved).sum(-1)
            return self._blur.spread(value.amin(0) if self.o.reduce == "min" else value.mean(0))
        if self.o.reduce == "mean":
            return project(moved, p.mean(0), self.low, self.high)
        spread = project(moved.expand_as(p), p, self.low, self.high)
        least = self._mean(spread).argmin(0)  # (B,)
        return spread.gather(0, least[None, :, None].expand(1, *spread.shape[1:]))[0]

    def loss(self, feature: Tensor, action: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """() cross-entropy, batch mean of weighted rows, summed over members; and () the mean value."""
        logits = self.tower(self._leaf, torch.cat([feature, action], dim=-1)).float()
        logp = logits.log_softmax(-1)
        row = -(target * logp).sum(-1) * weight
        return row.mean(-1).sum(), self._mean(logp.detach().exp()).mean()

    def value(self, feature: Tensor, action: Tensor) -> Tensor:
        """(B,) what an actor climbs: the critics' mean or minimum; gradients flow to the action alone."""
        logits = self.tower(self._frozen, torch.cat([feature, action], dim=-1)).float()
        value = self._mean(logits.softmax(-1))
        return value.amin(0) if self.o.reduce == "min" else value.mean(0)

    def _mean(self, probability: Tensor) -> Tensor:
        """Mean of distributions (..., M); no matrix product, which autocast would round to bfloat16."""
        return (probability * self.atoms).sum(-1)

    def edge_mass(self, target: Tensor) -> Tensor:
        """() mean mass of targets in the two end bins: above 0.05 for long, the support is too narrow."""
        return (target[:, 0] + target[:, -1]).mean()


@torch.no_grad()
def descend(params: FlatParams, lr: float, options: DeviceCriticOptions, *, weight_decay: float | None = None) -> None:
    """One AdamW step with the gradient in `params.grad`, averaged over processes; the gradient is zeroed.

    Args:
        params: values, gradient and moments.
        lr: step size.
        options: say beta2, decay and the largest norm of the gradient.
        weight_decay: in place of the options'.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, algorithm 2. Decay covers all parameters.
    """
    parallel.mean_(params.grad)
    if options.max_grad_norm:
        norm = torch.linalg.vector_norm(params.grad)
        params.grad.mul_((options.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
    decay = options.weight_decay if weight_decay is None else weight_decay
    if decay:
        params.flat.mul_(1.0 - lr * decay)
    params.adam(lr, beta2=options.beta2)
    params.grad.zero_()
