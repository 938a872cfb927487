"""Value heads on noisy targets: how far each head's value is from the mean of what it was shown."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl import curves

HEADS = ("mse", "twohot", "hlgauss", "quantile")


def run(
    quick: bool = False,
    updates: int = 1500,
    seeds: tuple[int, ...] = (0, 1, 2),
    rare: float = 0.1,
    out: str | None = None,
) -> dict[str, Any]:
    """Regress the value of random states on targets of sparse, noisy rewards.

    The target of a state x in [-1, 1]^8 is 10 with probability `rare` p(x), else 0, p(x) a smooth function in [0, 2];
    the value is its mean. Each head gets the same network, step size and batches; what is measured is the
    root-mean-square error of the value on 1024 fixed states, in units of the largest target.

    Args:
        quick: a fifth of the updates, one seed.
        updates: per head and seed.
        seeds: of states, noise and weights.
        rare: scale of the probability of a reward.
        out: folder for value_heads.png; None = none.

    Returns:
        {"setting", "error": head -> final error of every seed, "early": the same after a fifth of the updates}.
    """
    if quick:
        updates, seeds = max(updates // 5, 50), seeds[:1]
    lines = {head: [_learn(head, updates, seed, rare) for seed in seeds] for head in HEADS}
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        curves.plot(
            Path(out) / "value_heads.png",
            {"value of sparse, noisy rewards": lines},
            x="updates",
            y="error / largest target",
        )
    return {
        "setting": {"updates": updates, "seeds": list(seeds), "rare": rare, "batch": 128, "hidden": [64, 64]},
        "error": {head: [float(np.mean(y[-3:])) for _, y in found] for head, found in lines.items()},
        "early": {head: [y[len(y) // 5] for _, y in found] for head, found in lines.items()},
    }


def _learn(head_name: str, updates: int, seed: int, rare: float) -> tuple[list[float], list[float]]:
    nets = {name: importlib.import_module(f"robot_rl.policies.nets.{name}") for name in ("net", "value_heads")}
    head = nets["value_heads"].build_head(head_name, low=-1.0, high=11.0, bins=51)
    generator = torch.Generator().manual_seed(seed)
    shape = nets["net"].NetShape(8, head.outputs, (64, 64), members=1)
    net = nets["net"].Net("value", shape, lr=1e-3, generator=generator)
    probe = torch.rand(1024, 8, generator=torch.Generator().manual_seed(99)) * 2 - 1
    truth = 10.0 * rare * _probability(probe)
    at, error = [], []
    for i in range(1, updates + 1):
        x = torch.rand(128, 8, generator=generator) * 2 - 1
        target = 10.0 * (torch.rand(128, generator=generator) < rare * _probability(x)).float()
        net.step(head.loss(net(x), target))
        if i % max(updates // 30, 1) == 0:
            with torch.no_grad():
                value = head.value(net(probe))[0]
            at.append(float(i))
            error.append(float((value - truth).square().mean().sqrt()) / 10.0)
    return at, error


def _probability(x: Tensor) -> Tensor:
    """(B,) in [0, 2]."""
    return 1.0 + torch.sin(2.0 * x[:, 0] + x[:, 1]) * torch.cos(1.5 * x[:, 2])
