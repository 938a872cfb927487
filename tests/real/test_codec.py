"""Actions to commands and back, and states to vectors: hand-worked, and as the port of the policy node has them."""

import numpy as np
import pytest

from robot_rl.real.core.codec import ActionCodec, StateCodec
from robot_rl.real.core.spec import RobotSpec, SpecError
from robot_rl.real.port import SpecPort
from robot_rl.real.robot import RobotState


def test_action_codec_absolute_spans_the_range_inside_the_margin(make_arm) -> None:
    codec = ActionCodec(make_arm(), 100.0)  # limits -2 ... 2, margin 0.02
    np.testing.assert_allclose(codec.command(np.array([-1.0, 0.0, 1.0]), np.zeros(3)), [-1.98, 0.0, 1.98])
    np.testing.assert_allclose(codec.action(np.array([0.99, -0.99, 5.0]), np.zeros(3)), [0.5, -0.5, 1.0])


def test_action_codec_delta_moves_from_the_last_command(make_arm) -> None:
    codec = ActionCodec(make_arm(action={"mapping": "delta", "scale": [0.05]}), 20.0)
    last = np.array([0.0, 1.0, 1.97])
    np.testing.assert_allclose(codec.command(np.array([1.0, -1.0, 1.0]), last), [0.05, 0.95, 1.98])
    np.testing.assert_allclose(codec.action(np.array([0.025, 1.0, 1.97]), last), [0.5, 0.0, 0.0], atol=1e-7)


def test_action_codec_velocity_on_a_position_controller_integrates_one_period(make_arm) -> None:
    codec = ActionCodec(make_arm(action={"mapping": "velocity", "scale": [0.5]}), 10.0)
    np.testing.assert_allclose(codec.command(np.full(3, 1.0), np.zeros(3)), 0.05)
    np.testing.assert_allclose(codec.action(np.full(3, 0.05), np.zeros(3)), 1.0, rtol=1e-6)


@pytest.mark.parametrize(("mapping", "scale", "moved"), [("delta", 0.05, 0.025), ("velocity", 0.5, 0.0125)])
def test_action_codec_of_legs_moves_from_the_last_target(mapping, scale, moved) -> None:
    joint = {"lower": -1.0, "upper": 1.0, "velocity": 5.0, "acceleration": 100.0, "effort": 10.0, "kp": 50.0, "kd": 1.0}
    raw = {"name": "legs", "joints": [{"name": "j0", **joint}], "command_mode": "pd", "home": [0.2]}
    raw |= {"legs": {}, "sensors": {"imu": {"topic": "imu", "type": "sensor_msgs/Imu"}}, "controller_timeout": 0.1}
    codec = ActionCodec(RobotSpec.from_dict({**raw, "action": {"mapping": mapping, "scale": [scale]}}), 20.0)
    last = np.array([0.4])  # half of the scale, in radians or in radians per second for 1/20 s
    np.testing.assert_allclose(codec.command(np.array([0.5]), last), 0.4 + moved)
    np.testing.assert_allclose(codec.action(np.array([0.4 + moved]), last), 0.5, rtol=1e-6)


def test_action_codec_delta_on_a_velocity_controller_is_refused(make_arm) -> None:
    spec = make_arm(
        action={"mapping": "delta", "scale": [0.1]},
        command_mode="forward_velocity",
        dead_time=0.0,
        controller_timeout=0.1,
    )
    with pytest.raises(SpecError, match="forward_velocity takes velocity"):
        ActionCodec(spec, 10.0)


@pytest.mark.parametrize("mapping", ["absolute", "delta", "velocity"])
def test_action_codec_inverts_the_port_of_the_policy_node(make_arm, mapping) -> None:
    spec = make_arm(action={"mapping": mapping, "scale": [0.3]})
    port, codec = SpecPort(spec, 20.0), ActionCodec(spec, 20.0)
    last, rng = np.zeros(3), np.random.default_rng(0)
    port.reset(last, last, {})
    for _ in range(20):
        action = rng.uniform(-0.3, 0.3, 3)
        command = port.act(action[None])
        np.testing.assert_allclose(codec.command(action, last), command, atol=1e-12)
        np.testing.assert_allclose(codec.action(command, last), action, atol=1e-6)
        last = command


def test_state_codec_order_and_missing_sensors(make_arm) -> None:
    spec = make_arm(observation=["joint_velocities", "joint_positions", "last_action", "wrench"])
    codec = StateCodec(spec)
    state = RobotState(0.0, np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]))
    expected = [4, 5, 6, 1, 2, 3, 7, 8, 9, 0, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(codec.vector(state, np.array([7.0, 8.0, 9.0])), expected)
    port = SpecPort(make_arm(observation=["joint_velocities", "joint_positions", "last_action"]), 20.0)
    assert port.io.obs_names == codec.names[:9]
    with pytest.raises(SpecError, match="expected one of joint_positions, joint_velocities"):
        StateCodec(make_arm(observation=["colour"]))
