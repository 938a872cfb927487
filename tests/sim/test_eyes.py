"""What a policy sees of a world: cameras that stand where they are said to, and no goal but in the pictures."""

import json
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from robot_rl import api
from robot_rl.sim.arm import downward
from robot_rl.sim.eyes import shrink
from robot_rl.sim.mujoco_physics import mujoco
from robot_rl.types import IOSpec
from robot_rl.types.camera import Calibration
from robot_rl.verbs.pictures import put_pictures
from robot_rl.words import Refused

SEEN = {"camera_size": [64, 64], "camera_quality": "fast", "supersample": 2}


def seen_env(world: str, cameras: Any = "own", proprio: Any = "own", **options: Any) -> Any:
    return api.make(world, 1, seed=0, cameras=cameras, proprio=proprio, **{**SEEN, **options})


def pixel(calibration, tool, point):
    """Row and column of a world point, by the textbook: x = K [R | t] X."""
    turn, place = np.array(calibration.rotation).reshape(3, 3), np.array(calibration.position)
    if calibration.mount == "tool":
        hand = np.asarray(downward(np.asarray(tool[None, 3], float)))[0]
        place, turn = hand @ place + tool[:3], hand @ turn
    x, y, z = turn.T @ (np.asarray(point) - place)
    fx, fy = calibration.focal
    return calibration.centre[1] + fy * y / z, calibration.centre[0] + fx * x / z


def moved_away(env, obs, camera):
    """Row and column of the middle of what is gone from the picture once the goal is somewhere else."""
    state = env.state_dict()
    env.load_state_dict({**state, "task.goal": state["task.goal"] - np.array([0.0, 0.0, 9.0])})
    change = np.abs(env.observe()[f"image.{camera}"][0].astype(float) - obs[f"image.{camera}"][0]).sum(-1)
    env.load_state_dict(state)
    rows, columns = np.indices(change.shape) + 0.5
    return (change * rows).sum() / change.sum(), (change * columns).sum() / change.sum()


@pytest.mark.parametrize(("camera", "look"), [("front", None), ("side", None), ("side", {"seed": 3})])
def test_a_goal_is_seen_where_its_calibration_says(camera, look):
    env = seen_env("reach", cameras=[camera], look=look)
    obs, _ = env.reset(seed=0)
    state = env.state_dict()
    for goal in ((0.50, 0.10, 0.07), (0.36, -0.15, 0.08), (0.40, 0.15, 0.20)):  # away from the hand, which hides
        env.load_state_dict({**state, "task.goal": np.array([goal])})
        obs = env.observe()
        found = moved_away(env, obs, camera)
        assert np.allclose(found, pixel(env.io.calibration[f"image.{camera}"], obs["tool"][0], goal), atol=1.0)
    env.close()


def test_a_camera_in_the_hand_moves_and_turns_with_the_tool():
    env = seen_env("insert", cameras=["wrist"])
    obs, _ = env.reset(seed=1)
    calibration = env.io.calibration["image.wrist"]
    physics = env.physics
    for _ in range(25):
        obs, *_ = env.step(env.parts.expert(obs))
    data = mujoco.MjData(physics.model)
    data.qpos[:] = physics.qpos[0]
    mujoco.mj_kinematics(physics.model, data)
    mujoco.mj_camlight(physics.model, data)
    index = mujoco.mj_name2id(physics.model, mujoco.mjtObj.mjOBJ_CAMERA, "wrist")
    tool = obs["tool"][0].astype(float)
    place = np.asarray(downward(tool[None, 3]))[0] @ np.array(calibration.position) + tool[:3]
    assert calibration.mount == "tool"
    assert np.linalg.norm(place - data.cam_xpos[index]) < 2e-3  # the arm sags by less than 2 mm
    env.close()


def test_front_and_side_stand_at_a_right_angle():
    env = seen_env("pick")
    assert list(env.io.calibration) == ["image.front", "image.side"]
    looks = [np.array(c.rotation).reshape(3, 3)[:2, 2] for c in env.io.calibration.values()]
    cosine = looks[0] @ looks[1] / np.linalg.norm(looks[0]) / np.linalg.norm(looks[1])
    assert abs(cosine) < 1e-4
    env.close()


@pytest.mark.parametrize("world", ["pick", "insert", "reach"])
def test_goals_and_objects_are_in_the_pictures_alone(world):
    """Two scenes that differ in goal and object alone: everything but the pictures is the same."""
    env = seen_env(world)
    seen, _ = env.reset(seed=0)
    assert not [name for name in env.io.obs_names if "cube" in name or "goal" in name or "hole" in name]
    state = env.state_dict()
    if world != "insert":
        state["task.goal"] = state["task.goal"] + np.array([0.05, -0.04, 0.03])
    else:
        state["physics"] = state["physics"].copy()
        time_first = 1  # MuJoCo's full state begins with the time; the socket's three joints follow the arm's eight
        state["physics"][0, time_first + 8 : time_first + 10] += (0.03, -0.03)
    env.load_state_dict(state)
    other = env.observe()
    assert {key for key in seen if not np.array_equal(seen[key], other[key])} == {
        key for key in seen if key.startswith("image.")
    }
    env.close()


def test_the_expert_sees_all_though_the_policy_does_not():
    whole: Any = api.make("pick", 1, seed=0)
    part = seen_env("pick", proprio=["tip", "opening"])
    first, _ = whole.reset(seed=5)
    second, _ = part.reset(seed=5)
    assert part.io.obs_names == ("tip_x", "tip_y", "tip_z", "opening")
    assert np.array_equal(second["state"][0], first["state"][0, [0, 1, 2, 9]])
    assert np.array_equal(whole.parts.expert(first), part.parts.expert(second))
    whole.close()
    part.close()


@pytest.mark.parametrize(
    ("world", "cameras", "proprio", "words"),
    [
        ("pick", ["front"], ["cube_to_goal"], "is of the task, and hidden"),
        ("pick", ["front"], ["elbow"], r"feels \['tip_x'"),
        ("pick", "front", "own", r"expected a list such as \[front\]"),
        ("double_pendulum", "own", "own", "takes no cameras of its own"),
        ("double_pendulum", ["front"], "own", "goals and objects cannot be hidden"),
    ],
)
def test_what_cannot_be_seen_or_hidden_is_refused(world, cameras, proprio, words):
    with pytest.raises((Refused, ValueError), match=words):
        seen_env(world, cameras, proprio)


def test_pixels_are_means_of_what_was_drawn():
    drawn = np.array([[[0, 2], [4, 7]], [[10, 10], [10, 11]]], np.uint8).reshape(1, 2, 4, 1)
    # rows (0, 2, 4, 7) and (10, 10, 10, 11): blocks (0, 2, 10, 10) -> 22 / 4 = 5.5 -> 6 and (4, 7, 10, 11) -> 8
    assert shrink(drawn, 2).tolist() == [[[[6], [8]]]]


def test_a_calibration_travels_with_the_interface():
    env = seen_env("insert")
    again = IOSpec.from_dict(json.loads(json.dumps(env.io.to_dict())))
    assert dict(again.calibration) == dict(env.io.calibration)
    assert again.obs_units["tool"] == ("m", "m", "m", "rad")
    env.close()


def test_a_calibration_that_is_none_is_refused():
    good = {"height": 4, "width": 4, "focal": (4.0, 4.0), "centre": (2.0, 2.0), "position": (0.0, 0.0, 0.0)}
    turn = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    Calibration(**good, mount="tool", rotation=turn)
    with pytest.raises(ValueError, match="mounted on 'elbow'"):
        Calibration(**good, mount="elbow", rotation=turn)
    with pytest.raises(ValueError, match="is no rotation"):
        Calibration(**good, mount="tool", rotation=(2.0, *turn[1:]))


def test_the_options_of_a_verb_go_into_the_environment():
    cfg = OmegaConf.create(
        {"env": {"engine": "mujoco"}, "cameras": ["front", "wrist"], "proprio": None, "image_size": 48}
    )
    put_pictures(cfg)
    assert OmegaConf.to_container(cfg.env) == {
        "engine": "mujoco",
        "cameras": ["front", "wrist"],
        "proprio": "own",
        "camera_size": [48, 48],
        "camera_quality": "fast",
        "supersample": 2,
        "critic_state": False,
    }
    with pytest.raises(Refused, match="proprio goes with pictures"):
        put_pictures(OmegaConf.create({"env": {"engine": "mujoco"}, "proprio": ["tip"]}))
    with pytest.raises(Refused, match="engine is gym"):
        put_pictures(OmegaConf.create({"env": {"engine": "gym"}, "cameras": ["front"]}))
