"""Pick on arms with a gripper that the project has never met."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.worlds.pick import Pick
from robot_rl.types.card import Card

ONE_THREAD = EngineOptions(num_threads=1)

SMALL = Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf"
ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))
real = pytest.mark.skipif(not ROBOTS.exists(), reason="the folder shared/data/robots is absent")


@pytest.fixture(scope="module")
def fr3() -> Card:
    return new_card(str(ROBOTS / "fr3/fr3.urdf"), "fr3")[0]


def test_a_card_without_a_gripper_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"has no gripper, and this task grasps.*env=reach"):
        Pick(robot=new_card(str(SMALL), "small")[0].model_copy(update={"gripper": None}))


def test_an_arm_that_stands_too_high_is_told_what_it_does_not_reach(tmp_path: Path) -> None:
    up = (
        '<link name="ground"/><joint name="up" type="fixed"><parent link="ground"/><child link="base_link"/>'
        '<origin xyz="0 0 0.3"/></joint>'
    )
    base = '<link name="base_link">'
    (tmp_path / "high.urdf").write_text(SMALL.read_text().replace(base, up + base))
    with pytest.raises(ValueError, match=r"0 below 6 cm \(cubes\).*how high its base stands"):
        Pick(robot=new_card(str(tmp_path / "high.urdf"), "high")[0])


@real
@pytest.mark.parametrize("action", ["ee", "joint"])
def test_fr3_picks_by_its_expert(fr3: Card, action: str) -> None:
    env = make(20, 0, world=Pick(robot=fr3, action=action), options=EngineOptions(num_threads=2))
    obs, info = env.reset()
    for _ in range(env.world.episode_steps):
        obs, _, _, _, info = env.step(env.expert(obs))
    env.close()
    assert float(np.mean(info["success"])) >= 0.7


@real
def test_moves_are_those_commanded_and_gravity_moves_nothing(fr3: Card) -> None:
    world = Pick(robot=fr3)
    env = make(4, 0, world=world, options=ONE_THREAD)
    obs, _ = env.reset()
    rest = np.array(obs["state"])
    hold = np.zeros((4, 4), np.float32)
    hold[:, 3] = 1.0
    for _ in range(10):
        obs, *_ = env.step(hold)
    tip = slice(0, 3)
    assert np.abs(obs["state"][:, tip] - rest[:, tip]).max() * 0.15 < 1e-3  # m, over a second
    up = hold.copy()
    up[:, 2] = 0.5
    before = np.array(obs["state"])
    for _ in range(4):
        obs, *_ = env.step(up)
    for _ in range(6):
        obs, *_ = env.step(hold)
    moved = (obs["state"][:, tip] - before[:, tip]) * 0.15
    high = world.tool(env._view)["high"]
    wanted = np.minimum(
        4 * 0.5 * env.world.action_high[2], np.asarray(high)[2] - env._view.task["tip"][:, 2] + moved[:, 2]
    )
    np.testing.assert_allclose(moved[:, 2], wanted, atol=3e-3)
    assert np.abs(moved[:, :2]).max() < 3e-3
    env.close()


@real
def test_check_finds_nothing(fr3: Card) -> None:
    env = make(2, 0, world=Pick(robot=fr3), options=ONE_THREAD)
    assert check(env) == []
    env.close()
