"""Learning curves of several methods and seeds as one picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from robot_rl.checkpoint import write_bytes
from robot_rl.extras import require

Line = tuple[Sequence[float], Sequence[float]]


def plot(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[Line]]],
    *,
    x: str,
    y: str,
    level: float | None = None,
    columns: int = 0,
) -> None:
    """Write a PNG: one panel per task, one colour per method, thin lines for seeds and a thick one for their mean.

    Args:
        path: file.
        panels: {task: {method: [(x, y) of each seed]}}.
        x, y: labels of the axes.
        level: y of a dashed line.
        columns: panels beside each other; 0 = all.

    Raises:
        ImportError: matplotlib is not installed.
    """
    if not panels:
        return
    matplotlib = require("matplotlib")
    matplotlib.use("Agg")
    plt = require("matplotlib.pyplot")
    wide = columns or len(panels)
    high = -(-len(panels) // wide)
    figure, axes = plt.subplots(high, wide, figsize=(4 * wide, 3.2 * high), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    colours = {name: f"C{i}" for i, name in enumerate(sorted({name for panel in panels.values() for name in panel}))}
    for axis, (title, methods) in zip(axes.flat, panels.items()):
        for method, lines in methods.items():
            for at, value in lines:
                axis.plot(at, value, color=colours[method], alpha=0.3, linewidth=0.7)
            grid = np.linspace(max(at[0] for at, _ in lines), min(at[-1] for at, _ in lines), 100)
            middle = np.mean([np.interp(grid, at, value) for at, value in lines], axis=0)
            axis.plot(grid, middle, color=colours[method], linewidth=1.8, label=method)
        if level is not None:
            axis.axhline(level, color="grey", linestyle="--", linewidth=0.8)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(x, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.legend(fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel(y, fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110, format="png")
    plt.close(figure)
    write_bytes(path, picture.getvalue())
