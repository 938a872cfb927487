"""What goes wrong with an arm of servos in the hands of its user; the servos are simulated down to the bytes."""
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: F811  (fixtures are imported by their names)

import signal

import numpy as np
import pytest
import yaml

pytest.importorskip("scservo_sdk", reason="ftservo-python-sdk is not installed (extra so101)")

from robot_rl.real.servos.bus import ServoError
from robot_rl.real.servos.driver import ServoDriver
from robot_rl.real.servos.registers import LOCK
from tests.real import servo_sim
from tests.real.servo_sim import OVERLOAD, Servo
from tests.real.test_servo_arm import MIDDLES, TURN, Drive, arm, calibrated, my_card, patience  # noqa: F401


def test_servo_that_was_without_power_for_less_than_our_patience_is_set_up_again(arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    place = drive.run(1).reading.position
    drive.until(lambda told: drive.driver.following, place)
    sim.servos[4].silent = True
    assert drive.run(1, place).reading is None
    sim.servos[4].cycle()
    sim.turn(5, MIDDLES[4] + 200)
    sim.servos[4].silent = False
    told = drive.until(lambda told: told.reading is not None, place)
    assert "wrist_roll is told to begin 0.31 rad" in told.status
    assert sim.servos[4].get(46, 2) == round(1.2 * 3.0 * TURN)
    assert sim.servos[4].get(40) == 0


def test_letting_go_reaches_every_servo_that_hears(arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec, limp=True)
    place = drive.run(1).reading.position
    drive.until(lambda told: drive.driver.following, place)
    sim.servos[0].silent = True
    with pytest.raises(ServoError, match="servo 1"):
        drive.driver.close()
    assert [servo.get(40) for servo in sim.servos] == [1, 0, 0, 0, 0, 0]


def test_end_of_a_push_that_one_packet_loses_is_said_again(arm, monkeypatch):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    place = drive.run(1).reading.position
    drive.until(lambda told: drive.driver.following, place)
    drive.run(1, place + 0.05)
    joints.read()  # answered behind the push, which nobody answers: it is in the servos now
    pushed = sim.servos[1].get(42, 2)
    with sim.lock:
        sim.servos[1].faults = OVERLOAD
        sim.servos[1].place = MIDDLES[1] - 50.0
    with monkeypatch.context() as lost:
        lost.setattr(joints.bus, "write_all", lambda *_: None)
        drive.run(1)
    assert sim.servos[1].get(42, 2) == pushed
    drive.run(2)
    assert sim.servos[1].get(42, 2) == sim.servos[1].told()


def test_fence_of_a_slow_joint_is_not_none(arm):
    sim, _, _, joints = arm
    joints.prepare(np.full(6, 1e-4))
    assert [servo.get(46, 2) for servo in sim.servos] == [1] * 6


def test_servo_that_a_killed_calibration_left_open_is_closed_before_it_is_driven(arm):
    sim, _, spec, joints = arm
    joints.bus.write(3, LOCK, 0)
    Drive(joints, spec)
    assert [servo.get(55) for servo in sim.servos] == [1] * 6


def test_ctrl_c_while_a_calibration_writes_leaves_all_as_it_was_and_says_so(robot_rl, tmp_path, monkeypatch):
    sim = servo_sim.arm()
    path = my_card(tmp_path)
    before, kept = path.read_text(), [servo.saved for servo in sim.servos]
    heard = sim._answer

    def third(number, instruction, data):
        if (number, instruction, data[:1]) == (3, servo_sim.WRITE, b"\x1f"):  # its homing
            sim._answer = heard
            signal.raise_signal(signal.SIGINT)
        return heard(number, instruction, data)

    monkeypatch.setattr(sim, "_answer", third)
    done = calibrated(robot_rl, tmp_path, sim, monkeypatch)
    sim.close()
    assert done.returncode == 2
    assert "neither card nor servos were changed; their torque is off" in done.stderr
    assert path.read_text() == before
    assert [servo.saved for servo in sim.servos] == kept
    assert [servo.get(55) for servo in sim.servos] == [1] * 6


def test_leader_that_is_turned_past_the_seam_of_its_encoder_goes_on(arm):
    _, made, _, joints = arm
    turn = made.motors["wrist_roll"]
    before = np.zeros(6)
    before[4] = turn.to_joint(turn.zero + 2040)
    after = np.zeros(6)
    after[4] = turn.to_joint(turn.zero + 2060)
    assert after[4] < -3.0  # alone it would be a swing of the follower through its whole range
    assert joints.beside(after, before)[4] == pytest.approx(2060 / TURN)


def test_late_answer_to_what_was_asked_before_is_not_taken_for_this_one(arm, monkeypatch):
    sim, _, _, joints = arm
    heard, said = sim._answer, []

    def late(number, instruction, data):
        if instruction == servo_sim.READ and not said:
            said.append(number)
            return servo_sim.packet(number, [0])  # of a write
        return heard(number, instruction, data)

    monkeypatch.setattr(sim, "_answer", late)
    assert joints.bus.ping(2) == 777
    said.clear()
    assert joints.bus.read(2, LOCK) == 1


def test_robot_that_is_taken_for_its_leader_is_not_let_go(arm):
    sim, _, _, joints = arm
    joints.release_leader()  # free already
    joints.drive(True)
    with pytest.raises(ServoError, match="a robot would drop if it were let go"):
        joints.release_leader()
    assert [servo.get(40) for servo in sim.servos] == [1] * 6


def test_free_lets_go_of_the_others_and_says_so(arm, robot_rl, monkeypatch):
    monkeypatch.setattr("robot_rl.real.servos.bus.ANSWER_MS", 60.0)
    sim, _, _, joints = arm
    joints.drive(True)
    joints.bus.close()
    done = robot_rl("robot", "motors", "my_arm", "free=true")
    assert "shoulder_pan: id 1, model 777" in done.stdout
    assert "torque on" not in done.stdout
    joints.bus._line.openPort()
    joints.drive(True)
    joints.bus.close()
    sim.servos[0].garbled = True
    assert robot_rl("robot", "motors", "my_arm", "free=true").returncode == 2
    assert [servo.get(40) for servo in sim.servos] == [0] * 6


def test_card_that_lacks_a_servo_is_calibrated_anew(arm, robot_rl, tmp_path):
    sim, *_ = arm
    path = tmp_path / "my_arm.yaml"
    table = yaml.safe_load(path.read_text())
    del table["servos"]["motors"]["elbow_flex"]
    path.write_text(yaml.safe_dump(table))
    done = robot_rl("robot", "calibrate-arm", "my_arm", f"port={sim.path}")
    assert "is used by another program" in done.stderr  # it came as far as the port, which this test has


def test_pulled_cable_is_one_sentence_and_its_return_is_no_jump(arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    place = drive.run(1).reading.position
    drive.run(3, place)
    sim.pull()
    told = drive.run(3, place)
    assert told.reading is None
    assert "its USB cable is out, or its board has lost power" in told.status
    assert "is gone" in drive.run(2, place, dt=0.6).status
    for servo in sim.servos:
        servo.cycle()  # its power was out, too
    sim.servos[4].place = MIDDLES[4] + 50.0
    sim.plug()
    told = drive.run(1, place, dt=0.6)
    assert told.reading.position[4] == pytest.approx(50 / TURN)
    assert told.status == "commands have gone on since it was stopped: reset and enable the supervisor"
    assert drive.run(20, place).status == told.status
    assert [servo.get(40) for servo in sim.servos] == [0] * 6
    assert sim.servos[4].get(46, 2) == round(1.2 * 3.0 * TURN)  # it has its fence again
    assert drive.run(15).status == "ok"  # nobody commands
    assert [servo.get(40) for servo in sim.servos] == [0] * 6
    drive.until(lambda told: drive.driver.following and abs(told.reading.position[4]) < 0.005, place)
    assert [servo.get(40) for servo in sim.servos] == [1] * 6


def test_another_arm_at_the_port_that_came_back_is_refused_by_name(arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    drive.run(1)
    sim.pull()
    drive.run(1)
    mine, sim.servos[1] = sim.servos[1], Servo(2)
    sim.plug()
    assert "servo 2 (shoulder_lift) keeps" in drive.run(1, dt=0.6).status
    assert "servo 2 (shoulder_lift) keeps" in drive.run(1).status
    sim.servos[1] = mine
    drive.until(lambda told: told.status == "ok")


def test_stop_from_outside_holds_where_the_arm_is_until_commands_begin_anew(arm):
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    place = drive.run(1).reading.position
    drive.until(lambda told: drive.driver.following, place)
    told = drive.driver.tick(drive.now, place + 0.08, drive.now, stop="a stranger publishes")
    assert told.status == "a stranger publishes"
    assert [servo.get(42, 2) for servo in sim.servos] == [servo.told() for servo in sim.servos]
    assert [servo.get(40) for servo in sim.servos] == [1] * 6
    assert "commands have gone on" in drive.run(20, place + 0.08).status
    np.testing.assert_allclose(joints.read().position, place, atol=0.005)
    drive.run(11)  # a pause
    drive.until(lambda told: abs(told.reading.position[2] - place[2] - 0.08) < 0.005, place + 0.08)


@pytest.mark.parametrize("timeout", [0.25, 0.0])
def test_a_command_of_before_a_stop_is_never_followed_behind_it(arm, timeout):
    """A pause ends the stop, and the last command is younger than the controller's timeout then."""
    sim, _, spec, joints = arm
    drive = Drive(joints, spec)
    drive.driver = ServoDriver(joints, spec.array("velocity"), timeout=timeout)
    place = drive.run(1).reading.position
    drive.until(lambda told: drive.driver.following, place)
    drive.sent = place + 0.08
    for _ in range(5):
        drive.now += 0.01
        drive.driver.tick(drive.now, drive.sent, drive.now, stop="a stranger publishes")
    drive.arrived = drive.now
    goals = [servo.get(42, 2) for servo in sim.servos]
    for _ in range(60):
        drive.run(1)
        assert not drive.driver.following
    assert [servo.get(42, 2) for servo in sim.servos] == goals
    drive.until(lambda told: drive.driver.following, place)
