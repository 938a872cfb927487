"""Hindsight replay on goal tasks: ours and stable-baselines3's SAC with its HerReplayBuffer, same steps and updates.

    robot-rl bench her +task=FetchReach-v4 "+seeds=[0,1,2]" +out=docs/results/her

A cell is a task, a side and a seed, and writes one JSON file when it ends; cells that are there are skipped. A run of
ours that was stopped goes on from its newest checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

import gymnasium
import numpy as np
import torch
import yaml

from benchmarks.online.matrix import commit
from robot_rl import child
from robot_rl.extras import require
from robot_rl.sim import gym_copies
from robot_rl.sim.gym_env import seeds as env_seeds
from robot_rl.stopwatch import Stopwatch
from robot_rl.track import read_metrics

REACH = {"total_steps": 2000, "num_envs": 4, "updates_per_step": 1.0, "learning_starts": 400, "eval_every": 200}
OBJECT = {
    **{"total_steps": 300_000, "num_envs": 16, "updates_per_step": 0.1, "learning_starts": 3000, "eval_every": 20_000},
    **{"policy.tau": 0.05, "policy.target_entropy": "half", "policy.matmul": "bf16"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "FetchReach-v4": REACH,
    "FetchPush-v4": OBJECT,
    "FetchSlide-v4": OBJECT,
    "FetchPickAndPlace-v4": OBJECT,
}
"""Settings of a task; those of the run are the same for both sides."""
GAMMA, LR, BATCH, HIDDEN, HINDSIGHT = 0.95, 1e-3, 256, (256, 256), 4
JUDGES, GLANCE, FINAL = 8, 24, 100
"""Copies that evaluate; episodes of an evaluation on the way, and of the last."""


def run(
    out: str,
    *,
    quick: bool = False,
    task: str = "FetchReach-v4",
    seeds: tuple[int, ...] = (0, 1, 2),
    who: tuple[str, ...] = ("ours", "sb3"),
    steps: int = 0,
    overrides: tuple[str, ...] = (),
    label: str = "",
    runs: str = "runs/her",
) -> dict[str, Any]:
    """Train every cell that has no file yet, then show those of the task.

    Args:
        out: folder of the files.
        quick: a twentieth of the steps.
        task: a Fetch task.
        seeds: of training.
        who: "ours", "sb3".
        steps: of each run; 0 takes those of `SETTINGS`.
        overrides: further words of our command line, or keywords of the peer's class; they are kept in the file.
        label: of the files, so that variants stand side by side; none for the settings as they are.
        runs: where our runs lie, for those that are to go on.

    Returns:
        A row for each cell: success of the final episodes, steps to the first evaluation with .9, seconds.
    """
    folder, settings = Path(out), dict(SETTINGS[task])
    settings["total_steps"] = steps or settings["total_steps"] // (20 if quick else 1)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for side in who:
            path = folder / f"{task}_{side}{label and f'-{label}'}_{seed}.json"
            if not path.exists():
                train = train_ours if side == "ours" else train_peer
                cell = train(task, seed, settings, overrides, Path(runs) / (label or "plain")) | {
                    "versions": versions(),
                    "commit": commit(),
                }
                path.write_text(json.dumps(cell) + "\n")
    return {"rows": [row(path) for path in sorted(folder.glob(f"{task}_*.json"))]}


def versions() -> dict[str, str]:
    """Versions of what a cell depends on."""
    return {name: version(name) for name in ("robot_rl", "torch", "gymnasium", "mujoco", "stable_baselines3")}


def row(path: Path) -> dict[str, Any]:
    """A cell as a line of the table."""
    cell = json.loads(path.read_text())
    reached = [step for step, success in cell["curve"] if success >= 0.9]
    return {
        "cell": path.stem,
        **{name: cell[name] for name in ("seed", "steps", "success")},
        "steps_to_.9": reached[0] if reached else "",
        **{name: cell[name] for name in ("wall_s", "cpu_s")},
    }


def train_ours(
    task: str, seed: int, settings: dict[str, Any], overrides: tuple[str, ...], runs: Path
) -> dict[str, Any]:
    """`robot-rl train policy=online/her` as a user runs it, or goes on with it."""
    words = [
        *("env=gym", f"id={task}", "policy=online/her", f"gamma={GAMMA}", f"seed={seed}", "threads=1"),
        *(f"{name}={value}" for name, value in settings.items()),
        *(f"eval_episodes={GLANCE}", f"eval_envs={JUDGES}", f"final_episodes={FINAL}", "video_episodes=0"),
        *overrides,
    ]
    place = runs / f"{task}_{seed}"
    begun = sorted(place.glob("train/*/checkpoints/step_*/meta.json"))
    line = ["train", f"resume={begun[-1].parents[2]}"] if begun else ["train", *words, f"output={place}"]
    line += ["log_every=1000", "checkpoint_every=25000", "track.tensorboard=false"] if not begun else []
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(child.command("robot_rl", *line), check=True, env=env, stdout=sys.stderr)
    rows = read_metrics(sorted(place.glob("train/*/metrics.jsonl"))[-1])
    curve = [(item["step"], item["eval/success"]) for item in rows if "eval/success" in item]
    last = next(item for item in reversed(rows) if "time/train_s" in item)
    return {
        **{"task": task, "side": "ours", "seed": seed, "steps": settings["total_steps"], "success": curve[-1][1]},
        **{"curve": curve[:-1], "wall_s": round(last["time/train_s"]), "cpu_s": round(last["time/train_cpu_s"])},
        "command": "robot-rl train " + " ".join(words),
    }


def train_peer(
    task: str, seed: int, settings: dict[str, Any], overrides: tuple[str, ...], runs: Path
) -> dict[str, Any]:
    """stable-baselines3's SAC with its HerReplayBuffer, in this process; its other settings are its defaults."""
    torch.set_num_threads(1)
    sb3: Any = require("stable_baselines3")
    vec: Any = require("stable_baselines3.common.vec_env")
    callbacks: Any = require("stable_baselines3.common.callbacks")
    steps, every = int(settings["total_steps"]), int(settings["eval_every"])
    env = vec.DummyVecEnv([lambda: make_task(task)] * settings["num_envs"])
    given = {
        "learning_starts": settings["learning_starts"],
        **rhythm(settings),
        **{"gamma": GAMMA, "learning_rate": LR, "batch_size": BATCH, "policy_kwargs": {"net_arch": list(HIDDEN)}},
        "replay_buffer_kwargs": {"n_sampled_goal": HINDSIGHT, "goal_selection_strategy": "future"},
        **{key: yaml.safe_load(value) for key, value in (word.split("=", 1) for word in overrides)},
    }
    model = sb3.SAC("MultiInputPolicy", env, replay_buffer_class=sb3.HerReplayBuffer, seed=seed, device="cpu", **given)
    judges = [make_task(task) for _ in range(JUDGES)]
    curve: list[tuple[int, float]] = []
    watch = Stopwatch()

    class Look(callbacks.BaseCallback):
        """Evaluates on the way, with the clock stopped."""

        def _on_step(self) -> bool:
            now, copies = self.num_timesteps, settings["num_envs"]
            if now // every > (now - copies) // every and now <= steps:
                watch.pause()
                curve.append((now, judge(model, judges, GLANCE)))
                watch.resume()
            return True

    watch.resume()
    model.learn(steps, callback=Look())
    watch.pause()
    wall, cpu = watch.read()
    return {
        **{"task": task, "side": "sb3", "seed": seed, "steps": steps, "success": judge(model, judges, FINAL)},
        **{"curve": curve, "wall_s": round(wall), "cpu_s": round(cpu), "settings": given},
    }


def rhythm(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The peer's options for as many updates a step as ours makes: whole ones, every so many steps of all copies."""
    rate = Fraction(str(settings["updates_per_step"])) * settings["num_envs"]
    return {"train_freq": (rate.denominator, "step"), "gradient_steps": rate.numerator}


def make_task(task: str) -> gymnasium.Env:
    """The task as its package registers it, with MuJoCo's enumerations mended (`sim.gym_mujoco`)."""
    limit = gymnasium.spec(task).max_episode_steps if task in gymnasium.registry else None
    env = gym_copies.make_one(task, {}, None)
    return gymnasium.wrappers.TimeLimit(env, limit or gymnasium.spec(task).max_episode_steps or 50)


def judge(model: Any, envs: list[gymnasium.Env], episodes: int) -> float:
    """Share of deterministic episodes whose last step succeeds, from the starts that our evaluation draws."""
    won = []
    for i, (env, seed) in enumerate(zip(envs, env_seeds(10_000, len(envs)))):
        for episode in range(episodes // len(envs) + (i < episodes % len(envs))):
            obs, info = env.reset(seed=None if episode else seed)
            over = False
            while not over:
                action, _ = model.predict(obs, deterministic=True)
                obs, _, terminated, truncated, info = env.step(action)
                over = terminated or truncated
            won.append(float(np.asarray(info["is_success"])))
    return mean(won)
