"""`robot-rl hil env=ros2` as a person uses it: a simulated arm on its topics, a 30 Hz camera, a real browser."""
# pyright: reportPossiblyUnboundVariable=false

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from typing import cast

import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage, Image, Joy

from robot_rl.data.hil_episode import to_steps
from robot_rl.data.recorder import Recording
from robot_rl.real.graph import GraphArgs
from robot_rl.real.ros.launching import session_words

pytest.importorskip("aiohttp", reason="the console needs aiohttp (extra console)")
from tests.human.console_stage import Page, chromium

harness = pytest.importorskip("ros_harness")
ROOT, wait = harness.ROOT, harness.wait
RATE = 5.0
CAMERA = """
action: {mapping: delta, scale: [0.03]}
cameras:
  front: {topic: camera/front/image_raw/compressed, type: sensor_msgs/CompressedImage, required: true, timeout: 1.0}
  side: {topic: camera/side/image_raw, type: sensor_msgs/Image, required: false, timeout: 1.0}
"""


class Recorded(threading.Thread):
    """A recorded camera of 640 x 480 at 30 Hz: grey noise, and an object that a person may put elsewhere."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.cv2 = pytest.importorskip("cv2")
        rng = np.random.default_rng(0)
        self.grain = [rng.integers(90, 110, (480, 640, 3)).astype(np.uint8) for _ in range(8)]
        self.out = node.create_publisher(CompressedImage, "camera/front/image_raw/compressed", 1)
        self.side = node.create_publisher(Image, "camera/side/image_raw", 1)
        self.place, self.running, self.sent = (280, 200), True, 0
        self.start()

    def run(self):
        due = time.monotonic()
        while self.running:
            pixels = self.grain[self.sent % 8].copy()
            x, y = self.place
            pixels[y : y + 80, x : x + 80] = (20, 40, 230)
            self.out.publish(CompressedImage(format="jpeg", data=self.cv2.imencode(".jpg", pixels)[1].tobytes()))
            if self.sent % 6 == 0:  # another camera at a rate of its own
                grey = np.full((60, 80), 100 + self.sent % 8, np.uint8)  # lives, and always shows the same scene
                self.side.publish(Image(height=60, width=80, encoding="mono8", step=80, data=grey.tobytes()))
            self.sent += 1
            due = max(due + 1.0 / 30.0, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0.0))


class Outside:
    """The command as a process, with what a page of the tests asks of a session."""

    def __init__(self, folder, robot, *words):
        self.folder, self.page = folder, cast("Page | None", None)
        words = session_words(GraphArgs(str(robot)), shlex.join(["human.port=0", *words]))  # as hil.launch.py does
        command = [sys.executable, "-m", "robot_rl", *words]
        self.log = (folder / "hil.log").open("w+")
        self.process = subprocess.Popen(command, cwd=folder, stdout=self.log, stderr=subprocess.STDOUT)
        self.until(lambda: "console: " in self.said, 120.0)
        self.url = re.findall(r"console: (\S+)", self.said)[0]

    def told(self):
        return "" if self.page is None else f"{self.page.text('notice')}; problem: {self.page.text('problem')}"

    @property
    def said(self):
        return (self.folder / "hil.log").read_text()

    def until(self, what, seconds=60.0, why=lambda: ""):
        end = time.monotonic() + seconds
        while not what():
            assert self.process.poll() is None, self.said[-3000:]
            assert time.monotonic() < end, f"not within {seconds} s; {why()}; {self.told()}\n{self.said[-2000:]}"
            time.sleep(0.02)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(30.0)
        finally:
            self.process.kill()
            self.log.close()


@pytest.fixture
def camera(live):
    made = Recorded(live.node)
    yield made
    made.running = False
    made.join(2.0)


@pytest.fixture
def robot(live, processes):
    path = processes.folder / "seen_arm.yaml"
    path.write_text((processes.folder / "arm.yaml").read_text() + CAMERA)
    return path


def state(browser):
    return browser.execute_script("return state")


def press(hil, name):
    """Press a button; where the page says that it is not done (no news of the robot just then), as it says: again."""
    while True:
        hil.until(lambda: not hil.page.browser.execute_script("return isStale()"))
        hil.page.click(name)
        hil.until(lambda: hil.page.browser.execute_script("return unanswered === null"))
        if "Not done" not in hil.page.text("notice"):
            return


def drag(browser, camera, begin, end):
    """With the mouse, between two places of the picture that an element shows (shares of width and height)."""
    from selenium.webdriver.common.action_chains import ActionChains

    box = browser.execute_script(
        "const r = arguments[0].getBoundingClientRect(), s = Math.min(r.width / 640, r.height / 480);"
        "return [640 * s, 480 * s]",
        camera,
    )
    browser.execute_script("window.scrollTo(0, 0)")  # all of it in view
    # offsets are from the middle of the element, in which the picture is centred
    places = [(round((x - 0.5) * box[0]), round((y - 0.5) * box[1])) for x, y in (begin, end)]
    chain = ActionChains(browser).move_to_element_with_offset(camera, *places[0]).click_and_hold()
    chain.move_to_element_with_offset(camera, *places[1]).release().perform()


def test_a_person_teaches_a_robot_on_its_ros_topics(live, robot, camera, tmp_path):
    hil = Outside(
        tmp_path, robot, "human=browser", f"env.rate={RATE:g}", "env.image_size=[32,32]",
        "env.state_timeout=0.5", "env.max_hold=2", "env.episode_seconds=0", "task_reward=labels", "scene=check",
        "policy.hidden=[32,32]", "policy.batch_size=16", "learning_starts=10", "total_steps=100000", "demos=0",
        "+takeover.device_timeout_ms=60000", "eval_every=0",
    )  # fmt: skip
    try:
        with chromium(tmp_path / "profile") as browser:
            hil.page = page = Page(browser, hil, hil.url)
            page.shows("driver", "HOLD")
            begun = live.position.copy()
            time.sleep(1.0)
            np.testing.assert_allclose(live.position, begun, atol=1e-3)  # nothing moves before go
            press(hil, "go")
            page.shows("problem", "Put the scene back")
            page.shows("driver", "HOLD")  # hands may be in its way
            press(hil, "go")
            time.sleep(0.5)
            assert state(browser)["driver"] == "HOLD"  # and go is not the word
            hil.until(lambda: browser.execute_script("return document.getElementById('camera').naturalWidth") == 640)
            page.shows("cameras", "side")
            page.click("cam-1")
            hil.until(lambda: browser.execute_script("return document.getElementById('camera').naturalWidth") == 80)
            page.click("cam-0")
            hil.until(lambda: browser.execute_script("return document.getElementById('camera').naturalWidth") == 640)
            page.click("crop")
            drag(browser, page.at("camera"), (0.25, 0.5), (0.75, 0.9))
            page.shows("crop-word", "+env.crop")
            found = re.fullmatch(r"\+env\.crop\.front=\[(.*)\]", page.text("crop-word"))
            assert found is not None
            np.testing.assert_allclose(np.array(found[1].split(","), float), (0.25, 0.5, 0.75, 0.9), atol=0.01)
            page.click("crop")
            press(hil, "scene")
            page.shows("driver", "POLICY")
            hil.until(lambda: (state(browser)["clock"] or 0.0) > 3.0)
            hil.until(lambda: np.abs(live.position).max() > 0.06)  # in 3 s of a busy machine it may be a little less
            page.key("p")  # a pause after this episode
            page.shows("phase", "a pause after this episode")
            page.key("1")
            page.shows("driver", "HOLD")
            page.shows("episodes", "success")
            stood = live.position.copy()
            assert np.abs(stood).max() > 0.05
            time.sleep(1.0)
            np.testing.assert_allclose(live.position, stood, atol=5e-3)  # not even to its start
            camera.place = (420, 300)  # somebody bumped into it
            press(hil, "go")
            page.shows("problem", "of front is not as at a good start")
            np.testing.assert_allclose(live.position, 0.0, atol=0.06)
            for name in ("ghost-0", "ghost-1"):
                hil.until(lambda name=name: page.at(name).is_displayed())
            browser.save_screenshot(str(tmp_path / "ghost.png"))
            press(hil, "scene")
            page.shows("problem", "Not begun")
            assert state(browser)["driver"] == "HOLD"
            camera.place = (280, 200)
            hil.until(lambda: "not as at a good start" not in page.text("problem"))
            press(hil, "scene")
            page.shows("driver", "POLICY")
            hil.until(lambda: not page.at("ghost-0").is_displayed())
            page.click("stop")  # the supervisor hears it itself
            page.shows("driver", "STOPPED")
            live.wait_state("ESTOP")
        assert hil.close() == 130 or "resume" in hil.said
    finally:
        hil.process.kill()
    live.check_limits()
    (log,) = tmp_path.glob("runs/hil/*/log")
    first, second, *_ = [to_steps(episode) for episode in Recording(log)]
    assert [step for step in first if step.valid][-1].reward_task == 1.0
    assert {step.obs["image.front"].shape for step in first} == {(32, 32, 3)}
    assert len(second) > 0  # what was stopped is kept, too


class Pad(threading.Thread):
    """A game pad as joy_node publishes it, at 30 Hz; what is held is changed by the test."""

    def __init__(self, node):
        super().__init__(daemon=True)
        self.out = node.create_publisher(Joy, "joy", 10)
        self.axes, self.down, self.running = [0.0] * 8, set(), True
        self.start()

    def run(self):
        while self.running:
            self.out.publish(Joy(axes=list(self.axes), buttons=[int(i in self.down) for i in range(11)]))
            time.sleep(1.0 / 30.0)

    def press(self, button):
        self.down = self.down | {button}
        time.sleep(0.5)
        self.down = self.down - {button}


def test_a_game_pad_on_its_topic_drives_and_the_trials_are_driven_on_the_same_robot(live, robot, camera, tmp_path):
    pad = Pad(live.node)
    hil = Outside(
        tmp_path, robot, "human=ros", f"env.rate={RATE:g}",
        "env.image_size=[32,32]", "+env.crop.front=[0.4,0.4,0.6,0.6]", "env.state_timeout=0.5", "env.max_hold=2",
        "env.episode_seconds=0", "task_reward=labels", "demos=0", "policy.hidden=[32,32]", "policy.batch_size=16",
        "learning_starts=1000", "random_steps=0", "total_steps=5", "final_episodes=1", "eval_every=0",
        "+takeover.device_timeout_ms=60000", "human.silence_ms=5000",
    )  # fmt: skip
    try:
        with chromium(tmp_path / "profile") as browser:
            hil.page = page = Page(browser, hil, hil.url)
            page.shows("driver", "HOLD")
            hil.until(lambda: pad.out.get_subscription_count() > 0)  # what nobody hears is no press
            pad.press(7)
            page.shows("driver", "POLICY")
            pad.axes[1], pad.down = 1.0, {5}
            page.shows("driver", "HUMAN")
            hil.until(lambda: live.position[0] > 0.2)
            pad.axes[1] = 0.0
            pad.press(0)
            pad.down = set()
            page.shows("phase", "trial 1 of 1")
            page.shows("driver", "HOLD")
            pad.press(7)
            drives = lambda said: said["driver"] == "POLICY" and said["phase"].startswith("trial")  # noqa: E731
            hil.until(lambda: drives(state(browser)))
            time.sleep(1.0)
            pad.press(0)
            assert hil.process.wait(120.0) == 0, hil.said
    finally:
        pad.running = False
        pad.join(2.0)
        hil.process.kill()
    (run,) = tmp_path.glob("runs/hil/*")
    assert (run / "report.html").exists()
    found = json.loads((run / "evaluation.json").read_text())
    assert (found["success"], found["episodes"]) == (1.0, 1.0)
    (driven,) = [to_steps(episode) for episode in Recording(run / "log")]
    human = [step for step in driven if step.human]
    assert {step.action_exec.shape for step in human} == {(3,)}
    assert max(step.action_cmd[0] for step in human) > 0.3
    # 256 to 384 of 640 and 192 to 288 of 480: the object, which is red, is nearly all that is left
    assert driven[0].obs["image.front"].reshape(-1, 3).mean(0)[0] > 150
