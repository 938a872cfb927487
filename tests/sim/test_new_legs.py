"""Robots on legs that nobody has met: found by their model, with a pose in which they stand by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.legs_card import new_legs_card
from robot_rl.sim.legs_scene import scene
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.robot_model import mujoco
from robot_rl.sim.worlds.walk import Walk
from robot_rl.types.card import Card

BOX = '<origin xyz="0 0 {0}"/><geometry><box size="{1}"/></geometry>'
SOLID = '<inertial><origin xyz="0 0 {0}"/><mass value="{1}"/><inertia ixx="{2}" iyy="{2}" izz="{2}"/></inertial>'


def link(name: str, height: float, size: str, mass: float) -> str:
    box = BOX.format(height, size)
    inertial = SOLID.format(height, mass, 0.01 * mass)
    return f'<link name="{name}">{inertial}<visual>{box}</visual><collision>{box}</collision></link>'


def joint(parent: str, child: str, place: str, axis: str, effort: float) -> str:
    return (
        f'<joint name="{child}_joint" type="revolute"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{place}"/><axis xyz="{axis}"/><limit lower="-2" upper="2" velocity="20" effort="{effort}"/>'
        "</joint>"
    )


def quadruped(folder: Path, *, hips: bool = True, weight: float = 10.0, effort: float = 40.0, extra: str = "") -> str:
    """Path of a URDF of four legs below a root frame; legs have three joints, or two without `hips`."""
    trunk = link("trunk", 0.0, "0.5 0.2 0.1", weight)
    parts = ['<link name="base"/>', trunk, joint("base", "trunk", "0 0 0", "0 0 1", 1).replace("revolute", "fixed")]
    for x, front in ((0.2, "f"), (-0.2, "r")):
        for y, side in ((0.15, "l"), (-0.15, "r")):
            name, above = front + side, "trunk"
            if hips:
                above = f"{name}_hip"
                parts += [link(above, 0.0, "0.05 0.05 0.05", 0.5), joint("trunk", above, f"{x} {y} 0", "1 0 0", effort)]
            place = "0 0 0" if hips else f"{x} {y} 0"
            parts += [
                link(f"{name}_thigh", -0.1, "0.03 0.03 0.16", 0.7),
                link(f"{name}_shank", -0.1, "0.02 0.02 0.2", 0.2),
            ]
            parts += [joint(above, f"{name}_thigh", place, "0 1 0", effort)]
            parts += [joint(f"{name}_thigh", f"{name}_shank", "0 0 -0.2", "0 1 0", effort)]
    path = folder / "legs.urdf"
    path.write_text(f'<robot name="legs">{"".join(parts)}{extra}</robot>')
    return str(path)


def card_of(path: str) -> Card:
    found = new_legs_card(path, "legs")
    assert found is not None
    return found[0]


def fallen(card: Card) -> bool:
    """Whether any of two copies falls in two seconds in which the policy leaves it alone."""
    env = make(2, 0, world=Walk(robot=card), options=EngineOptions(num_threads=1))
    env.reset()
    ends = [env.step(np.zeros((2, len(card.joints)), np.float32))[2].any() for _ in range(100)]
    env.close()
    return any(ends)


@pytest.mark.parametrize(
    "how",
    [{}, {"hips": False}, {"weight": 60.0, "effort": 80.0}, {"effort": 1000.0}],
    ids=["legs", "two", "heavy", "any"],
)
def test_legs_of_a_urdf_stand_by_themselves(tmp_path: Path, how: dict[str, Any]) -> None:
    card = card_of(quadruped(tmp_path, **how))
    assert card.base == "base"  # the root, to which the trunk is fixed: what moves freely is at the top
    assert len(card.joints) == (8 if how == {"hips": False} else 12)
    assert not fallen(card)


def test_standing_pose_bends_all_knees_one_way_with_the_feet_under_the_hips(tmp_path: Path) -> None:
    home = np.array(card_of(quadruped(tmp_path)).home).reshape(4, 3)
    hip, thigh, knee = home.T
    assert np.abs(hip).max() < 0.01
    assert np.ptp(knee) < 0.01
    # Thigh and shank are 0.2 m: the foot is under the hip where the knee turns back twice as far as the thigh.
    np.testing.assert_allclose(knee, -2.0 * thigh, atol=0.05)
    np.testing.assert_allclose(0.4 * np.cos(thigh), 0.85 * 0.4, atol=0.01)


def test_gains_are_those_of_a_rule_and_nothing_is_deployed_with_them(tmp_path: Path) -> None:
    card = card_of(quadruped(tmp_path))
    assert card.legs is not None
    assert "legs.gains" in card.open_keys()
    mass = 10.0 + 4 * (0.5 + 0.7 + 0.2)
    assert card.joints[1].kp == pytest.approx(9.81 * mass * 0.85 * 0.4, rel=0.05)  # its weight times its height
    assert card.joints[1].kd == pytest.approx(card.joints[1].kp / 40.0, rel=0.01)


def test_joints_that_the_card_leaves_out_are_held(tmp_path: Path) -> None:
    arm = link("arm", 0.1, "0.03 0.03 0.2", 0.3) + joint("trunk", "arm", "0.2 0 0.1", "0 1 0", 5.0)
    card = card_of(quadruped(tmp_path, extra=arm))
    assert "arm_joint" in [joint.name for joint in card.joints]
    some = [(joint, value) for joint, value in zip(card.joints, card.home) if joint.name != "arm_joint"]
    card = card.model_copy(update={"joints": tuple(j for j, _ in some), "home": tuple(x for _, x in some)})
    world = Walk(robot=card)
    assert world.scene.stand.shape == (7 + 12,)
    assert world.scene.feet.shape == (4, 3)  # an arm is no leg


def test_limits_of_the_card_hold_in_the_simulation(tmp_path: Path) -> None:
    found = card_of(quadruped(tmp_path))
    first, *others = found.joints
    narrow = first.model_copy(update={"lower": -1.0, "upper": 1.5})
    model = mujoco.MjModel.from_xml_string(scene(found.model_copy(update={"joints": (narrow, *others)})).xml)
    assert model.joint(first.name).range.tolist() == [-1.0, 1.5]
    assert model.joint(others[0].name).range.tolist() == [-2.0, 2.0]


def test_legs_without_shapes_are_told(tmp_path: Path) -> None:
    path = Path(quadruped(tmp_path))
    text = path.read_text()
    while "<collision>" in text:
        first, _, rest = text.partition("<collision>")
        text = first + rest.partition("</collision>")[2]
    path.write_text(text)
    with pytest.raises(ValueError, match="need <collision> shapes to stand on"):
        Walk(robot=card_of(str(path))).mjcf()


def test_mjcf_with_plain_motors_and_a_body_apart(tmp_path: Path) -> None:
    """As vendors write it: no keyframe, efforts in the ranges of motors alone, a joint that is not the robot's."""
    leg = """
      <body pos="0 {y} 0"><joint name="{s}_hip" axis="1 0 0" range="-1 1"/><geom size=".03" mass=".5"/>
        <body><joint name="{s}_thigh" axis="0 1 0" range="-2 2"/>
          <geom type="capsule" size=".02" fromto="0 0 0 0 0 -.3"/>
          <body pos="0 0 -.3"><joint name="{s}_knee" axis="0 1 0" range="-2 2"/>
            <geom type="capsule" size=".02" fromto="0 0 0 0 0 -.3"/><geom type="box" size=".08 .03 .01" pos="0 0 -.3"/>
      </body></body></body>"""
    motors = """<motor joint="{s}_hip" ctrlrange="-10 10" gear="9"/>
      <general joint="{s}_thigh" ctrllimited="true" ctrlrange="-1 1" gainprm="30" gear="-2"/>
      <motor joint="{s}_knee" ctrlrange="-99 99" forcerange="-7 7" gear="5"/>"""
    sides = {"left": 0.1, "right": -0.1}
    path = tmp_path / "two_legs.xml"
    path.write_text(
        '<mujoco><compiler autolimits="true"/><worldbody><body name="pelvis" pos="0 0 .7"><freejoint/>'
        f'<geom type="box" size=".1 .1 .1" mass="5"/>{"".join(leg.format(s=s, y=y) for s, y in sides.items())}</body>'
        '<body pos="0 0 20"><joint name="spare"/><geom size=".1" contype="0" conaffinity="0"/></body></worldbody>'
        f'<actuator>{"".join(motors.format(s=s) for s in sides)}<motor joint="spare"/></actuator></mujoco>'
    )
    found = new_legs_card(str(path), "two_legs")
    assert found is not None
    card, notes = found
    assert {joint.name: joint.effort for joint in card.joints} == {
        f"{s}_{name}": effort for s in sides for name, effort in (("hip", 90.0), ("thigh", 60.0), ("knee", 35.0))
    }
    assert any("not on pelvis" in note and note.endswith("spare") for note in notes)


def test_a_hand_that_moves_freely_is_asked_about(tmp_path: Path) -> None:
    """Three fingers below a palm: not legs, unless somebody says that it stands on them."""
    finger = """<body pos="0 {y} 0"><joint name="{s}_base" axis="1 0 0" range="-1 1"/><geom size=".01" mass=".05"/>
        <body pos="0 0 -.04"><joint name="{s}_tip" axis="0 1 0" range="-1 1"/>
          <geom type="capsule" size=".01" fromto="0 0 0 0 0 -.04"/></body></body>"""
    fingers = "".join(finger.format(s=s, y=y) for s, y in (("index", 0.04), ("ring", -0.04), ("thumb", 0.0)))
    path = tmp_path / "hand.xml"
    path.write_text(
        '<mujoco><compiler autolimits="true"/><worldbody><body name="palm" pos="0 0 .2"><freejoint/>'
        f'<geom type="box" size=".05 .05 .01" mass=".4"/>{fingers}</body></worldbody></mujoco>'
    )
    with pytest.raises(ValueError, match=r"down from it are 3: legs come in pairs.*base=palm.*<freejoint/>"):
        new_legs_card(str(path), "hand")
    found = new_legs_card(str(path), "hand", base="palm")
    assert found is not None
    assert found[0].legs is not None
