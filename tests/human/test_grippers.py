"""Grippers that do not follow, and episodes that are thrown away."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robot_rl.data.hil_episode import EpisodeRules, to_steps
from robot_rl.data.hil_record import Invalid, Source
from robot_rl.human.actor import Follower, HilActor, NoRows, OutboxMemory
from robot_rl.human.devices.remote import RemoteTeleop
from robot_rl.human.grippers import Grippers
from robot_rl.human.log import HilLog
from robot_rl.human.options import SessionOptions
from robot_rl.human.pieces import Outbox
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.session import Records
from robot_rl.policies.human.hil_serl import HilSerl, HilSerlOptions
from robot_rl.real.core.clock import ManualClock
from robot_rl.types import IOSpec
from tests.human.line_world import LineEnv
from tests.human.test_loop import Fixed, Script, build, episode
from tests.human.traces import step


class Claw(LineEnv):
    """The line with fingers that follow their command slowly, or jam for some steps."""

    def __init__(self, jam_from=10**9, jam_to=10**9, **more):
        super().__init__(steps=60, **more)
        names, units = ("tip_dx", "gripper_opening"), ("m", "m")
        self.io = IOSpec({"state": ((2,), "float32")}, names, (-0.1, 0.0), (0.1, 0.08), units, 10.0)
        self.jam, self.total, self.fingers, self.commands = (jam_from, jam_to), 0, 1.0, []

    def _draw(self):
        super()._draw()
        self.goal = 5.0  # no success: the episode lasts
        self.fingers = 1.0

    def step(self, action):
        self.commands.append(float(action[0, 1]))
        if not self.jam[0] <= self.total < self.jam[1]:
            self.fingers += float(np.clip(action[0, 1] - self.fingers, -0.4, 0.4))
        self.total += 1
        return super().step(action)

    def tool(self):
        return {**super().tool(), "gripper": np.array([[self.fingers]])}


class Closes(Fixed):
    """Opens for ten steps, then closes."""

    def __init__(self, io):
        super().__init__(io)
        self.tick = 0

    def reset(self, rows=None):
        self.tick = 0

    def act(self, obs, *, deterministic=False):
        self.tick += 1
        return SimpleNamespace(value=np.array([[0.02, 1.0 if self.tick <= 10 else -1.0]], np.float32))


def test_fault_gripper_that_does_not_follow_is_tried_once_more_and_ends_the_episode(tmp_path):
    env = Claw(jam_from=8)
    loop = build(tmp_path, None, env=env, learner=Closes(env.io))
    facts = loop._episode(demo=False)
    assert facts is not None
    assert facts.end_reason == "fault"
    assert "gripper_opening does not follow" in loop.problem
    assert "see to it" in loop.problem
    steps = episode(loop)
    void = [t for t, step in enumerate(steps) if step.invalid_reason in (Invalid.GRIPPER, Invalid.FAULT)]
    assert void == list(range(10, len(steps)))  # from the command on, not from when it was noticed
    held = [t for t, step in enumerate(steps) if step.source == Source.HOLD]
    assert held[0] == 21  # a second after the command of step 10
    assert len(steps) == 10 + 11 + 15  # let go for half a second, asked for a second
    assert max(env.commands[22:25]) > 0.9  # let go: to where the fingers stand
    assert env.commands[-1] == pytest.approx(-1.0)
    assert all(abs(float(steps[t].action_exec[0])) < 1e-6 for t in held[1:])
    # what had been handed on before anybody noticed is not sampled any more
    online = loop.memory.take(loop.memory.views["online"].rows())
    assert len(online.action) == 10
    assert (online.action[:, 1] > 0).all()


def test_gripper_that_comes_free_lets_the_episode_go_on(tmp_path):
    env = Claw(jam_from=8, jam_to=28)
    loop = build(tmp_path, None, env=env, learner=Closes(env.io))
    facts = loop._episode(demo=False)
    assert facts is not None
    assert facts.end_reason == "timeout"
    steps = episode(loop)
    void = [t for t, step in enumerate(steps) if step.invalid_reason == Invalid.GRIPPER]
    assert void[0] == 10
    assert void[-1] < 35
    assert all(step.valid and step.source == Source.POLICY for step in steps[36:])
    assert loop.grippers.problem == ""


def test_a_learner_elsewhere_gets_no_step_that_a_gripper_did_not_follow(tmp_path):
    """Steps went out after 0.4 s, and a second later it turned out that nothing since the command had happened."""
    env, sent = Claw(jam_from=8), []
    log = HilLog(tmp_path, env.io)
    outbox = Outbox(log)
    link = SimpleNamespace(
        **{"refused": "", "alarm": "", "standing": "", "alive": True, "acked": (0, 0), "silence": 0.0},
        **dict.fromkeys(("sent", "resent", "rejected"), 0),
        take=lambda: None,
        notify=lambda: None,
    )
    records = Records(log, OutboxMemory(outbox), NoRows(), EpisodeRules())
    loop = HilActor(
        env,
        Follower(Closes(env.io)),
        simulated_pilot(env, None),
        records,
        options=SessionOptions(),
        link=link,
        outbox=outbox,
        speed=1e6,
    )
    handed = outbox.rows
    outbox.rows = lambda steps: (sent.extend(replace(step) for step in steps), handed(steps))
    facts = loop._episode(demo=False)
    assert facts is not None
    assert facts.end_reason == "fault"
    assert [step.valid for step in sent] == [step.valid for step in episode(loop)]
    assert sum(step.valid for step in sent) == 10


@pytest.mark.parametrize("when", ["meanwhile", "afterwards"])
def test_success_of_an_episode_with_a_stuck_gripper_is_that_of_the_last_step_before_it(tmp_path, when):
    """The step had been handed on: what a key said meanwhile, or after the end, did not reach the memory."""
    env = Claw(jam_from=8)
    keys = [{}] * 26 + [{"press": ("success",)}] if when == "meanwhile" else []
    loop = build(tmp_path, Script(keys), env=env, learner=Closes(env.io), options=SessionOptions(task_reward="labels"))
    loop._episode(demo=False)
    if when == "afterwards":
        loop.labels.apply("success")
    for _ in range(2):
        online = loop.memory.take(loop.memory.views["online"].rows())
        assert online.reward.tolist() == [0.0] * 9 + [1.0]
        assert online.terminated.tolist() == [False] * 9 + [True]
        loop = build(tmp_path, None, env=Claw(), learner=Closes(env.io))
        loop.restore_memory()


def test_who_takes_over_and_leaves_the_gripper_alone_finds_it_as_it_was():
    """It went to what the hands had told it last, open at first: whoever helped with a cube dropped it."""
    clock, env = ManualClock(), Claw()
    hand = RemoteTeleop(env.io, clock=clock)
    pilot = simulated_pilot(env, hand, clock=clock)
    obs, close, done = {"state": np.zeros(2, np.float32)}, np.array([0.02, -1.0], np.float32), []
    hand.press("resume")
    hand.message(0, {}, enable=False)
    pilot.idle(obs)
    assert pilot.begin() == []
    for tick in range(1, 16):
        hand.message(tick, {"x": 0.5, "grip": float(tick == 13)} if tick > 10 else {}, enable=tick > 10)
        driven = pilot.drive(obs, close)
        env.step(driven.executed[None])
        pilot.wait()
        done.append(float(driven.executed[1]))
    assert pilot.driver == "HUMAN"
    assert done[7:12] == [-1.0] * 5  # the eleventh tick is the person's
    assert done[-1] > done[11]  # a key opens it, and it goes on to open
    hand.message(20, {}, enable=False)
    pilot.end()
    env.reset()
    assert pilot.begin(demo=True) == []
    assert pilot.drive(obs, close).driver == "HOLD"
    hand.message(21, {"x": 0.5}, enable=True)
    assert pilot.drive(obs, close).executed[1] == pytest.approx(1.0)  # a new episode begins with an open gripper


def grip(count=1):
    names = ("x", *(f"grip{i}" for i in range(count)))
    return Grippers(IOSpec({"state": ((1,), "float32")}, names, (-1.0,) * len(names), (1.0,) * len(names),
                           ("m",) * len(names), 10.0), 0.02)  # fmt: skip


def test_what_becomes_of_the_gripper_is_recorded_and_not_what_it_was_told_again():
    watch = grip()
    commands = [1.0, 0.9, -1.0, -1.0, 0.2, -0.7, 0.6, -0.5]  # open at the start; between -0.5 and 0.5 says nothing
    steps = [step(t) for t in range(len(commands))]
    for one, command in zip(steps, commands):
        one.action_cmd = np.array([0.3, command], np.float32)
        watch.charge(one)
    assert [one.grip_action for one in steps] == [0, 0, -1, 0, 0, 0, 1, 0]
    assert [one.grip_penalty for one in steps] == pytest.approx([0, 0, -0.02, 0, 0, 0, -0.02, 0])
    watch.begin()  # open again
    again = step(9)
    again.action_cmd = np.array([0.0, -1.0], np.float32)
    watch.charge(again)
    assert again.grip_action == -1


def test_gripper_that_a_policy_lets_stay_is_recorded_as_staying(tmp_path):
    env = Claw()
    learner = HilSerl(HilSerlOptions(hidden=(8, 8), batch_size=8), env.io)
    choices = iter([1] * 5 + [0] + [1] * 100)  # stays open, closes once, stays
    learner.policy._grasp = lambda obs: torch.tensor([next(choices)])
    loop = build(tmp_path, None, env=env, learner=learner)
    loop._episode(demo=False)
    steps = episode(loop)
    assert [t for t, one in enumerate(steps) if one.grip_action] == [5]
    assert [float(one.action_cmd[1]) for one in steps] == [1.0] * 5 + [-1.0] * (len(steps) - 5)
    batch = loop.memory.take(loop.memory.views["online"].rows())
    assert batch.extras["grip_action"].tolist() == [0.0] * 5 + [-1.0] + [0.0] * (len(steps) - 6)


def test_fingers_around_an_object_follow_and_restless_commands_are_not_judged():
    watch = grip()
    for t in range(60):  # closes from 1 to 0.3, where an object is
        assert watch.look(t, np.array([0.0, -1.0]), np.array([max(0.3, 1.0 - 0.2 * t)])) is None
    for t in range(60, 160):  # holds it, now more, now less firmly
        assert watch.look(t, np.array([0.0, -1.0 if t % 40 < 20 else -0.4]), np.array([0.3])) is None
    for t in range(160, 200):  # and opens
        assert watch.look(t, np.array([0.0, 1.0]), np.array([min(1.0, 0.3 + 0.2 * (t - 160))])) is None
    watch.begin()
    jam = [watch.look(t, np.array([0.0, -1.0 if t % 6 < 3 else -0.5]), np.array([1.0])) for t in range(12)]
    assert any(index is not None for index in jam)  # that it is told the same in other words excuses no jam
    watch.begin()
    for t in range(60):  # told something else before a second has passed
        assert watch.look(t, np.array([0.0, 1.0 if t % 8 < 4 else -1.0]), np.array([0.0])) is None
    watch.begin()
    for t in range(60):  # nobody measures
        assert watch.look(t, np.array([0.0, -1.0]), np.array([np.nan])) is None
        assert watch.look(t, np.array([0.0, -1.0]), None) is None


def test_one_of_two_grippers_is_named():
    watch = grip(2)
    found = [watch.look(t, np.array([0.0, -1.0, -1.0]), np.array([1.0 - min(0.1 * t, 1), 1.0])) for t in range(12)]
    assert [t for t, index in enumerate(found) if index is not None] == [9]
    assert found[9] == 0
    assert "grip1 does not" in watch.problem
    assert "grip0" not in watch.problem
    assert np.allclose(watch.wanted, [-1.0, 1.0])


def test_episode_that_is_thrown_away_is_not_sampled_in_the_same_session(tmp_path):
    ticks = [*[{}] * 12, {"press": ("rerecord",)}]
    loop = build(tmp_path, Script(ticks), learner=Fixed(LineEnv().io, 0.0))
    loop._episode(demo=False)
    stored = loop.memory.count
    assert stored > 5
    assert len(loop.memory.views["online"]) == 0
    loop._episode(demo=False)
    rows = loop.memory.views["online"].rows()
    assert len(rows) == len(episode(loop, 1))
    assert rows.min() >= stored
    assert [bool(kept.meta.get("discarded")) for kept in loop.log.episodes()] == [True, False]
    again = build(tmp_path, None)  # and after a restart the same rows are there
    again.restore_memory()
    new = again.memory.take(again.memory.views["online"].rows())
    assert (new.obs["state"] == loop.memory.take(rows).obs["state"]).all()
    assert len(to_steps(next(iter(loop.log.episodes())))) == 12  # the log keeps everything
