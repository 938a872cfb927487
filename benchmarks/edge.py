"""The edge of reach: values of short branches in the true world, with one critic, two, and many diverse ones.

A point is pushed on a plane. The model is the world itself, so what goes wrong is not the model's error. Three tasks:

- hold: x' = x + 0.3 a, reward 0.02 - 0.025 |x'|^2, logged states within 0.3 of the origin on either axis. Staying there
  is all that is to be learnt. With branches of one step nobody acts further out, so what critics make of it by chance
  is bootstrapped from: where all of them promise more than staying does, the policy leaves and values feed on
  themselves.

- bowl: x' = clip(x + 0.3 a, -2, 2), reward -|x'|^2. Branches of one step begin in one corner, so every successor lies
  at the edge: it is bootstrapped from and never acted in.
- cliff: x' = clip(x + 0.5 a, -3, 3); logged states fill the unit square, where the reward is the first coordinate;
  outside it is -5, which only shows to who acts there. With branches of one step nobody does: what lies outside is the
  edge, and values that rise towards the border of the square go on rising behind it.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robot_rl.figure import panels, save
from robot_rl.types import IOSpec, LogFacts, Transitions


@dataclass(frozen=True)
class Case:
    """Name, and what the learner is built with."""

    name: str
    critics: int
    eta: float


@dataclass(frozen=True)
class Task:
    """A world, its logged states, and what is tried on it.

    Attributes:
        step: how far an action of 1 moves the point.
        limit: bound of the plane.
        gamma: discount.
        reward: of (state, successor).
        states: (generator, count) -> logged states.
        cases: what is compared.
        alpha: temperature at the start.
        most: largest reward per step that lasts, where the task is drawn with it.
    """

    step: float
    limit: float
    gamma: float
    reward: Callable[[Tensor, Tensor], Tensor]
    states: Callable[[torch.Generator, int], Tensor]
    cases: tuple[Case, ...]
    alpha: float = 1.0
    most: float | None = None

    def world(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """True dynamics in the form of a model."""
        after = (state + self.step * action).clamp(-self.limit, self.limit)
        nothing = torch.zeros(len(state))
        return after, self.reward(state, after), nothing, nothing

    def log_rows(self) -> Iterator[Transitions]:
        """Endless rows of uniform actions at logged states."""
        generator = torch.Generator().manual_seed(0)
        no = torch.zeros(128, dtype=torch.bool)
        while True:
            state = self.states(generator, 128)
            action = torch.rand(128, 2, generator=generator) * 2 - 1
            after, reward, _, _ = self.world(state, action)
            discount = torch.full((128,), self.gamma)
            yield Transitions({"state": state}, action, reward, discount, {"state": after}, no, no, no, ~no)

    def evaluate(self, policy: Any, steps: int) -> tuple[float, float, float]:
        """Mean discounted return of `steps` steps, mean reward per step, and the share of points inside at the end."""
        x = next(self.log_rows()).obs["state"]
        total, plain = torch.zeros(len(x)), torch.zeros(len(x))
        for t in range(steps):
            action = torch.as_tensor(policy.act({"state": x}, deterministic=True).value)
            x, reward, _, _ = self.world(x, action)
            total, plain = total + self.gamma**t * reward, plain + reward
        inside = (x.abs() <= 1.0).all(1).float().mean()
        return float(total.mean()), float(plain.mean()) / steps, float(inside)


def _cliff(state: Tensor, after: Tensor) -> Tensor:
    return torch.where((state.abs() <= 1.0).all(1), state[:, 0], torch.full((len(state),), -5.0))


TASKS = {
    "bowl": Task(
        0.3,
        2.0,
        0.99,
        lambda state, after: -after.square().sum(1),
        lambda generator, count: 1.0 + 0.1 * (torch.rand(count, 2, generator=generator) * 2 - 1),
        (
            Case("1 critic", 1, 0.0),
            Case("2 critics (MBPO, MOPO without penalty)", 2, 0.0),
            Case("RAVL, 8 diverse critics", 8, 1.0),
        ),
    ),
    "cliff": Task(
        0.5,
        3.0,
        0.99,
        _cliff,
        lambda generator, count: torch.rand(count, 2, generator=generator) * 2 - 1,
        (
            Case("2 critics (MOPO without penalty)", 2, 0.0),
            Case("RAVL, 10 critics, eta 1", 10, 1.0),
            Case("RAVL, 10 critics, eta 100", 10, 100.0),
        ),
    ),
    "hold": Task(
        0.3,
        100.0,
        0.99,
        lambda state, after: 0.02 - 0.025 * after.square().sum(1),
        lambda generator, count: 0.3 * (torch.rand(count, 2, generator=generator) * 2 - 1),
        (
            Case("2 critics (MOPO without penalty)", 2, 0.0),
            Case("RAVL, 10 critics, eta 1", 10, 1.0),
        ),
        alpha=0.001,  # rewards are hundredths: a bonus of 1 times the entropy would be all that counts
        most=0.02,
    ),
}


def run(
    quick: bool = False,
    updates: int = 1000,
    every: int = 100,
    picture: str | None = None,
    task: str = "bowl",
    seed: int = 0,
    seeds: int = 1,
) -> dict[str, Any]:
    """Train each case and compare what its critics promise with what its policy achieves.

    Args:
        quick: a quarter of the updates.
        updates: of every case.
        every: updates between measurements.
        picture: PNG file to draw, or None.
        task: name in `TASKS`.
        seed: of the first run of every case.
        seeds: runs of every case.

    Returns:
        {"rows": case, seed, updates, promised (mean target), achieved (discounted return of 30 steps, 50 in cliff and
        hold, from logged states), gap, and of these two the mean reward per step (best 1 and 0.02) and of cliff the
        share of points inside}.

    Raises:
        ValueError: unknown task.
    """
    if task not in TASKS:
        raise ValueError(f"task is '{task}', expected one of {', '.join(TASKS)}")
    given = TASKS[task]
    ravl = importlib.import_module("robot_rl.policies.offline.ravl")
    io = IOSpec({"state": ((2,), "float32")}, ("x", "y"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0)
    rows: list[dict[str, Any]] = []
    for case, number in itertools.product(given.cases, range(seed, seed + seeds)):
        options = ravl.RavlOptions(
            critics=case.critics,
            eta=case.eta,
            hidden=(64, 64),
            batch_size=128,
            lr=1e-3,
            tau=0.02,
            init_alpha=given.alpha,
            horizon=1,
            real_ratio=0.0 if task == "bowl" else 0.05,
            rollout_every=200,
            rollout_batch=500,
            metrics_every=every,
        )
        learner = ravl.Ravl(options, io, seed=number, gamma=given.gamma, model=given.world)
        state = torch.cat([next(given.log_rows()).obs["state"] for _ in range(2)])
        learner.prepare(LogFacts(state.mean(0).numpy(), state.std(0).numpy(), -8.0, 0.0, given.gamma, 30))
        batches = given.log_rows()
        for i in range(updates // 4 if quick else updates):
            metrics = learner.update(batches)
            if (i + 1) % every == 0:
                promised = metrics["train/target"]
                got, per_step, inside = given.evaluate(learner.policy, 30 if task == "bowl" else 50)
                row: dict[str, Any] = {"case": case.name, "seed": number, "updates": i + 1}
                row |= {"promised": promised, "achieved": got, "gap": promised - got}
                if task != "bowl":
                    row["reward_per_step"] = per_step
                if task == "cliff":
                    row["inside"] = inside
                rows.append(row)
    if picture is not None and given.most is None:
        _draw(rows, picture)
    elif picture is not None:
        _draw_steps(rows, picture, given)
    return {"rows": rows}


def _draw(rows: list[dict[str, Any]], path: str) -> None:
    names = list(dict.fromkeys(row["case"] for row in rows))
    figure, axes = panels(1, len(names), width=3.4, height=3, sharey=True)
    for axis, name in zip(axes[0], names):
        own = [row for row in rows if row["case"] == name]
        for key in ("promised", "achieved"):
            axis.plot([row["updates"] for row in own], [row[key] for row in own], label=key)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("updates")
    axes[0, 0].set_ylabel("discounted value")
    axes[0, 0].legend()
    save(figure, Path(path), dpi=80)


def _draw_steps(rows: list[dict[str, Any]], path: str, task: Task) -> None:
    assert task.most is not None
    figure, axes = panels(1, 2, width=4.5, height=3.2)
    for colour, case in enumerate(task.cases):
        own = [row for row in rows if row["case"] == case.name]
        for i, seed in enumerate(sorted({row["seed"] for row in own})):
            line = [row for row in own if row["seed"] == seed]
            label = None if i else case.name
            for axis, key in zip(axes[0], ("promised", "reward_per_step")):
                axis.plot([r["updates"] for r in line], [r[key] for r in line], f"C{colour}", label=label)
    for axis, best, title in zip(
        axes[0],
        (task.most / (1.0 - task.gamma), task.most),
        ("promised value; dotted: the most that exists", "reward per step achieved; dotted: the best"),
    ):
        axis.axhline(best, color="black", linestyle=":")
        axis.set_yscale("symlog", linthresh=best)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("updates")
    axes[0, 0].legend(fontsize=8)
    save(figure, Path(path), dpi=80)
