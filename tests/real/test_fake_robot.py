import subprocess
import sys

import numpy as np
import pytest

from robot_rl.real.core.clock import ManualClock
from robot_rl.real.fake_robot import FakeOptions, FakeRobot
from robot_rl.real.robot import Command, StaleState


def moved(robot, clock, seconds, value=None, dt=0.01):
    for _ in range(round(seconds / dt)):
        clock.advance(dt)
        if value is not None:
            robot.write(Command(clock.now(), np.full(3, value)))
    return robot.read()


def test_position_command_is_followed_with_lag(make_arm):
    clock = ManualClock()
    robot = FakeRobot(make_arm(), FakeOptions(lag=0.05), clock=clock)
    robot.write(Command(0.0, np.full(3, 0.01)))
    # first order: 0.01 * (1 - (1 - 0.002 / 0.05)^25) after 0.05 s
    assert moved(robot, clock, 0.05).position == pytest.approx(0.01 * (1 - 0.96**25), abs=2e-4)
    assert moved(robot, clock, 1.0).position == pytest.approx(0.01)


def test_speed_and_hard_stops_bound_the_joint(make_arm):
    clock = ManualClock()
    robot = FakeRobot(make_arm(), clock=clock)
    assert np.abs(moved(robot, clock, 0.1, 9.0).velocity).max() <= 1.2
    assert moved(robot, clock, 5.0, 9.0).position == pytest.approx(2.0)


def test_velocity_mode_integrates(make_arm):
    clock = ManualClock()
    robot = FakeRobot(make_arm(command_mode="forward_velocity", dead_time=0.0), clock=clock)
    robot.write(Command(0.0, np.full(3, 0.5)))
    assert moved(robot, clock, 1.0).position == pytest.approx(0.5)
    robot.stop()
    robot.stop()
    assert moved(robot, clock, 1.0).velocity == pytest.approx(0.0)


def test_latency_delays_command_and_state(make_arm):
    clock = ManualClock()
    robot = FakeRobot(make_arm(command_mode="forward_velocity", dead_time=0.0), FakeOptions(latency=0.05), clock=clock)
    robot.write(Command(0.0, np.full(3, 1.0)))
    assert moved(robot, clock, 0.1).position == pytest.approx(0.0, abs=3e-3)  # 0.05 there, 0.05 back
    state = moved(robot, clock, 0.1)
    assert state.position == pytest.approx(0.1, abs=3e-3)
    assert clock.now() - state.stamp == pytest.approx(0.05, abs=3e-3)


def test_loss_noise_and_seed(make_arm):
    def once(seed):
        clock = ManualClock()
        robot = FakeRobot(make_arm(), FakeOptions(loss=0.5, noise=0.01, jitter=0.005), clock=clock, seed=seed)
        return np.array([moved(robot, clock, 0.01, 0.0).position for _ in range(100)])

    assert (once(1) == once(1)).all()
    assert (once(1) != once(2)).any()
    assert 0.005 < once(1).std() < 0.02


def test_frozen_robot_raises_stale_state(make_arm):
    clock = ManualClock()
    robot = FakeRobot(make_arm(), clock=clock)
    robot.frozen = True
    with pytest.raises(StaleState, match=r"0\.1[0-9]+ s old"):
        moved(robot, clock, 0.15)


def test_wrong_arguments_are_named(make_arm):
    with pytest.raises(ValueError, match="latency"):
        FakeOptions(latency=-1.0)
    with pytest.raises(ValueError, match="start has shape"):
        FakeRobot(make_arm(), start=np.zeros(2))
    with pytest.raises(ValueError, match="finite"):
        FakeRobot(make_arm()).write(Command(0.0, np.full(3, np.nan)))


def test_real_core_loads_no_torch_and_no_ros():
    code = (
        "import sys; import robot_rl.real.core.supervisor, robot_rl.real.core.intake, robot_rl.real.fake_robot; "
        "sys.exit(len({'torch', 'rclpy', 'gymnasium', 'mujoco'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
