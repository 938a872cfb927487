"""Rows 35 and 39, and the doctor: what is said of mismatched QoS, second publishers and broken cameras."""
# pyright: reportPossiblyUnboundVariable=false

import threading
import time

import numpy as np
import pytest
import yaml
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import Bool, Float64MultiArray

from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.ros.doctor import examine
from robot_rl.real.ros.node_base import node_beside

harness = pytest.importorskip("ros_harness")
open_env, wait = harness.open_env, harness.wait


@pytest.fixture(scope="module", autouse=True)
def patience(graph):
    """Two processes may take a minute to start on a busy machine."""
    wait(graph.services["sim_robot/set_parameters"].service_is_ready, 120.0, "the simulated robot")
    wait(lambda: graph.state not in ("", "STARTUP"), 120.0, "the supervisor")


def test_doctor_finds_nothing_on_a_healthy_graph(live, processes) -> None:
    found = examine(processes.folder / "arm.yaml", timing=False)
    assert found.problems == [], found.text()
    states = found.topics["/joint_states"]
    assert states["publishers"] == ["sim_robot"]
    assert 40.0 < states["rate"] < 130.0
    assert abs(states["offset"]) < 0.2  # one machine, one clock
    assert "supervisor: ARMED" in found.text()


def test_35_qos_that_does_not_match_is_named_by_supervisor_and_doctor(live, processes) -> None:
    weak = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
    wrong = live.node.create_publisher(Bool, "robot_rl/takeover", weak)
    try:

        def said():
            level, message, _ = live.diagnostic("safety_supervisor: inputs")
            return level == 2 and "robot_rl/takeover" in message and "RELIABILITY" in message.upper()

        wait(said, what="an ERROR that names topic and policy")
        found = examine(processes.folder / "arm.yaml", timing=False)
        line = next(line for line in found.problems if "takeover" in line)
        assert "reliab" in line.lower()
        assert "safety_supervisor" in line
    finally:
        live.node.destroy_publisher(wrong)


def test_33_doctor_names_who_else_publishes_the_command_topic(live, processes) -> None:
    rival = live.node.create_publisher(Float64MultiArray, "forward_command_controller/commands", 1)
    try:
        found = examine(processes.folder / "arm.yaml", timing=False)
        assert any("policy publishes commands beside the supervisor" in line for line in found.problems), found.text()
    finally:
        live.node.destroy_publisher(rival)


def test_doctor_without_a_robot_says_what_to_start(processes) -> None:
    found = examine(processes.folder / "arm.yaml", namespace="/nowhere", listen=0.5, timing=False)
    text = found.text()
    assert "/nowhere/joint_states: nobody publishes it" in text
    assert "the safety supervisor does not publish it" in text


def test_doctor_waits_for_a_robot_that_is_found_later_than_others(live, processes) -> None:
    def later():
        time.sleep(3.5)  # longer than the rest that ends discovery; the station was found at once
        with node_beside("driver", namespace="/late") as node:
            states = node.create_publisher(JointState, "joint_states", 5)
            while not over.wait(0.02):
                states.publish(JointState(name=["j0", "j1", "j2"], position=[0.0, 0.0, 0.0]))

    over, robot = threading.Event(), threading.Thread(target=later)
    robot.start()
    try:
        found = examine(processes.folder / "arm.yaml", namespace="/late", listen=1.0, timing=False)
    finally:
        over.set()
        robot.join()
    assert found.topics["/late/joint_states"]["publishers"] == ["driver"], found.text()
    assert found.topics["/late/joint_states"]["rate"] > 20.0


class Pictures(threading.Thread):
    """A camera that sends noise as JPEG, until it is told to send something else."""

    def __init__(self, node) -> None:
        super().__init__(daemon=True)
        self.cv2 = pytest.importorskip("cv2")
        self.rng = np.random.default_rng(0)
        self.out = node.create_publisher(CompressedImage, "camera/wrist/image_raw/compressed", 1)
        self.data, self.running = self.noise, True
        self.start()

    def noise(self) -> bytes:
        pixels = self.rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        return self.cv2.imencode(".jpg", pixels)[1].tobytes()

    def run(self) -> None:
        while self.running:
            data = self.data()
            if data is not None:
                self.out.publish(CompressedImage(format="jpeg", data=data))
            time.sleep(0.05)


def until_truncated(env, seconds):
    for _ in range(round(seconds * env.rate)):
        *_, truncated, info = env.step(np.zeros(3))
        if truncated:
            return info
    return info


@pytest.fixture
def camera_env(live, processes):
    raw = yaml.safe_load((processes.folder / "arm.yaml").read_text())
    wrist = {
        "topic": "camera/wrist/image_raw/compressed",
        "type": "sensor_msgs/CompressedImage",
        "required": True,
        "timeout": 1.0,
        "calibration": {
            "height": 48, "width": 64, "focal": [50.0, 52.0], "centre": [31.0, 25.0], "mount": "world",
            "position": [1.0, 0.0, 0.5], "rotation": [0, 0, -1, 1, 0, 0, 0, -1, 0], "residual": 0.2, "views": 20,
        },
    }  # fmt: skip
    spec = RobotSpec.from_dict({**raw, "cameras": {"wrist": wrist}})
    pictures = Pictures(live.node)
    env = open_env(spec, rate=10.0, arm=True, realtime=39, reset_mode="none", state_timeout=0.3, image_size=(24, 32),
        episode_seconds=0.0,
    )  # fmt: skip
    yield env, pictures
    env.close()
    pictures.running = False


def test_39_camera_that_freezes_sends_garbage_or_falls_silent_truncates_with_its_name(camera_env) -> None:
    env, pictures = camera_env
    obs, _ = env.reset()
    assert obs["image.wrist"].shape == (24, 32, 3)
    assert obs["image.wrist"].std() > 5.0
    told = env.io.calibration["image.wrist"]  # of the card, for pictures of half the size
    assert (told.height, told.width, told.focal, told.centre) == (24, 32, (25.0, 26.0), (15.5, 12.5))
    assert (told.mount, told.position) == ("world", (1.0, 0.0, 0.5))
    info = until_truncated(env, 1.0)
    assert info["fault"] == ""
    still = pictures.noise()
    for data, word in (
        (lambda: still, "frozen"),
        (lambda: b"no picture", "no usable picture"),
        (lambda: None, "no usable"),
    ):
        pictures.data = pictures.noise
        time.sleep(0.3)
        env.reset()
        pictures.data = data
        info = until_truncated(env, 5.0)
        assert "camera wrist" in info["fault"]
        assert word in info["fault"]
        assert not info["valid"]
    assert env.link.cameras["wrist"].errors > 0
