"""The physics behind the bridge's simulated robot."""

import mujoco
import numpy as np
import pytest

from robot_rl.sim.plant import ModelPlant, WorldPlant
from robot_rl.sim.worlds.reach import Reach


def test_links_that_overlap_at_home_do_not_hold_a_joint_and_stiff_gains_do_not_shake_it() -> None:
    capsule = '<geom type="capsule" size="0.06" fromto="0 0 0 0 0 0.2" mass="0.5" contype="1" conaffinity="1"/>'
    turning = f'<body><joint name="j" axis="0 0 1"/>{capsule}</body>'
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


def test_what_lies_on_a_table_where_the_robot_begins_goes_on_lying_there() -> None:
    arm = '<body name="arm" pos="1 0 0.3"><joint name="j" axis="0 0 1"/><geom size="0.05" mass="0.1"/></body>'
    cube = '<body name="cube" pos="0 0 0.145"><freejoint/><geom type="box" size="0.05 0.05 0.05" mass="0.1"/></body>'
    table = '<body name="table"><geom type="box" size="0.3 0.3 0.1"/></body>'
    plant = ModelPlant(f"<mujoco><worldbody>{table}{cube}{arm}</worldbody></mujoco>", ["j"], kp=[1.0], kd=[0.1])
    plant.step(1.0)
    assert plant.scene()[0][0, 2] == pytest.approx(0.15, abs=0.01)


def test_an_arm_with_servos_of_its_own_stands_where_it_was_told() -> None:
    """1 kg at 0.5 m: 4.9 N m, which a servo of 100 N m/rad alone would hold 49 mrad lower."""
    link = '<geom size="0.05" pos="0.5 0 0" mass="1"/><joint name="j" axis="0 -1 0"/>'
    servo = '<position name="j" joint="j" kp="100" kv="20" forcerange="-50 50"/>'
    text = f"<mujoco><worldbody><body>{link}</body></worldbody><actuator>{servo}</actuator></mujoco>"
    plant = ModelPlant(text, ["j"], home=[0.3])
    plant.step(3.0)
    assert plant.position[0] == pytest.approx(0.3, abs=1e-3)


def test_servos_of_a_file_whose_force_is_cut_do_not_shake_a_light_link() -> None:
    """Gains of the xArm7 in mujoco_menagerie on 1e-3 kg m2: taken as they are, the link swings for ever."""
    link = '<geom size="0.05" mass="1"/><joint name="j" axis="0 0 1"/>'
    servo = '<position name="j" joint="j" kp="1500" kv="150" forcerange="-50 50"/>'
    text = f"<mujoco><worldbody><body>{link}</body></worldbody><actuator>{servo}</actuator></mujoco>"
    plant = ModelPlant(text, ["j"])
    plant.command(np.array([0.1]))
    plant.step(2.0)
    assert plant.position[0] == pytest.approx(0.1, abs=1e-3)
    assert abs(plant.velocity[0]) < 1e-2


@pytest.mark.parametrize(
    "servos",
    [
        '<position joint="a" kp="500" kv="5"/><motor joint="b"/>',
        '<velocity joint="a" kv="200"/><velocity joint="b" kv="200"/>',
        '<position joint="a" kp="500" kv="5" forcerange="0 50"/><position joint="b" kp="500" kv="5"/>',
    ],
)
@pytest.mark.parametrize("mode", ["position", "velocity"])
def test_no_servo_of_a_file_works_against_the_commands(servos: str, mode: str) -> None:
    link = '<joint name="{}" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="1"/>'
    arm = f'<body>{link.format("a")}<body pos="0.3 0 0">{link.format("b")}</body></body>'
    text = f"<mujoco><worldbody>{arm}</worldbody><actuator>{servos}</actuator></mujoco>"
    plant = ModelPlant(text, ["a", "b"], mode=mode, kp=[500.0] * 2, kd=[20.0] * 2)
    plant.command(np.array([0.5, -0.4]))
    plant.step(2.0)
    assert getattr(plant, mode) == pytest.approx([0.5, -0.4], abs=1e-3)


def test_servos_of_a_world_hold_as_they_did_in_training() -> None:
    world = Reach()
    model = mujoco.MjModel.from_xml_string(world.mjcf())
    servos = [int(model.actuator_trnid[i, 0]) for i in range(model.nu)]
    plant = WorldPlant(world, [model.joint(joint).name for joint in servos], timestep=float(model.opt.timestep))
    data = mujoco.MjData(model)
    data.qpos[:] = plant.scene()[0][0]
    goal = data.qpos[model.jnt_qposadr[servos]] + 0.2
    data.ctrl[:] = goal
    mujoco.mj_step(model, data, 20)
    plant.command(goal)
    plant.step(20 * float(model.opt.timestep))
    np.testing.assert_allclose(plant.position, data.qpos[model.jnt_qposadr[servos]], atol=1e-6)


def test_the_flange_feels_the_floor_that_carries_its_tool() -> None:
    """A link turned by 90 degrees about z; its ball of 2 kg lies on the floor, 0.1 m along the link's x."""
    mjcf = """<mujoco><worldbody><geom type="plane" size="1 1 1"/>
    <body pos="0 0 .05" euler="0 0 90"><inertial pos="0 0 0" mass="1e-6" diaginertia="1e-8 1e-8 1e-8"/>
    <joint name="lift" type="slide" axis="0 0 1"/>
    <body pos=".1 0 0"><geom type="sphere" size=".05" mass="2"/></body></body></worldbody></mujoco>"""
    plant = ModelPlant(mjcf, ["lift"], mode="effort")
    plant.step(1.0)
    weight = 2.0 * 9.81  # straight up at (.1, 0, -.05): r x f = (0, -.1 weight, 0) in the link's own axes
    np.testing.assert_allclose(plant.wrench, [0, 0, weight, 0, -0.1 * weight, 0], atol=0.02)
    plant.command(np.array([100.0]))
    plant.step(0.1)
    np.testing.assert_allclose(plant.wrench, 0.0, atol=1e-9)  # in the air
