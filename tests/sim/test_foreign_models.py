"""Models from packages of simulations, which hold more than a robot: scenes, programs that move hands, assets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robot_rl.sim.card_arm import CardArm
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.legs_card import new_legs_card
from robot_rl.sim.legs_scene import scene
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.robot_model import digest, load, mujoco
from robot_rl.sim.worlds.reach import Reach

SMALL = Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf"
CELL = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="mocap" mocap="true" pos="0.3 0 0.4"><geom size="0.01" contype="0" conaffinity="0"/></body>
    <body name="base">
      <joint name="drive" type="slide" axis="1 0 0" damping="1e11"/>
      <geom type="box" size="0.05 0.05 0.02" pos="0 0 0.05"/>
      <body name="column" pos="0 0 0.1">
        <joint name="pan" axis="0 0 1" range="-2 2" limited="true"/>
        <geom type="capsule" fromto="0 0 0.02 0 0 0.1" size="0.02"/>
        <body name="upper" pos="0 0 0.15">
          <joint name="lift" axis="0 1 0" range="-2 1.2" limited="true" frictionloss="60"/>
          <geom type="capsule" fromto="0.05 0 0 0.2 0 0" size="0.02"/>
          <body name="lower" pos="0.25 0 0">
            <joint name="bend" axis="0 1 0" range="-2 2" limited="true"/>
            <geom type="capsule" fromto="0.05 0 0 0.15 0 0" size="0.02"/>
            <site name="end_effector" pos="0.22 0 0"/>
            <body name="left" pos="0.18 0.03 0">
              <joint name="left" type="slide" axis="0 1 0" range="0 0.03" limited="true"/>
              <geom type="box" size="0.03 0.005 0.01" pos="0.03 0 0"/>
              <site name="left_end_effector" pos="0.05 0 0"/>
            </body>
            <body name="right" pos="0.18 -0.03 0">
              <joint name="right" type="slide" axis="0 1 0" range="-0.03 0" limited="true"/>
              <geom type="box" size="0.03 0.005 0.01" pos="0.03 0 0"/>
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <equality><weld body1="mocap" body2="lower"/></equality>
  <sensor><jointpos joint="drive"/></sensor>
  <actuator><position joint="left" kp="200"/><position joint="right" kp="200"/></actuator>
  <keyframe><key name="home" qpos="0 0 0.4 0.8 0 0" mpos="0 0 1"/></keyframe>
</mujoco>
"""


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    (tmp_path / "cell.xml").write_text(CELL)
    return tmp_path / "cell.xml"


def test_an_arm_that_a_program_pulls_by_its_hand_moves_by_its_own_joints(cell: Path) -> None:
    card, notes = new_card(str(cell), "cell")
    assert notes[0] == "objects of the scene are left out: mocap"
    assert [joint.name for joint in card.joints] == ["pan", "lift", "bend"]  # not what its damping holds
    assert card.tool == "end_effector"  # none that is on a finger
    assert card.gripper is not None
    assert card.home == pytest.approx((0.0, 0.4, 0.8))
    env = make(20, 0, world=Reach(robot=card), options=EngineOptions(num_threads=1))
    obs, info = env.reset()
    for _ in range(env.world.episode_steps):
        obs, _, _, _, info = env.step(env.expert(obs))
    env.close()
    assert info["success"].mean() > 0.9  # the servo of a joint whose effort nobody states overcomes its friction


def test_friction_above_the_assumed_effort_raises_it_and_no_smaller_one_does(cell: Path) -> None:
    cell.write_text(CELL.replace('range="0 0.03"', 'range="0 0.03" frictionloss="30"'))
    card, _ = new_card(str(cell), "cell")
    model = mujoco.MjModel.from_xml_string(CardArm(card, action="joint", control_hz=10.0).xml)
    assert [float(model.actuator(name).forcerange[1]) for name in ("pan", "lift", "left")] == [50.0, 180.0, 50.0]


def test_a_base_without_a_tool_is_where_an_arm_begins(cell: Path) -> None:
    assert new_legs_card(str(cell), "cell", base="column") is None
    card, _ = new_card(str(cell), "cell", base="column")
    assert card.base == "column"


def test_a_base_that_drives_about_stands_still_and_a_rail_does_not(cell: Path) -> None:
    """ManiSkill's Fetch: two slides of 40 m and a turn carry a column, and with them tasks lay metres away."""
    drive = '<joint name="drive" type="slide" axis="1 0 0" damping="1e11"/>'
    x, y = (
        f'<joint name="{n}" type="slide" axis="{axis}" range="-20 20" limited="true"/>'
        for n, axis in (("x", "1 0 0"), ("y", "0 1 0"))
    )
    motors = '<actuator><velocity joint="x" kv="9"/><velocity joint="turn" kv="9"/>'
    turn = CELL.replace(drive, f'{x}{y}<joint name="turn" axis="0 0 1"/>').replace("<actuator>", motors)
    cell.write_text(turn.replace('joint="drive"', 'joint="x"').replace('0 0 0.4 0.8 0 0"', '0 0 0 0 0.4 0.8 0 0"'))
    card, notes = new_card(str(cell), "cell")
    assert [joint.name for joint in card.joints] == ["pan", "lift", "bend"]
    assert card.base == "base"
    assert "what drives the base stands still: the arm begins at base (base=<body> chooses another)" in notes
    env = make(4, 0, world=Reach(robot=card), options=EngineOptions(num_threads=1))
    obs, info = env.reset()
    for _ in range(env.world.episode_steps):
        obs, _, _, _, info = env.step(env.expert(obs))
    assert info["success"].all()
    cell.write_text(CELL.replace(drive, x).replace('joint="drive"', 'joint="x"'))
    assert new_card(str(cell), "cell")[0].joints[0].name == "x"


@pytest.mark.parametrize("name", ["goal", "cube", "peg"])
def test_bodies_and_shapes_that_are_called_as_what_tasks_add_give_way(cell: Path, name: str) -> None:
    text = CELL.replace('"base"', f'"{name}"').replace("<geom ", f'<geom name="{name}" ', 1)
    ties = f'<contact><exclude body1="{name}" body2="column"/></contact>'
    ties += f'<equality><weld body1="{name}" body2="column" active="false"/></equality></mujoco>'
    cell.write_text(text.replace("</mujoco>", ties))
    arm = CardArm(new_card(str(cell), "cell")[0], action="ee", control_hz=10.0)
    spec = mujoco.MjSpec.from_string(arm.xml)
    assert (spec.body("goal").mocap, spec.body(f"own_{name}") is None) == (1, False)


def test_a_hand_of_two_long_fingers_that_point_ahead_stands_on_no_legs(tmp_path: Path) -> None:
    finger = (
        '<body pos="0.1 {y} -0.01"><joint name="a{y}" axis="0 1 0" range="-1 1"/>'
        '<geom size=".01" fromto="0 0 0 .05 0 0" type="capsule"/>'
        '<body pos=".05 0 -.001"><joint name="b{y}" axis="0 1 0" range="-.1 .1"/>'
        '<geom size=".01" fromto="0 0 0 .05 0 0" type="capsule"/></body></body>'
    )
    fingers = finger.format(y=0.05) + finger.format(y=-0.05)
    (tmp_path / "hand.xml").write_text(
        '<mujoco><compiler autolimits="true" angle="radian"/><worldbody><body name="palm" pos="0 0 1"><freejoint/>'
        f'<geom type="box" size=".1 .1 .1"/>{fingers}</body></worldbody></mujoco>'
    )
    with pytest.raises(ValueError, match=r"trunk palm level, z up, .* stands on 0 limbs"):
        new_legs_card(str(tmp_path / "hand.xml"), "hand")


@pytest.mark.parametrize("place", ["2 0 0.4", "2 0 -1"])
def test_furniture_of_a_scene_is_no_part_of_a_robot_on_legs(place: str, tmp_path: Path) -> None:
    bone = '<geom type="capsule" fromto="0 0 0 0 0 -.2" size=".02" mass="{0}"/>'
    leg = (
        f'<body pos="{{0}} {{1}} 0"><joint name="hip{{0}}{{1}}" axis="0 1 0" range="-1 1"/>{bone.format(0.5)}'
        f'<body pos="0 0 -.2"><joint name="knee{{0}}{{1}}" axis="0 1 0" range="-2 0"/>{bone.format(0.3)}</body></body>'
    )
    legs = "".join(leg.format(x, y) for x in (0.2, -0.2) for y in (0.1, -0.1))
    trunk = f'<body name="trunk" pos="0 0 .5"><freejoint/><geom type="box" size=".25 .1 .05" mass="6"/>{legs}</body>'
    table = f'<body name="table" pos="{place}"><geom type="box" size=".3 .3 .02"/></body>'
    cards = []
    for name, bodies in (("alone", trunk), ("scene", table + trunk)):
        path = tmp_path / f"{name}.xml"
        path.write_text(f'<mujoco><compiler angle="radian"/><worldbody>{bodies}</worldbody></mujoco>')
        found = new_legs_card(str(path), name)
        assert found is not None
        cards.append(found[0])
    assert cards[0].joints == cards[1].joints
    assert cards[0].home == cards[1].home
    np.testing.assert_array_equal(scene(cards[0]).stand, scene(cards[1]).stand)


def test_height_fields_are_found_and_absent_ones_skins_and_sides_of_the_sky_left_out(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets/hill.bin").write_bytes(np.array([2, 2], "i4").tobytes() + np.ones(4, "f4").tobytes())
    fields = "".join(f'<hfield name="{name}" file="{name}.bin" size="1 1 1 1"/>' for name in ("hill", "gone"))
    (tmp_path / "arm.xml").write_text(
        f"<mujoco><compiler meshdir='assets'/><asset>{fields}<skin file='a.skn'/><texture type='skybox' "
        "fileup='up.png'/></asset><worldbody><geom type='hfield' hfield='hill'/><geom type='hfield' hfield='gone'/>"
        "<body><joint/><geom size='.1'/></body></worldbody></mujoco>"
    )
    made = load(tmp_path / "arm.xml")
    assert [note.rpartition(" ")[2] for note in made.notes] == ["gone.bin", "a.skn", "cube's"]
    spec: Any = made.spec
    assert [len(list(items)) for items in (spec.hfields, spec.geoms, spec.skins, spec.textures)] == [1, 2, 0, 0]
    spec.compile()


def test_shapes_of_a_urdf_that_mujoco_does_not_take_are_left_out(tmp_path: Path) -> None:
    faces = 200_001  # of a camera's housing, say
    (tmp_path / "fine.stl").write_bytes(bytes(80) + faces.to_bytes(4, "little") + bytes(50 * faces))
    shapes = ('<sphere radius="0.0"/>', '<mesh filename="fine.stl"/>')
    text = "".join(f"<visual><geometry>{shape}</geometry></visual>" for shape in shapes)
    head, link, rest = SMALL.read_text().partition('<link name="base_link">')
    (tmp_path / "arm.urdf").write_text(head + link + text + rest)
    made = load(tmp_path / "arm.urdf")
    assert made.notes[0].startswith(
        "4 meshes are absent or of a form that is not read, and left out: visual sphere of size 0"
    )
    assert made.spec.compile().ngeom == 8


def test_lights_that_look_at_objects_of_a_scene_are_left_out_with_them(tmp_path: Path) -> None:
    light, peg = '<light mode="targetbody" target="peg"/>', '<body name="peg"><freejoint/><geom size=".01"/></body>'
    (tmp_path / "scene.xml").write_text(CELL.replace("<worldbody>", f"<worldbody>{light}{peg}"))
    spec = load(tmp_path / "scene.xml").spec
    assert not list(spec.lights)
    spec.compile()


def arm_of(path: Path) -> Any:
    return mujoco.MjModel.from_xml_string(CardArm(new_card(str(path), "cell")[0], action="joint", control_hz=10.0).xml)


def test_limits_of_a_file_in_degrees_are_those_of_its_card(cell: Path) -> None:
    ends = {"-2 2": "-115 115", "-2 1.2": "-115 69", "0 0.03": "0 0.03"}
    text = CELL.replace('angle="radian"', 'angle="degree"')
    for radians, degrees in ends.items():
        text = text.replace(f'range="{radians}"', f'range="{degrees}"')
    cell.write_text(text)
    model = arm_of(cell)
    assert model.joint("pan").range == pytest.approx(np.deg2rad([-115, 115]), abs=1e-5)
    assert model.joint("lift").range == pytest.approx(np.deg2rad([-115, 69]), abs=1e-5)
    assert model.joint("left").range == pytest.approx([0.0, 0.03])


def test_classes_of_a_file_say_nothing_of_what_tasks_add(cell: Path) -> None:
    classes = '<geom contype="0" conaffinity="0"/><mesh scale="1e-3 1e-3 1e-3"/><motor gear="100"/>'
    cell.write_text(CELL.replace("<worldbody>", f"<default>{classes}</default><worldbody>"))
    model = arm_of(cell)
    assert model.actuator_gear[:, 0].tolist() == [1.0] * model.nu
    assert model.geom_contype[model.body("robot_rl_floor").geomadr[0]] == 1
    assert model.geom_contype[model.body("lower").geomadr[0]] == 0  # as its file says
    mesh = load(cell).spec.add_mesh(name="block")
    assert mesh.scale.tolist() == [1.0, 1.0, 1.0]


def test_what_stands_in_a_scene_without_weight_and_contacts_has_both_in_tasks(cell: Path) -> None:
    option = '<option gravity="0 0 0"><flag contact="disable" gravity="disable"/></option>'
    cell.write_text(CELL.replace("<worldbody>", f"{option}<worldbody>"))
    model = arm_of(cell)
    assert (model.opt.gravity.tolist(), model.opt.disableflags) == ([0.0, 0.0, -9.81], 0)


def test_bodies_of_a_file_that_joins_those_without_joints_keep_their_names(cell: Path) -> None:
    cell.write_text(CELL.replace('angle="radian"', 'angle="radian" fusestatic="true"'))
    assert arm_of(cell).body("robot_rl_floor").id > 0


def test_files_are_where_the_compiler_of_their_own_model_looks_for_them(tmp_path: Path) -> None:
    (tmp_path / "meshes").mkdir()
    corners = "".join(f"v {corner}\n" for corner in ("0 0 0", "1 0 0", "0 1 0", "0 0 1"))
    (tmp_path / "meshes/part.obj").write_text(f"{corners}f 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n")
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "wood.png")
    texture = '<texture name="wood" type="2d" file="wood.png"/>'
    part = (
        '<mujoco><compiler meshdir="meshes" strippath="{}"/><asset><mesh name="part" file="{}part.obj"/>{}</asset>'
        '<worldbody><body name="part"><joint range="-90 90"/><geom type="mesh" mesh="part"/></body></worldbody>'
        "</mujoco>"
    )
    (tmp_path / "part.xml").write_text(part.format("false", "", texture))
    (tmp_path / "stripped.xml").write_text(part.format("true", "of/its/maker/", ""))
    (tmp_path / "whole.xml").write_text(
        '<mujoco><compiler angle="radian"/><asset><model name="part" file="part.xml"/></asset><worldbody><body>'
        '<joint range="-1 1"/><geom size="0.1"/><attach model="part" body="part" prefix="one_"/></body></worldbody>'
        "</mujoco>"
    )
    for name, textures in (("part", 1), ("stripped", 0), ("whole", 1)):
        path = tmp_path / f"{name}.xml"
        made = load(path)
        model = made.spec.compile()
        assert (made.notes, model.nmesh, model.ntex) == ([], 1, textures)
        before = digest(path)
        (tmp_path / "meshes/part.obj").write_text((tmp_path / "meshes/part.obj").read_text() + "# changed\n")
        assert digest(path) != before


def test_moves_of_a_joint_that_slides_are_metres(cell: Path) -> None:
    cell.write_text(CELL.replace('"pan" axis="0 0 1" range="-2 2"', '"pan" type="slide" axis="0 1 0" range="-.2 .2"'))
    arm = CardArm(new_card(str(cell), "cell")[0], action="joint", control_hz=10.0)
    assert arm.action_units == ("m", "rad", "rad")


def test_a_model_that_is_no_xml_is_named(tmp_path: Path) -> None:
    (tmp_path / "arm.xml").write_text("<mujoco>")
    with pytest.raises(ValueError, match=r"arm\.xml is no XML"):
        digest(tmp_path / "arm.xml")


DRAKE = """
<robot name="drawn">
  <link name="base"><collision><geometry><box size="0.1 0.1 0.1"/></geometry></collision></link>
  <link name="upper">
    <inertial><mass value="2"/></inertial>
    <inertial><mass value="3"/></inertial>
    <collision>
      <origin xyz="0 0 0.2"/><geometry><cylinder radius="0.02" length="0.3"/></geometry>
      <drake:proximity_properties><drake:mu_static value="0.5"/></drake:proximity_properties>
    </collision>
  </link>
  <link name="lower">
    <inertial><mass value="1"/><inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/></inertial>
    <collision><origin xyz="0 0 0.2"/><geometry><cylinder radius="0.02" length="0.3"/></geometry></collision>
  </link>
  <joint name="lift" type="revolute">
    <parent link="base"/><child link="upper"/><origin xyz="0 0 0.1"/><axis xyz="0 1 0"/>
    <limit lower="-2" upper="2" velocity="3" effort="40" drake:acceleration="2.5"/>
  </joint>
  <joint name="bend" type="revolute">
    <parent link="upper"/><child link="lower"/><origin xyz="0 0 0.4"/><axis xyz="0 1 0"/>
    <limit lower="-2" upper="2" velocity="3" effort="40" acceleration="5" deceleration="8" jerk="90"/>
  </joint>
</robot>
"""


def test_limits_of_drake_and_of_urdf_1_2_are_those_of_the_card(tmp_path: Path) -> None:
    """airo-models' UR5e and UR3e write `drake:acceleration` without saying what drake is."""
    (tmp_path / "drawn.urdf").write_text(DRAKE)
    card, notes = new_card(str(tmp_path / "drawn.urdf"), "drawn")
    said = [(joint.acceleration, joint.stop_acceleration, joint.jerk) for joint in card.joints]
    assert said == [(2.5, None, None), (5.0, 8.0, 90.0)]
    assert "link upper: more than one <inertial>; the first counts, as in ROS" in notes
    assert "link upper: a mass and no inertia; that of a ball of 50 mm is put in" in notes
    model = load(tmp_path / "drawn.urdf").spec.compile()
    assert model.body("upper").mass[0] == 2.0
    assert model.body("upper").inertia == pytest.approx(0.4 * 2.0 * 0.05**2)


def test_an_inertia_of_a_drawing_in_millimetres_is_doubted_and_a_large_link_s_own_is_not(tmp_path: Path) -> None:
    far = DRAKE.replace(
        'ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"',
        'ixx="9e3" ixy="0" ixz="0" iyy="9e3" iyz="0" izz="1e3"',
    )
    (tmp_path / "drawn.urdf").write_text(far)
    read = load(tmp_path / "drawn.urdf")
    (said,) = [note for note in read.notes if "inertia of 9e+03" in note]
    assert "link lower" in said
    assert "95 m away, and the link reaches 0.35 m; 0.031 is taken" in said  # sqrt(9000 / 1); 1 kg at half its reach
    found = sorted(read.spec.compile().body("lower").inertia)
    assert found == pytest.approx([0.031 / 9, 0.031, 0.031], rel=0.03)
    (tmp_path / "drawn.urdf").write_text(far.replace('length="0.3"', 'length="60"'))
    assert not [note for note in load(tmp_path / "drawn.urdf").notes if "is taken" in note]


def test_an_inertia_without_a_mass_is_left_as_it_is(cell: Path) -> None:
    post = '<inertial pos="0 0 0" mass="0" diaginertia="2 2 2"/><geom size="0.01"/>'
    still = f'<body name="column" pos="0 0 0.1"><body name="post">{post}</body>'
    cell.write_text(CELL.replace('<body name="column" pos="0 0 0.1">', still))
    assert not [note for note in load(cell).notes if "is taken" in note]


def test_a_xacro_that_does_not_say_what_xacro_is_is_no_urdf(tmp_path: Path) -> None:
    (tmp_path / "arm.urdf").write_text('<robot name="it"><xacro:include filename="a.xacro"/><link name="a"/></robot>')
    with pytest.raises(ValueError, match="is a xacro"):
        load(tmp_path / "arm.urdf")


def test_the_wheel_of_a_grippers_motor_is_no_finger(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf").read_text()
    wheel = (
        '<link name="prop"><inertial><mass value="0.01"/><inertia ixx="1e-5" iyy="1e-5" izz="1e-5"/></inertial></link>'
    )
    wheel += '<joint name="prop" type="continuous"><parent link="hand"/><child link="prop"/><axis xyz="1 0 0"/></joint>'
    (tmp_path / "arm.urdf").write_text(
        text.replace('<joint name="finger_left"', f'{wheel}<joint name="finger_left"', 1)
    )
    gripper = new_card(str(tmp_path / "arm.urdf"), "arm")[0].gripper
    assert gripper is not None
    assert (gripper.joints, gripper.open, gripper.closed) == (("finger_left",), (0.04,), (0.0,))
