"""Learning curves of several methods and seeds: their middle, how sure it is, and the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from robot_rl.figure import panels, save
from robot_rl.stats import Interval, bootstrap, iqm

Line = tuple[Sequence[float], Sequence[float]]
LEAST = 3
"""Seeds from which an interval is drawn."""
POINTS = 100
"""Of a curve over seeds at most: each costs a bootstrap."""


def over_seeds(values: Sequence[float]) -> Interval:
    """Interquartile mean and its 95 % interval by the bootstrap; without an interval below `LEAST` seeds."""
    numbers = np.asarray(values, np.float64)
    if len(numbers) < LEAST:
        return Interval(iqm(numbers), float("nan"), float("nan"))
    return bootstrap(len(numbers), lambda rows: iqm(numbers[rows]))


def between(lines: Sequence[Line]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps, interquartile mean, lower and upper end, where all seeds have a curve; all empty where there is no such.

    Between its own steps a curve is a straight line.
    """
    begin, end = max(steps[0] for steps, _ in lines), min(steps[-1] for steps, _ in lines)
    at = np.array(sorted({step for steps, _ in lines for step in steps if begin <= step <= end}), np.float64)
    if len(at) > POINTS:
        at = np.linspace(begin, end, POINTS)
    values = np.array([np.interp(at, steps, heights) for steps, heights in lines])
    found = [over_seeds(column) for column in values.T]
    value, low, high = np.array([(one.value, one.low, one.high) for one in found]).reshape(-1, 3).T
    return at, value, low, high


def plot(
    path: Path,
    tasks: Mapping[str, Mapping[str, Sequence[Line]]],
    *,
    x: str,
    y: str,
    level: float | None = None,
    columns: int = 0,
) -> Path | None:
    """Write a PNG: one panel per task, one colour per method; see `between` for its thick line and its shade.

    Args:
        path: file.
        tasks: {task: {method: [(x, y) of each seed, drawn thin]}}.
        x, y: labels of the axes.
        level: y of a dashed line.
        columns: panels beside each other; 0 = all.

    Returns:
        The path, or None where there is nothing to draw.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if not tasks:
        return None
    wide = columns or len(tasks)
    figure, axes = panels(-(-len(tasks) // wide), wide, width=4.4, height=3.3)
    for axis in axes.flat[len(tasks) :]:
        axis.set_visible(False)
    names = dict.fromkeys(name for methods in tasks.values() for name in methods)
    colours = {name: f"C{i}" for i, name in enumerate(names)}
    for axis, (title, methods) in zip(axes.flat, tasks.items()):
        for method, lines in methods.items():
            colour = colours[method]
            for line in lines:
                axis.plot(*line, color=colour, alpha=0.3, linewidth=0.7)
            at, middle, low, high = between(lines)
            axis.plot(at, middle, color=colour, linewidth=1.8, label=f"{method} ({len(lines)})")
            axis.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        if level is not None:
            axis.axhline(level, color="grey", linestyle="--", linewidth=0.8)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(x, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel(y, fontsize=9)
    return save(figure, path)
