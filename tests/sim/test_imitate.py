"""Motion imitation: clips and cycles, errors and rewards by hand, starts from the reference, ends, learning."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import array_api_compat.numpy as xp
import mujoco
import numpy as np
import pytest

from robot_rl.data.store import write_store
from robot_rl.sim import motion_clip
from robot_rl.sim.check import check
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.motion_clip import Clip
from robot_rl.sim.motion_reward import Motion, additive, angle_between, errors, product, scales
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.world import gymnasium_model
from robot_rl.sim.worlds.imitate import Imitate, ImitateOptions
from robot_rl.types import Episode, IOSpec

ONE_THREAD = EngineOptions(num_threads=1)

EXACT: dict[str, Any] = {"noise": 0.0}


def imitate(**options: Any) -> Imitate:
    return Imitate(ImitateOptions(**options))


def motion(**changed: Any) -> Motion:
    """One row: two hinges, one end effector, at rest in the origin."""
    zero = np.zeros((1, 3))
    rest = Motion(
        np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 1, 3)), zero, np.array([[1.0, 0, 0, 0]]), *[zero] * 3
    )
    return replace(rest, **{key: np.asarray(value, float) for key, value in changed.items()})


def test_additive_reward_is_that_of_hand() -> None:
    """Errors by hand, J = 2: s_pose = 4/15, s_velocity = 0.2/15."""
    now = motion(
        joint=[[0.3, -0.4]], joint_speed=[[1.0, 2.0]], effector=[[[0.1, 0.0, 0.2]]], place=[[0.2, 0.0, 0.1]],
        turn=[[math.cos(0.25), 0.0, math.sin(0.25), 0.0]], velocity=[[1.0, 0.0, 0.0]], spin=[[0.0, 2.0, 0.0]],
        mass_velocity=[[0.5, 0.0, 0.0]],
    )  # fmt: skip
    found = errors(now, motion(), xp)
    # mean of 0.09 and 0.16; mean of 1 and 4; 0.01 + 0.04; 0.05 + 0.1 * 0.5^2 + 0.01 + 0.001 * 4; 0.1 * 0.25
    expected = {"pose": 0.125, "velocity": 2.5, "effector": 0.05, "root": 0.089, "mass": 0.025}
    assert {k: float(v[0]) for k, v in found.items()} == pytest.approx(expected)
    by_hand = (
        0.5 * math.exp(-4 / 15 * 0.125) + 0.05 * math.exp(-0.2 / 15 * 2.5) + 0.15 * math.exp(-10 * 0.05)
        + 0.2 * math.exp(-5 * 0.089) + 0.1 * math.exp(-10 * 0.025)
    )  # fmt: skip
    assert float(additive(found, scales(2), xp)[0]) == pytest.approx(by_hand)
    assert float(additive(errors(motion(), motion(), xp), scales(2), xp)[0]) == pytest.approx(1.0)


def test_product_reward_is_that_of_hand_and_vanishes_before_the_additive() -> None:
    """Positions: root 0.05 and end effector 0.01, mean 0.03; angles: root 0.25, joints 0.09 and 0, mean 0.34 / 3."""
    now = motion(
        joint=[[0.3, 0.0]], effector=[[[0.1, 0.0, 0.0]]], place=[[0.2, 0.0, 0.1]],
        turn=[[math.cos(0.25), 0.0, math.sin(0.25), 0.0]],
    )  # fmt: skip
    by_hand = math.exp(-20 * 0.03) * math.exp(-20 * 0.34 / 3)
    assert float(product(now, motion(), xp)[0]) == pytest.approx(by_hand)
    far = motion(joint=[[1.0, 1.0]])
    assert float(product(far, motion(), xp)[0]) < 1e-5 < float(additive(errors(far, motion(), xp), scales(2), xp)[0])


def test_effector_mean_is_the_sum_over_their_number() -> None:
    two = replace(motion(), effector=np.array([[[0.1, 0, 0], [0, 0.3, 0]]]))
    none = replace(motion(), effector=np.zeros((1, 2, 3)))
    assert float(errors(two, none, xp)["effector"][0]) == pytest.approx(0.1)
    assert float(errors(two, none, xp, effector="mean")["effector"][0]) == pytest.approx(0.05)


def test_a_quaternion_and_its_negative_are_the_same_turn() -> None:
    a = np.array([[math.cos(0.3), math.sin(0.3), 0.0, 0.0]])
    one = np.array([[1.0, 0.0, 0.0, 0.0]])
    assert float(angle_between(a, one, xp)[0]) == pytest.approx(0.6)
    assert float(angle_between(-a, one, xp)[0]) == pytest.approx(0.6)
    assert float(angle_between(-one, one, xp)[0]) == 0.0


def walk(period: int = 40, frames: int = 130) -> Clip:
    """Planar root that travels 0.05 m per frame, one hinge that swings."""
    t = np.arange(frames)
    wave = 2 * math.pi * t / period
    qpos = np.stack([0.05 * t, 1.0 + 0.1 * np.sin(wave), 0.0 * t, np.cos(wave)], 1)
    qvel = np.gradient(qpos, 0.01, axis=0)
    return Clip(qpos, qvel, np.zeros((frames, 1)), 100.0)


def test_cycle_finds_the_period_and_closes() -> None:
    found = motion_clip.cycle(walk(), 0.2, 0.6, 1)
    assert len(found.qpos) == 40
    assert found.loop
    np.testing.assert_allclose(found.stride, [2.0, 0.0])
    assert found.qpos[0, 0] == 0.0
    np.testing.assert_allclose(found.qpos[-1, 1:] - found.qpos[0, 1:], 0.0, atol=0.16)  # one frame apart


def test_cycle_that_does_not_close_is_closed_without_a_jump() -> None:
    base = walk()
    drift = base.qpos + np.stack([0 * base.qpos[:, 0], 0.002 * np.arange(130), *[0 * base.qpos[:, 0]] * 2], 1)
    found = motion_clip.cycle(replace(base, qpos=drift), 0.35, 0.45, 1)
    step = np.abs(np.diff(np.concatenate([found.qpos, found.qpos[:1]])[:, 1:], axis=0)).max(0)
    inside = np.abs(np.diff(found.qpos[:, 1:], axis=0)).max(0)
    assert (step <= inside + 1e-6).all()


def test_resampled_cycle_keeps_its_stride_and_its_velocity_agrees_with_its_positions() -> None:
    found = motion_clip.resample(motion_clip.cycle(walk(), 0.2, 0.6, 1), 33.0)
    assert len(found.qpos) == 13  # 0.4 s of 33 Hz are 13.2 frames: the cycle becomes a little faster
    np.testing.assert_allclose(found.stride, [2.0, 0.0])
    ahead = np.concatenate([found.qpos[:, 0], [2.0]])
    np.testing.assert_allclose(np.diff(ahead), 2.0 / 13)
    np.testing.assert_allclose(found.qvel[1:-1, 0], 2.0 / 13 * 33.0)


def store(folder: Path, state: np.ndarray) -> str:
    """A store of one episode."""
    steps = len(state) - 1
    action, none = np.full((steps, 3), 0.5, np.float32), np.zeros(steps, bool)
    stamp = np.arange(steps + 1) / 125.0
    obs = {"state": state.astype(np.float32)}
    io = IOSpec({"state": ((state.shape[1],), "float32")}, ("a", "b", "c"), (-1.0,) * 3, (1.0,) * 3, ("1",) * 3, 125.0)
    write_store(folder, [Episode(obs, action, action, np.zeros(steps, np.float32), False, True, none, stamp)], io=io)
    return str(folder)


def test_store_gives_the_place_that_was_not_observed_and_velocities_beyond_the_clip(tmp_path: Path) -> None:
    frames = 60
    state = np.zeros((frames + 1, 11))
    state[:, 0], state[:, 5] = 1.25, 2.5
    state[:, 4], state[:, 10] = 0.12 * np.arange(frames + 1), 10.0  # the foot turns at 15 rad/s, observed as 10
    world = imitate(clip=store(tmp_path / "x.store", state), control_hz=125.0, clip_start=0.0, period=None)
    np.testing.assert_allclose(np.diff(world.clip.qpos[:, 0]), 2.5 / 125, rtol=1e-5)
    np.testing.assert_allclose(world.clip.qvel[:, 5], 15.0, rtol=1e-4)
    np.testing.assert_allclose(world.clip.action, 0.5)


def test_npz_without_velocities_gets_them_from_differences(tmp_path: Path) -> None:
    qpos = np.tile([0.0, 1.25, 0, 0, 0, 0], (20, 1))
    qpos[:, 0] = 0.03 * np.arange(20)
    np.savez(tmp_path / "x.npz", qpos=qpos, control_hz=50.0)
    world = imitate(clip=str(tmp_path / "x.npz"), control_hz=50, clip_start=0.0, period=None)
    np.testing.assert_allclose(world.clip.qvel[:, 0], 1.5)


def test_a_recording_in_which_quaternions_change_their_sign_is_the_same_motion(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(gymnasium_model("ant"))
    qpos = np.tile(model.qpos0, (40, 1))
    turn = np.linspace(-1.5, 1.5, 40)
    qpos[:, 3], qpos[:, 6] = np.cos(turn), np.sin(turn)
    found = []
    for name, sign in (("one", 1.0), ("other", -1.0)):
        qpos[15:25, 3:7] *= sign
        np.savez(tmp_path / name, qpos=qpos, control_hz=50.0)
        clip = motion_clip.read(str(tmp_path / f"{name}.npz"), model, actions=8)
        found.append(motion_clip.resample(clip, 100.0).qpos)
    np.testing.assert_allclose(*found)


def test_saved_cycle_is_read_as_it_was(tmp_path: Path) -> None:
    one = imitate()
    motion_clip.save(one.clip, str(tmp_path / "x.npz"))
    other = imitate(clip=str(tmp_path / "x.npz"))
    assert other.clip.loop
    np.testing.assert_allclose(other.clip.qpos, one.clip.qpos, atol=1e-6)
    np.testing.assert_allclose(other.clip.stride, one.clip.stride, atol=1e-6)


def test_worlds_keep_the_contract() -> None:
    cases: list[dict[str, Any]] = [{}, {"sees": "reference", "reward": "product", "start": "rest"}]
    for options in cases:
        assert check(make(3, 0, world=imitate(**options), options=ONE_THREAD), steps=80) == []


@pytest.mark.parametrize("cycles", [0, 3])
def test_state_of_the_reference_earns_everything_at_every_frame(cycles: int) -> None:
    """Starts are frames of the clip, velocities too; and the reference travels on from cycle to cycle."""
    world = imitate(**EXACT)
    env = make(200, 0, world=world, options=ONE_THREAD)
    env.reset(seed=1)
    view = env._view
    frame = view.task["frame"]
    assert len(np.unique(frame)) > 0.9 * len(world.clip.qpos)  # starts are all over the cycle
    rows = np.arange(200)
    qpos = world.clip.qpos[frame] + cycles * np.array([world.clip.stride[0], 0, 0, 0, 0, 0])
    env.physics.place(rows, qpos, world.clip.qvel[frame], np.zeros((200, 3)))
    view.task["frame"] = frame + cycles * len(world.clip.qpos)
    for name, value in world.errors(view).items():
        np.testing.assert_allclose(value, 0.0, atol=1e-9, err_msg=name)
    world.update(view)
    np.testing.assert_allclose(world.reward(view), 1.0, atol=1e-6)
    assert not world.terminated(view).any()


def test_starts_other_than_the_clip_are_its_first_frame_and_the_rest_pose() -> None:
    first, rest = (make(4, 0, world=imitate(start=start, **EXACT), options=ONE_THREAD) for start in ("first", "rest"))
    first.reset(seed=0)
    rest.reset(seed=0)
    np.testing.assert_allclose(first._view.qpos, np.tile(imitate().clip.qpos[0], (4, 1)), atol=1e-6)
    np.testing.assert_allclose(rest._view.qpos, np.tile([0, 1.25, 0, 0, 0, 0], (4, 1)), atol=1e-6)
    assert not rest._view.qvel.any()


def test_a_fall_ends_the_episode_and_earns_nothing() -> None:
    env = make(3, 0, world=imitate(max_lag=0.5, **EXACT), options=ONE_THREAD)
    env.reset(seed=0)
    world, view = env.world, env._view
    qpos, qvel = np.array(view.qpos), np.array(view.qvel)
    qpos[0, 1] = 0.15  # torso into the ground
    qpos[1, 2] += 2.0  # turned by more than a quarter
    qpos[2, 0] += 0.6  # ahead
    env.physics.place(np.arange(3), qpos, qvel, np.zeros((3, 3)))
    world.update(view)
    assert world.terminated(view).all()
    assert not world.reward(view).any()
    assert not world.success(view).any()
    calm = imitate(max_tilt=None, touch=(), **EXACT)
    calm.update(view)
    assert not calm.terminated(view).any()
    assert (calm.reward(view) > 0).all()


def test_a_clip_that_is_no_cycle_ends_with_its_last_frame(tmp_path: Path) -> None:
    qpos = np.tile([0.0, 1.25, 0, 0, 0, 0], (12, 1))
    np.savez(tmp_path / "x.npz", qpos=qpos, control_hz=62.5)
    env = make(
        50,
        0,
        world=imitate(clip=str(tmp_path / "x.npz"), clip_start=0.0, period=None, **EXACT),
        options=ONE_THREAD,
    )
    env.reset(seed=0)
    left = 11 - env._view.task["frame"]
    assert left.min() == 1
    assert left.max() == 11
    for k in range(1, 11):
        _, _, terminated, truncated, info = env.step(np.zeros((50, 3)))
        now = left == k
        assert (terminated | truncated)[now].all()
        assert info["success"][now].all()
        assert not (terminated | truncated)[left > k].any()
        left[now] = -1  # started anew


def test_free_root_in_any_heading_earns_everything_in_its_own_frames(tmp_path: Path) -> None:
    """Ant: quaternion, places in x and y, unnamed feet; half-way frames keep unit quaternions."""
    frames, rng = 20, np.random.default_rng(0)
    turn = np.linspace(0.0, 1.0, frames)
    qpos = np.zeros((frames, 15))
    qpos[:, 0], qpos[:, 1], qpos[:, 2] = 0.02 * np.arange(frames), 0.01 * np.arange(frames), 0.8
    qpos[:, 3], qpos[:, 6] = np.cos(turn), np.sin(turn)
    qpos[:, 7:] = [0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0, 1.0] + rng.normal(size=8) * 0.1
    np.savez(tmp_path / "ant.npz", qpos=qpos, control_hz=20.0)
    world = imitate(clip=str(tmp_path / "ant.npz"), model="ant", control_hz=50.0, clip_start=0.0, period=None, **EXACT)
    np.testing.assert_allclose(np.linalg.norm(world._qpos[:, 3:7], axis=1), 1.0)
    assert "lead_y" in world.obs_names
    env = make(30, 0, world=world, options=ONE_THREAD)
    env.reset(seed=0)
    for name, value in world.errors(env._view).items():
        np.testing.assert_allclose(value, 0.0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("model", "joints"), [("walker2d", 6), ("half_cheetah", 6)])
def test_other_planar_bodies_load(tmp_path: Path, model: str, joints: int) -> None:
    qpos = np.zeros((10, 3 + joints))
    qpos[:, 1] = 1.25 if model == "walker2d" else 0.0
    np.savez(tmp_path / "x.npz", qpos=qpos, control_hz=20.0)
    options: dict[str, Any] = {"model": model, "control_hz": 20.0, "clip_start": 0.0, "period": None}
    env = make(2, 0, world=imitate(clip=str(tmp_path / "x.npz"), **options), options=ONE_THREAD)
    obs, _ = env.reset(seed=0)
    assert obs["state"].shape == (2, len(env.world.obs_names))
    assert len(env.io.action_names) == joints


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip": "nowhere"}, "no motion at"),
        ({"start": "middle"}, "start is 'middle', expected one of clip, first or rest"),
        ({"touch": ["tail"]}, "bodies of hopper"),
        ({"model": "cat"}, "hopper or walker2d"),
        ({"model": "walker2d"}, "expected"),
        ({"control_hz": 0.0}, "control_hz is 0.0, expected a number above 0"),
        ({"seconds": 0.01, "control_hz": 20.0}, "are no step"),
    ],
)
def test_wrong_options_say_what_was_expected(options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        imitate(**options)


@pytest.mark.slow
def test_ppo_learns_to_hop() -> None:
    """150,000 steps: a random policy stays up for about 45 steps of 500 and earns 28."""
    from robot_rl.loops.evaluate import evaluate
    from robot_rl.loops.on_policy import OnPolicy
    from robot_rl.policies.online.ppo import Ppo, PpoOptions

    env = make(32, 0, world=imitate(), options=ONE_THREAD)
    options = PpoOptions(rollout_steps=64, minibatch=256, epochs=5, lr=1e-3, log_std_init=-1.0, normalize_reward=False)
    learner = Ppo(options, env.io, gamma=0.97)
    loop = OnPolicy(env, learner)
    loop.run(150_000)
    score = evaluate(make(20, 7, world=imitate(), options=ONE_THREAD), learner.policy, episodes=20).returns
    assert np.mean(score) > 90.0, score
