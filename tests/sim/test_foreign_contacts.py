"""What touches in models of others: pairs, solids of no size, links without mass; the effort of heavy arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from robot_rl.sim.hand_grip import GRASP, Grip, HandTrial
from robot_rl.sim.robot_model import calm_springs, load
from robot_rl.types.card import GripperCard, simulated_effort

SMALL = Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf"

PAIRS = """
<mujoco>
  <worldbody>
    <body name="trunk" pos="0 0 0.6">
      <freejoint/>
      <geom name="trunk" type="box" size="0.1 0.1 0.1" mass="5" contype="0" conaffinity="0"/>
      <body name="foot" pos="0 0 -0.2">
        <joint name="knee" range="-1 1"/>
        <geom name="foot" type="box" size="0.05 0.03 0.02" mass="1" contype="0" conaffinity="0"/>
        <geom name="shin" type="capsule" size="0.02 0.1" mass="1" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <contact><pair geom1="foot" geom2="floor"/><pair geom1="trunk" geom2="shin"/></contact>
  <sensor>
    <contact name="found" geom1="foot" geom2="floor" data="found"/><jointpos name="knee" joint="knee"/>
  </sensor>
</mujoco>
"""


def test_feet_that_touch_a_floor_by_a_pair_alone_touch_every_floor(tmp_path: Path) -> None:
    """The floor is in a scene that includes this file, or in none: MuJoCo cannot read the file itself."""
    (tmp_path / "robot.xml").write_text(PAIRS)
    with pytest.raises(ValueError, match="floor"):
        mujoco.MjSpec.from_file(str(tmp_path / "robot.xml")).compile()
    spec = load(tmp_path / "robot.xml").spec
    touching = {name: bool(spec.geom(name).contype) for name in ("trunk", "foot", "shin")}
    assert touching == {"trunk": False, "foot": True, "shin": False}  # of pairs within a robot nothing changes
    assert [(pair.geomname1, pair.geomname2) for pair in spec.pairs] == [("trunk", "shin")]
    assert [sensor.name for sensor in spec.sensors] == ["knee"]


def test_absent_height_fields_leave_no_bones_in_the_world(tmp_path: Path) -> None:
    ground = '<asset><hfield name="hills" file="gone.png" size="1 1 1 1"/></asset>'
    hills = '<geom name="floor" type="hfield" hfield="hills"/>'
    text = PAIRS.replace("<worldbody>", f"{ground}<worldbody>{hills}", 1)
    (tmp_path / "scene.xml").write_text(text)
    made = load(tmp_path / "scene.xml")
    assert [note.split(",")[0] for note in made.notes] == ["1 height fields are absent or of a form that is not read"]
    assert not list(made.spec.worldbody.geoms)


@pytest.mark.parametrize(
    ("solid", "kind"),
    [('<box size="0.1 0 0.1"/>', "box"), ('<cylinder radius="0.0" length="1"/>', "cylinder")],
)
def test_solids_of_no_size_are_left_out(solid: str, kind: str, tmp_path: Path) -> None:
    head, link, rest = SMALL.read_text().partition('<link name="base_link">')
    shape = f"<visual><geometry>{solid}</geometry></visual>"
    (tmp_path / "arm.urdf").write_text(head + link + shape + rest)
    assert f"visual {kind} of size 0" in load(tmp_path / "arm.urdf").notes[0]


def test_a_link_that_is_only_seen_gets_a_gram(tmp_path: Path) -> None:
    (tmp_path / "arm.urdf").write_text(
        "<robot name='r'><link name='base'/><link name='arm'><visual><geometry><box size='.1 .1 .1'/></geometry>"
        "</visual></link><joint name='pan' type='continuous'><parent link='base'/><child link='arm'/></joint></robot>"
    )
    made = load(tmp_path / "arm.urdf")
    assert made.notes == ["link arm: moves and has no mass; 1 g are put in"]
    assert made.spec.compile().body("arm").mass[0] == pytest.approx(0.001)


def test_a_heavy_joint_whose_effort_nobody_states_can_accelerate() -> None:
    inertia = 100.0  # kg m2, of a shoulder that carries a quarter of a tonne; kp = I 25^2
    assert simulated_effort("?", inertia * 625.0) == pytest.approx(1.5 * 10.0 * inertia)
    assert simulated_effort("?", 0.01 * 625.0) == 50.0
    assert simulated_effort(12.0, inertia * 625.0) == 12.0


def _hand(*, two: bool) -> tuple[Any, GripperCard]:
    """A jaw that turns by 100 degrees against a fixed one, or two fingers with a weak servo each; a goal that is no
    part of either."""
    jaw = (
        '<body name="jaw" pos="0 -0.02 0"><joint name="jaw" axis="1 0 0" range="0 1.75"/>'
        '<geom type="box" size="0.01 0.004 0.07" pos="0 0.016 0.09" mass="0.02"/></body>'
        '<geom type="box" size="0.01 0.004 0.07" pos="0 0.008 0.09" mass="0.02"/>'
    )
    finger = (
        '<body name="{0}"><joint name="{0}" type="slide" axis="0 {1} 0" range="0 0.04"/>'
        '<geom type="box" size="0.01 0.005 0.02" pos="0 {2} 0.05" mass="0.05"/></body>'
    )
    fingers = finger.format("left", 1, -0.045) + finger.format("right", -1, 0.045)
    names = ("left", "right") if two else ("jaw",)
    servos = "".join(
        f'<position name="{name}" joint="{name}" kp="{200 if two else 20}" kv="1" forcerange="-10 10"/>'
        for name in names
    )
    spec = mujoco.MjSpec.from_string(
        '<mujoco><compiler angle="radian"/><option timestep="0.005" integrator="implicitfast" impratio="4"/>'
        "<worldbody>"
        '<body name="goal" mocap="true"><geom size="0.01" contype="0" conaffinity="0"/></body><body name="hand" '
        f'pos="0 0 1"><geom size="0.01" mass="1"/><site name="{GRASP}" pos="0 0 0"/>{fingers if two else jaw}</body>'
        '<body name="cube" pos="100 0 0"><freejoint name="cube"/><geom name="cube" type="box" size="0.02 0.02 0.02" '
        'mass="0.06" priority="1" friction="1.5 0.02 0.0001" solref="0.01 1" solimp="0.95 0.99 0.001"/></body>'
        f"</worldbody><actuator>{servos}</actuator></mujoco>"
    )
    if two:
        return spec, GripperCard(joints=names, open=(0.0, 0.0), closed=(0.04, 0.04), effort=10.0, kp=200.0, kd=20.0)
    return spec, GripperCard(joints=names, open=(1.74,), closed=(0.0,), effort=10.0, kp=20.0, kd=1.0)


def test_a_cube_is_tried_above_a_slab_whatever_else_a_scene_moves() -> None:
    trial = HandTrial(*_hand(two=True), {}, 0.02)
    data = trial._settle(1.0)
    trial._put(data, 0.0, 0.05)
    mujoco.mj_forward(trial._model, data)
    slab, cube = (data.xpos[trial._model.body(name).id] for name in ("robot_rl_slab", "cube"))
    np.testing.assert_allclose(slab - cube, (0.0, 0.0, 0.02 + 0.0105), atol=1e-9)  # along the frame's z, 1 cm thick
    np.testing.assert_array_equal(data.xpos[trial._model.body("goal").id], 0.0)


def test_a_jaw_that_swings_as_it_closes_does_not_reach_below_the_cube_into_the_floor() -> None:
    grip = HandTrial(*_hand(two=False), {}, 0.02).find()
    assert isinstance(grip, Grip), grip
    turned = 1.74 * grip.held  # corners of its end (0.02, 0.16) and (0.012, 0.16) from its hinge, z away from the hand
    reach = max(0.16 * np.cos(turned) + y * np.sin(turned) for y in (0.012, 0.02))
    assert grip.place[2] + 0.02 > reach - 1e-3
    assert -0.02 - 0.04 < grip.place[1] < 0.01  # between the jaw's hinge side and the fixed jaw


def test_fingers_with_a_servo_each_press_within_their_effort() -> None:
    """Beyond it both push alike wherever the cube is: it slides to one side with them."""
    grip = HandTrial(*_hand(two=True), {}, 0.02).find()
    assert isinstance(grip, Grip), grip
    pressed = grip.gain * 200.0 * grip.held * 0.04
    assert pressed < 10.0


def test_links_that_hang_on_a_tendon_s_spring_come_to_rest() -> None:
    """Fingers of robosuite's Robotiq 85: nothing damps them in the file, and they threw cubes that they closed on."""

    def swing(damped: bool) -> float:
        spec = mujoco.MjSpec.from_string(
            "<mujoco><option timestep='0.005' gravity='0 0 0'/><worldbody><body name='knuckle'><joint name='a'/>"
            "<geom size='0.02' mass='0.03'/></body><body name='finger'><joint name='b'/><geom size='0.02' mass='0.02'/>"
            "</body></worldbody><tendon><fixed name='tie' stiffness='0.4' springlength='0'><joint joint='a' coef='1'/>"
            "<joint joint='b' coef='-3'/></fixed></tendon></mujoco>"
        )
        calm_springs(spec)
        if not damped:
            spec.tendons[0].damping = [0.0, 0.0, 0.0]
        model = spec.compile()
        data = mujoco.MjData(model)
        data.qpos[:] = 0.0, 0.3
        mujoco.mj_step(model, data, 200)
        found = []
        for _ in range(50):
            mujoco.mj_step(model, data)
            found.append(abs(data.qpos[0] - 3.0 * data.qpos[1]))
        return max(found)

    assert swing(damped=False) > 0.3  # of .9 at first
    assert swing(damped=True) < 0.01
