"""Two robots in namespaces, one of them in simulated time, over DDS."""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

import time

import numpy as np
import pytest
from ros_harness import RT, SUPERVISOR, Station, wait
from rosgraph_msgs.msg import Clock

from robot_rl.real.ros.io import seconds

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]
SLOW = "rate:=50.0"  # four processes with real-time priority have to leave room for us


class Time:
    """The simulated time that a station's node hears."""

    def __init__(self, station):
        self.now = 0.0
        station.node.create_subscription(Clock, "/clock", lambda m: setattr(self, "now", seconds(m.clock)), 1)


@pytest.fixture(scope="module")
def pair(processes):
    """Two robots of one kind: `left` lives in simulated time, `right` in that of the wall."""
    stations = {}
    for name, time_of in (("left", ("publish_clock:=true",)), ("right", ())):
        space = ("-r", f"__ns:=/{name}")
        clock = ("use_sim_time:=true",) if time_of else ()
        processes.start("sim_robot_node", RT, SLOW, *time_of, key=f"{name}_robot", args=space)
        processes.start("safety_supervisor_node", *SUPERVISOR, SLOW, *clock, key=f"{name}_supervisor", args=space)
        stations[name] = Station(name)
    left = Time(stations["left"])
    stations["left"].driver.alter = stations["left"].usual = lambda fields: {**fields, "stamp": left.now}
    yield stations["left"], stations["right"], left
    for name, station in stations.items():
        station.close()
        processes.end(f"{name}_supervisor")
        processes.end(f"{name}_robot")


def test_two_robots_in_namespaces_know_nothing_of_each_other(pair):
    left, right, clock = pair
    for station in (left, right):
        station.connected().wait_state("IDLE", limit=90.0)
    wait(lambda: clock.now > 0.0, limit=30.0, what="simulated time")
    assert left.enable().success
    left.driver.alter = left.usual
    left.moving()
    wait(lambda: left.position.min() > 0.3, what="the left one's motion")
    assert right.state == "IDLE"
    assert np.abs(right.position).max() < 1e-6
    assert right.enable().success
    right.active(lambda t: np.zeros(3))
    left.call("safety_supervisor/estop")
    left.wait_state("ESTOP")
    time.sleep(0.3)
    assert right.state == "ACTIVE"
    wait(lambda: left.diagnostic("safety_supervisor: safety")[2].get("state") == "ESTOP", what="left's diagnostics")
    told = "safety_supervisor: safety"  # once a second, told apart by their hardware id
    wait(lambda: right.diagnostic(told)[2].get("state") == "ACTIVE", what="right's diagnostics")
    assert left.diagnostic(told)[2]["state"] == "ESTOP"
    right.quiet()


def test_21_clock_backwards_is_a_soft_stop_and_offsets_are_learnt_anew(pair):
    left, right, clock = pair
    left.ready(arm=False)
    left.driver.alter = left.usual
    wait(lambda: left.enable().success, what="enable")
    left.active(lambda t: np.zeros(3))
    right.ready().active()
    wait(lambda: clock.now > 3.0, what="three simulated seconds")
    left.driver.value = lambda t: np.full(3, 1.5)
    wait(lambda: np.abs(left.last.velocity).min() > 0.5, what="motion")
    before, since = clock.now, time.monotonic()
    left.states.clear()
    right.states.clear()
    left.inject(clock_back=2.0)
    wait(lambda: "STOPPING" in left.states, what="a soft stop")
    left.driver.on = False
    left.stopped_after(since)
    assert clock.now < before
    left.wait_state("ARMED")  # not latched
    here = left.last.value
    left.active(lambda t: here)  # goes on without a reset, in the new time
    time.sleep(0.3)
    assert left.state == "ACTIVE"
    age = float(left.diagnostic("safety_supervisor: inputs")[2]["age_j0_ms"])
    assert age < 150.0  # not two seconds
    assert set(right.states) <= {"ACTIVE"}
    left.check_limits()
    left.quiet()
    right.quiet()


def test_a_policy_node_in_each_namespace_drives_its_own_robot_and_a_stop_of_one_is_not_the_others(pair, processes):
    """Policies as processes; the left one, like its robot and supervisor, in simulated time."""
    robots = dict(zip(("left", "right"), pair))
    for name, station in robots.items():
        station.ready(arm=False)
        (processes.folder / "good").mkdir(exist_ok=True)
        clock = ("use_sim_time:=true",) if name == "left" else ()
        given = (RT, SLOW, "autostart:=true", f"policy_path:={processes.folder / 'good'}", *clock)
        processes.start("policy_node", *given, key=f"{name}_policy", args=("-r", f"__ns:=/{name}"))
    try:
        for station in robots.values():
            wait(lambda station=station: "policy: policy" in station.diagnostics, limit=90.0, what="a policy")
            wait(lambda station=station: station.enable().success, what="enable")
        left, right = robots.values()
        for station in (left, right):  # to the 0.5 rad of `good`
            station.wait_state("ACTIVE", limit=30.0)
            station.until(lambda station=station: np.allclose(station.position, 0.5, atol=0.02), 20.0, "the target")
            assert station.last.trace.startswith("good.")
        right.states.clear()
        right.executed.clear()
        left.call("safety_supervisor/estop")
        left.wait_state("ESTOP")
        time.sleep(1.0)
        assert set(right.states) <= {"ACTIVE"}
        assert len(right.executed) > 30  # its policy goes on
        assert right.last.authority == "policy"
        assert processes.end("left_policy") == 0
        time.sleep(0.5)
        assert right.state == "ACTIVE"
        assert right.last.trace.startswith("good.")
    finally:
        for name in robots:
            processes.end(f"{name}_policy")
