"""Pick: what counts as held at the goal, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.pick import Pick

ONE_THREAD = EngineOptions(num_threads=1)


def test_pick_cube_at_the_goal_without_fingers_around_it_is_no_success() -> None:
    world = Pick()
    env = make(5, 0, world=world, options=ONE_THREAD)
    env.reset(seed=0)
    view: Any = env._view
    view.qpos[:, 8:11] = view.task["goal"]  # floating where it should be
    view.task["tip"][0] = view.task["goal"][0] + 0.2  # the hand is elsewhere
    view.task["tip"][1:] = view.task["goal"][1:]
    view.qpos[:, 6:8] = 0.02
    view.qpos[1, 6:8] = 0.04  # around it, open
    view.qpos[3, 6:8] = 0.0283  # on two edges of it, 5.66 cm from one another
    view.qpos[4, 6:8] = 0.0295  # nowhere on it
    assert world.success(view).tolist() == [False, False, True, True, False]
    env.close()


def test_pick_dropped_cube_is_no_success() -> None:
    env = make(6, 0, world=Pick(), options=ONE_THREAD)
    obs, info = env.reset(seed=0)
    for _ in range(20):
        obs, _, _, _, info = env.step(env.expert(obs))
    assert info["success"].all()
    env.step(np.array([[0.0, 0.0, 0.0, 1.0]] * 6))  # open the fingers
    _, _, _, _, info = env.step(np.array([[0.0, 0.0, 0.0, 1.0]] * 6))
    assert not info["success"].any()
    assert (env._view.qpos[:, 10] < env._view.task["goal"][:, 2] - 0.03).all()
    env.close()


def test_pick_cube_on_the_table_below_the_goal_is_no_success() -> None:
    world = Pick()
    env = make(1, 0, world=world, options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    view: Any = env._view
    for _ in range(20):
        action = env.expert(obs)
        action[:, 2] = np.minimum(action[:, 2], 0.0)  # never upwards
        obs, *_ = env.step(action)
        view.task["goal"][...] = view.qpos[:, 8:11]  # the goal runs along on the table
        assert not world.success(view).any()
    env.close()


def test_pick_grasp_holds_without_slipping() -> None:
    env = make(6, 0, world=Pick(), options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        obs, *_ = env.step(env.expert(obs))
    first = env._view.qpos[:, 8:11] - env._view.task["tip"]
    for _ in range(29):
        obs, *_ = env.step(env.expert(obs))
    assert np.abs(env._view.qpos[:, 8:11] - env._view.task["tip"] - first).max() < 1e-3
    env.close()


def test_pick_expert_never_opens_a_hand_of_which_the_world_says_that_it_holds_the_cube() -> None:
    """Else who copies it is told both in nearly one state and does neither: it stands there and lets the cube slip."""
    world = Pick()
    env = make(200, 0, world=world, options=ONE_THREAD)
    env.reset(seed=0)
    view: Any = env._view
    below = np.linspace(0.0, 0.04, 200)  # the cube slips through the fingers, m
    view.qpos[:, 8:11] = view.task["tip"]
    view.qpos[:, 10] -= below
    view.task["goal"][:] = view.qpos[:, 8:11]
    view.qpos[:, 6:8] = 0.02
    held = world.success(view)  # at the goal, so that holding it is all that counts
    action = world.expert(world.observe(view))
    np.testing.assert_array_equal(held, below < 0.03)
    np.testing.assert_array_equal(action[:, 3] < 0, held)
    env.close()


def test_pick_reward_grows_from_reaching_to_grasping_to_placing() -> None:
    env = make(20, 0, world=Pick(), options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    curve = []
    for _ in range(50):
        obs, reward, *_ = env.step(env.expert(obs))
        curve.append(reward.mean())
    env.close()
    assert curve[0] < 0.2
    assert curve[-1] > 0.9
    assert (np.diff(curve) > -0.05).all()


def test_pick_start_has_cube_flat_on_the_table_and_goal_in_the_air() -> None:
    env = make(200, 0, world=Pick(), options=ONE_THREAD)
    env.reset(seed=0)
    view: Any = env._view
    np.testing.assert_allclose(view.qpos[:, 10], 0.02)
    np.testing.assert_allclose(np.linalg.norm(view.qpos[:, 11:15], axis=1), 1.0, atol=1e-9)
    assert (np.abs(view.qpos[:, 11]) >= np.cos(0.1)).all()  # turned about the vertical by at most 0.2 rad
    np.testing.assert_array_equal(view.qpos[:, 12:14], 0.0)
    assert view.task["goal"][:, 2].min() >= 0.08
    env.close()
