"""ReCOIL: imitation from one expert episode beside any other data, without rewards and without a discriminator."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.rows import Rows
from robot_rl.policies.offline.iql import ImplicitOptions, ImplicitQ, expectile_loss
from robot_rl.types import IOSpec, LogFacts, Needs
from robot_rl.types.options import Count, Positive


class RecoilOptions(ImplicitOptions):
    """Of ReCOIL."""

    batch_size: Count = 512
    """Rows per update, half of them expert."""
    seeds: Annotated[int, Field(ge=1, le=1)] = 1
    """One: the expert's rows are the second half of a batch."""
    mixture: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """beta, the expert's share in the mixture."""
    expectile: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Of the value loss."""
    q_limit: Positive = 200.0
    """Targets are clipped to this size."""


class Recoil(ImplicitQ[RecoilOptions]):
    """Dual imitation with the chi^2 divergence.

    Batches are half expert, half other data (`robot-rl offline data=others.hdf5 expert=demo.hdf5`); rewards are not
    read. With mix = expert and others in equal parts, and V a network of its own (an expectile of Q over the mix):

    L_Q = -beta mean_{expert} Q(s, a) + 1/4 mean_mix (discount V(s') - Q(s, a))^2

    whose minimiser is Q = discount V + 2 beta p_expert / p_mix: an implied reward of up to 2 on what experts do. The
    policy copies the mix weighted by exp(3 (Q - V)).

    Source: Sikchi et al., Dual RL: Unification and New Methods, section 4 (ReCOIL), recalled; the loss above is derived
    here from the chi^2 conjugate and the expert's flow identity (evaluation starts where the expert started).
    """

    method = "ReCOIL"

    @classmethod
    def needs(cls, options: RecoilOptions, io: IOSpec) -> Needs:
        """Demonstrations beside the log; no rewards."""
        return replace(super().needs(options, io), expert=True, rewardless=True)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; values are of the implied reward, not of the data's."""
        super().prepare(facts)
        self.state.bound = self.o.q_limit

    def value_loss(self, diff: Tensor) -> Tensor:
        """Expectile regression."""
        return expectile_loss(diff, self.o.expectile)

    def bootstrap(self, b: Rows, next_value: Tensor) -> Tensor:
        """(S, B) targets without rewards."""
        return (b.discount * next_value).clamp_(-self.o.q_limit, self.o.q_limit)

    def critic_loss(self, q: Tensor, target: Tensor, b: Rows) -> Tensor:
        """() L_Q."""
        if "source" not in b.extras:
            raise ValueError(
                "ReCOIL needs expert=<log> beside data=<log>: batches carry extras 'source', 1 for the expert's rows"
            )
        expert = (b.extras["source"] > 0).to(q.dtype)
        share = expert / expert.sum(-1, keepdim=True).clamp_min(1.0)
        return mean_rows(self.error(q, target)) * 0.5 - self.o.mixture * (q * share).sum()
