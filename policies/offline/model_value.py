"""Model-based evaluation: the value of a given policy in dynamics learnt from logs of others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Policy, Transitions
from robot_rl.types.options import Count, NotNegative, Rate, Whole


class ModelValue(Learner):
    """Discounted return of a fixed policy in an ensemble of learnt models.

    Every member learns from rows of its own (the caller gives each its own half of the episodes) and rolls the policy
    out by itself, so that the spread between members tells how sure the value is. Beside each model a classifier learns
    whether a step ends the episode; a roll-out weighs what follows with the chance that it has not ended. Roll-outs
    stop where the discount falls below `least_discount`, for time limits are no ends.

    Source: Chua et al., Deep RL in a Handful of Trials (PETS) for the models; Fu et al., Benchmarks for Deep Off-Policy
    Evaluation (model-based estimator). The learnt end and the clipping to what the log holds are ours.
    """

    consumes = "transitions"

    def __init__(
        self,
        io: IOSpec,
        policy: Policy,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        members: Count = 5,
        hidden: tuple[Count, ...] = (200, 200, 200),
        lr: Rate = 1e-3,
        rollouts: Count = 20,
        starts: Count = 64,
        least_discount: NotNegative = 0.01,
        deterministic: bool = True,
        kernel: str = "auto",
        metrics_every: Whole = 100,
    ) -> None:
        """Build the ensemble for `io`.

        Args:
            io: one vector observation "state".
            policy: what is evaluated; answers tensors with tensors.
            seed: of weights and roll-outs.
            device: torch device.
            gamma: discount per step of a roll-out.
            batch_size: rows per update of one member.
            members: models.
            hidden: widths of each.
            lr: step size.
            rollouts: per first state and member.
            starts: first states that are rolled out at once; more are done in turns.
            least_discount: a roll-out ends where gamma^t is below this, at the longest after 1,000 steps.
            deterministic: evaluate the policy's mode.
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if min(members, batch_size, rollouts, starts) < 1 or not 0.0 < least_discount < 1.0:
            raise ValueError(
                f"members, batch_size, rollouts, starts and least_discount are {members}, {batch_size}, {rollouts}, "
                f"{starts}, {least_discount}; expected at least 1, and (0, 1)"
            )
        size = state_size(io, "the model-based estimator")
        self.io, self.target_policy, self.seeds, self.batch_size = io, policy, members, batch_size * members
        self._gamma, self._rollouts, self._starts, self._deterministic = gamma, rollouts, starts, deterministic
        self._steps = 1000 if gamma >= 1.0 else min(1000, max(1, math.ceil(math.log(least_discount) / math.log(gamma))))
        self._generator = generator = torch.Generator(device=device).manual_seed(seed)
        self._model = Dynamics(
            size,
            io.action_dim,
            generator=generator,
            members=members,
            elites=members,
            hidden=hidden,
            lr=lr,
            kernel=kernel,
        )
        shape = MlpShape(members, size + io.action_dim, (64, 64), 1, False, "end.")
        self._end_params = FlatParams(shape.shapes(), device=device)
        shape.initialise(self._end_params, generator)
        self._end = build_mlp(shape, self._end_params, kernel=kernel, matmul="float32")
        self._lr, self._ends = lr, False
        self._reward = (-math.inf, math.inf)
        self._low, self._high = torch.full((size,), -math.inf), torch.full((size,), math.inf)
        self._state = LearnerState(
            "model-based evaluation",
            metrics_every=metrics_every,
            parts={**self._model.parts(), "end": self._end_params, "generator": generator},
            networks=(self._model.net, self._end),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the limits that predictions are clipped to: the log's rewards, and ten deviations of its states."""
        self._reward = (facts.reward_low, facts.reward_high)
        mean, std = (torch.as_tensor(x, dtype=torch.float32) for x in (facts.state_mean, facts.state_std))
        self._low, self._high = mean - 10.0 * std, mean + 10.0 * std

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of every member.

        Returns:
            The latest metrics: train/model_error, the mean squared error in standardised units.

        Raises:
            FloatingPointError: it is not finite.
        """
        wanted = self._state.tick()
        batch = next(batches)
        rows = split(batch, self.seeds, None)
        if self._state.updates <= 50:
            self._model.observe(*(x.flatten(0, 1) for x in (rows.state, rows.action, rows.next_state, rows.reward)))
        error = self._model.fit(rows.state, rows.action, rows.next_state, rows.reward)
        ended = (rows.discount <= 0.0).to(error)  # the mark of a terminal that `split` keeps
        self._ends |= bool(ended.any())
        logit = self._end.forward(self._model.input_norm(torch.cat([rows.state, rows.action], -1)))[..., 0]
        self._end.backward(((logit.sigmoid() - ended) / ended.shape[1])[..., None])  # cross-entropy
        self._end_params.adam(self._lr)
        self._end.refresh()
        return self._state.report({"model_error": error} if wanted else None)

    @torch.no_grad()
    def state_values(self, state: Tensor) -> Tensor:
        """(M, B) of raw first states (B, n): every member's mean over its roll-outs.

        Args:
            state: (B, n).
        """
        return torch.cat([self._rolled(part) for part in state.split(self._starts)], 1)

    def _rolled(self, state: Tensor) -> Tensor:
        members, count = self.seeds, len(state)
        x = state.repeat_interleave(self._rollouts, 0).expand(members, -1, -1)
        total = torch.zeros(x.shape[:2], device=x.device)
        alive = torch.ones_like(total)
        for t in range(self._steps):
            answer = self.target_policy.act({"state": x.reshape(-1, x.shape[-1])}, deterministic=self._deterministic)
            action = torch.as_tensor(answer.value).to(x).view(*x.shape[:2], -1)
            mean, std = self._model.predict(x, action)
            noise = torch.randn(mean.shape, generator=self._generator, device=x.device)
            drawn = torch.addcmul(mean, std, noise)
            total = torch.addcmul(total, alive, drawn[..., -1].clamp(*self._reward), value=self._gamma**t)
            if self._ends:
                inputs = self._model.input_norm(torch.cat([x, action], -1))
                alive = alive * (1.0 - self._end.forward(inputs)[..., 0].sigmoid())
                if float(alive.max()) < 1e-3:
                    break
            x = torch.minimum(torch.maximum(x + drawn[..., :-1], self._low), self._high)
        return total.view(members, count, self._rollouts).mean(-1)

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, optimiser, generator and counters: tensors and numbers."""
        return {**self._state.state_dict(), "ends": self._ends}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to an estimator of other sizes.
        """
        self._state.load_state_dict(state)
        self._ends = bool(state["ends"])
