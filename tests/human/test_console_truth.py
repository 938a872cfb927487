"""The page never lies: what is old is grey and says how old, and a person hears that help is wanted or a fault came."""
# pyright: reportArgumentType=false

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from robot_rl.human.devices.teleop import Frame
from robot_rl.human.waiting import meanwhile
from tests.human.console_stage import Page, Session, Stage, Wire, chromium

pytestmark = pytest.mark.live

COUNT = """window.tones = 0;
const make = AudioContext.prototype.createOscillator;
AudioContext.prototype.createOscillator = function () { window.tones++; return make.call(this); };"""


def look(browser):
    """What the page shows at one moment: (grey, who drives, news, age of the picture)."""
    return browser.execute_script(
        "return [document.body.classList.contains('stale'), document.getElementById('driver').textContent,"
        "document.getElementById('news').textContent, document.getElementById('age').textContent]"
    )


def test_a_cut_link_turns_the_page_grey_at_once(tmp_path):
    session = Session(tmp_path / "log", deadman_ms=60_000.0)
    wire = Wire(session.human.server.port)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session, f"http://127.0.0.1:{wire.port}/?token=t0ken")
            page.click("go")
            page.drives("POLICY")
            session.until(lambda: browser.execute_script("return document.getElementById('camera').naturalWidth") == 80)
            assert not look(browser)[0]
            # the moment at which it turns grey, by the page's own clock
            browser.execute_script(
                "window.greyed = 0; window.cut = performance.now(); setInterval(() => {"
                "const grey = document.body.classList.contains('stale');"
                "if (!window.greyed && grey) window.greyed = performance.now(); }, 5)"
            )
            wire.cut()
            session.until(lambda: look(browser)[0])
            took = browser.execute_script("return window.greyed - window.cut")
            assert took < 500 + 100 + 250  # half a second, a look every tenth of one, a busy machine
            page.shows("news", "no news for 1")
            grey, driver, _, age = look(browser)
            assert grey
            assert driver == "NO NEWS"
            assert "old" in age
            assert session.pilot.driver == "POLICY"  # and indeed it was no news
            wire.mend()
            page.drives("POLICY")
            session.until(lambda: look(browser)[0] is False and look(browser)[2:] == ["", ""])
    finally:
        wire.close()
        session.close()


def test_what_was_long_on_its_way_is_old_on_arrival_and_so_is_what_the_person_does(tmp_path):
    """A slow link delivers everything, in order and at the full rate: nothing is silent, and all of it is past."""
    session = Session(tmp_path / "log")
    wire = Wire(session.human.server.port)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session, f"http://127.0.0.1:{wire.port}/?token=t0ken")
            page.click("go")
            page.drives("POLICY")
            session.until(lambda: not look(browser)[0] and browser.execute_script("return frames > 0"))
            wire.delay_s = 2.0
            session.until(lambda: session.pilot.driver == "HOLD")  # hands whose movements come 2 s late are no hands
            page.shows("news", "no news for 2.")
            grey, driver, _, age = look(browser)
            assert grey
            assert driver == "NO NEWS"
            assert age.startswith("picture 2.")
            page.click("go")
            page.shows("notice", "Not done")
            since = time.monotonic()
            session.until(lambda: time.monotonic() - since > 3.0)
            assert session.pilot.driver == "HOLD"
            wire.delay_s = 0.0
            session.until(lambda: look(browser)[0] is False)
            page.click("go")
            page.drives("POLICY")
    finally:
        wire.close()
        session.close()


def test_the_page_lives_while_the_learner_works_and_tells_when_the_loop_itself_is_stuck(tmp_path):
    seen = threading.Event()

    def run(loop):
        loop.pilot.hold()
        meanwhile(loop, "learning the demonstrations", lambda: seen.wait(60.0))
        time.sleep(4.0)  # nobody looks after the page
        loop.run(10**6, lambda *_: False)

    session = Session(tmp_path / "log", deadman_ms=60_000.0, run=run)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session)
            page.shows("phase", "learning the demonstrations")
            session.until(lambda: not look(browser)[0])
            seen.set()
            page.shows("news", "no news for")
            page.shows("phase", "training")
            session.until(lambda: not look(browser)[0])
    finally:
        seen.set()
        session.close()


def test_a_session_that_ends_says_so(tmp_path):
    session = Session(tmp_path / "log", deadman_ms=60_000.0)
    with chromium(tmp_path / "profile") as browser:
        page = Page(browser, session)
        page.drives("HOLD")
        session.close()
        end = time.monotonic() + 20.0
        while look(browser)[:2] != [True, "ENDED"]:
            assert time.monotonic() < end, look(browser)
            time.sleep(0.05)
        assert "has ended" in page.text("notice")


def test_a_person_hears_faults_and_that_help_is_wanted(tmp_path):
    session = Session(tmp_path / "log", deadman_ms=60_000.0)

    class Asks:
        why = ""

        def begin(self):
            pass

        def look(self, obs, proposal):
            return bool(self.why)

    session.loop.adviser = asks = Asks()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session)
            browser.execute_script(COUNT)
            page.click("go")
            page.drives("POLICY")
            assert browser.execute_script("return window.tones") == 0
            asks.why = "the critics disagree"
            page.shows("problem", "Help wanted")
            session.until(lambda: browser.execute_script("return window.tones") == 2)  # once, not at every tick
            asks.why = ""
            session.pilot.safety.supervisor.report("cmd_nonfinite")
            page.drives("STOPPED")
            session.until(lambda: browser.execute_script("return window.tones") == 6)
            page.click("mute")
            page.click("unlock")
            page.drives("HOLD")
            page.click("go")
            page.drives("POLICY")
            page.click("stop")
            page.drives("STOPPED")
            assert browser.execute_script("return window.tones") == 6
    finally:
        session.close()


class Seeing(Stage):
    """A world whose policy has two cameras."""

    def __init__(self, steps):
        super().__init__(steps)
        pictures = dict.fromkeys(("image.front", "image.side"), ((12, 16, 3), "uint8"))
        self.io = replace(self.io, obs={**self.io.obs, **pictures})

    def _obs(self):
        tick = np.full((1, 12, 16, 3), self.time % 250, np.uint8)
        return {**super()._obs(), "image.front": tick, "image.side": tick}

    def render(self):
        time.sleep(0.02)
        return super().render()


@pytest.mark.timing
def test_every_picture_is_shown_at_the_rate_of_the_loop_and_so_is_what_the_policy_sees(tmp_path):
    session = Session(tmp_path / "log", deadman_ms=60_000.0, env=Seeing(10_000))
    size = "const it = document.getElementById(arguments[0]); return it ? it.naturalWidth : 0"
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session)
            page.click("go")
            page.drives("POLICY")
            for name, width in (("camera", 80), ("view-1", 16), ("view-2", 16)):
                session.until(lambda name=name, width=width: browser.execute_script(size, name) == width)
            page.shows("view-word-2", "side")
            browser.execute_script(
                "window.seen = 0; document.getElementById('camera').addEventListener('load', () => window.seen++)"
            )
            begun, ticks = time.monotonic(), len(session.drivers)
            session.until(lambda: time.monotonic() - begun > 5.0)
            shown, driven = browser.execute_script("return window.seen"), len(session.drivers) - ticks
            assert shown >= 0.9 * driven  # a picture a tick
            for name in ("n-clock", "n-updates", "n-alone", "n-judge"):
                assert page.text(name)
    finally:
        session.close()


@pytest.mark.timing
def test_a_recorded_camera_of_30_hz_is_shown_at_25_and_more_beside_a_loop_of_10_hz(tmp_path):
    """640 x 480, as a film of thirty frames that were recorded before; the loop ticks at its own rate beside it."""
    session = Session(tmp_path / "log", deadman_ms=60_000.0)
    rows, columns = np.mgrid[:480, :640]
    frames = [(np.stack([columns, rows, columns + 8 * k], -1) // 4 % 256).astype(np.uint8) for k in range(30)]
    recorded = [session.human._jpeg(frame) for frame in frames]

    def newest():
        number = int(time.monotonic() * 30.0)
        return {"front": Frame(recorded[number % 30], number / 30.0)}

    session.loop.frame = None
    session.human.film(newest)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session)
            page.click("go")
            page.drives("POLICY")
            width = "return document.getElementById('camera').naturalWidth"
            session.until(lambda: browser.execute_script(width) == 640)
            time.sleep(2.0)
            browser.execute_script(
                "window.seen = 0; document.getElementById('camera').addEventListener('load', () => window.seen++)"
            )
            begun, ticks = time.monotonic(), len(session.drivers)
            time.sleep(5.0)
            shown, spent = browser.execute_script("return window.seen"), time.monotonic() - begun
            assert shown / spent >= 25.0
            assert (len(session.drivers) - ticks) / spent == pytest.approx(10.0, rel=0.1)
    finally:
        session.close()
