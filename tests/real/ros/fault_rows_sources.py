"""Rows of the fault table: sources of commands, and people."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

import itertools
import os
import signal
import threading
import time

import numpy as np
from fault_table import HERE, Stub, now, row
from ros_harness import NAMES, wait
from sensor_msgs.msg import Joy
from std_msgs.msg import Bool, Empty


@row("01_policy_killed", stops=0.1, ends=("ARMED",), first=True)
def policy_killed(made):
    stub = Stub("policy", made)
    made.armed()
    stub.drive(made)
    since = now()
    stub.end()
    yield since
    here = np.array([made.driver.where()[name] for name in NAMES])
    made.station.driver.value = lambda t: here
    made.station.driver.on = True
    made.station.wait_state("ACTIVE", limit=15.0)  # another policy, and no reset


@row("02_policy_stopped_for_a_second", stops=0.1, ends=("ARMED", "ACTIVE"))
def policy_stopped(made):
    stub = Stub("policy", made)
    made.armed()
    stub.drive(made)
    since = now()
    os.kill(stub.process.pid, signal.SIGSTOP)
    try:
        yield since
        assert made.station.state == "ARMED"
        os.kill(stub.process.pid, signal.SIGCONT)
        time.sleep(0.5)
    finally:
        stub.end()


@row("03_half_rate")
def half_rate(made):
    made.active().station.driver.rate = 50.0
    yield now()
    time.sleep(1.0)
    assert "STOPPING" not in made.station.states


@row("03_flood", ends=("STOPPING", "ARMED", "ACTIVE"))
def flood(made):
    made.active().station.driver.rate = 1500.0
    yield now()
    wait(lambda: made.dropped("flood") > 0, what="a counted flood")
    assert float(made.told("loop")["rate"]) > 80.0


def _dropped(name, change, reason):
    @row(name, stops=0.1, ends=("ARMED", "ACTIVE"), first=name == "04_nan")
    def broken(made):
        before = made.moving().dropped(reason)
        made.station.driver.alter = lambda fields: {**fields, **change}
        yield now()
        wait(lambda: made.dropped(reason) > before, what=f"counted {reason}")


_dropped("04_nan", {"values": np.array([[0.0, np.nan, 0.0]])}, "not_finite")
_dropped("04_inf", {"values": np.array([[np.inf, 0.0, 0.0]])}, "not_finite")
_dropped("05_wrong_length", {"values": np.zeros((1, 2))}, "lengths")
_dropped("05_unknown_joint", {"names": ["j0", "j1", "jx"]}, "joint_names")
_dropped("05_double_joint", {"names": ["j0", "j1", "j1"]}, "joint_names")
_dropped("06_stamp_zero", {"stamp": 0.0}, "stamp")
_dropped("07_replayed", {"seq": 1}, "sequence")
_dropped("37_reversed_times", {"times": [0.2, 0.1], "values": np.zeros((2, 3))}, "times")


@row("04_huge")
def huge(made):
    made.active().station.driver.value = lambda t: np.array([1e300, *HERE[1:]])
    yield now()
    wait(lambda: made.driver.where()["j0"] > 1.9, what="the limit")


@row("05_permuted")
def permuted(made):
    made.active()
    made.station.driver.alter = lambda f: {**f, "names": ["j2", "j0", "j1"], "values": [HERE[[2, 0, 1]] + 0.05]}
    yield now()
    goal = dict(zip(NAMES, HERE + 0.05))
    wait(lambda: all(abs(made.driver.where()[name] - goal[name]) < 1e-3 for name in NAMES), what="the target")


def _one_odd_stamp(name, shift):
    @row(name)
    def odd(made):
        before, number = made.active().dropped("stamp"), itertools.count()
        # one in a quarter of a second: in a queue of one the next command takes the place of what was not read in time
        made.station.driver.alter = lambda f: (
            {**f, "stamp": f["stamp"] + shift, "values": [HERE + 0.09]} if next(number) % 25 == 1 else f
        )
        yield now()
        wait(lambda: made.dropped("stamp") > before, what="a counted stamp")
        assert made.driver.moved(-np.inf if not made.driver.truth else now() - 0.5) < 1e-3


_one_odd_stamp("06_stamp_an_hour_old", -3600.0)
_one_odd_stamp("06_stamp_of_the_future", 3600.0)
_one_odd_stamp("06_stamp_backwards", -0.5)


@row("08_step_of_ten_radians")
def step(made):
    made.active().station.driver.value = lambda t: np.full(3, 10.0)
    yield now()
    wait(lambda: min(made.driver.where().values()) > 1.97, what="the limit")


@row("09_square_wave")
def square_wave(made):
    made.active().station.driver.value = lambda t: np.full(3, 10.0) * (-1.0) ** made.station.driver.seq
    yield now()
    time.sleep(3.0)


@row("10_first_command_far", ends=("ARMED",))
def far(made):
    made.armed().station.driver.value = lambda t: HERE + 0.5
    made.station.driver.on = True
    since = now()
    yield since
    wait(lambda: "mismatch" in made.station.diagnostic("safety_supervisor: safety")[1], what="the warning")
    assert made.driver.moved(since) < 1e-3


@row("37_empty_chunk", stops=0.0, ends=("ARMED",))
def empty(made):
    made.moving().station.driver.alter = lambda f: {**f, "times": [], "values": np.zeros((0, 3))}
    yield now()


@row("37_late_chunks")
def chunks(made):
    made.active()
    late = [0.0]

    def chunk(fields):
        if made.station.driver.seq % 10:
            return None
        times = 0.05 * np.arange(1, 6)
        path = HERE + 0.05 * np.sin(2.0 * (fields["stamp"] + times - begin))[:, None]
        return {**fields, "stamp": fields["stamp"] - late[0], "times": (times + late[0]).tolist(), "values": path}

    begin = time.time()
    made.station.driver.alter = chunk
    yield now()
    for late[0] in (0.0, 0.05, 0.09):
        time.sleep(0.7)
        assert made.station.state == "ACTIVE"


# ---------------------------------------------------------------- people


@row("24_estop_topic", stops=0.0, ends=("ESTOP",), first=True)
def estop_topic(made):
    made.moving().station.estop.publish(Bool(data=True))
    yield now()
    made.station.estop.publish(Bool(data=False))
    time.sleep(0.7)
    assert made.station.state == "ESTOP"


@row("24_estop_service", stops=0.0, ends=("ESTOP",))
def estop_service(made):
    future = made.moving().station.services["safety_supervisor/estop"]
    since = now()
    made.station.call("safety_supervisor/estop")
    assert future is not None
    yield since


@row("24_estop_button", stops=0.0, ends=("ESTOP",))
def estop_button(made):
    made.processes.start("teleop_node", "realtime:=40", spec="foreign.yaml")
    pad = made.station.node.create_publisher(Joy, "joy", 1)
    try:
        wait(pad.get_subscription_count, limit=60.0, what="the teleoperation")
        end = now() + 1.0
        while now() < end:  # not pressed: a button that is held from the start does not count
            pad.publish(Joy(axes=[0.0] * 6, buttons=[0] * 8))
            time.sleep(0.02)
        made.moving()
        since = now()
        pad.publish(Joy(axes=[0.0] * 6, buttons=[0, 1, *[0] * 6]))
        yield since + 0.02  # the node looks 50 times a second
    finally:
        made.processes.end("teleop_node")
        made.station.node.destroy_publisher(pad)


@row("24_estop_heartbeat_ends", stops=0.5, ends=("ESTOP",))
def heartbeat(made):
    beat = made.station.node.create_publisher(Empty, "robot_rl/estop_heartbeat", 1)
    alive = threading.Event()

    def work():
        while not alive.wait(0.05):
            beat.publish(Empty())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    wait(beat.get_subscription_count, what="the supervisor")
    made.moving()
    made.station.driver.value = lambda t: 1.0 * np.sin(t) + 0.3  # it moves on for longer than the heartbeat's age
    since = now()
    alive.set()
    yield since
    thread.join()
    resume = threading.Event()
    threading.Thread(
        target=lambda: [beat.publish(Empty()) or time.sleep(0.05) for _ in iter(resume.is_set, True)], daemon=True
    ).start()
    wait(lambda: made.station.reset().success, limit=15.0, what="a reset")
    resume.set()
    made.replace = True  # one that has heard a heartbeat wants it for ever


@row("25_reset_while_pressed", stops=0.0, ends=("ESTOP",))
def reset_pressed(made):
    assert made.moving().station.reset().message == "nothing to reset"
    made.station.estop.publish(Bool(data=True))
    yield now()
    assert "estop is pressed" in made.station.reset().message


@row("26_old_commands_after_a_reset", stops=0.0, ends=("ESTOP",))
def old_commands(made):
    made.moving().station.estop.publish(Bool(data=True))
    yield now()
    stale = time.time()
    made.station.driver.alter = lambda fields: {**fields, "stamp": stale}
    made.station.estop.publish(Bool(data=False))
    wait(lambda: made.station.reset().success, limit=15.0, what="a reset")
    since = now()
    time.sleep(5.0)
    assert made.station.state == "IDLE"
    assert made.driver.moved(since) < 1e-3


def hold(made, seconds, value=None):
    """The dead-man's switch at 50 Hz, and the person's commands unless `value` is None."""
    station, end = made.station, now() + seconds
    while now() < end:
        station.takeover.publish(Bool(data=True))
        if value is not None:
            saved = station.driver.value, station.driver.tag
            station.driver.value, station.driver.tag = (lambda t: value), "hand"
            station.driver.once(station.teleop)
            station.driver.value, station.driver.tag = saved
        time.sleep(0.02)


@row("27_takeover_in_motion")
def takeover(made):
    made.moving()
    yield now()
    hold(made, 0.6, made.station.last.value)
    assert "human" in made.station.authority
    made.station.driver.value = lambda t: made.station.last.value
    made.station.takeover.publish(Bool(data=False))
    wait(lambda: made.station.authority[-1] == "policy", what="the policy's turn")


@row("28_takeover_without_commands", ends=("ACTIVE", "STOPPING", "ARMED"))
def takeover_silent(made):
    made.moving()
    hold(made, 0.2, made.station.last.value)
    made.station.authority.clear()
    yield now()
    hold(made, 1.0)
    assert "policy" not in made.station.authority
    assert made.driver.moved(now() - 0.2) < 1e-3
    made.station.driver.on = False
    made.station.takeover.publish(Bool(data=False))


@row("29_operator_killed", stops=0.3, ends=("ARMED",), first=True)
def operator_killed(made):
    stub = Stub("teleop", made)
    made.armed()
    stub.drive(made)
    since = now()
    stub.end()
    yield since
    wait(lambda: made.station.authority[-1] == "none", what="nobody's turn")
