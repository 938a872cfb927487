"""PPO on action chunks: which ticks form a decision, what it is worth, and a world where the answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from robot_rl.loops.on_policy import OnPolicy
from robot_rl.policies.online.ppo_chunk import (
    PpoChunk,
    PpoChunkOptions,
    Ticks,
    group_credit,
    option_of,
    temporal_credit,
)
from robot_rl.types import EnvParts, IOSpec, Rollout

IO = IOSpec({"state": ((1,), "float32")}, ("push",), (-1.0,), (1.0,), ("1",), 10.0)


def rollout_of(reward, start, terminated, truncated, value, next_value) -> Rollout:
    """(T,) columns of one environment."""
    columns: dict[str, Any] = {"reward": reward, "value": value, "next_value": next_value}
    columns = {name: torch.tensor(x, dtype=torch.float32)[:, None] for name, x in columns.items()}
    ends = [torch.tensor(x, dtype=torch.bool)[:, None] for x in (terminated, truncated)]
    boundary = ends[0] | ends[1]
    boundary[-1] = True
    rows = len(reward)
    return Rollout(
        obs={"state": torch.zeros(rows, 1, 1)},
        action=torch.zeros(rows, 1, 2),
        logp=torch.zeros(rows, 1),
        terminated=ends[0],
        truncated=ends[1],
        boundary=boundary,
        valid=torch.ones(rows, 1, dtype=torch.bool),
        extras={"chunk_start": torch.tensor(start, dtype=torch.bool)[:, None]},
        **columns,
    )


def example() -> Rollout:
    """Decisions of 2, 1 (terminated), 2 and 1 (cut by the rollout) ticks."""
    return rollout_of(
        reward=[1.0, 2.0, 3.0, 0.5, 0.5, 4.0],
        start=[1, 0, 1, 1, 0, 1],
        terminated=[0, 0, 1, 0, 0, 0],
        truncated=[0] * 6,
        value=[0.1, 9.0, 0.3, 0.4, 9.0, 0.6],
        next_value=[0, 0, 9.0, 0, 0, 0.8],
    )


def test_decisions_are_the_executed_ticks():
    ticks = Ticks.of(example())
    assert ticks.start.tolist() == [0, 2, 3, 5]
    assert ticks.duration.tolist() == [2, 1, 2, 1]
    assert ticks.episode.tolist() == [0, 0, 1, 1]
    assert ticks.whole.tolist() == [True, False]  # the second is cut by the rollout
    assert ticks.discount(0.5).tolist() == [2.0, 3.0, 0.75, 4.0]
    begun = Ticks.of(example(), torch.tensor([True]))
    assert begun.whole.tolist() == [False, False]


def test_smdp_credit_by_hand():
    options: dict[str, Any] = {"gamma": 0.5, "gae_lambda": 0.8, "turn_gamma": 0.5, "option": 4}
    advantage, target = temporal_credit(Ticks.of(example()), "smdp_gae", **options)
    d3 = 4.0 + 0.5 * 0.8 - 0.6
    d2 = 0.75 + 0.25 * 0.6 - 0.4
    d1 = 3.0 - 0.3
    d0 = 2.0 + 0.25 * 0.3 - 0.1
    by_hand = [d0 + 0.25 * 0.8 * d1, d1, d2 + 0.25 * 0.8 * d3, d3]
    assert advantage.tolist() == pytest.approx(by_hand)
    assert target.tolist() == pytest.approx([a + v for a, v in zip(by_hand, (0.1, 0.3, 0.4, 0.6))])
    turn, _ = temporal_credit(Ticks.of(example()), "turn_gae", **options)
    assert turn[1].item() == pytest.approx(2.7)
    assert turn[0].item() == pytest.approx(3.0 + 0.5 * 0.3 - 0.1 + 0.5 * 0.8 * 2.7)


def test_chunk_of_one_is_ordinary_gae_for_every_form():
    one = rollout_of([1.0, 2.0, 3.0], [1, 1, 1], [0, 0, 0], [0, 0, 1], [0.1, 0.2, 0.3], [0, 0, 0.7])
    ticks = Ticks.of(one)
    options: dict[str, Any] = {"gamma": 0.9, "gae_lambda": 0.8, "turn_gamma": 0.9, "option": 3}
    expected, target = temporal_credit(ticks, "smdp_gae", **options)
    for name in ("turn_gae", "step_gae", "hae"):
        advantage, returns = temporal_credit(ticks, name, **options)
        torch.testing.assert_close(advantage, expected)
        torch.testing.assert_close(returns, target)


def test_options_are_runs_of_decisions_of_one_episode():
    assert option_of(Ticks.of(example()), 2).tolist() == [0, 0, 0, 1, 1, 1]
    assert option_of(Ticks.of(example()), 1).tolist() == [0, 0, 1, 2, 2, 3]


def test_group_credit_compares_whole_episodes_only():
    two = rollout_of([1.0, 3.0, 5.0, 9.0], [1, 1, 1, 1], [0, 1, 1, 0], [0] * 4, [0.0] * 4, [0.0] * 4)
    ticks = Ticks.of(two)
    advantage, known = group_credit(ticks, "rloo", None, 1.0)
    assert known.tolist() == [True, True, True, False]
    assert advantage.tolist() == pytest.approx([-1.0, -1.0, 1.0, 0.0])
    # A state seen in both episodes: returns 3 and 5 there, so the turn part adds -1 and 1.
    advantage, _ = group_credit(ticks, "gigpo", torch.tensor([7, 8, 8, 8]), 1.0)
    assert advantage.tolist() == pytest.approx([-0.5, -1.5, 1.5, 0.0])


class Ring:
    """One reward of 1 every `period` ticks, whatever the action; no terminal state, cut after `limit` ticks.

    The value before tick t of the cycle is gamma^(period - 1 - t) / (1 - gamma^period).
    """

    parts = EnvParts()

    def __init__(self, num_envs: int, limit: int, period: int = 4) -> None:
        self.num_envs, self.limit, self.period, self.io = num_envs, limit, period, IO
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.time = np.zeros(num_envs, np.int64)

    def reset(self, *, seed=None, options=None):
        self.time[:] = 0
        return self.obs(), {}

    def obs(self):
        return {"state": (self.time % self.period)[:, None].astype(np.float32)}

    def step(self, action):
        reward = (self.time % self.period == self.period - 1).astype(np.float32)
        self.time += 1
        over, none = self.time >= self.limit, np.zeros(self.num_envs, bool)
        info = {}
        if over.any():
            info["final_obs"] = self.obs()
            self.time[over] = 0
        return self.obs(), reward, none, over, info


PLAIN: dict[str, Any] = {"normalize_reward": False}  # values in the task's own units


def learned_value(chunk: int, limit: int, **options: Any) -> float:
    """What the critic says at the start of a cycle after training on the ring."""
    env = Ring(8, limit)
    sizes = {"chunk": chunk, "rollout_steps": 48, "hidden": (16,)}
    given = PpoChunkOptions.model_validate({**sizes, "lr": 3e-3, "gae_lambda": 0.0, **PLAIN, **options})
    learner = PpoChunk(given, env.io, gamma=0.9)
    OnPolicy(env, learner).run(48 * 8 * 60)
    return float(learner.value({"state": np.zeros((1, 1), np.float32)})[0])


@pytest.mark.parametrize("chunk", [1, 4])
def test_critic_finds_the_known_value_where_time_limits_cut(chunk):
    known = 0.9**3 / (1 - 0.9**4)
    assert learned_value(chunk, limit=12) == pytest.approx(known, rel=0.06)


def test_naive_forms_miss_the_known_value():
    """A discount per decision in place of gamma^k, and time limits taken for ends, are visibly wrong here."""
    known = 0.9**3 / (1 - 0.9**4)  # 2.12
    per_decision = learned_value(4, limit=12, estimator="turn_gae", turn_gamma=0.9)
    assert per_decision == pytest.approx(1.0 / (1 - 0.9), rel=0.1)  # 10: sums rewards and discounts each chunk once
    ticks = Ticks.of(rollout_of([0, 0, 0, 1.0], [1, 0, 0, 0], [0] * 4, [0, 0, 0, 1], [known] * 4, [known] * 4))
    options: dict[str, Any] = {"gamma": 0.9, "gae_lambda": 0.0, "turn_gamma": 0.9, "option": 1}
    _, target = temporal_credit(ticks, "smdp_gae", **options)
    assert target.item() == pytest.approx(known)
    ended = rollout_of([0, 0, 0, 1.0], [1, 0, 0, 0], [0, 0, 0, 1], [0] * 4, [known] * 4, [known] * 4)
    _, wrong = temporal_credit(Ticks.of(ended), "smdp_gae", **options)
    assert wrong.item() == pytest.approx(0.9**3)


def test_chunks_run_out_restart_with_episodes_and_reach_the_learner():
    env = Ring(3, limit=6)
    learner = PpoChunk(PpoChunkOptions(chunk=4, rollout_steps=12, hidden=(8,)), env.io)
    seen = []
    rows = learner._rows
    learner._rows = lambda rollout: seen.append(rollout) or rows(rollout)  # type: ignore[method-assign]
    OnPolicy(env, learner).run(36)
    start = seen[0].extras["chunk_start"][:, 0].tolist()
    assert start == [True, False, False, False, True, False] * 2  # an episode of 6: a chunk of 4 and one cut to 2
    assert seen[0].action.shape == (12, 3, 4)


@pytest.mark.parametrize("estimator", ["smdp_gae", "step_gae", "turn_gae", "hae", "grpo", "rloo", "gigpo"])
def test_saved_learner_goes_on_exactly(estimator):
    def make():
        options = PpoChunkOptions(chunk=3, estimator=estimator, rollout_steps=12, hidden=(8,), minibatch=8)
        return PpoChunk(options, IO)

    env = Ring(4, limit=6)
    first = make()
    loop = OnPolicy(env, first)
    loop.run(48)
    second = make()
    second.load_state_dict(first.state_dict())
    other = OnPolicy(Ring(4, limit=6), second)
    for one in (loop, other):
        one.run(one.env_steps + 48)
    for key, value in first.policy.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(second.policy.state_dict()[key])), key


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="estimator"):
        PpoChunkOptions.model_validate({"estimator": "magic"})
    with pytest.raises(ValueError, match="chunk"):
        PpoChunkOptions(chunk=0)
    env = Ring(2, limit=50)
    n = env.io.action_dim
    choices = replace(env.io, action_choices=(3,) * n, action_low=(0.0,) * n, action_high=(2.0,) * n)
    with pytest.raises(ValueError, match=r"continuous numbers.*policy=online/ppo"):
        PpoChunk(PpoChunkOptions(chunk=2), choices)
    learner = PpoChunk(PpoChunkOptions(chunk=2, estimator="grpo", rollout_steps=8, hidden=(8,)), env.io)
    with pytest.raises(ValueError, match="no episode ended inside the rollout"):
        OnPolicy(env, learner).run(16)
