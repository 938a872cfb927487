"""Contrastive preference learning: a policy straight from preferences, without a reward and without RL."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.net import Net, NetShape, mean_rows
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.preferences import Pairs
from robot_rl.policies.nets.rows import state_size
from robot_rl.state import Saved
from robot_rl.types import IOSpec, LogFacts, Options
from robot_rl.types.options import Count, NotNegative, Rate, Share, Whole


def contrastive_loss(first: Tensor, second: Tensor, preferred: Tensor, bias: float) -> Tensor:
    """Preference loss of two segments' advantages.

    y softplus(-(second - bias first)) + (1 - y) softplus(-(first - bias second)); bias < 1 keeps the worse segment from
    being pushed away without end. bias 1 is the plain contrast, log 2 for equal segments.

    Args:
        first: (P,) alpha times the sum of log-densities.
        second: (P,).
        preferred: (P,) probability that the second is better.
        bias: lambda.

    Returns:
        (P,) loss.

    Source: Hejna et al., Contrastive Preference Learning, equations 5 and 6.
    """
    return preferred * softplus(bias * first - second) + (1 - preferred) * softplus(bias * second - first)


class CplOptions(Options):
    """Of contrastive preference learning."""

    batch_size: Count = 96
    """Pairs per update."""
    hidden: tuple[Count, ...] = (512, 512)
    """Widths of the hidden layers."""
    alpha: NotNegative = 0.1
    """Temperature of the advantages; 0.2 for CPL-KL."""
    bias: Share = 0.5
    """lambda; 1 for CPL-BC, 0.75 for CPL-KL."""
    bc_weight: NotNegative = 0.0
    """Of a cloning term beside the contrast; 1 for CPL-BC."""
    bc_updates: Whole = 200_000
    """Updates of cloning before."""
    lr: Rate = 1e-4
    """Step size."""
    normalize: bool = True
    """Standardise states by the data's moments."""
    kernel: Literal["auto", "explicit", "autograd"] = "auto"
    """Gradients written out, or by torch's own operators (the reference)."""


class Cpl(Saved):
    """Policy from preferred segments: cloning of all segments first, then the contrastive loss with a new optimiser.

    The policy is deterministic; its log-density stands for -|pi(s) - a|^2.

    Source: Hejna et al., Contrastive Preference Learning: Learning from Human Feedback without RL; defaults of
    jhejna/cpl (state). Where we differ: no dropout.
    """

    saved = ("actor", "policy", "_generator", "updates")

    def __init__(self, options: CplOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the network.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of weights and batches.
            device: torch device.
        """
        self.o, self.io, self.updates = options, io, 0
        size = state_size(io, "CPL")
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if options.normalize else None
        sizes = NetShape(size, io.action_dim, options.hidden)
        self.actor = Net("actor", sizes, lr=options.lr, generator=self._generator, kernel=options.kernel)
        self.policy = MeanPolicy(io, self.actor, seed=seed + 1, normalizer=self.norm)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)

    def update(self, pairs: Pairs) -> dict[str, float]:
        """One step on `batch_size` pairs; loss, and accuracy on decided pairs once cloning is over."""
        o, params = self.o, self.actor.params
        if self.updates == o.bc_updates:  # moments of the cloning phase would push the wrong way
            for moments in (params.first, params.second, params.step):
                moments.zero_()
        self.updates += 1
        drawn = pairs.draw(o.batch_size, self._generator)
        mean = self.actor(drawn.state.flatten(0, 2) if self.norm is None else self.norm(drawn.state.flatten(0, 2)))
        error = (mean.tanh() - drawn.action.flatten(0, 2)).square().sum(-1)
        if self.updates <= o.bc_updates:
            self.actor.step(mean_rows(error))
            return {"loss": float(error.detach().mean())}
        first, second = (-o.alpha * error.view(*drawn.state.shape[:3]).sum(-1)).unbind(1)  # alpha sum of log pi
        loss = mean_rows(contrastive_loss(first, second, drawn.preferred, o.bias))
        self.actor.step(loss + o.bc_weight * mean_rows(error))
        decided = drawn.preferred != 0.5
        right = ((second > first) == (drawn.preferred > 0.5)) & decided
        accuracy = right.sum() / decided.sum().clamp_min(1)
        return {"loss": float(loss.detach()), "accuracy": float(accuracy)}
