"""Hindsight in the learner: what it asks for, bounded targets, and a world that only hindsight solves."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.hindsight import HindsightReplay
from robot_rl.loops.evaluate import evaluate
from robot_rl.loops.off_policy import OffPolicy
from robot_rl.policies.online.her import Her, HerOptions, RewardRange
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.types import EnvParts, Goals, IOSpec, Transitions

IO = IOSpec({"state": ((4,), "float32")}, ("x", "y"), (-1.0,) * 2, (1.0,) * 2, ("1",) * 2, control_hz=10.0)
STEPS, SPEED, NEAR = 20, 0.1, 0.1


def near(achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
    return np.linalg.norm(achieved - goal, axis=-1) < NEAR


def pay(achieved: np.ndarray, goal: np.ndarray) -> np.ndarray:
    return near(achieved, goal) - 1.0


def show(state: np.ndarray, asked: np.ndarray, goal: np.ndarray) -> np.ndarray:
    return np.concatenate([state[:, :2], goal], axis=1)


class Circle(gymnasium.vector.VectorEnv):
    """A point starts in the middle and has to stand on a point of the circle of radius 1, where a random walk of 20
    steps of .1 hardly ever comes; 0 there and -1 elsewhere."""

    io = IO
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    parts = EnvParts(goals=Goals(2, 2, show, pay))

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self.num_envs, self._rng = num_envs, np.random.default_rng(seed)
        self._at, self._goal, self._count = np.zeros((num_envs, 2)), np.zeros((num_envs, 2)), 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        angle = self._rng.uniform(0, 2 * np.pi, self.num_envs)
        self._at, self._goal, self._count = np.zeros((self.num_envs, 2)), np.stack([np.cos(angle), np.sin(angle)], 1), 0
        return self._look(), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self._at, self._count = self._at + SPEED * np.asarray(actions, float), self._count + 1
        final, reward, success = self._look(), pay(self._at, self._goal), near(self._at, self._goal)
        goals = {"achieved_goal": self._at.copy(), "desired_goal": self._goal.copy()}
        over = np.full(self.num_envs, self._count == STEPS)
        obs = self.reset()[0] if over.any() else final
        info = {"final_obs": final, "_final_obs": over, "success": success, **goals}
        return obs, reward.astype(np.float32), np.zeros(self.num_envs, bool), over, info

    def _look(self) -> dict[str, np.ndarray]:
        return {"state": np.concatenate([self._at, self._goal], 1).astype(np.float32)}


def train(kind: str, steps: int) -> float:
    """Success over 50 trials."""
    env, small = Circle(8), {"hidden": (64, 64), "batch_size": 128, "lr": 2e-3}
    if kind == "her":
        learner: Any = Her(HerOptions(**small), IO, seed=0)
        buffer: Any = HindsightReplay(IO, steps, goals=env.parts.goals, num_envs=8, gamma=0.95)  # type: ignore[arg-type]
    else:
        learner, buffer = (
            Sac(SacOptions(init_alpha=0.1, **small), IO, seed=0),
            ReplayBuffer(IO, steps, num_envs=8, gamma=0.95),
        )
    loop = OffPolicy(env, learner, buffer, batch_size=128, learning_starts=400, updates_per_step=0.15, seed=0)
    loop.run(steps, lambda step, metrics: False)
    return float(np.mean(evaluate(Circle(10, seed=1), learner.policy, episodes=50).successes))


@pytest.mark.slow
def test_her_reaches_goals_that_soft_actor_critic_never_meets() -> None:
    assert train("her", 8000) >= 0.9
    assert train("sac", 8000) <= 0.2  # the same settings without hindsight


def test_her_asks_for_hindsight_and_sac_does_not() -> None:
    assert Her(HerOptions(hindsight=3, batch_size=32), IO).need.hindsight == 3
    assert Her(HerOptions(batch_size=32), IO).need.rows == 32
    assert Sac(SacOptions(), IO).need.hindsight == 0


def test_reward_range_bounds_discounted_returns() -> None:
    found = RewardRange()
    found.observe(torch.tensor([-1.0, 0.0]), torch.tensor([0.0, 0.9]))
    assert found.bounds() == pytest.approx((-10.0, 0.0))  # -1 for ever at .9 is worth -1 / (1 - .9); at best 0
    found.observe(torch.tensor([0.5]), torch.tensor([0.9]))
    assert found.bounds() == pytest.approx((-10.0, 5.0))
    again = RewardRange()
    again.load_state_dict(found.state_dict())
    assert again.bounds() == found.bounds()
    one = RewardRange()
    one.observe(torch.tensor([2.0]), torch.tensor([0.5]))
    assert one.bounds() == pytest.approx((2.0, 4.0))  # 2 at once and then an end, or 2 for ever


@pytest.mark.parametrize(("bound", "least"), [(True, -10.0), (False, -1000.0)])
def test_her_target_stays_within_what_rewards_allow(bound: bool, least: float) -> None:
    learner = Her(HerOptions(hidden=(8,), batch_size=4, bound_target=bound), IO)
    off = torch.zeros(4, dtype=torch.bool)
    state = {"state": torch.full((4, 4), -1.0)}  # with weights of -100 every hidden unit is awake, whatever the action
    with torch.no_grad():
        learner.target.params.flat.fill_(-100.0)  # a critic that has run away
    rows = Transitions(state, torch.zeros(4, 2), -torch.ones(4), torch.full((4,), 0.9), state, off, off, off, ~off)
    with torch.no_grad():
        target = learner.bootstrap(learner.rows(rows))
    assert (float(target.min()) == pytest.approx(least)) if bound else (float(target.min()) < least)


def test_her_saved_and_loaded_makes_the_same_update() -> None:
    off = torch.zeros(8, dtype=torch.bool)
    rows = Transitions(
        {"state": torch.randn(8, 4)}, torch.zeros(8, 2), -torch.rand(8), torch.full((8,), 0.9),
        {"state": torch.randn(8, 4)}, off, off, off, ~off,
    )  # fmt: skip
    one, other = (Her(HerOptions(hidden=(8,), batch_size=8), IO, seed=seed) for seed in (0, 1))
    one.update(iter([rows]))
    other.load_state_dict(one.state_dict())
    for learner in (one, other):
        learner.update(iter([rows]))
    assert torch.equal(one.actor.params.flat, other.actor.params.flat)
    assert torch.equal(one.critic.params.flat, other.critic.params.flat)
    assert one.range.bounds() == other.range.bounds()
