"""Promises of the safety pages that only an unusual robot or an unlucky moment puts to the test, one by one."""
# pyright: reportArgumentType=false

import signal
import struct
import threading
import time
import zlib
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from robot_rl.real.cameras import PictureError, compressed_pixels
from robot_rl.real.core.alignment import JointMerger
from robot_rl.real.core.intake import CommandMessage
from robot_rl.real.core.limiter_pd import torque
from robot_rl.real.core.pipeline import CommandPipeline, Controller, PipelineOptions
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import JointSpec, LegsSpec, RobotSpec
from robot_rl.real.core.supervisor import SafetySupervisor
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions
from robot_rl.real.robot import Command, RobotState

LIMITS = {"velocity": 1.0, "acceleration": 10.0, "effort": 50.0}
ONE = RobotSpec("r", (JointSpec("a", **LIMITS, lower=-2.0, upper=2.0),))


def supervised(spec, ticks, settings=None):
    """A supervisor, enabled at rest, and (position, velocity, effort, command) -> what a tick of 10 ms gives."""
    made, now = SafetySupervisor(spec, settings), [0.0]

    def tick(q=0.0, v=0.0, effort=None, command=None):
        now[0] = round(now[0] + 0.01, 6)
        told = None if command is None else Command(now[0], np.array([command]))
        return made.filter(told, RobotState(now[0], np.array([q]), np.array([v]), effort), now[0])

    for _ in range(80):
        tick()
    assert made.enable() == []
    for _ in range(ticks):
        tick()
    return made, tick


def test_estimated_velocity_of_a_driver_that_froze_becomes_zero_so_that_it_is_seen():
    """Else it decays for 18 s before its numbers repeat."""
    joints = JointMerger(("a",))
    for k in range(50):
        joints.add(0.01 * k, ("a",), [0.01 * k])
    assert joints.velocity[0] == pytest.approx(1.0, rel=1e-6)
    told = []
    for k in range(50, 80):
        joints.add(0.01 * k, ("a",), [0.49])
        told.append(joints.velocity[0])
    assert 0.0 < told[5] < 0.2
    assert set(told[11:]) == {0.0}  # five times the smoothing of 20 ms


def test_velocities_that_ros2_control_does_not_know_are_estimated():
    joints = JointMerger(("a", "b"))
    for k in range(50):
        joints.add(0.01 * k, ("a", "b"), [0.01 * k, 0.0], [np.nan, 0.5])
    assert joints.velocity == pytest.approx([1.0, 0.5], rel=1e-6)
    assert joints.estimated == [True, False]


def test_a_supervisor_that_never_starts_says_what_is_wrong_with_the_state():
    pipeline = CommandPipeline(ONE)
    pipeline.controller(Controller())
    for k in range(100):
        pipeline.tick(0.01 * k, RobotState(0.01 * k, np.array([2.5]), np.zeros(1)))
    assert pipeline.safety.state == "STARTUP"
    assert pipeline.safety.waits == ("limit_measured (a is 0.500 rad outside its limits, allowed 0.009)",)


@pytest.mark.parametrize(("action", "most"), [("halt", 0), ("brake", 60)])
def test_an_exception_in_the_tick_does_not_speak_where_silence_is_promised(action, most):
    safety, tick = supervised(ONE, 0, SafetySettings(estop_action=action))
    for _ in range(20):
        tick(command=0.02)
    if action == "halt":
        safety.estop("operator")
        assert not tick()[1].publish
    published = sum(tick(effort=np.zeros(2))[1].publish for _ in range(500))  # two efforts of one joint
    assert "internal" in safety.faults
    assert published <= most


def test_damping_of_legs_in_an_estop_stays_within_the_effort_of_the_joints():
    joint = JointSpec("a", velocity=20.0, acceleration=900.0, effort=40.0, lower=-2.0, upper=2.0, kp=50.0, kd=5.0)
    legs = LegsSpec(tilt=None, stand_seconds=0.2)
    spec = RobotSpec("r", (joint,), command_mode="pd", controller_timeout=0.1, home=(0.0,), legs=legs)
    safety, tick = supervised(spec, 30, SafetySettings(estop_action="zero"))
    for k in range(3):
        tick(0.1 * k, 5.0 * k)
    safety.estop("operator")
    for k in range(3):
        out, _ = tick(0.3 + 0.15 * k, 15.0)
        asked = torque(out.value, out.gains, np.array([0.3 + 0.15 * k]), np.array([15.0]))
        assert -40.0 - 1e-9 <= asked[0] < 0.0
        assert out.value[0] == pytest.approx(0.3 + 0.15 * k)


def turned(at, to, seconds, when=None):
    """How far a wheel that stands at `at` turns when it is told to be at `to`: a step, or a motion until `when`."""
    spec = RobotSpec("r", (JointSpec("wheel", **LIMITS, continuous=True),), command_mode="forward_position")
    pipeline = CommandPipeline(spec, None, PipelineOptions(allow_external=True))
    pipeline.controller(Controller())
    q, gone, source = at, 0.0, "policy" if when is None else "external"
    for k in range(1, int(100 * seconds)):
        now = round(0.01 * k, 6)
        if pipeline.safety.state == "IDLE":
            pipeline.enable()
        if k > 100 if when is None else k == 100:
            stamp, due = (now, 0.01) if when is None else (0.0, when)
            fields = {"positions": np.array([[to]])}
            pipeline.offer(CommandMessage(source, f"{source}:x", k, ("wheel",), stamp, np.array([due]), fields), now)
        sent = pipeline.tick(now, RobotState(now, np.array([q]), np.zeros(1)))
        new = float(sent.value[0]) if sent.publish else q
        gone, q = gone + new - q, new
    return gone


def test_a_joint_that_turns_for_ever_takes_the_short_way():
    assert turned(2.0 * np.pi + 0.02, 0.0, 3.0) == pytest.approx(-0.02, abs=1e-3)
    assert turned(6.2, 0.1, 9.0, when=4.9) == pytest.approx(2.0 * np.pi + 0.1 - 6.2, abs=1e-3)


class Ahead:
    """0.1 rad further at each decision."""

    def reset(self):
        pass

    def act(self, obs, *, deterministic):
        return SimpleNamespace(value=np.array([[0.1]]))


class Integrating:
    """Actions are moves."""

    io, external, cameras = SimpleNamespace(control_hz=10.0, obs_names=()), (), ()

    def __init__(self):
        self.command = np.zeros(1)

    def reset(self, position, velocity, task):
        self.command = np.array(position, float)

    def observe(self, position, velocity, task):
        return {}

    def act(self, action):
        self.command = self.command + action[0]
        return self.command.copy()


@pytest.mark.parametrize("ticks", [20, 21, 24, 29])
def test_a_policy_that_takes_over_between_two_decisions_begins_where_the_command_is(ticks):
    path, place = [], np.zeros(1)

    def run(runner, count):
        nonlocal place
        for _ in range(count):
            place = runner.tick(place, np.zeros(1), {}).values[-1]
            path.append(place[0])

    old, new = (PolicyRunner(Ahead(), Integrating(), RunnerOptions(rate=100.0), identity=name) for name in "ab")
    run(old, ticks)
    new.follow(old)
    run(new, 10)
    assert np.abs(np.diff(path)).max() < 0.02  # 0.01 before


def png_of(width, height):
    """What a camera of so many pixels might have sent, in a few kilobytes: black, one bit a pixel."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes(1 + (width + 7) // 8) * height, 9)
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_small_message_that_would_be_gigabytes_is_refused_in_any_format():
    assert compressed_pixels(png_of(64, 48)).shape == (48, 64, 3)
    with pytest.raises(PictureError, match="picture is 12000 x 12000, expected at most"):
        compressed_pixels(png_of(12_000, 12_000))
    picture = np.zeros((40, 60, 3), np.uint8)
    jpeg = cv2.imencode(".jpg", picture)[1].tobytes()
    filled = jpeg[:2] + b"\xff\xff\xff" + jpeg[2:]  # ITU-T T.81, B.1.1.2: fill bytes before a marker
    assert compressed_pixels(filled).shape == (40, 60, 3)
    at = filled.index(b"\xff\xc0")
    with pytest.raises(PictureError, match="picture is 65535 x 65535"):
        compressed_pixels(filled[: at + 5] + b"\xff\xff\xff\xff" + filled[at + 9 :])
    for other in (".bmp", ".tiff", ".webp"):  # whose headers nobody reads here
        with pytest.raises(PictureError, match="neither JPEG nor PNG"):
            compressed_pixels(cv2.imencode(other, picture)[1].tobytes())


def test_ctrl_c_ends_a_wiggle_with_the_joint_that_moves():
    wiggle = pytest.importorskip("robot_rl.real.ros.wiggle", reason="needs rclpy")
    made = wiggle.Wiggle.__new__(wiggle.Wiggle)
    made._over = threading.Event()
    made._run = lambda: made._over.wait(5.0)
    threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    since = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert time.monotonic() - since < 4.0


def test_the_doctor_knows_every_node_of_ours_that_may_command():
    doctor = pytest.importorskip("robot_rl.real.ros.doctor", reason="needs rclpy")
    node = pytest.importorskip("robot_rl.real.ros.safety_supervisor_node")
    assert set(node.COMMAND_NODES) <= set(doctor.POLICY_SIDE)
