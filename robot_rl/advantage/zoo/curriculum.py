"""What is practised when: horizons that grow, and start states that still teach something.

A cut by the horizon is a truncation, never a termination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from robot_rl.advantage.arrays import check_unit
from robot_rl.advantage.kinds import require_option


def scaling_inter_horizon(step: int, rounds: Sequence[int], *, every: int = 100) -> int:
    """Largest number of turns at an optimiser step: the next entry of a list every `every` steps.

    Args:
        step: optimiser steps done.
        rounds: turns allowed in each stage; the last one stays.
        every: optimiser steps per stage.

    Raises:
        ValueError: no rounds, or every is not positive.

    Source: AgentGym-RL, ScalingInter-RL.
    """
    if not rounds or every < 1:
        raise ValueError(f"rounds is {list(rounds)} and every is {every}, expected a non-empty list and every >= 1")
    return int(rounds[min(step // every, len(rounds) - 1)])


def tti_horizon(stage: int, *, h_min: int = 10, h_max: int = 30) -> int:
    """min(h_min · stage, h_max): multiplicative growth of test-time interaction.

    Args:
        stage: 1, 2, ...
        h_min: turns of the first stage.
        h_max: largest number of turns.

    Raises:
        ValueError: stage below 1 or bounds out of order.

    Source: TTI, Thinking vs. Doing (recalled).
    """
    if stage < 1 or not 0 < h_min <= h_max:
        raise ValueError(f"stage is {stage}, h_min {h_min}, h_max {h_max}; expected stage >= 1 and 0 < h_min <= h_max")
    return min(h_min * stage, h_max)


def experimental_tcod_range(
    step: int, total: int, length: int, *, fraction: float = 0.5, direction: str = "forward"
) -> tuple[int, int]:
    """Turns exposed to distillation: from one turn to all of them, linearly over a fraction of training.

    Args:
        step: optimiser steps done.
        total: optimiser steps of the training.
        length: turns of the full episode.
        fraction: share of the training after which all turns are exposed.
        direction: "forward" exposes a prefix, "backward" a suffix.

    Returns:
        (first turn, turn after the last).

    Raises:
        ValueError: unknown direction, fraction outside (0, 1], or no turns.

    Source: TCOD, temporal curriculum for on-policy distillation (abstract; reconstruction).
    """
    require_option("direction", direction, ["forward", "backward"])
    if not 0 < fraction <= 1 or length < 1 or total < 1:
        raise ValueError(f"fraction {fraction}, length {length}, total {total}: expected (0, 1] and positive numbers")
    depth = 1 + int((length - 1) * min(step / (fraction * total), 1.0))
    return (0, depth) if direction == "forward" else (length - depth, length)


class Start(NamedTuple):
    """A start state: its id (the group id of its rollouts), the history to restore, its parent and depth."""

    key: int
    history: object
    parent: int
    depth: int


class ExperimentalStartBuffer:
    """Partial histories as new start states, the more likely the more their rollouts still differ.

    Source: ExIt, exploratory iteration (abstract; the priority by group variance is a reconstruction).
    """

    def __init__(self, capacity: int = 256, *, probability: float = 0.5, seed: int = 0) -> None:
        """Empty buffer.

        Args:
            capacity: start states kept; the one with the lowest variance leaves first.
            probability: of drawing from the buffer rather than an original task.
            seed: of the own generator.

        Raises:
            ValueError: capacity is not positive or the probability outside [0, 1].
        """
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, expected a positive number of start states")
        check_unit(probability=probability)
        self.capacity, self.probability = capacity, probability
        self._generator = np.random.default_rng(seed)
        self._starts: dict[int, tuple[Start, float]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, history: object, variance: float, *, parent: int = -1) -> int:
        """Store a partial history.

        Args:
            history: whatever restores the state.
            variance: of the returns of the group in which it occurred.
            parent: key of the start state that it grew from, -1 = an original task.

        Returns:
            Its key.
        """
        depth = self._starts[parent][0].depth + 1 if parent in self._starts else 1
        key, self._next = self._next, self._next + 1
        self._starts[key] = (Start(key, history, parent, depth), float(variance))
        if len(self._starts) > self.capacity:
            del self._starts[min(self._starts, key=lambda k: (self._starts[k][1], k))]
        return key

    def update(self, key: int, variance: float) -> None:
        """New variance of a start state after a group of rollouts from it; unknown keys (evicted) are ignored."""
        if key in self._starts:
            self._starts[key] = (self._starts[key][0], float(variance))

    def sample(self) -> Start | None:
        """A start state in proportion to its variance, or None: take an original task."""
        if not self._starts or self._generator.random() >= self.probability:
            return None
        entries = list(self._starts.values())
        weight = np.array([variance for _, variance in entries])
        weight = weight / weight.sum() if weight.sum() > 0 else np.full(len(entries), 1 / len(entries))
        return entries[int(self._generator.choice(len(entries), p=weight))][0]

    def state_dict(self) -> dict[str, object]:
        """Everything needed to go on, histories included."""
        return {
            "next": self._next,
            "generator": self._generator.bit_generator.state,
            "starts": [(*start, variance) for start, variance in self._starts.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._next = state["next"]
        self._generator.bit_generator.state = state["generator"]
        self._starts = {entry[0]: (Start(*entry[:4]), entry[4]) for entry in state["starts"]}
