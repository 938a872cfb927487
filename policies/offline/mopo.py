"""MOPO: soft actor-critic on short rollouts of a learnt model whose rewards are lowered where the model is unsure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch

from robot_rl.policies.nets.branches import Model
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.model_phase import ModelPhase
from robot_rl.policies.nets.rows import state_size
from robot_rl.policies.offline.sac_n import SacN, SacNOptions
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Rate, Share, Whole


class Mopo(Learner):
    """Model-based offline policy optimisation.

    The first updates fit an ensemble of dynamics models; then every `rollout_every` updates branches of `horizon` steps
    begin at logged states, and a soft actor-critic learns from batches of 5 % logged and 95 % simulated rows, rewards
    being r - penalty u(s, a). `penalty=0` is MBPO without an environment; `drop_top` throws the highest predicted
    rewards away instead (sample dropout).

    Source: Yu et al., MOPO: Model-based Offline Policy Optimization, algorithm 2; Janner et al., When to Trust Your
    Model (MBPO); defaults of OfflineRL-Kit. Sample dropout is recalled (rollout dropout), its form ours.
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
        hidden: tuple[Count, ...] = (256, 256),
        critics: Count = 2,
        penalty: NotNegative = 0.5,
        uncertainty: str = "aleatoric",
        horizon: Count = 5,
        real_ratio: Share = 0.05,
        rollout_every: Count = 1000,
        rollout_batch: Count = 50_000,
        keep_rollouts: Count = 5,
        drop_top: Share = 0.0,
        termination: str | None = None,
        model_updates: Whole = 50_000,
        model_members: Count = 7,
        model_elites: Count = 5,
        model_hidden: tuple[Count, ...] = (200, 200, 200, 200),
        model_lr: Rate = 1e-3,
        model: Model | None = None,
        lr: Rate = 3e-4,
        tau: Mixing = 0.005,
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
            critics: of the soft actor-critic.
            penalty: lambda; halfcheetah 0.5 (2.5 medium-expert), hopper 5 (2.5), walker2d 0.5 (2.5).
            uncertainty: "aleatoric" (largest norm of the predicted deviations) or "disagreement" of the elites.
            horizon: steps per branch; 5, walker2d medium-replay and medium-expert 1.
            real_ratio: share of logged rows in a batch.
            rollout_every: updates between rollouts.
            rollout_batch: branches begun at once.
            keep_rollouts: how many rollouts the store holds.
            drop_top: share of simulated rows with the highest reward that is thrown away.
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
            kernel: "auto", "explicit" or "autograd".
            matmul: of actor and critics: "float32", "bf16" or "auto".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if uncertainty not in ("aleatoric", "disagreement") or not 0.0 <= drop_top < 1.0 or horizon < 1:
            raise ValueError(
                f"uncertainty is '{uncertainty}', drop_top {drop_top}, horizon {horizon}; expected 'aleatoric' or "
                "'disagreement', [0, 1) and at least 1"
            )
        size = state_size(io, "MOPO")
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
            penalty=penalty,
            uncertainty=uncertainty,
            drop_top=drop_top,
        )
        options = SacNOptions(
            batch_size=batch_size,
            hidden=hidden,
            critics=critics,
            lr=lr,
            tau=tau,
            normalize=True,
            matmul=matmul,
            kernel=kernel,
            metrics_every=metrics_every,
        )
        self._inner = SacN(options, io, seed=seed, device=device)
        self.policy = self._inner.policy
        self._state = LearnerState(
            "MOPO",
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
            The latest metrics: train/model_error, train/model_best while it is fitted; then those of SAC-N and
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
