"""The scene is put back before every episode, and a pause comes after the one under way."""
# pyright: reportArgumentType=false, reportIncompatibleMethodOverride=false

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.mix import Mix
from robot_rl.human.actor import HilActor, NoRows, OutboxMemory
from robot_rl.human.attended import AttendedTrials
from robot_rl.human.devices.scripted import ScriptedHuman, ScriptedOptions
from robot_rl.human.judge import Judge
from robot_rl.human.log import HilLog
from robot_rl.human.loop import HumanInTheLoop
from robot_rl.human.memory import HilMemory
from robot_rl.human.options import SessionOptions
from robot_rl.human.pieces import Outbox
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.scene import Scene
from robot_rl.human.session import Helpers, Records
from tests.human.line_world import LineEnv
from tests.human.test_loop import Fixed, build, episode
from tests.human.test_robot_stop import Hands

pytestmark = pytest.mark.timeout(60)


class Seen(LineEnv):
    """A robot in the world: one camera, goes nowhere by itself, and may end an episode with a fault."""

    def __init__(self):
        super().__init__(steps=10_000)
        self.io = replace(self.io, obs={**self.io.obs, "image.front": ((64, 64, 3), "uint8")})
        self.at, self.ways, self.fault = 8, 0, ""

    @property
    def parts(self):
        return replace(super().parts, saves=False)

    def _obs(self):
        picture = np.full((1, 64, 64, 3), 100, np.uint8)
        picture[:, self.at : self.at + 8, self.at : self.at + 8] = 200
        return {**super()._obs(), "image.front": picture}

    def look(self):
        return self._obs()

    def pictures(self):
        return {"front": (self._obs()["image.front"][0], 0.0)}

    def reset(self, *, seed=None, options=None):
        self.ways += 1
        return super().reset(seed=seed)

    def step(self, action):
        *rest, truncated, info = super().step(action)
        if self.fault:
            truncated = np.array([True])
            info |= {"valid": np.array([False]), "robot": {"fault": self.fault}}
            self.fault = ""
        return *rest, truncated, info


def begin(tmp_path, **options):
    env = Seen()
    hands = Hands(env.io)
    loop = build(
        tmp_path, hands, env=env, learner=Fixed(env.io, 0.0),
        options=SessionOptions(task_reward="labels", **options), takeover={"device_timeout_ms": 5000.0},
    )  # fmt: skip
    env.ways = 0
    thread = threading.Thread(target=loop.run, args=(10**6, lambda *_: False))
    thread.start()
    return env, hands, loop, thread


def end(hands, loop, thread):
    loop.stop()
    hands.press("estop")
    thread.join(10.0)
    hands.done.set()
    assert not thread.is_alive()


def drives(page):
    return page["driver"] == "POLICY" and page["clock"] is not None and page["clock"] > 0.2


def test_differences_are_the_share_of_tiles_that_changed(tmp_path):
    env, hands = Seen(), Hands(Seen().io)
    hands.done.set()
    pilot = simulated_pilot(env, hands)
    scene = Scene(SessionOptions(scene="check", scene_tolerance=0.01), tmp_path)
    good = {"front": env.look()["image.front"][0]}
    assert scene.gate(pilot, good).startswith("Put the scene back")
    scene.say()
    assert scene.gate(pilot, good) == ""
    env.at = 24  # 8 x 8 pixels of 64 x 64 are 4 of the 256 tiles, gone from one place and new at another
    moved = {"front": env.look()["image.front"][0]}
    noisy = np.clip(moved["front"] + np.random.default_rng(0).normal(0, 8, (64, 64, 3)), 0, 255).astype(np.uint8)
    assert scene.differences({"front": noisy}) == {"front": 8 / 256}
    again = Scene(SessionOptions(scene="check", scene_tolerance=0.01), tmp_path)  # after a restart
    assert "3 % of front" in again.gate(pilot, moved)
    again.say()
    assert again.gate(pilot, moved).startswith("Not begun, 1 % may differ.")
    assert "3 % of front" in again.gate(pilot, moved)  # until it is said once more
    again.say()
    assert again.gate(pilot, good) == ""
    asks = Scene(SessionOptions(scene="ask"), tmp_path)
    asks.gate(pilot, moved)
    asks.say()
    assert asks.gate(pilot, moved) == ""  # told, not refused
    assert "3 % of front" in asks.told


def test_nothing_moves_before_go_and_hands_are_safe_until_the_word(tmp_path):
    env, hands, loop, thread = begin(tmp_path, scene="check")
    try:
        hands.shows(lambda page: page["driver"] == "HOLD")
        assert env.ways == 0  # it does not even go to its start
        hands.press("scene")
        hands.press("resume")
        hands.shows(lambda page: "Put the scene back" in page["problem"] and page["driver"] == "HOLD")
        assert env.ways == 1
        hands.press("resume")
        shown = len(hands.pages)
        hands.shows(lambda page: len(hands.pages) > shown + 5 and page["driver"] == "HOLD")
        hands.press("scene")
        hands.shows(drives)
        hands.press("pause")
        hands.shows(lambda page: page["pausing"] and drives(page))
        hands.press("success")
        hands.shows(lambda page: page["episodes"] == 1 and page["driver"] == "HOLD")
        assert env.ways == 1
        env.at = 40
        hands.press("resume")
        hands.shows(lambda page: "3 % of front" in page["problem"])
        hands.press("scene")
        hands.shows(lambda page: "Not begun" in page["problem"])
        env.at = 8
        hands.press("scene")
        hands.shows(drives)
    finally:
        end(hands, loop, thread)


def test_a_fault_of_the_robot_ends_the_episode_holds_and_is_not_learned_from(tmp_path):
    env, hands, loop, thread = begin(tmp_path)
    try:
        hands.shows(lambda page: page["driver"] == "HOLD")
        hands.press("resume")
        hands.shows(drives)
        env.fault = "state_stale"
        hands.shows(lambda page: page["driver"] == "HOLD" and "state_stale" in page["problem"])
        assert loop.stats.reasons == {"fault": 1}
        assert not episode(loop)[-1].valid
        hands.press("resume")
        hands.shows(drives)
    finally:
        end(hands, loop, thread)


class Slow(Fixed):
    """A learner whose updates take a while."""

    def __init__(self, io, seconds):
        super().__init__(io, 0.0)
        self.seconds = seconds

    def update(self, batches):
        time.sleep(self.seconds)
        return super().update(batches)


class Paced(Seen):
    """A step lasts until the next deadline, as that of a robot on its topics does."""

    due = 0.0

    def step(self, action):
        self.due = max(self.due + 0.1, time.monotonic())
        time.sleep(self.due - time.monotonic() if self.due > time.monotonic() else 0.0)
        return super().step(action)


@pytest.mark.timing
@pytest.mark.parametrize(("seconds", "while_driving"), [(0.04, True), (0.15, False)])
def test_the_rate_is_kept_while_the_learner_works(tmp_path, seconds, while_driving):
    env = Paced()
    hands, learner = Hands(env.io), Slow(env.io, seconds)
    loop = build(
        tmp_path, hands, env=env, learner=learner, takeover={"device_timeout_ms": 5000.0},
        options=SessionOptions(task_reward="labels", learning_starts=2),
    )  # fmt: skip
    thread = threading.Thread(target=loop.run, args=(10**6, lambda *_: False))
    thread.start()
    try:
        hands.shows(lambda page: page["driver"] == "HOLD")
        hands.press("resume")
        hands.shows(lambda page: page["steps"] > 15)
        assert learner.count == 0  # how long an update takes is found between two episodes
        hands.press("success")
        hands.shows(lambda page: page["episodes"] == 1 and drives(page))
        assert learner.count >= 6
        done, steps, begun = learner.count, loop.env_steps, time.monotonic()
        time.sleep(3.0)
        assert (loop.env_steps - steps) / (time.monotonic() - begun) == pytest.approx(10.0, rel=0.15)
        assert (learner.count > done + 10) is while_driving
    finally:
        end(hands, loop, thread)


def test_the_classifier_ends_episodes_and_trials_of_a_robot(tmp_path):
    """Here it sees success where the square is at 40; the robot's topics say nothing."""
    env, hands = Seen(), Hands(Seen().io)
    judge = Judge(lambda obs: obs["image.front"][:, 44, 44, 0] / 250.0, 0.7, in_a_row=2)
    memory = HilMemory(env.io, 1000)
    loop = HumanInTheLoop(
        env, Fixed(env.io, 0.0), simulated_pilot(env, hands, takeover={"device_timeout_ms": 5000.0}),
        Records(HilLog(tmp_path, env.io), memory, Mix({"online": (memory.views["online"], 1.0)}), EpisodeRules()),
        options=SessionOptions(task_reward="classifier", learning_starts=1000), helpers=Helpers(judge=judge),
    )  # fmt: skip
    found = []

    def run():
        loop.run(10**6, lambda *_: True)
        env.at = 8
        found.append(AttendedTrials(loop, env, episodes=1, seed=0, stopped=lambda: False).run())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        hands.shows(lambda page: page["driver"] == "HOLD")
        hands.press("resume")
        hands.shows(drives)
        env.at = 40
        hands.shows(lambda page: page["phase"].startswith("trial") and page["driver"] == "HOLD")
        assert loop.stats.reasons == {"success": 1}
        hands.press("resume")
        hands.shows(lambda page: page["phase"].startswith("trial") and page["driver"] == "POLICY")
        env.at = 40
        thread.join(10.0)
        assert found[0].successes == [True]
    finally:
        end(hands, loop, thread)


def test_scene_needs_a_person_and_check_needs_cameras(tmp_path):
    person = ScriptedHuman(ScriptedOptions(), LineEnv().io, expert=lambda obs: np.zeros((1, 1)))
    with pytest.raises(ValueError, match="nobody is there"):
        build(tmp_path / "a", person, options=SessionOptions(scene="ask"))
    hands = Hands(LineEnv().io)
    hands.done.set()
    with pytest.raises(ValueError, match="no cameras"):
        build(tmp_path / "b", hands, options=SessionOptions(scene="check", task_reward="labels"))


def test_a_resumed_robot_does_not_go_to_its_start_before_go(tmp_path):
    def make():
        env = Seen()
        hands = Hands(env.io)
        loop = build(
            tmp_path, hands, env=env, learner=Fixed(env.io, 0.0), options=SessionOptions(task_reward="labels"),
            takeover={"device_timeout_ms": 5000.0},
        )  # fmt: skip
        env.ways = 0
        return env, hands, loop

    _, hands, loop = make()
    state = loop.state_dict()
    thread = threading.Thread(target=loop.run, args=(10**6, lambda *_: False))
    thread.start()
    hands.press("resume")
    hands.shows(drives)
    hands.press("success")
    time.sleep(0.5)
    end(hands, loop, thread)
    loop.log.close()
    env, hands, loop = make()
    loop.restore_memory()
    loop.load_state_dict(state)
    hands.done.set()
    assert env.ways == 0


class Away:
    """The end of a link to a learner that may be away."""

    refused = standing = alarm = ""
    acked, version, sent, resent, rejected = (0, 0), 1, 0, 0, 0
    silence, finished, done, alive = 0.0, False, False, True

    def take(self):
        return None

    def notify(self):
        pass


def test_a_robot_whose_learner_is_away_hears_its_person_and_waits_for_go(tmp_path):
    env, link = Seen(), Away()
    hands, log = Hands(env.io), HilLog(tmp_path, env.io)
    outbox = Outbox(log)
    records = Records(log, OutboxMemory(outbox), NoRows(), EpisodeRules())
    loop = HilActor(
        env, Fixed(env.io, 0.0), simulated_pilot(env, hands, takeover={"device_timeout_ms": 5000.0}), records,
        link=link, outbox=outbox, collect_without_learner=False, options=SessionOptions(task_reward="labels"),
    )  # fmt: skip
    loop.version = 1
    thread = threading.Thread(target=loop.run, args=(10**6, lambda *_: False))
    thread.start()
    hands.press("resume")
    hands.shows(drives)
    link.alive = False
    hands.press("success")
    hands.shows(lambda page: page["driver"] == "HOLD")
    ways = env.ways
    hands.press("hold")
    hands.shows(lambda _: not hands._presses)
    link.alive = True
    time.sleep(1.0)
    assert env.ways == ways
    end(hands, loop, thread)
