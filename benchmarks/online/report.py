"""Draw what the matrix holds: tables with the rule's verdict, and learning curves, into docs/results.

python -m benchmarks.online.report
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.online.matrix import CELLS, cells
from benchmarks.online.tasks import RANGE, TASKS, TUNED
from robot_rl.curves import plot
from robot_rl.stats import iqm, pair_wins, probability_of_improvement, stratified_mean

LEAST_WINS = {25: 3, 100: 20}
"""Pairs of seeds of a task -> how many ours has to win; a task that falls below is run with five more seeds of both."""
LEAST_SEEDS = 3
"""Of every task and side, before intervals mean something."""
Group = dict[str, dict[str, list[dict[str, Any]]]]
"""task -> method -> cells of one algorithm and number of steps."""


def groups(found: Iterable[dict[str, Any]]) -> dict[tuple[str, int], Group]:
    """Cells by (algorithm, steps), tasks in the order of the matrix, each method's cells by seed."""
    out: dict[tuple[str, int], Group] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for cell in sorted(found, key=lambda cell: cell["seed"]):
        out[cell["algorithm"], cell["steps"]][cell["task"]][cell["method"]].append(cell)
    order = {algorithm: {task: i for i, task in enumerate(tasks)} for algorithm, tasks in TASKS.items()}
    return {
        key: {task: dict(group[task]) for task in sorted(group, key=lambda task: order[key[0]].get(task, len(RANGE)))}
        for key, group in sorted(out.items())
    }


def normalise(task: str, returns: Iterable[float]) -> list[float]:
    """Returns as shares of the task's range."""
    low, high = RANGE[task]
    return [(value - low) / (high - low) for value in returns]


def of(group: Group, task: str, method: str) -> list[float]:
    """Final returns of a method on a task by seed."""
    return [cell["return"] for cell in group[task].get(method, [])]


def table(group: Group) -> list[str]:
    """Mean return and that of each seed by task and method; the pairs that ours wins where the peer has run."""
    methods = sorted({method for task in group.values() for method in task}, key=lambda m: (m != "ours", m))
    head = [f"`{method}`" for method in methods] + (["pairs won"] if "sb3" in methods else [])
    lines = [f"| task | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for task in group:
        row = [f"{task}{' (t)' if task in TUNED else ''}"]
        for method in methods:
            found = of(group, task, method)
            row.append(f"{np.mean(found):.4g} ({', '.join(f'{x:.4g}' for x in found)})" if found else "")
        ours, peer = of(group, task, "ours"), of(group, task, "sb3")
        if "sb3" in methods:
            row.append(_verdict(ours, peer) if ours and peer else "")
        lines.append(f"| {' | '.join(row)} |")
    return lines


def _verdict(ours: list[float], peer: list[float]) -> str:
    wins, pairs = pair_wins(ours, peer), len(ours) * len(peer)
    return f"{wins:g} of {pairs}{'' if wins >= LEAST_WINS.get(pairs, 0) else ', **below the rule**'}"


def overall(group: Group) -> list[str]:
    """The rule over all tasks of the matrix that both sides have run, and seconds."""
    tasks = [task for task in group if task in RANGE and group[task].get("ours") and group[task].get("sb3")]
    if not tasks:
        return []
    ours, peer = ([normalise(task, of(group, task, method)) for task in tasks] for method in ("ours", "sb3"))
    enough = min(map(len, (*ours, *peer))) >= LEAST_SEEDS
    note = "95 % intervals, seeds resampled within tasks" if enough else "too few seeds for intervals"
    shown = [stratified_mean(ours), stratified_mean(peer), probability_of_improvement(ours, peer)]
    a, b, better = (f"{x.value:.2f}" + (f" ({x.low:.2f} to {x.high:.2f})" if enough else "") for x in shown)
    lines = [
        f"Over {len(tasks)} task{'s' * (len(tasks) > 1)} ({note}): normalised interquartile mean {a} of ours,",
        f"{b} of stable-baselines3; probability of improvement {better}.",
    ]
    for name in ("wall_s", "cpu_s"):
        share = [
            np.mean([c[name] for c in group[task]["ours"]]) / np.mean([c[name] for c in group[task]["sb3"]])
            for task in tasks
        ]
        word = {"wall_s": "wall-clock", "cpu_s": "processor"}[name]
        lines.append(f"Our {word} time is {np.median(share):.2f} of the peer's (median over tasks).")
    held = [task for task in tasks if task not in TUNED]
    if held and len(held) < len(tasks):
        a, b = ([normalise(task, of(group, task, method)) for task in held] for method in ("ours", "sb3"))
        lines.append(f"On the held-out tasks alone: {iqm(np.concatenate(a)):.2f} and {iqm(np.concatenate(b)):.2f}.")
    return ["", *lines]


def draw(group: Group, path: Path) -> None:
    """Learning curves; the last point is the final return over ten episodes."""
    tasks = {
        task: {
            method: [
                ([*(p[0] for p in c["curve"]), c["steps"]], [*(p[1] for p in c["curve"]), c["return"]]) for c in cells
            ]
            for method in ("ours", "sb3")
            if (cells := methods.get(method))
        }
        for task, methods in group.items()
    }
    plot(path, tasks, x="steps", y="return", columns=4)


def write(folder: Path = CELLS) -> str:
    """Write `<folder>.md` and its pictures; the text."""
    lines = [
        "# Online matrix",
        "",
        "Drawn by `python -m benchmarks.online.report` from the cells in `docs/results/online`, which",
        "`python -m benchmarks.online.matrix` fills: mean deterministic return of ten episodes at the end, in brackets",
        "that of each seed from 0 on; (t) marks the tasks that defaults were tuned on. A method is `ours` or `sb3`",
        "with its defaults, and the options that it changes.",
    ]
    for (algorithm, steps), group in groups(cells(folder)).items():
        lines += ["", f"## {algorithm.upper()}, {steps:,} steps", "", *table(group), *overall(group)]
        if any("sb3" in methods and "ours" in methods for methods in group.values()):
            picture = folder / f"{algorithm}_{steps}.png"
            draw(group, picture)
            lines += ["", f"![learning curves]({folder.name}/{picture.name})"]
    text = "\n".join(lines) + "\n"
    folder.with_suffix(".md").write_text(text)
    return text


if __name__ == "__main__":
    sys.stdout.write(write())
