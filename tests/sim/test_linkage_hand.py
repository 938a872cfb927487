"""Hands whose fingers hang on closed loops, as a Robotiq 2F-85 in MuJoCo: no pad moves with its driver alone."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from robot_rl.sim.hand_grip import GRASP, Grip, HandTrial
from robot_rl.sim.robot_card import new_card
from robot_rl.types.card import GripperCard

SIDE = """
<body name="driver_{n}" pos="0 {outer} 0">
  <joint name="driver_{n}" axis="{s} 0 0" range="0 0.5" armature="0.002" damping="0.02"/>
  <geom type="sphere" size="0.01" pos="0 0 -0.03" mass="0.03" contype="0" conaffinity="0"/>
</body>
<body name="link_{n}" pos="0 {inner} 0">
  <joint name="link_{n}" axis="{s} 0 0" range="-1 1" armature="0.001" damping="0.001"/>
  <geom type="capsule" size="0.004" fromto="0 0 0.01 0 0 0.05" mass="0.01" contype="0" conaffinity="0"/>
  <body name="pad_{n}" pos="0 0 0.06">
    <joint name="pad_{n}" axis="{s} 0 0" range="-1 1" armature="0.001" damping="0.001"/>
    <geom type="box" size="0.01 0.004 0.02" pos="0 0 0.03" mass="0.01"/>
  </body>
</body>
"""
FINGERS = "".join(
    SIDE.format(n=name, s=sign, outer=0.045 * sign, inner=0.03 * sign) for name, sign in (("left", 1), ("right", -1))
)
LOOPS = """
<equality>
  <connect body1="driver_left" body2="pad_left" anchor="0 0 0.06" solref="0.01 1"/>
  <connect body1="driver_right" body2="pad_right" anchor="0 0 0.06" solref="0.01 1"/>
  <joint joint1="driver_right" joint2="driver_left" polycoef="0 1 0 0 0" solref="0.01 1"/>
</equality>
"""


def arm_with(fingers: str, ties: str, actuator: str, tool: float = 0.09) -> str:
    """MJCF of an arm of three joints and a hand."""
    return f"""
    <mujoco>
      <compiler angle="radian"/>
      <worldbody>
        <body name="base" pos="0 0 0.3">
          <joint name="pan" axis="0 0 1" range="-2 2"/><geom type="box" size="0.03 0.03 0.03"/>
          <body name="upper" pos="0.1 0 0">
            <joint name="lift" axis="0 1 0" range="-1 1"/><geom type="capsule" size="0.02" fromto="0 0 0 0.15 0 0"/>
            <body name="lower" pos="0.25 0 0">
              <joint name="bend" axis="0 1 0" range="-1 1"/><geom type="capsule" size="0.02" fromto="0 0 0 0.05 0 0"/>
              <body name="palm" pos="0.1 0 0" quat="0.70711 0 0.70711 0">{fingers}
                <site name="gripper" pos="0 0 {tool}"/><site name="ft_sensor_attachment_site"/></body>
            </body>
          </body>
        </body>
      </worldbody>
      {ties}
      <actuator>{actuator}</actuator>
    </mujoco>"""


def test_a_linkage_is_open_where_its_pads_are_far_apart_not_where_its_driver_is(tmp_path: Path) -> None:
    """The driver's own mass lies behind its axis and moves outwards as the pads come together."""
    servo = '<position joint="driver_left" kp="5" forcerange="-5 5"/>'
    (tmp_path / "arm.xml").write_text(arm_with(FINGERS, LOOPS, servo))
    card, _ = new_card(str(tmp_path / "arm.xml"), "arm")
    assert card.tool == "gripper"  # where fingers are, not where a sensor of force is mounted
    assert card.gripper is not None
    assert (card.gripper.joints, card.gripper.open, card.gripper.closed) == (("driver_left",), (0.0,), (0.5,))


def test_a_finger_that_is_tied_to_the_driven_one_moves_with_it_against_a_stiff_servo(tmp_path: Path) -> None:
    """Both swing out by 0.7 rad from where they touch, and nearer to the tool in the palm, as in OpenArm 2."""
    finger = """
    <body name="{n}" pos="0 {y} 0.02">
      <joint name="{n}" axis="{s} 0 0" range="0 0.7"/>
      <geom type="box" size="0.01 0.004 0.03" pos="0 0 0.03" mass="0.03"/>
      <geom type="box" size="0.01 0.004 0.01" pos="0 {y} 0.01" mass="0.03"/>
    </body>"""
    fingers = finger.format(n="left", y=0.005, s=-1) + finger.format(n="right", y=-0.005, s=1)
    tie = '<equality><joint joint1="left" joint2="right" polycoef="0 1 0 0 0"/></equality>'
    (tmp_path / "arm.xml").write_text(arm_with(fingers, tie, '<position joint="left" kp="300"/>', tool=0.0))
    card, _ = new_card(str(tmp_path / "arm.xml"), "arm")
    assert card.gripper is not None
    assert (card.gripper.joints, card.gripper.open, card.gripper.closed) == (("left",), (0.7,), (0.0,))


def test_pads_that_no_commanded_joint_carries_are_fingers_too() -> None:
    spec = mujoco.MjSpec.from_string(
        '<mujoco><compiler angle="radian"/><option timestep="0.005" integrator="implicitfast" impratio="4"/>'
        f'<worldbody><body name="hand" pos="0 0 1"><geom size="0.01" mass="1"/><site name="{GRASP}"/>{FINGERS}</body>'
        '<body name="cube" pos="100 0 0"><freejoint name="cube"/><geom name="cube" type="box" size="0.02 0.02 0.02" '
        'mass="0.06" priority="1" friction="1.5 0.02 0.0001" solref="0.01 1" solimp="0.95 0.99 0.001"/></body>'
        f'</worldbody>{LOOPS}<actuator><position name="driver_left" joint="driver_left" kp="5" kv="0.3" '
        'forcerange="-5 5"/></actuator></mujoco>'
    )
    card = GripperCard(joints=("driver_left",), open=(0.0,), closed=(0.5,), effort=5.0, kp=5.0, kd=0.3)
    grip = HandTrial(spec, card, {}, 0.02).find()
    assert isinstance(grip, Grip), grip
    assert abs(grip.place[1]) < 3e-3  # between the pads
    assert 0.06 < grip.place[2] < 0.13  # z of the pads is 0.07 to 0.11
    driven = 0.5 * (1.0 - grip.held)  # faces at 0.026 from the middle go 0.06 sin, the cube's stand at 0.02
    assert 0.06 * np.sin(driven) == pytest.approx(0.006, abs=3e-3)
