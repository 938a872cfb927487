"""The double pendulum: task terms, physics, agreement with the real arm's logs, swing-up."""
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportPossiblyUnboundVariable=false
# (MuJoCo's compiled modules carry no type information; the arrays of a View are NumPy here)

from __future__ import annotations

import gzip
import itertools
import math
from pathlib import Path
from typing import Any

import array_api_compat.numpy as xnp
import array_api_compat.torch as xtorch
import mujoco
import numpy as np
import pytest
import torch

from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.world import View
from robot_rl.sim.worlds.double_pendulum import DoublePendulum, balance, tip_height

ONE_THREAD = EngineOptions(num_threads=1)

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "double_pendulum"
ROBOTS = ("pendubot", "acrobot")


def view_of(qpos, qvel, action=(0.0,), step=1, held=0) -> Any:
    qpos, qvel = np.atleast_2d(np.asarray(qpos, float)), np.atleast_2d(np.asarray(qvel, float))
    n = len(qpos)
    action = np.tile(np.float32(action), (n, 1))
    return View(xnp, qpos, qvel, np.zeros((n, 2)), {}, action, 0 * action, np.full(n, step), {"held": np.full(n, held)})


def as_torch(view: Any) -> Any:
    q, v, u, now, before, step = (
        torch.as_tensor(x).clone()
        for x in (view.qpos, view.qvel, view.ctrl, view.action, view.previous_action, view.step)
    )
    task: dict[str, Any] = {key: torch.as_tensor(value).clone() for key, value in view.task.items()}
    return View(xtorch, q, v, u, {}, now, before, step, task)


def play(world, n, policy=None, seed=0):
    env = make(n, seed, world=world, options=ONE_THREAD)
    obs, _ = env.reset()
    rng = np.random.default_rng(0)
    total, states, truncated, info = np.zeros(n), [], np.zeros(n, bool), {}
    for _ in range(world.episode_steps):
        action = world.expert(obs["state"]) if policy is None else policy(rng, n)
        obs, reward, _, truncated, info = env.step(action)
        total += reward
        states.append(info["final_obs"]["state"])
    assert truncated.all()
    return total, info["success"], np.stack(states)


def test_interface_agrees_with_the_hardware_logs():
    env = make(3, 0, world=DoublePendulum(), options=ONE_THREAD)
    assert env.io.obs == {"state": ((6,), "float32")}
    assert env.io.action_units == ("N*m",)
    assert (env.io.action_low, env.io.action_high) == ((-5.0,), (5.0,))
    assert env.io.control_hz == 100.0


def test_state_of_known_angles():
    # q1 = 90 deg, q2 = -60 deg, speeds 10 and -4 rad/s over 20
    view = view_of([math.pi / 2, -math.pi / 3], [10.0, -4.0])
    expected = [1.0, 0.0, -math.sqrt(3) / 2, 0.5, 0.5, -0.2]
    np.testing.assert_allclose(DoublePendulum().observe(view)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("angles", "action", "height", "reward"),
    [
        ((0.0, 0.0), 0.0, -0.5, -1.0),  # hanging
        ((math.pi, 0.0), 0.0, 0.5, 1.0),  # upright
        ((math.pi, math.pi), 1.0, -0.1, -0.21),  # folded down: 0.2 - 0.3 = -0.1; -0.1 / 0.5 - 0.01 * 1
        ((math.pi / 2, math.pi / 2), -0.5, 0.3, 0.5975),  # elbow up: 0.3 / 0.5 - 0.01 * 0.25
    ],
)
def test_reward_by_hand(angles, action, height, reward):
    view = view_of(angles, [0.0, 0.0], [action])
    assert tip_height(view)[0] == pytest.approx(height, abs=1e-9)
    assert DoublePendulum().reward(view)[0] == pytest.approx(reward, abs=1e-6)


def test_success_needs_the_last_half_second_of_the_full_run():
    world = DoublePendulum()
    up, down = [math.pi, 0.0], [0.0, 0.0]
    assert not world.success(view_of(up, [0, 0], step=999, held=400))[0]
    assert not world.success(view_of(up, [0, 0], step=1000, held=49))[0]
    assert world.success(view_of(up, [0, 0], step=1000, held=50))[0]
    view = view_of([up, down], np.zeros((2, 2)), held=7)
    world.update(view)
    assert view.task["held"].tolist() == [8, 0]
    assert not world.terminated(view).any()


def test_torque_goes_to_the_driven_joint_and_stops_pumping_a_fast_arm():
    slow = view_of([0, 0], [0.1, 0.1])
    assert DoublePendulum("pendubot").control(slow, np.array([[0.5]])).tolist() == [[2.5, 0.0]]
    assert DoublePendulum("acrobot").control(slow, np.array([[-3.0]])).tolist() == [[0.0, -5.0]]
    # 30 rad/s lies half way between full (25) and no torque (35); braking torque stays whole
    fast = view_of([[0, 0], [0, 0]], [[4.0, 30.0], [-4.0, 30.0]])
    assert DoublePendulum("pendubot").control(fast, np.ones((2, 1))).tolist() == [[2.5, 0.0], [5.0, 0.0]]


def test_numpy_and_torch_give_the_same_terms():
    rng = np.random.default_rng(0)
    view = view_of(rng.uniform(-3, 3, (6, 2)), rng.uniform(-30, 30, (6, 2)), [0.3])
    other, world = as_torch(view), DoublePendulum("acrobot")
    world.update(view)
    world.update(other)
    action = rng.uniform(-1, 1, (6, 1)).astype(np.float32)
    pairs = [(getattr(world, name)(view), getattr(world, name)(other)) for name in ("observe", "reward", "success")]
    pairs += [(view.task["held"], other.task["held"])]
    pairs += [(world.control(view, action), world.control(other, torch.as_tensor(action)))]
    pairs += [(world.expert(pairs[0][0]), world.expert(pairs[0][1]))]
    for ours, theirs in pairs:
        assert isinstance(theirs, torch.Tensor)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_energy_is_conserved_without_friction():
    model = mujoco.MjModel.from_xml_string(DoublePendulum().mjcf())
    model.dof_frictionloss[:] = 0
    model.dof_damping[:] = 0
    model.opt.enableflags |= mujoco.mjtEnableBit.mjENBL_ENERGY
    data = mujoco.MjData(model)
    data.qpos[:] = [2.0, 0.5]
    mujoco.mj_forward(model, data)
    start = data.energy.sum()
    swing = []
    for _ in range(5000):  # 10 s
        mujoco.mj_step(model, data)
        swing.append(data.energy[1])
    assert max(swing) > 3.0  # it really swings: joules of kinetic energy
    assert data.energy.sum() == pytest.approx(start, abs=1e-3)


def test_inertia_about_the_joints_is_the_identified_one():
    # The file of identified parameters gives I1 = 0.031887 and I2 = 0.050870 about the joints. Hanging straight, the
    # mass matrix of the chain is M22 = I2 + armature, M11 = I1 + I2 + m2 (l1^2 + 2 l1 r2) + armature.
    model = mujoco.MjModel.from_xml_string(DoublePendulum().mjcf())
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    mass = np.zeros((2, 2))
    mujoco.mj_fullM(model, data, mass)
    armature = 6.287203962819607e-05 * 36
    assert mass[1, 1] == pytest.approx(0.05086984812807257 + armature, rel=1e-5)
    first = 0.031887199591513114 + 0.05086984812807257 + 0.6255677234174437 * (0.04 + 0.4 * 0.25569305436052964)
    assert mass[0, 0] == pytest.approx(first + armature, rel=1e-5)


@pytest.mark.parametrize("driven", [0, 1])
def test_balance_gain_stabilises_the_linear_model(driven):
    # Independent check on the simulated arm: released 3 degrees off at the top, without dry friction, it comes back.
    world = DoublePendulum(ROBOTS[driven])
    model = mujoco.MjModel.from_xml_string(world.mjcf())
    model.dof_frictionloss[:] = 0
    data = mujoco.MjData(model)
    data.qpos[:] = [math.pi + 0.05, -0.05]
    gain, cost = balance(driven, 0.01)
    assert np.linalg.eigvalsh(cost).min() > 0
    error = np.full(4, np.inf)
    for _ in range(500):
        error = np.array([data.qpos[0] - math.pi, data.qpos[1], *data.qvel])
        data.ctrl[driven] = np.clip(-gain @ error, -5, 5)
        mujoco.mj_step(model, data, 5)
    assert np.abs(error).max() < 1e-3


def test_same_seed_same_episode():
    first, second = (play(DoublePendulum(), 2, lambda rng, n: rng.uniform(-1, 1, (n, 1)), seed=5)[2] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0, 0], first[0, 1])


@pytest.mark.parametrize("robot", ROBOTS)
def test_expert_swings_up_and_random_does_not(robot):
    total, success, _ = play(DoublePendulum(robot), 16)
    assert success.mean() >= 0.9
    assert total.mean() > 600
    total, success, _ = play(DoublePendulum(robot), 8, lambda rng, n: rng.uniform(-1, 1, (n, 1)))
    assert not success.any()
    assert total.mean() < -300


@pytest.mark.parametrize("robot", ROBOTS)
def test_relentless_pumping_stays_finite(robot):
    world, joint = DoublePendulum(robot, spread=3.0), 4 + ROBOTS.index(robot)
    env = make(8, 0, world=world, options=ONE_THREAD)
    obs, _ = env.reset()
    for _ in range(1000):
        obs, *_ = env.step(np.sign(obs["state"][:, joint : joint + 1]))
        assert np.abs(obs["state"][:, 4:]).max() < 10  # 200 rad/s


@pytest.mark.parametrize(("robot", "bound"), [("pendubot", (0.0025, 0.0035)), ("acrobot", (0.0038, 0.0061))])
def test_one_sample_prediction_on_hardware_logs(robot, bound):
    if not DATA.is_dir():
        pytest.skip("needs the hardware logs, the folder shared/data/double_pendulum beside the project")
    model = mujoco.MjModel.from_xml_string(DoublePendulum(robot).mjcf())
    data, driven = mujoco.MjData(model), ROBOTS.index(robot)
    error, still = [], []
    for path in sorted((DATA / robot / "mcpilco").glob("*.csv.gz")):
        with gzip.open(path) as file:
            log = np.loadtxt(file, delimiter=",", skiprows=1)
        for now, after in itertools.pairwise(log):
            data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = now[1:3], now[3:5], 0.0
            # the torque measured at the end of the sample is the one that acted during it
            data.ctrl[:] = 0.0
            data.ctrl[driven] = after[13 + driven]
            mujoco.mj_step(model, data, max(1, round((after[0] - now[0]) / 0.002)))
            error.append(np.abs(data.qpos - after[1:3]))
            still.append(np.abs(now[1:3] + now[3:5] * (after[0] - now[0]) - after[1:3]))
    assert len(error) > 2000
    assert (np.mean(error, axis=0) <= bound).all()
    assert (np.mean(error, axis=0) < 0.7 * np.mean(still, axis=0)).all()


@pytest.mark.parametrize("options", [{"robot": "cartpole"}, {"spread": -0.1}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        DoublePendulum(**options)
