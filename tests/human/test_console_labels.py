"""Labels are never lost: pressed in HOLD, in STOPPED, after the end, taken back, and said about an older episode."""
# pyright: reportArgumentType=false

import time

import pytest

from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.hil_words import read_corrections
from robot_rl.human.labels import Labels
from robot_rl.human.log import HilLog
from robot_rl.human.memory import HilMemory
from tests.human.console_stage import Page, Session, chromium
from tests.human.line_world import LineEnv

pytestmark = pytest.mark.live

PATIENT_MS = 2000.0  # these tests are not about the dead-man


def last_row(memory, back=1):
    """(reward, terminated, discount) of the last row of an episode, counted from the newest."""
    rows = memory.views["online"].rows()
    batch = memory.take(rows)
    return [
        (float(batch.reward[i]), bool(batch.terminated[i]), round(float(batch.discount[i]), 2))
        for i in range(len(rows))
        if batch.terminated[i] or batch.truncated[i]
    ][-back]


def test_labels_in_every_state_are_shown_kept_and_taken_back(tmp_path):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    session = Session(tmp_path / "log", deadman_ms=PATIENT_MS)
    loop, memory = session.loop, session.memory
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session)
            page.click("go")
            page.drives("POLICY")
            session.until(lambda: loop.env_steps > 8)

            # HOLD: the episode waits for a word, and the word falls on the last step that somebody drove
            page.key("h")
            page.drives("HOLD")
            since = time.monotonic()
            session.until(lambda: time.monotonic() - since > 1.0)
            assert loop.stats.episodes == 0
            page.key("1")
            page.shows("label", "success, episode 0")
            session.until(lambda: loop.stats.episodes == 1)
            assert loop.stats.reasons == {"success": 1}
            assert last_row(memory) == (1.0, True, 0.0)
            assert next(loop.log.episodes()).meta["success"]

            # taken back: not a success, and not an end either
            page.drives("HOLD")
            page.key("z")
            page.shows("label", "label taken back, episode 0")
            assert last_row(memory) == (0.0, False, 0.99)
            page.key("0")  # nobody drives, the episode is over: the word is about it
            page.shows("label", "failure, episode 0")
            assert last_row(memory) == (0.0, True, 0.0)

            # STOPPED: the episode ended there; the word reaches it
            page.key("g")
            page.drives("POLICY")
            session.until(lambda: loop.env_steps > 25)
            page.key(Keys.ESCAPE)
            page.drives("STOPPED")
            session.until(lambda: loop.stats.episodes == 2)
            assert last_row(memory) == (0.0, False, 0.99)
            page.key("1")
            page.shows("label", "success, episode 1")
            assert last_row(memory) == (1.0, True, 0.0)
            assert loop.stats.metrics()["rollout/success"] == 0.5

            # an older one, from the list, after looking at it again
            row = page.at("episode-0")
            row.find_element(By.CSS_SELECTOR, "[data-kind=replay]").click()
            session.until(lambda: browser.execute_script("return document.getElementById('replay').naturalWidth") == 80)
            row.find_element(By.CSS_SELECTOR, "[data-kind=success]").click()
            page.shows("label", "success, episode 0")
            assert last_row(memory, back=2) == (1.0, True, 0.0)
            session.until(lambda: "you: success" in page.text("episode-0"))
            assert loop.stats.metrics()["rollout/success"] == 1.0
    finally:
        session.close()

    # the log has every word, and a session that goes on begins with what they came to
    assert [(line["episode_id"], line["success"]) for line in read_corrections(tmp_path / "log")] == [
        (0, False),
        (0, False),
        (1, True),
        (0, True),
    ]
    again = HilMemory(session.env.io, 5000)
    Labels(HilLog(tmp_path / "log", session.env.io), again, EpisodeRules()).restore()
    assert last_row(again, back=1) == last_row(again, back=2) == (1.0, True, 0.0)


def demonstrated(tmp_path):
    """A loop whose person failed one demonstration and then succeeded in one."""
    from robot_rl.human.devices.scripted import ScriptedHuman, ScriptedOptions
    from tests.human.test_loop import build

    env = LineEnv(steps=30)
    loop = build(tmp_path, ScriptedHuman(ScriptedOptions(help="never"), env.io, expert=env.expert), env=env)
    env.limit = 1
    loop._episode(demo=True)
    env.limit = 30
    loop._episode(demo=True)
    return loop


def test_a_word_about_a_demonstration_takes_it_in_or_out(tmp_path):
    loop = demonstrated(tmp_path)
    demo = loop.memory.views["demo"]
    before = len(demo)
    assert (loop.demos, [line["success"] for line in loop.labels.list()]) == (1, [True, False])
    loop.demos += loop.labels.apply("success", 0)
    assert (loop.demos, len(demo)) == (2, before + 1)
    loop.demos += loop.labels.apply("failure", 1)
    assert (loop.demos, len(demo)) == (1, 1)
    loop.demos += loop.labels.apply("undo", 1)
    loop.demos += loop.labels.apply("undo", 0)
    assert (loop.demos, len(demo)) == (1, before)
    assert loop.labels.apply("success", 77) == 0
    assert "not kept" in loop.labels.said


def test_words_about_demonstrations_hold_after_a_restart(tmp_path):
    loop = demonstrated(tmp_path)
    loop.labels.apply("success", 0)
    loop.labels.apply("failure", 1)
    again = HilMemory(loop.env.io, 5000)
    assert Labels(HilLog(tmp_path, loop.env.io), again, EpisodeRules(gamma=0.9)).restore() == 1
    batch = again.take(again.views["demo"].rows())
    assert len(batch.reward) == 1
    assert float(batch.reward[0]) == pytest.approx(1.0)
    assert bool(batch.terminated[0])


def test_an_actor_counts_demonstrations_as_its_learner_does(tmp_path):
    """It has no memory: one that was called a failure was not asked for again, and the learner waited for it."""
    demonstrated(tmp_path)
    labels = Labels(HilLog(tmp_path, LineEnv().io), None, EpisodeRules(gamma=0.9))
    assert labels.restore() == 1
    assert [labels.apply(word, 1) for word in ("failure", "failure", "success")] == [-1, 0, 1]
    assert labels.apply("success", 0) == 1
    assert Labels(HilLog(tmp_path, LineEnv().io), None, EpisodeRules(gamma=0.9)).restore() == 2
