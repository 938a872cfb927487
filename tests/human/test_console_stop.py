"""STOP works always: in trials, while the learner works, from a page that only watches, over a link that comes back."""
# pyright: reportArgumentType=false

import contextlib
import json
import threading
import time

import pytest

from robot_rl.human.attended import AttendedTrials
from robot_rl.human.devices.browser import BrowserOptions, BrowserTeleop
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.waiting import meanwhile
from robot_rl.run import RunStart
from robot_rl.verbs.hil_job import HilJob, HilMakers, HilSettings
from tests.human.console_stage import Page, Session, Stage, Wire, chromium
from tests.human.test_console import connect, receive, server
from tests.human.test_loop import Fixed

pytestmark = pytest.mark.live

PATIENT_MS = 2000.0  # these tests are not about the dead-man


class Tracker:
    def __init__(self):
        self.rows = []

    def log(self, metrics, step):
        self.rows.append((step, dict(metrics)))

    def close(self):
        pass


class JobSession:
    """The whole job, its pilot and its console."""

    def __init__(self, folder, **settings):
        made = []

        def make_env(count, seed, pictures):
            made.append(Stage(steps=40))
            return made[-1]

        def make_pilot(env, person):
            human = BrowserTeleop(BrowserOptions(port=0, token="t0ken"), env.io, announce=False) if person else None
            return simulated_pilot(env, human, takeover={"device_timeout_ms": PATIENT_MS})

        self.envs, self.tracker = made, Tracker()
        self.job = HilJob(
            HilSettings(**{"demos": 0, "demo_share": 0.0, "checkpoint_every": 0, **settings}),
            RunStart(folder, "", lambda *_: self.tracker),
            HilMakers(make_env, lambda io: Fixed(io, 0.0), make_pilot, pictures=True),
        )
        self.loop, self.pilot = self.job.loop, self.job.pilot
        self.human = self.pilot.human
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        with contextlib.suppress(KeyboardInterrupt):
            self.job.run()

    until = Session.until

    def close(self):
        self.job.stop()
        self.thread.join(20.0)


@pytest.fixture
def job(tmp_path):
    it = JobSession(tmp_path / "run", total_steps=10**6, eval_every=20, eval_episodes=3)
    yield it
    it.close()


def test_stop_takeover_and_hold_in_a_block_of_trials(job, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    with chromium(tmp_path / "profile") as browser:
        page = Page(browser, job)
        page.click("go")
        page.shows("phase", "trial 1 of 3")  # the first episode is over, 20 steps are driven
        page.drives("HOLD")  # announced, and started by a person alone
        page.shows("problem", "without you")
        since, resets = time.monotonic(), [env.time for env in job.envs]
        job.until(lambda: time.monotonic() - since > 0.5)
        assert [env.time for env in job.envs] == resets
        page.click("go")
        page.drives("POLICY")
        trial = job.envs[-1]
        job.until(lambda: trial.time > 2)
        page.key(Keys.ESCAPE)
        page.drives("STOPPED")
        page.shows("notice", "STOP received")
        page.shows("phase", "trial 2 of 3")
        place = trial.place
        since = time.monotonic()
        job.until(lambda: time.monotonic() - since > 1.0)
        assert (trial.place, trial.time) == (place, 0)  # put back, and not driven since
        page.key("g")  # latched: a go alone does not free it
        since = time.monotonic()
        job.until(lambda: time.monotonic() - since > 0.5)
        assert job.pilot.driver == "STOPPED"
        page.key("u")
        page.drives("HOLD")
        page.key("g")
        page.drives("POLICY")
        keys = ActionChains(browser)
        keys.key_down(Keys.SPACE).perform()  # taking over fails the trial
        page.shows("phase", "trial 3 of 3, 0 good")
        ActionChains(browser).key_up(Keys.SPACE).perform()
        page.drives("HOLD")
        page.key("g")
        page.drives("POLICY")
        page.key("h")
        page.shows("phase", "training")
        page.drives("HOLD")
        job.until(lambda: any("eval/success" in row for _, row in job.tracker.rows))
        row = next(row for _, row in job.tracker.rows if "eval/success" in row)
        assert (row["eval/episodes"], row["eval/success"], row["eval/safety_stops"]) == (3, 0.0, 0)
        page.key("g")
        page.drives("POLICY")  # and the session goes on


def test_stop_from_a_page_that_watches(tmp_path):
    session = Session(tmp_path / "log", deadman_ms=PATIENT_MS)
    try:
        with chromium(tmp_path / "profile") as browser, connect(session.human.server, token="t0ken") as operator:
            assert receive(operator, "role")["operator"]
            done = threading.Event()

            def steer():
                number = 0
                while not done.wait(0.05):
                    number += 1
                    operator.send(json.dumps({"type": "input", "seq": number, "axes": {}, "enable": False}))

            thread = threading.Thread(target=steer)
            thread.start()
            page = Page(browser, session)
            page.shows("link", "somebody else drives")
            operator.send(json.dumps({"type": "press", "kind": "resume"}))
            page.drives("POLICY")
            page.click("success")
            page.shows("notice", "Not done")
            assert session.loop.stats.episodes == 0
            page.click("stop")
            page.drives("STOPPED")
            page.shows("notice", "STOP received")
            done.set()
            thread.join()
    finally:
        session.close()


def test_stop_over_a_dead_link_says_so_and_arrives_when_it_is_back(tmp_path):
    session = Session(tmp_path / "log", deadman_ms=60_000.0)  # so that nothing but STOP can stop it
    wire = Wire(session.human.server.port)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session, f"http://127.0.0.1:{wire.port}/?token=t0ken")
            page.click("go")
            page.drives("POLICY")
            wire.cut()
            page.click("stop")
            page.shows("notice", "not confirmed")
            assert session.pilot.driver == "POLICY"
            wire.mend()
            page.drives("STOPPED")
            page.shows("notice", "STOP received")
    finally:
        wire.close()
        session.close()


def test_stop_goes_over_a_new_connection_where_the_old_one_is_dead_and_nobody_closed_it(tmp_path):
    """A network that was changed, a router that forgot: the browser itself would wait for minutes."""
    session = Session(tmp_path / "log", deadman_ms=60_000.0)
    wire = Wire(session.human.server.port)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session, f"http://127.0.0.1:{wire.port}/?token=t0ken")
            page.click("go")
            page.drives("POLICY")
            wire.strand()
            page.click("stop")
            page.drives("STOPPED")
            page.shows("notice", "STOP received")
            page.shows("link", "operator")
    finally:
        wire.close()
        session.close()


def test_a_go_that_the_link_held_back_moves_nothing(tmp_path):
    session = Session(tmp_path / "log", deadman_ms=60_000.0)
    wire = Wire(session.human.server.port)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session, f"http://127.0.0.1:{wire.port}/?token=t0ken")
            page.drives("HOLD")
            session.until(lambda: browser.execute_script("return sync !== null"))
            wire.cut()
            page.click("go")  # at once, before the page can know
            page.shows("news", "no news for 1")
            wire.mend()
            page.shows("notice", "late")
            since = time.monotonic()
            session.until(lambda: time.monotonic() - since > 0.5)
            assert session.pilot.driver == "HOLD"
            page.click("go")
            page.drives("POLICY")
    finally:
        wire.close()
        session.close()


def test_a_press_that_went_into_a_dead_connection_is_told(tmp_path):
    session = Session(tmp_path / "log", deadman_ms=60_000.0)
    wire = Wire(session.human.server.port)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session, f"http://127.0.0.1:{wire.port}/?token=t0ken")
            page.drives("HOLD")
            wire.strand()
            page.click("go")  # at once, before the page can know
            page.shows("notice", "'resume' has had no answer")
            page.shows("link", "you are the operator")  # over a new connection
            session.until(lambda: not browser.execute_script("return isStale()"))
            assert session.pilot.driver == "HOLD"
            page.click("go")
            page.drives("POLICY")
            assert page.text("notice") == ""
    finally:
        wire.close()
        session.close()


def test_stop_counts_when_the_robot_says_so_and_not_before(tmp_path):
    stuck, go_on = threading.Event(), threading.Event()

    def run(loop):
        loop.run(10**6, lambda *_: stuck.set() or not go_on.wait(60.0))  # the loop saves something, for a long time

    session = Session(tmp_path / "log", deadman_ms=60_000.0, run=run)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session)
            page.click("go")
            page.drives("POLICY")
            session.until(lambda: len(session.drivers) > 5)
            page.key("1")
            session.until(stuck.is_set)
            page.click("stop")
            page.shows("notice", "not confirmed")
            go_on.set()
            page.drives("STOPPED")
            page.shows("notice", "STOP received")
    finally:
        go_on.set()
        session.close()


def test_stop_while_the_learner_works(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def run(loop):
        def work():
            begun.set()
            go_on.wait(60.0)

        loop.pilot.hold()
        meanwhile(loop, "learning the demonstrations", work)
        loop.run(10**6, lambda *_: False)

    session = Session(tmp_path / "log", deadman_ms=PATIENT_MS, run=run)
    try:
        with chromium(tmp_path / "profile") as browser:
            page = Page(browser, session)
            page.shows("phase", "learning the demonstrations")
            assert begun.is_set()
            page.click("stop")
            page.drives("STOPPED")
            assert page.text("news") == ""
            go_on.set()
            page.shows("phase", "training")
            assert session.pilot.driver == "STOPPED"
    finally:
        go_on.set()
        session.close()


def test_nested_nonsense_does_not_drop_the_operator():
    console, got = server()
    try:
        with connect(console) as socket:
            socket.send("[" * 2000)
            assert receive(socket, "refused")
            socket.send(json.dumps({"type": "press", "kind": "estop", "sent": 1}))
            assert receive(socket, "echo")["kind"] == "estop"
        assert got[0]["kind"] == "estop"
    finally:
        console.close()


def test_trials_of_a_session_that_is_stopped_end_at_once(tmp_path):
    """Ctrl-C in a block."""
    session = Session(tmp_path / "log", run=lambda loop: time.sleep(0.1))
    session.thread.join()
    block = AttendedTrials(session.loop, Stage(), episodes=5, seed=1, stopped=lambda: True)
    assert block.run().successes == []
    assert session.pilot.driver == "HOLD"
    session.pilot.close()
