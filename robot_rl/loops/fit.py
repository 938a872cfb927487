"""Training on data in memory that is no log of transitions: progress critics, success classifiers, learnt rewards."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robot_rl.loops.contract import Due, Tick
from robot_rl.state import Saved
from robot_rl.types import Metrics


class Fit(Saved):
    """Updates until a number of them, or until they are enough; counts over several calls of `run`.

    Attributes:
        updates: so far, those before a resume included.
    """

    kind = "fit"
    saved = ("updates",)

    def __init__(self) -> None:
        self.updates = 0

    def run(
        self,
        update: Callable[[], Metrics],
        total: int,
        tick: Tick,
        *,
        due: Due,
        enough: Callable[[Metrics], bool] = lambda metrics: False,
    ) -> bool:
        """Update until there were `total`, until `enough`, or until `tick` says stop.

        Args:
            update: does one and returns its metrics.
            total: updates in all, those before this call included.
            tick: called with (updates so far, mean metrics since the last call) when it is due and at the end.
            due: asked after every update.
            enough: asked of the metrics of every update.

        Returns:
            Whether it is done; False where `tick` stopped it before.
        """
        rows: list[Metrics] = []
        done = self.updates >= total
        while not done:
            rows.append(update())
            self.updates += 1
            done = enough(rows[-1]) or self.updates >= total
            if done or due(self.updates - 1, self.updates):
                means = {f"train/{name}": float(np.mean([row[name] for row in rows])) for name in rows[-1]}
                rows.clear()
                if tick(self.updates, means):
                    return done
        return True
