"""Words about episodes that are over, or that nobody has driven yet, and what a resume knows of thrown-away ones."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import numpy as np
import pytest

from robot_rl.human.devices.scripted import ScriptedHuman, ScriptedOptions
from robot_rl.human.elicitor import Elicitor
from robot_rl.human.options import SessionOptions
from tests.human.line_world import LineEnv
from tests.human.test_loop import Script, build, episode


def test_label_after_the_end_of_a_demonstration_is_about_it(tmp_path):
    ticks = [{"enable": True, "value": 0.01}] * 30 + [{}, {"press": ("success",)}] + [{}] * 40
    loop = build(tmp_path, Script(ticks), options=SessionOptions(task_reward="labels"))
    loop._episode(demo=True)
    loop._episode(demo=True)
    assert loop.labels.said == "success, episode 0"
    assert loop.demos == 1
    assert len(loop.memory.views["demo"]) == 30


def test_two_words_in_one_tick_are_about_the_same_episode(tmp_path):
    ticks = [{}] * 40 + [{"press": ("success", "failure")}] + [{}] * 60
    loop = build(tmp_path, Script(ticks), options=SessionOptions(task_reward="labels"))
    loop._episode(demo=False)
    loop._episode(demo=False)
    assert [line["label"] for line in loop.labels.list()] == ["failure", ""]


class Late(LineEnv):
    """Success is seen at step 8, whoever drives."""

    def step(self, action):
        found = super().step(action)
        found[4]["success"] = np.array([self.time >= 8])
        return found


def test_a_success_that_is_seen_while_nobody_drives_pays_the_last_step_that_somebody_drove(tmp_path):
    """It ended the demonstration there with a reward of 0: what succeeded taught that it had failed."""
    loop = build(tmp_path, Script([{"enable": True, "value": 0.5}] * 6), env=Late())
    loop._episode(demo=True)
    assert loop.demos == 1
    steps = episode(loop)
    assert [step.valid for step in steps] == [True] * 6 + [False] * 2
    batch = loop.memory.take(loop.memory.views["demo"].rows())
    assert batch.reward.tolist() == [0.0] * 5 + [1.0]
    assert batch.terminated.tolist() == [False] * 5 + [True]
    assert [run.success for run in loop.memory.runs()] == [True]
    assert loop.labels.list()[0]["success"]
    loop.restore_memory()
    batch = loop.memory.take(loop.memory.views["demo"].rows()[-6:])
    assert batch.reward.tolist() == [0.0] * 5 + [1.0]


def test_a_demonstration_in_which_nobody_did_anything_is_none(tmp_path):
    loop = build(tmp_path, Script([{}] * 40), env=Late())
    loop.elicitor = Elicitor(lambda states, actions: None, base=4, control_hz=10.0)
    loop._episode(demo=True)
    assert loop.demos == 0
    assert len(loop.memory) == 0


def test_a_demonstration_that_a_kill_cut_off_is_no_step_of_the_policy(tmp_path):
    loop = build(tmp_path, Script([{"enable": True, "value": 0.01}] * 40))
    note, noted = loop.log.journal, []

    def killed(step):
        note(step)
        noted.append(step)
        if len(noted) == 6:
            raise KeyboardInterrupt

    loop.log.journal = killed
    with pytest.raises(KeyboardInterrupt):
        loop._episode(demo=True)
    again = build(tmp_path, None)
    assert again.restore_memory() == 0
    again.catch_up(0)
    assert again.env_steps == again.stats.steps == 0
    assert again.stats.demo_steps == 6
    assert len(again.memory) == 0
    assert again.labels.list()[0]["demo"]  # a person may still say that it was a good one


def test_what_was_driven_before_the_first_checkpoint_is_not_driven_again(tmp_path):
    def started():
        env = LineEnv()
        return build(tmp_path, ScriptedHuman(ScriptedOptions(help="never"), env.io, expert=env.expert), env=env)

    started().collect_demos(2)  # then it is killed
    again = started()
    again.demos = again.restore_memory()
    again.catch_up(0)
    again.collect_demos(4)
    starts = [tuple(found.obs["state"][0]) for found in again.log.episodes()]
    assert len(set(starts)) == 4


def test_an_episode_that_was_thrown_away_behind_the_last_checkpoint_is_counted_as_before(tmp_path):
    ticks = [{"enable": True, "value": 0.1}] * 4 + [{"press": ("rerecord",)}]
    loop = build(tmp_path, Script(ticks))
    loop._episode(demo=False)
    again = build(tmp_path, None)
    again.restore_memory()
    again.catch_up(0)
    assert loop.stats.human_steps == 4
    assert again.stats.metrics() == pytest.approx(loop.stats.metrics())
    assert again.stats.reasons == loop.stats.reasons
