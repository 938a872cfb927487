"""Contrastive preference learning: a policy straight from preferences, without a reward and without RL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.preferences import Pairs
from robot_rl.policies.nets.rows import state_size
from robot_rl.types import IOSpec, LogFacts


def contrastive_loss(first: Tensor, second: Tensor, preferred: Tensor, bias: float) -> tuple[Tensor, Tensor, Tensor]:
    """Preference loss of two segments' advantages, and its derivatives by them.

    y softplus(-(second - bias first)) + (1 - y) softplus(-(first - bias second)); bias < 1 keeps the worse segment from
    being pushed away without end. bias 1 is the plain contrast, log 2 for equal segments.

    Args:
        first: (P,) alpha times the sum of log-densities.
        second: (P,).
        preferred: (P,) probability that the second is better.
        bias: lambda.

    Returns:
        (P,) loss, (P,) derivative by `first`, (P,) by `second`.

    Source: Hejna et al., Contrastive Preference Learning, equations 5 and 6.
    """
    up, down = second - bias * first, first - bias * second
    loss = preferred * softplus(-up) + (1 - preferred) * softplus(-down)
    d_up, d_down = -preferred * (-up).sigmoid(), -(1 - preferred) * (-down).sigmoid()
    return loss, -bias * d_up + d_down, d_up - bias * d_down


class Cpl:
    """Policy from preferred segments: cloning of all segments first, then the contrastive loss with a new optimiser.

    The policy is deterministic; its log-density stands for -|pi(s) - a|^2.

    Source: Hejna et al., Contrastive Preference Learning: Learning from Human Feedback without RL; defaults of
    jhejna/cpl (state). Where we differ: no dropout.
    """

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        batch_size: int = 96,
        hidden: tuple[int, ...] = (512, 512),
        alpha: float = 0.1,
        bias: float = 0.5,
        bc_weight: float = 0.0,
        bc_updates: int = 200_000,
        lr: float = 1e-4,
        normalize: bool = True,
        kernel: str = "auto",
    ) -> None:
        """Build the network.

        Args:
            io: one vector observation "state".
            seed: of weights and batches.
            device: torch device.
            batch_size: pairs per update.
            hidden: widths of the hidden layers.
            alpha: temperature of the advantages; 0.2 for CPL-KL.
            bias: lambda; 1 for CPL-BC, 0.75 for CPL-KL.
            bc_weight: of a cloning term beside the contrast; 1 for CPL-BC.
            bc_updates: updates of cloning before.
            lr: step size.
            normalize: standardise states by the data's moments.
            kernel: "auto", "explicit" or "autograd".

        Raises:
            ValueError: an option outside its range.
        """
        if alpha < 0 or not 0.0 <= bias <= 1.0:
            raise ValueError(f"alpha is {alpha} and bias {bias}, expected alpha >= 0 and bias in [0, 1]")
        size = state_size(io, "CPL")
        self.io, self.batch_size, self.updates = io, batch_size, 0
        self._alpha, self._bias, self._bc_weight, self._bc_updates, self._lr = alpha, bias, bc_weight, bc_updates, lr
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        shape = MlpShape(1, size, tuple(hidden), io.action_dim, False, "actor.")
        self._params = FlatParams(shape.shapes(), device=device)
        shape.initialise(self._params, self._generator)
        self._actor = build_mlp(shape, self._params, kernel=kernel, matmul="float32")
        self.policy = MeanPolicy(io, shape, self._params, seed=seed + 1, normalizer=self.norm)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)

    @torch.no_grad()
    def update(self, pairs: Pairs) -> dict[str, float]:
        """One step on `batch_size` pairs; loss, and accuracy of the contrast once cloning is over."""
        if self.updates == self._bc_updates:  # moments of the cloning phase would push the wrong way
            self._params.first.zero_()
            self._params.second.zero_()
            self._params.step.zero_()
        self.updates += 1
        drawn = pairs.draw(self.batch_size, self._generator)
        count, _, steps, _ = drawn.state.shape
        state = drawn.state.flatten(0, 2)
        mean = self._actor.forward(state if self.norm is None else self.norm(state))[0].tanh_()
        diff = mean - drawn.action.flatten(0, 2)
        error = diff.square().sum(-1)
        d_clone = 2.0 * diff / len(diff)
        if self.updates <= self._bc_updates:
            d_mean, metrics = d_clone, {"loss": error.mean()}
        else:
            advantage = -self._alpha * error.view(count, 2, steps).sum(-1)
            loss, d_first, d_second = contrastive_loss(advantage[:, 0], advantage[:, 1], drawn.preferred, self._bias)
            d_error = torch.stack([d_first, d_second], 1)[..., None].expand(-1, -1, steps) * (-self._alpha / count)
            d_mean = 2.0 * diff * d_error.reshape(-1, 1) + self._bc_weight * d_clone
            right = (advantage[:, 1] > advantage[:, 0]) == (drawn.preferred > 0.5)
            metrics = {"loss": loss.mean(), "accuracy": right.float().mean()}
        self._actor.backward((d_mean * (1.0 - mean.square()))[None])
        self._params.adam(self._lr)
        self._actor.refresh()
        return {name: float(value) for name, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, generators and the counter."""
        return {
            "actor": self._params.state_dict(),
            "policy": self.policy.state_dict(),
            "generator": self._generator.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        self._params.load_state_dict(state["actor"])
        self.policy.load_state_dict(state["policy"])
        self._generator.set_state(state["generator"].cpu())
        self.updates = int(state["updates"])
        self._actor.refresh()
