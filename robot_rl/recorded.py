"""What a run has left of itself, rows of metrics.jsonl and its configuration, and the causes found in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SOLVED = 0.8
"""Success rate from which on a run is past blaming its options."""


@dataclass(frozen=True)
class Cause:
    """What keeps a run from learning: its name, a sentence of evidence in figures, and what to try."""

    cause: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.evidence}. Try: {self.advice}."


class RunFigures:
    """What a run has left.

    Args:
        rows: of metrics.jsonl, in order.
        config: of the run.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> None:
        self.rows, self.config = rows, config
        self.policy: Mapping[str, Any] = config.get("policy") or {}

    def all(self, name: str) -> list[float]:
        """Every recorded value of a metric, in order."""
        return [float(row[name]) for row in self.rows if row.get(name) is not None]

    def mean(self, name: str, *, first: float = 0.0, last: float = 1.0) -> float | None:
        """Mean over a part of the run (shares of its rows); None where it was never recorded."""
        values = self.all(name)
        part = values[int(first * len(values)) : max(math.ceil(last * len(values)), int(first * len(values)) + 1)]
        return float(np.mean(part)) if part else None

    @property
    def terms(self) -> list[str]:
        """Names of the reward's terms."""
        names = (key.removeprefix("reward/") for row in self.rows for key in row if key.startswith("reward/"))
        return list(dict.fromkeys(names))

    @property
    def success(self) -> float | None:
        """The newest success rate; None where the world has no notion of it."""
        for name in ("eval/success", "rollout/success"):
            if self.all(name):
                return self.all(name)[-1]
        return None

    @property
    def returns(self) -> tuple[float, float] | None:
        """Mean return of training episodes in the first and in the last row."""
        values = self.all("rollout/return")
        return (values[0], values[-1]) if len(values) > 1 else None

    @property
    def rose(self) -> bool:
        """Whether the return rose by more than a twentieth of its size."""
        ends = self.returns
        return ends is not None and ends[1] - ends[0] > 0.05 * max(abs(ends[0]), abs(ends[1]))

    @property
    def solved(self) -> bool:
        """Whether the world says that its task is done."""
        return self.success is not None and self.success >= SOLVED

    @property
    def story(self) -> str:
        """The return from beginning to end, and the success rate, as far as they are known."""
        ends, success = self.returns, self.success
        said = [] if ends is None else [f"the return of training episodes went from {ends[0]:.4g} to {ends[1]:.4g}"]
        said += [] if success is None else [f"success is {success:.0%} at the end"]
        return " and ".join(said) or "no two rows have a return to compare"
