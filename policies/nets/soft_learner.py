"""What soft actor-critics from logs share: a squashed Gaussian actor, its temperature, samples with log-densities."""

from __future__ import annotations

import math
from typing import Annotated, TypeVar

from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.distributions import LOG_STD_MIN, squashed_sample
from robot_rl.policies.nets.learner import LogLearner, LogOptions
from robot_rl.policies.nets.net import Net
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.types import LogFacts
from robot_rl.types.options import Share


class SoftLogOptions(LogOptions):
    """What soft actor-critics from logs may be told."""

    seeds: Annotated[int, Field(ge=1, le=1)] = 1
    """One run per learner: its policy acts for one seed."""
    tau: Share = 0.005
    """Polyak rate of the target critics."""


S = TypeVar("S", bound=SoftLogOptions)


class SoftLogLearner(LogLearner[S]):
    """Base of soft actor-critics from logs.

    Attributes:
        log_std_min: lower limit of the actor's log standard deviation.
        soft: whether values hold the entropy beside the rewards.
    """

    log_std_min: float = LOG_STD_MIN

    @property
    def soft(self) -> bool:
        """They do, unless a method says otherwise."""
        return True

    def prepare(self, facts: LogFacts) -> None:
        """As every learner from logs; soft values exceed returns by the entropy, at most that of uniform actions."""
        super().prepare(facts)
        if self.soft:
            steps = 1.0 / (1.0 - facts.gamma) if facts.gamma < 1.0 else facts.horizon
            self.state.bound += float(self.alpha) * self.actions * math.log(2.0) * steps

    def soften(self, actor: Net, *, init_alpha: float, lr: float) -> None:
        """Take the actor (S, B, 2A) whose samples act, and give it a temperature that holds an entropy of -A."""
        self.temperature = self.number("log_alpha", math.log(init_alpha), lr=lr)
        self.policy = SquashedGaussianPolicy(
            self.io,
            actor.shape,
            actor.params,
            seed=self.seed + 1,
            normalizer=self.norm,
            log_std_min=self.log_std_min,
        )

    @property
    def alpha(self) -> Tensor:
        """(1,) the temperature, a constant for losses."""
        return self.temperature["log_alpha"].detach().exp()

    def temperature_loss(self, logp: Tensor) -> Tensor:
        """() J(alpha) = -log alpha (log pi + target), which moves the entropy towards its target -A."""
        return -(self.temperature["log_alpha"] * (logp.detach().mean() - self.actions)).sum()

    def sample(self, raw: Tensor, *times: int) -> tuple[Tensor, Tensor]:
        """Actions (*times, S, B, A) of the policy that an actor (S, B, 2A) puts out, and their log-densities."""
        noise = self.noise((*times, *raw.shape[:-1], self.actions))
        return squashed_sample(raw, noise, log_std_min=self.log_std_min)
