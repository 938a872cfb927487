"""Trials with a person at the seat, on a clock that the test turns: who stops, touches or labels what; what counts."""
# pyright: reportArgumentType=false

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from robot_rl.arbiter import Press, Reading
from robot_rl.human.attended import AttendedTrials
from robot_rl.human.devices.teleop import Teleop
from robot_rl.human.judge import Judge
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.trials import trials
from robot_rl.real.core.clock import ManualClock
from tests.human.line_world import LineEnv
from tests.human.test_loop import Fixed, build


class Hands(Teleop):
    """A person whose keys follow from what the page says: `act(telemetry)` -> keys of the next tick."""

    def __init__(self):
        self.page, self.enable, self.connected = None, False, True
        self.act: Callable[[Any], tuple[str, ...]] = lambda page: ()
        self.pages = []

    def read(self, now, obs, policy):
        kinds = self.act(self.page) if self.page is not None else ()
        presses = tuple(Press(kind, now) for kind in kinds)
        stamp = now if self.connected else -math.inf
        return Reading(stamp, np.zeros(1, np.float32), 0.0, self.enable, 0, presses, self.connected)

    def show(self, telemetry, frame=None, views=None):
        self.page = telemetry
        self.pages.append(telemetry)
        assert len(self.pages) < 3000, f"it waits for something that never comes: {telemetry}"


class Far(LineEnv):
    """The goal is never where the robot is."""

    def _draw(self):
        super()._draw()
        self.place, self.goal = 0.0, 0.9


def block(tmp_path, act, env=None, episodes=2, steps=20):
    """A finished block of trials, after which the robot holds; the hands of a person follow `act(page, hands)`."""
    hands = Hands()
    hands.act = lambda page: act(page, hands)
    own, env = Far(steps=steps), env or Far(steps=steps)
    loop = build(tmp_path, hands, env=own, learner=Fixed(own.io, 0.0))
    loop.pilot = simulated_pilot(own, hands, clock=ManualClock())
    trials = AttendedTrials(loop, env, episodes=episodes, seed=1, stopped=lambda: False)
    found = trials.run()
    assert loop.pilot.driver in ("HOLD", "STOPPED")
    return found, hands


def go(page) -> tuple[str, ...]:
    return ("resume",) if page["driver"] == "HOLD" else ()


def test_trials_are_announced_and_wait_for_go(tmp_path):
    waited = []

    def act(page, hands):
        if page["driver"] != "HOLD":
            return ()
        waited.append(page)
        return ("resume",) if len(waited) == 30 else ()

    found, _ = block(tmp_path, act)
    assert found.successes == [False, False]
    assert found.steps == [20, 20]  # none of the waiting
    assert len(waited) == 30
    assert waited[0]["phase"] == "trial 1 of 2, 0 good"
    assert "without you" in waited[0]["problem"]


def test_taking_hold_of_the_device_is_no_go(tmp_path):
    """It started the next trial, which then counted as failed."""
    seen = []

    def act(page, hands):
        seen.append(page["driver"])
        hands.enable = len(seen) in range(5, 10)
        return ("resume",) if len(seen) == 20 else ()

    found, _ = block(tmp_path, act)
    assert found.steps == [20, 20]
    assert set(seen[:19]) == {"HOLD"}


@pytest.mark.parametrize("key", ["estop", "hold"])
def test_stop_and_hold_fail_the_trial_and_success_does_not_mend_it(tmp_path, key):
    places = []

    def act(page, hands):
        number = len(hands.pages)
        if page["driver"] == "POLICY" and page["phase"].startswith("trial 1"):
            places.append(number)
            return (key, "success") if len(places) == 5 else ()
        if page["driver"] == "STOPPED":
            return ("reset",)
        if len(places) == 5 and page["phase"].startswith("trial 1"):
            return ()
        if page["driver"] == "HOLD" and page["phase"].startswith("trial 2") and "stays" not in page["label"]:
            return ("success",)
        return go(page)

    found, hands = block(tmp_path, act)
    assert found.successes == [False, False]
    assert found.steps[0] < 20
    assert found.stops == []  # a person's stop is none of the safety layer's
    assert any(page["label"] == "trial 1 stays failed: it was stopped, held or taken over" for page in hands.pages)


def test_taking_over_fails_the_trial_and_the_robot_holds(tmp_path):
    driven = []

    def act(page, hands):
        driven.append(page["driver"])
        hands.enable = page["phase"].startswith("trial 1") and driven.count("POLICY") > 3
        return go(page)

    found, _ = block(tmp_path, act)
    assert found.successes == [False, False]
    assert found.steps[0] < 20 == found.steps[1]
    assert "HOLD" in driven[driven.index("POLICY") :]


def test_what_a_person_says_about_a_trial_is_shown_and_can_be_taken_back(tmp_path):
    said, told = {}, []

    def act(page, hands):
        if page["driver"] == "POLICY":
            told.append((page["phase"], page["label"]))
            said[page["phase"][:7]] = said.get(page["phase"][:7], 0) + 1
            number = page["phase"][:7], said[page["phase"][:7]]
            return {("trial 1", 5): ("success",), ("trial 2", 5): ("undo",), ("trial 3", 5): ("failure",)}.get(
                number, ()
            )
        return go(page)

    found, _ = block(tmp_path, act, episodes=3)
    assert found.successes == [False, False, False]
    assert found.steps[0] < found.steps[1] == 20  # the word ended the first trial, taking it back not the second
    assert ("trial 2 of 3, 1 good", "success, trial 1") in told
    assert ("trial 2 of 3, 0 good", "label taken back, trial 1") in told


class Blind(Far):
    """At its fifth step the robot says nothing that is a number."""

    def step(self, action):
        self.driven = getattr(self, "driven", 0) + 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self.driven == 5:
            obs = {"state": np.full((1, 2), np.nan, np.float32)}
        return obs, reward, terminated, truncated, info


def test_a_trial_that_the_robot_spoils_is_driven_again(tmp_path):
    own, hands = Blind(steps=20), Hands()
    hands.act = go
    loop = build(tmp_path, hands, env=own, learner=Fixed(own.io, 0.0))
    loop.pilot = simulated_pilot(own, hands, clock=ManualClock())
    loop.pilot.simulates = False
    found = AttendedTrials(loop, own, episodes=1, seed=1, stopped=lambda: False).run()
    assert found.steps == [20]
    told = ["not finite" in page["problem"] for page in hands.pages]
    assert any(told)
    assert not any(told[-20:])  # what was put right is not told any more


def test_a_word_about_an_episode_of_the_list_ends_no_trial(tmp_path):
    hands = Hands()
    own = Far(steps=20)
    loop = build(tmp_path, hands, env=own, learner=Fixed(own.io, 0.0))
    loop.pilot = simulated_pilot(own, hands, clock=ManualClock())
    ticks = []

    def read(now, obs, policy, before=hands.read):
        reading = before(now, obs, policy)
        ticks.append(loop.pilot.driver)
        presses = (Press("success", now, episode=0),) if ticks.count("POLICY") == 5 else reading.presses
        return replace(reading, presses=presses)

    hands.read, hands.act = read, go
    found = AttendedTrials(loop, Far(steps=20), episodes=1, seed=1, stopped=lambda: False).run()
    assert (found.successes, found.steps) == ([False], [20])
    assert any("episode 0" in page["label"] for page in hands.pages)


@pytest.mark.parametrize("keys", [[("estop",), ("reset", "estop")], [("estop",), ("reset",), ("estop",)]])
def test_a_stop_that_comes_with_or_after_an_unlock_stays(tmp_path, keys):
    """Unlock and STOP in one tick unlocked."""
    env, hands = Far(), Hands()
    pilot = simulated_pilot(env, hands, clock=ManualClock())
    left = iter(keys)
    hands.page, hands.act = {}, lambda page: next(left, ())
    obs = {"state": np.zeros(2, np.float32)}
    pilot.safety.supervisor.hinder(("a test",))  # nothing may be unlocked now
    for number in range(40):
        if number == 10:
            pilot.safety.supervisor.hinder(())
        pilot.idle(obs)
        pilot.wait()
    assert pilot.driver == "STOPPED"


@pytest.mark.parametrize("mode", ["deadman", "toggle"])
def test_who_drove_before_a_stop_does_not_drive_again_because_it_is_unlocked(mode):
    """The dead-man was held all the time, the key was pressed once: unlocking gave the robot back to the hands."""
    env, hands = Far(), Hands()
    hands.page, hands.enable = {}, True
    pilot = simulated_pilot(env, hands, clock=ManualClock(), takeover={"mode": mode})
    obs, still = {"state": np.zeros(2, np.float32)}, np.zeros(1, np.float32)
    hand = hands.read

    def read(now, obs, policy):
        return replace(hand(now, obs, policy), toggles=int(pressed))

    hands.read = read
    pressed, keys = False, iter([("resume",)])
    hands.act = lambda page: next(keys, ())
    pilot.idle(obs)
    assert pilot.driver == ("HUMAN" if mode == "deadman" else "POLICY")
    pressed = True
    assert pilot.drive(obs, still).driver == "HUMAN"
    keys = iter([("estop",), ("reset",)])
    drivers = []
    for _ in range(20):
        pilot.idle(obs)
        pilot.wait()
        drivers.append(pilot.driver)
    assert drivers[0] == "STOPPED"
    assert drivers[-1] == "HOLD"
    assert "HUMAN" not in drivers
    keys = iter([("resume",)])
    pilot.idle(obs)
    assert pilot.driver != "HOLD"


class Silent(LineEnv):
    """It does not say what a success is."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {key: value for key, value in info.items() if key != "success"}


def test_a_classifier_of_the_session_is_asked_in_trials_where_the_world_knows_no_success():
    for env, overrules, good in ((Silent(), False, True), (LineEnv(), False, False), (LineEnv(), True, True)):
        judge = Judge(lambda obs: np.ones(1), 0.5, 2)
        learner = Fixed(env.io, 0.0)
        found = trials(env, learner, simulated_pilot(env, None), episodes=2, seed=3, judge=judge, overrules=overrules)
        assert found.successes == [good] * 2
