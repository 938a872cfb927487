"""MOPO: soft actor-critic on short rollouts of a learnt model whose rewards are lowered where the model is unsure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from robot_rl.policies.nets.branches import Doubt
from robot_rl.policies.nets.model_phase import ModelBased, ModelOptions
from robot_rl.policies.offline.sac_n import EnsembleActorCritic, SacNOptions
from robot_rl.types.options import Count, NotNegative


class MopoOptions(SacNOptions, ModelOptions):
    """Of model-based offline policy optimisation."""

    hidden: tuple[Count, ...] = (256, 256)
    """Widths of actor and critics."""
    critics: Count = 2
    """Of the soft actor-critic."""
    penalty: NotNegative = 0.5
    """lambda; halfcheetah 0.5 (2.5 medium-expert), hopper 5 (2.5), walker2d 0.5 (2.5); 0 is MBPO."""
    uncertainty: Literal["aleatoric", "disagreement"] = "aleatoric"
    """u: the largest norm of the predicted deviations, or the disagreement of the elites."""
    drop_top: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of simulated rows with the highest reward that is thrown away (sample dropout)."""
    clone_weight: Annotated[float, Field(ge=0, le=0)] = 0.0
    """None: simulated rows hold no action of the log."""
    normalize: bool = True
    """Standardise states by the data's moments."""


class Mopo(ModelBased[MopoOptions], EnsembleActorCritic[MopoOptions]):
    """Model-based offline policy optimisation.

    The first updates fit an ensemble of dynamics models; then every `rollout_every` updates branches of `horizon` steps
    begin at logged states, and a soft actor-critic learns from batches of 5 % logged and 95 % simulated rows, rewards
    being r - penalty u(s, a). `penalty=0` is MBPO without an environment; `drop_top` throws the highest predicted
    rewards away instead (sample dropout).

    Metrics: those of `ModelBased` and of SAC-N.

    Source: Yu et al., MOPO: Model-based Offline Policy Optimization, algorithm 2; Janner et al., When to Trust Your
    Model (MBPO); defaults of OfflineRL-Kit. Sample dropout is recalled (rollout dropout), its form ours.
    """

    method = "MOPO"

    @property
    def doubt(self) -> Doubt:
        """r~ = r - lambda u(s, a), section 4.2."""
        return Doubt(self.o.penalty, self.o.uncertainty, self.o.drop_top)
