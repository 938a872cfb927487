"""The frame of the tool's start pose: there and back, a moved scene, and a method that does not know."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from robot_rl import build
from robot_rl.policies.human.relative_frame import RelativeFrame, RelativeFrameOptions
from robot_rl.policies.human.relative_frame_start import StartFrame
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.sim.worlds.insert import Insert
from robot_rl.sim.worlds.reach import Reach
from robot_rl.types import IOSpec, Transitions

NAMES = (
    *(f"{kind}_{axis}" for kind in ("tip", "tip_velocity", "tip_lag") for axis in "xyz"),
    "yaw",
    *(f"start_{axis}" for axis in ("x", "y", "z", "yaw")),
    *(f"tip_to_hole_{axis}" for axis in "xyz"),
    "yaw_to_hole",
)
ACTIONS = ("tip_dx", "tip_dy", "tip_dz", "tip_dyaw")
IO = IOSpec(
    {"state": ((len(NAMES),), "float32")}, ACTIONS, (-1.0,) * 4, (1.0,) * 4, ("m", "m", "m", "rad"), 10.0, NAMES
)


def moved(state, action, *, shift, turn):
    """The same scene elsewhere in the base: every place shifted and turned, every vector turned."""
    out, done = state.copy(), action.copy()
    c, s = math.cos(turn), math.sin(turn)

    def rotate(rows, x):
        a, b = rows[:, x].copy(), rows[:, x + 1].copy()
        rows[:, x], rows[:, x + 1] = c * a - s * b, s * a + c * b

    for first in (0, 3, 6, NAMES.index("start_x"), NAMES.index("tip_to_hole_x")):
        rotate(out, first)
    for first in (0, NAMES.index("start_x")):
        out[:, first : first + 3] += shift
    out[:, [NAMES.index("yaw"), NAMES.index("start_yaw")]] += turn
    rotate(done, 0)
    return out, done


def scenes(count=20, seed=0):
    rng = np.random.default_rng(seed)
    action = rng.uniform(-0.6, 0.6, (count, 4)).astype(np.float32)
    return rng.standard_normal((count, len(NAMES))).astype(np.float32), action


def test_a_moved_scene_looks_the_same_and_actions_turn_with_it():
    frame, (state, action) = StartFrame(IO), scenes()
    there, done = moved(state, action, shift=np.float32([0.3, -0.2, 0.1]), turn=0.7)
    np.testing.assert_allclose(frame.observe(there), frame.observe(state), atol=1e-5)
    np.testing.assert_allclose(frame.from_base(done, there), frame.from_base(action, state), atol=1e-5)
    assert "start_x" not in frame.io.obs_names
    assert frame.io.obs["state"] == ((len(NAMES) - 4,), "float32")


def test_round_trip_and_no_rotation_out_of_translation():
    frame, (state, action) = StartFrame(IO), scenes()
    np.testing.assert_allclose(frame.to_base(frame.from_base(action, state), state), action, atol=1e-6)
    tensor = frame.to_base(torch.from_numpy(action), torch.from_numpy(state))
    np.testing.assert_allclose(tensor, frame.to_base(action, state), atol=1e-6)
    pure = action.copy()
    pure[:, 3] = 0.0
    assert (frame.to_base(pure, state)[:, 3] == 0.0).all()
    assert (frame.to_base(action, state)[:, 2:] == action[:, 2:]).all()
    full = np.tile(np.float32([1, 1, 0, 0]), (20, 1))  # a corner of the box cannot be turned: its direction stays
    turned = frame.to_base(full, state)
    assert np.abs(turned).max() <= 1.0
    angle = np.arctan2(turned[:, 1], turned[:, 0]) - state[:, NAMES.index("start_yaw")]
    np.testing.assert_allclose(np.cos(angle - math.pi / 4), 1.0, atol=1e-5)


def test_learner_behaves_the_same_in_a_moved_scene():
    small = build.prepare(
        "policy",
        {"name": "human/imitation_sac", "hidden": (16, 16), "batch_size": 32, "bc_steps": 20, "utd": 1, "dither": 0.0},
    )
    learner = RelativeFrame(RelativeFrameOptions(method=small), IO, seed=0)
    state, action = scenes(64)
    flag = torch.zeros(64, dtype=torch.bool)
    batch = Transitions(
        {"state": torch.from_numpy(state)},
        torch.from_numpy(action),
        torch.rand(64),
        torch.full((64,), 0.97),
        {"state": torch.from_numpy(state[::-1].copy())},
        flag,
        flag,
        flag,
        ~flag,
        {"imitate": torch.ones(64)},
    )
    learner.pretrain(iter([batch] * 20))
    learner.update(iter([batch] * 4))
    there, _ = moved(state, action, shift=np.float32([0.5, 0.5, 0.0]), turn=-1.1)
    here = learner.policy.act({"state": state}, deterministic=True).value
    seen = learner.policy.act({"state": there}, deterministic=True).value
    frame = learner.frame
    corner = np.abs(here[:, :2]).max(1) < 0.7
    assert corner.sum() > 20
    np.testing.assert_allclose(frame.from_base(seen, there)[corner], frame.from_base(here, state)[corner], atol=1e-4)
    assert learner.values({"state": state}, here).shape == (4, 64)
    again = RelativeFrame(RelativeFrameOptions(method=small), IO, seed=3)
    again.load_state_dict(learner.state_dict())
    again.update(iter([batch] * 4))
    learner.update(iter([batch] * 4))
    assert torch.equal(again.learner.policy.state_dict()["actor"], learner.learner.policy.state_dict()["actor"])


def test_what_surrounds_the_policy_reaches_it():
    io = replace(IO, action_names=(*ACTIONS[:3], "gripper_opening"))
    grips = build.prepare("policy", {"name": "human/hil_serl", "hidden": (8,)})
    policy, state = RelativeFrame(RelativeFrameOptions(method=grips), io, seed=0).policy, {"state": scenes(2)[0]}
    policy.act(state)
    policy.parts.executed(np.float32([[0.0, 0.0, 0.0, -1.0]] * 2))
    midst = policy.parts.save()
    policy.reset()
    policy.parts.restore(midst)
    assert policy.parts.save()["held"].tolist() == [-1.0, -1.0]
    sac = build.prepare("policy", {"name": "human/imitation_sac", "hidden": (8,)})
    policy = RelativeFrame(RelativeFrameOptions(method=sac), IO, seed=0).policy
    first = policy.act(state).value
    drawn = []
    for _ in range(2):
        policy.parts.reseed(5)
        drawn.append(policy.act(state).value)
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != first).any()


@pytest.mark.parametrize("world", [Reach(start_pose=True), Insert(start_pose=True)])
def test_worlds_tell_the_start_and_the_expert_still_finds_its_way(world):
    env = make(8, 0, world=world, options=EngineOptions(num_threads=1))
    obs, _ = env.reset(seed=0)
    names = list(env.io.obs_names)
    assert len(names) == obs["state"].shape[1]
    tip, start = [[names.index(f"{kind}_{axis}") for axis in "xyz"] for kind in ("tip", "start")]
    first = obs["state"].copy()
    np.testing.assert_allclose(first[:, tip], first[:, start], atol=1e-6)
    info = {}
    for _ in range(world.episode_steps - 1):
        obs, _, _, _, info = env.step(env.expert(obs))
        np.testing.assert_array_equal(obs["state"][:, start], first[:, start])
    assert info["success"].mean() > 0.9
    seen = StartFrame(env.io).observe(first)
    kept = StartFrame(env.io).io.obs_names
    assert np.abs(seen[:, [kept.index(f"tip_{axis}") for axis in "xyz"]]).max() < 1e-6
    env.close()


def test_what_cannot_be_turned_is_refused():
    with pytest.raises(ValueError, match=r"start_pose=true"):
        StartFrame(replace(IO, obs_names=tuple(name.replace("start", "begin") for name in NAMES)))
    with pytest.raises(ValueError, match=r"cameras=\[\]"):
        StartFrame(replace(IO, obs={**IO.obs, "image.front": ((8, 8, 3), "uint8")}, obs_names=()))
    with pytest.raises(ValueError, match="action='ee'"):
        Reach(action="joint", start_pose=True)
