"""Stepping: the true successor in every autoreset mode, dropped rows, action checks, NaN reports."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from robot_rl.loops.episodes import EpisodeStats
from robot_rl.loops.stepping import NonFiniteError, Stepper, clip_action
from robot_rl.types import EnvParts


class Count(gymnasium.Env):
    """Observation = episode * 100 + steps in the episode; terminates after `length` steps, or truncates."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, length, truncate=False):
        self.length, self.truncate, self.episode = length, truncate, -1

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        self.count = 0
        return self._obs(), {"success": False}

    def step(self, action):
        self.count += 1
        over = self.count == self.length
        info = {"success": bool(over)}
        return self._obs(), float(self.count), over and not self.truncate, over and self.truncate, info

    def _obs(self):
        return np.array([100.0 * self.episode + self.count])


class Table(VectorEnv):
    """Our own form: dict observations, full `final_obs` arrays; counts to `length` and truncates."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    parts = EnvParts(saves=True)

    def __init__(self, num_envs, length=3):
        self.num_envs, self.length = num_envs, length
        self.bad: int | None = None

    def reset(self, *, seed=None, options=None):
        self.count = np.zeros(self.num_envs, np.float32)
        return self._obs(), {}

    def step(self, actions):
        self.count = self.count + 1
        if self.bad is not None:
            self.count[self.bad] = np.nan
        over = self.count == self.length
        info = {"final_obs": self._obs(), "intervened": over.copy(), "executed": actions * 0.5}
        self.count = np.where(over, 0, self.count).astype(np.float32)
        return self._obs(), np.ones(self.num_envs), np.zeros(self.num_envs, bool), over, info

    def state_dict(self):
        return {"count": self.count.copy()}

    def load_state_dict(self, state):
        self.count = np.array(state["count"])

    def _obs(self):
        return {"state": np.stack([self.count, -self.count], axis=1)}


class Copies(SyncVectorEnv):
    parts = EnvParts()


def sync(mode, lengths, truncate=False):
    return Copies([lambda n=n: Count(n, truncate) for n in lengths], autoreset_mode=mode)


def transitions(mode, lengths, steps, truncate=False):
    """Valid (obs, reward, next_obs, terminated, truncated, success) per environment."""
    stepper = Stepper(sync(mode, lengths, truncate))
    stepper.reset(seed=0)
    rows = [[] for _ in lengths]
    for _ in range(steps):
        step = stepper.step(np.zeros((len(lengths), 2), np.float32))
        for i in np.flatnonzero(step.valid):
            rows[i].append(
                (
                    float(step.obs["state"][i, 0]),
                    float(step.reward[i]),
                    float(step.next_obs["state"][i, 0]),
                    bool(step.terminated[i]),
                    bool(step.truncated[i]),
                    bool(step.info["success"][i]),
                )
            )
    return rows


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("truncate", [False, True])
def test_step_every_autoreset_mode_gives_the_same_transitions(mode, truncate):
    rows = transitions(mode, [2, 3], 12, truncate)
    # Episode 0 of the environment that ends after 2 steps: 0 -> 1 -> 2 (end), then episode 1: 100 -> 101 -> 102 (end).
    end = (not truncate, truncate, True)
    expected = [
        (0.0, 1.0, 1.0, False, False, False),
        (1.0, 2.0, 2.0, *end),
        (100.0, 1.0, 101.0, False, False, False),
        (101.0, 2.0, 102.0, *end),
    ]
    assert rows[0][:4] == expected
    assert rows[1][2] == (2.0, 3.0, 3.0, *end)
    assert rows[1][3] == (100.0, 1.0, 101.0, False, False, False)


def test_step_next_step_mode_marks_the_reset_row_invalid():
    stepper = Stepper(sync(AutoresetMode.NEXT_STEP, [2, 3]))
    stepper.reset(seed=0)
    valid = [stepper.step(np.zeros((2, 2), np.float32)).valid.tolist() for _ in range(4)]
    # Environment 0 ends in its 2nd step, so its 3rd call only resets; environment 1 one call later.
    assert valid == [[True, True], [True, True], [False, True], [True, False]]


def test_step_same_step_current_is_the_reset_observation():
    stepper = Stepper(sync(AutoresetMode.SAME_STEP, [1]))
    stepper.reset(seed=0)
    step = stepper.step(np.zeros((1, 2), np.float32))
    assert step.next_obs["state"].tolist() == [[1.0]]
    assert step.current["state"].tolist() == [[100.0]]
    assert step.next_obs["state"].dtype == np.float32
    assert step.reward.dtype == np.float32


def test_step_disabled_mode_can_leave_the_reset_to_the_caller():
    stepper = Stepper(sync(AutoresetMode.DISABLED, [1, 5]), reset_ended=False)
    stepper.reset(seed=0)
    step = stepper.step(np.zeros((2, 2), np.float32))
    assert step.current["state"].tolist() == [[1.0], [1.0]]
    obs = stepper.reset_rows(step.terminated)
    assert obs["state"].tolist() == [[100.0], [1.0]]


def test_step_full_final_obs_arrays_and_executed_action():
    stepper = Stepper(Table(2, length=2))
    stepper.reset()
    action = np.array([[3.0, 0.5], [-0.5, -3.0]], np.float32)
    stepper.step(action)
    step = stepper.step(action)
    assert step.next_obs["state"].tolist() == [[2.0, -2.0]] * 2
    assert step.current["state"].tolist() == [[0.0, 0.0]] * 2
    # Clipped to [-1, 1], then halved by the environment, which reports what it executed.
    assert step.action.tolist() == [[0.5, 0.25], [-0.25, -0.5]]
    assert step.proposed is action
    assert step.intervened.tolist() == [True, True]


def test_stepper_state_roundtrip_continues_alike():
    first, second = Stepper(Table(1, length=3)), Stepper(Table(1, length=3))
    first.reset()
    second.reset()
    action = np.zeros((1, 2), np.float32)
    first.step(action)
    second.load_state_dict(first.state_dict())
    for _ in range(4):
        a, b = first.step(action), second.step(action)
        assert a.obs["state"].tolist() == b.obs["state"].tolist()
        assert a.truncated.tolist() == b.truncated.tolist()


def test_an_environment_that_could_not_be_saved_begins_new_episodes():
    first, second = Stepper(Table(1, length=30)), Stepper(Table(1, length=30))
    first.reset()
    for _ in range(5):
        first.step(np.zeros((1, 2), np.float32))
    state = first.state_dict()
    second.load_state_dict({**state, "env": {**state["env"], "exact": np.array([False])}})
    assert not second.obs  # what was seen last is of an episode that is gone
    assert second.reset()["state"].tolist() == [[0.0, 0.0]]


def test_stepper_state_of_an_environment_without_state_is_refused():
    stepper = Stepper(sync(AutoresetMode.SAME_STEP, [2]))
    with pytest.raises(TypeError, match="has no state_dict"):
        stepper.state_dict()


def test_step_nan_observation_names_environment_key_and_file(tmp_path):
    env = Table(3)
    stepper = Stepper(env, save_to=tmp_path)
    stepper.reset()
    env.bad = 1
    with pytest.raises(NonFiniteError, match=r"nan in observation 'state' of environment 1, component \[0\]") as caught:
        stepper.step(np.zeros((3, 2), np.float32))
    saved = torch.load(tmp_path / "nonfinite_step.pt", weights_only=True)
    assert str(tmp_path / "nonfinite_step.pt") in str(caught.value)
    assert saved["obs"]["state"].shape == (3, 2)
    assert torch.isnan(saved["env"]["count"]).tolist() == [False, True, False]


def test_step_nan_unwritable_folder_still_reports_the_nan(tmp_path):
    (tmp_path / "file").write_text("in the way")
    env = Table(1)
    stepper = Stepper(env, save_to=tmp_path / "file")
    stepper.reset()
    env.bad = 0
    with pytest.raises(NonFiniteError, match=r"environment 0.*could not be saved"):
        stepper.step(np.zeros((1, 2), np.float32))


def test_step_large_finite_numbers_are_no_error():
    env = Table(1, length=10)
    stepper = Stepper(env)
    stepper.reset()
    env.count = np.array([3e38], np.float32)  # its square overflows float32
    assert np.isfinite(stepper.step(np.zeros((1, 2), np.float32)).next_obs["state"]).all()


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_clip_action_checks_shape_and_numbers(make):
    assert clip_action(make([[2.0, -2.0]]), 1).tolist() == [[1.0, -1.0]]
    with pytest.raises(ValueError, match=r"shape \(1, 2\), expected \(3, 2\)"):
        clip_action(make([[0.0, 0.0]]), 3, 2)
    with pytest.raises(ValueError, match="environment 1, dimension 0 is nan"):
        clip_action(make([[0.0], [float("nan")]]), 2)


def test_autoreset_mode_missing_is_an_error():
    env = Table(1)
    env.metadata = {}
    with pytest.raises(ValueError, match="expected one of"):
        Stepper(env)


def test_episode_stats_count_returns_lengths_and_success():
    stepper, stats = Stepper(sync(AutoresetMode.NEXT_STEP, [2, 3])), EpisodeStats(2)
    stepper.reset(seed=0)
    assert stats.metrics() == {"rollout/episodes": 0.0}
    for _ in range(4):
        stats.add(stepper.step(np.zeros((2, 2), np.float32)))
    # Finished: one episode of 2 steps (1 + 2 = 3) and one of 3 steps (1 + 2 + 3 = 6).
    assert stats.metrics() == {
        "rollout/episodes": 2.0,
        "rollout/return": 4.5,
        "rollout/length": 2.5,
        "rollout/success": 1.0,
    }
    copy = EpisodeStats(2)
    copy.load_state_dict(stats.state_dict())
    step = stepper.step(np.zeros((2, 2), np.float32))
    stats.add(step)
    copy.add(step)
    assert copy.metrics() == stats.metrics()
    with pytest.raises(ValueError, match=r"saved with shape \(2,\), here it is \(3,\)"):
        EpisodeStats(3).load_state_dict(stats.state_dict())
