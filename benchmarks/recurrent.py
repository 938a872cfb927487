"""PPO with a memory on tasks that need one: ours, ours without, and sb3-contrib's RecurrentPPO, at equal steps.

    robot-rl bench recurrent "+seeds=[0,1,2]" +out=docs/results/recurrent

A cell is a task, a side and a seed, and writes one JSON file when it ends; cells that are there are skipped. Settings
are the defaults of each side. The peer needs `pip install sb3-contrib`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import robot_rl as rr
from benchmarks.her import versions
from benchmarks.online.matrix import commit
from robot_rl.curves import plot
from robot_rl.extras import require
from robot_rl.loops.evaluate import evaluate_midway
from robot_rl.loops.on_policy import train_on_policy
from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.policies.online.recurrent_ppo import RecurrentPpo, RecurrentPpoOptions
from robot_rl.stopwatch import Stopwatch

TASKS: dict[str, tuple[str, dict[str, Any], int]] = {
    "recall": ("recall", {}, 40_000),
    "pendulum_without_velocity": ("pendulum", {"world": {"velocity": False}}, 150_000),
}
"""Task -> world, its options, steps."""
MEASURE = {"recall": "success", "pendulum_without_velocity": "return"}
GLANCES, GLANCE_EPISODES, EPISODES = 10, 20, 100
LEARNERS: dict[str, Callable[..., Any]] = {
    "memory": lambda io, seed: RecurrentPpo(RecurrentPpoOptions(), io, seed=seed),
    "no memory": lambda io, seed: Ppo(PpoOptions(), io, seed=seed),
}


def run(
    out: str,
    *,
    quick: bool = False,
    tasks: tuple[str, ...] = tuple(TASKS),
    seeds: tuple[int, ...] = (0, 1, 2),
    who: tuple[str, ...] = ("memory", "no memory", "sb3-contrib"),
) -> dict[str, Any]:
    """Train every cell that has no file yet, and draw the curves of all.

    Args:
        out: folder of the files.
        quick: a twentieth of the steps.
        tasks: of `TASKS`.
        seeds: of training.
        who: "memory", "no memory", "sb3-contrib".

    Returns:
        A row for each cell: what the final episodes gave, seconds.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed in seeds:
        for task in tasks:
            for side in who:
                path = folder / f"{task}_{side.replace(' ', '_')}_{seed}.json"
                if not path.exists():
                    steps = TASKS[task][2] // (20 if quick else 1)
                    cell = train_peer(task, seed, steps) if side == "sb3-contrib" else train(task, side, seed, steps)
                    about = {"task": task, "side": side, "seed": seed, "steps": steps}
                    path.write_text(json.dumps({**about, **cell, "versions": versions(), "commit": commit()}) + "\n")
    cells = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    lines: dict[str, dict[str, list[Any]]] = {task: {} for task in tasks}
    for cell in cells:
        if cell["task"] in lines:
            lines[cell["task"]].setdefault(cell["side"], []).append(tuple(zip(*cell["curve"])))
    titles = {f"{task.replace('_', ' ')}: {MEASURE[task]}": lines[task] for task in tasks if lines[task]}
    plot(folder / "curves.png", titles, x="steps", y="")
    return {
        "rows": [{key: cell[key] for key in ("task", "side", "seed", "result", "wall_s", "cpu_s")} for cell in cells]
    }


def make(task: str, num_envs: int, seed: int) -> Any:
    """Copies of a task."""
    world, options, _ = TASKS[task]
    return rr.make(world, num_envs=num_envs, seed=seed, **options)


def judge(task: str, policy: Any, episodes: int) -> float:
    """Mean of deterministic episodes, the same starts for all."""
    found = evaluate_midway(make(task, 10, 0), policy, episodes=episodes)
    return float(np.mean(found.successes if MEASURE[task] == "success" else found.returns))


def train(task: str, side: str, seed: int, steps: int) -> dict[str, Any]:
    """One run of ours with its defaults and one copy of the task."""
    env = make(task, 1, seed)
    learner = LEARNERS[side](env.io, seed)
    curve: list[tuple[int, float]] = []
    watch = Stopwatch()

    def tick(step: int, _: Any) -> bool:
        if step * GLANCES // steps > len(curve):
            watch.pause()
            curve.append((step, judge(task, learner.policy, GLANCE_EPISODES)))
            watch.resume()
        return False

    watch.resume()
    train_on_policy(env, learner, total_steps=steps, seed=seed, tick=tick)
    return seconds(watch) | {"result": judge(task, learner.policy, EPISODES), "curve": curve}


def train_peer(task: str, seed: int, steps: int) -> dict[str, Any]:
    """RecurrentPPO of sb3-contrib with its defaults, one copy of the task as Gymnasium gives it."""
    contrib: Any = require("sb3_contrib")
    callbacks: Any = require("stable_baselines3.common.callbacks")
    world, options, _ = TASKS[task]
    env = gymnasium.make(f"robot_rl.envs:robot_rl/{world.title()}-v0", **options)
    model = contrib.RecurrentPPO("MlpLstmPolicy", env, seed=seed, device="cpu")
    judges = [gymnasium.make(f"robot_rl.envs:robot_rl/{world.title()}-v0", **options) for _ in range(10)]
    curve: list[tuple[int, float]] = []
    watch = Stopwatch()

    def score(episodes: int) -> float:
        found = []
        for number in range(episodes):
            place = judges[number % len(judges)]
            obs, _ = place.reset(seed=number) if number < len(judges) else place.reset()
            memory, total, info, over, first = None, 0.0, {}, False, True
            while not over:
                action, memory = model.predict(obs, memory, np.array([first]), deterministic=True)
                obs, reward, ended, cut, info = place.step(action)
                total, over, first = total + float(reward), ended or cut, False
            found.append(float(info["success"]) if MEASURE[task] == "success" else total)
        return float(np.mean(found))

    class Look(callbacks.BaseCallback):
        """Evaluates on the way, with the clock stopped."""

        def _on_step(self) -> bool:
            if self.num_timesteps * GLANCES // steps > len(curve):
                watch.pause()
                curve.append((self.num_timesteps, score(GLANCE_EPISODES)))
                watch.resume()
            return True

    watch.resume()
    model.learn(steps, callback=Look())
    return seconds(watch) | {"result": score(EPISODES), "curve": curve}


def seconds(watch: Stopwatch) -> dict[str, float]:
    """Of training alone."""
    watch.pause()
    wall, cpu = watch.read()
    return {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1)}
