"""Pictures for a calibration from topics: one at each pose in which the robot rests, of that pose."""

import csv
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

pytest.importorskip("rclpy")

import rclpy
from rclpy.context import Context
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState

from robot_rl.real.core.spec import CameraSpec, JointSpec, RobotSpec
from robot_rl.real.ros.calibration_recorder import record

pytestmark = [pytest.mark.ros, pytest.mark.timeout(60)]
SPEC = RobotSpec(
    "two",
    tuple(JointSpec(name, 1.0, 1.0, 1.0, -3.0, 3.0) for name in ("a", "b")),
    command_mode="forward_position",
)
CAMERA = CameraSpec("recorder_test/image", "sensor_msgs/Image", timeout=1.0)
POSES = np.array([[0.0, 0.0], [0.5, -0.4], [0.5, -0.38], [1.0, 0.3]])  # the third is hardly another one


class Robot(threading.Thread):
    """Goes on to the next pose when it is told to, and from the second to the third by itself after 2 s.

    Its camera shows as grey how far joint a is.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.context = Context()
        rclpy.init(context=self.context)
        self.node = Node("robot_of_recorder_test", context=self.context)
        self.joints = self.node.create_publisher(JointState, "joint_states", 10)
        self.pictures = self.node.create_publisher(Image, CAMERA.topic, 10)
        self.over, self.goal = threading.Event(), 0
        self.mute = 0.0  # seconds from a = 0.2 on in which the joints are not told
        self.said: list[str] = []

    def told(self, line: str) -> None:
        self.said.append(line)
        self.goal += self.goal < len(POSES) - 1

    def run(self) -> None:
        now, tick, since, told = POSES[0].copy(), 0, time.monotonic(), np.inf
        while not self.over.wait(0.02):
            step = POSES[self.goal] - now
            now += np.clip(step, -0.02, 0.02)
            if np.abs(step).max() > 1e-6:
                since = time.monotonic()
            elif self.goal == 2 and time.monotonic() - since > 2.0:
                self.goal = 3
            message = JointState(name=["b", "a"], position=[now[1], now[0]], velocity=[0.0, 0.0])
            message.header.stamp = self.node.get_clock().now().to_msg()
            told = min(told, time.monotonic()) if now[0] > 0.2 else told
            if not 0.0 <= time.monotonic() - told < self.mute:
                self.joints.publish(message)
            tick += 1
            if tick % 3 == 0:
                grey = int(50 + 100 * now[0])
                picture = Image(height=24, width=32, encoding="rgb8", step=96, data=bytes([grey]) * (24 * 96))
                picture.header.stamp = message.header.stamp
                self.pictures.publish(picture)

    def close(self) -> None:
        self.over.set()
        self.join(2.0)
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture
def robot():
    made = Robot()
    made.start()
    yield made
    made.close()


def test_a_picture_of_every_new_pose_at_rest(robot: Robot, tmp_path: Path) -> None:
    assert record(SPEC, CAMERA, tmp_path / "seen", count=3, say=robot.told) == 3
    rows = list(csv.DictReader((tmp_path / "seen/poses.csv").open()))
    found = np.array([[float(row["a"]), float(row["b"])] for row in rows])
    assert found == pytest.approx(POSES[[0, 1, 3]], abs=0.005)
    grey = [np.asarray(Picture.open(tmp_path / "seen" / row["picture"])).mean() for row in rows]
    assert grey == pytest.approx(50 + 100 * found[:, 0], abs=1.0)
    assert "3 of 3" in robot.said[-1]
    with pytest.raises(ValueError, match=r"poses\.csv exists"):
        record(SPEC, CAMERA, tmp_path / "seen", count=3)


def test_joints_that_are_silent_while_the_robot_moves_are_no_rest(robot: Robot, tmp_path: Path) -> None:
    robot.mute = 1.5
    assert record(SPEC, CAMERA, tmp_path / "seen", count=2, say=robot.told) == 2
    rows = list(csv.DictReader((tmp_path / "seen/poses.csv").open()))
    assert [float(row["a"]) for row in rows] == pytest.approx([0.0, 0.5], abs=0.005)


def test_silent_camera_is_named(robot: Robot, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"camera topic nobody/image.*doctor ros"):
        record(SPEC, CameraSpec("nobody/image", "sensor_msgs/Image"), tmp_path / "seen", count=3, patience=2.0)
