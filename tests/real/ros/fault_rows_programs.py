"""Rows of the fault table: programs of ours around the robot, which are a policy, an environment, and a recorder."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false, reportPossiblyUnboundVariable=false

import resource
import signal
import threading
import time

import numpy as np
import pytest
import yaml
from fault_table import now, row
from recorder_process import Recorder
from ros_harness import NAMES, open_env, wait
from sensor_msgs.msg import CompressedImage, Image

from robot_rl.data import bag, session
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.env import EnvClosed

SIZE = (24, 32)
TIMEOUT = 1.0
"""Of the camera [s]."""


# ---------------------------------------------------------------- policies


def driven(made):
    """The robot where the policy `good` brings it, 0.5 rad, and holds it."""
    folders = made.processes.folder
    for name in ("good", "back", "slow", "corrupt", "wrong", "nan"):
        (folders / name).mkdir(exist_ok=True)
    made.armed().processes.start(
        "policy_node", "realtime:=40", "autostart:=true", f"policy_path:={folders / 'good'}", spec="foreign.yaml"
    )
    made.others.callback(made.processes.end, "policy_node")
    made.station.wait_state("ACTIVE", limit=90.0)
    at(made, 0.5)
    made.station.states.clear()
    return made


def at(made, place):
    wait(lambda: max(abs(q - place) for q in made.driver.where().values()) < 0.02, 20.0, f"joints at {place}")


def swap(made, name):
    said = []

    def accepted():  # one load at a time
        said[:] = made.station.set("policy", policy_path=str(made.processes.folder / name))
        return not said

    made.station.until(accepted, 20.0, f"a swap ({said})")


@row("36_policy_swapped")
def swapped(made):
    driven(made)
    yield now()
    swap(made, "back")
    at(made, -0.5)
    assert made.station.last.trace.startswith("back.")
    assert set(made.station.states) <= {"ACTIVE"}


@row("36_bad_policies")
def refused(made):
    driven(made)
    time.sleep(1.0)  # a policy of such steps swings about its target at first
    since = now()
    yield since
    for name, reason in (("corrupt", "cannot be read"), ("wrong", "does not fit"), ("nan", "not finite")):
        swap(made, name)
        made.station.until(
            lambda reason=reason: reason in made.station.diagnostic("policy: policy")[1], what=f"refusal of {name}"
        )
    assert made.station.last.trace.startswith("good.")
    assert set(made.station.states) <= {"ACTIVE"}
    assert np.abs(made.driver.path(since)[1] - 0.5).max() < 0.02


@row("36_policy_that_loads_slowly")
def slow(made):
    driven(made)
    made.station.executed.clear()
    since = now()
    yield since
    swap(made, "slow")
    made.station.until(lambda: made.station.last.trace.startswith("slow."), 30.0, "the slow policy")
    assert now() - since > 5.0  # the load takes six
    assert sum(item.trace.startswith("good.") for _, item in list(made.station.executed)) > 300
    assert set(made.station.states) <= {"ACTIVE"}


# ---------------------------------------------------------------- environments


def environment(made, *, rate, **options):
    """The robot as an environment of this process, which has been reset."""
    raw = yaml.safe_load((made.processes.folder / "foreign.yaml").read_text())
    camera = options.pop("camera", {})
    spec = RobotSpec.from_dict({**raw, "action": {"mapping": "delta", "scale": [0.6 / rate]}, "cameras": camera})
    made.idle()
    env = open_env(spec, rate=rate, arm=True, realtime=39, reset_mode="none", **options)
    made.others.callback(env.close)
    env.reset()
    return env


@row("38_learner_sleeps", stops=0.5, ends=("ARMED",))
def learner_sleeps(made):
    env = environment(made, rate=20.0)
    for _ in range(10):
        env.step(np.full(3, 1.0))
    before, begun = made.driver.position.copy(), now()
    for _ in range(4):
        env.step(np.full(3, 1.0))
    since = now()
    assert (made.driver.position - before).min() > 0.4 * (since - begun)  # rad, at 0.6 rad/s
    yield since  # `max_hold`
    time.sleep(max(since + 2.0 - now(), 0.0))
    *_, truncated, info = env.step(np.full(3, 1.0))
    assert truncated
    assert info["fault"] == "learner_stall"
    assert not info["valid"]
    env.reset()
    *_, truncated, info = env.step(np.zeros(3))
    assert not truncated


@row("41_two_threads_and_a_close_during_a_step", stops=0.0, ends=("IDLE", "ARMED"))
def two_threads(made):
    env, found = environment(made, rate=2.0), []

    def drive():
        try:
            for _ in range(10):
                env.step(np.full(3, 1.0))
        except EnvClosed as error:
            found.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    wait(lambda: made.driver.velocity.min() > 0.4, what="motion")
    for act in (lambda: env.step(np.zeros(3)), env.reset):
        with pytest.raises(RuntimeError, match="one robot has one driver"):
            act()
    since = now()
    env.close()
    thread.join(3.0)
    yield since
    assert len(found) == 1


class Pictures(threading.Thread):
    """Somebody's camera: noise as JPEG, until it is told to send something else."""

    def __init__(self, made):
        super().__init__(daemon=True)
        import cv2

        self.cv2, self.rng = cv2, np.random.default_rng(0)
        self.jpeg = made.driver.broadcaster.create_publisher(CompressedImage, "camera/front/compressed", 1)
        self.send, self.over = self.noise, threading.Event()
        made.others.callback(made.driver.broadcaster.destroy_publisher, self.jpeg)
        made.others.callback(self.close)
        self.start()

    def encoded(self, height, width):
        pixels = self.rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        return CompressedImage(format="jpeg", data=self.cv2.imencode(".jpg", pixels)[1].tobytes())

    def noise(self):
        return self.encoded(48, 64)

    def run(self):
        while not self.over.wait(0.05):
            message = self.send()
            if message is not None:
                self.jpeg.publish(message)

    def close(self):
        self.over.set()
        self.join(2.0)


def seeing(made):
    """The robot as an environment that needs a camera."""
    front = {"topic": "camera/front/compressed", "type": "sensor_msgs/CompressedImage", "required": True}
    return environment(
        made, rate=10.0, camera={"front": {**front, "timeout": TIMEOUT}}, image_size=SIZE, episode_seconds=0.0
    )


def _camera(name, broken, word):
    @row(name, stops=TIMEOUT + 0.1 + 0.05, ends=("ARMED",), first=name == "39_camera_freezes")
    def camera_fault(made):
        pictures = Pictures(made)
        env = seeing(made)
        wrong = broken(pictures)
        for _ in range(5):
            obs, *_, truncated, info = env.step(np.array([0.1, 0.1, 0.1]))
            assert not truncated, info
        assert obs["image.front"].std() > 5.0
        pictures.send = wrong
        since = now()
        while not truncated:
            assert now() - since < 5.0
            *_, truncated, info = env.step(np.array([1.0, 1.0, 1.0]))
        yield since
        assert "camera front" in info["fault"]
        assert word in info["fault"]
        assert not info["valid"]
        pictures.send = pictures.noise
        time.sleep(0.3)
        env.reset()  # it lives again
        *_, truncated, info = env.step(np.zeros(3))
        assert not truncated, info


def _same(message):
    return lambda: message


_camera("39_camera_freezes", lambda pictures: _same(pictures.noise()), "frozen")
_camera("39_camera_silent", lambda pictures: _same(None), "no usable")
_camera("39_garbage", lambda pictures: _same(CompressedImage(format="jpeg", data=b"no picture")), "no usable picture")


@row("39_wrong_encoding", stops=0.0, ends=("IDLE", "ARMED"))
def wrong_encoding(made):
    """A raw camera whose encoding nobody knows: the environment never begins, and says why."""
    out = made.driver.broadcaster.create_publisher(Image, "camera/raw", 1)
    message = Image(height=2, width=2, encoding="nonsense", step=6, data=bytes(12))
    over = threading.Event()
    thread = threading.Thread(target=lambda: [out.publish(message) for _ in iter(lambda: over.wait(0.05), True)])
    thread.start()
    made.others.callback(made.driver.broadcaster.destroy_publisher, out)
    made.others.callback(thread.join, 2.0)
    made.others.callback(over.set)
    camera = {"front": {"topic": "camera/raw", "type": "sensor_msgs/Image", "required": True, "timeout": TIMEOUT}}
    with pytest.raises(RuntimeError, match="camera front"):
        environment(made, rate=10.0, camera=camera, image_size=SIZE)
    yield now()


# ---------------------------------------------------------------- recorders


def recorded(made):
    """A robot that moves back and forth, one episode of it recorded and a second under way."""
    record = Recorder(
        made.processes, made.station, made.processes.folder / f"session{time.time_ns()}", spec="foreign.yaml"
    )
    made.others.callback(record.end, signal.SIGKILL)
    here = np.array([made.driver.where()[name] for name in NAMES])
    made.active()
    begin = time.time()
    # at 3 rad/s any second of it leads 0.18 rad away from where it began, wherever in its swing that is
    made.station.driver.value = lambda t: here + 0.2 * np.sin(3.0 * (t - begin))
    record.ask("start")
    time.sleep(2.0)
    assert record.ask("stop").success
    record.ask("start")
    time.sleep(1.0)
    made.station.states.clear()
    return record


@row("40_recorder_killed")
def recorder_killed(made):
    record = recorded(made)
    since = now()
    assert record.end(signal.SIGKILL) == -signal.SIGKILL
    yield since
    time.sleep(1.0)
    assert set(made.station.states) <= {"ACTIVE"}
    assert made.driver.moved(since) > 0.1  # on its way as before
    paths = session.episodes(record.folder)
    assert [path.name for path in paths] == ["episode_000000.hdf5"]
    assert len(session.read(paths[0])[0]["actions"]) > 20
    assert len(list(bag.read(record.folder / "bags/episode_000000", "/joint_states".__eq__))) > 20


@row("40_disk_full")
def disk_full(made):
    record = recorded(made)
    resource.prlimit(record.process.pid, resource.RLIMIT_FSIZE, (5_000, resource.RLIM_INFINITY))  # as a full disk does
    since = now()
    yield since
    time.sleep(1.0)
    assert not record.ask("stop").success
    wait(lambda: record.diagnostic()[0] == 2, what="an ERROR of the recorder")
    assert set(made.station.states) <= {"ACTIVE"}
    assert made.driver.moved(since) > 0.1
    assert len(session.episodes(record.folder)) == 1
