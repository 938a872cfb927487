"""A robot with a supervisor of its own hears STOP at once, also while it goes to its start or the loop is busy."""
# pyright: reportArgumentType=false, reportIncompatibleMethodOverride=false

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from robot_rl.human.devices.remote import RemoteTeleop
from robot_rl.human.options import SessionOptions
from tests.human.line_world import LineEnv
from tests.human.test_loop import Fixed, build

pytestmark = pytest.mark.timeout(60)


class Robot(LineEnv):
    """Takes its time to go to the start, and has a latch that a person clears."""

    def __init__(self):
        super().__init__(steps=10_000)
        self.latched, self.unlocked, self.ways, self.way = False, 0, 0, threading.Event()
        self.stopped_at = 0.0
        self.busy = threading.Event()
        self.busy.set()

    @property
    def parts(self):  # it cannot be put anywhere: no simulation
        return replace(super().parts, saves=False)

    def stop(self):
        self.latched, self.stopped_at = True, time.monotonic()

    def unlock(self):
        self.latched, self.unlocked = False, self.unlocked + 1

    def reset(self, *, seed=None, options=None):
        self.ways += 1
        while not self.way.wait(0.01):
            if self.latched:
                break
        if self.latched:
            raise RuntimeError("the supervisor is in ESTOP")
        return super().reset(seed=seed)

    def step(self, action):
        self.busy.wait(20.0)
        return super().step(action)


class Hands(RemoteTeleop):
    """A page without a browser: says every 20 ms that it is there, keeps what it is shown."""

    def __init__(self, io):
        super().__init__(io)
        self.pages, self.done, self.number = [], threading.Event(), 0
        threading.Thread(target=self._say, daemon=True).start()

    def _say(self):
        while not self.done.wait(0.02):
            self.number += 1
            self.message(self.number, {}, False)

    def show(self, telemetry, frame=None, views=None):
        self.pages.append(telemetry)

    def shows(self, what, seconds=10.0):
        end = time.monotonic() + seconds
        while not (self.pages and what(self.pages[-1])):
            assert time.monotonic() < end, self.pages[-1:]
            time.sleep(0.01)


def session(tmp_path):
    env = Robot()
    hands = Hands(env.io)
    env.way.set()  # the pilot asks where the robot stands
    loop = build(
        tmp_path, hands, env=env, learner=Fixed(env.io, 0.0), options=SessionOptions(task_reward="labels"),
        takeover={"device_timeout_ms": 1000.0},
    )  # fmt: skip
    env.way.clear()
    thread = threading.Thread(target=loop.run, args=(10**6, lambda *_: False))
    thread.start()
    return env, hands, loop, thread


def end(env, hands, loop, thread):
    env.way.set()
    env.busy.set()
    loop.stop()
    hands.press("estop")
    thread.join(10.0)
    hands.done.set()
    assert not thread.is_alive()


def test_stop_reaches_a_robot_on_its_way_to_the_start_and_the_page_lives(tmp_path):
    env, hands, loop, thread = session(tmp_path)
    try:
        hands.shows(lambda page: page["phase"] == "the robot goes to its start")
        shown = len(hands.pages)
        time.sleep(0.5)
        assert len(hands.pages) - shown >= 3  # at 10 Hz, on a busy machine
        pressed = time.monotonic()
        hands.press("estop")
        assert env.latched
        assert env.stopped_at - pressed < 0.05  # by the thread that heard it
        hands.shows(lambda page: page["driver"] == "STOPPED" and "the reset failed" in page["problem"])
        ways = env.ways
        time.sleep(0.3)
        assert env.ways == ways  # and nothing is tried again by itself
        hands.press("reset")
        hands.shows(lambda page: page["driver"] == "HOLD")
        assert (env.unlocked, env.latched) == (1, False)
        env.way.set()
        hands.press("resume")
        hands.shows(lambda page: page["driver"] == "POLICY" and page["clock"] is not None)
    finally:
        end(env, hands, loop, thread)


def test_after_an_episode_the_robot_goes_to_its_start_and_drives_on_without_another_go(tmp_path):
    env, hands, loop, thread = session(tmp_path)
    try:
        env.way.set()
        hands.shows(lambda page: page["driver"] == "HOLD" and page["phase"] == "training")
        hands.press("resume")
        hands.shows(lambda page: page["clock"] is not None and page["clock"] > 0.4)
        env.way.clear()
        hands.press("success")
        hands.shows(lambda page: page["phase"] == "the robot goes to its start")
        env.way.set()
        hands.shows(lambda page: page["episodes"] == 1 and page["driver"] == "POLICY" and page["clock"] is not None)
    finally:
        end(env, hands, loop, thread)


def test_stop_reaches_the_robot_while_the_loop_waits_for_a_step(tmp_path):
    env, hands, loop, thread = session(tmp_path)
    try:
        env.way.set()
        hands.shows(lambda page: page["driver"] == "HOLD" and page["phase"] == "training")
        hands.press("resume")
        hands.shows(lambda page: page["driver"] == "POLICY" and page["clock"] is not None)
        env.busy.clear()
        time.sleep(0.3)  # the loop stands in `step`
        hands.press("estop")
        assert env.latched
        assert loop.pilot.safety.stopped
        env.busy.set()
        hands.shows(lambda page: page["driver"] == "STOPPED")
        np.testing.assert_equal(loop.stats.reasons.get("human_stop"), 1)  # a person's, not the safety layer's
    finally:
        end(env, hands, loop, thread)
