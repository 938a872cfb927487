"""The on-policy loop: rollouts, boundaries, autoreset modes, resume, stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from robot_rl.advantage import rollout_gae
from robot_rl.advantage.rows import RolloutRows
from robot_rl.checkpoint import load_state, save_state
from robot_rl.loops.on_policy import OnPolicy, train_on_policy
from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.types import Action, EnvParts, IOSpec, OnPolicyLearner, Options, PolicyParts

IO = IOSpec(
    obs={"state": ((2,), "float32")},
    action_names=("a",),
    action_low=(-1.0,),
    action_high=(1.0,),
    action_units=("1",),
    control_hz=10.0,
)
OPTIONS = PpoOptions(rollout_steps=10, minibatch=8, epochs=2, hidden=(8,), normalize_reward=True)


class Count(gymnasium.Env):
    """Observation (episode, step); reward = step; episodes of `length` steps end or are cut in turn."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length):
        self.length, self.episode = length, -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.count = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.count += 1
        over, odd = self.count == self.length, self.episode % 2 == 1
        obs = np.array([self.episode, self.count], np.float32)
        return obs, float(self.count), over and not odd, over and odd, {}


class Copies(SyncVectorEnv):
    io, parts = IO, EnvParts()


class Noisy(VectorEnv):
    """N noisy integrators with exact state save."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    io, parts = IO, EnvParts(saves=True)

    def __init__(self, num_envs=3, limit=7):
        self.num_envs, self.limit = num_envs, limit

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.x, self.t = np.zeros((self.num_envs, 2), np.float32), np.arange(self.num_envs)
        return {"state": self.x.copy()}, {}

    def step(self, actions):
        self.x = (0.9 * self.x + actions + 0.1 * self.rng.standard_normal(self.x.shape)).astype(np.float32)
        self.t = self.t + 1
        over = self.t >= self.limit
        info = {"final_obs": {"state": self.x.copy()}, "success": over & (self.x[:, 0] > 0)}
        reward = -np.square(self.x).sum(1)
        self.x, self.t = np.where(over[:, None], 0, self.x).astype(np.float32), np.where(over, 0, self.t)
        return {"state": self.x.copy()}, reward, np.zeros_like(over), over, info

    def state_dict(self):
        return {"x": self.x.copy(), "t": self.t.copy(), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state):
        self.x, self.t = np.array(state["x"]), np.array(state["t"])
        self.rng = np.random.default_rng()
        self.rng.bit_generator.state = state["rng"]


class Steps(Options):
    """Of the rollout."""

    steps: int
    """T."""


class Recorder(OnPolicyLearner):
    """A learner with value 10 * episode + step that keeps its rollouts and never changes."""

    @property
    def parts(self):
        return PolicyParts()

    def __init__(self, steps):
        super().__init__(Steps(steps=steps), IO)
        self.rollouts, self.policy = [], self

    @classmethod
    def needs(cls, options, io):
        return replace(super().needs(options, io), rollout_steps=options.steps)

    def reset(self, rows=None):
        pass

    def act(self, obs, *, deterministic=False):
        count = len(obs["state"])
        return Action(np.zeros((count, 1), np.float32), np.zeros(count, np.float32))

    def value(self, obs):
        return torch.from_numpy(10.0 * obs["state"][:, 0] + obs["state"][:, 1])

    def update(self, batches):
        rollout = next(batches)
        columns = {key: value.clone() for key, value in vars(rollout).items() if key not in ("obs", "extras")}
        self.rollouts.append((rollout.obs["state"].clone(), columns))
        return {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def record(mode, steps=60, lengths=(2, 3)):
    env = Copies([lambda n=n: Count(n) for n in lengths], autoreset_mode=mode)
    learner: Any = Recorder(steps)
    train_on_policy(env, learner, total_steps=1)
    return learner.rollouts[0]


def complete(mode, row, episodes):
    """Valid transitions of the first whole episodes of one environment: obs, reward, flags, successor, advantage."""
    obs, c = record(mode)
    names = ("reward", "value", "next_value", "terminated", "boundary")
    advantage, _ = rollout_gae(RolloutRows(*(c[name] for name in names), valid=c["valid"]), gamma=0.9, gae_lambda=0.8)
    ok = c["valid"][:, row]
    columns = [obs[:, row].sum(1), *(c[key][:, row] for key in ("reward", "value", "terminated", "truncated"))]
    columns += [torch.where(c["boundary"], c["next_value"], 0.0)[:, row], advantage[:, row]]
    table = torch.stack([column[ok].float() for column in columns], 1)
    return table[: episodes * int(c["reward"][:, row].max())]


@pytest.mark.parametrize("row", [0, 1])
def test_on_policy_every_autoreset_mode_gives_the_same_transitions_and_advantages(row):
    same = complete(AutoresetMode.SAME_STEP, row, 8)
    assert len(same) == 8 * (row + 2)
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
        torch.testing.assert_close(complete(mode, row, 8), same, atol=1e-5, rtol=0)


def test_on_policy_next_value_is_of_the_true_successor():
    obs, c = record(AutoresetMode.SAME_STEP, steps=5, lengths=(2, 3))
    # Environment 0: steps 1, 2 (end of episode 0, terminated), 1, 2 (cut, episode 1), 1 (rollout ends in episode 2).
    assert c["boundary"][:, 0].tolist() == [False, True, False, True, True]
    assert c["terminated"][:, 0].tolist() == [False, True, False, False, False]
    assert c["truncated"][:, 0].tolist() == [False, False, False, True, False]
    # True successors there: (0, 2), (1, 2), (2, 1) with value 10 * episode + step; never the reset observation.
    assert c["next_value"][:, 0][c["boundary"][:, 0]].tolist() == [2.0, 12.0, 21.0]
    assert c["value"][:, 0].tolist() == [0.0, 1.0, 10.0, 11.0, 20.0]
    assert obs[:, 1].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]


def test_on_policy_rollouts_continue_where_the_last_one_ended():
    env = Copies([lambda: Count(5)], autoreset_mode=AutoresetMode.SAME_STEP)
    learner: Any = Recorder(3)
    loop = train_on_policy(env, learner, total_steps=6)
    assert [r[0][:, 0, 1].tolist() for r in learner.rollouts] == [[0, 1, 2], [3, 4, 0]]
    assert (loop.env_steps, loop.iterations) == (6, 2)


def make_learner():
    return Ppo(OPTIONS, IO, seed=5)


def flat(value, name=""):
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{name}/{key}").items()}
    return {name: value.tolist() if hasattr(value, "tolist") else value}


def test_on_policy_resumed_run_equals_uninterrupted_run(tmp_path):
    whole = make_learner()
    through = train_on_policy(Noisy(), whole, total_steps=30 * 5, seed=3)

    first = make_learner()
    loop = OnPolicy(Noisy(), first, seed=3)
    loop.run(30 * 5, lambda step, metrics: step >= 60)
    assert loop.env_steps == 60
    save_state(tmp_path / "loop.pt", loop.state_dict())
    save_state(tmp_path / "learner.pt", first.state_dict())

    second = Ppo(OPTIONS, IO, seed=9)
    second.load_state_dict(load_state(tmp_path / "learner.pt"))
    resumed = train_on_policy(Noisy(), second, total_steps=30 * 5, seed=0, start_state=load_state(tmp_path / "loop.pt"))
    assert flat(second.state_dict()) == flat(whole.state_dict())
    assert flat(resumed.state_dict()) == flat(through.state_dict())
    assert resumed.stats.metrics() == through.stats.metrics()


def test_on_policy_same_seed_gives_the_same_run():
    one, two = make_learner(), make_learner()
    train_on_policy(Noisy(), one, total_steps=60, seed=1)
    train_on_policy(Noisy(), two, total_steps=60, seed=1)
    assert flat(one.state_dict()) == flat(two.state_dict())


def test_numbers_of_a_rollout_of_one_row_are_finite():
    learner = Ppo(PpoOptions(rollout_steps=1, minibatch=1, epochs=1, hidden=(8,)), IO, seed=5)
    rows = []
    OnPolicy(Noisy(num_envs=1), learner).run(3, lambda step, metrics: rows.append(metrics) or False)
    assert {name for row in rows for name, value in row.items() if np.isnan(value)} == set()


def test_on_policy_hook_gets_metrics_and_stops():
    rows = []
    loop = OnPolicy(Noisy(), make_learner())
    loop.run(10_000, lambda step, metrics: rows.append((step, metrics)) or len(rows) == 2)
    assert [step for step, _ in rows] == [30, 60]
    assert loop.env_steps == 60
    names = {"rollout/return", "rollout/length", "rollout/success", "train/kl", "train/value_loss", "time/sps"}
    assert names <= rows[0][1].keys()
    loop.run(90)  # goes on where it stopped
    assert loop.env_steps == 90


def test_on_policy_torch_environment_is_collected_as_tensors():
    class Tensors(VectorEnv):
        metadata = Noisy.metadata

        parts = EnvParts(device=torch.device("cpu"))

        def __init__(self):
            self.inner = Noisy()
            self.io = self.inner.io
            self.num_envs = self.inner.num_envs

        def reset(self, *, seed=None, options=None):
            obs, info = self.inner.reset(seed=seed)
            return {"state": torch.from_numpy(obs["state"])}, info

        def step(self, actions):
            obs, reward, terminated, truncated, info = self.inner.step(actions.numpy())
            info = {"final_obs": {"state": torch.from_numpy(info["final_obs"]["state"])}}
            return (
                {"state": torch.from_numpy(obs["state"])},
                torch.from_numpy(reward),
                torch.from_numpy(terminated),
                torch.from_numpy(truncated),
                info,
            )

    one, two = make_learner(), make_learner()
    train_on_policy(Noisy(), one, total_steps=60, seed=1)
    train_on_policy(Tensors(), two, total_steps=60, seed=1)
    assert flat(one.state_dict()) == flat(two.state_dict())


def test_on_policy_policy_without_logp_is_refused():
    class Silent(Recorder):
        def act(self, obs, *, deterministic=False):
            return Action(np.zeros((len(obs["state"]), 1), np.float32))

    silent: Any = Silent(4)
    with pytest.raises(ValueError, match="gave no logp"):
        train_on_policy(Noisy(), silent, total_steps=1)
