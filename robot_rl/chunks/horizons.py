"""The three lengths of a chunk, kept apart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Horizons:
    """Lengths in control steps; none is ever inferred from another.

    Attributes:
        pred: H, actions that the policy emits per call.
        exec: k, actions executed before the next call, 1 <= k <= H; a single call may execute fewer.
        value: h, actions that the critic conditions on, 1 <= h <= H; a value-correct method has h = k.

    Raises:
        ValueError: a length out of order; says which two are often confused.
    """

    pred: int
    exec: int
    value: int

    def __post_init__(self) -> None:
        if self.pred < 1:
            raise ValueError(f"horizon_pred is {self.pred}, expected at least 1: the actions that one call predicts")
        for name, length, what in (
            ("exec", self.exec, "executed before the next call"),
            ("value", self.value, "that the critic conditions on"),
        ):
            if not 1 <= length <= self.pred:
                raise ValueError(
                    f"horizon_{name} is {length}, expected 1 ... horizon_pred = {self.pred}: it counts the actions "
                    f"{what}, out of those predicted"
                )
