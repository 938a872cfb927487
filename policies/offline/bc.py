"""Behaviour cloning: supervised learning of the data's actions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Transitions

_LOG_STD_RANGE = (-5.0, 2.0)
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Bc(Learner):
    """Behaviour cloning, deterministic (squared error) or Gaussian (log-likelihood).

    On a share of the best episodes (`robot-rl offline top_fraction=0.1`) it is %BC, the baseline that tells whether a
    method gains by more than choosing good episodes.

    Source: CORL any_percent_bc.py (deterministic network, defaults); Chen et al., Decision Transformer (%BC).
    """

    consumes = "transitions"
    rewardless = True

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: int = 256,
        seeds: int = 1,
        hidden: tuple[int, ...] = (256, 256),
        gaussian: bool = False,
        lr: float = 3e-4,
        actor_decay: int = 0,
        explore: float = 0.0,
        normalize: bool = True,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: int = 100,
    ) -> None:
        """Build the network for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights.
            device: torch device.
            gamma: part of every learner's signature; not used.
            batch_size: rows per update of one seed.
            seeds: how many independent runs are trained side by side, each on rows of its own.
            hidden: widths of the hidden layers.
            gaussian: learn a state-free standard deviation as well, by log-likelihood.
            lr: step size.
            actor_decay: updates over which the actor's step size falls to 0 as a cosine (ours); 0 keeps it.
            explore: noise of the deterministic policy when it acts stochastically.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if min(seeds, batch_size) < 1:
            raise ValueError(f"seeds is {seeds} and batch_size {batch_size}, expected at least 1")
        size, actions = state_size(io, "BC"), io.action_dim
        self.io, self.seeds, self.batch_size = io, seeds, batch_size * seeds
        self._gaussian, self._lr, self._decay = gaussian, lr, actor_decay
        generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        shape = MlpShape(seeds, size, tuple(hidden), actions, False, "actor.")
        self._params = FlatParams({**shape.shapes(), "log_std": (seeds, actions)}, device=device)
        shape.initialise(self._params, generator)
        self._actor = build_mlp(shape, self._params, kernel=kernel, matmul=matmul)
        self.policy = MeanPolicy(
            io,
            shape,
            self._params,
            seed=seed + 1,
            normalizer=self.norm,
            log_std="log_std" if gaussian else None,
            log_std_range=_LOG_STD_RANGE,
            noise=explore,
        )
        self._state = LearnerState(
            "BC",
            metrics_every=metrics_every,
            parts={"actor": self._params, "policy": self.policy},
            networks=(self._actor,),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One gradient step on one batch.

        Returns:
            The latest metrics: train/loss and train/clone_error (mean squared error).

        Raises:
            FloatingPointError: a metric is not finite.
        """
        wanted = self._state.tick()
        rows = split(next(batches), self.seeds, self.norm)
        mean = self._actor.forward(rows.state).tanh_()
        diff = mean - rows.action
        size, width = diff.shape[1:]
        loss = diff.square()
        error = loss
        if self._gaussian:
            log_std = self._params.view["log_std"]
            bounded = log_std.clamp(*_LOG_STD_RANGE)
            precision = (-2.0 * bounded).exp()[:, None]
            square = error * precision
            loss = (0.5 * square).sum(-1) + bounded.sum(-1, keepdim=True) + width * _HALF_LOG_TAU
            d_mean = diff * precision * (1.0 / size)
            self._params.grad_view["log_std"].copy_((1.0 - square).mean(1) * (bounded == log_std))
        else:
            d_mean = diff * (2.0 / (size * width))
            self._params.grad_view["log_std"].zero_()
        self._actor.backward(d_mean.mul_(1.0 - mean.square()))
        self._params.adam(self._state.falling(self._lr, self._decay))
        self._actor.refresh()
        return self._state.report({"loss": loss.mean(), "clone_error": error.mean()} if wanted else None)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
