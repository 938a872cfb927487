"""Steps in the order in which they were driven, for on-policy learners with a person in the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from robot_rl.data.mix import merge
from robot_rl.human.memory import HilMemory
from robot_rl.types import StateDict, Transitions


class NewSteps:
    """Sampler whose batches are all own steps since the last batch, in order, and demonstrations beside them.

    Extras: "source" 0 for the former and 1 for the latter; "boundary" where the next row is not the next moment: an
    end, a cut, or a gap where nobody drove.

    Args:
        memory: that holds the rows.
        demo_share: share of the second kind in a batch; 0 = none.
    """

    def __init__(self, memory: HilMemory, demo_share: float) -> None:
        self._memory, self._share = memory, demo_share
        self._last = -1  # number of the last row that was handed out

    def __len__(self) -> int:
        return len(self._new())

    def batches(self, size: int) -> Iterator[Transitions]:
        """Endless batches; `size` is the least number of demonstrations in one.

        Raises:
            ValueError: nothing was driven since the last batch.
        """
        while True:
            rows = self._new()
            if not len(rows):
                raise ValueError("nothing was driven since the last update; drive before learning")
            self._last = int(rows[-1])
            new = self._memory.take(rows)
            ends = torch.from_numpy(~self._memory.is_joined(rows)) | new.terminated | new.truncated
            parts = {"online": replace(new, extras={**new.extras, "boundary": ends})}
            demo = self._memory.views["demo"]
            if self._share > 0.0 and len(demo):
                wanted = max(size, round(len(rows) * self._share / (1.0 - self._share)))
                shown = demo.sample(wanted)
                flag = torch.ones(wanted, dtype=torch.bool)
                parts["demo"] = replace(shown, extras={**shown.extras, "boundary": flag})
            yield merge(parts, ("online", "demo"))

    def state_dict(self) -> StateDict:
        """How many rows were handed out, of those that there are; numbers change when a memory is filled anew."""
        rows = self._memory.views["online"].rows()
        return {"taken": int(np.searchsorted(rows, self._last, side="right"))}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue; the rows have to be back already."""
        rows, taken = self._memory.views["online"].rows(), int(state["taken"])
        self._last = int(rows[min(taken, len(rows)) - 1]) if taken and len(rows) else -1

    def _new(self) -> np.ndarray:
        rows = self._memory.views["online"].rows()
        return rows[np.searchsorted(rows, self._last, side="right") :].copy()
