"""The operator's page: who may talk to it, and a real browser that drives, labels, is lost and comes back."""
# pyright: reportArgumentType=false

import contextlib
import json
import math
import os
import signal
import ssl
import struct
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from robot_rl.human.console.server import ConsoleServer, ServeOptions
from robot_rl.human.devices.browser import BrowserOptions, BrowserTeleop
from tests.human.console_stage import DEADMAN_MS, Page, Session, chromium, processes_of
from tests.human.line_world import LineEnv


@pytest.fixture
def session(tmp_path):
    it = Session(tmp_path / "log")
    yield it
    it.close()


@pytest.mark.live
@pytest.mark.smoke
def test_browser_drives_labels_is_lost_and_comes_back(session, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    with chromium(tmp_path / "profile") as browser:
        browser.set_page_load_timeout(60)
        browser.get(session.human.server.url)
        session.until(lambda: "operator" in browser.find_element(By.ID, "link").text)
        assert session.pilot.driver == "HOLD"  # a fresh console moves nothing
        browser.find_element(By.ID, "go").click()
        session.until(lambda: session.pilot.driver == "POLICY")
        session.until(lambda: browser.find_element(By.ID, "driver").text == "POLICY")
        session.until(lambda: browser.execute_script("return document.getElementById('camera').naturalWidth") == 80)

        # drive: hold the dead-man and push
        before = session.env.place
        keys = ActionChains(browser)
        keys.key_down(Keys.SPACE).key_down("w" if before < 0 else "s").perform()
        session.until(lambda: session.pilot.driver == "HUMAN")
        session.until(lambda: abs(session.env.place - before) > 0.1)
        assert browser.find_element(By.ID, "driver").text == "HUMAN"
        if os.environ.get("CONSOLE_SCREENSHOT"):
            browser.save_screenshot(os.environ["CONSOLE_SCREENSHOT"])

        # label: the episode ends as a success, the next one begins
        ActionChains(browser).send_keys("1").perform()
        session.until(lambda: session.loop.stats.reasons.get("success") == 1)
        episode = next(session.loop.log.episodes())
        assert episode.meta["success"]
        assert episode.intervened.any()

        # lose the browser while it drives: hold within the dead-man time and a tick
        session.until(lambda: session.pilot.driver == "HUMAN")  # the dead-man is still held
        stopped = processes_of(browser)
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        lost = time.monotonic()
        try:
            session.until(lambda: session.pilot.driver == "HOLD")
            held = next(when for when, driver, _ in session.drivers if driver == "HOLD" and when > lost)
            assert held - lost <= DEADMAN_MS * 1e-3 + 0.1 + 0.25  # dead-man, one tick, a busy machine
            session.until(lambda: session.loop.stats.reasons.get("comms") == 1)
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        # back, dead-man still down: nothing moves until a person says go
        place, since = session.env.place, time.monotonic()
        session.until(lambda: time.monotonic() - since > 1.0)
        assert session.pilot.driver == "HOLD"
        assert session.env.place == place
        ActionChains(browser).key_up(Keys.SPACE).key_up("w").key_up("s").perform()
        session.until(lambda: "operator" in browser.find_element(By.ID, "link").text)
        browser.find_element(By.ID, "go").click()
        session.until(lambda: session.pilot.driver == "POLICY")

        # stop by key: latched, and a go alone does not free it
        ActionChains(browser).send_keys(Keys.ESCAPE).perform()
        session.until(lambda: session.pilot.driver == "STOPPED")
        ActionChains(browser).send_keys("g").perform()
        since = time.monotonic()
        session.until(lambda: time.monotonic() - since > 0.5)
        assert session.pilot.driver == "STOPPED"
        ActionChains(browser).send_keys("u").perform()
        session.until(lambda: session.pilot.driver == "HOLD")
        ActionChains(browser).send_keys("g").perform()
        session.until(lambda: session.pilot.driver == "POLICY")


def server(now=time.monotonic, replay=None, **options):
    got: list[dict] = []
    where = ServeOptions(port=0, token="secret", **options)
    made = ConsoleServer(got.append, lambda: got.append({"type": "left"}), where, now=now, replay=replay)
    return made, got


def status(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def test_page_needs_the_token_and_the_right_host():
    console, _ = server()
    try:
        base = f"http://127.0.0.1:{console.port}/"
        assert status(base)[0] == 403
        assert status(base + "?token=wrong")[0] == 403
        code, headers = status(console.url)
        assert code == 200
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert status(console.url, Host="evil.example")[0] == 403  # DNS rebinding
        assert status(base + "console.js")[0] == 200
    finally:
        console.close()


def connect(console, *, origin=None, token="secret"):
    client = pytest.importorskip("websockets.sync.client", reason="needs websockets")
    origin = origin or f"http://127.0.0.1:{console.port}"
    return client.connect(f"ws://127.0.0.1:{console.port}/socket?token={token}", origin=origin, open_timeout=10)


def receive(socket, kind):
    for _ in range(50):
        data = socket.recv(timeout=10)
        if isinstance(data, str) and json.loads(data)["type"] == kind:
            return json.loads(data)
    raise AssertionError(f"no message '{kind}'")


@pytest.mark.parametrize("wrong", [{"origin": "http://evil.example"}, {"token": "guess"}])
def test_socket_refuses_foreign_pages_and_guesses(wrong):
    console, got = server()
    try:
        with pytest.raises(Exception, match="403"):
            connect(console, **wrong)
        assert got == []
    finally:
        console.close()


def test_second_client_watches_only():
    console, got = server()
    try:
        with connect(console) as first, connect(console) as second:
            assert receive(first, "role")["operator"]
            assert not receive(second, "role")["operator"]
            second.send(json.dumps({"type": "press", "kind": "failure"}))
            assert "has the seat" in receive(second, "refused")["why"]
            first.send(json.dumps({"type": "press", "kind": "success", "sent": 3}))
            assert receive(first, "echo")["sent"] == 3
        end = time.monotonic() + 10
        while {"type": "left"} not in got and time.monotonic() < end:
            time.sleep(0.02)
        assert [message.get("kind") for message in got] == ["success", None]
        console.remember({"episodes": 1, "success": 0.5})
        with connect(console) as third:  # the operator is gone: the next one drives, and sees the history
            assert receive(third, "role")["operator"]
            assert receive(third, "history")["points"] == [{"episodes": 1, "success": 0.5}]
    finally:
        console.close()


def test_every_page_learns_the_clock_of_the_robot_and_when_a_picture_was_taken():
    console, got = server(now=lambda: 7.5)
    try:
        with connect(console) as first, connect(console) as second:
            assert receive(first, "role")["operator"]
            second.send(json.dumps({"type": "ping", "sent": 3}))
            echo = receive(second, "echo")
            assert (echo["sent"], echo["at"]) == (3, 7500.0)
            console.publish({"driver": "HOLD"})
            assert receive(second, "state")["at"] == 7500.0
            console.show(2, b"JPEG", 6.25)
            found = next(data for data in iter(lambda: second.recv(timeout=10), None) if isinstance(data, bytes))
            assert struct.unpack("<Bd", found[:9]) == (2, 6250.0)
            assert found[9:] == b"JPEG"
        assert all(message["type"] == "left" for message in got)
    finally:
        console.close()


def test_a_page_that_is_slow_gets_the_newest_picture_and_numbers_that_wait_behind_none():
    console, _ = server()
    try:
        with connect(console) as page:
            receive(page, "history")
            for k in range(40):
                console.show(0, b"%d" % k, 0.0)
                time.sleep(0.01)
            console.publish({"driver": "HOLD"})
            came: list[str | bytes] = []
            while not came or isinstance(came[-1], bytes) or json.loads(came[-1]).get("type") != "state":
                came.append(page.recv(timeout=10))
            assert [data[9:] for data in came if isinstance(data, bytes)] == [b"0", b"1"]
            page.send(json.dumps({"type": "seen"}))
            assert page.recv(timeout=10)[9:] == b"39"
    finally:
        console.close()


def test_nonsense_from_the_wire_is_refused_and_harmless():
    human = BrowserTeleop(BrowserOptions(port=0, token="secret"), LineEnv().io, announce=False)
    try:
        with connect(human.server) as socket:
            for bad in ("no json", "[1]", '{"type": "input", "seq": "x"}', '{"type": "press", "kind": "fly"}', "{}"):
                socket.send(bad)
                assert receive(socket, "refused")["why"]
            axes = {"x": 1e308, "y": float("nan")}
            socket.send(json.dumps({"type": "input", "seq": 1, "axes": axes, "enable": True, "sent": 0, "at": 1e308}))
            receive(socket, "echo")
            reading = human.read(time.monotonic(), {}, np.zeros(1, np.float32))
            assert np.isfinite(reading.value).all()
            assert abs(reading.value[0]) <= 1.0
            socket.send("x" * 100_000)  # too long: the link is closed
            with pytest.raises(Exception, match=r"1009|closed|too big"):
                receive(socket, "never")
        end = time.monotonic() + 10
        while human.read(time.monotonic(), {}, np.zeros(1)).connected and time.monotonic() < end:
            time.sleep(0.02)
        reading = human.read(time.monotonic(), {}, np.zeros(1, np.float32))
        assert not reading.connected
        assert not reading.enable
        assert math.isfinite(reading.norm)
    finally:
        human.close()


def test_open_address_without_tls_is_refused():
    with pytest.raises(ValueError, match="TLS"):
        ConsoleServer(lambda _: None, lambda: None, ServeOptions(host="0.0.0.0"))


def test_console_elsewhere_serves_the_names_it_was_given_and_no_other(tmp_path):
    from tests.test_link import certificates

    made = certificates(tmp_path)
    files = {"certificate": made["certificate"], "key": made["key"]}
    context = ssl._create_unverified_context()

    def code(console, name):
        address = f"https://127.0.0.1:{console.port}/?token=secret"
        request = urllib.request.Request(address, headers={"Host": f"{name}:{console.port}"})
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    closed, _ = server(host="0.0.0.0", **files)
    try:
        assert code(closed, "127.0.0.1")[0] == 200
        status_code, told = code(closed, "robot.lab")
        assert status_code == 403
        assert "human.hosts=[robot.lab]" in told  # and how to mend it
        assert "<" not in code(closed, "<script>")[1]
    finally:
        closed.close()
    session = Session(tmp_path / "log", host="0.0.0.0", hosts=["robot.lab"], **files)
    try:
        flags = "--host-resolver-rules=MAP robot.lab 127.0.0.1", "--ignore-certificate-errors"
        with chromium(tmp_path / "profile", *flags) as browser:
            assert session.human.server.url.startswith("https://robot.lab:")
            page = Page(browser, session)
            page.shows("link", "operator")
            page.click("stop")
            page.drives("STOPPED")
        assert code(session.human.server, "evil.example")[0] == 403
    finally:
        session.close()


def test_taken_port_says_so():
    console, _ = server()
    try:
        with pytest.raises(RuntimeError, match=f"human.port={console.port + 1}"):
            ConsoleServer(lambda _: None, lambda: None, ServeOptions(port=console.port))
    finally:
        console.close()
