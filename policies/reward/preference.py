"""Rewards from preferences: a Bradley-Terry ensemble, combined cautiously."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from robot_rl.policies.nets.cautious import Combination, combine
from robot_rl.policies.nets.net import Net, NetShape, mean_rows
from robot_rl.policies.nets.preferences import Pairs
from robot_rl.state import Saved
from robot_rl.types import Options
from robot_rl.types.options import Count, NotNegative, Rate


class RewardOptions(Options):
    """Of a reward learnt from preferred segments."""

    members: Count = 3
    """Networks."""
    hidden: tuple[Count, ...] = (256, 256, 256)
    """Widths of the hidden layers."""
    batch_size: Count = 128
    """Pairs per update and member."""
    lr: Rate = 3e-4
    """Step size."""
    combination: Combination = "mean"
    """Of the members: their mean, their least (wco), or the mean less `caution` times their variance (uwo)."""
    caution: NotNegative = 0.1
    """c of "uwo"."""
    kernel: Literal["auto", "explicit", "autograd"] = "auto"
    """Gradients written out, or by torch's own operators (the reference)."""


class RewardEnsemble(Saved):
    """Reward networks of a state and an action, learnt from preferred segments.

    A segment's score is the sum of its rewards; P(second better) = sigmoid(score_2 - score_1); cross-entropy against
    the label, one half for a tie. Members differ in their initial weights and in the pairs they see.

    Source: Christiano et al., Deep RL from Human Preferences; sizes and tanh output of RL-VLM-F's reward_model.py.
    Where we differ: ReLU in place of LeakyReLU.
    """

    saved = ("net", "_mean", "_std", "_generator")

    def __init__(self, options: RewardOptions, state: int, action: int, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the networks.

        Args:
            options: of the reward.
            state: width of the state.
            action: width of the action.
            seed: of weights and batches.
            device: torch device.
        """
        self.o, self.members = options, options.members
        self._generator = torch.Generator(device=device).manual_seed(seed)
        sizes = NetShape(state + action, hidden=options.hidden, seeds=options.members)
        self.net = Net("reward", sizes, lr=options.lr, generator=self._generator, kernel=options.kernel)
        self._mean = torch.zeros(self.members, device=device)
        self._std = torch.ones(self.members, device=device)

    def update(self, pairs: Pairs) -> dict[str, float]:
        """One step, every member on pairs of its own.

        Returns:
            loss (mean cross-entropy) and accuracy (share of decided pairs that are ordered as labelled).
        """
        drawn = [pairs.draw(self.o.batch_size, self._generator) for _ in range(self.members)]
        label = torch.stack([d.preferred for d in drawn])
        logit = self._logit(torch.stack([d.state for d in drawn]), torch.stack([d.action for d in drawn]))
        loss = binary_cross_entropy_with_logits(logit, label, reduction="none")
        self.net.step(mean_rows(loss))
        decided = label != 0.5
        right = ((logit > 0) == (label > 0.5)) & decided
        return {"loss": float(loss.detach().mean()), "accuracy": float(right.sum() / decided.sum().clamp_min(1))}

    def _logit(self, state: Tensor, action: Tensor) -> Tensor:
        """(E, P) score_2 - score_1 of segments (E, P, 2, L, ...)."""
        reward = self._raw(state.flatten(1, 3), action.flatten(1, 3))
        score = reward.view(*state.shape[:4]).sum(-1)
        return score[..., 1] - score[..., 0]

    def fit(self, pairs: Pairs, *, updates: int = 2000, accuracy: float = 0.97) -> dict[str, float]:
        """Update until the running accuracy reaches `accuracy`, at most `updates` times; the last metrics."""
        smooth, metrics = 0.0, {"loss": math.nan, "accuracy": math.nan}
        for i in range(updates):
            metrics = self.update(pairs)
            smooth += 0.05 * (metrics["accuracy"] - smooth)
            if i > 100 and smooth >= accuracy:
                break
        return metrics

    @torch.no_grad()
    def probabilities(self, pairs: Pairs) -> Tensor:
        """(E, P) P(second better) of every member, where the pairs lie; for choosing queries."""
        logit = self._logit(*(x.expand(self.members, *x.shape) for x in (pairs.state, pairs.action)))
        return logit.sigmoid().to(pairs.state.device)

    @torch.no_grad()
    def calibrate(self, state: Tensor, action: Tensor) -> None:
        """Bring every member to mean 0 and standard deviation 1 over a data set (N, ...).

        Without it the minimum mixes scales. A member that is constant there keeps its scale, so nothing becomes
        infinite.
        """
        raw = self._every(state, action)
        self._mean, std = raw.mean(1), raw.std(1, correction=0)
        self._std = torch.where(std < 1e-6, torch.ones_like(std), std)

    def _raw(self, state: Tensor, action: Tensor) -> Tensor:
        """(E, N) of states and actions (E, N, ...)."""
        place = self._generator.device
        return self.net(state.to(place), action.to(place)).tanh()

    def _every(self, state: Tensor, action: Tensor) -> Tensor:
        """(E, N) of states and actions (N, ...)."""
        return self._raw(*(x.expand(self.members, *x.shape) for x in (state, action)))

    @torch.no_grad()
    def reward(self, state: Tensor, action: Tensor) -> Tensor:
        """(N,) combined reward of states (N, n) and actions (N, A), where they lie."""
        every = (self._every(state, action) - self._mean[:, None]) / self._std[:, None]
        return combine(every, self.o.combination, caution=self.o.caution).to(state.device)
