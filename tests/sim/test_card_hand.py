"""Pick on arms with a gripper that the project has never met."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from robot_rl.sim.card_arm import CardArm
from robot_rl.sim.card_hand import _with_hand, find_free
from robot_rl.sim.card_pick import follow
from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.hand_grip import GRASP, Grip, HandTrial
from robot_rl.sim.hand_shapes import slices
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.worlds.pick import Pick
from robot_rl.types.card import Card, GripperCard
from tests.sim.test_robot_card import SCENE

ONE_THREAD = EngineOptions(num_threads=1)

SMALL = Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf"
ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))
real = pytest.mark.skipif(not ROBOTS.exists(), reason="the folder shared/data/robots is absent")


@pytest.fixture(scope="module")
def fr3() -> Card:
    return new_card(str(ROBOTS / "fr3/fr3.urdf"), "fr3")[0]


def test_a_card_without_a_gripper_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"has no gripper, and this task needs one.*env=reach"):
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


def test_links_of_a_hand_that_overlap_where_they_are_joined_do_not_keep_it_from_grasping(tmp_path: Path) -> None:
    """As the hulls of a linkage's knuckles, which the card does not know: what it knows are capsules."""
    knuckle = """
      <joint name="knuckle" type="revolute"><parent link="hand"/><child link="knuckle"/><origin xyz="0 0.01 0.06"/>
        <axis xyz="1 0 0"/><limit lower="-0.1" upper="0.1" velocity="1" effort="1"/><mimic joint="finger_left"/></joint>
      <link name="knuckle"><collision><geometry><box size="0.05 0.01 0.01"/></geometry></collision>
        <inertial><mass value="0.01"/>
        <inertia ixx="0.00001" iyy="0.00001" izz="0.00001" ixy="0" ixz="0" iyz="0"/></inertial></link>
    </robot>"""
    (tmp_path / "arm.urdf").write_text(SMALL.read_text().replace("</robot>", knuckle))
    card, _ = new_card(str(tmp_path / "arm.urdf"), "arm")
    overlaps = {pair for pair in card.ignore if "knuckle" in pair}
    assert overlaps == {("knuckle", "left")}
    known = CardArm(card, action="ee", control_hz=20.0).xml
    unknown = re.sub(r"<exclude [^>]*knuckle[^>]*/>", "", known)
    assert unknown != known
    scene, _ = _with_hand(card.model_dump_json(), unknown, 0.02)
    assert find_free(mujoco.MjModel.from_xml_string(scene), card, np.array([card.home])).all()


@real
@pytest.mark.parametrize("action", ["ee", "joint"])
def test_fr3_picks_by_its_expert(fr3: Card, action: str) -> None:
    env = make(20, 0, world=Pick(robot=fr3, action=action), options=EngineOptions(num_threads=2))
    obs, info = env.reset()
    for _ in range(env.world.episode_steps):
        obs, _, _, _, info = env.step(env.expert(obs))
    env.close()
    assert float(np.mean(info["success"])) >= 0.85


@real
@pytest.mark.slow
@pytest.mark.parametrize("model", ["xarm7/xarm7.xml", "so101/so101_new_calib.xml"])
def test_linkages_and_single_jaws_pick_by_their_expert(model: str) -> None:
    world = Pick(robot=new_card(str(ROBOTS / model), "arm")[0])
    env = make(20, 0, world=world, options=EngineOptions(num_threads=2))
    obs, info = env.reset()
    for _ in range(env.world.episode_steps):
        obs, _, _, _, info = env.step(env.expert(obs))
    env.close()
    assert float(np.mean(info["success"])) >= 0.85


def _hand(width: float) -> tuple[Any, GripperCard]:
    """Two fingers on slides, 4 cm long, `width` apart when open, and the cube of pick."""
    finger = (
        '<body name="{0}"><joint name="{0}" type="slide" axis="0 {1} 0" range="0 {2}"/>'
        '<geom type="box" size="0.01 0.005 0.02" pos="0 {3} 0.05" mass="0.05"/></body>'
    )
    fingers = "".join(
        finger.format(name, side, width / 2, -side * (width / 2 + 0.005)) for name, side in (("left", 1), ("right", -1))
    )
    servos = "".join(f'<position name="{name}" joint="{name}" kp="500" kv="30"/>' for name in ("left", "right"))
    spec = mujoco.MjSpec.from_string(
        '<mujoco><option timestep="0.005" integrator="implicitfast" impratio="4"/><worldbody><body name="hand" '
        f'pos="0 0 1"><geom size="0.02" mass="1"/><site name="{GRASP}" pos="0 0 0.04"/>{fingers}</body>'
        '<body name="cube" pos="100 0 0"><freejoint name="cube"/><geom name="cube" type="box" size="0.02 0.02 0.02" '
        'mass="0.06" priority="1" friction="1.5 0.02 0.0001" solref="0.01 1" solimp="0.95 0.99 0.001"/></body>'
        f"</worldbody><actuator>{servos}</actuator></mujoco>"
    )
    closed = (width / 2, width / 2)
    return spec, GripperCard(joints=("left", "right"), open=(0.0, 0.0), closed=closed, effort=100.0, kp=500.0, kd=30.0)


def test_a_hand_is_tried_where_its_fingers_hold_the_cube() -> None:
    grip = HandTrial(*_hand(0.08), {}, 0.02).find()
    assert isinstance(grip, Grip)
    assert grip.held == pytest.approx(0.5, abs=0.02)  # 4 of 8 cm
    # Fingers end 7 cm below the hand, 3 cm below the frame: the cube's middle is there or up to its half above.
    assert 0.01 - 1e-3 <= grip.place[2] <= 0.035
    assert abs(grip.place[1]) < 2e-3


def test_a_hand_that_opens_less_than_the_cube_is_told() -> None:
    found = HandTrial(*_hand(0.042), {}, 0.02).find()
    assert "leave no room for a cube of 4.0 cm" in str(found)


def test_the_two_prongs_of_a_fork_are_two_pieces() -> None:
    """A U of two prongs of 1 x 1 x 4 cm on a bar of 3 x 1 x 1 cm: the gap between them stays free."""
    outline = np.array([[0, 0], [3, 0], [3, 5], [2, 5], [2, 1], [1, 1], [1, 5], [0, 5]], float) * 0.01
    n = len(outline)
    points = np.concatenate([np.insert(outline, 1, depth, axis=1) for depth in (0.0, 0.01)])
    sides = [(i, (i + 1) % n, i + n) for i in range(n)] + [((i + 1) % n, (i + 1) % n + n, i + n) for i in range(n)]
    caps = [(0, 1, 4), (0, 4, 5), (1, 2, 3), (1, 3, 4), (0, 5, 6), (0, 6, 7)]
    faces = np.array([*sides, *caps, *((a + n, c + n, b + n) for a, b, c in caps)])
    found = slices(points, faces, np.array([0.0, 0.0, 1.0]))
    above = [piece for piece in found if piece[:, 2].min() > 0.012]
    assert len(above) >= 4  # two prongs in every slice above the bar
    for piece in above:
        x = piece[:, 0]
        assert x.max() <= 0.01 + 1e-9 or x.min() >= 0.02 - 1e-9


@real
def test_fingers_that_follow_by_a_constraint_begin_where_it_holds_them() -> None:
    body = '<body><joint name="{}" ref="{}"/><geom size="0.1" pos="0.1 0 0" contype="0" conaffinity="0"/></body>'
    bodies = body.format("led", -0.3) + body.format("lead", 0.5)
    tie = '<joint joint1="led" joint2="lead" polycoef="0.1 -1 0 0 0"/>'
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><compiler angle="radian"/><option gravity="0 0 0"/><worldbody>{bodies}</worldbody><equality>'
        f"{tie}</equality></mujoco>"
    )
    qpos = np.array(model.qpos0)
    qpos[1] = 1.0
    follow(model, qpos)
    assert qpos == pytest.approx([-0.7, 1.0])  # -0.3 + 0.1 - (1 - 0.5)
    data: Any = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    assert np.abs(data.efc_pos).max() < 1e-9


def test_cameras_see_what_is_close(fr3: Card) -> None:
    model = mujoco.MjModel.from_xml_string(Pick(robot=fr3).mjcf())
    assert model.stat.extent * model.vis.map.znear < 0.05  # m; a cube that waited far away made a metre of it


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
def test_whatever_is_asked_the_command_stays_in_the_box_of_the_task(fr3: Card) -> None:
    """A policy that has learned nothing: servos lag behind it, and the session's supervisor stops whatever leaves."""
    env = make(8, 0, world=Pick(robot=fr3), options=ONE_THREAD)
    env.reset()
    random, action = np.random.default_rng(0), np.zeros((8, 4), np.float32)
    world: Any = env.world
    box, worst = world.tool(env._view), 0.0
    for _ in range(150):
        fresh = np.clip(random.uniform(-1.5, 1.5, (8, 4)), -1.0, 1.0)
        action = np.where(random.random((8, 1)) < 0.1, fresh, action).astype(np.float32)
        env.step(action)
        command = np.asarray(env._view.task["tip"] + env._view.task["tip_lag"])
        worst = max(worst, float((box["low"] - command).max()), float((command - box["high"]).max()))
    env.close()
    assert worst < 0.015


@real
def test_a_servo_at_its_largest_effort_does_not_shake_by_itself() -> None:
    """Joints 1 and 3 of this arm turn about nearly one axis: against one another they are light."""
    card = new_card(str(ROBOTS / "xarm7/xarm7.xml"), "arm")[0]
    model = mujoco.MjModel.from_xml_string(CardArm(card, action="ee", control_hz=10.0).xml)
    data = mujoco.MjData(model)
    data.qpos[:7] = [0.27, 0.29, 0.27, 0.42, -0.19, 0.15, 0.66]
    data.ctrl[:7] = data.qpos[:7]
    data.ctrl[[0, 2]] += (0.1, -0.14)
    data.qvel[:7] = [2.7, 0.0, -2.7, 0.0, 0.0, 0.0, 0.0]
    for _ in range(100):
        mujoco.mj_step(model, data)
    assert np.abs(data.qvel[:7]).max() < 0.2


@real
def test_check_finds_nothing(fr3: Card) -> None:
    env = make(2, 0, world=Pick(robot=fr3), options=ONE_THREAD)
    assert check(env) == []
    env.close()


def test_a_tool_frame_in_the_wrist_grasps_where_the_fingers_are(tmp_path: Path) -> None:
    (tmp_path / "scene.xml").write_text(SCENE)
    card = new_card(str(tmp_path / "scene.xml"), "scene", tool="wrist")[0]
    grip = _with_hand(card.model_dump_json(), CardArm(card, action="ee", control_hz=10.0).xml, 0.02)[1]
    assert 0.11 < grip.place[2] < 0.16  # fingers reach from 10 to 16 cm
    assert abs(grip.place[1]) < 5e-3
