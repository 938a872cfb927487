"""RAVL: short rollouts of a model without any penalty, valued by diverse critics that doubt the edge of reach."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from robot_rl.policies.nets.model_phase import ModelBased, ModelOptions
from robot_rl.policies.offline.edac import DiverseCritics, EdacOptions


class RavlOptions(EdacOptions, ModelOptions):
    """Of reach-aware value learning."""

    clone_weight: Annotated[float, Field(ge=0, le=0)] = 0.0
    """None: simulated rows hold no action of the log."""
    normalize: bool = True
    """Standardise states by the data's moments."""


class Ravl(ModelBased[RavlOptions], DiverseCritics[RavlOptions]):
    """Reach-aware value learning.

    Branches of `horizon` steps end in states that no later row begins with: their values are bootstrapped from and
    never corrected, and a policy that maximises them makes values grow without bound even in a perfect model. N diverse
    critics (EDAC) disagree there, and their minimum keeps the values down; the model's uncertainty is not used.

    Metrics: those of `ModelBased` and of EDAC.

    Source: Sims et al., The Edge-of-Reach Problem in Offline Model-Based Reinforcement Learning; sizes of its code,
    whose values per data set could not be verified.
    """

    method = "RAVL"
