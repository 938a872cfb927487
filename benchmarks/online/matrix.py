"""Run cells of the matrix that are not there yet, one after the other with one thread, and keep each as a small file.

    python -m benchmarks.online.matrix                                         # the whole matrix
    python -m benchmarks.online.matrix algorithm=ppo tasks=Hopper-v5 seeds=0,1,2 steps=100000 "methods=ours;sb3"
    python -m benchmarks.online.matrix "methods=sb3 n_steps=512 ent_coef=0.01;sbx"      # other settings; SBX
    python -m benchmarks.online.report                                         # draw what there is

It may be stopped and started again: a cell counts as there if it was made with the options that its method has now.
A cell that fails is shown and does not stop the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.online.cell import resolve, run_cell
from benchmarks.online.tasks import SEEDS, STEPS, TASKS

CELLS = Path(__file__).resolve().parents[2] / "docs" / "results" / "online"


def path_of(algorithm: str, task: str, method: str, steps: int, seed: int, folder: Path = CELLS) -> Path:
    """Where a cell lies."""
    return folder / algorithm / task / f"{method.replace(' ', ',')}_{steps}_{seed}.json"


def read_known(path: Path) -> dict[str, Any] | None:
    """The cell in a file if its method still means what it meant then; options that came later are left aside."""
    if not path.exists():
        return None
    cell = json.loads(path.read_text())
    now = resolve(cell["algorithm"], cell["method"])
    same = all(now[key] == value for key, value in cell["options"].items() if key in now)
    return cell if same else None


def cells(folder: Path = CELLS) -> Iterator[dict[str, Any]]:
    """All that are there and hold."""
    found = (read_known(path) for path in sorted(folder.glob("*/*/*.json")))
    return (cell for cell in found if cell is not None)


def main(words: list[str]) -> int:
    """Fill the matrix; 1 if a cell failed."""
    said = dict(word.split("=", 1) for word in words)
    unknown = set(said) - {"algorithm", "tasks", "seeds", "steps", "methods"}
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; expected algorithm, tasks, seeds, steps, methods")
    torch.set_num_threads(1)
    algorithms = said["algorithm"].split(",") if "algorithm" in said else list(TASKS)
    seeds = [int(seed) for seed in said["seeds"].split(",")] if "seeds" in said else SEEDS
    methods = said.get("methods", "ours;sb3").split(";")
    failed = []
    for seed in seeds:
        for algorithm in algorithms:
            steps = int(said.get("steps", STEPS[algorithm]))
            for task in said["tasks"].split(",") if "tasks" in said else TASKS[algorithm]:
                for method in methods:
                    try:
                        fill(algorithm, task, method, steps, seed)
                    except Exception:
                        failed.append(f"{algorithm} {task} {method} seed {seed}:\n{traceback.format_exc()}")
                        say(failed[-1])
    return 1 if failed else 0


def fill(algorithm: str, task: str, method: str, steps: int, seed: int, folder: Path = CELLS) -> None:
    """Run one cell unless it is there."""
    path = path_of(algorithm, task, method, steps, seed, folder)
    if read_known(path) is not None:
        return
    cell = run_cell(algorithm, task, method, steps, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**cell, "commit": commit()}) + "\n")
    say(f"{algorithm} {task} {method} seed {seed} {steps}: {cell['return']} in {cell['cpu_s']} s {cell['curve']}")


def commit() -> str:
    """Of the working tree, "+" where it has changes."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()


def say(line: str) -> None:
    """On the terminal."""
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
