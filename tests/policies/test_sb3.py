"""SB3 algorithms behind our verbs: adapter, training, hook, saving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from robot_rl.checkpoint import load_state, save_state
from robot_rl.data.seen import measure_seen
from robot_rl.loops.contract import every
from robot_rl.types import EnvParts, IOSpec

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3 (extra `baselines`)")
from robot_rl.policies.online.sb3 import Sb3, Sb3Options, VectorEnvForSb3

IO = IOSpec(
    obs={"state": ((2,), "float32")},
    action_names=("a",),
    action_low=(-3.0,),
    action_high=(3.0,),
    action_units=("N",),
    control_hz=10.0,
)


class Point(VectorEnv):
    """Reward -(a - 0.5)^2; environment 0 is cut after 5 steps, environment 1 ends after 3."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    parts = EnvParts()

    def __init__(self, io=IO):
        self.num_envs, self.io = 2, io
        self.largest = 0.0

    def reset(self, *, seed=None, options=None):
        self.t = np.zeros(2, np.int64)
        return self._obs(), {}

    def step(self, actions):
        self.largest = max(self.largest, float(np.abs(actions).max()))
        self.t = self.t + 1
        truncated, terminated = np.array([self.t[0] == 5, False]), np.array([False, self.t[1] == 3])
        over = terminated | truncated
        info = {"final_obs": self._obs(), "success": terminated}
        self.t = np.where(over, 0, self.t)
        reward = -np.square(actions[:, 0] - 0.5)
        return self._obs(), reward, terminated, truncated, info

    def _obs(self):
        obs: dict[str, Any] = {"state": np.stack([self.t, -self.t], 1).astype(np.float32)}
        if "image.wrist" in self.io.obs:
            obs["image.wrist"] = np.zeros((2, 36, 36, 3), np.uint8)
        return obs


def test_adapter_ended_rows_carry_their_true_successor_and_kind_of_end():
    env = VectorEnvForSb3(Point(), IO)
    assert np.asarray(env.reset()).tolist() == [[0, 0], [0, 0]]
    action = np.full((2, 1), 0.5, np.float32)
    obs, infos = None, []
    for _ in range(5):
        obs, _, done, info = env.step(action)
        infos.append((done.tolist(), info))
    assert infos[2][0] == [False, True]
    assert infos[2][1][1]["terminal_observation"].tolist() == [3, -3]
    assert infos[2][1][1]["TimeLimit.truncated"] is False
    assert infos[2][1][1]["is_success"] is True
    assert infos[4][0] == [True, False]
    assert infos[4][1][0]["terminal_observation"].tolist() == [5, -5]
    assert infos[4][1][0]["TimeLimit.truncated"] is True
    assert infos[4][1][0]["episode"] == {"r": 0.0, "l": 5, "t": 0.0}
    assert obs is not None
    assert obs.tolist() == [[0, 0], [2, -2]]


def test_adapter_other_autoreset_modes_are_refused():
    env = Point()
    env.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    with pytest.raises(ValueError, match="expected same-step"):
        VectorEnvForSb3(env, IO)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("SAC", {"learning_starts": 20, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}),
        ("TD3", {"learning_starts": 20, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}),
        ("PPO", {"n_steps": 20, "batch_size": 20, "policy_kwargs": {"net_arch": [8]}}),
    ],
)
def test_sb3_trains_calls_the_hook_and_continues_after_a_save(tmp_path, algorithm, options):
    env, rows = Point(), []
    learner = Sb3(Sb3Options(algorithm=algorithm, **options), IO)
    learner.train(env, 80, lambda step, metrics: rows.append((step, metrics)) or False, due=every(20))
    assert learner.env_steps == 80
    assert [step for step, _ in rows] == [20, 40, 60, 80]
    assert {"rollout/return", "rollout/length", "rollout/success", "time/sps"} <= rows[-1][1].keys()
    assert env.largest <= 1.0  # actions enter our environments normalised

    save_state(tmp_path / "learner.pt", learner.state_dict())
    save_state(tmp_path / "policy.pt", learner.policy.state_dict())  # type: ignore[attr-defined]
    second: Any = Sb3(Sb3Options(algorithm=algorithm, **options), IO, seed=7)
    second.load_state_dict(load_state(tmp_path / "learner.pt"))
    second.attach(Point())
    obs = {"state": np.ones((3, 2), np.float32)}
    expected = learner.policy.act(obs, deterministic=True).value
    np.testing.assert_array_equal(second.policy.act(obs, deterministic=True).value, expected)
    second.run(120)
    assert second.env_steps == 120

    third: Any = Sb3(Sb3Options(algorithm=algorithm, **options), IO)  # as an evaluation does: the policy alone
    third.policy.load_state_dict(load_state(tmp_path / "policy.pt"))
    np.testing.assert_array_equal(third.policy.act(obs, deterministic=True).value, expected)


def test_sb3_hook_stops_the_run():
    learner = Sb3(Sb3Options(algorithm="A2C"), IO)
    learner.train(Point(), 1000, lambda step, metrics: step >= 20, due=every(10))
    assert learner.env_steps == 20


def test_sb3_dictionary_observations_with_a_camera():
    io = IOSpec(**{**vars(IO), "obs": {"state": ((2,), "float32"), "image.wrist": ((36, 36, 3), "uint8")}})
    learner = Sb3(Sb3Options.model_validate({"algorithm": "PPO", "n_steps": 4, "batch_size": 8, "n_epochs": 1}), io)
    learner.train(Point(io), 8)
    obs = {"state": torch.zeros(2, 2), "image.wrist": torch.zeros(2, 36, 36, 3, dtype=torch.uint8)}
    action = learner.policy.act(obs, deterministic=True).value
    assert isinstance(action, torch.Tensor)
    assert action.shape == (2, 1)


def test_sb3_unknown_algorithm_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no algorithm 'SOC'.*PPO.*SAC"):
        Sb3(Sb3Options(algorithm="SOC"), IO)


def test_sb3_without_environment_or_with_another_interface_is_refused():
    learner = Sb3(Sb3Options(algorithm="PPO"), IO)
    with pytest.raises(ValueError, match="attach"):
        learner.run(10)
    other = IOSpec(**{**vars(IO), "action_units": ("m",)})
    with pytest.raises(ValueError, match="action 0"):
        learner.attach(Point(other))


def test_sb3_keyword_that_the_algorithm_lacks_is_named():
    options = Sb3Options(algorithm="SAC", learning_rates=1e-3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"SAC of stable-baselines3 has no option 'learning_rates'.*learning_rate"):
        Sb3(options, IO)


def test_sb3_keeps_rows_of_all_that_it_saw_over_a_save():
    options = Sb3Options(algorithm="A2C")
    learner, second = Sb3(options, IO), Sb3(options, IO)
    learner.train(Point(), 20)
    second.load_state_dict(learner.state_dict())
    second.train(Point(), 40)
    found = measure_seen(second.seen_rows, IO, count=second.env_steps)
    assert found is not None
    assert (found.count, found.rate) == (40, 10.0)
    np.testing.assert_allclose(found.obs["state"][0][::4], [0.0, 4.0], atol=0.1)  # row 0 is cut after 5 steps
    assert second.seen_rows.look(100)[1].shape == (40, 1)


@pytest.mark.parametrize("name", ["DQN", "HerReplayBuffer", "ARS", "RecurrentPPO", "MaskablePPO", "QRDQN"])
def test_what_cannot_run_here_is_refused_in_a_sentence(name):
    with pytest.raises(ValueError, match="there is no algorithm"):
        Sb3(Sb3Options(algorithm=name), IO)


def test_pictures_too_small_for_its_convolutions_are_refused():
    io = IOSpec(**{**vars(IO), "obs": {"image.wrist": ((32, 48, 3), "uint8")}})
    with pytest.raises(ValueError, match=r"image\.wrist has 48 x 32 pixels; .* take 36 x 36 or more"):
        Sb3(Sb3Options(algorithm="SAC"), io)
