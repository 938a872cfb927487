"""The physics behind the bridge's simulated robot."""

import numpy as np
import pytest

from robot_rl.sim.plant import ModelPlant


def test_links_that_overlap_at_home_do_not_hold_a_joint_and_stiff_gains_do_not_shake_it() -> None:
    capsule = '<geom type="capsule" size="0.06" fromto="0 0 0 0 0 0.2" mass="0.5" contype="1" conaffinity="1"/>'
    turning = f'<body name="link"><joint name="j" axis="0 0 1"/>{capsule}</body>'
    text = f'<mujoco><worldbody><body name="base">{capsule}{turning}</body></worldbody></mujoco>'
    # 9e-4 kg m2 around the axis: a damping of 10 N m s/rad, taken at the beginning of a step of 2 ms, would turn the
    # speed round twenty times over
    plant = ModelPlant(text, ["j"], kp=[100.0], kd=[10.0], effort=[5.0], home=[0.1])
    plant.command(np.array([0.4]))
    speeds = []
    for _ in range(100):
        plant.step(0.01)
        speeds.append(plant.velocity[0])
    assert min(speeds) > -1e-6
    # kp (goal - q) = kd v: what is left falls by exp(-10 t)
    assert plant.position[0] == pytest.approx(0.4, abs=1e-3)
