"""A classifier on duty: one observation at a time, and never in the robot's way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from robot_rl.types import Obs


@dataclass(frozen=True)
class Judgement:
    """About one observation.

    Attributes:
        success: the episode has succeeded.
        probability: of success as the classifier sees it, nan when unknown.
        known: False when it failed or came too late; the step's reward is unknown then.
    """

    success: bool
    probability: float
    known: bool


class Judge:
    """Calls success when the classifier was sure for several observations in a row.

    Args:
        classify: observations (1, ...) -> (1,) probability.
        threshold: of the probability.
        in_a_row: observations above it that it takes; a person's key ends the episode at once and has the last word.
        begin: called when an episode begins, where the classifier remembers.
    """

    def __init__(
        self,
        classify: Callable[[Obs], np.ndarray],
        threshold: float,
        in_a_row: int = 2,
        *,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        if not 0.0 < threshold < 1.0 or in_a_row < 1:
            raise ValueError(f"threshold is {threshold} and in_a_row {in_a_row}, expected in (0, 1) and at least 1")
        self._classify, self.threshold, self._needed = classify, threshold, in_a_row
        self._begin, self._run = begin, 0
        self.problem = ""

    def begin(self) -> None:
        """A new episode."""
        self._begin()
        self._run = 0

    def __call__(self, obs: Obs, patience: float = math.inf) -> Judgement:
        """Judge an observation without a batch axis.

        Args:
            obs: the observation after a step.
            patience: seconds after which the answer counts as missing.
        """
        begun = time.perf_counter()
        try:
            probability = float(self._classify({key: np.asarray(value)[None] for key, value in obs.items()})[0])
        except (RuntimeError, ValueError, OSError) as error:  # the robot goes on; the step is not learned from
            self.problem, probability = f"the success classifier failed: {error}", math.nan
        late = time.perf_counter() - begun > patience
        if late or not math.isfinite(probability):
            self._run = 0
            return Judgement(False, math.nan, False)
        self._run = self._run + 1 if probability >= self.threshold else 0
        return Judgement(self._run >= self._needed, probability, True)
