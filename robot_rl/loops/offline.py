"""Training from logs: draw, update, report; the same loop for every learner of transitions."""

from __future__ import annotations

import time

from robot_rl.loops.contract import Due, Tick, every, update_learner
from robot_rl.state import Saved
from robot_rl.types import AnyLearner, Metrics, Sampler


class Offline(Saved):
    """The offline loop as an object, so that its exact state can be saved and continued.

    Deterministic from the seeds of learner and sampler; wall clock decides nothing.
    """

    kind = "offline"
    saved = ("updates",)

    def __init__(self, learner: AnyLearner, sampler: Sampler, *, batch_size: int = 256) -> None:
        """Join what the loop moves data between.

        Args:
            learner: improves its `policy` from transition batches.
            sampler: where batches come from.
            batch_size: rows per batch.

        Raises:
            ValueError: there is no data, or the learner needs another loop.
        """
        if learner.need.feeds != "transitions":
            raise ValueError(
                f"{type(learner).__name__} consumes '{learner.need.feeds}', and logs are transitions; choose a policy "
                "that learns from replay, such as policy=offline/iql"
            )
        if len(sampler) < 1:
            raise ValueError("the data holds no transition to learn from")
        self.learner, self.sampler, self.batch_size = learner, sampler, batch_size
        self.updates = 0

    def run(self, total_updates: int, tick: Tick, *, due: Due | None = None) -> None:
        """Train until `total_updates` updates or until `tick` says stop.

        Args:
            total_updates: updates in all, those before a resume included.
            tick: called with (updates so far, metrics) when it is due and at the end; True stops.
            due: asked after every update; None: every 1000 updates.
        """
        due = every(1000) if due is None else due
        batches = self.sampler.batches(self.batch_size)
        metrics: Metrics = {}
        mark, mark_updates = time.perf_counter(), self.updates
        while self.updates < total_updates:
            metrics = update_learner(self.learner, batches, progress=self.updates / total_updates)
            self.updates += 1
            if self.updates >= total_updates or due(self.updates - 1, self.updates):
                now = time.perf_counter()
                speed = (self.updates - mark_updates) / max(now - mark, 1e-9)
                stop = tick(self.updates, {**metrics, "time/ups": speed})
                mark, mark_updates = time.perf_counter(), self.updates
                if stop:
                    return
