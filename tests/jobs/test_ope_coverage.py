"""How often the intervals of every estimator hold the true value, over many logs of a world with an exact one."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.store import write_store
from robot_rl.policies.offline.bc import Bc, BcOptions
from robot_rl.policies.offline.fqe import Fqe, FqeOptions
from robot_rl.policies.offline.model_value import ModelValue, ModelValueOptions
from robot_rl.types import Action, Episode, IOSpec, PolicyParts
from robot_rl.verbs.ope import METHODS, Judges, OpeSettings, run

IO = IOSpec({"state": ((2,), "float32")}, ("a",), (-1.0,), (1.0,), ("1",), 10.0)
STEPS, GAMMA, PUSH, NOISE = 10, 0.95, 0.3, 0.05
START, SPREAD = 0.5, 0.2
BEHAVIOUR, TARGET = (-0.4, 0.25), (-0.8, 0.2)
"""(gain, standard deviation) of a = gain x + deviation z."""


class Linear:
    """a ~ N(gain x, std), x the first component of the state."""

    io = IO

    @property
    def parts(self):
        return PolicyParts(log_prob=self.log_prob)

    def __init__(self, gain: float, std: float) -> None:
        self.gain, self.std = gain, std
        self._generator = torch.Generator().manual_seed(0)

    def reset(self, rows: Any = None) -> None:
        """No memory."""

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        mean = self.gain * torch.as_tensor(obs["state"])[..., :1]
        if deterministic:
            return Action(mean)
        return Action(mean + self.std * torch.randn(mean.shape, generator=self._generator))

    def log_prob(self, obs: Any, action: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Normal(self.gain * obs["state"][..., :1], self.std).log_prob(action).sum(-1)


def exact(gain: float, std: float) -> float:
    """Sum of gamma^t E[1 - x_{t+1}^2], by the recursion of E[x^2] under x' = (1 + push gain) x + push std z + noise."""
    square, total = START**2 + SPREAD**2, 0.0
    for t in range(STEPS):
        square = (1 + PUSH * gain) ** 2 * square + (PUSH * std) ** 2 + NOISE**2
        total += GAMMA**t * (1 - square)
    return total


def write(path: Path, episodes: int, seed: int, gain: float, std: float) -> list[float]:
    """A log of one policy with its log-densities; its discounted returns."""
    rng, made, returns = np.random.default_rng(seed), [], []
    for _ in range(episodes):
        x = np.empty(STEPS + 1)
        x[0] = rng.normal(START, SPREAD)
        action, density = np.empty((STEPS, 1), np.float32), np.empty(STEPS, np.float32)
        for t in range(STEPS):
            z = rng.normal()
            action[t] = gain * x[t] + std * z
            density[t] = -0.5 * z * z - math.log(std) - 0.5 * math.log(2 * math.pi)
            x[t + 1] = x[t] + PUSH * float(action[t, 0]) + rng.normal(0, NOISE)
        reward = (1 - x[1:] ** 2).astype(np.float32)
        returns.append(float((GAMMA ** np.arange(STEPS) * reward).sum()))
        action = action.clip(-1, 1)
        made.append(
            Episode(
                obs={"state": np.stack([x, np.linspace(0, 1, STEPS + 1)], 1).astype(np.float32)},
                action=action,
                proposed=action,
                reward=reward,
                terminated=True,
                truncated=False,
                intervened=np.zeros(STEPS, bool),
                stamp=np.arange(STEPS + 1.0),
                meta={"columns": {"action_log_probs": density}},
            )
        )
    write_store(path, made, io=IO)
    return returns


def evaluate(log: Path, seed: int) -> Any:
    return run(
        OpeSettings(
            data=str(log), gamma=GAMMA, seed=seed, methods=METHODS, updates=1500, model_updates=800,
            behaviour_updates=300, resamples=500,
        ),
        Linear(*TARGET),
        IO,
        Judges(make_fqe=lambda io, p, **how: Fqe(
            FqeOptions(hidden=(32, 32), lr=2e-3, tau=0.05, batch_size=256, members=8, samples=3), io, p, seed=seed,
            **how,
        ),
        make_behaviour=lambda io: Bc(BcOptions(gaussian=True, hidden=(32, 32), lr=2e-3), io, seed=seed),
        make_model=lambda io, p, **how: ModelValue(
            ModelValueOptions(hidden=(32, 32), lr=2e-3, batch_size=256, members=8, rollouts=4), io, p, gamma=GAMMA,
            seed=seed, **how,
        ))
    )  # fmt: skip


def test_the_exact_value_is_the_mean_return(tmp_path):
    returns = write(tmp_path / "log.store", 4000, 0, *TARGET)
    error = np.std(returns) / len(returns) ** 0.5
    assert abs(np.mean(returns) - exact(*TARGET)) < 4 * error


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ope_intervals_cover_the_exact_value_in_most_logs(tmp_path):
    """24 logs of 200 episodes: nominal 95 %, at least 20 of them asked for."""
    truth, logs, hits, widths = exact(*TARGET), 24, dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0.0)
    for seed in range(logs):
        write(tmp_path / f"{seed}.store", 200, seed, *BEHAVIOUR)
        for estimate in evaluate(tmp_path / f"{seed}.store", seed).estimates:
            assert estimate.interval is not None
            hits[estimate.name] += estimate.interval.low <= truth <= estimate.interval.high
            widths[estimate.name] += (estimate.interval.high - estimate.interval.low) / logs
    lines = [f"exact {truth:.4f}, of the behaviour {exact(*BEHAVIOUR):.4f}"]
    lines += [f"{name}: {hits[name]} of {logs}, mean width {widths[name]:.3f}" for name in METHODS]
    sys.stdout.write("\n".join(["", *lines, ""]))  # seen with -s
    assert min(hits.values()) >= 20, lines
