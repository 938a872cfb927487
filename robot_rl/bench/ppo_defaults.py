"""PPO's normalisation, one cell per task, setting and seed, against stable-baselines3's defaults at equal steps.

    python -m robot_rl.bench.ppo_defaults docs/results/ppo_defaults.jsonl 50000 0,1,2

One process with one thread, cells one after the other; a cell that stands in the file is not run again. A cell is the
mean undiscounted return of ten deterministic episodes after training, on seeds 10,000 and up for both sides.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from robot_rl import build
from robot_rl.extras import require
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.on_policy import train_on_policy

EPISODES = 10
TASKS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"engine": "gym", "id": "Pendulum-v1"},
    "InvertedDoublePendulum-v5": {"engine": "gym", "id": "InvertedDoublePendulum-v5"},
    "Hopper-v5": {"engine": "gym", "id": "Hopper-v5"},
    "reach": {"engine": "mujoco", "world": {"name": "reach"}},
}
SETTINGS: dict[str, dict[str, bool]] = {
    "obs": {"normalize_obs": True, "normalize_reward": False},
    "obs+reward": {"normalize_obs": True, "normalize_reward": True},
    "sb3": {},
    "reward": {"normalize_obs": False, "normalize_reward": True},
    "none": {"normalize_obs": False, "normalize_reward": False},
}


def run_cell(task: str, setting: str, steps: int, seed: int) -> dict[str, Any]:
    """Train one contestant and evaluate it."""
    env = build.make("engine", TASKS[task], num_envs=1, seed=seed, device="cpu")
    begin = time.process_time()
    if setting == "sb3":
        learner = build.make("policy", {"name": "online/sb3", "algorithm": "PPO"}, env.io, seed=seed, device="cpu")
        learner.train(env, steps)
    else:
        learner = build.make("policy", {"name": "online/ppo", **SETTINGS[setting]}, env.io, seed=seed, device="cpu")
        train_on_policy(env, learner, total_steps=steps, seed=seed)
    seconds = time.process_time() - begin
    returns = evaluate(env, learner.policy, episodes=EPISODES).returns
    env.close()
    cell = {"task": task, "setting": setting, "seed": seed, "steps": steps}
    return {**cell, "return": round(float(np.mean(returns)), 1), "cpu_s": round(seconds, 1)}


def run(path: Path, steps: int, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """Every cell that the file does not hold yet; all of them."""
    torch.set_num_threads(1)
    require("stable_baselines3")
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["task"], row["setting"], row["seed"], row["steps"]) for row in rows}
    command = f"python -m robot_rl.bench.ppo_defaults docs/results/{path.name} {steps} {','.join(map(str, seeds))}"
    order = [(task, setting, seed) for seed in seeds for task in TASKS for setting in SETTINGS]
    order.sort(key=lambda cell: (cell[0] == "reach", cell[1] == "sb3", cell[1] == "none"))  # what takes long comes last
    for task, setting, seed in order:
        if (task, setting, seed, steps) not in done:
            rows.append({**run_cell(task, setting, steps, seed), "command": command})
            with path.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Lines of a Markdown table: the mean return and those of the seeds."""
    lines = [f"| task | {' | '.join(SETTINGS)} |", "|---" * (len(SETTINGS) + 1) + "|"]
    for task in TASKS:
        cells = []
        for setting in SETTINGS:
            found = [row["return"] for row in rows if (row["task"], row["setting"]) == (task, setting)]
            cells.append(f"{mean(found):.0f} ({', '.join(f'{x:.0f}' for x in found)})" if found else "")
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    out, number, which = sys.argv[1:]
    print(table(run(Path(out), int(number), tuple(int(x) for x in which.split(",")))))  # noqa: T201
