"""What a search for options has found, as a picture: its course, and the value over every option."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robot_rl.figure import panels, save

DECADES = 30.0
"""Ratio of the largest to the smallest value from which an option's axis is logarithmic."""


def draw(rows: Sequence[dict[str, Any]], metric: str, path: Path) -> Path:
    """Write a PNG: value by trial with the best so far, then value over each option; crosses were dropped.

    Args:
        rows: of `Search.rows`.
        metric: what was maximised.
        path: of the picture.
    """
    rows = sorted(rows, key=lambda row: row["trial"])
    names = sorted({name for row in rows for name in row["params"]})
    figure, axes = panels(1, 1 + len(names), width=3.6, height=3.2, sharey=True)
    columns: list[tuple[str, list[object]]] = [("trial", [row["trial"] for row in rows])]
    columns += [(name, [row["params"].get(name) for row in rows]) for name in names]
    heights = [row["value"] if row["value"] is not None else (row["curve"] or [[0, None]])[-1][1] for row in rows]
    for axis, (name, places) in zip(axes[0], columns):
        numbers = [place for place in places if isinstance(place, (int, float))]
        plain = len(numbers) == len(places)
        for state, marker in (("complete", "o"), ("dropped", "x")):
            points = [
                (place if plain else str(place), height)
                for place, height, row in zip(places, heights, rows)
                if row["state"] == state and height is not None and place is not None
            ]
            if points:
                axis.plot(*zip(*points), marker, alpha=0.7, label=state)
        if plain and min(numbers, default=0) > 0 and max(numbers) / min(numbers) >= DECADES and name != "trial":
            axis.set_xscale("log")
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
    complete = [(row["trial"], row["value"]) for row in rows if row["value"] is not None]
    best = [max(value for _, value in complete[: i + 1]) for i in range(len(complete))]
    axes[0, 0].plot([number for number, _ in complete], best, label="best so far")
    axes[0, 0].set_ylabel(metric)
    axes[0, 0].legend()
    return save(figure, path)
