"""Where metrics go, and what a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from robot_rl.types.data import Metrics

StateDict: TypeAlias = "dict[str, Any]"
"""What continues an object exactly: tensors, arrays, plain values, and collections of these; see `robot_rl.state`."""

Callback = Callable[[int, Metrics], object]
"""(step, metrics) of every row that is recorded; False ends the run in good order."""


class Tracker(Protocol):
    """Where metrics go. Names: rollout/return, train/critic_loss, eval/success, time/sps."""

    def log(self, metrics: Metrics, step: int) -> None:
        """Write one row of metrics at an environment step."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Anything whose exact continuation a checkpoint can hold."""

    def state_dict(self) -> StateDict:
        """Tensors, arrays and plain values only."""
        ...

    def load_state_dict(self, state: StateDict, /) -> None:
        """Continue exactly as the saved object would have."""
        ...
