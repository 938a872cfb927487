"""Curves of several runs: the words that differ name them, and runs that differ in the seed alone are one line."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from robot_rl.checkpoint import write_bytes
from robot_rl.extras import require
from robot_rl.stats import Interval, bootstrap, iqm
from robot_rl.track import METRICS_FILE, read_metrics

Line = tuple[list[int], list[float]]
LEAST = 3
"""Seeds from which an interval is drawn."""
PANELS = {"return": ("eval/return", "rollout/return"), "success": ("eval/success", "rollout/success")}
"""Title -> where its curve is read, the first that has two points."""


def groups(runs: Mapping[Path, Sequence[str]]) -> dict[str, list[Path]]:
    """Run folders by what differs between them.

    Args:
        runs: folder of each run -> its words, key=value.

    Returns:
        Name -> folders of its seeds; the name is every key=value that is not the same for all runs, seed left out.
    """
    words = {folder: dict(word.split("=", 1) for word in items if "=" in word) for folder, items in runs.items()}
    keys = sorted({key for options in words.values() for key in options} - {"seed"})
    differ = [key for key in keys if len({options.get(key) for options in words.values()}) > 1]
    found: dict[str, list[Path]] = {}
    for folder, options in words.items():
        name = "  ".join(f"{key}={options[key]}" for key in differ if key in options)
        found.setdefault(name or ("as given" if differ else "all runs"), []).append(folder)
    return found


def over_seeds(values: Sequence[float]) -> Interval:
    """Interquartile mean and its 95 % interval by the bootstrap; without an interval below `LEAST` seeds."""
    numbers = np.asarray(values, np.float64)
    if len(numbers) < LEAST:
        return Interval(iqm(numbers), float("nan"), float("nan"))
    return bootstrap(len(numbers), lambda rows: iqm(numbers[rows]))


def table(named: Mapping[str, Sequence[Path]]) -> list[str]:
    """A line for each name: the evaluation at the end over its seeds."""
    lines = []
    for name, folders in named.items():
        ends = [json.loads(path.read_text()) for folder in folders if (path := folder / "evaluation.json").is_file()]
        parts = []
        for what in PANELS:
            values = [float(end[what]) for end in ends if isinstance(end.get(what), (int, float))]
            if values and (what == "return" or any(values)):
                found = over_seeds(values)
                spread = f" [{found.low:.4g}, {found.high:.4g}]" if len(values) >= LEAST else ""
                parts.append(f"{what} {found.value:.4g}{spread}")
        lines.append(f"  {name}   {'   '.join(parts) or 'no evaluation'}   {len(ends)} seed{'s' * (len(ends) != 1)}")
    return lines


def draw(named: Mapping[str, Sequence[Path]], path: Path) -> Path | None:
    """Write a PNG: thin lines are seeds, thick ones their interquartile mean, shades its 95 % interval.

    Args:
        named: see `groups`.
        path: of the picture.

    Returns:
        The path, or None where no run has a curve.

    Raises:
        ImportError: matplotlib is not installed.
    """
    rows = {name: [read_metrics(folder / METRICS_FILE) for folder in folders] for name, folders in named.items()}
    panels: dict[str, dict[str, list[Line]]] = {}
    for title, metrics in PANELS.items():
        curves = {name: [_line(run, metrics) for run in runs] for name, runs in rows.items()}
        found = {name: lines for name, each in curves.items() if (lines := [line for line in each if line])}
        if found and (title == "return" or any(max(line[1]) > 0.0 for lines in found.values() for line in lines)):
            panels[title] = found
    if not panels:
        return None
    matplotlib = require("matplotlib")
    matplotlib.use("Agg")
    plt = require("matplotlib.pyplot")
    figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 3.6), squeeze=False, layout="constrained")
    for axis, (title, lines_of) in zip(axes[0], panels.items()):
        for i, (name, lines) in enumerate(lines_of.items()):
            for line in lines:
                axis.plot(*line, color=f"C{i}", alpha=0.3, linewidth=0.7)
            steps, middle, low, high = between(lines)
            axis.plot(steps, middle, color=f"C{i}", linewidth=1.8, label=f"{name} ({len(lines)})")
            axis.fill_between(steps, low, high, color=f"C{i}", alpha=0.15, linewidth=0)
        axis.set_title(title)
        axis.set_xlabel("steps")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110, format="png")
    plt.close(figure)
    write_bytes(path, picture.getvalue())
    return path


def between(lines: Sequence[Line]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps, interquartile mean, lower and upper end, where all seeds have a curve.

    Between its own steps a curve is a straight line.
    """
    begin, end = max(steps[0] for steps, _ in lines), min(steps[-1] for steps, _ in lines)
    at = np.array(sorted({step for steps, _ in lines for step in steps if begin <= step <= end}), np.float64)
    values = np.array([np.interp(at, steps, heights) for steps, heights in lines])
    found = [over_seeds(column) for column in values.T]
    value, low, high = np.array([(one.value, one.low, one.high) for one in found]).T
    return at, value, low, high


def _line(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Line | None:
    for name in names:
        points = {int(row["step"]): float(row[name]) for row in rows if row.get(name) is not None}
        if len(points) > 1:
            return list(points), list(points.values())
    return None


def conclude(runs: Mapping[Path, Sequence[str]], folder: Path) -> None:
    """Print the table of several runs and draw their curves into a folder; one run alone has its own curve."""
    named = groups(runs)
    if len(runs) < 2:
        return
    print("over seeds (interquartile mean, 95 % interval):", *table(named), sep="\n")
    try:
        picture = draw(named, folder / "sweep.png")
    except ImportError as error:
        print(f"no curves: {error}")
    else:
        print(f"curves: {picture or 'no run has any'}")
