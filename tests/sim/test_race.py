"""The race: track geometry, checkpoints, reward, collisions, practice starts, the scripted driver."""
# pyright: reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportPossiblyUnboundVariable=false
# (MuJoCo's compiled modules carry no type information; the arrays of a View are NumPy here)

from __future__ import annotations

import math
from typing import Any

import array_api_compat.numpy as xnp
import array_api_compat.torch as xtorch
import numpy as np
import pytest
import torch

from robot_rl.sim.draw import Streams
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.world import View, heading
from robot_rl.sim.worlds.race import FASTEST, STEER, Race
from robot_rl.sim.worlds.race_track import centre_line, load_points

ONE_THREAD = EngineOptions(num_threads=1)


def draw(n, seed=0):
    return Streams(n, seed).draw(np.arange(n))


def started(world, n=4, seed=0) -> Any:
    start = world.reset(draw(n, seed), n, xnp)
    zero = np.zeros((n, 2), np.float32)
    task = dict(start.task)
    return View(xnp, start.qpos, start.qvel, start.ctrl, {}, zero, zero, np.zeros(n, np.int64), task)


def put(view, world, place, offset=0.0, askew=0.0):
    """Move every car to `place` metres along the track, `offset` to the left, turned by `askew`, and update."""
    line = world._line
    place = np.broadcast_to(np.asarray(place, float), (len(view.step),)) % world.length
    index = np.round(place / world._spacing).astype(int) % len(line["xy"])
    course = line["heading"][index]
    view.qpos[:, 0] = line["xy"][index, 0] - np.sin(course) * offset
    view.qpos[:, 1] = line["xy"][index, 1] + np.cos(course) * offset
    view.qpos[:, 3], view.qpos[:, 6] = np.cos((course + askew) / 2), np.sin((course + askew) / 2)
    world.update(view)


def gates(view, world):
    return np.floor(view.task["best"] / (world.length / world.checkpoints) + 1e-3).astype(int)


def as_torch(view: Any) -> Any:
    q, v, u, now, before, step = (
        torch.as_tensor(x).clone()
        for x in (view.qpos, view.qvel, view.ctrl, view.action, view.previous_action, view.step)
    )
    task: dict[str, Any] = {key: torch.as_tensor(value).clone() for key, value in view.task.items()}
    return View(xtorch, q, v, u, {}, now, before, step, task)


def play(world, n, steps, policy, seed=0):
    env = make(n, seed, world=world, options=ONE_THREAD)
    obs, _ = env.reset()
    rng = np.random.default_rng(0)
    total, alive, success, states = np.zeros(n), np.ones(n, bool), np.zeros(n, bool), [obs["state"]]
    for _ in range(steps):
        obs, reward, terminated, truncated, info = env.step(policy(obs["state"], rng))
        total += reward * alive
        success |= info["success"] & alive
        alive &= ~(terminated | truncated)
        states.append(obs["state"])
    return total, alive, success, np.stack(states)


def test_centre_line_of_points_on_a_circle():
    # A cubic B-spline of 12 points on a circle of radius 3 is nearly a circle of radius 3 (4 + 2 cos 30 deg) / 6 at the
    # knots = 2.866, so length 2 pi r = 18.0 and curvature 1 / r = 0.349 everywhere, turning left.
    angle = np.arange(12) * math.pi / 6
    line = centre_line(3.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1), 0.1)
    assert float(line["length"]) == pytest.approx(18.0, rel=2e-3)
    assert len(line["xy"]) == 180
    np.testing.assert_allclose(np.linalg.norm(line["xy"], axis=1), 2.866, atol=0.01)
    np.testing.assert_allclose(line["curvature"], 0.349, atol=0.02)


def test_lanes_of_the_track_keep_their_distance():
    world = Race()
    xy, count = world._line["xy"], len(world._line["xy"])
    apart = np.linalg.norm(xy[:, None] - xy[None], axis=2)
    steps = np.abs(np.arange(count)[:, None] - np.arange(count))
    far = np.minimum(steps, count - steps) > 40
    assert apart[far].min() > 2 * world.half_width + 0.4


def test_interface():
    env = make(2, 0, world=Race(), options=ONE_THREAD)
    assert env.io.obs == {"state": ((len(Race.obs_names),), "float32")}
    assert (env.io.action_low, env.io.action_high) == ((-STEER, -1.0), (STEER, FASTEST))


def test_state_of_a_placed_car():
    world = Race()
    view = started(world)
    put(view, world, view.task["gate"] * world.length / 12, offset=0.3, askew=math.pi / 6)
    yaw = heading(view)
    view.qvel[:, 0], view.qvel[:, 1], view.qvel[:, 5] = 2.0 * np.cos(yaw), 2.0 * np.sin(yaw), -1.0
    state = dict(zip(world.obs_names, world.observe(view)[0]))
    # 2 m/s straight ahead; 0.3 m of 0.6 m to the left; 30 degrees off
    assert state["forward_speed/4"] == pytest.approx(0.5, abs=1e-5)
    assert state["side_speed/4"] == pytest.approx(0.0, abs=1e-5)
    assert state["yaw_rate/4"] == pytest.approx(-0.25)
    assert state["offset/half_width"] == pytest.approx(0.5, abs=1e-3)
    assert state["sin_heading_error"] == pytest.approx(0.5, abs=1e-3)
    assert state["lap_left"] == pytest.approx(1.0, abs=1e-2)


def test_control_maps_to_ackermann_angles_and_wheel_speed():
    world = Race()
    control = world.control(started(world, 3), np.array([[0.0, 1.0], [0.0, -1.0], [1.0, 0.2]]))
    # 4 m/s over 0.05 m radius = 80 rad/s; -1 m/s = -20 rad/s; 0.2 -> 1.5 + 2.5 * 0.2 = 2 m/s = 40 rad/s
    np.testing.assert_allclose(control[:, 2], [80.0, -20.0, 40.0])
    np.testing.assert_allclose(control[:2, :2], 0.0)
    # the lines through both front axles meet on the rear axle's line: cot(right) - cot(left) = width / wheelbase
    left, right = control[2, :2]
    assert 1 / math.tan(right) - 1 / math.tan(left) == pytest.approx(0.22 / 0.30)
    assert left > STEER > right


def test_reward_by_hand():
    world = Race()
    view = started(world, 3)
    view.task["advance"] = np.array([0.15, -0.1, 0.2])
    view.task["finished"] = np.array([False, False, True])
    view.action = np.array([[0.5, 0.0], [0.0, 0.0], [0.0, 0.0]])
    view.previous_action = np.array([[-0.5, 0.0], [0.0, 0.9], [0.0, 0.0]])
    # 0.15 - 0.05 * 1^2; -0.1; 0.2 + 5
    np.testing.assert_allclose(world.reward(view), [0.10, -0.1, 5.2], rtol=1e-6)
    put(view, world, view.task["place"], offset=0.5)
    view.task["advance"] = np.array([0.15, -0.1, 0.2])
    view.task["finished"] = np.zeros(3, bool)
    np.testing.assert_allclose(world.reward(view), [-4.90, -5.1, -4.8], rtol=1e-6)


@pytest.mark.parametrize(
    # the footprint is 0.27 m wide and 0.40 m long, the lane 1.2 m: straight it may be 0.465 m off, across 0.4 m
    ("offset", "askew", "hit"),
    [(0.45, 0.0, False), (0.48, 0.0, True), (-0.48, 0.0, True), (0.38, math.pi / 2, False), (0.42, math.pi / 2, True)],
)
def test_collision_is_the_footprint_across_the_border(offset, askew, hit):
    world = Race()
    view = started(world)
    put(view, world, view.task["place"], offset=offset, askew=askew)
    assert world.terminated(view).tolist() == [hit] * 4


def test_checkpoints_fall_one_by_one_and_a_lap_is_all_of_them():
    world = Race()
    view = started(world)
    start = view.task["gate"] * world.length / world.checkpoints
    seen, finished = [0], 0
    for step in range(1, 420):  # 0.15 m a step: the lap of about 61 m takes about 406
        put(view, world, start + 0.15 * step)
        seen.append(int(gates(view, world)[0]))
        finished += int(view.task["finished"][0])
        done = 0.15 * step >= world.length + 0.1
        if done or 0.15 * step < world.length - 0.1:
            assert world.success(view).tolist() == [done] * 4
    assert max(np.diff(seen)) == 1
    assert seen[-1] == world.checkpoints
    assert finished == 1


def test_driving_backwards_passes_nothing():
    world = Race()
    view = started(world)
    start = view.task["gate"] * world.length / world.checkpoints
    total = np.zeros(4)
    for step in range(1, 450):  # more than a lap, the wrong way round
        put(view, world, start - 0.15 * step)
        total += view.task["advance"]
    assert gates(view, world).tolist() == [0] * 4
    assert not world.success(view).any()
    np.testing.assert_allclose(total, -0.15 * 449, atol=0.1)
    assert (view.task["best"] < 0.1).all()


def test_checkpoint_passed_twice_counts_once():
    world = Race()
    view = started(world)
    start = view.task["gate"] * world.length / world.checkpoints
    for step in [*range(40), *range(40, 20, -1), *range(20, 40), *range(40, 20, -1)]:
        put(view, world, start + 0.15 * step)
    assert gates(view, world).tolist() == [1] * 4  # 40 * 0.15 = 6 m: past the first gate at 5.1 m, never the second


def test_a_jump_across_the_infield_does_not_count():
    world = Race()
    view = started(world)
    start = view.task["gate"] * world.length / world.checkpoints
    put(view, world, start + world.length / 2)
    # sought only within 0.8 m of where it was: it gets no further along, and is off the track
    assert (np.abs(view.task["progress"]) < 30.0).all()
    assert world.terminated(view).all()
    assert not world.success(view).any()


def test_practice_starts_at_the_last_checkpoint_passed():
    practice, ordinary = Race(practice=True), Race()
    view = started(practice, 64)
    view.task["best"] = np.full(64, 2.5 * practice.length / 12)  # two gates passed, half way to the third
    view.task["lap"] = np.zeros(64, bool)
    after = practice.reset_after(draw(64, 1), view)
    np.testing.assert_array_equal(after.task["gate"], (view.task["gate"] + 2) % 12)
    assert (after.task["best"] == 0).all()
    other = ordinary.reset_after(draw(64, 1), view)
    assert not np.array_equal(other.task["gate"], after.task["gate"])
    view.task["lap"] = np.ones(64, bool)
    np.testing.assert_array_equal(practice.reset_after(draw(64, 1), view).task["gate"], other.task["gate"])


def test_numpy_and_torch_give_the_same_terms():
    world, rng = Race(), np.random.default_rng(0)
    view = started(world, 8)
    view.qpos[:, :2] += rng.uniform(-0.5, 0.5, (8, 2)).astype(np.float32)
    view.qvel[:] = rng.normal(size=view.qvel.shape)
    view.action = rng.uniform(-1, 1, (8, 2)).astype(np.float32)
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
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-4)


def test_same_seed_same_episode():
    def policy(state, rng):
        return rng.uniform(-1, 1, (len(state), 2))

    first, second = (play(Race(), 2, 100, policy, seed=3)[3] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_driver_laps_and_random_does_not():
    world = Race()
    total, alive, success, _ = play(world, 4, 480, lambda state, rng: world.expert(state))
    assert success.all()
    assert alive.all()
    assert (total > world.length).all()
    total, alive, success, _ = play(world, 8, 200, lambda state, rng: rng.uniform(-1, 1, (len(state), 2)))
    assert not success.any()
    assert total.mean() < 5


def test_car_reaches_the_speed_it_is_asked_for():
    # Straight ahead on the longest straight, 2 m/s: action (2 - 1.5) / 2.5 = 0.2.
    world = Race()
    env = make(1, 0, world=world, options=ONE_THREAD)
    env.reset()
    state = None
    for _ in range(30):
        state = env.step(np.array([[0.0, 0.2]]))[4]["final_obs"]["state"][0]
        if abs(state[4]) > 0.6:
            break
    assert state is not None
    assert state[0] * 4 == pytest.approx(2.0, abs=0.25)


@pytest.mark.parametrize("options", [{"track": "monza"}, {"half_width": 3.0}, {"checkpoints": 1}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Race(**options)
    assert len(load_points("club")) >= 4


def test_the_engine_lets_the_world_choose_the_start_after_an_episode():
    world = Race(practice=True)
    asked = []
    follow = world.reset_after

    def reset_after(draw, view):
        asked.append(len(view.step))
        return follow(draw, view)

    world.reset_after = reset_after
    env = make(4, 0, world=world)
    env.reset(seed=0)
    env.reset(options={"reset_mask": np.array([True, False, False, False])})
    assert asked == []  # resets from outside start anew
    for _ in range(400):
        _, _, terminated, truncated, _ = env.step(np.ones((4, 2), np.float32))  # hard to the left, into the wall
        if (terminated | truncated).any():
            break
    assert asked == [int((terminated | truncated).sum())]
    env.close()
