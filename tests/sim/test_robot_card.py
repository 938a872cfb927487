"""Arms that the project has never met: what their cards say, and reach on them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import array_api_compat.numpy as numpy_xp
import array_api_compat.torch as torch_xp
import numpy as np
import pytest
import torch

from robot_rl.sim.card_arm import CardArm
from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.robot_model import calm_springs, digest, load, mujoco
from robot_rl.sim.robot_probe import RobotProbe
from robot_rl.sim.world import View
from robot_rl.sim.worlds.reach import Reach
from robot_rl.types.card import OPEN, Card

ONE_THREAD = EngineOptions(num_threads=1)

SMALL = Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf"
ROBOTS = next((p for p in (up / "shared/data/robots" for up in Path(__file__).parents) if p.exists()), Path("absent"))
real = pytest.mark.skipif(not ROBOTS.exists(), reason="the folder shared/data/robots is absent")
slow = pytest.mark.slow
both = pytest.mark.parametrize("action", ["ee", "joint"])


@pytest.fixture(scope="module")
def small() -> Card:
    return new_card(str(SMALL), "small")[0]


def solved(card: Card, action: str, count: int = 40) -> float:
    """Share of episodes that the scripted expert ends on its target."""
    env = make(count, 0, world=Reach(robot=card, action=action), options=EngineOptions(num_threads=2))
    obs, info = env.reset()
    for _ in range(env.world.episode_steps):
        obs, _, _, _, info = env.step(env.expert(obs))
    env.close()
    return float(np.mean(info["success"]))


def test_card_of_a_urdf_says_what_the_file_says(small: Card) -> None:
    assert [joint.name for joint in small.joints] == ["waist", "shoulder", "elbow", "wrist_pitch", "wrist_roll"]
    waist, roll = small.joints[0], small.joints[-1]
    assert (waist.lower, waist.upper, waist.velocity, waist.effort) == (-2.9, 2.9, 2.5, 40.0)
    assert (waist.acceleration, roll.continuous, roll.lower, roll.velocity) == (OPEN, True, None, 3.0)
    assert (small.tool, small.base) == ("tool0", "base_link")
    assert small.gripper is not None  # finger_right follows by its mimic, and further apart is open
    assert (small.gripper.joints, small.gripper.open, small.gripper.closed) == (("finger_left",), (0.04,), (0.0,))
    assert {"command_mode", "controller_topic", "estop.action"} <= set(small.open_keys())


def test_absent_visual_meshes_are_told_and_left_out() -> None:
    made = load(SMALL)
    assert made.notes == [
        "2 meshes are absent or of a form that is not read, and left out: visual base.dae, visual turret.dae"
    ]
    assert made.spec.compile().ngeom == 8  # the collision shapes


def test_link_whose_shapes_are_all_absent_gets_a_capsule_along_its_bone(tmp_path: Path) -> None:
    text = SMALL.read_text()
    shape = '<box size="0.06 0.06 0.26"/>'
    assert shape in text
    path = tmp_path / "bare.urdf"
    path.write_text(text.replace(shape, '<mesh filename="package://nowhere/upper_arm.stl"/>'))
    made = load(path)
    model = made.spec.compile()
    assert any("link upper_arm has no shape" in note for note in made.notes)
    body = model.body("upper_arm")
    assert model.geom_type[int(body.geomadr[0])] == mujoco.mjtGeom.mjGEOM_CAPSULE
    assert model.geom_size[int(body.geomadr[0]), 1] == pytest.approx(0.15)  # half of the 0.3 m to the elbow


def test_package_paths_and_meshes_of_one_name_are_found_and_touch_as_capsules(tmp_path: Path) -> None:
    tetrahedron = "v 0 0 0\nv {0} 0 0\nv 0 {0} 0\nv 0 0 {0}\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    for folder, size in (("visual", 0.1), ("collision", 0.05)):
        (tmp_path / "arm/meshes" / folder).mkdir(parents=True)
        (tmp_path / "arm/meshes" / folder / "link.obj").write_text(tetrahedron.format(size))
    (tmp_path / "arm/urdf").mkdir()
    path = tmp_path / "arm/urdf/a.urdf"
    mesh = '<{0}><geometry><mesh filename="package://arm/meshes/{0}/link.obj"/></geometry></{0}>'
    path.write_text(
        f'<robot name="a"><link name="base"/><link name="l">{mesh.format("visual")}{mesh.format("collision")}'
        '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        '<joint name="j" type="continuous"><parent link="base"/><child link="l"/></joint></robot>'
    )
    made = load(path)
    model = made.spec.compile()
    assert made.notes == []
    rows = zip(model.mesh_vertadr, model.mesh_vertnum)
    small, large = sorted(float(np.ptp(model.mesh_vert[first : first + count], axis=0).max()) for first, count in rows)
    assert large == pytest.approx(2.0 * small, rel=1e-4)  # two files, in whatever axes MuJoCo stores them
    touching = [int(model.geom_type[i]) for i in range(model.ngeom) if model.geom_contype[i]]
    assert touching == [int(mujoco.mjtGeom.mjGEOM_CAPSULE)]
    before = digest(path)
    (tmp_path / "arm/meshes/visual/link.obj").write_text(tetrahedron.format(0.2))
    assert digest(path) != before  # the hash is of everything that the model names


def test_approach_goes_to_the_place_and_drifts_to_rest_without_leaving_it(small: Card) -> None:
    arm = CardArm(small, action="ee", control_hz=10.0)
    home = np.array(small.home)
    wanted, _ = arm.chain.forward(home[None] + [[0.2, -0.1, 0.2, 0.0, 0.0]])
    q = home[None] + [[0.0, 0.0, 0.0, 0.5, 1.0]]
    for _ in range(60):
        q = arm.chain.approach(q, arm.chain.jacobian(q), wanted, home)
    np.testing.assert_allclose(arm.chain.forward(q)[0], wanted, atol=2e-3)
    assert abs(q[0, 4]) < 0.1  # the roll, which moves nothing, is back at rest


@both
def test_reach_on_a_new_arm_keeps_the_contract_and_can_be_solved(small: Card, action: str) -> None:
    env = make(3, 0, world=Reach(robot=small, action=action), options=ONE_THREAD)
    assert check(env) == []
    assert len(env.io.obs_names) == env.io.obs["state"][0][0]
    env.close()
    assert solved(small, action) == 1.0


class _TorchDraw:
    def uniform(self, *shape: int, low: Any = 0.0, high: Any = 1.0) -> torch.Tensor:
        return low + (high - low) * torch.rand(6, *shape, generator=torch.Generator().manual_seed(0))

    def normal(self, *shape: int, std: Any = 1.0) -> torch.Tensor:
        raise NotImplementedError


@both
def test_terms_are_the_same_in_numpy_and_torch_so_that_gpu_engines_run_them(small: Card, action: str) -> None:
    world = Reach(robot=small, action=action)
    start = world.reset(_TorchDraw(), 6, torch_xp)
    numbers = {name: np.array(value) for name, value in vars(start).items() if name != "task"}
    views: list[Any] = []
    for xp, kind in ((numpy_xp, np.array), (torch_xp, lambda x: torch.tensor(np.array(x)))):
        task = {key: kind(value) for key, value in start.task.items()}
        zero = kind(np.zeros((6, len(world.action_names)), np.float32))
        state: dict[str, Any] = {name: kind(value) for name, value in numbers.items()}
        views.append(
            View(xp=xp, sensors={}, action=zero, previous_action=zero, step=kind(np.zeros(6)), task=task, **state)
        )
    view, other = views
    wish = np.asarray(world.expert(np.asarray(world.observe(view))), np.float32)
    for _ in range(3):
        control = world.control(view, wish)
        np.testing.assert_allclose(np.asarray(world.control(other, torch.tensor(wish))), control, atol=1e-9)
        view.qpos[:, :5] = control[:, :5]  # an arm that follows at once
        other.qpos[:, :5] = torch.tensor(control[:, :5])
        for one in views:
            world.update(one)
    np.testing.assert_allclose(np.asarray(world.observe(other)), world.observe(view), atol=1e-5)
    np.testing.assert_allclose(np.asarray(world.reward(other)), world.reward(view), atol=1e-6)
    assert (np.asarray(world.reward(view)) > 0).all()


def test_starts_and_targets_are_free_of_contacts_and_in_the_workspace(small: Card) -> None:
    env = make(50, 3, world=Reach(robot=small), options=ONE_THREAD)
    env.reset()
    model, data = env.physics.model, mujoco.MjData(env.physics.model)
    assert small.workspace is not None
    goals = np.asarray(env._view.task["goal"])
    assert (goals >= np.array(small.workspace.lower) - 1e-9).all()
    assert (goals <= np.array(small.workspace.upper) + 1e-9).all()
    assert np.ptp(goals, axis=0).min() > 0.1
    for qpos in env.physics.qpos:
        data.qpos[:] = qpos
        mujoco.mj_fwdPosition(model, data)
        assert not (data.contact.dist[: data.ncon] < 0.0).any()
    env.close()


def test_arm_holds_against_gravity_where_it_starts(small: Card) -> None:
    env = make(4, 0, world=Reach(robot=small, action="joint"), options=ONE_THREAD)
    env.reset()
    before = env.physics.qpos[:, :5].copy()
    for _ in range(20):
        env.step(np.zeros((4, 5), np.float32))
    np.testing.assert_allclose(env.physics.qpos[:, :5], before, atol=2e-3)
    env.close()


def test_model_that_has_changed_is_told_and_one_that_is_gone_is_refused(
    small: Card, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "arm.urdf"
    shutil.copy(SMALL, path)
    moved = new_card(str(path), "moved")[0]
    path.write_text(path.read_text().replace('mass value="1.2"', 'mass value="1.3"'))
    Reach(robot=moved)
    assert "has changed since its card was stored" in capsys.readouterr().err
    path.unlink()
    with pytest.raises(ValueError, match=r"there is no model .*arm\.urdf"):
        Reach(robot=moved.model_copy(update={"name": "other"}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tool": "nose"}, "has no site or body 'nose'"),
        ({"workspace": None}, "has no workspace"),
        ({"home": (0.0, -1.5, -2.0, 0.0, 0.0)}, "widen workspace"),
    ],
)
def test_card_that_does_not_fit_its_model_is_refused_by_a_sentence(
    small: Card, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Reach(robot=small.model_copy(update=change))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<robot", "is no XML"),
        ("<sdf/>", "begins with <sdf>"),
        (
            "<robot xmlns:xacro='http://www.ros.org/wiki/xacro'><xacro:arm/></robot>",
            "is a xacro.* xacro x.xml > robot.urdf",
        ),
        ("<mujoco><worldbody><body><freejoint/><geom size='1'/></body></worldbody></mujoco>", "free base"),
    ],
)
def test_file_that_is_no_arm_is_refused_by_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        new_card(str(path), "x")


def test_joint_that_follows_another_on_the_way_to_the_tool_is_refused(tmp_path: Path) -> None:
    plain, path = '<joint name="wrist_pitch" type="revolute">', tmp_path / "arm.urdf"
    assert plain in SMALL.read_text()
    path.write_text(SMALL.read_text().replace(plain, plain + '<mimic joint="elbow"/>'))
    with pytest.raises(ValueError, match=r"way to tool0, wrist_pitch cannot be moved alone"):
        new_card(str(path), "x")
    assert [j.name for j in new_card(str(path), "x", tool="forearm")[0].joints] == ["waist", "shoulder", "elbow"]


BOX = "<geom type='box' size='.02 .02 .02'/>"
ARM = (
    "<mujoco><worldbody><body name='base'>{0}<geom type='box' size='.05 .05 .05'/><body name='one' pos='0 0 .2'>"
    f"<joint name='a' axis='0 1 0' range='-90 90'/>{BOX}<body name='two' pos='0 0 .3'>"
    f"<joint name='b' axis='0 1 0' range='-90 90'/>{BOX}<body name='tool0' pos='0 0 .3'>{BOX}</body></body></body>"
    f"<body name='rod' pos='.1 0 .2'><joint name='c' axis='0 1 0'/>{BOX}</body></body></worldbody>"
    "<actuator><motor joint='a' forcelimited='true' forcerange='-8 20'/><motor joint='b'/></actuator>{1}</mujoco>"
)
SIX = "".join(
    f"<joint name='{k}{a}' type='{k}' axis='{a}'/>" for k in ("slide", "hinge") for a in ("1 0 0", "0 1 0", "0 0 1")
)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'lower="-2.9" upper="2.9"',
            'lower="2.9" upper="-2.9"',
            "joint waist goes from 2.9 to -2.9, expected lower below",
        ),
        ('lower="-2.9" upper="2.9"', 'lower="0.5" upper="0.5"', "goes from 0.5 to 0.5, expected lower below"),
        ('joint name="shoulder"', 'joint name="waist"', "two joints are called 'waist'"),
        ('lower="-2.9" upper="2.9"', 'lower="-2,9" upper="2,9"', "could not convert string to float: '-2,9'"),
    ],
)
def test_urdf_with_a_slip_is_refused_by_one_line(old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in SMALL.read_text()
    path = tmp_path / "slip.urdf"
    path.write_text(SMALL.read_text().replace(old, new))
    with pytest.raises(ValueError, match=said):
        new_card(str(path), "x")


def test_joint_without_limits_in_the_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "open.urdf"
    path.write_text(SMALL.read_text().replace('lower="-2.9" upper="2.9"', ""))
    made, notes = new_card(str(path), "x")
    assert made.joints[0].continuous
    assert any(note.startswith("no limits of waist in the file") for note in notes)


@pytest.mark.parametrize(
    ("base", "more", "said"),
    [
        ("", "<equality><connect body1='rod' body2='two' anchor='0 0 0'/></equality>", "a, b cannot be moved alone"),
        (SIX, "", "moves freely by 6 joints that no actuator moves: write <freejoint/>"),
        ("<joint axis='0 0 1'/>", "", "a joint of body 'base' has no name"),
    ],
)
def test_arm_with_joints_that_a_card_cannot_state_is_refused(base: str, more: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "arm.xml"
    path.write_text(ARM.format(base, more))
    with pytest.raises(ValueError, match=said):
        new_card(str(path), "x")


def test_absent_textures_are_left_out_and_shells_of_older_files_are_weighed(tmp_path: Path) -> None:
    (tmp_path / "a.obj").write_text("v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n")
    (tmp_path / "arm.xml").write_text(
        "<mujoco><asset><texture name='t' type='2d' file='wood.png'/><material name='m' texture='t'/>"
        "<mesh file='a.obj'/><mesh file='b.obj'/></asset><worldbody><body><joint/>"
        "<geom type='mesh' mesh='a' material='m' mass='2' shellinertia='true'/>"
        "<geom type='mesh' mesh='b'/><geom type='capsule' mesh='b'/></body></worldbody></mujoco>"
    )
    made = load(tmp_path / "arm.xml")
    assert [note.rpartition(", ")[2] for note in made.notes] == ["and left out: b.obj", "and left out: wood.png"]
    model = made.spec.compile()
    assert (model.ntex, model.nmesh) == (0, 1)
    assert model.body_mass[1] == pytest.approx(2.0)


def test_effort_of_an_actuator_is_what_it_can_do_in_both_directions(tmp_path: Path) -> None:
    path = tmp_path / "arm.xml"
    path.write_text(ARM.format("", ""))
    assert [joint.effort for joint in new_card(str(path), "x")[0].joints] == [8.0, OPEN]


def test_gain_of_a_servo_is_that_of_its_joint_behind_the_gear(tmp_path: Path) -> None:
    path = tmp_path / "arm.xml"
    servo = "<position joint='b' kp='.4' kv='.008' gear='5'/>"
    path.write_text(ARM.format("", "").replace("<actuator>", f"<actuator>{servo}"))
    assert [(joint.kp, joint.kd) for joint in new_card(str(path), "x")[0].joints][1] == (10.0, 0.2)


def test_servo_of_a_file_that_would_swing_gives_way_to_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "arm.xml"
    servos = "<position joint='a' kp='20'/><position joint='b' kp='20' kv='.2'/>"
    path.write_text(ARM.format("", "").replace("<actuator>", f"<actuator>{servos}"))
    one, two = new_card(str(path), "x")[0].joints
    assert (one.kp, one.kd) != (20.0, 0.0)
    assert one.kd == pytest.approx(2.0 * one.kp / 25.0)
    assert (two.kp, two.kd) == (20.0, 0.2)


@real
@pytest.mark.parametrize(
    ("file", "count", "tool", "gripper"),
    [
        ("fr3/fr3.urdf", 7, "fr3_hand_tcp", ("fr3_finger_joint1",)),
        ("xarm7/xarm7_nohand.xml", 7, "attachment_site", None),
        pytest.param("xarm7/xarm7.xml", 7, "link_tcp", ("left_driver_joint", "right_driver_joint"), marks=slow),
        pytest.param("so101/so101_new_calib.xml", 5, "gripperframe", ("gripper",), marks=slow),
        pytest.param("so101/so101_new_calib.urdf", 5, "gripper_frame_link", ("gripper",), marks=slow),
    ],
)  # fmt: skip
def test_robots_of_makers_reach(file: str, count: int, tool: str, gripper: tuple[str, ...] | None) -> None:
    card, _ = new_card(str(ROBOTS / file), "it")
    assert (len(card.joints), card.tool) == (count, tool)
    assert (card.gripper.joints if card.gripper is not None else None) == gripper
    for action in ("ee", "joint"):
        assert solved(card, action, 20) == 1.0


@real
def test_legs_are_refused_by_a_sentence() -> None:
    with pytest.raises(ValueError, match="has 4 limbs"):
        new_card(str(ROBOTS / "go2/go2.urdf"), "go2")


SCENE = """
<mujoco>
  <compiler angle="radian" inertiagrouprange="4 5"/>
  <worldbody>
    <body name="peg" pos="0.4 0.2 0.02"><freejoint/><geom group="4" type="box" size="0.02 0.02 0.02"/></body>
    <body name="base">
      <geom group="4" size="0.05 0.05" type="cylinder"/>
      <body name="upper" pos="0 0 0.3">
        <inertial pos="0.1 0 0" mass="1" diaginertia="0.01 0.01 0.01"/>
        <joint name="pan" axis="0 0 1" range="-2 2"/><joint name="lift" axis="0 1 0" range="-1 1.5"/>
        <geom type="capsule" size="0.03" fromto="0.05 0 0 0.2 0 0" density="9999"/>
        <body name="wrist" pos="0.25 0 0">
          <inertial pos="0.05 0 0" mass="0.3" diaginertia="0.001 0.001 0.001"/>
          <joint name="bend" axis="0 1 0" range="-2 2" frictionloss="10"/>
          <geom type="box" size="0.02 0.08 0.01" pos="0.06 0 0"/>
          <site name="ee_x" pos="0.2 0 0"/><site name="grip_site" pos="0.13 0 0"/>
          <body name="left" pos="0.1 0 0">
            <inertial pos="0.03 0 0" mass="0.05" diaginertia="0.0001 0.0001 0.0001"/>
            <joint name="left" type="slide" axis="0 1 0" range="0.02 0.06" frictionloss="30"/>
            <geom type="box" size="0.03 0.005 0.01" pos="0.03 0 0"/>
          </body>
          <body name="right" pos="0.1 0 0">
            <inertial pos="0.03 0 0" mass="0.05" diaginertia="0.0001 0.0001 0.0001"/>
            <joint name="right" type="slide" axis="0 1 0" range="-0.06 -0.02" frictionloss="30"/>
            <geom type="box" size="0.03 0.005 0.01" pos="0.03 0 0"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="bend" kp="20" kv="2"/><position joint="left" kp="200"/><position joint="right" kp="200"/>
  </actuator>
  <keyframe><key name="home" qpos="0.4 0.2 0.02 1 0 0 0 0 0.5 0 0.02 -0.02"/></keyframe>
</mujoco>
"""


def test_a_scene_gives_the_card_of_its_arm_and_fingers_open_towards_opposite_ends(tmp_path: Path) -> None:
    (tmp_path / "scene.xml").write_text(SCENE)
    card, notes = new_card(str(tmp_path / "scene.xml"), "scene")
    assert card.tool == "grip_site"
    assert any("objects of the scene are left out: peg" in note for note in notes)
    assert [joint.name for joint in card.joints] == ["pan", "lift", "bend"]
    assert card.gripper is not None
    assert (card.gripper.open, card.gripper.closed) == ((0.06, -0.06), (0.02, -0.02))
    assert card.gripper.kp * 0.04 * 0.05 >= 30.0  # friction is overcome after a twentieth of the way
    assert card.joints[2].kp * 0.01 >= 10.0  # and that of a joint at .01 rad, not at the half of one as in the file


def test_what_tasks_add_weighs_something_and_the_arm_what_its_file_says(tmp_path: Path) -> None:
    (tmp_path / "scene.xml").write_text(SCENE)
    spec = load(tmp_path / "scene.xml").spec
    cube = spec.worldbody.add_body(name="cube")
    cube.add_freejoint()
    cube.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.02] * 3, mass=0.06)
    model = spec.compile()
    assert float(model.body("cube").mass[0]) == pytest.approx(0.06)
    assert float(model.body("upper").mass[0]) == pytest.approx(1.0)


def test_springs_on_light_links_get_armature_for_the_time_step() -> None:
    spec = mujoco.MjSpec.from_string(
        '<mujoco><option timestep="0.005"/><worldbody>'
        '<body><joint name="light"/><inertial pos="0 0 0" mass="0.01" diaginertia="1e-6 1e-6 1e-6"/></body>'
        '<body><joint name="heavy" stiffness="4"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>'
        '</worldbody><tendon><fixed stiffness="0.4"><joint joint="light" coef="-3"/></fixed></tendon></mujoco>'
    )
    calm_springs(spec)
    assert spec.joint("light").armature == pytest.approx(0.4 * 9 * 0.005**2 - 1e-6)
    assert spec.joint("heavy").armature == 0.0


def test_a_single_jaw_at_the_end_is_the_gripper_of_an_arm_and_no_joint_of_it(tmp_path: Path) -> None:
    chain = "".join(
        f'<body name="{name}" pos="0 0 .1"><joint name="{name}" axis="{axis}" range="-1 1"/><geom size=".01" mass="1"/>'
        for name, axis in zip(("pan", "lift", "elbow", "wrist", "moving_jaw"), ("0 0 1", *["0 1 0"] * 4))
    )
    (tmp_path / "arm.xml").write_text(f"<mujoco><worldbody>{chain}{'</body>' * 5}</worldbody></mujoco>")
    card = new_card(str(tmp_path / "arm.xml"), "arm")[0]
    assert (card.tool, len(card.joints)) == ("wrist", 4)
    assert card.gripper is not None
    assert card.gripper.joints == ("moving_jaw",)


def test_a_hand_whose_shapes_are_drawn_only_touches_with_them(tmp_path: Path) -> None:
    drawn = SCENE.replace('pos="0.03 0 0"/>', 'pos="0.03 0 0" contype="0" conaffinity="0"/>').replace(
        'pos="0.06 0 0"/>', 'pos="0.06 0 0" contype="0" conaffinity="0"/>'
    )
    (tmp_path / "scene.xml").write_text(drawn)
    spec = load(tmp_path / "scene.xml", hand="bend").spec
    assert all(geom.contype for name in ("wrist", "left", "right") for geom in spec.body(name).geoms)
    assert not any(geom.contype for geom in load(tmp_path / "scene.xml").spec.body("left").geoms)


def test_hundreds_of_contacts_are_named_in_about_the_time_that_finding_them_takes() -> None:
    box = '<geom type="box" size=".1 .1 .1"/>'
    hubs = "".join(f'<body name="b{i}"><joint name="j{i}" axis="0 0 1"/>{box * 4}</body>' for i in range(4))
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{hubs}</worldbody></mujoco>")
    probe = RobotProbe(model, [0, 1, 2, 3], "b3")
    spent, found = {"place": 0.0, "touching": 0.0}, None
    for _ in range(100):
        joints = probe.random.uniform(-1.0, 1.0, 4)
        for step in (lambda joints=joints: probe.place(joints), probe.touching):
            begun = time.thread_time()
            found = step()
            spent["touching" if found else "place"] += time.thread_time() - begun
    assert probe.data.ncon > 300
    assert found == {(f"b{i}", f"b{j}") for j in range(4) for i in range(j)}
    assert spent["touching"] < 2.0 * spent["place"], spent


def test_short_links_that_touch_in_every_pose_are_free_of_what_touches_at_zero(tmp_path: Path) -> None:
    """The third link meets a plate of the first where it points ahead, and a plate of the base where it does not."""
    (tmp_path / "arm.xml").write_text("""
    <mujoco><compiler angle="radian"/><worldbody><body name="base" pos="0 0 0.3">
      <geom type="box" size="0.02 0.4 0.02" pos="-0.1 0 0.2"/><geom type="box" size="0.3 0.02 0.02" pos="-0.2 0.2 0.2"/>
      <geom type="box" size="0.3 0.02 0.02" pos="-0.2 -0.2 0.2"/>
      <body name="one"><joint name="a" axis="0 0 1" range="-0.05 0.05"/>
        <geom type="box" size="0.02 0.4 0.02" pos="0.2 0 0.2"/>
        <body name="two" pos="0 0 0.05"><joint name="b" axis="0 0 1" range="-3.1 3.1"/><geom size="0.02"/>
          <body name="three" pos="0 0 0.15"><joint name="c" axis="0 1 0" range="-0.05 0.05"/>
            <geom type="capsule" size="0.02" fromto="0.03 0 0 0.4 0 0"/><site name="tcp" pos="0.42 0 0"/>
    </body></body></body></body></worldbody></mujoco>""")
    card, _ = new_card(str(tmp_path / "arm.xml"), "arm")
    assert card.ignore == (("one", "three"),)
    assert abs(card.home[1]) < 2.0
