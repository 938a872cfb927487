"""Speed of the SAC update: ours against stable-baselines3, SBX and a plain torch implementation.

All contestants run in this process with one thread, in alternation, on the same random data of HalfCheetah's sizes;
every figure includes drawing the batches from a replay memory (ours and the plain one from `ReplayBuffer`, a peer's
from its own). One item is one `update`: one critic and one actor step for SAC, twenty critic steps and one actor step
for the RLPD-like setting. SBX (JAX) takes part where it is installed (`pip install sbx-rl`), with one step per call,
as it trains by default, and with 20 in one compiled call.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.harness import compare, one_thread, ratio, sbx_is_here
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.types import IOSpec, PolicyParts, Step, Transitions

STATE, ACTION, BATCH = 17, 6, 256
SBX_STEPS = 20
"""Of one compiled call."""
RLPD = {"critics": 10, "subset": 2, "layer_norm": True, "utd": 20, "actor_reduce": "mean", "target_entropy": "half"}


def run(quick: bool = False) -> dict[str, Any]:
    """Measure gradient steps per second of processor time.

    Args:
        quick: fewer and shorter rounds.

    Returns:
        {"setting": sizes and threads, "gflops": rate of 256x256x256 products by torch.mm, "sac": {...},
        "rlpd": {...}}; each of the two holds "rate" (updates per second, median of rounds) and "ratio" to the named
        peer (median and range of the ratios within rounds), "sac" also the fraction of the product rate reached.
    """
    with one_thread():
        rounds = 3 if quick else 9
        memory = _memory(20_000)
        sac = {
            "sb3": _peer("stable_baselines3", 20_000),
            **_sbx(20_000),
            "torch": _plain(memory, critics=2, layer_norm=False, utd=1),
            "ours_float32": _ours(memory, matmul="float32"),
            "ours_bf16": _ours(memory, matmul="bf16"),
        }
        rlpd = {
            "torch": _plain(memory, critics=10, layer_norm=True, utd=20),
            "ours_float32": _ours(memory, matmul="float32", **RLPD),
            "ours_bf16": _ours(memory, matmul="bf16", **RLPD),
        }
        gemm = {"float32": _gemm_rate(torch.float32), "bf16": _gemm_rate(torch.bfloat16)}
        single = _compare(sac, "sb3", rounds, 40 if quick else 100)
        single["fraction_of_gemm"] = {
            name: single["rate"][f"ours_{name}"] * _gflop_per_update() / rate for name, rate in gemm.items()
        }
        return {
            "setting": {"state": STATE, "action": ACTION, "batch": BATCH, "hidden": [256, 256], "threads": 1},
            "gflops": gemm,
            "sac": single,
            "rlpd": _compare(rlpd, "torch", rounds, 1 if quick else 3),
        }


def _compare(contestants: dict[str, Callable[[int], None]], peer: str, rounds: int, items: int) -> dict[str, Any]:
    for go in contestants.values():
        go(max(items // 5, 1))  # warm up
    seconds = compare({name: partial(go, items) for name, go in contestants.items()}, rounds, clock=time.process_time)
    return {
        "rate": {name: items / median(values) for name, values in seconds.items()},
        "ratio": {
            f"{name}/{peer}": {
                kind.removeprefix("ratio_").replace("ratio", "median"): value
                for kind, value in ratio(values, seconds[peer]).items()
            }
            for name, values in seconds.items()
            if name != peer
        },
    }


def _gemm_rate(dtype: torch.dtype) -> float:
    """10^9 floating-point operations per second of torch.mm at 256x256x256."""
    a, b = torch.randn(256, 256).to(dtype), torch.randn(256, 256).to(dtype)
    out = torch.empty(256, 256, dtype=dtype)
    best = math.inf
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(20):
            torch.mm(a, b, out=out)
        best = min(best, (time.perf_counter() - start) / 20)
    return 2 * 256**3 / best / 1e9


def _gflop_per_update() -> float:
    """Arithmetic of the matrix products that one SAC update with two critics needs, in 10^9."""
    critic = [(STATE + ACTION) * 256, 256 * 256, 256]
    actor = [STATE * 256, 256 * 256, 256 * 2 * ACTION]
    forward = 2 * sum(actor) + 3 * 2 * sum(critic)  # actor on s and s'; targets, critics and policy's critics
    weights = 2 * sum(critic) + sum(actor)
    inputs = 2 * 2 * sum(critic[1:]) + 2 * 256 * ACTION + sum(actor[1:])
    return 2 * BATCH * (forward + weights + inputs) / 1e9


def _io() -> IOSpec:
    names = tuple(f"joint{i}" for i in range(ACTION))
    return IOSpec(
        {"state": ((STATE,), "float32")}, names, (-1.0,) * ACTION, (1.0,) * ACTION, ("1",) * ACTION, control_hz=20.0
    )


def _memory(rows: int) -> ReplayBuffer:
    """Replay full of random transitions, each the start of its own chain."""
    rng = np.random.default_rng(0)
    copies = 100
    buffer = ReplayBuffer(_io(), rows, num_envs=copies)
    off, on = np.zeros(copies, dtype=bool), np.ones(copies, dtype=bool)
    for _ in range(rows // copies):
        obs, next_obs = ({"state": rng.normal(size=(copies, STATE)).astype(np.float32)} for _ in range(2))
        action = rng.uniform(-1, 1, (copies, ACTION)).astype(np.float32)
        reward = rng.normal(size=copies).astype(np.float32)
        buffer.add(Step(obs, action, reward, next_obs, off, off, next_obs, on, off, action))
    return buffer


def _ours(memory: ReplayBuffer, **options: Any) -> Callable[[int], None]:
    sac = importlib.import_module("robot_rl.policies.online.sac")
    learner = sac.Sac(sac.SacOptions(batch_size=BATCH, **options), _io())
    batches = memory.batches(BATCH)

    def go(items: int) -> None:
        for _ in range(items):
            learner.update(batches)

    return go


def _sbx(rows: int) -> dict[str, Callable[[int], None]]:
    if not sbx_is_here():
        return {}
    return {"sbx": _peer("sbx", rows, 1), f"sbx_{SBX_STEPS}_per_call": _peer("sbx", rows, SBX_STEPS)}


def _peer(module: str, rows: int, at_once: int | None = None) -> Callable[[int], None]:
    """A package with stable-baselines3's interface; `at_once` updates a call, None for all."""
    baselines = importlib.import_module(module)
    logger = importlib.import_module("stable_baselines3.common.logger")
    box = gymnasium.spaces.Box

    class Still(gymnasium.Env):
        """Spaces only: the update is measured without an environment."""

        observation_space = box(-np.inf, np.inf, (STATE,), np.float32)
        action_space = box(-1.0, 1.0, (ACTION,), np.float32)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            return np.zeros(STATE, np.float32), {}

        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
            return np.zeros(STATE, np.float32), 0.0, False, False, {}

    model = baselines.SAC("MlpPolicy", Still(), seed=0, device="cpu", buffer_size=rows, batch_size=BATCH)
    model.set_logger(logger.Logger(folder=None, output_formats=[]))
    rng = np.random.default_rng(0)
    buffer = model.replay_buffer
    for column in (buffer.observations, buffer.next_observations, buffer.rewards):
        column[:] = rng.normal(size=column.shape)
    buffer.actions[:] = rng.uniform(-1, 1, buffer.actions.shape)
    buffer.full = True

    def go(items: int) -> None:
        steps = at_once or items
        for _ in range(max(items // steps, 1)):
            model.train(gradient_steps=steps, batch_size=BATCH)

    return go


class _Plain:
    """SAC as one writes it first: one module per network, autograd, one Adam per part."""

    parts = PolicyParts()

    def __init__(self, critics: int, layer_norm: bool, utd: int, subset: int) -> None:
        def net(inputs: int, outputs: int, norm: bool) -> nn.Sequential:
            layers: list[nn.Module] = []
            for fan_in in (inputs, 256):
                layers += [nn.Linear(fan_in, 256), *([nn.LayerNorm(256)] if norm else []), nn.ReLU()]
            return nn.Sequential(*layers, nn.Linear(256, outputs))

        self.utd, self.subset = utd, subset
        self.reduce_mean = critics > 2
        self.actor = net(STATE, 2 * ACTION, False)
        self.critics = nn.ModuleList(net(STATE + ACTION, 1, layer_norm) for _ in range(critics))
        self.targets = nn.ModuleList(net(STATE + ACTION, 1, layer_norm) for _ in range(critics))
        self.targets.load_state_dict(self.critics.state_dict())
        self.log_alpha = nn.Parameter(torch.zeros(1))
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=3e-4)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=3e-4)

    def act(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(state).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = normal.rsample()
        action = torch.tanh(u)
        return action, (normal.log_prob(u) - torch.log(1 - action.square() + 1e-6)).sum(-1)

    @staticmethod
    def q(nets: list[nn.Module], state: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([state, action], -1)
        return torch.stack([net(x).squeeze(-1) for net in nets])

    def critic_step(self, batch: Transitions, alpha: Tensor) -> None:
        critics, targets = list(self.critics), list(self.targets)
        state, next_state = batch.obs["state"], batch.next_obs["state"]
        with torch.no_grad():
            action, logp = self.act(next_state)
            chosen = torch.randperm(len(targets))[: self.subset]
            value = self.q(targets, next_state, action)[chosen].amin(0) - alpha * logp
            target = batch.reward + batch.discount * value
        loss = 0.5 * (self.q(critics, state, batch.action) - target).square().mean(-1).sum()
        self.critic_adam.zero_grad()
        loss.backward()
        self.critic_adam.step()
        with torch.no_grad():
            for theirs, ours in zip(self.targets.parameters(), self.critics.parameters()):
                theirs.lerp_(ours, 0.005)

    def update(self, batches: Iterator[Transitions]) -> None:
        alpha = self.log_alpha.exp().detach()
        for _ in range(self.utd - 1):
            self.critic_step(next(batches), alpha)
        batch = next(batches)
        self.critic_step(batch, alpha)
        state = batch.obs["state"]
        action, logp = self.act(state)
        value = self.q(list(self.critics), state, action)
        loss = (alpha * logp - (value.mean(0) if self.reduce_mean else value.amin(0))).mean()
        self.actor_adam.zero_grad()
        loss.backward()
        self.actor_adam.step()
        loss = -(self.log_alpha * (logp.detach() - ACTION)).mean()
        self.alpha_adam.zero_grad()
        loss.backward()
        self.alpha_adam.step()


def _plain(memory: ReplayBuffer, *, critics: int, layer_norm: bool, utd: int) -> Callable[[int], None]:
    learner, batches = _Plain(critics, layer_norm, utd, subset=2), memory.batches(BATCH)

    def go(items: int) -> None:
        for _ in range(items):
            learner.update(batches)

    return go
