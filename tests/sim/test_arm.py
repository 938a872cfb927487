"""What the three worlds of the desk arm share: commands, contract, engine neutrality, scripted experts."""

from __future__ import annotations

from typing import Any

import array_api_compat.torch as torch_xp
import numpy as np
import pytest
import torch

from robot_rl.sim.arm import STROKE
from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import MujocoVectorEnv, make
from robot_rl.sim.world import View
from robot_rl.sim.worlds.insert import Insert
from robot_rl.sim.worlds.pick import Pick
from robot_rl.sim.worlds.reach import Reach

ONE_THREAD = EngineOptions(num_threads=1)

WORLDS = (Reach, Pick, Insert)
both = pytest.mark.parametrize("action", ["ee", "joint"])
every = pytest.mark.parametrize("world", WORLDS, ids=[world.name for world in WORLDS])


def play(env: MujocoVectorEnv, policy: Any, seed: int | list[int] = 0) -> tuple[np.ndarray, np.ndarray]:
    """One episode each: (N,) success at its last step, (N,) return."""
    obs, info = env.reset(seed=seed)
    total = np.zeros(env.num_envs)
    for _ in range(env.world.episode_steps):
        obs, reward, _, _, info = env.step(policy(obs))
        total += reward
    return info["success"], total


def torched(view: View, dtype: torch.dtype) -> View:
    """The same state as tensors."""

    def move(x: Any) -> torch.Tensor:
        return torch.tensor(np.array(x), dtype=dtype)

    return View(
        xp=torch_xp,
        qpos=move(view.qpos),
        qvel=move(view.qvel),
        ctrl=move(view.ctrl),
        sensors={},
        action=move(view.action),
        previous_action=move(view.previous_action),
        step=torch.tensor(np.array(view.step)),
        task={key: move(value) for key, value in view.task.items()},
    )


@every
@both
def test_world_keeps_the_contract(world: Any, action: str) -> None:
    env = make(3, 0, world=world(action=action), options=ONE_THREAD)
    assert check(env) == []
    assert len(env.io.obs_names) == env.io.obs["state"][0][0]
    assert len(set(env.io.obs_names)) == len(env.io.obs_names)
    env.close()


@every
@both
def test_expert_succeeds(world: Any, action: str) -> None:
    env = make(30, 0, world=world(action=action), options=ONE_THREAD)
    success, _ = play(env, env.expert, list(range(30)))
    env.close()
    assert success.mean() == 1.0


@every
def test_random_actions_do_not_succeed(world: Any) -> None:
    env = make(50, 0, world=world(), options=ONE_THREAD)
    rng = np.random.default_rng(0)
    shape = env.action_space.shape
    success, _ = play(env, lambda obs: rng.uniform(-1, 1, shape))
    env.close()
    assert success.mean() <= 0.02


@every
def test_state_has_about_unit_scale(world: Any) -> None:
    env = make(200, 0, world=world(), options=ONE_THREAD)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    largest = np.abs(obs["state"]).max()
    for _ in range(20):
        mixed = np.where(rng.random((200, 1)) < 0.5, env.expert(obs), rng.uniform(-1, 1, env.action_space.shape))
        obs, *_ = env.step(mixed)
        largest = max(largest, float(np.abs(obs["state"]).max()))
    env.close()
    assert largest < 6.0


@every
@both
def test_terms_are_the_same_in_numpy_and_torch(world: Any, action: str) -> None:
    task = world(action=action)
    env = make(8, 0, world=task, options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    for _ in range(8):
        obs, *_ = env.step(env.expert(obs))
    view: Any = env._view
    other = torched(view, torch.float64)
    np.testing.assert_allclose(task.observe(other).numpy(), task.observe(view), atol=1e-6)
    np.testing.assert_allclose(task.reward(other).numpy(), task.reward(view), atol=1e-6)
    np.testing.assert_array_equal(task.success(other).numpy(), task.success(view))
    np.testing.assert_array_equal(task.terminated(other).numpy(), task.terminated(view))
    wish = task.expert(obs["state"])
    # The state is float32, and joint moves come out of an inverse in it.
    np.testing.assert_allclose(np.asarray(task.expert(torch.from_numpy(obs["state"]))), wish, atol=2e-3)
    control = task.control(other, torch.from_numpy(wish))
    np.testing.assert_allclose(control.numpy(), task.control(view, wish), atol=1e-9)
    task.update(view)
    task.update(other)
    for key, value in other.task.items():
        np.testing.assert_allclose(np.asarray(value), view.task[key], atol=1e-9)
    for key, value in task.tool(other).items():
        np.testing.assert_allclose(np.asarray(value), task.tool(view)[key], atol=1e-9)
    # The GPU engine keeps float32; resets must serve it as well.
    single = torched(view, torch.float32)
    assert task.observe(single).dtype == torch.float32
    assert task.control(single, torch.from_numpy(wish)).shape == (8, 8)
    env.close()


class _TorchDraw:
    def __init__(self, n: int) -> None:
        self._n = n

    def uniform(self, *shape: int, low: Any = 0.0, high: Any = 1.0) -> torch.Tensor:
        return low + (high - low) * torch.rand(self._n, *shape, generator=torch.Generator().manual_seed(0))

    def normal(self, *shape: int, std: Any = 1.0) -> torch.Tensor:
        raise NotImplementedError


@every
def test_reset_answers_in_torch_where_the_draws_are_torch(world: Any) -> None:
    start = world().reset(_TorchDraw(4), 4, torch_xp)
    assert isinstance(start.qpos, torch.Tensor)
    assert start.ctrl.shape == (4, 8)
    assert all(isinstance(value, torch.Tensor) and len(value) == 4 for value in start.task.values())


@every
@pytest.mark.parametrize("control_hz", [10, 12.5, 20, 25, 40, 50])
def test_action_bounds_are_speed_over_rate(world: Any, control_hz: float) -> None:
    slow, fast = world(control_hz=10), world(control_hz=control_hz)
    assert fast.action_high[0] == pytest.approx(slow.action_high[0] * 10 / control_hz)
    assert fast.episode_steps == round(slow.episode_steps * control_hz / 10)
    assert set(fast.action_units) <= {"m", "rad"}


@every
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "torque"}, "expected 'ee'"),
        ({"control_hz": 30}, "whole number"),
        ({"control_hz": 100}, "expected 10 to 50"),
        ({"control_hz": 0}, "expected 10 to 50"),
        ({"reward": "shaped"}, "expected 'dense' or 'sparse'"),
    ],
)
def test_unknown_options_are_refused(world: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        world(**options)


@every
def test_rewards_dense_is_bounded_and_sparse_is_success(world: Any) -> None:
    for options, low, high in (({}, 0.0, 1.0), ({"terminate_on_success": True}, -1.0, 0.0)):
        env = make(8, 0, world=world(**options), options=ONE_THREAD)
        obs, _ = env.reset(seed=0)
        for _ in range(25):
            obs, reward, terminated, _, info = env.step(env.expert(obs))
            assert reward.min() >= low
            assert reward.max() <= high
            np.testing.assert_array_equal(terminated, info["success"] & bool(options))
        env.close()
    env = make(8, 0, world=world(reward="sparse"), options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    reward = np.zeros(8)
    for _ in range(25):
        obs, reward, _, _, info = env.step(env.expert(obs))
        np.testing.assert_array_equal(reward, info["success"].astype(np.float32))
    assert reward.sum() > 0
    env.close()


def test_ee_action_moves_the_tip_by_its_physical_value() -> None:
    env = make(1, 0, world=Pick(), options=ONE_THREAD)
    env.reset(seed=0)
    before = np.array(env._view.task["tip"])
    # Half of 0.04 m in y, then time to settle; the fingers close to 0.02 m of 0.08 m at -0.5.
    env.step(np.array([[0.0, 0.5, 0.0, -0.5]]))
    for _ in range(8):
        env.step(np.array([[0.0, 0.0, 0.0, -0.5]]))
    np.testing.assert_allclose(env._view.task["tip"] - before, [[0.0, 0.02, 0.0]], atol=1e-4)
    assert env._view.qpos[0, 6] + env._view.qpos[0, 7] == pytest.approx(0.25 * STROKE, abs=1e-4)
    env.close()


def test_joint_action_moves_one_joint_by_its_physical_value() -> None:
    env = make(1, 0, world=Reach(action="joint"), options=ONE_THREAD)
    env.reset(seed=0)
    before = np.array(env._view.qpos[:, :6])
    # Half of 1.5 rad/s at 10 Hz.
    env.step(np.array([[0.0, 0.0, 0.0, 0.0, 0.5, 0.0]]))
    for _ in range(15):
        env.step(np.zeros((1, 6)))
    np.testing.assert_allclose(env._view.qpos[:, :6] - before, [[0, 0, 0, 0, 0.075, 0]], atol=1e-3)
    env.close()


def test_rest_without_action_holds_the_arm_still() -> None:
    env = make(4, 0, world=Reach(), options=ONE_THREAD)
    env.reset(seed=0)
    before = np.array(env._view.qpos)
    for _ in range(20):
        env.step(np.zeros((4, 3)))
    np.testing.assert_allclose(env._view.qpos, before, atol=1e-6)
    env.close()


def test_push_into_the_table_is_stopped_by_the_leash_and_the_workspace() -> None:
    env = make(1, 0, world=Pick(action="joint"), options=ONE_THREAD)
    env.reset(seed=0)
    for _ in range(40):
        env.step(np.array([[0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]]))
    view: Any = env._view
    assert np.abs(view.task["command"] - view.qpos[:, :6]).max() <= 0.1 + 0.15 + 0.1
    assert view.task["tip"][0, 2] > -0.03
    env.close()
    env = make(1, 0, world=Pick(), options=ONE_THREAD)
    env.reset(seed=0)
    for _ in range(30):
        env.step(np.array([[-1.0, 1.0, -1.0, 1.0]]))
    np.testing.assert_allclose(env._view.task["tip"], [[0.28, 0.22, 0.016]], atol=2e-3)
    env.close()
