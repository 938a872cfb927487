"""The human-in-the-loop loop: routing, ends, faults with injection, exact continuation."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import errno
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robot_rl.arbiter import Press, Reading
from robot_rl.checkpoint import load_state, save_state
from robot_rl.data.hil_episode import EpisodeRules, to_steps
from robot_rl.data.hil_record import EndReason, Invalid, Source
from robot_rl.data.hil_words import read_corrections
from robot_rl.data.mix import Mix
from robot_rl.human import log as log_module
from robot_rl.human.devices.scripted import ScriptedHuman, ScriptedOptions
from robot_rl.human.devices.teleop import Teleop
from robot_rl.human.log import HilLog
from robot_rl.human.loop import HumanInTheLoop
from robot_rl.human.memory import HilMemory
from robot_rl.human.options import SessionOptions
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.session import Records
from robot_rl.human.trials import trials
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.types import Learner, Needs, Options, PolicyParts
from tests.human.line_world import LineEnv


class Script(Teleop):
    """A device that plays a list of readings, one per tick; then hands off."""

    realtime = False

    def __init__(self, ticks):
        self.ticks, self.number = ticks, 0

    def read(self, now, obs, policy):
        wish = self.ticks[self.number] if self.number < len(self.ticks) else {}
        self.number += 1
        age = wish.get("age", 0.0)
        presses = tuple(Press(kind, now) for kind in wish.get("press", ()))
        value = np.full(1, wish.get("value", 0.0), np.float32)
        connected = wish.get("connected", True)
        return Reading(now - age, value, abs(float(value[0])), wish.get("enable", False), 0, presses, connected)


class Fixed(Learner):
    """A learner whose policy always says the same; counts updates."""

    @property
    def parts(self):
        return PolicyParts()

    def __init__(self, io, value=0.3):
        super().__init__(Options(), io)
        self.io, self.value, self.count, self.policy = io, value, 0, self

    @classmethod
    def needs(cls, options, io):
        return Needs(rows=8)

    def reset(self, rows=None):
        pass

    def act(self, obs, *, deterministic=False):
        return SimpleNamespace(value=np.full((1, 1), self.value, np.float32))

    def update(self, batches):
        next(batches)
        self.count += 1
        return {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def build(folder, human, *, env=None, learner=None, options=None, rules=None, takeover=None, seed=0):
    env = env or LineEnv(seed=seed)
    learner = learner or Fixed(env.io)
    pilot = simulated_pilot(env, human, takeover=takeover)
    log = HilLog(folder, env.io)
    memory = HilMemory(env.io, 5000, seed=seed)
    views = memory.views
    mix = Mix({"online": (views["online"], 0.5), "demo": (views["demo"], 0.5)}, seed=seed)
    loop = HumanInTheLoop(
        env,
        learner,
        pilot,
        Records(log, memory, mix, rules or EpisodeRules(gamma=0.9)),
        options=options or SessionOptions(learning_starts=10, success_s=0.0),
        seed=seed,
    )
    return loop


def episode(loop, number=0):
    return to_steps(list(loop.log.episodes())[number])


def test_time_limit_is_a_cut_that_bootstraps(tmp_path):
    loop = build(tmp_path, None, learner=Fixed(LineEnv().io, 0.0))
    loop.run(30, lambda *_: True)
    steps = episode(loop)
    assert len(steps) == 30
    assert steps[-1].truncated
    assert not steps[-1].terminated
    batch = loop.memory.take(loop.memory.views["online"].rows())
    assert batch.discount[-1] == pytest.approx(0.9)
    # the successor is the world's final observation, not the next episode's first
    assert float(batch.next_obs["state"][-1, 1]) == float(batch.obs["state"][-1, 1])


def test_success_ends_the_episode_and_does_not_bootstrap(tmp_path):
    env = LineEnv()
    human = ScriptedHuman(ScriptedOptions(help="never"), env.io, expert=env.expert)
    loop = build(tmp_path, human, env=env)
    loop.collect_demos(3)
    batch = loop.memory.take(loop.memory.views["demo"].rows())
    assert loop.demos == 3
    assert int(batch.terminated.sum()) == 3
    assert batch.reward[batch.terminated].tolist() == [1.0] * 3
    assert (batch.discount[batch.terminated] == 0).all()
    assert len(loop.memory.views["online"]) == 0  # demonstrations are seen by the demo view alone
    assert loop.stats.human_seconds == pytest.approx(0.1 * loop.stats.demo_steps)
    assert env.resets >= 4  # a success is no end of the world's: the loop resets it


def test_human_steps_store_the_persons_action_and_go_to_both_views(tmp_path):
    ticks = [{}, {}, *[{"enable": True, "value": -0.5}] * 4, *[{}] * 30]
    loop = build(tmp_path, Script(ticks))
    loop.run(20, lambda *_: True)
    steps = episode(loop)
    human = [t for t, step in enumerate(steps) if step.source == Source.HUMAN]
    assert human[:4] == [2, 3, 4, 5]
    for t in range(2, 6):
        assert steps[t].action_cmd[0] == pytest.approx(-0.5)
        assert steps[t].action_policy[0] == pytest.approx(0.3)  # the policy's shadow is kept beside it
        assert steps[t].human_valid
    assert human == [2, 3, 4, 5]
    assert [step.source for step in steps[6:9]] == [Source.BLEND] * 2 + [Source.POLICY]  # the third is all the policy's
    views = loop.memory.views
    assert set(views["human"].rows()) <= set(views["demo"].rows())
    assert set(views["human"].rows()) <= set(views["online"].rows())


@pytest.mark.parametrize(("ticks", "cost", "weights"), [(1, 0.0, [0.0]), (2, -1.0, [0.3, 0.3])])
def test_device_that_glitches_for_a_tick_costs_nothing_and_is_not_cloned(tmp_path, ticks, cost, weights):
    # two blended steps follow the person's; counted as the person's they made every glitch a span of three
    loop = build(tmp_path, Script([{}, {}, {}, *[{"enable": True, "value": -0.5}] * ticks]))
    loop.run(20, lambda *_: True)
    steps = episode(loop)
    assert [t for t, step in enumerate(steps) if step.human] == list(range(3, 3 + ticks))
    assert [step.reward_rlif for step in steps] == [0.0, 0.0, cost] + [0.0] * (len(steps) - 3)
    batch = loop.memory.take(loop.memory.views["online"].rows())
    expected = [0.0] * 3 + weights + [0.0] * (len(batch.action) - 3 - ticks)
    assert batch.extras["imitate"].tolist() == pytest.approx(expected)
    assert batch.intervened.tolist() == [3 <= t < 5 + ticks for t in range(len(steps))]  # the mixed ones are not own


def test_executed_action_respects_the_rate_limit_at_the_handover(tmp_path):
    ticks = [{}] * 3 + [{"enable": True, "value": -1.0}] * 5
    env = LineEnv(speed=0.5)  # 5 m/s: an acceleration of 1.5 m/s^2 allows 0.15 m/s per tick, 3 % of the range
    loop = build(tmp_path, Script(ticks), env=env, learner=Fixed(env.io, 1.0))
    loop.run(8, lambda *_: True)
    steps = episode(loop)
    executed = np.array([step.action_exec[0] for step in steps])
    assert np.abs(np.diff(executed)).max() <= 0.15 / 5.0 + 1e-6
    assert all(step.clip_frac > 0 for step in steps[:3])
    assert all(step.safety_bits for step in steps[:3])


def test_label_key_ends_the_episode_at_the_step_before_the_reaction_time(tmp_path):
    ticks = [{}] * 8 + [{"press": ("success",)}]
    loop = build(
        tmp_path, Script(ticks), learner=Fixed(LineEnv().io, 0.0), options=SessionOptions(task_reward="labels")
    )
    loop.run(5, lambda *_: True)
    steps = episode(loop)
    # pressed at the start of tick 8 = 0.8 s (and the settling ticks before the start); 200 ms earlier is step 6
    assert steps[6].terminated
    assert steps[6].reward == 1.0
    assert [step.valid for step in steps] == [True] * 7 + [False]
    assert loop.stats.reasons == {"success": 1}


def test_rerecord_throws_a_demonstration_away(tmp_path):
    ticks = [{"enable": True, "value": 0.1}] * 4 + [{"press": ("rerecord",)}]
    loop = build(tmp_path, Script(ticks))
    loop._episode(demo=True)
    assert loop.demos == 0
    assert len(loop.memory) == 0
    assert next(loop.log.episodes()).meta["discarded"]  # the disk keeps it
    loop.restore_memory()
    assert len(loop.memory) == 0


def test_a_demonstration_thrown_away_behind_the_last_checkpoint_is_no_step_of_the_policy(tmp_path):
    loop = build(tmp_path, Script([{"enable": True, "value": 0.1}] * 4 + [{"press": ("rerecord",)}]))
    state = loop.state_dict()
    loop._episode(demo=True)  # then it is killed
    again = build(tmp_path, None)
    again.restore_memory()
    again.load_state_dict(state)
    assert again.env_steps == loop.env_steps == 0
    assert again.stats.metrics() == pytest.approx(loop.stats.metrics(), nan_ok=True)


# ---------------------------------------------------------------- faults


def test_fault_device_lost_while_driving_cuts_the_episode_and_never_hands_over(tmp_path):
    ticks = [{"enable": True, "value": 0.2}] * 5 + [{"enable": True, "value": 0.2, "age": 0.5}]
    loop = build(tmp_path, Script(ticks))
    loop._episode(demo=False)
    steps = episode(loop)
    assert len(steps) == 5
    assert [step.valid for step in steps] == [True] * 4 + [False]
    assert steps[-1].invalid_reason == Invalid.COMMS
    assert steps[3].truncated
    assert steps[3].intv_end
    assert loop.pilot.driver == "HOLD"
    with pytest.raises(RuntimeError, match="HOLD"):  # in simulated time nobody will ever resume
        loop._episode(demo=False)


def test_fault_estop_latches_and_ends_the_episode(tmp_path):
    loop = build(tmp_path, Script([{}] * 3 + [{"press": ("estop",)}]))
    loop._episode(demo=False)
    assert next(loop.log.episodes()).meta["end_reason"] == EndReason.HUMAN_STOP
    assert loop.pilot.driver == "STOPPED"
    assert loop.pilot.safety.stopped


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_fault_non_finite_actions_hold_and_three_in_a_row_stop(tmp_path, bad):
    env = LineEnv()
    loop = build(tmp_path, None, env=env, learner=Fixed(env.io, bad))
    loop._episode(demo=False)
    steps = episode(loop)
    assert loop.pilot.driver == "STOPPED"
    assert next(loop.log.episodes()).meta["end_reason"] == EndReason.SAFETY_STOP
    assert loop.stats.stops == ["cmd_nonfinite (3 actions in a row are not finite)"]  # the page and the answer say why
    assert len(steps) == 2
    assert all(not step.valid and step.invalid_reason == Invalid.NONFINITE for step in steps)
    assert all(step.action_exec[0] == 0.0 for step in steps)


def test_a_safety_stop_says_which_limit_it_was(tmp_path):
    env = LineEnv()
    learner, calls = Fixed(env.io, 0.0), iter(range(1000))
    loop = build(tmp_path, None, env=env, learner=learner)

    def act(obs, deterministic=False):
        if next(calls) == 3:
            loop.pilot.safety.supervisor.report("limit_position", "x at 0.31, its limit is 0.3")
        return SimpleNamespace(value=np.zeros((1, 1), np.float32))

    learner.act = act
    loop._episode(demo=False)
    assert loop.problem == "the safety layer stopped the robot: limit_position (x at 0.31, its limit is 0.3)"
    assert next(loop.log.episodes()).meta["end_reason"] == EndReason.SAFETY_STOP


def test_fault_one_bad_action_costs_one_step(tmp_path):
    env = LineEnv()
    learner = Fixed(env.io, 0.0)
    loop = build(tmp_path, None, env=env, learner=learner)
    calls = iter(range(1000))
    learner.act = lambda obs, deterministic=False: SimpleNamespace(
        value=np.full((1, 1), math.nan if next(calls) == 4 else 0.0, np.float32)
    )
    loop._episode(demo=False)
    steps = episode(loop)
    assert [t for t, step in enumerate(steps) if not step.valid] == [4]
    assert len(steps) == 30


def test_fault_full_disk_in_the_journal_keeps_the_episode(tmp_path, monkeypatch):
    loop = build(tmp_path, None, learner=Fixed(LineEnv().io, 0.0))

    def full(step):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop.log, "journal", full)
    loop._episode(demo=False)
    assert len(episode(loop)) == 30
    assert loop.log.manifest[0]["valid"] == 30


def test_a_word_that_a_full_disk_has_no_room_for_counts_and_is_written_later(tmp_path, monkeypatch):
    loop = build(tmp_path, None, learner=Fixed(LineEnv().io, 0.0))
    loop._episode(demo=False)
    loop._episode(demo=False)
    append, calls = log_module.append_line, []

    def full(path, value):
        calls.append(path.name)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log_module, "append_line", full)
    loop.hear([Press("success", 0.0, episode=0), Press("failure", 0.0)])
    assert [line["success"] for line in loop.labels.list()] == [False, True]
    assert "2 words about episodes wait for room" in loop.problem
    monkeypatch.setattr(log_module, "append_line", append)
    loop.hear([])
    assert loop.problem == ""
    assert [line["success"] for line in read_corrections(tmp_path)] == [True, False]


def test_an_episode_without_help_is_promoted_by_what_is_said_about_it_later(tmp_path):
    """Called a success it joins the demonstrations, called a failure it leaves them; so after a restart."""
    options = SessionOptions(promote_success=True)
    loop = build(tmp_path, None, learner=Fixed(LineEnv().io, 0.0), options=options)
    loop._episode(demo=False)
    demo = loop.memory.views["demo"]
    assert len(demo) == 0
    for word, rows in (("success", 30), ("failure", 0), ("success", 30), ("undo", 0), ("success", 30)):
        loop.labels.apply(word, 0)
        assert len(demo) == rows, word
    again = build(tmp_path, None, learner=Fixed(LineEnv().io, 0.0), options=options)
    again.restore_memory()
    assert again.memory.views["demo"].rows().tolist() == demo.rows().tolist()


def test_fault_learner_with_a_nan_loss_skips_then_goes_back_then_gives_up(tmp_path):
    learner = Fixed(LineEnv().io, 0.0)
    fails = {"left": 9}

    def update(batches):
        if fails["left"] > 0:
            fails["left"] -= 1
            raise FloatingPointError("nan")
        return {}

    learner.update = update
    loop = build(tmp_path, None, learner=learner)
    loop.run(60, lambda *_: False)  # nine in a row are skipped
    assert loop.improver.rollbacks == 0
    fails["left"] = 10
    loop.run(120, lambda *_: False)  # ten put the learner back
    assert loop.improver.rollbacks == 1
    fails["left"] = 1000
    with pytest.raises(FloatingPointError):
        loop.run(400, lambda *_: False)
    assert loop.improver.rollbacks == 3


def test_fault_diverged_policy_stops_the_robot_and_is_put_back(tmp_path):
    env = LineEnv()
    learner = small(env.io)
    loop = build(tmp_path, None, env=env, learner=learner)
    loop.collect_demos(0)
    loop.run(90, lambda *_: False)
    step = float(learner.critic.lr)
    for weights in (learner.actor.params, learner.acting):  # the mean of the weights is what acts
        weights.flat[:] = math.nan
    loop._episode(demo=False)  # three bad actions: stopped, and nothing of it is learned from
    assert loop.stats.reasons["safety_stop"] == 1
    assert loop.improver.rollbacks == 1
    assert learner.critic.lr == pytest.approx(0.5 * step)
    assert np.isfinite(learner.policy.act({"state": np.zeros((1, 2), np.float32)}).value).all()
    assert "diverged" in loop.problem
    again = build(tmp_path / "again", None, env=LineEnv(), learner=small(env.io))
    again.load_state_dict(loop.state_dict())  # and one that is resumed goes on with it
    assert again.learner.critic.lr == pytest.approx(0.5 * step)
    assert again.improver.rollbacks == 1
    batch = loop.memory.take(loop.memory.views["online"].rows())
    assert torch.isfinite(batch.action).all()


# ---------------------------------------------------------------- continuation


def small(io, seed=0):
    return ImitationSac(
        ImitationSacOptions(
            batch_size=16,
            hidden=(16, 16),
            critics=2,
            utd=1,
            bc_steps=20,
            metrics_every=1,
            normalize_obs=True,
        ),
        io,
        seed=seed,
    )


def start(folder, env):
    human = ScriptedHuman(ScriptedOptions(patience_s=0.5, drive_s=0.5, noise=0.05), env.io, expert=env.expert, seed=3)
    return build(folder, human, env=env, learner=small(env.io))


def test_resume_continues_bit_for_bit(tmp_path):
    env = LineEnv()
    loop = start(tmp_path / "a", env)
    loop.collect_demos(2)
    loop.learner.pretrain(loop.memory.views["demo"].batches(16))
    loop.run(100, lambda *_: False)
    saved = {
        "loop": loop.state_dict(),
        "sampler": {**loop.sampler.state_dict(), "parts": {}},
        "learner": loop.learner.state_dict(),
    }
    save_state(tmp_path / "state.pt", saved)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    loop.run(200, lambda *_: False)

    again = start(tmp_path / "b", LineEnv(seed=9))
    state = load_state(tmp_path / "state.pt")
    again.restore_memory()
    again.learner.load_state_dict(state["learner"])
    again.load_state_dict(state["loop"])
    again.sampler.load_state_dict(state["sampler"])
    again.run(200, lambda *_: False)
    assert again.env_steps == loop.env_steps
    first, second = loop.learner.policy.state_dict()["actor"], again.learner.policy.state_dict()["actor"]
    assert torch.equal(first, second)
    assert [line["sha256"] for line in again.log.manifest] == [line["sha256"] for line in loop.log.manifest]


def test_killed_run_keeps_what_was_driven_after_the_checkpoint(tmp_path):
    env = LineEnv()
    loop = start(tmp_path / "a", env)
    loop.collect_demos(2)
    loop.run(60, lambda *_: False)
    state, rows = loop.state_dict(), loop.memory.count
    loop.run(120, lambda *_: False)  # then it is killed
    for number in (2, loop.log.next_episode - 1):  # of before the checkpoint and of after it
        loop.labels.apply("failure", number)
    again = start(tmp_path / "a", LineEnv())
    again.restore_memory()
    again.load_state_dict(state)
    assert again.memory.count == loop.memory.count > rows
    assert again.env_steps == loop.env_steps
    assert again.log.next_episode == loop.log.next_episode
    assert again.stats.metrics() == pytest.approx(loop.stats.metrics())  # what the page shows
    again.labels.apply("undo", 2)
    loop.labels.apply("undo", 2)
    assert again.stats.metrics() == pytest.approx(loop.stats.metrics())


# ---------------------------------------------------------------- numbers


def test_trials_of_the_expert_succeed_alone(tmp_path):
    env = LineEnv()
    policy = Fixed(env.io)
    policy.act = lambda obs, deterministic=False: SimpleNamespace(value=env.expert(obs))
    block = trials(env, policy, simulated_pilot(env, None), episodes=12, seed=0)
    assert block.successes == [True] * 12
    assert block.stops == []


def test_a_stop_costs_its_own_trial_and_no_other():
    env = LineEnv()
    learner = Fixed(env.io, 0.0)
    calls = iter(range(1000))
    learner.act = lambda obs, deterministic=False: SimpleNamespace(
        value=np.full((1, 1), math.nan if next(calls) < 3 else 0.3, np.float32)
    )
    found = trials(env, learner, simulated_pilot(env, None), episodes=3, seed=0)
    assert len(found.stops) == 1
    assert len(found.successes) == 3
    assert not found.successes[0]
    assert found.steps[1] > found.steps[0]


def test_simulated_robot_that_stopped_goes_on_after_it_was_put_back_but_never_after_an_estop(tmp_path):
    env = LineEnv()
    learner = Fixed(env.io, math.nan)
    loop = build(tmp_path / "fault", None, env=env, learner=learner)
    loop._episode(demo=False)
    assert loop.pilot.driver == "STOPPED"
    learner.value = 0.0
    assert loop._episode(demo=False) is not None
    loop = build(tmp_path / "estop", Script([{}] * 3 + [{"press": ("estop",)}]))
    loop._episode(demo=False)
    with pytest.raises(RuntimeError, match="STOPPED"):
        loop._episode(demo=False)
