"""The physical range of actions that a log declares: read with the data, stored with the data, never guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ActionBounds:
    """What -1 and +1 mean, or would mean after `action=rescale`.

    Attributes:
        low: (A,) physical lower bounds.
        high: (A,) upper bounds.
        units: (A,) or None where the log does not tell.
        normalised: the actions are in [-1, 1] already; False: they are in `units`.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    units: tuple[str, ...] | None = None
    normalised: bool = False

    @property
    def are_one(self) -> bool:
        """Do units and normalised numbers mean the same?"""
        return bool(np.allclose(self.low, -1.0, atol=1e-6) and np.allclose(self.high, 1.0, atol=1e-6))

    def facts(self) -> dict[str, Any]:
        """For a store's description."""
        units = None if self.units is None else list(self.units)
        return {"action_low": list(self.low), "action_high": list(self.high), "action_units": units}


UNKNOWN = {"action_low": None, "action_high": None, "action_units": None}
"""The description of a store whose source told nothing."""


def declared(low: Any, high: Any, size: int, units: Any = None) -> ActionBounds | None:
    """Bounds out of a file: one number for all actions or one for each; None where they are no finite range.

    Args:
        low: number, list or array.
        high: likewise.
        size: A.
        units: a text for all, or a list of A.
    """
    if low is None or high is None:
        return None
    try:
        ends = [np.asarray(x, np.float64).reshape(-1) for x in (low, high)]
        ends = [np.broadcast_to(x, (size,)) for x in ends]
    except (TypeError, ValueError):
        return None
    if not np.isfinite(ends).all() or not (ends[0] < ends[1]).all():
        return None
    named: tuple[str, ...] | None = None
    if isinstance(units, (str, bytes)):
        named = (units.decode() if isinstance(units, bytes) else units,) * size
    elif units is not None and np.ndim(units) == 1 and len(units) == size:
        named = tuple(x.decode() if isinstance(x, bytes) else str(x) for x in units)
    return ActionBounds(tuple(ends[0].tolist()), tuple(ends[1].tolist()), named)
