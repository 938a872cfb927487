"""The world terrain: its ground against MuJoCo's own rays, the way across a tile, levels by success."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import array_api_compat.numpy as xp
import array_api_compat.torch as txp
import numpy as np
import pytest
import torch

from robot_rl import card
from robot_rl.sim.draw import Streams
from robot_rl.sim.draw_torch import TorchStreams
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.robot_model import mujoco
from robot_rl.sim.terrain import EDGE, KINDS, TILE, lay_tiles, tile
from robot_rl.sim.world import View
from robot_rl.sim.worlds.terrain import SCAN, WAY, Terrain
from robot_rl.types.card_model import MODELS

ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))
needs_robots = pytest.mark.skipif(not ROBOTS.exists(), reason="the folder shared/data/robots is absent")


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS, str(ROBOTS))


def start(world: Terrain, n: int, seed: int = 0) -> View:
    """States as the engine hands them out behind a reset."""
    begin: Any = world.reset(Streams(n, seed).draw(np.arange(n)), n, xp)
    zeros = np.zeros((n, 12), np.float32)
    return View(xp, begin.qpos, begin.qvel, begin.ctrl, {}, zeros, zeros, np.zeros(n, np.int64), dict(begin.task))


def test_hardest_stairs_lead_four_steps_up_and_slopes_are_as_steep_as_said() -> None:
    rng = np.random.default_rng(0)
    stairs = tile("stairs", 1.0, rng, step=0.14)
    assert [round(block.height, 6) for block in stairs] == [0.14, 0.28, 0.42, 0.56]
    assert all(0.26 <= a.half[0] - b.half[0] <= 0.34 for a, b in pairwise(stairs))
    slope = tile("slope", 1.0, rng, step=0.14)[0]
    top = slope.top or 0.0
    half_way = slope.over(np.array(0.5 * (slope.half[0] + top)), np.array(0.2))
    assert half_way == pytest.approx(0.45 * 0.5 * (slope.half[0] - top))
    for kind in KINDS:
        assert max(block.height for block in tile(kind, 0.0, rng, step=0.14)) < 0.14
        reach = [abs(block.x) + block.half[0] for block in tile(kind, 1.0, rng, step=0.14)]
        assert max(reach) <= 0.5 * TILE - EDGE + 1e-9
    with pytest.raises(ValueError, match="there is no ground 'sand'; expected slope"):
        tile("sand", 1.0, rng, step=0.14)


def test_another_seed_is_other_ground_of_the_same_kind() -> None:
    one, same, other = (lay_tiles(KINDS, seed, step=0.14) for seed in (0, 0, 1))
    assert np.array_equal(one.heights, same.heights)
    assert not np.array_equal(one.heights, other.heights)
    assert one.heights.max() == pytest.approx(other.heights.max(), rel=0.3)


@needs_robots
def test_heights_are_those_that_rays_of_the_simulation_meet() -> None:
    world = Terrain(robot=card.read("go2"))
    model = mujoco.MjModel.from_xml_string(world.mjcf())
    data = mujoco.MjData(model)
    data.qpos[2] = 50.0  # the robot is out of the way
    mujoco.mj_forward(model, data)
    rng, hit, same = np.random.default_rng(0), np.zeros(1, np.int32), []
    places = rng.uniform(-1.0, 1.0, (400, 2)) * np.abs(world.ground.middles).max((0, 1))
    for place in places:
        down = mujoco.mj_ray(model, data, np.array([*place, 5.0]), np.array([0.0, 0.0, -1.0]), None, 1, -1, hit)
        same.append(abs(5.0 - down - world.ground.at(place)) < 0.5 * 0.45 * 0.05 + 1e-6)  # half a cell of slope
    assert np.mean(same) > 0.93  # the others lie within half a cell of an edge
    assert world.ground.at(np.array([1000.0, 0.0])) == 0.0


@needs_robots
def test_a_robot_starts_on_level_ground_and_heads_across_its_tile() -> None:
    world = Terrain(robot=card.read("go2"), levels=(3, 3))
    view = start(world, 200)
    assert (view.task["level"] == 3).all()
    assert set(view.task["goal"].tolist()) == {0, 1, 2}
    assert world.task_names == KINDS
    assert np.abs(world.ground.at(view.qpos[:, :2])).max() == 0.0
    way = view.task["end"] - view.task["begin"]
    assert np.linalg.norm(way, axis=1) == pytest.approx(WAY)
    yaw = 2.0 * np.arctan2(view.qpos[:, 6], view.qpos[:, 3])
    assert np.cos(yaw) == pytest.approx(way[:, 0] / WAY, abs=1e-5)
    assert np.sin(yaw) == pytest.approx(way[:, 1] / WAY, abs=1e-5)


@needs_robots
def test_the_command_turns_to_the_goal_which_changes_places_with_the_start() -> None:
    world = Terrain(robot=card.read("go2"))
    view = start(world, 3)
    goal, begin = view.task["end"].copy(), view.task["begin"].copy()
    along = (goal - begin) / WAY
    left = np.stack([-along[:, 1], along[:, 0]], axis=1)
    view.qpos[0, :2] = begin[0] + 1.0 * along[0] + 0.3 * left[0]  # beside the way, to the left
    view.qpos[1, :2] = goal[1] - 0.2 * along[1]  # there
    world.update(view)
    command = view.task["command"]
    assert command[0, 2] == pytest.approx(-np.arctan2(0.3, 3.0), abs=1e-5)
    assert view.task["far"] == pytest.approx([WAY - np.hypot(3.0, 0.3), WAY - 0.2, 0.0], abs=1e-5)
    assert view.task["crossed"].tolist() == [False, True, False]
    assert view.task["end"][1] == pytest.approx(begin[1])
    world.update(view)
    assert abs(view.task["command"][1, 2]) == pytest.approx(0.4)  # about, as fast as may be
    view.sensors = {}
    assert world.success(view).tolist() == [False, True, False]


@needs_robots
def test_who_crosses_comes_to_a_harder_tile_and_who_stays_to_an_easier_one() -> None:
    world = Terrain(robot=card.read("go2"), levels=(1, 6))
    view = start(world, 5)
    view.task["level"] = np.array([1, 3, 3, 1, 6])
    view.task["crossed"] = np.array([True, False, False, False, True])
    view.task["far"] = np.array([4.0, 2.5, 1.0, 0.0, 4.0])
    after: Any = world.reset_after(Streams(5, 7).draw(np.arange(5)), view)
    level = after.task["level"]
    assert level[:4].tolist() == [2, 3, 2, 1]
    assert 1 <= level[4] <= 6  # behind the hardest any
    middle = world.ground.middles[level, after.task["goal"]]
    assert np.abs(after.qpos[:, :2] - middle).max() == pytest.approx(0.5 * TILE)
    assert np.abs(0.5 * (after.task["begin"] + after.task["end"]) - middle).max() <= 0.5
    assert np.array_equal(after.qpos[:, :2], after.task["begin"])
    assert world.eval_options == {"curriculum": False}
    every = Terrain(robot=card.read("go2"), curriculum=False)
    drawn = start(every, 300).task["level"]
    assert set(drawn.tolist()) == set(range(8))


@needs_robots
def test_critics_are_told_the_ground_around_and_policies_are_not() -> None:
    world = Terrain(robot=card.read("go2"), levels=(7, 7), kinds=("stairs",))
    env = make(2, 0, world=world, options=EngineOptions(critic_state=True, num_threads=1))
    try:
        obs, _ = env.reset(seed=3)
        width = obs["state"].shape[1]
        assert width == len(world.obs_names)
        told = obs["privileged"][0, width:]
        assert len(told) == 3 + 1 + 4 + len(SCAN)
        scan, height = told[-len(SCAN) :], told[3]
        assert height == pytest.approx(env.physics.qpos[0, 2], abs=1e-6)  # level ground at the side of the tile
        ahead = [i for i, place in enumerate(SCAN) if place[1] == 0.0]
        stairs = scan[ahead] + height
        assert stairs[:3] == pytest.approx(0.0, abs=1e-6)
        assert stairs[-1] >= 0.14 - 1e-6  # .8 m ahead the first stair, at least
    finally:
        env.close()


@needs_robots
def test_tensors_say_the_same_as_arrays() -> None:
    world = Terrain(robot=card.read("go2"))
    view = start(world, 6, seed=5)
    rng = np.random.default_rng(0)
    np.asarray(view.qpos)[:, :2] += rng.uniform(-1.0, 1.0, (6, 2))
    view.sensors = {
        f"robot_rl_foot_{kind}{i}": rng.uniform(-1.0, 1.0, (6, 3)) for i in range(4) for kind in ("place", "speed")
    }
    begin = world.reset(TorchStreams(6, 5).draw(torch.ones(6, dtype=torch.bool)), 6, txp)
    assert np.asarray(begin.qpos) == pytest.approx(start(world, 6, seed=5).qpos, abs=1e-5)
    twin = View(
        txp,
        torch.tensor(view.qpos, dtype=torch.float32),
        torch.tensor(view.qvel, dtype=torch.float32),
        torch.tensor(view.ctrl, dtype=torch.float32),
        {key: torch.tensor(value, dtype=torch.float32) for key, value in view.sensors.items()},
        torch.zeros(6, 12),
        torch.zeros(6, 12),
        torch.zeros(6, dtype=torch.int64),
        dict(begin.task),
    )
    world.update(view)
    world.update(twin)
    for ours, other in ((view.task[key], twin.task[key]) for key in view.task):
        assert np.asarray(other) == pytest.approx(ours, abs=1e-4)
    assert np.asarray(world.privileged(twin)) == pytest.approx(world.privileged(view), abs=1e-4)
    for name, value in world.reward_terms(view).items():
        assert np.asarray(world.reward_terms(twin)[name]) == pytest.approx(value, abs=1e-3), name


def test_a_missing_card_is_told() -> None:
    with pytest.raises(ValueError, match="terrain needs the card of a robot on legs"):
        Terrain()


@needs_robots
def test_levels_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"levels is \[4, 2\], expected \[easiest, hardest\]"):
        Terrain(robot=card.read("go2"), levels=(4, 2))
