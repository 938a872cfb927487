"""What a checkpoint can hold of an object."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

StateDict: TypeAlias = "dict[str, Any]"
"""What continues an object exactly: tensors, arrays, plain values, and collections of these; see `robot_rl.state`."""


class OtherSettings(ValueError):
    """What was saved is whole, and belongs to an object that was made with other settings; the message names them."""


@runtime_checkable
class Stateful(Protocol):
    """Anything whose exact continuation a checkpoint can hold."""

    def state_dict(self) -> StateDict:
        """Tensors, arrays and plain values only."""
        ...

    def load_state_dict(self, state: StateDict, /) -> None:
        """Continue exactly as the saved object would have."""
        ...
