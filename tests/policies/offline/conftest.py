"""A log of random actions in a world whose best policy is known, and batches made by hand."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl import build
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import write_store
from robot_rl.types import Episode, IOSpec, LogFacts, Transitions


def make_io(state: int = 3, actions: int = 2) -> IOSpec:
    names = tuple(f"a{i}" for i in range(actions))
    return IOSpec(
        {"state": ((state,), "float32")}, names, (-1.0,) * actions, (1.0,) * actions, ("1",) * actions, control_hz=10.0
    )


@pytest.fixture
def io() -> IOSpec:
    return make_io()


def learner(kind: Any, io: IOSpec, *, seed: int = 0, **options: Any) -> Any:
    """A learner with the options named, the others as the class has them."""
    return kind(build.options_of("policy", kind)(**options), io, seed=seed)


@pytest.fixture(scope="session")
def make() -> Callable[..., Any]:
    """(class, io, seed=0, **options) -> learner."""
    return learner


@pytest.fixture
def batch() -> Callable[..., Transitions]:
    """(size, **fields) -> random transitions of 3 states and 2 actions with the fields replaced."""

    def make(size: int = 8, *, state: int = 3, actions: int = 2, seed: int = 0, **fields: Any) -> Transitions:
        g = torch.Generator().manual_seed(seed)
        no = torch.zeros(size, dtype=torch.bool)
        action = torch.rand(size, actions, generator=g) * 1.8 - 0.9
        values: dict[str, Any] = {
            "obs": {"state": torch.randn(size, state, generator=g)},
            "action": action,
            "reward": torch.randn(size, generator=g),
            "discount": torch.full((size,), 0.99),
            "next_obs": {"state": torch.randn(size, state, generator=g)},
            "terminated": no,
            "truncated": no,
            "intervened": no,
            "mask": ~no,
            "extras": {
                "next_action": action.roll(1, 0),
                "next_action_valid": torch.ones(size),
                "return_to_go": torch.randn(size, generator=g),
                "source": torch.arange(size) * 2 // max(size, 2),
            },
        }
        return Transitions(**{**values, **fields})

    return make


class Point:
    """Push a point to the origin: x' = clip(x + 0.3 a), reward -x'^2, 12 steps, started uniformly in [-1, 1]^2.

    Random actions drift nowhere: the mean action is 0 and so is what cloning learns, whose return is that of standing
    still, -12 E|x0|^2 = -8. The best policy walks straight home.
    """

    steps, gamma = 12, 0.9

    def __init__(self, folder: Path) -> None:
        self.io = make_io(2, 2)
        rng = np.random.default_rng(0)
        self.episodes = [
            self.episode(rng.uniform(-1, 1, 2), lambda x: rng.uniform(-1, 1, 2).astype(np.float32)) for _ in range(300)
        ]
        self.starts = np.random.default_rng(1).uniform(-1, 1, (64, 2)).astype(np.float32)
        self.store = write_store(folder / "point.store", self.episodes, io=self.io)
        self.facts = LogFacts(*self.store.moments(), -4.0, 0.0, self.gamma, self.steps)

    def sampler(self, seeds: int = 1) -> LogDataset:
        return LogDataset(
            self.store, LogView(gamma=self.gamma, next_action=True, return_to_go=True), seeds=seeds, seed=3
        )

    def episode(self, start: np.ndarray, act: Callable[[np.ndarray], np.ndarray]) -> Episode:
        x, states, actions, rewards = np.asarray(start, np.float32), [], [], []
        states.append(x)
        for _ in range(self.steps):
            a = act(x)
            x = np.clip(x + 0.3 * a, -2, 2).astype(np.float32)
            states.append(x)
            actions.append(a)
            rewards.append(-float(x @ x))
        return Episode(
            obs={"state": np.stack(states)},
            action=np.stack(actions),
            proposed=np.stack(actions),
            reward=np.array(rewards, np.float32),
            terminated=False,
            truncated=True,
            intervened=np.zeros(self.steps, bool),
            stamp=np.arange(self.steps + 1.0),
        )

    def score(self, policy: Any) -> float:
        """Mean return from fixed starts: about -8 standing still, about -1.3 at best."""
        x, total = self.starts, np.zeros(len(self.starts))
        for _ in range(self.steps):
            x = np.clip(x + 0.3 * policy.act({"state": x}, deterministic=True).value, -2, 2)
            total -= (x * x).sum(1)
        return float(total.mean())

    def train(self, learner: Any, updates: int) -> float:
        learner.prepare(self.facts)
        batches: Iterator[Transitions] = self.sampler(learner.need.seeds).batches(learner.need.rows)
        for _ in range(updates):
            learner.update(batches)
        return self.score(learner.policy)


@pytest.fixture(scope="session")
def point(tmp_path_factory: pytest.TempPathFactory) -> Point:
    return Point(tmp_path_factory.mktemp("point"))
