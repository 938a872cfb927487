"""Return at fewer decisions: SRL against SAC and SAC-j at equal environment steps, all seeds kept.

Every cell is a `robot-rl train` and a `robot-rl eval fas` process and writes one JSON file; a cell with a file is
skipped, so the table can be made in pieces of a few minutes.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import child, curves
from robot_rl.checkpoint import write_json
from robot_rl.version import VERSION

METHODS = ("srl4", "srl8", "sac1", "sac4", "sac8")
"""SRL with J, and SAC-j with j; j = 1 is SAC, its action held where decisions are rarer."""
_SMALL = {
    "srl": ("policy.hidden=64", "policy.model_hidden=[64,64]", "policy.batch_size=64"),
    "sac": ("policy.hidden=[64,64]", "policy.batch_size=64"),
}


def run(
    out: str,
    quick: bool = False,
    *,
    id: str = "Pendulum-v1",
    methods: tuple[str, ...] = METHODS,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 6000,
    learning_starts: int = 500,
    lr: float = 1e-3,
    small: bool = True,
    episodes: int = 10,
    overrides: tuple[str, ...] = (),
    minutes: float | None = None,
) -> dict[str, Any]:
    """Train and score the cells that are missing, then the table and the plot of all cells in `out`.

    Args:
        out: folder: one JSON file per cell, runs/, return_at_interval.png.
        quick: a tenth of the steps, one seed.
        id: Gymnasium task with a scale in `loops.fas.SCALES`.
        methods: "srl<J>" and "sac<j>".
        seeds: of every method.
        steps: environment steps of every run, whatever the interval.
        learning_starts: random ones among them.
        lr: step size.
        small: networks of 64 and batches of 64 rows; else each method's own defaults.
        episodes: per interval of the score.
        overrides: further options of `robot-rl train`.
        minutes: begin no cell after so long.

    Returns:
        {"rows": one per method: fas mean, its deviation over seeds, fas of every seed, return at some intervals;
        "open": how many cells are missing}.

    Raises:
        ValueError: a method that is none.
        RuntimeError: a run failed.
    """
    wrong = [name for name in methods if not re.fullmatch(r"(srl|sac)[1-9]\d*", name)]
    if wrong:
        raise ValueError(f"methods {', '.join(wrong)} are none; expected srl<J> or sac<j>: {', '.join(METHODS)}")
    if quick:
        steps, seeds = steps // 10, tuple(seeds)[:1]
    folder, begin, missing = Path(out), time.monotonic(), 0
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for name in methods:
            cell = folder / f"{id.split('-')[0]}_{name}_seed{seed}.json"
            if cell.exists():
                continue
            if minutes is not None and time.monotonic() - begin > 60.0 * minutes:
                missing += 1
                continue
            kind, number = name[:3], int(name[3:])
            options = [
                *("env=gym", f"id={id}", f"seed={seed}", f"total_steps={steps}", f"learning_starts={learning_starts}"),
                *("eval_every=0", "video_episodes=0", "track.tensorboard=false", f"policy.lr={lr}"),
                *(("policy=sequence/srl", f"policy.sequence={number}") if kind == "srl" else ()),
                *(("policy=sequence/sac_j", f"policy.interval={number}") if kind == "sac" else ()),
                *(_SMALL[kind] if small else ()),
                *overrides,
            ]
            write_json(cell, {**_cell(folder, cell.stem, options, episodes), "method": name, "seed": seed})
    rows = summarise(folder)
    return {"rows": rows, "open": missing}


def _call(arguments: list[str], log: Path) -> None:
    done = subprocess.run(child.command("robot_rl", *arguments), capture_output=True, text=True)
    with log.open("a") as file:
        file.write(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        raise RuntimeError(f"robot-rl {' '.join(arguments)} failed:\n{done.stderr[-1500:]}")


def _cell(folder: Path, title: str, options: list[str], episodes: int) -> dict[str, Any]:
    log, out = folder / f"{title}.log", f"output={folder}/runs"
    _call(["train", *options, f"name={title}", out], log)
    trained = sorted((folder / "runs" / "train").glob(f"*_{title}"))[-1]
    _call(["eval", "fas", f"path={trained}", f"episodes={episodes}", f"name={title}", out], log)
    found = json.loads((sorted((folder / "runs" / "fas").glob(f"*_{title}"))[-1] / "fas.json").read_text())
    numbers = next(iter(found["runs"].values()))
    return {"options": options, "version": VERSION, **numbers}


def summarise(folder: Path) -> list[dict[str, Any]]:
    """Rows per task and method over the seeds that are done, and the plot of returns against the interval."""
    cells = [json.loads(path.read_text()) for path in sorted(folder.glob("*_seed*.json"))]
    task = {id(cell): next(o for o in cell["options"] if o.startswith("id=")).removeprefix("id=") for cell in cells}
    rows, panels = [], {}
    for env in sorted(set(task.values())):
        own = [cell for cell in cells if task[id(cell)] == env]
        for method in sorted({cell["method"] for cell in own}):
            mine = [cell for cell in own if cell["method"] == method]
            scores = [cell["fas"] for cell in mine]
            mean = np.mean([cell["returns"] for cell in mine], axis=0)
            at = dict(zip(mine[0]["intervals"], mean.tolist()))
            rows.append(
                {
                    "task": env,
                    "method": method,
                    "fas": float(np.mean(scores)),
                    "std": float(np.std(scores)),
                    "seeds": " ".join(f"{score:.3f}" for score in scores),
                    **{f"at {k}": round(at[k], 1) for k in (1, 2, 4, 8, 16, 30)},
                }
            )
            lines = [(cell["intervals"], cell["returns"]) for cell in mine]
            panels.setdefault(env, {})[method] = lines
    with suppress(ImportError):  # no matplotlib: the numbers are the result
        curves.plot(folder / "return_at_interval.png", panels, x="control steps per decision", y="return")
    return rows
