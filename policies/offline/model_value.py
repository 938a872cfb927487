"""Model-based evaluation: the value of a given policy in dynamics learnt from logs of others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.policies.nets.estimator import Estimator, EstimatorOptions
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.rows import split
from robot_rl.types import IOSpec, LogFacts, Metrics, Policy, StateDict, Transitions
from robot_rl.types.options import Count, Rate

_LONGEST = 1000
"""Steps of a roll-out at most."""


class ModelValueOptions(EstimatorOptions):
    """Of model-based evaluation."""

    hidden: tuple[Count, ...] = (200, 200, 200)
    """Widths of every model."""
    lr: Rate = 1e-3
    """Step size."""
    rollouts: Count = 20
    """Per first state and member."""
    starts: Count = 64
    """First states that are rolled out at once; more are done in turns."""
    matmul: Literal["float32", "bf16", "auto"] = "float32"
    """Of the square products of what says that an episode ends; models predict small differences in float32."""
    least_discount: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """A roll-out ends where gamma^t is below this, at the longest after 1,000 steps."""


class ModelValue(Estimator[ModelValueOptions]):
    """Discounted return of a fixed policy in an ensemble of learnt models.

    Every member rolls the policy out by itself. Beside each model a classifier learns whether a step ends the episode;
    a roll-out weighs what follows with the chance that it has not ended. Roll-outs stop where the discount falls below
    `least_discount`, for time limits are no ends.

    Metrics: train/model_error, the mean squared error in standardised units; train/end_loss.

    Source: Chua et al., Deep RL in a Handful of Trials (PETS) for the models; Fu et al., Benchmarks for Deep Off-Policy
    Evaluation (model-based estimator). The learnt end and the clipping to what the log holds are ours.
    """

    method = "model-based evaluation"

    def __init__(
        self,
        options: ModelValueOptions,
        io: IOSpec,
        policy: Policy,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        deterministic: bool = True,
    ) -> None:
        """Build the ensemble for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            policy: what is valued; answers tensors with tensors.
            seed: of weights and roll-outs.
            device: torch device.
            gamma: discount per step of a roll-out.
            deterministic: value the policy's mode.
        """
        super().__init__(options, io, policy, seed=seed, device=device, deterministic=deterministic)
        self.gamma, self.steps = gamma, _LONGEST
        if gamma < 1.0:
            self.steps = min(_LONGEST, max(1, math.ceil(math.log(options.least_discount) / math.log(gamma))))

    def build(self) -> None:
        """Models, and beside each a classifier of ends."""
        o, every = self.o, self.o.members
        self.model = Dynamics(
            self.size,
            self.actions,
            generator=self.generator,
            members=every,
            elites=every,
            hidden=o.hidden,
            lr=o.lr,
            kernel=o.kernel,
        )
        self.state.include({"model": self.model})
        self.end = self.net("end", self.size + self.actions, hidden=(64, 64))
        self._ends = False  # whether the log holds any
        self._reward = (-math.inf, math.inf)
        self._low = torch.full((self.size,), -math.inf, device=self.generator.device)
        self._high = -self._low

    def prepare(self, facts: LogFacts) -> None:
        """Take over the limits that predictions are clipped to: the log's rewards, and ten deviations of its states."""
        self._reward = (facts.reward_low, facts.reward_high)
        place = {"dtype": torch.float32, "device": self.generator.device}
        mean, std = (torch.as_tensor(x, **place) for x in (facts.state_mean, facts.state_std))
        self._low, self._high = mean - 10.0 * std, mean + 10.0 * std

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of every member."""
        b = split(next(batches), self.seeds, None)
        columns = (b.state, b.action, b.next_state, b.reward)
        if self.next_update <= 50:
            self.model.observe(*(x.flatten(0, 1) for x in columns))
        error = self.model.fit(*columns)
        ended = (b.discount <= 0.0).to(b.reward)  # the mark of a terminal that `split` keeps
        self._ends |= bool(ended.any())
        end_loss = binary_cross_entropy_with_logits(self._end_logit(b.state, b.action), ended, reduction="none")
        self.end.step(mean_rows(end_loss))
        return self.metrics(model_error=error, end_loss=end_loss)

    def _end_logit(self, state: Tensor, action: Tensor) -> Tensor:
        """(M, B) of states (M, B, n) and actions (M, B, A)."""
        return self.end(self.model.input_norm(torch.cat([state, action], -1)))

    @torch.no_grad()
    def state_values(self, state: Tensor) -> Tensor:
        """(M, B) of raw first states (B, n): every member's mean over its roll-outs."""
        return torch.cat([self._roll(part) for part in state.to(self.device).split(self.o.starts)], 1)

    def _roll(self, state: Tensor) -> Tensor:
        members, count, each = self.seeds, len(state), self.o.rollouts
        x = state.repeat_interleave(each, 0).expand(members, -1, -1)
        total = torch.zeros(x.shape[:2], device=x.device)
        alive = torch.ones_like(total)
        for t in range(self.steps):
            action = self.choose(x)
            mean, std = self.model.predict(x, action)
            drawn = torch.addcmul(mean, std, self.noise(tuple(mean.shape)))
            total = torch.addcmul(total, alive, drawn[..., -1].clamp(*self._reward), value=self.gamma**t)
            if self._ends:
                alive = alive * (1.0 - self._end_logit(x, action).sigmoid())
                if float(alive.max()) < 1e-3:
                    break
            x = torch.minimum(torch.maximum(x + drawn[..., :-1], self._low), self._high)
        return total.view(members, count, each).mean(-1)

    def state_dict(self) -> StateDict:
        """Weights, moments, optimisers, generator and counters: tensors and numbers."""
        return {**super().state_dict(), "ends": self._ends}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to an estimator of other sizes.
        """
        super().load_state_dict(state)
        self._ends = bool(state["ends"])
