"""Another's driver, default timeouts, and the truth from the driver: what may go wrong on a robot that is not ours."""
# pyright: reportOptionalMemberAccess=false

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from foreign_cell import START, SUPERVISOR
from foreign_driver import ForeignDriver
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.qos import DurabilityPolicy, LivelinessPolicy, QoSProfile
from ros_harness import FOREIGN_CLOCK, NAMES, SPEC, trajectory, wait
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import SetBool

from robot_rl.real.ros.doctor import examine
from robot_rl.real.ros.io import JointTrajectory, qos

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]
ORDER = ["j2", "j0", "j1"]


# ---------------------------------------------------------------- who else speaks


def test_a_second_supervisor_of_the_same_name_refuses_to_start(cell, processes):
    made = cell().active()
    began = time.monotonic()
    second = made.start(key="second")
    assert second.wait(30.0) == 2
    assert "another node is called /safety_supervisor" in processes.log("second")
    assert made.station.state == "ACTIVE"
    assert made.driver.moved(began) < 1e-3


def test_the_supervisor_has_no_shared_memory_to_wait_for(cell):
    """Fast DDS waits 0.33 s for the port of a node that comes, and states and e-stop wait with it."""
    tasks = Path("/proc", str(cell().idle().supervisor.pid), "task")
    names = {(task / "comm").read_text() for task in tasks.iterdir()}
    assert any(name.startswith("dds.udp") for name in names)
    assert not any(name.startswith("dds.shm") for name in names)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("topic", "kind", "profile"),
    [
        ("forward_command_controller/commands", Float64MultiArray, "hardware"),
        ("robot_rl/executed", JointTrajectory, "executed"),
        ("robot_rl/safety/state", String, "latched"),
    ],
)
def test_a_twin_of_the_same_name_on_a_topic_of_ours_is_a_fault_within_a_second(cell, another, topic, kind, profile):
    made = cell().active()
    twin = another("safety_supervisor")
    wait(lambda: twin.count_publishers("robot_rl/executed"), what="discovery of a new process, up to 3 s")
    since = time.monotonic()
    twin.create_publisher(kind, topic, qos(profile))
    made.station.wait_state("FAULT", limit=2.0)
    assert time.monotonic() - since < 1.5
    assert wait(made.fault, what="the fault's name") == "duplicate_publisher"
    assert not made.station.enable().success
    # a publisher is discovered before the name of its node: it counts at once and is named when that is known
    wait(lambda: f"/safety_supervisor on /{topic}" in made.station.enable().message, what="the twin's name")
    assert made.driver.moved(since) < 1e-3


def test_a_second_server_of_our_services_blocks_enabling(cell, another):
    made = cell().idle()
    another("impostor").create_service(SetBool, "/safety_supervisor/enable", lambda request, response: response)
    wait(
        lambda: "/safety_supervisor/enable" in made.station.diagnostic("safety_supervisor: safety")[1],
        what="the warning",
    )
    assert made.driver.moved(-np.inf) == 0.0


def test_two_policies_of_one_name_are_a_fault_and_only_the_first_was_heard(cell, another):
    made = cell().active()
    station, twin = made.station, another("policy")
    out = twin.create_publisher(JointTrajectory, "robot_rl/command/policy", qos("command"))
    wait(out.get_subscription_count, what="the supervisor")
    since = time.monotonic()
    far = np.array([[START[name] + 0.09 for name in NAMES]])
    end = since + 0.5
    while time.monotonic() < end and station.state == "ACTIVE":
        out.publish(
            trajectory(NAMES, time.time(), station.driver.tag, station.driver.seq + 1, [0.01], far, "positions")
        )
        time.sleep(0.01)
    station.wait_state("FAULT", limit=2.0)
    assert wait(made.fault, what="the fault's name") == "duplicate_source"
    assert made.driver.moved(since) < 1e-3


# ---------------------------------------------------------------- another joint order


def test_a_controller_of_another_joint_order_is_refused_at_configure(cell, processes):
    made = cell(driver={"joints": ORDER})
    assert made.supervisor.wait(30.0) == 2
    assert "reads arrays as j2, j0, j1, the RobotSpec sends j0, j1, j2" in processes.log("safety_supervisor_node")
    assert made.driver.moved(-np.inf) == 0.0


def test_a_controller_of_another_interface_is_refused_at_configure(cell, processes):
    made = cell(driver={"interface": "velocity"})
    assert made.supervisor.wait(30.0) == 2
    assert "takes velocity, the RobotSpec's forward_position sends position" in processes.log("safety_supervisor_node")


def test_a_controller_that_does_not_tell_its_order_blocks_enabling(cell):
    made = cell(driver={"joints": ORDER, "parameters": False})
    made.station.connected()
    wait(lambda: "does not tell its joints" in made.station.enable().message, what="the refusal")
    assert made.driver.moved(-np.inf) == 0.0


def test_a_driver_that_comes_back_with_another_order_is_not_enabled(cell):
    made = cell().armed()
    made.driver.close()
    made.station.wait_state("FAULT", limit=10.0)
    made.driver = ForeignDriver(ORDER, START)
    wait(lambda: "reads arrays as j2, j0, j1" in made.station.reset().message, limit=40.0, what="the refusal")
    assert made.driver.moved(-np.inf) == 0.0


def test_a_driver_that_is_replaced_while_idle_is_not_enabled_a_moment_later(cell):
    made = cell().idle()
    made.driver.close()
    made.driver = ForeignDriver(ORDER, START)

    def refused() -> bool:
        answers = made.station.enable(), made.station.reset()
        assert not answers[0].success, answers
        return any("reads arrays as j2, j0, j1" in answer.message for answer in answers)

    wait(refused, limit=40.0, what="the refusal")
    assert made.driver.moved(-np.inf) == 0.0


def test_a_robot_that_leaves_its_place_while_armed_is_halted(cell):
    # nobody could ask the controller, and somebody said that its order were known: 0.8 rad away, the wrong way
    driver = {"joints": ORDER, "parameters": False, "timeout": 0.1, "speed": 1.0}
    made = cell(driver=driver, parameters=("allow_unread_controller:=true",)).idle()
    since = time.monotonic()
    assert made.station.enable().success
    made.station.wait_state("FAULT", limit=3.0)
    wait(lambda: made.fault() == "left_place", what="the fault's name")
    time.sleep(0.5)
    # 0.05 rad of tolerance, 0.1 s until the silent controller stands, and two periods, at 1 rad/s
    assert made.driver.moved(since) < 0.05 + 0.1 + 0.1
    assert time.monotonic() - made.driver.commands[-1][0] > 0.3  # nothing more is sent


# ---------------------------------------------------------------- files of parameters


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["state_timeut: 0.2"], "state_timeut is no parameter of safety_supervisor; did you mean state_timeout?"),
        (["lead_soft: 0.05", "lead_soft: 0.2"], "lead_soft stands in line 3 and again in line 4"),
        (["state_timeout: 30.0"], "state_timeout is 30, more than 1"),
        (["state_timeout: 1"], "state_timeout"),  # a whole number where a float is meant
    ],
    ids=["misspelt", "twice", "implausible", "type"],
)
def test_a_wrong_file_of_safety_parameters_starts_no_supervisor(processes, lines, words):
    (processes.folder / "foreign.yaml").write_text(SPEC.format(mode="forward_position", timeout=0.0))
    path = processes.folder / "params.yaml"
    path.write_text("\n".join(["/**/safety_supervisor:", "  ros__parameters:", *(f"    {line}" for line in lines)]))
    made = processes.start(
        "safety_supervisor_node", *SUPERVISOR, spec="foreign.yaml", args=("--params-file", str(path)), key="wrong"
    )
    assert made.wait(60.0) == 2
    said = processes.log("wrong")
    assert words in said
    assert "Traceback" not in said
    (processes.folder / "wrong.log").unlink()


# ---------------------------------------------------------------- listeners


def test_a_listener_of_another_qos_is_told_and_forgotten_when_it_has_gone(cell, another):
    made = cell().active()
    asks = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    node = another("monitor")
    stranger = node.create_subscription(JointTrajectory, "robot_rl/executed", lambda _: None, asks)
    told = lambda: made.station.diagnostic("safety_supervisor: listeners")  # noqa: E731
    wait(lambda: told()[0] == 1 and "robot_rl/executed" in told()[1], what="a warning of it")
    assert made.station.diagnostic("safety_supervisor: inputs")[0] == 0  # it takes nothing from us
    assert made.station.state == "ACTIVE"
    node.destroy_subscription(stranger)
    wait(lambda: told()[0] == 0, limit=15.0, what="its end")


@pytest.mark.timing
def test_a_driver_that_asks_for_signs_of_life_learns_that_the_supervisor_has_died(cell, another):
    made = cell().idle()  # at rest nothing is sent, and it lives all the same
    asks = QoSProfile(
        depth=1,
        liveliness=LivelinessPolicy.MANUAL_BY_TOPIC,
        liveliness_lease_duration=Duration(seconds=0.5),
    )
    alive = []
    events = SubscriptionEventCallbacks(liveliness=lambda event: alive.append((time.monotonic(), event.alive_count)))
    topic = "forward_command_controller/commands"
    another("watch").create_subscription(Float64MultiArray, topic, lambda _: None, asks, event_callbacks=events)
    wait(lambda: alive and alive[-1][1] == 1, what="a supervisor that lives")
    time.sleep(1.5)
    assert alive[-1][1] == 1
    since = time.monotonic()
    made.supervisor.send_signal(signal.SIGSTOP)  # hangs: no socket closes, no endpoint leaves
    wait(lambda: alive[-1][1] == 0, limit=5.0, what="the news")
    assert alive[-1][0] - since < 0.5 + 0.3
    made.supervisor.kill()


# ---------------------------------------------------------------- exceptions


def test_a_timeout_of_zero_is_refused_and_the_supervisor_goes_on(cell):
    made = cell().active()
    for name in ("command_timeout", "state_timeout", "teleop_timeout", "takeover_timeout"):
        assert made.station.set("safety_supervisor", **{name: 0.0})
        assert made.station.set("safety_supervisor", **{name: -1.0})
    time.sleep(0.3)
    assert made.supervisor.poll() is None
    assert made.station.state == "ACTIVE"


def test_an_exception_in_a_callback_brakes_is_counted_and_leaves_the_supervisor_alive(cell):
    made = cell(parameters=("fault_injection:=true",)).active()
    made.station.inject_out.publish(String(data="busy"))  # "busy" without seconds: IndexError in the callback
    made.station.wait_state("FAULT", limit=3.0)
    # counted at once, and a fault at the next tick: the diagnostics may be told between the two
    wait(lambda: made.fault() == "internal", what="the fault")
    assert made.station.diagnostic("safety_supervisor: safety")[2].get("callback_errors") == "1"
    assert made.supervisor.poll() is None
    wait(lambda: made.station.reset().success, what="a reset: the callbacks live")


# ---------------------------------------------------------------- what the robot tells of itself


@pytest.mark.timing
def test_frozen_states_under_fresh_stamps_end_the_motion_of_a_policy_of_small_steps(cell):
    made = cell().active()
    made.station.driver.value = lambda t: made.station.position + 0.02  # a small step from what is measured, always
    wait(lambda: made.driver.moved(-np.inf) > 0.05, what="motion")
    since, where = time.monotonic(), made.driver.where()
    made.driver.freeze_in_motion()  # at rest, with a command of one small step, it could as well be blocked
    made.station.wait_state("FAULT", limit=3.0)
    assert wait(made.fault, what="the fault's name") == "state_frozen"
    # the command was at most 0.02 rad and the way of its brake from 1 rad/s, 0.1 rad, ahead of what was told last
    assert max(abs(made.driver.where()[name] - where[name]) for name in NAMES) < 0.12
    assert time.monotonic() - since < 3.0


# ---------------------------------------------------------------- dead time


@pytest.mark.timing
@pytest.mark.parametrize("lag", [0.03, 0.08])
def test_in_velocity_mode_no_limit_is_passed_by_a_driver_with_dead_time(cell, lag):
    spec = SPEC.format(mode="forward_velocity", timeout=0.3).replace("dead_time: 0.03", f"dead_time: {lag}")
    driver = {"interface": "velocity", "lag": lag, "timeout": 0.3}
    made = cell(spec=spec, driver=driver).armed()
    for sign in (1.0, -1.0):  # to one end at full speed, and from there to the other
        made.station.driver.alter = lambda fields: {**fields, "field": "velocities", "values": np.full((1, 3), sign)}  # noqa: B023
        made.station.driver.on = True
        wait(lambda: (sign * made.driver.position).min() > 1.8, limit=15.0, what="the end of the ranges")  # noqa: B023
        time.sleep(0.5)
        assert made.station.state == "ACTIVE"
    _, path = made.driver.path()
    assert np.abs(path).max() <= 2.0


# ---------------------------------------------------------------- before the first motion


def doctor(made):
    return examine(made.processes.folder / "foreign.yaml", listen=3.0, timing=False, wiggle=True)


@pytest.mark.parametrize("mode", ["position", "velocity"])
def test_doctor_wiggles_each_joint_sees_the_right_one_and_measures_how_late(cell, mode):
    spec = SPEC.format(mode=f"forward_{mode}", timeout=0.3).replace("dead_time: 0.03", "dead_time: 0.1")
    made = cell(spec=spec, driver={"interface": mode, "lag": 0.08, "timeout": 0.3}).idle()
    since = time.monotonic()
    found = doctor(made)
    assert found.problems == [], found.text()
    assert list(found.dead_time) == NAMES
    # 80 ms in the driver, up to a period each in policy, supervisor and joint states, and the limiter
    assert all(0.075 <= late <= 0.16 for late in found.dead_time.values()), found.dead_time
    assert 0.005 < made.driver.moved(since) < 0.02
    assert "no commands: the joints stand" in found.text()
    made.station.wait_state("IDLE", "STARTUP")


@pytest.mark.parametrize("wrong", ["order", "sign", "still", "slow"])
def test_doctor_names_what_a_wiggle_shows_to_be_wrong(cell, wrong):
    made = cell(driver={"start": dict.fromkeys(NAMES, 0.0)}).idle()
    if wrong == "order":  # at one place, so that holding moves nothing
        made.driver.spoken = lambda name: {"j0": "j1", "j1": "j0"}.get(name, name)
    elif wrong == "sign":
        made.driver.shows = lambda value: -value
    elif wrong == "still":
        made.driver.moves = lambda step: 0.0 * step
    else:
        made.driver.lag = 0.15
    found = doctor(made)
    words = {
        "order": "told to move j0, the robot moved j1",
        "sign": "j0 moves the other way",
        "still": "told to move j0 by 0.01 rad, it moved by 0.0000",
        "slow": "the RobotSpec says dead_time 0.03, measured 0.1",
    }
    assert any(words[wrong] in line for line in found.problems), found.text()


def test_doctor_names_a_controller_that_does_not_notice_silence(cell):
    spec = SPEC.format(mode="forward_position", timeout=0.3).replace("dead_time: 0.03", "dead_time: 0.1")
    made = cell(spec=spec, driver={"timeout": 0.0}).idle()
    found = doctor(made)
    assert any(
        "controller_timeout 0.3, but /forward_command_controller says nothing" in line for line in found.problems
    )
    made.station.wait_state("IDLE")  # and it is active again


# ---------------------------------------------------------------- ages


def test_states_of_this_host_that_are_an_hour_old_are_not_fresh(cell):
    made = cell()
    made.driver.stamp = lambda now: now - 3600.0
    made.station.connected()
    wait(lambda: made.station.diagnostic("safety_supervisor: inputs")[0] == 2, what="an error of the inputs")
    time.sleep(1.0)
    assert made.station.state == "STARTUP"
    assert float(made.station.diagnostic("safety_supervisor: inputs")[2]["age_j0_ms"]) > 3.5e6
    assert "clock: foreign" in made.station.diagnostic("safety_supervisor: inputs")[1]


def test_states_of_another_clock_may_be_an_hour_off(cell):
    made = cell(spec=SPEC.format(mode="forward_position", timeout=0.0) + FOREIGN_CLOCK)
    made.driver.stamp = lambda now: now - 3600.0
    made.armed()


@pytest.mark.timing
@pytest.mark.parametrize("clock", ["", FOREIGN_CLOCK], ids=["this_host", "another_host"])
def test_a_latency_that_grows_is_seen_and_ends_the_motion(cell, clock):
    made = cell(spec=SPEC.format(mode="forward_position", timeout=0.0) + clock).active()
    since = time.monotonic()
    made.driver.delay = lambda: 0.03 * (time.monotonic() - since)
    # 0.1 s of age are reached after 3.4 s at the latest (the estimate may rise by 0.2 ms/s), by ordinary latency sooner
    made.station.wait_state("FAULT", limit=8.0)
    assert 1.0 < time.monotonic() - since < 4.5
    wait(lambda: made.fault() == "state_stale", what="the fault's name")
