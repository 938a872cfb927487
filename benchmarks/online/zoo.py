"""Train agents of the zoo with their presets, keep the actors, and write down what they do.

    python -m benchmarks.online.zoo tasks=Hopper-v5,Walker2d-v5 seed=0
    python -m benchmarks.online.zoo tasks=terrain-go2 run=runs/train/<run>   # of a run made by hand, in pieces

An agent is the last one of its run, of the seed that was named: none is chosen. Agents that are there stay.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.online.matrix import commit
from robot_rl import checkpoint, zoo
from robot_rl.atomic import new_folder, write_json

APART = {"walk-go2": ("preset=walk", "robot=go2"), "terrain-go2": ("preset=terrain", "robot=go2", "eval_every=0")}
"""Agents whose names are no presets, and the words that train them."""
PRESETS = Path(__file__).resolve().parents[2] / "configs" / "preset"
VERSIONS = ("robot_rl", "torch", "gymnasium", "mujoco", "numpy")


def ask(folder: str, *words: str) -> dict[str, Any]:
    """The answer of a command of ours, run in a folder."""
    line = ["robot-rl", *words, "--json"]
    sys.stderr.write(" ".join(line) + "\n")
    start = [sys.executable, "-m", "robot_rl", *line[1:]]
    done = subprocess.run(start, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def make(task: str, seed: int, run: str | None = None) -> None:
    """Train and keep one agent, or keep that of a run that ended."""
    place = zoo.FOLDER / task
    words = (*APART.get(task, (f"preset={task}",)), f"seed={seed}")
    with tempfile.TemporaryDirectory() as runs:
        made = run or str(Path(runs, ask(runs, "train", *words, "video_episodes=0")["folder"]))
        found = checkpoint.find(Path(made))
        with new_folder(place) as temporary:
            for name in ("policy.pt", "io.json", "config.yaml", "meta.json"):
                shutil.copyfile(found / name, temporary / name)
            config = temporary / "config.yaml"
            if models := os.environ.get("ROBOT_RL_MODELS"):  # of whoever loads the agent they lie elsewhere
                config.write_text(config.read_text().replace(f"{models.rstrip('/')}/", ""))
        tested = ask(runs, "eval", f"path={place}", "video_episodes=0")
    card = {
        "task": task,
        "trained": f"robot-rl train {' '.join(words)}",
        "steps": checkpoint.read_meta(place)["step"],
        "evaluated": f"robot-rl eval preset={task}",
        **{name: tested[name] for name in ("return", "success", "returns") if name in tested},
        "versions": {name: version(name) for name in VERSIONS},
        "commit": commit(),
    }
    write_json(place / "card.json", card)


def main(words: list[str]) -> None:
    """Make the agents that are not there."""
    options = dict(word.split("=", 1) for word in words)
    tasks = options["tasks"].split(",") if "tasks" in options else [path.stem for path in PRESETS.glob("*-v*.yaml")]
    for task in tasks:
        if task not in zoo.names():
            make(task, int(options.get("seed", 0)), options.get("run"))


if __name__ == "__main__":
    main(sys.argv[1:])
