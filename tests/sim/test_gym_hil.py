"""gym_hil's cube task behind our contract: what the oracle does, and, where gym_hil is installed, that it works."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from robot_rl.sim import gym_hil

INSTALLED = importlib.util.find_spec("gym_hil") is not None


def state(gripper: tuple[float, ...], block: tuple[float, ...], closed: float = 0.0) -> np.ndarray:
    row = np.zeros((1, 24), np.float32)
    row[0, 14], row[0, 15:18], row[0, 18:21] = closed, gripper, block
    row[0, 21:24] = row[0, 18:21] - row[0, 15:18]
    return row


def test_oracle_goes_over_the_block_then_down_closes_in_four_steps_and_lifts() -> None:
    aside = gym_hil.oracle(state((0.40, 0.00, 0.10), (0.45, 0.05, 0.02)))[0]
    assert aside[0] == aside[1] == 1.0  # towards it, as fast as may be
    assert aside[2] == pytest.approx(0.0, abs=0.05)  # not down yet: the block would be in the way
    assert aside[3] == 1.0
    down = gym_hil.oracle(state((0.45, 0.05, 0.06), (0.45, 0.05, 0.02)))[0]
    assert down[2] < -0.9
    near = (0.45, 0.05, 0.021)
    grips = [gym_hil.oracle(state(near, (0.45, 0.05, 0.02), closed=c))[0] for c in (0.0, 0.25, 0.5, 0.75)]
    assert all((grip == [0, 0, 0, -0.25]).all() for grip in grips)
    lift = gym_hil.oracle(state(near, (0.45, 0.05, 0.02), closed=1.0))[0]
    assert lift.tolist() == [0, 0, 1, -0.25]


def test_oracle_needs_the_block() -> None:
    with pytest.raises(ValueError, match="pictures=false"):
        gym_hil.oracle(np.zeros((1, 18), np.float32))


@pytest.mark.skipif(INSTALLED, reason="gym_hil is installed")
def test_missing_package_says_what_to_install() -> None:
    with pytest.raises(ImportError, match="pip install gym-hil"):
        gym_hil.make(1, 0)


@pytest.mark.skipif(not INSTALLED, reason="gym_hil is not installed (it needs MuJoCo below 3.9)")
def test_task_with_gym_hil() -> None:
    from robot_rl.sim.check import check

    env = gym_hil.make(1, 0)
    assert env.io.obs_names == gym_hil.STATE
    assert env.io.action_names[-1] == "gripper_opening"
    obs, _ = env.reset(seed=3)
    first = obs["state"].copy()
    np.testing.assert_allclose(first[:, 21:], first[:, 18:21] - first[:, 15:18], atol=1e-6)
    done, wins = 0, 0
    while done < 5:
        obs, reward, terminated, truncated, info = env.step(env.expert(obs))
        if terminated[0] or truncated[0]:
            done, wins = done + 1, wins + int(info["success"][0])
            assert reward[0] == float(info["success"][0])
    assert wins == 5
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(again["state"], first)  # gym_hil's own random block repeats with no seed
    assert not np.array_equal(env.reset(seed=4)[0]["state"], first)
    assert check(env) == []
    env.close()


@pytest.mark.skipif(not INSTALLED, reason="gym_hil is not installed (it needs MuJoCo below 3.9)")
def test_oracle_drives_where_only_pictures_show_the_block() -> None:
    env = gym_hil.make(1, 0, options=gym_hil.GymHilOptions(pictures=True))
    obs, _ = env.reset(seed=0)
    assert {"state", "image.front", "image.wrist"} == set(obs)
    success = False
    for _ in range(60):
        obs, _, _, _, info = env.step(env.expert(obs))
        success |= bool(info["success"][0])
    assert success
    env.close()
