"""Exploration inside a safe set: what the set learns, what the filter does, and a bridge that one can fall from."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import functools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from robot_rl import build
from robot_rl.checkpoint import check_state
from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.mix import Mix
from robot_rl.human.devices.scripted import ScriptedHuman, ScriptedOptions
from robot_rl.human.log import HilLog
from robot_rl.human.loop import HumanInTheLoop
from robot_rl.human.memory import HilMemory
from robot_rl.human.options import SessionOptions
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.session import Records
from robot_rl.human.trials import trials
from robot_rl.policies.human.safe_set import SafeExploration, SafeExplorationOptions
from robot_rl.policies.human.safe_set_model import SafeSet, SafeSetOptions
from robot_rl.types import Action, EnvParts, IOSpec, Learner, Options, PolicyParts, Transitions

IO = IOSpec({"state": ((2,), "float32")}, ("dx", "dy"), (-0.1, -0.1), (0.1, 0.1), ("m", "m"), 10.0)
EDGE = 0.25


def rows(state, after, *, shown, action=None, terminated=None, reward=None):
    count = len(state)
    zeros = torch.zeros(count)
    tensor = functools.partial(torch.as_tensor, dtype=torch.float32)
    return Transitions(
        obs={"state": tensor(state)},
        action=torch.zeros(count, 2) if action is None else tensor(action),
        reward=zeros if reward is None else tensor(reward),
        next_obs={"state": tensor(after)},
        discount=torch.full((count,), 0.97),
        terminated=torch.zeros(count, dtype=torch.bool) if terminated is None else torch.as_tensor(terminated),
        truncated=torch.zeros(count, dtype=torch.bool),
        intervened=torch.full((count,), shown),
        mask=torch.ones(count, dtype=torch.bool),
        extras={"imitate": torch.full((count,), float(shown))},
    )


def join(*parts):
    def cat(values):
        return torch.cat(list(values))

    return Transitions(
        obs={"state": cat(p.obs["state"] for p in parts)},
        action=cat(p.action for p in parts),
        reward=cat(p.reward for p in parts),
        next_obs={"state": cat(p.next_obs["state"] for p in parts)},
        discount=cat(p.discount for p in parts),
        terminated=cat(p.terminated for p in parts),
        truncated=cat(p.truncated for p in parts),
        intervened=cat(p.intervened for p in parts),
        mask=cat(p.mask for p in parts),
        extras={"imitate": cat(p.extras["imitate"] for p in parts)},
    )


def test_what_leads_into_the_set_belongs_to_it_by_the_decay_and_failures_do_not():
    rng = np.random.default_rng(0)
    safe = SafeSet(SafeSetOptions(spread=(20.0, 30.0), lr=3e-3), 2, 2, generator=torch.Generator().manual_seed(0))
    near, one, two, lost = np.array([0.0, 0.0]), np.array([2.0, 0.0]), np.array([4.0, 0.0]), np.array([0.0, 3.0])
    for _ in range(1500):

        def around(place):
            return place + rng.normal(0.0, 0.3, (32, 2))

        safe.learn(
            join(
                rows(around(near), around(near), shown=True),
                rows(around(one), around(near), shown=False),
                rows(around(two), around(one), shown=False),
                rows(around(lost), around(lost), shown=False, terminated=[True] * 32),
            )
        )
    found = safe.prob(torch.as_tensor(np.stack([near, one, two, lost]), dtype=torch.float32)).numpy()
    np.testing.assert_allclose(found, [1.0, 0.8, 0.64, 0.0], atol=0.08)


def test_a_success_belongs_to_the_set_and_noise_off_the_data_does_not():
    rng = np.random.default_rng(0)
    safe = SafeSet(SafeSetOptions(lr=3e-3), 2, 2, generator=torch.Generator().manual_seed(0))
    for _ in range(800):
        shown = rng.normal(0.0, 1.0, (32, 2)) * [1.0, 0.1]
        goal = np.array([1.5, 0.5]) + rng.normal(0.0, 0.02, (16, 2))
        safe.learn(
            join(
                rows(shown, shown, shown=True),
                rows(goal, goal, shown=False, terminated=[True] * 16, reward=np.ones(16)),
            )
        )
    inside, success, off = safe.prob(torch.tensor([[0.5, 0.0], [1.5, 0.5], [0.0, -0.5]])).tolist()
    assert inside > 0.6
    assert success > 0.8
    assert off < 0.2


class Point(Learner):
    """A method whose policy says what it is told; larger x is worth more."""

    @property
    def parts(self):
        return PolicyParts()

    def __init__(self, io, *, seed=0, device="cpu", gamma=0.97):
        super().__init__(Options(), io)
        self.policy, self.says = self, np.zeros((1, 2), np.float32)
        self.samples = np.zeros((16, 2), np.float32)

    def reset(self, rows=None):
        pass

    def act(self, obs, *, deterministic=False):
        one = len(obs["state"]) == 1
        return Action((self.says if one else self.samples).copy())

    def values(self, obs, action):
        return np.stack([action[:, 0], action[:, 0]])

    def update(self, batches):
        next(batches)
        return {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def on_a_line(**options):
    """A wrapper that has seen the segment -1 < x < 1, |y| < 0.05 and steps of 0.5."""
    learner = SafeExploration(SafeExplorationOptions(method=Point, horizon=1, spread=(1.0, 6.0), **options), IO, seed=0)
    rng = np.random.default_rng(0)

    def batches():
        while True:
            state = np.stack([rng.uniform(-1, 1, 64), rng.normal(0.0, 0.05, 64)], 1)
            action = rng.uniform(-1, 1, (64, 2))
            action[:32] = np.stack([np.full(32, 0.3), np.zeros(32)], 1)
            after = state + 0.5 * action
            yield join(
                rows(state[:32], after[:32], shown=True, action=action[:32]),
                rows(state[32:], after[32:], shown=False, action=action[32:]),
            )

    stream = batches()
    for _ in range(1200):
        learner.update(stream)
    return learner, stream


@pytest.fixture(scope="module")
def line():
    return on_a_line()


HERE = {"state": np.zeros((1, 2), np.float32)}


def test_action_that_stays_passes_unchanged(line):
    learner, _ = line
    learner.learner.says = np.float32([[0.3, 0.0]])
    np.testing.assert_array_equal(learner.policy.act(HERE).value, learner.learner.says)


def test_action_that_leaves_gives_way_to_the_best_sample_that_stays(line):
    learner, _ = line
    learner.learner.says = np.float32([[0.0, 1.0]])
    learner.learner.samples = np.tile(np.float32([[0.9, -1.0]]), (16, 1))  # worth most, and leaves
    learner.learner.samples[3], learner.learner.samples[7] = (0.2, 0.0), (0.4, 0.0)
    np.testing.assert_allclose(learner.policy.act(HERE).value, [[0.4, 0.0]])


def test_the_demonstrator_acts_when_no_sample_stays(line):
    learner, _ = line
    learner.learner.says = np.float32([[0.0, 1.0]])
    learner.learner.samples = np.tile(np.float32([[0.0, 1.0]]), (16, 1))
    before = learner.policy.metrics()["safe/fallback"]
    np.testing.assert_allclose(learner.policy.act(HERE).value, [[0.3, 0.0]], atol=0.05)
    assert learner.policy.metrics()["safe/fallback"] > before


def test_action_that_is_not_finite_reaches_the_supervisor(line):
    learner, _ = line
    learner.learner.says = np.float32([[math.nan, 0.0]])
    assert np.isnan(learner.policy.act(HERE).value).any()


def test_learner_continues_bit_for_bit(line):
    learner, stream = line
    check_state(learner.state_dict(), "SafeExploration")
    twin = SafeExploration(SafeExplorationOptions(method=Point, horizon=1, spread=(1.0, 6.0)), IO, seed=5)
    twin.load_state_dict(learner.state_dict())
    batch = next(stream)
    learner.update(iter([batch]))
    twin.update(iter([batch]))
    probe = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(learner.safe.prob(probe), twin.safe.prob(probe))
    zero = torch.zeros(20, 2)
    same = [one.safe.ahead(probe, zero, lambda s: torch.zeros(len(s), 2), 2) for one in (learner, twin)]
    assert torch.equal(*same)


def test_delta_zero_and_an_unknown_set_change_nothing():
    for options in ({"delta": 0.0}, {}):
        learner = SafeExploration(SafeExplorationOptions(method=Point, **options), IO, seed=0)
        learner.learner.says = np.float32([[1.0, 1.0]])
        np.testing.assert_array_equal(learner.policy.act(HERE).value, learner.learner.says)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"delta": 1.0}, "delta"), ({"horizon": 0}, "horizon"), ({"spread": (3, 1)}, "spread")],
)
def test_options_outside_their_range_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        SafeExploration(SafeExplorationOptions(method=Point, **options), IO)


def test_methods_without_critics_and_pictures_are_refused():
    with pytest.raises(ValueError, match="no critics"):
        SafeExploration(SafeExplorationOptions(method=lambda io, **_: SimpleNamespace(judges=False)), IO)
    seeing = replace(IO, obs={"image.front": ((8, 8, 3), "uint8"), **IO.obs})
    with pytest.raises(ValueError, match=r"image\.front"):
        SafeExploration(SafeExplorationOptions(method=Point), seeing)


# ---------------------------------------------------------------- a bridge


class Bridge:
    """A way of 2 m and 0.5 m width; the goal lies at its end, and beside it one falls."""

    num_envs = 1
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    @property
    def parts(self):
        return EnvParts(expert=self.expert)

    def __init__(self, seed=0):
        self.io, self.rng, self.falls, self.time = IO, np.random.default_rng(seed), 0, 0
        self.place, self.moved = np.zeros(2), np.zeros(2)

    def _draw(self):
        self.place = np.array([-1.0, self.rng.uniform(-0.1, 0.1)])
        self.moved, self.time = np.zeros(2), 0

    def _obs(self):
        return {"state": self.place[None].astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self._draw()
        return self._obs(), {}

    def step(self, action):
        self.moved = 0.1 * np.clip(action[0], -1, 1)
        self.place, self.time = self.place + self.moved, self.time + 1
        fallen = abs(self.place[1]) > EDGE
        success = bool(self.place[0] > 0.9 and not fallen)
        self.falls += int(fallen)
        final, terminated = self._obs(), bool(fallen)
        truncated = not terminated and self.time >= 50
        if terminated or truncated:
            self._draw()
        info = {"final_obs": final, "success": np.array([success]), "executed": np.asarray(action, np.float32)}
        info["intervened"] = np.array([False])
        return self._obs(), np.zeros(1, np.float32), np.array([terminated]), np.array([truncated]), info

    def expert(self, obs):
        state = np.asarray(obs["state"])
        return np.stack([np.full(len(state), 0.6), -3.0 * state[:, 1]], 1).clip(-1, 1).astype(np.float32)


def crossings(folder, delta, seed, steps=2000):
    """(falls while so many own steps were learned from, success of 100 trials afterwards)."""
    env = Bridge(seed)
    options = {"batch_size": 64, "hidden": (32, 32), "critics": 2, "utd": 3, "lr": 1e-3}
    options |= {"bc_steps": 0, "il_weight": 0.0, "init_alpha": 0.02}
    method = build.prepare("policy", {"name": "human/imitation_sac", **options})
    learner = SafeExploration(
        SafeExplorationOptions(method=method, delta=delta, set_steps=400, hidden=(64, 64)), env.io, seed=seed
    )
    human = ScriptedHuman(ScriptedOptions(noise=0.3, help="never"), env.io, expert=env.expert, seed=seed)
    memory = HilMemory(env.io, 5000, seed=seed)
    views = memory.views
    loop = HumanInTheLoop(
        env,
        learner,
        simulated_pilot(env, human),
        Records(
            HilLog(folder, env.io),
            memory,
            Mix({"online": (views["online"], 0.5), "demo": (views["demo"], 0.5)}, seed=seed),
            EpisodeRules(gamma=0.97),
        ),
        options=SessionOptions(learning_starts=50),
        seed=seed,
    )
    loop.collect_demos(8)
    env.falls = 0
    loop.run(steps, lambda *_: False)
    world = Bridge(100 + seed)
    block = trials(world, learner.policy, simulated_pilot(world, None), episodes=100, seed=100 + seed)
    return env.falls, block.metrics()["eval/success"]


@pytest.mark.slow
def test_fewer_fall_from_a_bridge(tmp_path):
    free, _ = crossings(tmp_path / "free", 0.0, 1, 200)
    bounded, _ = crossings(tmp_path / "bounded", 0.5, 1, 200)
    assert bounded < 0.5 * free


@pytest.mark.slow
def test_hardly_any_falls_from_a_bridge_and_no_less_success(tmp_path):
    free, unbounded = crossings(tmp_path / "free", 0.0, 1)
    bounded, success = crossings(tmp_path / "bounded", 0.5, 1)
    assert free >= 100
    assert bounded <= 15
    assert success >= max(0.9, unbounded - 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_hardly_any_falls_from_a_bridge_in_further_seeds(tmp_path, seed):
    free, unbounded = crossings(tmp_path / "free", 0.0, seed)
    bounded, success = crossings(tmp_path / "bounded", 0.5, seed)
    assert bounded <= 0.1 * free
    assert success >= unbounded - 0.1
