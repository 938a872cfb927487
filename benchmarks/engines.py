"""Whether two engines simulate the same world: the scripted expert's returns on both, over many episodes.

    robot-rl bench engines +world=pick +episodes=1000

Contact amplifies rounding, so trajectories of contact worlds part after some steps; what a learner sees is the
distribution of returns. Both engines start the same episodes (same seeds), so differences are taken in pairs, too.

The simulator's classes arrive by name: this room knows none of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.env import load

ENGINES = ("robot_rl.sim.mujoco_env.make", "robot_rl.sim.warp_env.make")


def run(
    quick: bool = False,
    *,
    world: str = "pick",
    episodes: int = 1000,
    num_envs: int = 250,
    device: str = "cpu",
    noise: float = 0.3,
    seed: int = 0,
) -> dict[str, Any]:
    """Play the same episodes on the CPU engine and on MuJoCo Warp.

    Args:
        quick: 60 episodes.
        world: name of a file in sim/worlds, or a class path.
        episodes: how many on each engine, rounded up to a multiple of `num_envs`.
        num_envs: copies.
        device: of the Warp engine.
        noise: standard deviation of Gaussian noise on the expert's actions, the same on both engines.
        seed: of starts and noise.

    Returns:
        {"rows": {engine: {"return", "se", "success", "length", "episodes"}}, "difference": of the mean returns, "z":
        difference over its standard error as independent samples, "paired_z": as paired ones}.
    """
    path = world if "." in world else _class_path(world)
    if quick:
        episodes, num_envs = 60, min(num_envs, 60)
    rows, returns = {}, []
    for engine in ENGINES:
        env = load(engine)(num_envs, seed, device if "warp" in engine else "cpu", world=load(path)())
        values, success, length = play(env, -(-episodes // num_envs), noise=noise, seed=seed)
        env.close()
        returns.append(values)
        rows[engine.split(".")[-2]] = {
            "return": float(values.mean()),
            "se": float(values.std(ddof=1) / math.sqrt(len(values))),
            "success": float(success.mean()),
            "length": float(length.mean()),
            "episodes": len(values),
        }
    first, second = rows.values()
    difference = second["return"] - first["return"]
    paired = returns[1] - returns[0]
    error = float(paired.std(ddof=1) / math.sqrt(len(paired)))
    return {
        "rows": rows,
        "difference": difference,
        "z": difference / max(math.hypot(first["se"], second["se"]), 1e-12),
        "paired_z": float(paired.mean()) / max(error, 1e-12),
    }


def play(env: Any, rounds: int, *, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns, success at the end and lengths of `rounds` episodes of each copy, with a noisy expert."""
    count, actions = env.num_envs, env.io.action_dim
    totals, wins, lengths = [], [], []
    for number in range(rounds):
        obs, _ = env.reset(seed=seed + 1000 * number)
        random = np.random.default_rng([seed, number])
        total, length, alive, won = np.zeros(count), np.zeros(count, int), np.ones(count, bool), np.zeros(count, bool)
        while alive.any():
            wish = _numpy(env.expert(obs)) + noise * random.standard_normal((count, actions))
            obs, reward, terminated, truncated, info = env.step(np.clip(wish, -1.0, 1.0).astype(np.float32))
            total += np.where(alive, _numpy(reward), 0.0)
            length += alive
            ended = alive & (_numpy(terminated) | _numpy(truncated))
            won |= ended & _numpy(info["success"])
            alive &= ~ended
        totals.append(total)
        wins.append(won)
        lengths.append(length)
    return np.concatenate(totals), np.concatenate(wins), np.concatenate(lengths)


def _class_path(world: str) -> str:
    name = {"halfcheetah": "HalfCheetah"}.get(world, "".join(word.capitalize() for word in world.split("_")))
    return f"robot_rl.sim.worlds.{world}.{name}"


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
