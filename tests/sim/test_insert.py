"""Insert: the clearance as MuJoCo sees it, and what counts as in the hole."""
# pyright: reportAttributeAccessIssue=false
# (MuJoCo's compiled modules carry no type information)

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np
import pytest

from robot_rl.sim.arm import downward
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.insert import DEPTH, Insert

ONE_THREAD = EngineOptions(num_threads=1)


def contacts(aside: tuple[float, float], height: float, turn: float = 0.0, yaw: float = 0.0) -> int:
    """How many contacts the peg has, its end `aside` of the hole's axis (hole frame) and `height` over its mouth."""
    world = Insert()
    model = mujoco.MjModel.from_xml_string(world.mjcf())
    data = mujoco.MjData(model)
    away = np.array([math.cos(yaw) * aside[0] - math.sin(yaw) * aside[1], 0.0, 0.0])
    away[1] = math.sin(yaw) * aside[0] + math.cos(yaw) * aside[1]
    hole = np.array([0.45, 0.05, 0.04])
    joints = np.array([[0.0, 0.1, 0.9, 0.0, 0.57, 0.0]])
    tip, down = (hole + away + [0.0, 0.0, height])[None], downward(np.array([yaw + turn]))
    data.qpos[:6] = world._arm.chain.solve(joints, tip, down, iterations=30, damping=1e-4)[0]
    data.qpos[6:8] = 0.01
    data.qpos[8:11] = [hole[0], hole[1], yaw]
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.site("peg_end").xpos, tip[0], atol=1e-6)
    return int(data.ncon)


@pytest.mark.parametrize("yaw", [0.0, 0.3])
@pytest.mark.parametrize("side", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_insert_clearance_is_one_millimetre(side: tuple[int, int], yaw: float) -> None:
    for offset, touches in ((0.0, False), (0.00095, False), (0.00105, True)):
        found = contacts((side[0] * offset, side[1] * offset), -0.02, yaw=yaw)
        assert (found > 0) == touches


def test_insert_hole_is_square_and_has_a_floor() -> None:
    # A square of half width 10 mm turned by t reaches 10 (cos t + sin t) mm: 11 mm at t = 0.106 rad.
    assert contacts((0.0, 0.0), -0.02, turn=0.10) == 0
    assert contacts((0.0, 0.0), -0.02, turn=0.115) > 0
    assert contacts((0.0, 0.0), -DEPTH + 0.0005) == 0
    assert contacts((0.0, 0.0), -DEPTH - 0.0005) > 0
    assert contacts((0.012, 0.0), -0.0005) > 0  # beside the hole there is the socket


def test_insert_peg_pushed_down_beside_the_hole_stays_on_top_and_fails() -> None:
    env = make(8, 0, world=Insert(), options=ONE_THREAD)
    obs, info = env.reset(seed=0)
    lowest = np.full(8, 1.0)
    for _ in range(env.world.episode_steps - 1):
        # 6 mm aside of the hole, as seen by the expert, then all the way down.
        state = obs["state"].copy()
        state[:, -4] += 0.006 / 0.03
        obs, _, _, _, info = env.step(env.expert({"state": state}))
        assert not info["success"].any()
        lowest = np.minimum(lowest, env._view.task["tip"][:, 2])
    assert (lowest > 0.038).all()
    assert (lowest < 0.041).all()  # it did come down to the socket's upper face
    env.close()


def test_insert_peg_lower_than_the_mouth_outside_the_socket_is_no_success() -> None:
    world = Insert()
    env = make(2, 0, world=world, options=ONE_THREAD)
    env.reset(seed=0)
    view: Any = env._view
    mouth = np.concatenate([view.qpos[:, 8:10], np.full((2, 1), 0.04)], axis=1)
    view.task["tip"][...] = mouth - [0.0, 0.0, 0.026]
    view.task["tip"][1, 0] += 0.06  # beside the socket, as deep
    assert world.success(view).tolist() == [True, False]
    view.task["tip"][0, 2] += 0.002  # 24 mm deep
    assert not world.success(view).any()
    env.close()


def test_insert_socket_does_not_give_way() -> None:
    env = make(4, 0, world=Insert(), options=ONE_THREAD)
    env.reset(seed=0)
    start = np.array(env._view.qpos[:, 8:11])
    obs = env.observe()
    for _ in range(25):
        obs, *_ = env.step(env.expert(obs))
    for _ in range(30):  # in the hole, pushing sideways
        env.step(np.array([[1.0, 1.0, -1.0, 0.5]] * 4))
    assert np.abs(env._view.qpos[:, 8:11] - start).max() < 1e-5
    assert (env._view.task["tip_lag"][:, :2] > 0.01).all()  # the walls hold the peg back
    env.close()


def test_insert_angle_counts_from_the_nearest_side() -> None:
    world = Insert()
    env = make(3, 0, world=world, options=ONE_THREAD)
    env.reset(seed=0)
    view: Any = env._view
    view.task["yaw"][...] = 0.1
    view.qpos[:, 10] = [0.3, 0.3 + math.pi / 2, 0.1 - 0.2]
    # 0.2 rad to turn; a quarter turn further is the same; 0.2 rad the other way. The state counts in 0.3 rad.
    np.testing.assert_allclose(world.observe(view)[:, -1], np.array([0.2, 0.2, -0.2]) / 0.3, atol=1e-6)
    env.close()
