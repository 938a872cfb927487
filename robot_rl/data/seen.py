"""What training saw, as quantiles: of a log, a buffer, or the newest rollout. No generator is drawn from."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from robot_rl.types import IOSpec, Seen

MOST = 50_000
"""Rows that quantiles are taken of, evenly spaced over those that are there."""


class Looked(Protocol):
    """What can be looked at without being changed."""

    def look(self, most: int) -> tuple[dict[str, Any], Any, int]:
        """Observations and actions of evenly spaced rows, at most `most`, and how many steps there are in all."""
        ...


def seen(source: Looked | None, io: IOSpec, *, count: int | None = None) -> Seen | None:
    """Quantiles of every component of vector observations and actions; None where there is nothing yet.

    Args:
        source: what the learner draws from.
        io: names the observations and the rate.
        count: steps that training saw where the source kept the newest alone.
    """
    if source is None:
        return None
    obs, action, held = source.look(MOST)
    if not held:
        return None
    vectors = [key for key, (shape, dtype) in io.obs.items() if dtype.startswith("float") and len(shape) == 1]
    rows = {key: _flat(obs[key]) for key in vectors if key in obs}
    return Seen.of(rows, _flat(action), count=held if count is None else count, rate=io.control_hz)


def spaced(count: int, most: int) -> np.ndarray:
    """(n,) int64 numbers below `count`, evenly spaced, n at most `most`."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64) if count else np.zeros(0, np.int64)


def _flat(value: Any) -> np.ndarray:
    rows = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    return rows.reshape(-1, rows.shape[-1])
