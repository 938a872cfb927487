"""Where in a box of static dynamics a policy earns least, with the same random numbers everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Box = Mapping[str, tuple[float, float]]
Point = dict[str, float]
Score = Callable[[Point, int], Sequence[float]]
"""(dynamics, seed) -> returns of episodes whose starts and noise depend on the seed alone."""


def grid(box: Box, points: int) -> list[Point]:
    """All combinations of `points` evenly spaced values per parameter, both ends among them.

    Args:
        box: parameter -> (low, high).
        points: per parameter, at least 2.

    Raises:
        ValueError: an empty box, a range that is none, or fewer than two points.
    """
    wrong = {name: bounds for name, bounds in box.items() if len(bounds) != 2 or not bounds[0] < bounds[1]}
    if not box or wrong or points < 2:
        raise ValueError(
            f"box and points are {dict(box)} and {points}; expected at least one parameter with (low, high), low below "
            f"high, and at least 2 points{f'; look at {sorted(wrong)}' if wrong else ''}"
        )
    axes = [np.linspace(*bounds, points).tolist() for bounds in box.values()]
    return [dict(zip(box, values)) for values in itertools.product(*axes)]


def worst_case(
    score: Score, box: Box, *, points: int = 5, refine: int = 0, seed: int = 0
) -> tuple[Point, float, list[tuple[Point, float]]]:
    """The dynamics of least mean return: the least of a grid, then coordinate steps around it that halve.

    Every dynamics is judged with the same seed (common random numbers): what differs is the dynamics alone. Ties go to
    the first. A grid finds the least of what it has points for; refinement is local.

    Args:
        score: see `Score`; at least 10 episodes each for a trustworthy order.
        box: parameter -> (low, high).
        points: of the grid per parameter.
        refine: rounds of refinement; each looks at up to two neighbours per parameter, then halves the step, which
            begins at half the grid's.
        seed: for all dynamics.

    Returns:
        The dynamics, its mean return, and all that was looked at as (dynamics, mean return).

    Raises:
        ValueError: a box that is none, or returns that are not finite.
    """
    seen: dict[tuple[float, ...], float] = {}

    def mean(point: Point) -> float:
        key = tuple(point.values())
        if key not in seen:
            seen[key] = float(np.mean(score(point, seed)))
            if not np.isfinite(seen[key]):
                raise ValueError(f"mean return in {point} is {seen[key]}, expected a finite number of every episode")
        return seen[key]

    best = min(grid(box, points), key=mean)
    step = {name: (high - low) / (points - 1) / 2 for name, (low, high) in box.items()}
    for _ in range(refine):
        for name, (low, high) in box.items():
            sides = [{**best, name: float(np.clip(best[name] + s * step[name], low, high))} for s in (-1.0, 1.0)]
            best = min([best, *sides], key=mean)
        step = {name: size / 2 for name, size in step.items()}
    return best, mean(best), [(dict(zip(box, key)), value) for key, value in seen.items()]
