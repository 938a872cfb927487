"""PPO from end to end, ours against stable-baselines3: same task, same sizes, in alternation in one process.

SBX (JAX) takes part where it is installed (`pip install sbx-rl`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from benchmarks.harness import compare, one_thread, ratio, sbx_is_here
from robot_rl import build
from robot_rl.advantage import use_backend
from robot_rl.extras import require
from robot_rl.loops.on_policy import OnPolicy

ENV = "robot_rl.sim.gym_env.make"


def run(
    quick: bool = False,
    *,
    env_id: str = "HalfCheetah-v5",
    num_envs: tuple[int, ...] = (1, 8),
    rounds: int = 5,
    kernels: tuple[str, ...] = ("auto", "numpy"),
) -> dict[str, Any]:
    """Environment steps per second of whole training (rollout and update), one thread.

    Both sides use 2048 steps per environment, minibatches of 64, 10 epochs and two tanh layers of 64, the defaults of
    stable-baselines3. Every round trains each contestant for one iteration; the first round warms up and is dropped.

    Args:
        quick: two rounds.
        env_id: a Gymnasium id.
        num_envs: numbers of environments to measure.
        rounds: measured rounds.
        kernels: backends of the core: "auto" is numba where it is installed.

    Returns:
        Rows per (contestant, number of environments): median steps/s, and per round the ratio to the peer as median,
        lowest and highest; for ours also the share of time spent in the update.
    """
    with one_thread():
        rows = []
        for count in num_envs:
            rows += _compare(env_id, count, 2 if quick else rounds, kernels)
    return {"env": env_id, "threads": 1, "rows": rows}


def _compare(env_id: str, count: int, rounds: int, kernels: tuple[str, ...]) -> list[dict[str, Any]]:
    contestants: dict[str, Callable[[], dict[str, float]]] = {"sb3": _peer("stable_baselines3", env_id, count)}
    if sbx_is_here():
        contestants["sbx"] = _peer("sbx", env_id, count)
    for kernel in kernels:
        contestants[f"ours ({kernel})"] = _ours(env_id, count, kernel)
    updates: dict[str, list[float]] = {name: [] for name in contestants}

    def iterate(name: str) -> None:
        updates[name].append(contestants[name]().get("update", float("nan")))

    seconds = compare({name: partial(iterate, name) for name in contestants}, rounds, warm=1)
    rows = []
    for name, values in seconds.items():
        row = {"name": f"{name} N={count}", "sps": count * 2048 / median(values), **ratio(values, seconds["sb3"])}
        if name.startswith("ours"):
            row["update_fraction"] = median(updates[name][1:])
        rows.append(row)
    return rows


def _ours(env_id: str, count: int, kernel: str) -> Callable[[], dict[str, float]]:
    env = _at(ENV)(count, 0, "cpu", id=env_id)
    with use_backend(kernel):
        loop = OnPolicy(env, build.make("policy", {"name": "online/ppo"}, env.io))
    last: dict[str, float] = {}

    def hook(step: int, metrics: dict[str, float]) -> bool:
        last["update"] = metrics["time/update_fraction"]
        return False

    def iterate() -> dict[str, float]:
        with use_backend(kernel):
            loop.run(loop.env_steps + 2048 * count, hook)
        return dict(last)

    return iterate


def _peer(module: str, env_id: str, count: int) -> Callable[[], dict[str, float]]:
    peer: Any = importlib.import_module(module)
    make_vec_env: Any = require("stable_baselines3.common.env_util").make_vec_env
    model = peer.PPO("MlpPolicy", make_vec_env(env_id, n_envs=count, seed=0), device="cpu", seed=0)

    def iterate() -> dict[str, float]:
        model.learn(2048 * count, reset_num_timesteps=False)
        return {}

    return iterate


def _at(path: str) -> Any:
    """A class or function by its full path: the bench names concrete rooms but imports none."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
