"""RAVL: short rollouts of a model without any penalty, valued by diverse critics that doubt the edge of reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch

from robot_rl.policies.nets.branches import Model
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.model_phase import ModelPhase
from robot_rl.policies.nets.rows import state_size
from robot_rl.policies.offline.edac import Edac, EdacOptions
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Positive, Rate, Share, Whole


class Ravl(Learner):
    """Reach-aware value learning.

    Branches of `horizon` steps end in states that no later row begins with: their values are bootstrapped from and
    never corrected, and a policy that maximises them makes values grow without bound even in a perfect model. N diverse
    critics (EDAC) disagree there, and their minimum keeps the values down; the model's uncertainty is not used.

    Source: Sims et al., The Edge-of-Reach Problem in Offline Model-Based Reinforcement Learning; sizes
    of its code, whose values per data set could not be verified.
    """

    consumes = "transitions"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        hidden: tuple[Count, ...] = (256, 256, 256),
        critics: Count = 10,
        eta: NotNegative = 1.0,
        horizon: Count = 5,
        real_ratio: Share = 0.05,
        rollout_every: Count = 1000,
        rollout_batch: Count = 50_000,
        keep_rollouts: Count = 5,
        termination: str | None = None,
        model_updates: Whole = 50_000,
        model_members: Count = 7,
        model_elites: Count = 5,
        model_hidden: tuple[Count, ...] = (200, 200, 200, 200),
        model_lr: Rate = 1e-3,
        model: Model | None = None,
        lr: Rate = 3e-4,
        tau: Mixing = 0.005,
        init_alpha: Positive = 1.0,
        kernel: Literal["auto", "explicit", "autograd"] = "auto",
        matmul: Literal["float32", "bf16", "auto"] = "float32",
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and samples.
            device: torch device.
            gamma: discount of simulated rows; logged ones bring their own.
            batch_size: rows per update.
            hidden: widths of actor and critics.
            critics: N of EDAC.
            eta: weight of their diversity.
            horizon: steps per branch.
            real_ratio: share of logged rows in a batch.
            rollout_every: updates between rollouts.
            rollout_batch: branches begun at once.
            keep_rollouts: how many rollouts the store holds.
            termination: rule of simulated episodes: never, halfcheetah, hopper, walker2d, ant; None refuses logs with
                terminations.
            model_updates: most updates of the model.
            model_members: models.
            model_elites: those that predict.
            model_hidden: widths of the models.
            model_lr: step size of the models.
            model: true dynamics in place of the models, to separate model errors from everything else.
            lr: step size of actor and critics.
            tau: Polyak rate of the target critics.
            init_alpha: temperature at the start; where rewards are far below 1 the entropy would drown them at first.
            kernel: "auto", "explicit" or "autograd".
            matmul: of actor and critics: "float32", "bf16" or "auto".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if horizon < 1:
            raise ValueError(f"horizon is {horizon}, expected at least 1")
        size = state_size(io, "RAVL")
        self.io, self.batch_size, self._real = io, batch_size, real_ratio
        generator = torch.Generator(device=device).manual_seed(seed + 1)
        self._termination = termination
        self._phase = ModelPhase.build(
            size,
            io.action_dim,
            generator=generator,
            gamma=gamma,
            keep_rollouts=keep_rollouts,
            rollout_batch=rollout_batch,
            horizon=horizon,
            termination=termination,
            model=model,
            members=model_members,
            elites=model_elites,
            hidden=model_hidden,
            lr=model_lr,
            kernel=kernel,
            rollout_every=rollout_every,
            model_updates=model_updates,
        )
        options = EdacOptions(
            batch_size=batch_size,
            hidden=hidden,
            critics=critics,
            eta=eta,
            init_alpha=init_alpha,
            lr=lr,
            tau=tau,
            normalize=True,
            matmul=matmul,
            kernel=kernel,
            metrics_every=metrics_every,
        )
        self._inner = Edac(options, io, seed=seed, device=device)
        self.policy = self._inner.policy
        self._state = LearnerState(
            "RAVL",
            metrics_every=metrics_every,
            parts={"inner": self._inner, "generator": generator, **self._phase.parts()},
            networks=(self._phase,),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; the model may promise more than the data, so values are not bounded by it."""
        self._inner.prepare(facts)
        self._inner.unbounded()

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of the model, or, once it is fitted, one of the policy.

        Returns:
            The latest metrics: train/model_error, train/model_best while it is fitted; then those of EDAC and
            train/model_reward, train/model_doubt, train/edge_share.

        Raises:
            FloatingPointError: a metric is not finite.
            ValueError: the log holds terminations and no rule was named.
        """
        wanted = self._state.tick()
        if not self._phase.ready:
            fitted = self._phase.fit(batches)
            return self._state.report(fitted if wanted else None)
        about = self._phase.renew(self.policy, batches, self._termination is not None)
        learnt = self._inner.update(self._phase.branches.mixed(batches, self.batch_size, self._real))
        return {**learnt, **self._state.report(about if wanted else None)}

    def state_dict(self) -> dict[str, Any]:
        """Weights, model, branches, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
