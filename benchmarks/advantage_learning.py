"""Credit for action chunks, compared by learning: estimators x chunk lengths x robot worlds at equal numbers of ticks.

Each run writes one JSON file and is skipped when that file exists, so a long comparison can be interrupted and
continued.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from robot_rl import build
from robot_rl.checkpoint import write_json
from robot_rl.curves import plot
from robot_rl.loops.episodes import EpisodeStats
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.stopwatch import Stopwatch
from robot_rl.version import VERSION

ENV = "robot_rl.sim.mujoco_env.make"
METHODS = ("step_gae", "smdp_gae", "turn_gae", "hae", "grpo", "gigpo")
OPTIONS: dict[str, dict[str, Any]] = {
    "turn_gae": {"turn_gamma": 0.95},  # the convention of language agents: per decision, whatever it lasts
}


@dataclass(frozen=True)
class World:
    """A robot world with what the bench spends on it.

    Attributes:
        world: full path of the class.
        options: of the world.
        ticks: control ticks of a run, all environments together.
        num_envs: environments.
        learner: options of the learner; rollout_steps is a multiple of the episode, so that episodes are whole.
    """

    world: str
    options: Mapping[str, Any]
    ticks: int
    num_envs: int
    learner: Mapping[str, Any]


WORLDS = {
    # Anchors of GiGPO: the vector from the tip to the goal, and angles and speeds, in coarse cells.
    "reach": World(
        "robot_rl.sim.worlds.reach.Reach",
        {},
        19_200,
        16,
        {"rollout_steps": 80, "lr": 1e-3, "epochs": 10, "minibatch": 64, "anchor_obs": (9, 10, 11)},
    ),
    "double_pendulum": World(
        "robot_rl.sim.worlds.double_pendulum.DoublePendulum",
        {},
        48_000,
        8,
        {"rollout_steps": 1000, "lr": 2e-3, "epochs": 10, "minibatch": 250, "anchor_tolerance": 0.25},
    ),
}


def run(
    out: str = "",
    quick: bool = False,
    *,
    worlds: tuple[str, ...] = ("reach", "double_pendulum"),
    methods: tuple[str, ...] = METHODS,
    chunks: tuple[int, ...] = (1, 4, 8),
    seeds: tuple[int, ...] = (0, 1, 2),
    threads: int = 1,
) -> dict[str, Any]:
    """Train every (world, seed, chunk, method) that has no result yet, then summarise all results in `out`.

    Args:
        out: folder of the JSON files and of advantage_learning.png.
        quick: a tenth of the ticks, one seed.
        worlds: names in `WORLDS`.
        methods: estimators of `PpoChunk`.
        chunks: ticks per decision.
        seeds: seeds of weights, starts and noise.
        threads: threads of torch.

    Returns:
        Rows per (world, chunk, method): return per episode over the last fifth of the ticks, mean and by seed, and over
        the whole run (area under the curve); seconds of the processor.

    Raises:
        ValueError: an unknown world, or no folder.
    """
    unknown = [name for name in worlds if name not in WORLDS]
    if unknown:
        raise ValueError(f"there is no world {unknown[0]!r}, expected some of {sorted(WORLDS)}")
    if not out:
        raise ValueError("out is empty, expected the folder of the results: +out=<folder>")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed in seeds[:1] if quick else seeds:
            for world in worlds:
                for chunk in chunks:
                    for method in methods:
                        path = folder / f"{world}_{method}_k{chunk}_seed{seed}.json"
                        if path.exists():
                            continue
                        ticks = WORLDS[world].ticks // (10 if quick else 1)
                        job = {"world": world, "method": method, "chunk": chunk, "seed": seed, "ticks": ticks}
                        result = train(job)
                        last = result["curve"][-1]
                        sys.stderr.write(f"{path.stem}: return {last['return']:.1f}, {last['cpu_s']:.0f} s\n")
                        write_json(path, {**result, "versions": {"robot_rl": VERSION, "torch": torch.__version__}})
    finally:
        torch.set_num_threads(before)
    return summarise(folder)


def train(job: Mapping[str, Any]) -> dict[str, Any]:
    """One run.

    Args:
        job: world, method, chunk, seed, ticks.

    Returns:
        The job with its curve: per rollout the ticks, the mean return of the episodes that ended in it, CPU seconds.
    """
    task = WORLDS[job["world"]]
    env = _at(ENV)(
        task.num_envs, job["seed"], world=_at(task.world)(**task.options), options=EngineOptions(num_threads=1)
    )
    options = {"chunk": job["chunk"], "estimator": job["method"], **task.learner, **OPTIONS.get(job["method"], {})}
    options["obs_spread"] = None  # as the results in docs/ppo_chunk.md were made
    learner = build.make("policy", {"name": "online/ppo_chunk", **options}, env.io, seed=job["seed"], device="cpu")
    watch, curve = Stopwatch(), []

    def hook(ticks: int, metrics: dict[str, float]) -> bool:
        curve.append({"ticks": ticks, "return": metrics["rollout/return"], "cpu_s": watch.read()[1]})
        return False

    loop = OnPolicy(env, learner, seed=job["seed"])
    steps = _at(task.world)(**task.options).episode_steps
    loop.stats = EpisodeStats(task.num_envs, task.num_envs * max(1, task.learner["rollout_steps"] // steps))
    watch.resume()
    loop.run(job["ticks"], hook)
    env.close()
    return {**job, "options": dict(task.learner), "num_envs": task.num_envs, "curve": curve}


def summarise(folder: Path) -> dict[str, Any]:
    """Rows per (world, chunk, method) of all result files, and the plot."""
    runs: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*_seed*.json")):
        result = json.loads(path.read_text())
        runs.setdefault((result["world"], result["chunk"], result["method"]), []).append(result)
    rows, panels = [], {}
    for (world, chunk, method), results in sorted(runs.items()):
        final = [_late(result["curve"]) for result in results]
        rows.append(
            {
                "world": world,
                "k": chunk,
                "method": method,
                "return": mean(final),
                "by_seed": [round(x, 1) for x in final],
                "area": mean(float(np.mean([row["return"] for row in one["curve"]])) for one in results),
                "cpu_s": mean(one["curve"][-1]["cpu_s"] for one in results),
            }
        )
        lines = [([r["ticks"] for r in one["curve"]], [r["return"] for r in one["curve"]]) for one in results]
        panels.setdefault(f"{world}, k = {chunk}", {})[method] = lines
    plot(folder / "advantage_learning.png", panels, x="control ticks", y="return per episode", columns=3)
    return {"rows": rows}


def _late(curve: list[dict[str, float]]) -> float:
    """Mean return over the last fifth of the ticks."""
    enough = 0.8 * curve[-1]["ticks"]
    return float(np.mean([row["return"] for row in curve if row["ticks"] > enough]))


def _at(path: str) -> Any:
    """A class or function by its full path: the bench names concrete rooms but imports none."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
