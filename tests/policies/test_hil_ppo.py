"""PPO with a person in the loop: whose steps count for what, in which order they come, and what is learned."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import copy
import itertools

import numpy as np
import pytest
import torch

from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.hil_record import ControlStep, Source
from robot_rl.human.devices.scripted import ScriptedHuman, ScriptedOptions
from robot_rl.human.log import HilLog
from robot_rl.human.loop import HumanInTheLoop
from robot_rl.human.memory import HilMemory
from robot_rl.human.new_steps import NewSteps
from robot_rl.human.options import SessionOptions
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.session import Records
from robot_rl.human.trials import trials
from robot_rl.policies.human.hil_ppo import HilPpo, HilPpoOptions
from robot_rl.types import IOSpec, Transitions
from tests.human.line_world import LineEnv
from tests.human.test_loop import Script

IO = IOSpec({"state": ((1,), "float32")}, ("a",), (-1.0,), (1.0,), ("m",), 10.0)
SMALL = {"hidden": (32,), "bc_steps": 0, "batch_size": 32, "rollout_steps": 64}


def rows(action, reward, *, human=None, ends=None, demos=0, state=None):
    """`len(action)` steps in order and `demos` steps to imitate, all with action 0.6."""
    count, total = len(action), len(action) + demos
    state = torch.zeros(total, 1) if state is None else state
    pad = torch.zeros(demos)
    flag = torch.zeros(count, dtype=torch.bool)
    ends = torch.ones(count, dtype=torch.bool) if ends is None else ends
    human = flag if human is None else human
    tail = torch.ones(demos, dtype=torch.bool)
    return Transitions(
        obs={"state": state},
        action=torch.cat([action[:, None], torch.full((demos, 1), 0.6)]),
        reward=torch.cat([reward, pad]),
        discount=torch.cat([torch.where(ends, 0.0, 0.9), pad]),
        next_obs={"state": state},
        terminated=torch.cat([ends, tail]),
        truncated=torch.zeros(total, dtype=torch.bool),
        intervened=torch.cat([human, tail]),
        mask=torch.ones(total, dtype=torch.bool),
        extras={
            "source": (torch.arange(total) >= count).long(),
            "boundary": torch.cat([ends, tail]),
            "imitate": torch.cat([human.float(), torch.ones(demos)]),
            "reward_task": torch.cat([reward, pad]),
            "reward_rlif": torch.cat([torch.where(action > 0, -1.0, 0.0), pad]),
        },
    )


def sampled(learner, count=128):
    return torch.as_tensor(learner.policy.act({"state": torch.zeros(count, 1)}).value)[:, 0]


def mean_action(learner):
    return float(learner.policy.act({"state": torch.zeros(1, 1)}, deterministic=True).value[0, 0])


def test_ppo_avoids_what_makes_people_take_over():
    learner = HilPpo(HilPpoOptions(w_task=0.0, w_rlif=1.0, il_weight=0.0, lr=1e-3, **SMALL), IO)
    metrics = {}
    for _ in range(15):
        action = sampled(learner)
        metrics = learner.update(iter([rows(action, torch.zeros(128))]))
    assert mean_action(learner) < -0.2
    assert metrics["train/own_share"] == 1.0


def test_steps_of_the_person_have_no_policy_gradient_and_teach_the_critic():
    learner = HilPpo(HilPpoOptions(il_weight=0.0, lr=1e-2, **SMALL), IO)
    before = learner.policy.state_dict()["actor"]
    human = torch.ones(64, dtype=torch.bool)
    for _ in range(10):
        learner.update(iter([rows(torch.full((64,), 0.5), torch.ones(64), human=human)]))
    assert torch.equal(before, learner.policy.state_dict()["actor"])
    value = learner.critic(torch.zeros(1, 1))
    assert float(value) == pytest.approx(1.0, abs=0.15)


def test_trace_stops_before_the_person():
    # own, person, end: what the person earned reaches the own step through the value of the state alone
    learner = HilPpo(HilPpoOptions(il_weight=0.0, **SMALL), IO, gamma=0.9)
    ends = torch.tensor([False, True] * 2)
    human = torch.tensor([False, True] * 2)
    reward = torch.tensor([0.0, 1.0, 0.0, 0.0])
    data = learner._rows(rows(torch.zeros(4), reward, human=human, ends=ends))
    value = float(learner.critic(torch.zeros(1, 1)))
    assert data.target[[0, 2]].tolist() == pytest.approx([0.9 * value] * 2, abs=1e-6)
    assert data.target[[1, 3]].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert data.own.tolist() == [True, False, True, False]
    through = HilPpo(HilPpoOptions(il_weight=0.0, foreign_trace="keep", **SMALL), IO, gamma=0.9)
    data = through._rows(rows(torch.zeros(4), reward, human=human, ends=ends))
    assert float(data.target[0] - data.target[2]) == pytest.approx(0.9 * 0.95, abs=1e-5)


def test_imitation_pulls_towards_the_person_and_fades():
    learner = HilPpo(HilPpoOptions(il_weight=1.0, il_fade=20, lr=1e-3, **SMALL), IO)
    for _ in range(20):
        learner.update(iter([rows(sampled(learner, 64), torch.zeros(64), demos=64)]))
    assert mean_action(learner) == pytest.approx(0.6, abs=0.1)
    assert learner.il_weight == 0.0


def test_saved_and_loaded_learner_makes_the_same_next_update():
    first = HilPpo(HilPpoOptions(lr=1e-3, **SMALL), IO)
    data = rows(torch.linspace(-0.9, 0.9, 64), torch.linspace(0, 1, 64), demos=32)
    first.update(iter([data]))
    second = HilPpo(HilPpoOptions(lr=1e-3, **{**SMALL}), IO, seed=5)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for learner in (first, second):
        learner.update(iter([data]))
    assert torch.equal(first.policy.state_dict()["actor"], second.policy.state_dict()["actor"])
    assert torch.equal(sampled(first), sampled(second))


def steps_of(count, *, at=0.0, human=()):
    """Steps whose observations meet."""
    out = []
    for t in range(count):
        obs, after = ({"state": np.array([at + t + d], np.float32)} for d in (0, 1))
        action = np.zeros(1, np.float32)
        source = Source.HUMAN if t in human else Source.POLICY
        out.append(ControlStep(obs, after, action, action, action, action, source=source, discount=0.9))
    return out


def test_new_steps_come_once_in_order_with_their_gaps_marked():
    memory = HilMemory(IO, 100)
    sampler = NewSteps(memory, 0.5)
    memory.extend(steps_of(5, human=(2,)), demo=False)
    memory.extend(steps_of(4, at=50.0)[1:], demo=False)  # a gap: the step before was not valid
    memory.extend(steps_of(6, at=90.0), demo=True)
    stream = sampler.batches(3)
    assert len(sampler) == 8
    batch = next(stream)
    first = batch.extras["source"] == 0
    assert batch.obs["state"][first, 0].tolist() == [0, 1, 2, 3, 4, 51, 52, 53]
    assert batch.extras["boundary"][first].tolist() == [False] * 4 + [True] + [False] * 2 + [True]
    assert batch.intervened[first].tolist() == [t == 2 for t in range(8)]
    assert int((~first).sum()) == 8  # as many to imitate, the person's own step among them
    with pytest.raises(ValueError, match="nothing was driven"):
        next(stream)
    saved = sampler.state_dict()
    memory.extend(steps_of(2, at=70.0), demo=False)
    again = NewSteps(memory, 0.0)
    again.load_state_dict(saved)
    assert next(again.batches(1)).obs["state"][:, 0].tolist() == [70.0, 71.0]


def session(folder, seed, human=None, **options):
    env = LineEnv(seed=seed)
    human = human or ScriptedHuman(
        ScriptedOptions(help="disagreement", patience_s=0.5, drive_s=0.5), env.io, expert=env.expert, seed=seed
    )
    options = {"hidden": (32, 32), "bc_steps": 0, "rollout_steps": 100, "batch_size": 16, "lr": 1e-3, **options}
    memory = HilMemory(env.io, 20_000, seed=seed)
    return HumanInTheLoop(
        env,
        HilPpo(HilPpoOptions(**options), env.io, seed=seed),
        simulated_pilot(env, human),
        Records(HilLog(folder, env.io), memory, NewSteps(memory, 0.5), EpisodeRules(gamma=0.97)),
        options=SessionOptions(learning_starts=10),
        seed=seed,
    )


def test_loop_updates_between_episodes_from_what_the_same_weights_drove(tmp_path):
    loop = session(tmp_path, 0)
    loop.run(450, lambda *_: False)
    assert 2 <= loop.learner.state.updates <= 4  # one per 100 steps, at the end of an episode
    episodes = list(loop.log.episodes())
    versions = [set(episode.meta["columns"]["policy_version"].tolist()) for episode in episodes]
    assert all(len(seen) == 1 for seen in versions)
    assert sorted(set().union(*versions)) == list(range(len(set().union(*versions))))
    assert all(a <= b for a, b in itertools.pairwise(max(seen) for seen in versions))


def test_an_episode_of_several_rollouts_is_one_update(tmp_path):
    loop = session(tmp_path, 0, rollout_steps=5, epochs=1)
    loop.run(90, lambda *_: False)
    assert max(line["steps"] for line in loop.log.manifest) > 10
    assert 3 <= loop.learner.state.updates <= len(loop.log.manifest)


def test_an_episode_that_was_thrown_away_is_nothing_to_learn_from(tmp_path):
    loop = session(tmp_path, 0, Script([{}] * 24 + [{"press": ("rerecord",)}]), rollout_steps=10, epochs=1)
    loop._episode(demo=False)
    assert loop.learner.state.updates == 0
    loop.run(80, lambda *_: False)
    assert loop.learner.state.updates >= 1


@pytest.mark.slow
def test_ppo_with_help_learns_the_line(tmp_path):
    loop = session(tmp_path, 0, epochs=20)
    loop.run(1500, lambda *_: False)
    world = LineEnv(seed=99)
    block = trials(world, loop.learner.policy, simulated_pilot(world, None), episodes=40, seed=99)
    assert block.metrics()["eval/success"] >= 0.9
