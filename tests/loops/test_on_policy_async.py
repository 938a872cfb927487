"""Asynchronous rollouts: versions, staleness, the decoupled loss, resuming, errors of the collecting thread."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from robot_rl.loops.on_policy_async import AsyncOnPolicy
from robot_rl.policies.online.ppo_async import PpoAsync, PpoAsyncOptions
from robot_rl.types import EnvParts, IOSpec

IO = IOSpec({"state": ((2,), "float32")}, ("push",), (-1.0,), (1.0,), ("1",), 10.0)


class Aim:
    """The action should equal the first of two numbers: reward 1 - (a - s)^2, a new state each step, 8 steps."""

    parts = EnvParts(saves=True)

    def __init__(self, num_envs: int = 8, seed: int = 0) -> None:
        self.num_envs, self.io = num_envs, IO
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.draw, self.time, self.fail_at = np.random.default_rng(seed), 0, -1

    def obs(self):
        self.state = self.draw.uniform(-0.8, 0.8, (self.num_envs, 2)).astype(np.float32)
        return {"state": self.state}

    def reset(self, *, seed=None, options=None):
        return self.obs(), {}

    def step(self, action):
        self.time += 1
        if self.time == self.fail_at:
            raise RuntimeError("the gripper is on fire")
        reward = 1.0 - (np.asarray(action)[:, 0] - self.state[:, 0]) ** 2
        over, none = np.full(self.num_envs, self.time % 8 == 0), np.zeros(self.num_envs, bool)
        final = self.obs()
        return (self.obs() if over.any() else final), reward, none, over, {"final_obs": final}

    def state_dict(self):
        return {"draw": self.draw.bit_generator.state, "time": self.time, "state": self.state.copy()}

    def load_state_dict(self, state):
        self.draw.bit_generator.state, self.time = state["draw"], state["time"]
        self.state = state["state"].copy()

    def close(self):
        pass


def learner_of(*, seed: int = 0, **options: Any) -> PpoAsync:
    given = {"rollout_steps": 16, "minibatch": 64, "epochs": 4, "hidden": (16,), "normalize_reward": False, "lr": 3e-3}
    return PpoAsync(PpoAsyncOptions.model_validate({**given, **options}), IO, seed=seed)


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_staleness_is_the_lag(lag):
    seen = []
    loop = AsyncOnPolicy(Aim(), learner_of(lag=lag))
    loop.run(16 * 8 * 6, lambda step, metrics: seen.append(metrics) or False)
    assert [row["train/staleness"] for row in seen] == [min(i, lag) for i in range(6)]
    fresh = [row["train/behaviour_kl"] for row in seen if not row["train/staleness"]]
    assert fresh == pytest.approx([0.0] * len(fresh), abs=1e-5)  # the ratio of fresh data is 1
    if lag:
        assert seen[-1]["train/behaviour_kl"] > 1e-4
        assert seen[-1]["train/effective_sample_size"] < 16 * 8


def test_decoupled_and_naive_agree_on_fresh_data():
    results = []
    for correction in ("decoupled", "naive"):
        learner = learner_of(lag=0, correction=correction)
        AsyncOnPolicy(Aim(), learner).run(16 * 8 * 3)
        results.append(torch.cat([x.reshape(-1).float() for x in learner.policy.state_dict().values()]))
    torch.testing.assert_close(results[0], results[1], atol=2e-3, rtol=0)


def test_decoupled_rows_hold_the_proximal_policy_and_the_weight():
    learner = learner_of(lag=0, cap=1.5, normalize_advantage=False)
    loop = AsyncOnPolicy(Aim(), learner)
    rows, seen = learner._rows, []

    def stale(rollout):
        rollout.logp[0] -= 0.3  # as if an older policy had found these samples less likely
        rollout.logp[1] += 1.0
        naive, data = super(PpoAsync, learner)._rows(rollout), rows(rollout)
        seen.append((naive, data))
        return data

    learner._rows = stale  # type: ignore[method-assign]
    loop.run(16 * 8)
    naive, data = seen[0]
    first, second = slice(0, None, 16), slice(1, None, 16)  # rows lie environment after environment
    ratio = data["advantage"] / naive["advantage"]
    torch.testing.assert_close(ratio[first], torch.full((8,), float(np.exp(0.3))), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ratio[second], torch.full((8,), float(np.exp(-1.0))), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(data["logp"][first], naive["logp"][first] + 0.3, rtol=1e-3, atol=1e-3)


def test_thread_collects_while_the_learner_works_and_bounds_staleness():
    learner = learner_of(queue=2)
    update, seen = learner.update, []

    def slow(batches):
        time.sleep(0.03)
        return update(batches)

    learner.update = slow  # type: ignore[method-assign]
    loop = AsyncOnPolicy(Aim(), learner)
    loop.run(16 * 8 * 12, lambda step, metrics: seen.append(metrics) or False)
    staleness = [row["train/staleness"] for row in seen]
    assert loop.iterations == 12
    assert 1 <= max(staleness) <= 3  # one under way, two in the queue
    assert loop.env_steps == 16 * 8 * 12


def test_error_of_the_collecting_thread_reaches_the_caller():
    env = Aim()
    env.fail_at = 40
    with pytest.raises(RuntimeError, match="gripper is on fire"):
        AsyncOnPolicy(env, learner_of()).run(10**6)


def test_run_with_a_lag_resumes_exactly():
    first, env = learner_of(lag=2), Aim()
    loop = AsyncOnPolicy(env, first)
    loop.run(16 * 8 * 4)
    second, other_env = learner_of(lag=2, seed=9), Aim(seed=5)
    second.load_state_dict(first.state_dict())
    other = AsyncOnPolicy(other_env, second)
    other.load_state_dict(loop.state_dict())
    for one in (loop, other):
        one.run(16 * 8 * 7)
    for key, value in first.policy.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(second.policy.state_dict()[key])), key


@pytest.mark.slow
def test_decoupled_beats_naive_under_forced_staleness():
    """Twelve updates of age, large steps: the naive ratio starts outside its clip, the decoupled one at 1."""
    finals = {}
    for correction in ("decoupled", "naive"):
        finals[correction] = []
        for seed in range(3):
            learner = learner_of(lag=12, correction=correction, seed=seed, lr=5e-3, epochs=8, minibatch=32)
            rewards: list[float] = []
            AsyncOnPolicy(Aim(seed=seed), learner).run(
                16 * 8 * 60, lambda step, metrics, rows=rewards: rows.append(metrics["rollout/return"]) or False
            )
            finals[correction].append(float(np.mean(rewards[-10:])))
    assert np.mean(finals["decoupled"]) > np.mean(finals["naive"]) + 0.1, finals


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="correction"):
        PpoAsyncOptions.model_validate({"correction": "none"})
    with pytest.raises(ValueError, match="queue"):
        PpoAsyncOptions(queue=0)
