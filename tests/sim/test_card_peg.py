"""Insert on arms with a gripper that the project has never met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.worlds.insert import Insert
from robot_rl.types.card import Card

SMALL = Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf"
ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))
real = pytest.mark.skipif(not ROBOTS.exists(), reason="the folder shared/data/robots is absent")


@pytest.fixture(scope="module")
def small() -> Card:
    return new_card(str(SMALL), "small")[0]


def expert_success(world: Insert, num_envs: int = 20) -> float:
    env = make(num_envs, 0, world=world, options=EngineOptions(num_threads=2))
    obs, info = env.reset()
    for _ in range(env.world.episode_steps):
        obs, _, _, _, info = env.step(env.expert(obs))
    env.close()
    return float(np.mean(info["success"]))


def test_a_card_without_a_gripper_is_one_sentence(small: Card) -> None:
    with pytest.raises(ValueError, match=r"has no gripper, and this task needs one.*env=reach"):
        Insert(robot=small.model_copy(update={"gripper": None}))


@pytest.mark.parametrize("action", ["ee", "joint"])
def test_five_joints_insert_by_their_expert(small: Card, action: str) -> None:
    assert expert_success(Insert(robot=small, action=action)) >= 0.85


@real
@pytest.mark.parametrize("action", ["ee", "joint"])
def test_fr3_inserts_by_its_expert(action: str) -> None:
    assert expert_success(Insert(robot=new_card(str(ROBOTS / "fr3/fr3.urdf"), "fr3")[0], action=action)) >= 0.85


@real
@pytest.mark.slow
@pytest.mark.parametrize("model", ["xarm7/xarm7.xml", "so101/so101_new_calib.xml"])
def test_linkages_and_single_jaws_insert_by_their_expert(model: str) -> None:
    assert expert_success(Insert(robot=new_card(str(ROBOTS / model), "arm")[0])) >= 0.85


def test_check_finds_nothing(small: Card) -> None:
    env = make(2, 0, world=Insert(robot=small), options=EngineOptions(num_threads=1))
    assert check(env) == []
    env.close()


def test_names_are_the_desk_arms_but_for_its_yaw(small: Card) -> None:
    desk, card = Insert(), Insert(robot=small)
    assert card.obs_names == tuple(name for name in desk.obs_names if name != "yaw")
    assert card.action_names == desk.action_names[:3]


def test_a_start_touches_nothing_and_the_hand_stays(small: Card) -> None:
    env = make(8, 0, world=Insert(robot=small), options=EngineOptions(num_threads=1))
    env.reset()
    view: Any = env._view
    model = mujoco.MjModel.from_xml_string(env.world.mjcf())
    data, before = mujoco.MjData(model), np.array(view.qpos)
    for row in before:
        data.qpos[:] = row
        mujoco.mj_forward(model, data)
        assert data.ncon == 0
    for _ in range(10):
        env.step(np.zeros((8, 3), np.float32))
    np.testing.assert_allclose(view.qpos, before, atol=2e-3)
    env.close()


def test_the_peg_stands_on_the_socket_beside_the_hole(small: Card) -> None:
    world = Insert(robot=small)
    env = make(8, 0, world=world, options=EngineOptions(num_threads=1))
    obs, info = env.reset(seed=0)
    lowest = np.full(8, 1.0)
    for _ in range(env.world.episode_steps - 1):
        state = obs["state"].copy()
        state[:, -4] += 0.006 / 0.03  # the expert takes the hole to be 6 mm aside
        obs, _, _, _, info = env.step(env.expert({"state": state}))
        assert not info["success"].any()
        lowest = np.minimum(lowest, env._view.task["tip"][:, 2])
    assert (lowest > 0.038 * world._scale).all()
    assert (lowest < 0.042 * world._scale).all()
    env.close()
