"""What a session counts: interventions, late ticks, safety stops, and what stands against unattended operation."""

import numpy as np
import pytest

from robot_rl.arbiter import Press, Reading
from robot_rl.human.devices.teleop import Teleop
from robot_rl.human.options import SessionOptions
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.stats import EpisodeFacts, HilStats, Trials, count_stops
from robot_rl.real.core.clock import ManualClock
from robot_rl.stats import wilson
from tests.human.line_world import LineEnv
from tests.human.test_loop import Fixed, build


def test_intervention_rate_counts_human_steps_over_all_steps():
    stats = HilStats(10.0, window=2)
    stats.add(EpisodeFacts(success=True, steps=100, human_steps=100, spans=1, autonomous=False))
    stats.add(EpisodeFacts(success=True, steps=30, human_steps=10, spans=2, autonomous=False))
    stats.add(EpisodeFacts(success=True, steps=10))
    row = stats.metrics()  # the window holds the last two
    assert row["rollout/intervention_rate"] == pytest.approx(10 / 40)
    assert row["rollout/spans"] == 1.0
    assert row["hil/human_seconds"] == pytest.approx(11.0)
    assert row["rollout/autonomous_success"] == 0.5
    assert row["rollout/autonomous_low"] == pytest.approx(wilson(1, 1)[0])


def test_one_late_tick_of_a_short_episode_is_not_the_99th_percentile_of_a_session():
    stats = HilStats(10.0)
    for late in (0.0, 60.0, 0.0, 0.0, 0.0, 0.0):
        stats.add(EpisodeFacts(tick_ms=[100.0] * 29 + [100.0 + late]))
    assert stats.tick(99) == pytest.approx(100.0)
    stats.add(EpisodeFacts(tick_ms=[100.0] * 28 + [160.0] * 2))
    assert stats.tick(99) > 105.0


def test_gate_needs_trials_success_no_stops_and_time():
    good = Trials([True] * 50, [10] * 50)
    assert good.gate(0.9, 5.0, 100.0) == []
    assert len(Trials([True] * 10, [1] * 10, stops=["limit_position (x)"]).gate(0.9, 200.0, 100.0)) == 4
    assert good.metrics()["eval/streak"] == 50


def test_safety_stops_are_counted_by_their_limit_with_the_numbers_of_the_last():
    told = count_stops(["limit_position (x at 0.31)", "tracking (y)", "limit_position (z at 0.5)"])
    assert told == "2 x limit_position (z at 0.5), 1 x tracking (y)"


class Go(Teleop):
    """A person at the seat who says go every half second and looks on."""

    ticks = 0

    def read(self, now, obs, policy):
        self.ticks += 1
        go = (Press("resume", now),) if self.ticks % 5 == 0 else ()
        return Reading(now, np.zeros(1, np.float32), presses=go)


def test_a_step_names_the_policy_that_proposed_it_though_a_newer_one_was_made_meanwhile(tmp_path):
    """In real time updates are made while the step lasts: the version was theirs, and the age below 0."""
    env = LineEnv()
    loop = build(tmp_path, None, env=env, learner=Fixed(env.io, 0.0), options=SessionOptions(learning_starts=5))
    loop.pilot = simulated_pilot(env, Go(), clock=ManualClock())
    loop.improver._times.extend([1e-4] * 10)  # updates fit between two ticks
    loop.run(1, lambda *_: True)
    columns = next(loop.log.episodes()).meta["columns"]
    (first,) = np.flatnonzero(np.diff(columns["policy_version"]))[:1]
    assert first == 8  # an update after each step from the ninth on, and ready for the next one
    assert columns["policy_version"][first:].tolist() == list(range(30 - first))
    assert columns["policy_lag_ms"][first + 1 :].tolist() == pytest.approx([100.0] * (29 - first))
