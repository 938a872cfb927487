"""An arm of servos from the bus to its card, against servos that are simulated down to the bytes."""
# pyright: reportOptionalMemberAccess=false

import contextlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("scservo_sdk", reason="ftservo-python-sdk is not installed (extra so101)")

from robot_rl import card
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.core.supervisor import SafetySupervisor
from robot_rl.real.graph import GraphArgs, graph
from robot_rl.real.operator import LeaderFollow
from robot_rl.real.robot import Command, RobotState
from robot_rl.real.servos.arm import ServoArm, open_bus
from robot_rl.real.servos.bus import ServoBus, ServoError
from robot_rl.real.servos.driver import ServoDriver
from robot_rl.real.servos.registers import HOMING, LOCK, POSITION
from robot_rl.types.card import MotorCard
from tests.real import servo_sim
from tests.real.servo_sim import HEAT, OVERLOAD, READ, Servo, ServoSim, page

NAMES = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
TURN = 4096 / (2 * np.pi)
# Encoders in the middle of each joint, and how far a hand moves each to its ends [ticks]: half of the model's ranges.
MIDDLES = (2048, 300, 3900, 2048, 1000, 2500)
ENDS = (1250, 1137, 1101, 1080, 0, 620)
KEPT = {}  # of the calibration: the card, and what the servos keep


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """The servos are a thread here, which waits for its turn on a busy machine as no real one does."""
    monkeypatch.setattr("robot_rl.real.servos.bus.ANSWER_MS", 100.0)
    monkeypatch.setattr("robot_rl.real.servos.bus.Line.getCurrentTime", lambda line: servo_sim.clock())


@pytest.fixture
def bus():
    made = servo_sim.arm()
    opened = ServoBus(made.path, names=dict(enumerate(NAMES, 1)))
    yield made, opened
    opened.close()
    made.close()


def my_card(folder: Path) -> Path:
    """The ready card with a name of its own, as `robot new so101` writes it; nobody looks at the model here."""
    table = yaml.safe_load(card.find("so101").read_text())
    (folder / "my_arm.yaml").write_text(yaml.safe_dump(table | {"name": "my_arm"}, sort_keys=False))
    return folder / "my_arm.yaml"


class Hand(threading.Thread):
    """A person: puts the joints into their middles, presses Enter, moves one after the other, pressing Enter.

    Args:
        sim: the servos.
        ends: of the joints, in ticks to both sides.
        middles: of the encoders.
        order: id of the servo that moves when a joint is moved.
        shares: of the ends, where it goes with a joint.
    """

    def __init__(
        self, sim, ends=ENDS, middles=MIDDLES, order=(1, 2, 3, 4, 5, 6), shares=(0.6, 1.0, 0.4, -0.2, -0.8, -1.0)
    ):
        super().__init__(daemon=True)
        self.over = False
        self.sim, self.ends, self.middles, self.order, self.shares = sim, ends, middles, order, shares
        read, write = os.pipe()
        self.stdin, self._keys = os.fdopen(read), os.fdopen(write, "w", buffering=1)

    def reads(self, count):
        """Until every joint has been looked at so often again."""
        since, end = len(self.sim.heard), time.monotonic() + 20.0  # a command line loads first
        looked = (READ, 6, b"\x38\x02")  # two bytes from 56 on: the position
        while self.sim.heard[since:].count(looked) < count and time.monotonic() < end and not self.over:
            time.sleep(0.001)

    def run(self):
        for number, place in enumerate(self.middles, 1):
            self.sim.turn(number, place)
        self._keys.write("\n")
        self.reads(2)  # the middle, and a first look after it
        for number in self.order:
            for share in self.shares:
                self.sim.turn(number, self.middles[number - 1] + share * (self.ends[number - 1] or 300))
                self.reads(2)
            with contextlib.suppress(BrokenPipeError):  # it was refused
                self._keys.write("\n")
            self.reads(2)  # the last look at this joint, and the first at the next
        self._keys.close()


def calibrated(robot_rl, folder, sim, monkeypatch, **hand):
    hand = Hand(sim, **hand)
    monkeypatch.setattr("sys.stdin", hand.stdin)
    hand.start()
    done = robot_rl(*page("robot calibrate-arm my_arm", arm=sim.path))
    hand.over = True
    hand.join(10.0)
    return done


@pytest.fixture
def arm(robot_rl, tmp_path, monkeypatch):
    """A calibrated arm at its middle: simulation, card, and what drives it. It was calibrated once for all tests."""
    sim = servo_sim.arm(link=tmp_path / "port")
    path = my_card(tmp_path)
    if not KEPT:
        done = calibrated(robot_rl, tmp_path, sim, monkeypatch)
        assert done.returncode == 0, done.stderr
        KEPT.update(card=path.read_text().replace(sim.path, "<port>"), servos=[servo.saved for servo in sim.servos])
    path.write_text(KEPT["card"].replace("<port>", sim.path))
    for servo, saved in zip(sim.servos, KEPT["servos"]):
        servo.saved = saved
        servo.cycle()
    for number, place in enumerate(MIDDLES, 1):
        sim.turn(number, place)
    made = card.read(path).servos
    assert made is not None
    spec = RobotSpec.load(path)
    opened = open_bus(made)
    yield sim, made, spec, ServoArm(opened, made.motors, spec.names)
    opened.close()
    sim.close()


def test_calibration_by_hand_lands_on_the_card_and_in_the_servos(arm):
    sim, made, spec, joints = arm
    assert list(made.motors) == list(NAMES)
    # encoder 300, wanted 2047: offset 300 - 2047; encoder 3900: 3900 - 2047
    assert [made.motors[name].homing for name in NAMES[:3]] == [1, -1747, 1853]
    elbow = made.motors["elbow_flex"]
    assert (elbow.low, elbow.high, elbow.zero) == (2047 - 1101, 2047 + 1101, 2047.0)
    jaw = made.motors["gripper"]  # 1240 ticks are 1.902 rad, and stand for the model's 1.9198
    assert jaw.scale == pytest.approx(1.9198 * TURN / 1240, rel=1e-3)
    assert spec.names == NAMES
    lower, upper = spec.hard_bounds()
    assert upper[2] == pytest.approx(1101 / TURN)  # the servo's end: 1.689, within the model's 1.69
    assert upper[0] == pytest.approx(1250 / TURN)
    assert lower[4] == pytest.approx(-2.743847)  # no ends of its own: the model's
    for servo in sim.servos:
        servo.cycle()
    joints.check()  # all of it is there without power
    sim.turn(3, MIDDLES[2] + 500)
    reading = joints.read()
    assert reading.position[2] == pytest.approx(500 / TURN)
    assert reading.volts[0] == pytest.approx(12.1)
    assert reading.celsius[0] == 31
    assert [servo.get(21) for servo in sim.servos] == [16] * 6
    assert [servo.get(16, 2) for servo in sim.servos] == [1000] * 5 + [500]  # a gripper closes on things


def test_a_joint_that_is_continuous_on_the_card_is_calibrated_as_one_that_turns(robot_rl, tmp_path, monkeypatch):
    path = my_card(tmp_path)
    table = yaml.safe_load(path.read_text())
    table["joints"][0] = {**table["joints"][0], "lower": None, "upper": None, "continuous": True}
    path.write_text(yaml.safe_dump(table))
    sim = servo_sim.arm()
    done = calibrated(robot_rl, tmp_path, sim, monkeypatch)
    sim.close()
    assert done.returncode == 0, done.stderr
    made = card.read(path).servos
    assert list(made.motors) == list(NAMES)
    assert (made.motors["shoulder_pan"].low, made.motors["shoulder_pan"].high) == (0, 4095)


@pytest.mark.parametrize(
    ("hand", "said"),
    [
        ({"ends": (1250, 200, 1101, 1080, 0, 620)}, "shoulder_lift was moved over 0.61 rad, and its range"),
        ({"ends": (1600, 1137, 1101, 1080, 0, 620)}, "see whether it is the servo of this joint"),
        ({"ends": (1250, 1137, 1101, 1080, 0, 130)}, "gripper was moved over 0.40 rad"),
        ({"order": (1, 3, 2, 4, 5, 6)}, "you were asked to move shoulder_lift, and servo 3 (elbow_flex) is what moved"),
        ({"shares": (0.05,)}, "nobody moved shoulder_pan"),
    ],
)
def test_a_range_that_is_not_plausible_leaves_nothing(hand, said, robot_rl, tmp_path, monkeypatch):
    sim = servo_sim.arm()
    path = my_card(tmp_path)
    before, kept = path.read_text(), [servo.saved for servo in sim.servos]
    done = calibrated(robot_rl, tmp_path, sim, monkeypatch, **hand)
    sim.close()
    assert done.returncode == 2
    assert said in done.stderr
    assert "Nothing was written" in done.stderr
    assert path.read_text() == before
    assert [servo.saved for servo in sim.servos] == kept


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (lambda sim: setattr(sim.servos[2], "silent", True), r"servo 3 \(elbow_flex\) on .* does not answer: no power"),
        (lambda sim: setattr(sim.servos[2], "garbled", True), r"servo 3 \(elbow_flex\) answers on .* is garbled"),
        (lambda sim: sim.servos[3].put(5, 3), r"servo 3 \(elbow_flex\) answers on .* two servos have this id"),
        (lambda sim: sim.servos[1].put(31, 7, 2), r"servo 2 \(shoulder_lift\) keeps homing 7, and the card says -1747"),
    ],
)
def test_who_does_not_answer_as_the_card_says_is_named_before_anything_moves(breaks, said, arm):
    sim, _, spec, joints = arm
    breaks(sim)
    with pytest.raises(ServoError, match=said):
        ServoDriver(joints, spec.array("velocity"), timeout=0.25)
    assert not any(servo.get(40) for servo in sim.servos)


def test_port_that_cannot_be_opened_is_explained(bus):
    sim, _ = bus
    with pytest.raises(ServoError, match="is used by another program"):
        ServoBus(sim.path)
    with pytest.raises(ServoError, match="there is no port /dev/ttyNONE; "):
        ServoBus("/dev/ttyNONE")
    with pytest.raises(ServoError, match="/dev/null is no serial port; "):
        ServoBus("/dev/null")


def test_registers_below_40_last_only_where_the_lock_is_off(bus):
    sim, opened = bus
    opened.write(1, HOMING, 5)  # locked: heard, and forgotten without power
    sim.servos[0].cycle()
    assert opened.read(1, HOMING) == 0
    opened.write_lasting(1, {HOMING: -300})
    sim.servos[0].cycle()
    assert opened.read(1, HOMING) == -300
    assert opened.read(1, LOCK) == 1
    assert opened.read(1, POSITION) == 2348  # the encoder minus it


class Drive:
    """Ticks by a clock of their own; the servos move by the machine's."""

    def __init__(self, joints, spec, **options):
        self.driver = ServoDriver(joints, spec.array("velocity"), timeout=0.1, **options)
        self.now, self.arrived = 100.0, 0.0
        self.sent: np.ndarray | None = None

    def run(self, ticks, value=None, dt=0.01):
        """What the last of some ticks told."""
        if value is not None:
            self.sent = np.asarray(value, float)
        for _ in range(ticks):
            self.now += dt
            self.arrived = self.arrived if value is None else self.now
            self.told = self.driver.tick(self.now, self.sent, self.arrived)
            time.sleep(0.004)
        return self.told

    def until(self, ready, value=None):
        """Ticks until `ready`(told), 5 s at most."""
        end = time.monotonic() + 5.0
        while not ready(told := self.run(1, value)):
            assert time.monotonic() < end, told
        return told


def test_driver_follows_from_where_the_arm_is_and_refuses_a_jump(arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    told = drive.run(3)
    assert told.status == "ok"
    assert not any(servo.get(40) for servo in sim.servos)  # as they were found
    place = told.reading.position
    far = place.copy()
    far[2] += 0.5
    assert "elbow_flex is told to begin 0.50 rad from where it is" in drive.run(1, far).status
    assert not any(servo.get(40) for servo in sim.servos)
    assert drive.run(1, place).status == "ok"
    assert all(servo.get(40) for servo in sim.servos)
    near = place.copy()
    near[2] += 0.2
    drive.until(lambda told: abs(told.reading.position[2] - near[2]) < 0.003, near)
    assert sim.servos[2].get(46, 2) == round(1.2 * 3.0 * TURN)  # its own fence


@pytest.mark.parametrize("limp", [False, True])
def test_silence_of_commands_holds_or_lets_go_as_the_card_says(limp, arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec, limp=limp)
    place = drive.run(1).reading.position
    drive.run(3, place)
    goals = [servo.get(42, 2) for servo in sim.servos]
    told = drive.run(15)
    assert told.status == "ok"
    assert drive.driver.silent
    assert not drive.driver.following
    assert [servo.get(40) for servo in sim.servos] == [0 if limp else 1] * 6
    assert [servo.get(42, 2) for servo in sim.servos] == goals


@pytest.mark.parametrize(("bit", "word"), [(OVERLOAD, "is overloaded"), (HEAT, "too hot"), (1, "its supply")])
def test_servo_that_reports_a_fault_ends_the_push_of_all(bit, word, arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    place = drive.run(1).reading.position
    target = place + 0.05
    drive.run(3, target)
    sim.servos[1].faults = bit
    told = drive.run(3, target)
    assert told.status.startswith("servo 2 (shoulder_lift): it")
    assert word in told.status
    assert not drive.driver.following
    where = joints.read().position
    goals = [motor.get(42, 2) for motor in sim.servos]
    drive.run(3, target)
    assert [motor.get(42, 2) for motor in sim.servos] == goals  # nothing is asked for any more
    sim.servos[1].faults = 0
    assert drive.run(1).status == "ok"
    assert np.abs(joints.read().position - where).max() < 0.06


def test_servo_that_is_overloaded_while_it_holds_gives_way(arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    place = drive.run(1).reading.position
    drive.run(3, place)
    drive.run(15)  # commands have stopped: it holds
    with sim.lock:
        sim.servos[1].faults = OVERLOAD
        sim.servos[1].place += 150.0  # what hangs on it is too heavy
    drive.run(2)
    assert sim.servos[1].get(42, 2) == sim.servos[1].told()


def test_servo_that_falls_silent_is_named_and_its_return_is_no_jump(arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    place = drive.run(1).reading.position
    drive.run(3, place)
    sim.servos[4].silent = True
    told = drive.run(3, place, dt=0.06)
    assert told.reading is None
    assert told.status.startswith("servo 5 (wrist_roll) on ")
    sim.servos[4].silent = False
    sim.servos[4].cycle()  # its plug was out
    sim.turn(5, MIDDLES[4] + 200)  # and somebody has turned it
    drive.until(lambda told: told.status == "ok")
    assert sim.servos[4].get(40) == 0
    assert sim.servos[4].get(46, 2)  # it has its fence again
    assert "wrist_roll is told to begin 0.31 rad" in drive.run(1, place).status


def test_lost_answers_now_and_then_are_no_fault(arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    for _ in range(3):
        drive.run(1)
        sim.servos[0].garbled = True
        assert drive.run(2).status == "ok"
        sim.servos[0].garbled = False


def test_ids_are_given_one_servo_at_a_time(robot_rl, tmp_path, monkeypatch):
    monkeypatch.setattr("robot_rl.real.servos.bus.ANSWER_MS", 60.0)  # three times for each of four that are absent
    my_card(tmp_path)
    sim = ServoSim([Servo(1)])
    done = robot_rl("robot", "motors", "my_arm", f"port={sim.path}", "set=elbow_flex")
    assert done.returncode == 0, done.stderr
    assert "the servo of elbow_flex has id 3 now; it was 1" in done.stdout
    sim.servos[0].cycle()
    assert sim.servos[0].get(5) == 3
    sim.servos.append(Servo(1))
    done = robot_rl(*page("robot motors my_arm", arm=sim.path))
    assert done.returncode == 2
    assert "ids 1, 3 answer; plug in the one servo that is meant" in done.stderr
    done = robot_rl(*page("robot motors my_arm port=/dev/serial/by-id/<arm>", arm=sim.path)[:4])
    assert "elbow_flex: id 3, model 777, at 2048, 12.1 V, 31 C, torque off, well" in done.stdout
    assert "wrist_roll: no answer from id 5" in done.stdout
    sim.close()


def test_leader_moves_the_follower_through_the_supervisor_and_its_jump_is_limited(arm, bus):
    """A second arm leads by name; truth is where the follower's encoders are."""
    follower, _, spec, joints = arm
    spec = replace(spec, workspace=None)  # the box needs the model
    lead, opened = bus
    motors = {name: MotorCard(id=i, low=0, high=4095, zero=2048.0) for i, name in enumerate(NAMES, 1)}
    motors["gripper"] = motors["gripper"].model_copy(update={"zero": 2048.0 - 512})  # in the middle as the follower's
    leader = ServoArm(opened, motors, spec.names)
    safety = SafetySupervisor(spec, SafetySettings(rate=100.0))
    driver = ServoDriver(joints, spec.array("velocity"), timeout=0.1)
    hands = LeaderFollow(100.0, catch_up=0.5)
    lower, upper = spec.bounds()
    for number in range(1, 7):
        lead.turn(number, 2048 + 30)  # 0.046 rad from the follower

    sent, seen, value, seq, now = [], [], None, 0, time.monotonic() + 100.0

    def run(seconds, led=True):
        """Ticks of 10 ms by a clock that the servos have too: nothing depends on how busy the machine is."""
        nonlocal value, seq, now
        for _ in range(round(seconds / 0.01)):
            time.sleep(0.01)
            now += 0.01
            told = driver.tick(now, value, now)
            assert told.status == "ok"
            led_to = leader.read()
            if told.reading is None or led_to is None:  # the thread of the servos had to wait
                continue
            state = RobotState(now, told.reading.position, told.reading.velocity)
            seen.append((now, state.position))
            seq += led
            if safety.state != "ACTIVE":
                hands.release()
            wanted = hands.command(led_to.position, state.position if value is None else value)
            out, verdict = safety.filter(Command(now, wanted, "human", seq) if led else None, state, now)
            value = out.value if verdict.publish else None
            if value is not None:
                sent.append((now, value))

    lead.now = follower.now = lambda: now
    run(0.6, led=False)
    assert safety.enable() == []
    run(0.2)
    assert safety.state == "ACTIVE"
    for number in range(1, 7):
        lead.turn(number, 2048 + 1300)  # a jump of 1.95 rad, beyond every limit but that of the roll
    run(0.3)
    late = now + 20.0
    while now < late and np.abs(seen[-1][1] - sent[-1][1]).max() + np.abs(sent[-1][1] - sent[-20][1]).max() > 1e-3:
        run(0.1)  # where threads wait for their turn, ticks are lost and it takes longer
    path, took = np.array([row[1] for row in sent]), np.diff([row[0] for row in sent])
    assert (np.abs(np.diff(path, axis=0)) <= 3.0 * took[:, None] + 1e-9).all()
    assert (path <= upper + 1e-9).all()
    assert (path >= lower - 1e-9).all()
    assert safety.state == "ACTIVE", safety.faults
    np.testing.assert_allclose(joints.read().position, np.minimum(upper, leader.read().position), atol=0.02)
    way, took = np.abs(np.diff([row[1] for row in seen], axis=0)).max(axis=1), np.diff([row[0] for row in seen])
    assert (way / took).max() < 1.25 * 3.0  # by the encoders: the servo's own fence is at 1.2


def test_card_with_servos_brings_its_driver_and_a_gripper_with_limits_is_a_joint(arm, tmp_path):
    _, made, spec, _ = arm
    assert spec.names[-1] == "gripper"
    assert spec.home[-1] == pytest.approx(0.5 * (1.7453 - 0.1745))  # the middle
    path = str(tmp_path / "my_arm.yaml")
    before = Path(path).read_text()
    card.put_servos(Path(path), made.model_copy(update={"silence": "limp"}))  # again: every other line stays
    assert Path(path).read_text() == before.replace("silence: hold", "silence: limp")
    real = {node.name: node for node in graph(GraphArgs(robot_spec=path, sim=False))}
    assert list(real) == ["servo_arm", "safety_supervisor"]
    assert real["servo_arm"].essential
    assert "servo_arm" not in {node.name for node in graph(GraphArgs(robot_spec=path))}  # simulated
    table = yaml.safe_load(Path(path).read_text())
    del table["gripper"]["velocity"]
    Path(path).write_text(yaml.safe_dump(table))
    assert RobotSpec.load(path).names == NAMES[:5]


def test_leader_begins_where_the_robot_is_and_brings_it_to_its_own_pose():
    hands = LeaderFollow(rate=10.0, catch_up=0.5)  # 0.05 rad a tick
    leader, robot = np.array([1.0, 0.0]), np.array([0.9, 0.3])
    command = hands.command(leader, robot)
    np.testing.assert_allclose(command, robot)
    np.testing.assert_allclose(hands.command(leader, command), [0.95, 0.25])
    np.testing.assert_allclose(hands.command(leader + 0.2, command), [1.2, 0.4])  # its own moves are followed at once
    hands.release()
    np.testing.assert_allclose(hands.command(leader, robot), robot)
    still = LeaderFollow(rate=10.0, catch_up=0.0)
    still.command(leader, robot)
    np.testing.assert_allclose(still.command(leader + 0.2, robot), robot + 0.2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("calibrate-arm", "so101", "port=x"), "robot-rl robot new so101 name=my_arm model=<file>"),
        (("calibrate-arm", "my_arm"), "say at which port it is: port="),
        (("calibrate-arm", "my_arm", "port=x", "reversed=elbow"), "has no such joint; did you mean elbow_flex?"),
        (("motors", "my_arm", "port=/dev/ttyNONE"), "there is no port /dev/ttyNONE"),
        (("motors", "my_arm", "port=x", "set=jaw"), "set=jaw: my_arm has no such joint"),
        (("leader", "my_arm"), "my_arm has not been calibrated: robot-rl robot calibrate-arm my_arm"),
        (("motors",), "say which card: robot-rl robot motors my_arm"),
    ],
)
def test_wrong_lines_are_answered_in_one_paragraph(words, said, robot_rl, tmp_path):
    my_card(tmp_path)
    done = robot_rl("robot", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "\n" not in done.stderr.strip()
