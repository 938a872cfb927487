"""A loop with a console and a real browser in front of it, for the tests of the operator's page."""
# pyright: reportArgumentType=false

import contextlib
import queue
import shutil
import socket
import threading
import time

import numpy as np
import pytest

from robot_rl.data.hil_episode import EpisodeRules
from robot_rl.data.mix import Mix
from robot_rl.human.log import HilLog
from robot_rl.human.loop import HumanInTheLoop
from robot_rl.human.memory import HilMemory
from robot_rl.human.options import SessionOptions
from robot_rl.human.pilot import simulated_pilot
from robot_rl.human.session import Helpers, Records
from tests.human.line_world import LineEnv
from tests.human.test_loop import Fixed

pytest.importorskip("aiohttp", reason="the console needs aiohttp (extra console)")
from robot_rl.human.devices.browser import BrowserOptions, BrowserTeleop
from robot_rl.human.devices.teleop import Frame

DEADMAN_MS = 400.0  # generous: the machine that runs the tests is busy


class Stage(LineEnv):
    """The line world with a picture."""

    def render(self):
        frame = np.zeros((60, 80, 3), np.uint8)
        frame[:, int(39 + 38 * np.clip(self.place, -1, 1))] = (255, 180, 0)
        frame[:, int(39 + 38 * np.clip(self.goal, -1, 1))] = (0, 200, 90)
        return (frame,)


class Session:
    """A running loop with a console; remembers who drove and when."""

    def __init__(
        self, folder, token="t0ken", deadman_ms=DEADMAN_MS, mode="deadman", options=None, run=None, env=None, **more
    ):
        self.env = env or Stage(steps=10_000)
        self.human = BrowserTeleop(BrowserOptions(port=0, token=token, **more), self.env.io, announce=False)
        self.pilot = simulated_pilot(self.env, self.human, takeover={"device_timeout_ms": deadman_ms, "mode": mode})
        self.drivers: list[tuple[float, str, float]] = []
        drive = self.pilot.drive

        def watched(obs, proposal, **more):
            driven = drive(obs, proposal, **more)
            self.drivers.append((time.monotonic(), driven.driver, float(driven.executed[0])))
            return driven

        self.pilot.drive = watched
        memory = HilMemory(self.env.io, 5000)
        self.loop = HumanInTheLoop(
            self.env,
            Fixed(self.env.io, 0.0),
            self.pilot,
            Records(
                HilLog(folder, self.env.io), memory, Mix({"online": (memory.views["online"], 1.0)}), EpisodeRules()
            ),
            options=options or SessionOptions(task_reward="labels"),
            helpers=Helpers(frame=lambda _: Frame(self.env.render()[0], time.monotonic())),
        )
        self.memory = memory
        run = run or (lambda loop: loop.run(10**6, lambda *_: False))
        self.thread = threading.Thread(target=run, args=(self.loop,), daemon=True)
        self.thread.start()

    def until(self, what, seconds=25.0, why=lambda: ""):
        end = time.monotonic() + seconds
        while not what():
            assert self.thread.is_alive(), "the control loop died"
            assert time.monotonic() < end, f"waited {seconds} s; driver {self.pilot.driver}; {why()}"
            time.sleep(0.02)

    def close(self):
        self.loop.stop()
        self.thread.join(10.0)
        self.pilot.close()


@contextlib.contextmanager
def chromium(folder, *flags):
    webdriver = pytest.importorskip("selenium.webdriver", reason="the browser test needs selenium")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    binary = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
    )
    driver = shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("no chromium with chromedriver on this machine (apt-get install chromium chromium-driver)")
    options = Options()
    options.binary_location = binary
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--window-size=1280,900",
        f"--user-data-dir={folder}",
        *flags,
    ):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


def processes_of(browser):
    """Ids of the browser that this test started: descendants of its driver."""
    psutil = pytest.importorskip("psutil")
    return [child.pid for child in psutil.Process(browser.service.process.pid).children(recursive=True)]


class Page:
    """What a person does and reads in the page that the browser shows."""

    def __init__(self, browser, session, url=None):
        from selenium.webdriver.common.by import By

        self.browser, self.session, self._by = browser, session, By.ID
        browser.set_page_load_timeout(60)
        browser.get(url or session.human.server.url)
        session.until(lambda: self.text("link") and "not connected" not in self.text("link"))

    def at(self, name):
        return self.browser.find_element(self._by, name)

    def text(self, name):
        return self.at(name).text

    def click(self, name):
        self.at(name).click()

    def key(self, keys):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.browser).send_keys(keys).perform()

    def shows(self, name, part, seconds=25.0):
        self.session.until(lambda: part in self.text(name), seconds, lambda: f"{name}: {self.text(name)!r}")

    def drives(self, driver):
        """Both the robot and the page say so."""
        self.session.until(lambda: self.session.pilot.driver == driver and self.text("driver") == driver)


class Wire:
    """A relay between browser and console that can go dead without anybody being told, as a network does."""

    def __init__(self, port):
        self._port, self._dead, self._stranded = port, threading.Event(), threading.Event()
        self.delay_s = 0.0
        """How long everything is on its way."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self._dead.set()

    def mend(self):
        self._dead.clear()

    def strand(self):
        """What is connected now never hears a word again, and nobody closes it; new connections work."""
        self._stranded.set()
        self._stranded = threading.Event()

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                for a, b in ((near, far), (far, near)):
                    way = queue.SimpleQueue()
                    threading.Thread(target=self._take, args=(a, way), daemon=True).start()
                    threading.Thread(target=self._give, args=(b, way, self._stranded), daemon=True).start()

    def _take(self, a, way):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                way.put((time.monotonic() + self.delay_s, data))
        way.put((time.monotonic(), b""))

    def _give(self, b, way, stranded):
        with contextlib.suppress(OSError):
            while True:
                due, data = way.get()
                while self._dead.is_set() or time.monotonic() < due:
                    time.sleep(0.005)
                if stranded.is_set():
                    continue
                if not data:
                    break
                b.sendall(data)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_WR)
