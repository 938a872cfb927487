"""Curves of several runs: the words that differ name them, and runs that differ in the seed alone are one line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from robot_rl.curves import LEAST, Line, over_seeds, plot
from robot_rl.track import METRICS_FILE, read_metrics

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
    """Write a PNG of returns, and of successes where there are any.

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
    return plot(path, panels, x="steps", y="")


def _line(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Line | None:
    for name in names:
        points = {int(row["step"]): float(row[name]) for row in rows if row.get(name) is not None}
        if len(points) > 1:
            return list(points), list(points.values())
    return None


def conclude(runs: Mapping[Path, Sequence[str]], folder: Path) -> None:
    """Print the table of several runs and draw their curves into a folder; one run alone has its own curve."""
    if len(runs) < 2:
        return
    named = groups(runs)
    print("over seeds (interquartile mean, 95 % interval):", *table(named), sep="\n")
    try:
        picture = draw(named, folder / "sweep.png")
    except ImportError as error:
        print(f"no curves: {error}")
    else:
        print(f"curves: {picture or 'no run has any'}")
