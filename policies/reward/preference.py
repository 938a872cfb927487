"""Rewards from preferences: a Bradley-Terry ensemble, combined cautiously."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.cautious import combine
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.preferences import Pairs
from robot_rl.types.options import Count, NotNegative, Rate


class RewardEnsemble:
    """Reward networks of a state and an action, learnt from preferred segments.

    A segment's score is the sum of its rewards; P(second better) = sigmoid(score_2 - score_1); cross-entropy against
    the label, one half for a tie. Members differ in their initial weights and in the pairs they see.

    Source: Christiano et al., Deep RL from Human Preferences; sizes and tanh output of RL-VLM-F's reward_model.py.
    Where we differ: ReLU in place of LeakyReLU.
    """

    def __init__(
        self,
        state: int,
        action: int,
        *,
        seed: int = 0,
        device: str = "cpu",
        members: Count = 3,
        hidden: tuple[Count, ...] = (256, 256, 256),
        batch_size: Count = 128,
        lr: Rate = 3e-4,
        combination: str = "mean",
        caution: NotNegative = 0.1,
        kernel: str = "auto",
    ) -> None:
        """Build the networks.

        Args:
            state: width of the state.
            action: width of the action.
            seed: of weights and batches.
            device: torch device.
            members: networks.
            hidden: widths of the hidden layers.
            batch_size: pairs per update and member.
            lr: step size.
            combination: "mean", "wco" or "uwo".
            caution: c of "uwo".
            kernel: "auto", "explicit" or "autograd".

        Raises:
            ValueError: an option outside its range.
        """
        combine(torch.zeros(1, 1), combination, caution=caution)
        self.members, self.batch_size = members, batch_size
        self._how, self._caution, self._lr = combination, caution, lr
        self._generator = torch.Generator(device=device).manual_seed(seed)
        shape = MlpShape(members, state + action, tuple(hidden), 1, False, "reward.")
        self._params = FlatParams(shape.shapes(), device=device)
        shape.initialise(self._params, self._generator)
        self._net = build_mlp(shape, self._params, kernel=kernel, matmul="float32")
        self._mean = torch.zeros(members, device=device)
        self._std = torch.ones(members, device=device)

    @torch.no_grad()
    def update(self, pairs: Pairs) -> dict[str, float]:
        """One step, every member on pairs of its own.

        Returns:
            loss (mean cross-entropy) and accuracy (share of decided pairs that are ordered as labelled).
        """
        drawn = [pairs.draw(self.batch_size, self._generator) for _ in range(self.members)]
        state, action, label = (
            torch.stack([getattr(d, name) for d in drawn]) for name in ("state", "action", "preferred")
        )
        size, steps = label.shape[1], state.shape[3]
        x = torch.cat([state, action], dim=-1).flatten(1, 3)
        reward = self._net.forward(x)[..., 0].tanh_()
        score = reward.view(self.members, size, 2, steps).sum(-1)
        logit = score[..., 1] - score[..., 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, label)
        d_logit = (logit.sigmoid() - label) / size
        d_score = torch.stack([-d_logit, d_logit], dim=-1)[..., None].expand(-1, -1, -1, steps)
        d_out = d_score.reshape(self.members, -1) * (1.0 - reward.square())
        self._net.backward(d_out[..., None])
        self._params.adam(self._lr)
        self._net.refresh()
        decided = label != 0.5
        right = ((logit > 0) == (label > 0.5)) & decided
        return {"loss": float(loss), "accuracy": float(right.sum() / decided.sum().clamp_min(1))}

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
        """(E, P) P(second better) of every member; for choosing queries."""
        x = torch.cat([pairs.state, pairs.action], dim=-1).flatten(0, 2)
        score = self._net.forward(x)[..., 0].tanh().view(self.members, len(pairs), 2, -1).sum(-1)
        return (score[..., 1] - score[..., 0]).sigmoid()

    @torch.no_grad()
    def calibrate(self, state: Tensor, action: Tensor) -> None:
        """Bring every member to mean 0 and standard deviation 1 over a data set (N, ...).

        Without it the minimum mixes scales. A member that is constant there keeps its scale, so nothing becomes
        infinite.
        """
        raw = self._raw(state, action)
        self._mean, std = raw.mean(1), raw.std(1, correction=0)
        self._std = torch.where(std < 1e-6, torch.ones_like(std), std)

    def _raw(self, state: Tensor, action: Tensor) -> Tensor:
        return self._net.forward(torch.cat([state, action], dim=-1))[..., 0].tanh_()

    @torch.no_grad()
    def reward(self, state: Tensor, action: Tensor) -> Tensor:
        """(N,) combined reward of states (N, n) and actions (N, A)."""
        every = (self._raw(state, action) - self._mean[:, None]) / self._std[:, None]
        return combine(every, self._how, caution=self._caution)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, scales and generator: tensors only."""
        return {
            "reward": self._params.state_dict(),
            "mean": self._mean.clone(),
            "std": self._std.clone(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        self._params.load_state_dict(state["reward"])
        self._mean, self._std = state["mean"].clone(), state["std"].clone()
        self._generator.set_state(state["generator"].cpu())
        self._net.refresh()
