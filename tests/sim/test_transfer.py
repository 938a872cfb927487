"""Transfer: who holds the rod, what counts as handed over, and that it can be done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.transfer import Transfer

ONE_THREAD = EngineOptions(num_threads=1)


def test_transfer_keeps_the_contract() -> None:
    env = make(4, 0, world=Transfer(seconds=4.0), options=ONE_THREAD)
    assert check(env) == []
    assert len(env.io.obs_names) == env.io.obs["state"][0][0]
    env.close()


@pytest.mark.parametrize("hz", [10.0, 20.0])
def test_transfer_expert_hands_over_and_random_actions_do_not(hz: float) -> None:
    env = make(24, 3, world=Transfer(control_hz=hz, seconds=5.0), options=ONE_THREAD)
    obs, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    info: dict[str, Any] = {}
    reward: Any = None
    for _ in range(env.world.episode_steps - 1):
        obs, reward, _, _, info = env.step(env.expert(obs))
    assert info["success"].mean() > 0.95
    assert reward.min() > 0.9
    obs, _ = env.reset(seed=4)
    for _ in range(env.world.episode_steps - 1):
        obs, _, _, _, info = env.step(rng.uniform(-1, 1, (24, 8)))
        assert not info["success"].any()
    env.close()


def test_transfer_cannot_be_done_by_one_instrument() -> None:
    """The left one cannot reach the goal, the right one not the rod."""
    world = Transfer()
    env = make(8, 0, world=world, options=ONE_THREAD)
    env.reset(seed=0)
    view: Any = env._view
    assert (view.task["goal"][:, 1] < world.left_edge - 0.06).all()
    assert (view.qpos[:, 11] > 0.06).all()
    for _ in range(30):
        env.step(np.tile(np.array([0, -1, 0, 0, 1, 0, 1, 1], np.float32), (8, 1)))
    assert view.qpos[:, 1].min() > world.left_edge - 0.004
    assert view.qpos[:, 6].max() < -world.left_edge + 0.004
    env.close()


def test_transfer_counts_a_rod_that_both_hold_as_not_handed_over() -> None:
    world = Transfer()
    env = make(3, 0, world=world, options=ONE_THREAD)
    obs, _ = env.reset(seed=1)
    view: Any = env._view
    for _ in range(40):
        obs, *_ = env.step(env.expert(obs))
    assert world.success(view).all()
    rod, axis = view.qpos[0, 10:13].copy(), np.array([0.0, 1.0, 0.0])
    view.qpos[0, 13:17] = [1, 0, 0, 0]
    view.qpos[0, 5:8] = rod - 0.024 * axis
    view.qpos[0, :3], view.qpos[0, 3:5] = rod + 0.024 * axis, 0.008  # the left one has it too
    view.task["goal"][1] += 0.03  # not at the goal
    view.qpos[2, 12] = 0.009  # on the table
    assert world.success(view).tolist() == [False, False, False]


def test_transfer_tool_is_what_the_actions_move() -> None:
    env = make(1, 0, world=Transfer(), options=ONE_THREAD)
    env.reset(seed=0)
    tool = env.parts.tool
    assert tool is not None
    before = tool()
    assert before is not None
    assert before["position"].shape == (1, 6)
    assert before["gripper"].tolist() == [[1.0, 1.0]]
    for _ in range(4):
        env.step(np.array([[0.5, 0, 0, 0, 0, -0.5, 1, -1]], np.float32))
    after = tool()
    assert after is not None
    moved = (after["position"] - before["position"])[0]
    assert moved == pytest.approx([0.05, 0, 0, 0, 0, -0.05], abs=0.012)
    assert after["gripper"][0] == pytest.approx([1.0, -1.0], abs=0.1)


def test_transfer_terms_agree_between_numpy_and_torch() -> None:
    world = Transfer()
    env = make(6, 0, world=world, options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    for _ in range(12):
        obs, *_ = env.step(env.expert(obs))
    tensor = world.expert(torch.as_tensor(obs["state"]))
    np.testing.assert_allclose(np.asarray(tensor), env.expert(obs), atol=1e-5)
