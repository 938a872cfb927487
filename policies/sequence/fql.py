"""Flow Q-learning: the one-step method of which QC-FQL is the chunked form."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from robot_rl.policies.sequence.qc_fql import OneStepActor, QcFqlOptions
from robot_rl.types.options import NotNegative


class FqlOptions(QcFqlOptions):
    """Of FQL."""

    horizon: Annotated[int, Field(ge=1, le=1)] = 1
    """Single actions; for chunks take sequence/qc_fql."""
    alpha: NotNegative = 10.0
    """Weight of the distillation (3 to 1000 over the source's tasks)."""


class Fql(OneStepActor[FqlOptions]):
    """QC-FQL on single actions.

    Source: Park et al., Flow Q-Learning (seohongpark/fql). Where we differ: as in `Qc`.
    """

    method = "FQL"
