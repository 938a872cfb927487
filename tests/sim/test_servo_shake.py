"""Servos of a card at their largest torque: what they push has to come to rest, whatever pose the arm is in."""

from pathlib import Path

import mujoco
import numpy as np

from robot_rl.sim.arm import TIMESTEP
from robot_rl.sim.robot_card import new_card
from robot_rl.sim.robot_model import add_joint, load

ARM = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="base" pos="0 0 0.3">
      <body name="a"><joint name="a" axis="0 0 1" range="-2.8 2.8" damping="10" actuatorfrcrange="-87 87"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0 0 0.3" mass="4"/>
        <body name="b" pos="0 0 0.3"><joint name="b" axis="0 1 0" range="-1.7 1.7" actuatorfrcrange="-87 87"/>
          <geom type="capsule" size="0.03" fromto="0 0 0 0 0 0.1" mass="0.6"/>
          <body name="c" pos="0 0 0.1">
            <joint name="c" axis="0 0 1" range="-2.8 2.8" damping="5" actuatorfrcrange="-87 87"/>
            <geom type="capsule" size="0.05" fromto="0 0 0 0 0 0.2" mass="3"/>
            <body name="d" pos="0 0 0.25"><joint name="d" axis="0 1 0" range="-0.2 3" actuatorfrcrange="-87 87"/>
              <geom type="capsule" size="0.05" fromto="0 0 0 0.6 0 0.05" mass="6"/>
              <site name="tcp" pos="0.65 0 0.05"/>
            </body>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
  <keyframe><key name="home" qpos="0 0 0 0.3"/></keyframe>
</mujoco>
"""


def test_two_axes_in_line_do_not_shake_against_each_other(tmp_path: Path) -> None:
    """Where b is 0, a and c turn about one line: what moves when one goes forward and the other back weighs little.

    A push of 3 rad/s is more than the largest torque takes away in one step of physics, so that servos which are stiff
    for the whole arm throw this small mass back and forth for ever, with the elbow at rest.
    """
    (tmp_path / "arm.xml").write_text(ARM)
    card, _ = new_card(str(tmp_path / "arm.xml"), "arm")
    assert [joint.name for joint in card.joints] == ["a", "b", "c", "d"]
    spec = load(tmp_path / "arm.xml").spec
    for joint in card.joints:
        add_joint(spec, card.name, joint)
    spec.option.timestep, spec.option.integrator = TIMESTEP, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.gravity = [0.0, 0.0, 0.0]
    model = spec.compile()
    data = mujoco.MjData(model)
    data.qpos[:] = data.ctrl[:] = [0.0, 0.0, 0.0, 0.3]
    data.qvel[:] = [3.0, 0.0, -3.0, 0.0]
    for _ in range(200):
        mujoco.mj_step(model, data)
    assert np.abs(data.qvel).max() < 0.05
    assert np.abs(data.qpos - data.ctrl).max() < 0.01
