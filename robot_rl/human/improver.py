"""What improves the policy while a robot is driven: updates on credit, and a way back from divergence."""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from robot_rl.loops.contract import batches_for, update_learner
from robot_rl.types import Learner, Metrics, StateDict, Transitions


class Improver:
    """A learner that is asked for updates as steps come in.

    Ten updates in a row with a loss that is not finite, or a policy that proposed actions that are not, put the learner
    back to where it was one good mark before the last, with half the step size.

    Args:
        learner: to improve.
        batches: what it learns from.
        updates_per_step: credit that every step earns.
        most_credit: credit that can be saved up; infinite where no robot waits for the learner.
    """

    def __init__(
        self,
        learner: Learner[Any, Transitions],
        batches: Iterator[Transitions],
        updates_per_step: float,
        most_credit: float = math.inf,
    ) -> None:
        self.learner, self._batches = learner, batches
        self._per_step, self._most = updates_per_step, most_credit
        self.credit = 0.0
        self.updates = self.skipped = self.rollbacks = 0
        self.metrics: Metrics = {}
        self._times: deque[float] = deque(maxlen=20)
        self._warm = False
        self.poisoned = False
        """The policy proposed an action that is not finite since the last mark."""
        self.problem = ""
        self._good: list[StateDict] = []  # the learner at the last two marks at which all was finite

    @property
    def took(self) -> float:
        """How long an update takes [s], the median of the newest with a fifth to spare; 0 before a few are known."""
        return 1.2 * float(np.median(self._times)) if len(self._times) >= 5 else 0.0

    def earn(self) -> None:
        """A step was driven."""
        self.credit += self._per_step

    def spend(self, go_on: Callable[[], bool]) -> int:
        """Updates while there is credit and `go_on()`; returns how many."""
        done = 0
        while self.credit >= 1.0 and go_on():
            self.credit -= 1.0
            begun = time.perf_counter()
            try:
                self.metrics.update(update_learner(self.learner, self._batches))
            except FloatingPointError as error:
                self.skipped += 1
                if self.skipped >= 10:
                    self._roll_back(error)
            else:
                self.skipped = 0
            if self._warm:  # the first one makes ready, and says nothing
                self._times.append(time.perf_counter() - begun)
            self._warm = True
            self.updates += 1
            done += 1
        self.credit = min(self.credit, self._most)
        return done

    def work_between(self) -> None:
        """What the learner does between two episodes; it earns and spends no credit."""
        self.metrics.update(self.learner.work_between(batches_for(self.learner, self._batches)))

    def resume(self, state: StateDict) -> None:
        """Continue: step sizes, which no learner saves, are halved as often as they were."""
        self.updates, self.rollbacks = int(state["updates"]), int(state.get("rollbacks", 0))
        for _ in range(self.rollbacks):
            self.learner.calm()

    def mark(self) -> None:
        """Remember the learner if all was finite since the last mark; put a diverged one back."""
        if self.poisoned:
            if not self._good:  # the robot has stopped or held; there is no better learner to go back to
                self.problem = "the policy proposes actions that are not finite"
                return
            self._roll_back(FloatingPointError("the policy proposed an action that is not finite"))
        elif self.skipped == 0 and self.updates:
            self._good = [*self._good[-1:], copy.deepcopy(self.learner.state_dict())]
            self.problem = ""
        self.poisoned = False

    def _roll_back(self, error: FloatingPointError) -> None:
        """The learner as it was one good mark before the last, with half the step size.

        Raises:
            FloatingPointError: nothing to go back to, or the third time.
        """
        if not self._good or self.rollbacks >= 3:
            raise error
        self.rollbacks, self.skipped = self.rollbacks + 1, 0
        self.learner.load_state_dict(self._good[0])
        self.learner.calm()
        self.problem = f"the learner diverged ({error}) and was put back, with half the step size"
