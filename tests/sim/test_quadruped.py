"""The quadruped: frames, reward, falls, tracking success, kinematics, the scripted trot."""
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportPossiblyUnboundVariable=false
# (MuJoCo's compiled modules carry no type information; the arrays of a View are NumPy here)

from __future__ import annotations

import math
from typing import Any

import array_api_compat.numpy as xnp
import array_api_compat.torch as xtorch
import mujoco
import numpy as np
import pytest
import torch

from robot_rl.sim.draw import Streams
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.velocity_task import gravity, tracking_error, trunk_velocity
from robot_rl.sim.world import View
from robot_rl.sim.worlds.quadruped import NOMINAL, RANGE, Quadruped, leg_angles

ONE_THREAD = EngineOptions(num_threads=1)


def standing(n=2, command=(0.5, 0.0, 0.0)) -> Any:
    """Level robots at rest in the nominal pose at 0.3 m, heading along x."""
    qpos = np.tile([0.0, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0, *NOMINAL * 4], (n, 1))
    zero = np.zeros((n, 12), np.float32)
    task = {
        "command": np.tile(np.float32(command), (n, 1)),
        "phase": np.zeros(n, np.float32),
        "speed_error": np.zeros(n, np.float32),
        "turn_error": np.zeros(n, np.float32),
    }
    return View(xnp, qpos, np.zeros((n, 18)), np.tile(NOMINAL * 4, (n, 1)), {}, zero, zero, np.zeros(n, np.int64), task)


def turned(roll=0.0, pitch=0.0, yaw=0.0) -> np.ndarray:
    """Quaternion (w, x, y, z) of yaw about z, then pitch about y, then roll about x, by MuJoCo itself."""
    quaternion = np.zeros(4)
    mujoco.mju_euler2Quat(quaternion, np.array([yaw, pitch, roll]), "zyx")
    return quaternion


def as_torch(view: Any) -> Any:
    q, v, u, now, before, step = (
        torch.as_tensor(x).clone()
        for x in (view.qpos, view.qvel, view.ctrl, view.action, view.previous_action, view.step)
    )
    task: dict[str, Any] = {key: torch.as_tensor(value).clone() for key, value in view.task.items()}
    return View(xtorch, q, v, u, {}, now, before, step, task)


def play(world, n, policy, seed=0):
    env = make(n, seed, world=world, options=ONE_THREAD)
    obs, _ = env.reset()
    rng = np.random.default_rng(0)
    total, alive, success, length, states = np.zeros(n), np.ones(n, bool), np.zeros(n, bool), np.zeros(n, int), []
    for _ in range(world.episode_steps):
        obs, reward, terminated, truncated, info = env.step(policy(obs["state"], rng))
        total += reward * alive
        length += alive
        success |= info["success"] & alive
        alive &= ~(terminated | truncated)
        states.append(info["final_obs"]["state"])
    return total, length, success, np.stack(states)


def test_interface():
    io = make(2, 0, world=Quadruped(), options=ONE_THREAD).io
    assert io.obs == {"state": ((50,), "float32")}
    assert io.action_names[:3] == ("fl_hip", "fl_thigh", "fl_calf")
    # nominal 0, 0.8, -1.6 less and plus 0.5, 0.8, 0.9
    np.testing.assert_allclose(io.action_low[:3], (-0.5, 0.0, -2.5))
    np.testing.assert_allclose(io.action_high[:3], (0.5, 1.6, -0.7))


def test_control_names_joints_in_the_order_of_the_model():
    world = Quadruped()
    model = mujoco.MjModel.from_xml_string(world.mjcf())
    assert tuple(model.actuator(i).name for i in range(12)) == world.action_names
    assert tuple(model.joint(i + 1).name for i in range(12)) == world.action_names
    action = np.zeros((2, 12))
    action[1, 4] = 0.5
    expected = np.array(NOMINAL * 4)
    np.testing.assert_allclose(world.control(standing(), action)[0], expected)
    expected[4] += 0.5 * RANGE[1]
    np.testing.assert_allclose(world.control(standing(), action)[1], expected)


def test_gravity_and_velocity_turn_with_the_trunk():
    view = standing(4)
    view.qpos[1, 3:7] = turned(pitch=math.pi / 6)  # nose down: gravity gains a forward part sin 30 = 0.5
    view.qpos[2, 3:7] = turned(roll=math.pi / 6)  # left side up: gravity points to the right
    view.qpos[3, 3:7] = turned(yaw=math.pi / 2)  # facing y
    view.qvel[:, :3] = [0.0, 2.0, 0.0]
    c = math.sqrt(3) / 2
    np.testing.assert_allclose(gravity(view), [[0, 0, -1], [0.5, 0, -c], [0, -0.5, -c], [0, 0, -1]], atol=1e-9)
    velocity = trunk_velocity(view)
    np.testing.assert_allclose(velocity[0], [0, 2, 0], atol=1e-9)
    np.testing.assert_allclose(velocity[2], [0, 2 * c, -1], atol=1e-9)
    np.testing.assert_allclose(velocity[3], [2, 0, 0], atol=1e-9)


def test_reward_terms_by_hand():
    view = standing(2, command=(0.5, 0.0, 0.2))
    view.qvel[0] = [0.4, 0.1, 0.3, 1.0, -2.0, 0.5, *[0.0] * 12]
    view.ctrl[0, 0] += 0.1  # 50 N*m/rad * 0.1 = 5 N*m
    view.ctrl[0, 1] += 2.0  # 100 N*m, limited to 30
    view.action = np.zeros((2, 12), np.float32)
    view.action[0, :2] = [0.5, -1.0]
    view.previous_action = np.zeros((2, 12), np.float32)
    terms = Quadruped().reward_terms(view)
    expected = {
        "velocity": math.exp(-0.2),  # error (-0.1, 0.1): squared 0.02, over 0.1
        "yaw_rate": 0.5 * math.exp(-0.9),  # error 0.3: 0.09 / 0.1
        "bounce": -0.09,
        "roll_pitch_rate": -0.02 * 5.0,
        "tilt": 0.0,
        "torque": -1e-4 * (25 + 900),
        "action_rate": -0.02 * 1.25,
        "fall": 0.0,
    }
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        assert terms[name][0] == pytest.approx(value, abs=1e-6), name
    assert Quadruped().reward(view)[0] == pytest.approx(sum(expected.values()), abs=1e-5)


def test_falls_terminate_and_cost():
    world, view = Quadruped(), standing(5)
    view.qpos[1, 2] = 0.15
    view.qpos[2, 3:7] = turned(roll=math.radians(61))
    view.qpos[3, 3:7] = turned(pitch=math.radians(-59))
    view.qpos[4, 3:7] = turned(roll=math.pi)
    assert world.terminated(view).tolist() == [False, True, True, False, True]
    np.testing.assert_allclose(world.reward_terms(view)["fall"], [0, -5, -5, 0, -5])


def test_a_limp_robot_falls():
    # Legs folded to the limit of the actions: the trunk sinks below 0.16 m and the episode ends.
    fold = np.tile([0.0, 1.0, -1.0], 4)
    _, length, success, _ = play(Quadruped(), 2, lambda state, rng: np.tile(fold, (len(state), 1)))
    assert (length < 100).all()
    assert not success.any()


def test_success_is_the_mean_error_of_the_full_episode():
    world, view = Quadruped(), standing(5)
    steps = world.episode_steps
    good = 0.99 * world.bounds[0] * steps
    view.task["speed_error"] = np.array([good, good, good, 1.02 * good, good])
    view.task["turn_error"] = np.array([0.39, 0.39, 0.41, 0.39, 0.39]) * steps
    view.step[:] = [steps, steps - 1, steps, steps, steps]
    view.qpos[4, 2] = 0.1
    assert world.success(view).tolist() == [True, False, False, False, False]


def test_update_adds_the_errors_of_the_step():
    view = standing(1, command=(0.3, 0.4, -0.25))
    assert [x[0] for x in tracking_error(view)] == pytest.approx([0.5, 0.25])
    world = Quadruped()
    world.update(view)
    world.update(view)
    assert view.task["speed_error"][0] == pytest.approx(1.0)
    assert view.task["turn_error"][0] == pytest.approx(0.5)


def test_inverse_kinematics_puts_the_feet_where_asked():
    world = Quadruped()
    model = mujoco.MjModel.from_xml_string(world.mjcf())
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    side = np.array([[1.0, -1.0, 1.0, -1.0]])
    for _ in range(5):
        place = rng.uniform([-0.12, -0.06, -0.36], [0.12, 0.06, -0.2], (1, 4, 3))
        place[..., 1] += 0.08 * side
        angle = leg_angles(place[..., 0], place[..., 1], place[..., 2], side, xnp)
        data.qpos[:7] = [0, 0, 0, 1, 0, 0, 0]
        data.qpos[7:] = angle.reshape(12)
        mujoco.mj_kinematics(model, data)
        for leg, name in enumerate(("fl", "fr", "rl", "rr")):
            found = data.geom(f"{name}_foot").xpos - data.body(f"{name}_hip").xpos
            np.testing.assert_allclose(found, place[0, leg], atol=1e-9)


def test_gait_clock_turns_once_per_period():
    world, view = Quadruped(), standing(2)
    view.task["phase"][:] = [0.0, 0.25]
    start = world.observe(view)[:, 12:14]
    np.testing.assert_allclose(start, [[0, 1], [1, 0]], atol=1e-6)
    view.step[:] = 16  # 0.32 s at 50 Hz
    np.testing.assert_allclose(world.observe(view)[:, 12:14], start, atol=1e-5)


def test_reset_draws_commands_within_their_ranges():
    start = Quadruped(forward=(-0.4, -0.2), side=(0.0, 0.0)).reset(Streams(200, 0).draw(np.arange(200)), 200, xnp)
    command = start.task["command"]
    assert -0.4 <= command[:, 0].min() < -0.38
    assert -0.22 < command[:, 0].max() <= -0.2
    assert (command[:, 1] == 0).all()
    np.testing.assert_allclose(np.linalg.norm(start.qpos[:, 3:7], axis=1), 1.0, rtol=1e-5)


def test_numpy_and_torch_give_the_same_terms():
    world, rng, view = Quadruped(), np.random.default_rng(0), standing(6, (0.4, 0.1, -0.3))
    view.qpos[:, 7:] += rng.uniform(-0.3, 0.3, (6, 12))
    view.qpos[:, 3:7] += rng.uniform(-0.2, 0.2, (6, 4))
    view.qpos[:, 3:7] /= np.linalg.norm(view.qpos[:, 3:7], axis=1, keepdims=True)
    view.qvel[:] = rng.normal(size=(6, 18))
    view.action = rng.uniform(-1, 1, (6, 12)).astype(np.float32)
    other = as_torch(view)
    world.update(view)
    world.update(other)
    names = ("observe", "reward", "terminated", "success")
    pairs = [(getattr(world, name)(view), getattr(world, name)(other)) for name in names]
    pairs += [(view.task[key], other.task[key]) for key in view.task]
    pairs += [(world.control(view, view.action), world.control(other, other.action))]
    pairs += [(world.expert(pairs[0][0]), world.expert(pairs[0][1]))]
    for ours, theirs in pairs:
        assert isinstance(theirs, torch.Tensor)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_same_seed_same_episode():
    def policy(state, rng):
        return rng.uniform(-1, 1, (len(state), 12))

    first, second = (play(Quadruped(), 2, policy, seed=3)[3] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_trot_follows_the_command_and_random_falls():
    world = Quadruped()
    total, length, success, states = play(world, 16, lambda state, rng: world.expert(state), seed=1)
    assert (length == world.episode_steps).mean() >= 0.9
    assert success.mean() >= 0.9
    assert total.mean() > 400
    # mean forward speed over the last 6 s against the command
    np.testing.assert_allclose(states[200:, :, 0].mean(axis=0), states[-1, :, 9], atol=0.2)
    total, length, success, _ = play(world, 16, lambda state, rng: rng.uniform(-1, 1, (len(state), 12)))
    assert length.mean() < 150
    assert not success.any()


def test_standing_still_is_no_success():
    _, length, success, _ = play(Quadruped(), 4, lambda state, rng: np.zeros((len(state), 12)))
    assert (length == 500).all()
    assert not success.any()


@pytest.mark.parametrize("options", [{"forward": (1.0, 0.0)}, {"side": (0.0,)}, {"turn": (0.3, -0.3)}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Quadruped(**options)
