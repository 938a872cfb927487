"""Critics that read more than the policy sees: what they learn from it, and that nothing that acts needs it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from robot_rl import api, checkpoint
from robot_rl.loops.on_policy import train_on_policy
from robot_rl.policies.contrib.dqn import Dqn, DqnOptions
from robot_rl.policies.human.hil_serl import HilSerl, HilSerlOptions
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.policies.online.ppo import Ppo, PpoOptions
from robot_rl.policies.online.ppo_async import PpoAsync, PpoAsyncOptions
from robot_rl.policies.online.ppo_chunk import PpoChunk, PpoChunkOptions
from robot_rl.policies.online.recurrent_ppo import RecurrentPpo, RecurrentPpoOptions
from robot_rl.policies.online.sac import Sac, SacOptions
from robot_rl.sim.array_env import ArrayVectorEnv
from robot_rl.sim.worlds.pendulum import Pendulum
from robot_rl.types import IOSpec, Transitions
from robot_rl.types.io import PRIVILEGED
from robot_rl.words import Refused

BLIND = IOSpec(
    obs={"state": ((2,), "float32")},
    action_names=("push", "gripper"),
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    action_units=("m", "m"),
    control_hz=10.0,
)
KNOWING = replace(BLIND, obs={**BLIND.obs, PRIVILEGED: ((1,), "float32")})
SMALL = {"hidden": (32,), "batch_size": 64, "lr": 3e-3, "metrics_every": 1}


def batches(seed=0):
    """One step that pays what is hidden from the state: +1 or -1."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        state, hidden = torch.randn(64, 2, generator=draw), torch.randint(0, 2, (64, 1), generator=draw) * 2.0 - 1.0
        obs = {"state": state, PRIVILEGED: hidden}
        ends, never = torch.ones(64, dtype=torch.bool), torch.zeros(64, dtype=torch.bool)
        action = torch.rand(64, 2, generator=draw) * 2.0 - 1.0
        yield Transitions(obs, action, hidden[:, 0], torch.zeros(64), obs, ends, never, never, ends)


def imitating(io):
    return ImitationSac(ImitationSacOptions(**SMALL, bc_steps=2, q_filter=True, dither=0.0), io, seed=3)


def test_critics_learn_what_only_they_see_and_the_same_critics_without_it_the_mean():
    found = {}
    for io in (KNOWING, BLIND):
        learner, stream = imitating(io), batches()
        for _ in range(500):
            learner.update(stream)
        rows = {"state": np.zeros((2, 2), np.float32), PRIVILEGED: np.array([[1.0], [-1.0]], np.float32)}
        found[len(io.obs)] = learner.values(rows, np.zeros((2, 2), np.float32)).mean(0)
    assert found[2] == pytest.approx([1.0, -1.0], abs=0.1)
    assert found[1] == pytest.approx([0.0, 0.0], abs=0.4)
    assert found[1][0] == found[1][1]


@pytest.mark.parametrize("make", [imitating, lambda io: Sac(SacOptions(**SMALL), io, seed=3)])
def test_what_acts_neither_sees_nor_needs_it_and_learning_goes_on_bit_for_bit(make):
    learner, stream = make(KNOWING), batches()
    learner.pretrain(stream)
    for _ in range(3):
        learner.update(stream)
    assert sorted(learner.policy.io.obs) == ["state"]
    state = np.ones((1, 2), np.float32)
    alone = learner.policy.act({"state": state}, deterministic=True).value
    beside = learner.policy.act({"state": state, PRIVILEGED: np.full((1, 1), 9.0, np.float32)}, deterministic=True)
    assert np.array_equal(alone, beside.value)
    deployed = make(BLIND).policy
    deployed.load_state_dict(learner.policy.state_dict())
    assert np.array_equal(deployed.act({"state": state}, deterministic=True).value, alone)
    again = make(KNOWING)
    again.load_state_dict(learner.state_dict())
    for one in (learner, again):
        one.update(batches(5))
    assert torch.equal(learner.critic.params.flat, again.critic.params.flat)
    assert torch.equal(learner.actor.params.flat, again.actor.params.flat)


def test_the_gripper_of_hil_serl_is_chosen_without_it():
    learner = HilSerl(HilSerlOptions(**SMALL), KNOWING, seed=3)
    learner.update(batches())
    assert learner.policy.act({"state": np.ones((1, 2), np.float32)}).value.shape == (1, 2)


def test_a_policy_fits_where_it_is_missing_and_methods_without_such_critics_refuse_it():
    KNOWING.check(BLIND)
    BLIND.check(KNOWING)
    choices = replace(KNOWING, action_choices=(2, 2))
    for make in (lambda: Dqn(DqnOptions(), choices), lambda: PpoChunk(PpoChunkOptions(), KNOWING)):
        with pytest.raises(ValueError, match="no critics that read more than its policy sees"):
            make()


def test_it_is_the_whole_state_of_the_world():
    whole = api.make("reach", 2, seed=4)
    shown = api.make("reach", 2, seed=4, proprio="own", critic_state=True)
    try:
        state, _ = whole.reset(seed=4)
        obs, _ = shown.reset(seed=4)
        action = np.full((2, whole.io.action_dim), 0.3, np.float32)
        for _ in range(3):
            assert np.array_equal(obs[PRIVILEGED], state["state"])
            assert obs["state"].shape[1] < obs[PRIVILEGED].shape[1]
            state, obs = whole.step(action)[0], shown.step(action)[0]
    finally:
        whole.close()
        shown.close()


class Coin:
    """One step that pays the side of a coin, -1 or 1, which no policy sees."""

    episode_steps, expert, io = 9, None, replace(BLIND, obs={"state": ((1,), "float32")})

    def start(self, rng):
        return {"side": np.array(rng.choice((-1.0, 1.0)))}

    def step(self, state, action):
        ends = np.ones(len(action), bool)
        return state["side"].copy(), ends, ends

    def observe(self, state):
        return np.zeros((len(state["side"]), 1), np.float32)

    def privileged(self, state):
        return {"side": state["side"]}

    def picture(self, state, row):
        return np.zeros((4, 4, 3), np.uint8)


def ppo(io, **options):
    given = {"rollout_steps": 32, "hidden": (16,), "lr": 3e-3, "normalize_reward": False, **options}
    return Ppo(PpoOptions(**given), io, seed=3)


@pytest.mark.parametrize("kernel", ["explicit", "autograd"])
def test_ppo_values_what_only_its_critic_sees_and_errs_by_the_variance_without(kernel):
    """The coin pays -1 or 1: seen, its value is itself and the error 0; unseen, the value is 0 and the error 1."""
    for seen in (True, False):
        env = ArrayVectorEnv(Coin(), 8, 0, critic_state=seen)
        learner = ppo(env.io, kernel=kernel)
        train_on_policy(env, learner, total_steps=32 * 8 * 11)
        last = {}

        def tick(step, metrics, last=last):
            last.update(metrics)
            return False

        train_on_policy(env, learner, total_steps=32 * 8, tick=tick)
        sides = {PRIVILEGED: np.array([[1.0], [-1.0]], np.float32)} if seen else {}
        values = learner.value({"state": np.zeros((2, 1), np.float32), **sides}).tolist()
        assert values == pytest.approx([1.0, -1.0] if seen else [0.0, 0.0], abs=0.02 if seen else 0.2)
        assert last["train/value_loss"] == pytest.approx(0.0 if seen else 1.0, abs=0.02 if seen else 0.05)
        assert last["train/explained_variance"] == pytest.approx(1.0 if seen else 0.0, abs=0.05)


def test_both_kernels_of_ppo_take_the_same_steps_with_it():
    learners = []
    for kernel in ("explicit", "autograd"):
        learner = ppo(ArrayVectorEnv(Coin(), 4, 0, critic_state=True).io, kernel=kernel, lr=1e-3)
        train_on_policy(ArrayVectorEnv(Coin(), 4, 0, critic_state=True), learner, total_steps=32 * 4 * 3)
        learners.append(learner)
    torch.testing.assert_close(learners[0]._params, learners[1]._params, atol=2e-5, rtol=1e-3)


def recurrent(io, **options):
    return RecurrentPpo(RecurrentPpoOptions(rollout_steps=32, memory=8, hidden=(8,), lr=1e-2, **options), io, seed=3)


def test_the_critic_of_recurrent_ppo_reads_it_and_its_policy_does_not():
    env = ArrayVectorEnv(Coin(), 8, 0, critic_state=True)
    learner = recurrent(env.io, normalize_reward=False)
    train_on_policy(env, learner, total_steps=32 * 8 * 12)
    obs = {"state": np.zeros((2, 1), np.float32), PRIVILEGED: np.array([[1.0], [-1.0]], np.float32)}
    memory = np.zeros((2, 16), np.float32)
    assert learner.value({**obs, "memory": memory}).tolist() == pytest.approx([1.0, -1.0], abs=0.05)
    learner.policy.reset()
    beside = learner.policy.act(obs, deterministic=True)
    learner.policy.reset()
    alone = learner.policy.act({"state": obs["state"]}, deterministic=True)
    assert np.array_equal(beside.value, alone.value)
    assert np.abs(beside.extras["next_memory"][:, 8:]).min() > 0.0  # the critic remembers while it learns
    assert not alone.extras["next_memory"][:, 8:].any()


@pytest.mark.parametrize("ppo", [ppo, recurrent])
def test_ppo_saves_a_policy_without_it_and_goes_on_bit_for_bit(ppo):
    def env():
        return ArrayVectorEnv(Pendulum(velocity=False, wind=(-1.0, 1.0)), 2, 0, critic_state=True)

    whole, first, second = (ppo(env().io) for _ in range(3))
    train_on_policy(env(), whole, total_steps=256)
    loop = train_on_policy(env(), first, total_steps=128)
    second.load_state_dict(first.state_dict())
    train_on_policy(env(), second, total_steps=256, start_state=loop.state_dict())
    one, two = (
        torch.cat([x.flatten() for x in learner.net.parameters()]) if ppo is recurrent else learner._params
        for learner in (whole, second)
    )
    assert torch.equal(one, two)
    saved = whole.policy.state_dict()
    deployed = ppo(env().io.acting).policy
    assert shapes(saved) == shapes(deployed.state_dict())
    deployed.load_state_dict(saved)
    whole.policy.reset()
    state = env().reset(seed=5)[0]["state"]
    alone = deployed.act({"state": state}, deterministic=True).value
    assert np.array_equal(alone, whole.policy.act({"state": state}, deterministic=True).value)
    assert sorted(whole.policy.io.obs) == ["state"]


def shapes(state):
    return {key: shapes(x) if isinstance(x, dict) else np.shape(x) for key, x in state.items()}


def test_ppo_on_stale_rollouts_takes_it_too():
    learner = PpoAsync(PpoAsyncOptions(rollout_steps=8, hidden=(8,)), KNOWING, seed=3)
    actor = learner.actor()
    actor.load_state_dict(learner.policy.state_dict())
    assert actor.act({"state": np.ones((1, 2), np.float32)}).value.shape == (1, 2)
    learner.load_state_dict(learner.state_dict())
    with pytest.raises(ValueError, match="hidden is empty"):
        ppo(KNOWING, hidden=())


def test_a_saved_critic_of_another_world_is_refused():
    other = replace(KNOWING, obs={**KNOWING.obs, PRIVILEGED: ((4,), "float32")})
    with pytest.raises(ValueError, match=r"reads \(1,\) privileged values, and this one \(4,\)"):
        ppo(other).load_state_dict(ppo(KNOWING).state_dict())


def test_the_pendulum_tells_what_it_hides():
    env = ArrayVectorEnv(Pendulum(velocity=False, mass=(0.5, 2.0)), 3, 0, critic_state=True)
    obs, _ = env.reset(seed=1)
    for _ in range(2):
        obs = env.step(np.full((3, 1), 0.5, np.float32))[0]
    state = env.state
    expected = np.stack([np.cos(state["angle"]), np.sin(state["angle"]), state["velocity"], state["mass"]], 1)
    np.testing.assert_allclose(obs[PRIVILEGED][:, :4], expected, rtol=1e-6)
    assert obs[PRIVILEGED][:, 4:].tolist() == [[1.0, 0.0]] * 3
    np.testing.assert_allclose(obs["state"], expected[:, :2], rtol=1e-6)
    shown = ArrayVectorEnv(Pendulum(velocity=False, mass=(0.5, 2.0)), 3, 0, teacher_state=True)
    assert np.array_equal(shown.reset(seed=1)[0]["state"], env.reset(seed=1)[0][PRIVILEGED])
    assert shown.io.obs_names == ("cos", "sin", "velocity", "mass", "length", "wind")


def test_legs_tell_the_velocity_that_they_do_not_feel_what_was_drawn_and_a_state_without_noise():
    drawn = {"friction": [0.5, 1.25], "noise": 0.1, "latency": [0.0, 0.02]}
    env = api.make("quadruped", 3, seed=2, proprio="own", critic_state=True, randomize=drawn)
    same = api.make("quadruped", 3, seed=2, teacher_state=True, randomize=drawn)
    try:
        obs, known = env.reset(seed=2)[0], same.reset(seed=2)[0]["state"]
        action = np.full((3, 12), 0.3, np.float32)
        for _ in range(3):
            assert np.array_equal(obs[PRIVILEGED], known)
            obs, known = env.step(action)[0], same.step(action)[0]["state"]
        names = list(same.io.obs_names)
        assert env.io.obs_names == tuple(names[3:50])
        assert names[50:] == ["friction_factor_0", "latency_factor_0"]
        hidden = obs[PRIVILEGED]
        assert np.abs(hidden[:, :3]).max() > 1e-3  # the trunk moves, and only critics are told
        assert ((hidden[:, 50] >= 0.5) & (hidden[:, 50] <= 1.25)).all()
        noise = obs["state"] - hidden[:, 3:50]
        assert 0.05 < noise.std() < 0.15
    finally:
        env.close()
        same.close()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("reach", {}, "shows its policy all that it knows"),
        ("grid_maze", {}, "shows its policy all that it knows"),
        ("quadruped", {"proprio": "own", "teacher_state": True}, "leave cameras, proprio"),
    ],
)
def test_where_nothing_is_hidden_it_is_refused(name, options, words):
    with pytest.raises(Refused, match=words):
        api.make(name, 2, critic_state=True, **options)


@pytest.mark.parametrize("method", ["online/ppo", "online/sac"])
def test_a_run_keeps_it_out_of_what_is_deployed(tmp_path, method):
    env = api.make("pendulum", world={"velocity": False})
    settings = {"critic_state": True, "eval_every": 0, "final_episodes": 1, "video_episodes": 0}
    options = {"rollout_steps": 64} if method.endswith("ppo") else {"batch_size": 16}
    run = api.train(method, env, steps=128, options={**options, "hidden": [8]}, folder=tmp_path / "run", **settings)
    folder = checkpoint.find(run.folder)
    assert sorted(json.loads((folder / "io.json").read_text())["obs"]) == ["state"]
    assert api.load(run).act({"state": np.ones((1, 2), np.float32)}).value.shape == (1, 1)
    assert api.evaluate(run, episodes=1).returns[0] < 0.0
    with pytest.raises(Refused, match=r"engine \(gym\) does not"):
        api.train(method, "Pendulum-v1", steps=10, folder=tmp_path / "gym", **settings)
