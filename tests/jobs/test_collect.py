"""Recorded episodes are what happened."""

from pathlib import Path

import numpy as np
import pytest

from robot_rl.data.recorder import Recording
from robot_rl.jobs.collect import ExpertPolicy, keep_steps
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.reach import Reach


def test_keep_steps_successful_expert_episodes_only() -> None:
    env = make(4, 0, world=Reach())
    episodes = keep_steps(env, ExpertPolicy(env), episodes=5, seed=3, only_success=True)
    assert len(episodes) == 5
    for episode in episodes:
        assert episode.meta["success"]
        assert episode.truncated
        assert len(episode) == env.world.episode_steps
        np.testing.assert_allclose(np.diff(episode.stamp), 1 / env.io.control_hz, rtol=1e-9)


def test_keep_steps_same_seed_same_episodes() -> None:
    def record() -> list:
        env = make(2, 0, world=Reach())
        return keep_steps(env, ExpertPolicy(env, noise=0.1, seed=1), episodes=2, seed=3)

    for a, b in zip(record(), record()):
        np.testing.assert_array_equal(a.obs["state"], b.obs["state"])
        np.testing.assert_array_equal(a.action, b.action)


def test_keep_steps_without_success_gives_up_with_a_count() -> None:
    env = make(2, 0, world=Reach())

    class Still(ExpertPolicy):
        def act(self, obs, *, deterministic=False):
            action = super().act(obs)
            return type(action)(np.zeros_like(action.value))

    with pytest.raises(RuntimeError, match=r"only 0 of \d+ episodes ended in success, wanted 2"):
        keep_steps(env, Still(env), episodes=2, seed=0, only_success=True, max_rounds=2)


def test_expert_without_one_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="no scripted expert"):
        ExpertPolicy(object())


def test_collect_then_data_info_reads_both_formats(tmp_path: Path, robot_rl) -> None:
    for out in ("demos.hdf5", "demos"):
        done = robot_rl("collect", "env=reach", "episodes=3", "num_envs=2", f"out={out}")
        assert done.returncode == 0, done.stderr
        again = robot_rl("collect", "env=reach", "episodes=3", f"out={out}")
        assert again.returncode == 1
        assert "exists already" in again.stderr
        shown = robot_rl("data", "info", out)
        assert shown.returncode == 0, shown.stderr
        assert "episodes" in shown.stdout
    assert len(Recording(tmp_path / "demos")) == 3
