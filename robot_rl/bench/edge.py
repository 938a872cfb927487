"""The edge of reach: values of one-step branches in the true world, with one critic, two, and many diverse ones.

A point is pushed on a plane, x' = clip(x + 0.3 a, -2, 2), reward -|x'|^2. Branches of one step begin in one corner, so
every successor lies at the edge: it is bootstrapped from and never acted in. The model is the world itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.extras import require
from robot_rl.types import IOSpec, LogFacts, Transitions

CASES = {"1 critic": (1, 0.0), "2 critics (MBPO, MOPO without penalty)": (2, 0.0), "RAVL, 8 diverse critics": (8, 1.0)}


def world(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """True dynamics in the form of a model."""
    after = (state + 0.3 * action).clamp(-2, 2)
    nothing = torch.zeros(len(state))
    return after, -after.square().sum(1), nothing, nothing


def _logged() -> Iterator[Transitions]:
    """Endless states of the corner; nothing else of a row is read."""
    generator = torch.Generator().manual_seed(0)
    no = torch.zeros(128, dtype=torch.bool)
    while True:
        state = 1.0 + 0.1 * (torch.rand(128, 2, generator=generator) * 2 - 1)
        zero = torch.zeros(128)
        yield Transitions({"state": state}, state, zero, zero, {"state": state}, no, no, no, ~no)


def _achieved(policy: Any, gamma: float, steps: int) -> float:
    """Mean discounted return of `steps` steps from the corner."""
    x = next(_logged()).obs["state"]
    total = torch.zeros(len(x))
    for t in range(steps):
        x, reward, _, _ = world(x, torch.as_tensor(policy.act({"state": x}, deterministic=True).value))
        total += gamma**t * reward
    return float(total.mean())


def run(quick: bool = False, updates: int = 1000, every: int = 100, picture: str | None = None) -> dict[str, Any]:
    """Train each case and compare what its critics promise with what its policy achieves.

    Args:
        quick: a quarter of the updates.
        updates: of every case.
        every: updates between measurements.
        picture: PNG file to draw, or None.

    Returns:
        {"rows": case, updates, promised (mean target), achieved (discounted return of 30 steps, which only falls with
        more steps), gap}.
    """
    kind = importlib.import_module("robot_rl.policies.offline.ravl").Ravl
    io = IOSpec({"state": ((2,), "float32")}, ("x", "y"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0)
    rows: list[dict[str, Any]] = []
    for name, (critics, eta) in CASES.items():
        learner = kind(
            io,
            critics=critics,
            eta=eta,
            hidden=(64, 64),
            batch_size=128,
            lr=1e-3,
            tau=0.02,
            horizon=1,
            real_ratio=0.0,
            rollout_every=200,
            rollout_batch=500,
            model=world,
            metrics_every=every,
        )
        learner.prepare(LogFacts(np.ones(2), np.full(2, 0.06), -8.0, 0.0, 0.99, 30))
        batches = _logged()
        for i in range(updates // 4 if quick else updates):
            metrics = learner.update(batches)
            if (i + 1) % every == 0:
                promised, got = metrics["train/target"], _achieved(learner.policy, 0.99, 30)
                rows.append(
                    {"case": name, "updates": i + 1, "promised": promised, "achieved": got, "gap": promised - got}
                )
    if picture is not None:
        _draw(rows, picture)
    return {"rows": rows}


def _draw(rows: list[dict[str, Any]], path: str) -> None:
    require("matplotlib", extra="report").use("Agg")
    plt = require("matplotlib.pyplot", extra="report")
    figure, axes = plt.subplots(1, len(CASES), figsize=(4 * len(CASES), 3), sharey=True)
    for axis, name in zip(axes, CASES):
        own = [row for row in rows if row["case"] == name]
        for key in ("promised", "achieved"):
            axis.plot([row["updates"] for row in own], [row[key] for row in own], label=key)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("updates")
    axes[0].set_ylabel("discounted value")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
