"""Robots on legs that the project has never met: their cards, and the simulated driver and harness."""
# pyright: reportGeneralTypeIssues=false, reportOptionalIterable=false

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robot_rl.legs import gravity
from robot_rl.sim.legs_card import new_legs_card
from robot_rl.sim.legs_plant import LegsPlant

LEG = """
<body name="{side}_thigh" pos="0 {y} -0.1"><joint name="{side}_hip" axis="0 1 0" range="-1 1"/>
 <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="1"/>
 <body name="{side}_shin" pos="0 0 -0.3">
  <joint name="{side}_knee" axis="0 1 0" range="-0.1 2" actuatorfrcrange="-40 40"/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="1"/>
  <body name="{side}_foot" pos="0 0 -0.33"><joint name="{side}_ankle" axis="0 1 0"/>
   <geom type="box" size="0.1 0.05 0.02" mass="0.5"/></body></body></body>
"""
MJCF = """
<mujoco><compiler angle="radian" autolimits="true"/>
<worldbody><body name="trunk" pos="0 0 1.5">{free}
 <geom type="box" size="0.1 0.15 0.1" mass="10"/>{legs}</body></worldbody>
{rest}</mujoco>
"""
KEY = '<keyframe><key name="stand" qpos="0 0 1 1 0 0 0 -0.2 0.4 -0.2 -0.2 0.4 -0.2"/></keyframe>'
NAMES = ("l_hip", "l_knee", "l_ankle", "r_hip", "r_knee", "r_ankle")


def biped(folder: Path, *, free: str = '<freejoint name="root"/>', rest: str = KEY) -> str:
    path = folder / "biped.xml"
    legs = LEG.format(side="l", y=0.1) + LEG.format(side="r", y=-0.1)
    path.write_text(MJCF.format(free=free, legs=legs, rest=rest))
    return str(path)


def plant(folder: Path, **changes) -> LegsPlant:
    values = {"base": "trunk", "kd": [2.0] * 6, "effort": [40.0] * 6, "home": [-0.2, 0.4, -0.2] * 2}
    return LegsPlant(biped(folder), NAMES, **{**values, **changes})


def command(target, kp: float, kd: float) -> np.ndarray:
    rows = np.zeros((5, 6))
    rows[0], rows[3], rows[4] = target, kp, kd
    return rows


def test_card_of_a_free_base_says_what_the_file_says(tmp_path) -> None:
    card, notes = new_legs_card(biped(tmp_path), "biped")
    assert (card.base, card.command_mode, card.tool) == ("trunk", "pd", "")
    assert tuple(joint.name for joint in card.joints) == NAMES
    assert (card.joints[0].lower, card.joints[0].upper, card.joints[0].effort) == (-1.0, 1.0, "?")
    assert (card.joints[1].effort, card.joints[2].continuous) == (40.0, True)
    assert card.home == (-0.2, 0.4, -0.2) * 2  # its keyframe
    assert {"legs.stop", "joints.l_hip.velocity", "joints.l_knee.acceleration"} <= set(card.open_keys())
    assert any("trunk moves freely" in note for note in notes)


def test_limbs_that_hang_from_one_body_are_legs_and_what_stands_is_not(tmp_path) -> None:
    found = new_legs_card(biped(tmp_path, free="", rest=""), "biped")
    assert found is not None
    assert found[0].base == "trunk"
    assert found[0].home[:3] == pytest.approx(found[0].home[3:], abs=1e-3)  # both knees bend one way
    assert abs(found[0].home[1]) > 0.2
    assert any("found by search" in note for note in found[1])
    text = Path(biped(tmp_path, free="", rest="")).read_text().replace('-0.3"', '0.3"').replace("-0.33", "0.33")
    (tmp_path / "arms.xml").write_text(text)  # the same limbs, upwards: two arms
    assert new_legs_card(str(tmp_path / "arms.xml"), "arms") is None
    arm = Path(__file__).resolve().parents[2] / "docs/howto/small_arm.urdf"
    assert new_legs_card(str(arm), "small") is None
    with pytest.raises(ValueError, match="no body 'waist'"):
        new_legs_card(biped(tmp_path), "biped", base="waist")


def test_legs_that_hang_from_a_waist_are_legs(tmp_path) -> None:
    text = Path(biped(tmp_path, free="", rest="")).read_text()
    waist = '<body name="pelvis"><joint name="waist" range="-1 1"/><geom type="box" size="0.1 0.1 0.05" mass="2"/>'
    cut = text.index('<body name="l_thigh"')
    (tmp_path / "waist.xml").write_text(
        text[:cut] + waist + text[cut:].replace("</body></worldbody>", "</body></body></worldbody>")
    )
    found = new_legs_card(str(tmp_path / "waist.xml"), "waist")
    assert found is not None
    assert found[0].base == "trunk"
    assert tuple(joint.name for joint in found[0].joints) == ("waist", *NAMES)


def test_a_trunk_whose_frame_lies_on_the_floor_is_one_sentence(tmp_path) -> None:
    text = Path(biped(tmp_path, free="", rest="")).read_text().replace('pos="0 0 1.5"', 'pos="0 0 0"')
    up = text.replace('size="0.1 0.15 0.1"', 'pos="0 0 1" size="0.1 0.15 0.1"').replace('0 0.1 -0.1"', '0 0.1 0.7"')
    (tmp_path / "up.xml").write_text(up.replace('0 -0.1 -0.1"', '0 -0.1 0.7"'))
    with pytest.raises(ValueError, match=r"the frame of trunk lies 0\.90 m below its lowest shape"):
        new_legs_card(str(tmp_path / "up.xml"), "up")


def test_harness_holds_the_feet_on_the_ground_until_it_is_opened(tmp_path) -> None:
    legs = plant(tmp_path)
    start = legs.trunk.position
    # thigh and shin 0.3 and 0.33 m in the plane, hips 0.1 below the trunk's middle, soles 0.02 below the ankles
    assert start[2] == pytest.approx(0.1 + 0.3 * np.cos(0.2) + 0.33 * np.cos(0.2) + 0.02, abs=2e-3)
    legs.step(1.0)
    assert legs.hanging
    assert legs.trunk.position.tolist() == start.tolist()
    assert gravity(legs.trunk.orientation).tolist() == [0, 0, -1]
    legs.release()
    legs.step(2.0)
    assert legs.trunk.position[2] < start[2] - 0.2  # damped only, it goes down
    legs.reset(0)
    assert legs.hanging
    assert legs.trunk.position == pytest.approx(start)


def test_driver_law_is_cut_at_the_effort_and_damps_when_told_to_hold(tmp_path) -> None:
    legs = plant(tmp_path)
    legs.command(command([0.3, 0.4, -0.2] * 2, 50.0, 2.0))
    legs.step(0.002)
    assert legs.effort == pytest.approx([25.0, 0, 0, 25.0, 0, 0])  # 50 * 0.5, from rest
    legs.command(command([5.0, 0.4, -0.2] * 2, 50.0, 2.0))
    legs.step(0.002)
    assert legs.effort[0] == 40.0
    legs.hold()
    before = legs.velocity
    legs.step(0.002)
    assert legs.effort == pytest.approx(-2.0 * before)


def test_trunk_tells_its_motion_in_its_own_frame(tmp_path) -> None:
    legs = plant(tmp_path)
    legs.release()
    data, half = legs._data, np.sqrt(0.5)
    data.qpos[:7] = [0.0, 0.0, 3.0, half, 0.0, 0.0, half]  # turned left by 90 degrees, in the air
    data.qvel[:6] = [0.0, 1.0, 0.0, 0.0, 0.0, 0.5]  # moving along the world's y
    legs._mujoco.mj_forward(legs._model, data)
    trunk = legs.trunk
    assert trunk.orientation == pytest.approx([0, 0, half, half])
    assert trunk.velocity == pytest.approx([1, 0, 0])  # forward
    assert trunk.angular_velocity == pytest.approx([0, 0, 0.5])
    assert np.abs(trunk.acceleration).max() < 0.5  # it falls: an accelerometer reads nothing but the legs' swing


def block(name: str, x: float, y: float, z: float) -> str:
    """A mesh of the eight corners of a box of these half sizes [m]."""
    corners = " ".join(f"{i * x} {j * y} {k * z}" for i in (-1, 1) for j in (-1, 1) for k in (-1, 1))
    return f'<mesh name="{name}" vertex="{corners}"/>'


def test_meshes_of_legs_stand_on_their_whole_sole_and_do_not_hold_one_another(tmp_path) -> None:
    shapes = f"<asset>{block('sole', 0.1, 0.05, 0.02)}{block('hip', 0.05, 0.2, 0.15)}</asset>"
    path = Path(biped(tmp_path, rest=KEY + shapes))
    text = path.read_text().replace('type="box" size="0.1 0.05 0.02"', 'type="mesh" mesh="sole"')
    path.write_text(text.replace('type="box" size="0.1 0.15 0.1"', 'type="mesh" mesh="hip"'))  # reaches over the thighs
    home = [-0.2, 0.4, -0.2] * 2
    legs = LegsPlant(str(path), NAMES, base="trunk", kd=[2.0] * 6, effort=[40.0] * 6, home=home)
    legs.command(command(home, 200.0, 10.0))
    legs.step(0.5)
    model, data = legs._model, legs._data
    touching = {frozenset(int(model.geom_bodyid[g]) for g in contact.geom) for contact in data.contact}
    floor = model.body("robot_rl_floor").id
    assert touching == {frozenset((floor, model.body(f"{side}_foot").id)) for side in "lr"}
    across = [contact.pos[1] for contact in data.contact if model.body("l_foot").id in model.geom_bodyid[contact.geom]]
    assert np.ptp(across) == pytest.approx(0.1, abs=0.002)  # a capsule along it would touch at one y alone


def test_time_that_is_no_multiple_of_the_physics_step_is_stepped_in_full(tmp_path) -> None:
    legs = plant(tmp_path)  # its step is 0.002 s
    for period, steps in ((0.005, 3), (0.004, 2), (0.001, 1)):
        legs.reset(0)
        for _ in range(10):
            legs.step(period)
        assert legs.time == pytest.approx(10 * period)
        assert legs._model.opt.timestep == pytest.approx(period / steps)
