"""The fault-injection list over real DDS with real processes; the row number is in each name."""

import signal
import time

import numpy as np
import pytest
from ros_harness import SLACK, SPEC, STOP, SUPERVISOR, TIMEOUT, wait
from std_msgs.msg import Bool, Float64MultiArray, String

pytestmark = pytest.mark.ros


def drops(live):
    return {k: int(v) for k, v in live.diagnostic("safety_supervisor: safety")[2].items() if k.startswith("dropped_")}


@pytest.mark.timing
def test_01_silent_policy_soft_stop_in_time_and_recovers_without_reset(live):
    live.moving()
    since = time.monotonic()
    live.driver.on = False
    live.stopped_after(since)
    live.wait_state("ARMED")
    here = live.last.value
    live.active(lambda t: here)
    live.check_limits()


@pytest.mark.timing
@pytest.mark.parametrize("rate", [50.0, 1500.0])
def test_03_half_rate_runs_and_flood_is_a_soft_stop(live, rate):
    live.active()
    live.states.clear()
    live.driver.rate = rate
    if rate < 100.0:
        time.sleep(1.0)
        assert set(live.states) <= {"ACTIVE"}
    else:
        wait(lambda: "STOPPING" in live.states or "ARMED" in live.states, what="a soft stop of the flood")
        wait(lambda: drops(live).get("dropped_flood", 0) > 0, what="counted flood")
        assert float(live.diagnostic("safety_supervisor: loop")[2]["rate"]) > 80.0
    live.check_limits()


@pytest.mark.parametrize(
    ("row", "change", "reason"),
    [
        (4, {"values": np.array([[0.0, np.nan, 0.0]])}, "not_finite"),
        (4, {"values": np.array([[np.inf, 0.0, 0.0]])}, "not_finite"),
        (5, {"values": np.zeros((1, 2))}, "lengths"),
        (5, {"names": ["j0", "j1", "jx"]}, "joint_names"),
        (5, {"names": ["j0", "j1", "j1"]}, "joint_names"),
        (6, {"stamp": 0.0}, "stamp"),
        (7, {"seq": 1}, "sequence"),
        (37, {"times": [0.2, 0.1], "values": np.zeros((2, 3))}, "times"),
    ],
    ids=lambda x: str(x) if isinstance(x, (int, str)) else next(iter(x)),
)
def test_04_05_06_07_bad_messages_are_dropped_counted_and_ten_are_a_soft_stop(live, row, change, reason):
    live.active()
    before = drops(live).get(f"dropped_{reason}", 0)

    live.states.clear()
    live.driver.alter = lambda fields: {**fields, **change}
    wait(lambda: "ARMED" in live.states or "STOPPING" in live.states, what="a soft stop")
    wait(lambda: drops(live).get(f"dropped_{reason}", 0) > before, what=f"counted {reason}")
    live.driver.alter = lambda fields: fields
    live.wait_state("ACTIVE")  # no reset needed
    live.check_limits()


@pytest.mark.parametrize("shift", [-3600.0, 3600.0, -0.5], ids=["old", "future", "backwards"])
def test_06_stamp_far_off_is_dropped_and_the_motion_goes_on(live, shift):
    live.active()
    before = drops(live).get("dropped_stamp", 0)
    live.states.clear()
    odd = iter((False, True, *[False] * 10**6))
    live.driver.alter = lambda f: {**f, "stamp": f["stamp"] + shift, "values": [[1.0] * 3]} if next(odd) else f
    wait(lambda: drops(live).get("dropped_stamp", 0) > before, what="a counted stamp")
    assert set(live.states) <= {"ACTIVE"}
    assert np.abs(live.last.value).max() < 1e-6
    live.check_limits()


def test_04_huge_value_is_limited(live):
    live.active()
    live.driver.value = lambda t: np.array([1e300, 0.0, 0.0])
    wait(lambda: live.last.value[0] > 0.5)
    assert live.state == "ACTIVE"
    live.check_limits()


def test_05_permuted_joints_are_put_in_order(live):
    live.active()
    live.driver.value = lambda t: np.array([0.3, 0.1, 0.2])
    live.driver.alter = lambda f: {**f, "names": ["j2", "j0", "j1"]}
    wait(lambda: np.allclose(live.last.value, [0.1, 0.2, 0.3], atol=1e-6))
    live.check_limits()


@pytest.mark.timing
def test_08_step_of_ten_radians_is_approached_within_limits(live):
    live.active()
    live.driver.value = lambda t: np.full(3, 10.0)
    wait(lambda: np.allclose(live.last.value, 1.98, atol=1e-6))
    assert any("c" in item.flags for _, item in live.executed)
    live.check_limits()


@pytest.mark.timing
@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_09_square_wave_at_nyquist_never_leaves_the_limits(live, seconds):
    live.active()
    live.driver.value = lambda t: np.full(3, 10.0) * (-1.0) ** live.driver.seq
    time.sleep(seconds)
    assert live.state == "ACTIVE"
    assert len(live.executed) > 50.0 * seconds
    live.check_limits()


def test_10_first_command_far_from_the_robot_stays_armed_with_a_warning(live):
    live.driver.value = lambda t: np.full(3, 0.5)
    live.driver.on = True
    wait(lambda: "mismatch" in live.diagnostic("safety_supervisor: safety")[1], what="the warning")
    assert live.diagnostic("safety_supervisor: safety")[0] == 1
    assert live.state == "ARMED"
    assert np.abs(live.last.value).max() < 1e-3


@pytest.mark.timing
def test_11_joint_states_stop_fault_in_time_and_no_recovery_by_itself(live):
    live.moving()
    since = time.monotonic()
    live.inject(freeze=True)
    live.wait_state("FAULT", limit=TIMEOUT + SLACK)
    live.stopped_after(since, TIMEOUT + STOP + SLACK)
    wait(lambda: live.diagnostic("safety_supervisor: safety")[2].get("fault") == "state_stale")
    assert live.diagnostic("safety_supervisor: safety")[0] == 2
    live.inject(freeze=False)
    time.sleep(0.7)
    assert live.state == "FAULT"
    live.check_limits()


@pytest.mark.timing
def test_12_joint_states_never_start(live, processes):
    processes.end("sim_robot_node")
    processes.end("safety_supervisor_node")
    live.states.clear()
    live.diagnostics.clear()
    processes.start("safety_supervisor_node", *SUPERVISOR_QUICK)
    try:
        live.wait_state("STARTUP", limit=60.0)  # a process has to start
        wait(lambda: live.diagnostic("safety_supervisor: safety")[0] == 2, what="an error in the diagnostics")
        assert "joint_states never came" in live.diagnostic("safety_supervisor: safety")[1]
        answer = live.enable()
        assert not answer.success
        assert "state_never" in answer.message
    finally:  # the tests that follow want one with their own patience
        processes.end("safety_supervisor_node")


SUPERVISOR_QUICK = ("autostart:=true", "first_message_timeout:=0.5", "realtime:=40")


@pytest.mark.timing
@pytest.mark.parametrize(
    ("row", "change", "fault"),
    [
        (13, {"repeat": True}, {"state_frozen"}),
        (14, {"jump": 1.0}, {"state_jump"}),
        (15, {"nan": True}, {"state_nonfinite"}),
        (16, {"missing": "j1"}, {"state_stale", "state_name_missing"}),
        (22, {"blocked": True}, {"tracking"}),
        (23, {"push": 2.1}, {"limit_measured", "state_jump", "velocity_measured"}),
    ],
    ids=["13_frozen", "14_jump", "15_nan", "16_missing", "22_blocked", "23_push"],
)
def test_13_to_23_bad_state_latches_its_fault(live, row, change, fault):
    live.moving()
    since = time.monotonic()
    if (
        row == 22
    ):  # joints that stand still truly, but are measured: without noise nobody could tell them from frozen ones
        live.set("sim_robot", noise=1e-6)
    live.inject(**change)
    live.wait_state("FAULT", limit=5.0)
    live.stopped_after(since, 4.0 + SLACK)
    found = wait(lambda: live.diagnostic("safety_supervisor: safety")[2].get("fault"), what="a fault")
    assert found in fault
    if row == 22:
        assert (
            max(np.abs(item.value - live.position).max() for _, item in live.executed[-5:]) < 0.25
        )  # lead_soft + v^2 / 2a
        live.inject(blocked=False)
        time.sleep(0.5)
        assert live.state == "FAULT"
    live.check_limits()


def test_16_reordered_joint_states_change_nothing(live):
    live.inject(reverse=True)
    live.moving()
    wait(lambda: live.position.min() > 0.2)
    assert live.state == "ACTIVE"


def test_17_two_publishers_with_half_of_the_joints_are_merged(live):
    live.inject(split=True)
    live.moving()
    wait(lambda: live.last.value.min() > 0.5)
    assert live.state == "ACTIVE"
    assert "age_j2_ms" in live.diagnostic("safety_supervisor: inputs")[2]


@pytest.mark.timing
def test_18_delayed_jittered_lossy_states_run_and_ages_are_reported(live):
    live.set("sim_robot", obs_delay=0.08, obs_jitter=0.04, drop_prob=0.2)
    live.active(lambda t: np.full(3, 0.0))
    begin = time.time()
    live.driver.value = lambda t: np.full(3, 0.1 * np.sin(t - begin))
    time.sleep(1.5)
    assert live.state == "ACTIVE"
    live.check_limits()


@pytest.mark.timing
@pytest.mark.parametrize("offset", [5.0, -5.0])
def test_19_clock_offset_of_the_robot_is_learnt(live, offset):
    live.inject(clock_offset=offset)
    time.sleep(0.5)
    live.active()
    time.sleep(0.6)
    assert live.state == "ACTIVE"
    age = float(live.diagnostic("safety_supervisor: inputs")[2]["age_j0_ms"])
    assert age < 150.0  # not five seconds


@pytest.mark.timing
def test_20_clock_step_while_active_is_no_stop_but_a_warning(live):
    live.active()
    before = int(live.diagnostic("safety_supervisor: inputs")[2].get("clock_faults", 0))
    live.states.clear()
    live.inject(clock_offset=1.0)
    time.sleep(0.3)
    live.inject(clock_offset=0.0)
    wait(lambda: int(live.diagnostic("safety_supervisor: inputs")[2]["clock_faults"]) > before, what="clock faults")
    assert set(live.states) <= {"ACTIVE"}


@pytest.mark.timing
@pytest.mark.parametrize("way", ["topic", "service"])
def test_24_estop_while_moving_latches_and_release_clears_nothing(live, way):
    live.moving()
    since = time.monotonic()
    if way == "topic":
        live.estop.publish(Bool(data=True))
    else:
        assert live.call("safety_supervisor/estop").success
    live.wait_state("ESTOP", limit=SLACK)
    live.stopped_after(since, 0.2 + 0.02 + SLACK)
    live.estop.publish(Bool(data=False))
    time.sleep(0.7)
    assert live.state == "ESTOP"
    live.check_limits()


def test_25_reset_is_refused_with_reasons(live):
    answer = live.reset()
    assert not answer.success
    assert answer.message == "nothing to reset"
    live.estop.publish(Bool(data=True))
    live.wait_state("ESTOP")
    time.sleep(0.7)
    answer = live.reset()
    assert not answer.success
    assert "estop is pressed" in answer.message
    live.estop.publish(Bool(data=False))
    wait(lambda: live.reset().success)
    live.wait_state("IDLE")
    assert live.reset().message == "nothing to reset"
    wait(lambda: live.enable().success, what="enable")
    live.active()
    answer = live.reset()
    assert (answer.success, answer.message, live.state) == (False, "nothing to reset", "ACTIVE")


def test_26_after_a_reset_old_commands_move_nothing(live):
    live.moving()
    live.call("safety_supervisor/estop")
    live.wait_state("ESTOP")
    wait(lambda: live.reset().success)
    live.wait_state("IDLE")
    stale = time.time()
    live.driver.alter = lambda fields: {**fields, "stamp": stale}
    where = live.position
    time.sleep(1.0)
    assert live.state == "IDLE"
    assert np.abs(live.position - where).max() < 1e-3


def hold(live, seconds, held=True, value=None, each=None):
    """The operator's heartbeat at 50 Hz, with commands unless `value` is None."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        live.takeover.publish(Bool(data=held))
        if value is not None:
            saved, live.driver.value = live.driver.value, (lambda t: value)
            tag, live.driver.tag = live.driver.tag, "hand"
            live.driver.once(live.teleop)
            live.driver.value, live.driver.tag = saved, tag
        time.sleep(0.02)


@pytest.mark.timing
def test_27_takeover_in_mid_motion_is_continuous_both_ways(live):
    live.moving()
    hold(live, 0.6, value=live.last.value)
    assert "human" in live.authority
    live.driver.value = lambda t: live.last.value
    hold(live, 0.3, held=False)
    wait(lambda: live.authority[-1] == "policy", what="the policy's turn")
    assert {"policy", "human"} <= {item.authority for _, item in live.executed}
    live.check_limits()


def test_28_takeover_without_commands_holds_and_never_falls_back(live):
    live.moving()
    hold(live, 0.2, value=live.last.value)
    live.authority.clear()
    hold(live, 1.0)
    assert "policy" not in live.authority
    assert np.abs(live.last.velocity).max() < 1e-4
    live.check_limits()


@pytest.mark.timing
def test_29_operator_falls_silent_with_takeover_held_soft_stop(live):
    live.moving()
    hold(live, 0.3, value=np.full(3, 1.5))
    live.driver.on = False
    since = time.monotonic()
    live.stopped_after(since, 0.3 + STOP + SLACK)
    live.wait_state("ARMED")
    wait(lambda: live.authority[-1] == "none")
    live.check_limits()


def test_31_exception_inside_the_loop_brakes_and_latches(live):
    live.moving()
    since = time.monotonic()
    live.inject_out.publish(String(data="exception"))
    live.wait_state("FAULT", limit=2.0)
    live.stopped_after(since, 0.3 + SLACK)
    wait(lambda: live.diagnostic("safety_supervisor: safety")[2].get("fault") == "internal")
    live.check_limits()


@pytest.mark.timing
def test_32_starved_supervisor_is_loop_overrun(live):
    live.active()
    live.inject_out.publish(String(data="busy 0.7"))
    live.wait_state("FAULT", limit=3.0)
    faults = wait(lambda: live.diagnostic("safety_supervisor: safety")[2].get("faults"), what="faults")
    assert "loop_overrun" in faults or "state_stale" in faults


def test_33_second_publisher_on_the_command_topic_is_a_fault(live):
    live.active()
    rival = live.node.create_publisher(Float64MultiArray, "forward_command_controller/commands", 1)
    try:
        live.wait_state("FAULT", limit=2.0)
        wait(lambda: live.diagnostic("safety_supervisor: safety")[2].get("fault") == "duplicate_publisher")
        assert not live.reset().success or not live.enable().success
    finally:
        live.node.destroy_publisher(rival)
    live.check_limits()


def test_34_controller_disappears_is_a_fault(live, processes):
    live.active()
    processes.end("sim_robot_node", signal.SIGKILL)
    live.wait_state("FAULT", limit=15.0)
    found = wait(lambda: live.diagnostic("safety_supervisor: safety")[2].get("faults"))
    assert "controller_gone" in found or "state_stale" in found


def test_36_timeouts_may_only_be_lowered(live):
    assert live.set("safety_supervisor", command_timeout=5.0)
    assert not live.set("safety_supervisor", takeover_timeout=0.29)
    assert live.set("safety_supervisor", rate=50.0)  # read-only


@pytest.mark.timing
def test_37_chunks_late_empty_overlapping_stay_continuous(live):
    live.active()
    begin = time.time()

    def chunk(late):
        def alter(fields):
            if live.driver.seq % 10:
                return None
            now = fields["stamp"] - late
            times = 0.05 * np.arange(1, 6)
            path = 0.1 * np.sin(now + times - begin)[:, None] * np.ones(3)
            return {**fields, "stamp": now, "times": times.tolist(), "values": path}

        return alter

    for late in (0.0, 0.05, 0.1):
        live.driver.alter = chunk(late)
        time.sleep(0.7)
    assert live.state == "ACTIVE"
    live.driver.alter = lambda fields: {**fields, "times": [], "values": np.zeros((0, 3))}
    live.wait_state("ARMED")
    live.check_limits()


@pytest.mark.timing
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_42_supervisor_brakes_before_it_ends(live, processes, sign):
    live.moving()
    since = time.monotonic()
    assert processes.end("safety_supervisor_node", sign, limit=5.0) == 0
    assert np.abs(live.last.velocity).max() < 1e-4
    assert time.monotonic() - since < 5.0
    live.check_limits()


@pytest.mark.timing
def test_30_supervisor_killed_in_position_mode_the_robot_stands(live, processes):
    live.moving()
    processes.end("safety_supervisor_node", signal.SIGKILL)
    time.sleep(SLACK)  # on its way to the last command
    where = live.position
    assert np.abs(where - live.last.value).max() < 0.02
    time.sleep(0.3)
    assert np.abs(live.position - where).max() < 1e-6


@pytest.mark.timing
def test_30_supervisor_killed_robot_with_timeout_stops_and_without_arming_is_refused(live, processes):
    for key, sign in (("sim_robot_node", signal.SIGINT), ("safety_supervisor_node", signal.SIGTERM)):
        assert processes.end(key, sign, limit=5.0) in (0, None)  # row 42
    (processes.folder / "velocity.yaml").write_text(SPEC.format(mode="forward_velocity", timeout=0.3))
    (processes.folder / "untimed.yaml").write_text(SPEC.format(mode="forward_velocity", timeout=0.0))
    refused = processes.start("safety_supervisor_node", *SUPERVISOR, spec="untimed.yaml", key="refused")
    assert refused.wait(15.0) == 2
    assert "controller_timeout" in processes.log("refused")
    live.states.clear()
    live.joints = None  # those of the robot before are no measure of this one
    processes.start("sim_robot_node", "realtime:=40", spec="velocity.yaml")
    processes.start("safety_supervisor_node", *SUPERVISOR, spec="velocity.yaml")
    live.connected().wait_state("IDLE", limit=30.0)
    wait(lambda: live.enable().success)
    live.driver.alter = lambda fields: {**fields, "field": "velocities", "values": np.full((1, 3), 0.4)}
    live.driver.on = True
    wait(lambda: np.abs(live.last.velocity).min() > 0.3, what="motion")
    processes.end("safety_supervisor_node", signal.SIGKILL)
    time.sleep(0.3 + SLACK)
    where = live.position
    time.sleep(0.3)
    assert np.abs(live.position - where).max() < 1e-6
    assert processes.end("sim_robot_node", signal.SIGTERM, limit=5.0) == 0  # row 42
