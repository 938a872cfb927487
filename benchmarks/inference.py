"""Latency of one decision: our policies against torch eager and stable-baselines3, in alternation in one process."""

from __future__ import annotations

import importlib
import itertools
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from benchmarks.harness import one_thread
from robot_rl import build
from robot_rl.advantage import use_backend
from robot_rl.types import IOSpec

OBS, ACT, HIDDEN = 17, 6, (256, 256)


def run(quick: bool = False, *, rounds: int = 20, calls: int = 500) -> dict[str, Any]:
    """Deterministic actions for one observation of 17 numbers, two hidden layers of 256, one thread.

    Args:
        quick: a quarter of the rounds.
        rounds: turns of every contestant.
        calls: timed calls per turn.

    Returns:
        Rows per contestant: p50 and p99 of a call in microseconds, and the ratio of torch eager's p50 to its own.
    """
    with one_thread():
        contestants = _contestants()
        times: dict[str, list[np.ndarray]] = {name: [] for name in contestants}
        for i in range(max(rounds // 4, 2) + 1 if quick else rounds + 1):
            for name, act in contestants.items():
                sample = _time(act, calls)
                if i:  # the first round warms up
                    times[name].append(sample)
    joined = {name: np.concatenate(samples) / 1e3 for name, samples in times.items()}
    eager = float(np.percentile(joined["torch eager"], 50))
    rows = []
    for name, sample in joined.items():
        p50, p99 = (float(x) for x in np.percentile(sample, [50, 99]))
        rows.append({"name": name, "p50_us": p50, "p99_us": p99, "eager_ratio": eager / p50})
    return {"obs": OBS, "action": ACT, "hidden": list(HIDDEN), "threads": 1, "rows": rows}


def _time(act: Callable[[], Any], calls: int) -> np.ndarray:
    sample = np.empty(calls)
    clock = time.perf_counter_ns
    for i in range(calls):
        begin = clock()
        act()
        sample[i] = clock() - begin
    return sample


def _contestants() -> dict[str, Callable[[], Any]]:
    io = IOSpec(
        obs={"state": ((OBS,), "float32")},
        action_names=tuple(f"a{i}" for i in range(ACT)),
        action_low=(-1.0,) * ACT,
        action_high=(1.0,) * ACT,
        action_units=("1",) * ACT,
        control_hz=20.0,
    )
    state = np.random.default_rng(0).standard_normal((1, OBS)).astype(np.float32)
    obs = {"state": state}
    options = {"name": "online/ppo", "hidden": HIDDEN, "activation": "relu"}
    sac, sac_options = _at("robot_rl.policies.online.sac.Sac"), _at("robot_rl.policies.online.sac.SacOptions")
    with use_backend("numpy"):
        plain = build.make("policy", options, io).policy
    policies = {
        "PPO (numpy)": plain,
        "SAC": sac(sac_options(hidden=HIDDEN), io).policy,
    }
    if find_spec("numba"):
        policies["PPO (numba)"] = build.make("policy", options, io).policy
    contestants: dict[str, Callable[[], Any]] = {"torch eager": _eager(state)}
    if find_spec("stable_baselines3"):
        model = _sb3_model()
        contestants["sb3 predict"] = lambda: model.predict(state, deterministic=True)
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "agent.zip")
            policies["SB3 zip, ours"] = _at("robot_rl.policies.online.sb3_zip.Sb3Policy")(f"{folder}/agent.zip", io)
    for name, policy in policies.items():
        contestants[name] = lambda policy=policy: policy.act(obs, deterministic=True)
    return contestants


def _eager(state: np.ndarray) -> Callable[[], Any]:
    widths = (OBS, *HIDDEN)
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Linear(widths[-1], ACT), nn.Tanh())

    def act() -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(state)).numpy()

    return act


class _Spaces(gymnasium.Env):
    """Spaces only: the peer's constructor asks for an environment."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACT,), np.float32)


def _sb3_model() -> Any:
    sb3 = importlib.import_module("stable_baselines3")
    return sb3.SAC("MlpPolicy", _Spaces(), device="cpu", buffer_size=1, policy_kwargs={"net_arch": list(HIDDEN)})


def _at(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
