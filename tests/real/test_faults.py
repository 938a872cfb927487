"""Rows of the specification's fault-injection list that concern the core (row number in the name)."""
# pyright: reportPossiblyUnboundVariable=false, reportCallIssue=false, reportArgumentType=false
# (garbage is handed over on purpose)

import time

import numpy as np
import pytest

from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.robot import Command, Level, RobotState

FAR = np.full(3, 1.5)
STOP = 0.1 + 1.0 / 5.0 + 2 * 0.01  # command_timeout + v/a + 2 dt


def replaced(state, **changes):
    return RobotState(**{**state.__dict__, **changes})


def test_01_source_dies_while_moving_soft_stop_in_time_and_recovers(make_loop):
    loop = make_loop().moving()
    loop.stops_within(STOP)
    assert loop.safety.state == "ARMED"
    assert loop.verdict.level is Level.HOLD
    loop.run(0.1, loop.robot.position.copy())
    assert loop.safety.state == "ACTIVE"
    loop.check_limits()


def test_02_late_commands_after_a_pause_are_stale_and_do_not_move(make_loop):
    loop = make_loop().moving()
    old = loop.command(FAR)
    loop.run(1.0)
    where = loop.sent[-1]
    for _ in range(20):
        _, verdict = loop.tick(old)
    assert "stale_command" in verdict.reasons
    assert loop.safety.state == "ARMED"
    assert (loop.sent[-1] == where).all()
    loop.check_limits()


def test_03_source_at_half_rate_runs(make_loop):
    loop = make_loop().active()
    for k in range(100):
        loop.tick((lambda: loop.command(FAR)) if k % 2 else None)
    assert loop.safety.state == "ACTIVE"
    loop.check_limits()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_04_nonfinite_command_in_filter_is_a_latched_stop(make_loop, bad):
    loop = make_loop().moving()
    loop.tick(lambda: loop.command([0.0, bad, 0.0]))
    assert loop.verdict.level is Level.STOP
    assert loop.verdict.fault == "cmd_nonfinite"
    assert "bad_command" in loop.verdict.reasons
    loop.run(1.0, np.zeros(3))
    assert loop.safety.state == "FAULT"
    loop.check_limits()


def test_04_huge_command_is_limited(make_loop):
    loop = make_loop().active().run(4.0, np.array([1e300, -1e300, 0.0]))
    assert loop.sent[-1][:2] == pytest.approx([1.98, -1.98])  # 2 rad minus the margin of 0.02
    assert loop.verdict.level is Level.CLIPPED
    assert "limit" in loop.verdict.reasons
    loop.check_limits()


def test_05_wrong_length_in_filter_is_a_latched_stop(make_loop):
    loop = make_loop().moving()
    loop.tick(lambda: loop.command([0.0]))
    assert (loop.verdict.level, loop.verdict.fault) == (Level.STOP, "cmd_shape")


def test_06_stamps_far_off_are_not_followed(make_loop):
    loop = make_loop().active()
    for stamp in (0.0, loop.now - 3600.0, loop.now + 3600.0, np.nan):
        loop.run(0.05, loop.sent[-1])
        loop.tick(loop.command(FAR, stamp=stamp))
        assert "stale_command" in loop.verdict.reasons
    assert np.abs(loop.sent).max() < 1e-9


def test_06_older_command_than_the_last_is_ignored(make_loop):
    loop = make_loop().active()
    loop.tick(lambda: loop.command(np.zeros(3)))
    loop.tick(lambda: loop.command(FAR, stamp=loop.now - 0.05))
    assert np.abs(loop.sent[-1]).max() == 0.0


def test_08_step_of_ten_radians_approaches_within_all_limits(make_loop):
    loop = make_loop().active().run(5.0, np.full(3, 10.0))
    assert loop.sent[-1] == pytest.approx([1.98] * 3)
    loop.check_limits()


def test_09_square_wave_at_nyquist_no_violation(make_loop):
    loop = make_loop().active()
    sign = [1.0]

    def wave(now):
        sign[0] = -sign[0]
        return np.array([10.0, -10.0, 1.98]) * sign[0]

    loop.run(8.0, wave)
    assert loop.safety.state == "ACTIVE"
    loop.check_limits()


def test_10_first_command_far_away_stays_armed_with_reason(make_loop):
    loop = make_loop().run(0.6)
    assert loop.safety.enable() == []
    loop.run(0.2, np.full(3, 0.5))
    assert loop.safety.state == "ARMED"
    assert loop.verdict.level is Level.HOLD
    assert "start_mismatch" in loop.verdict.reasons
    assert np.abs(loop.sent).max() == 0.0


def test_11_states_stop_fault_in_time_and_no_recovery_by_itself(make_loop):
    loop = make_loop().moving()
    loop.robot.frozen = True
    ticks = 0
    while loop.safety.state == "ACTIVE":
        loop.tick(lambda: loop.command(FAR))
        ticks += 1
    assert ticks <= 11  # 0.1 s and one tick
    assert loop.verdict.fault == "state_stale"
    assert "stale_state" in loop.verdict.reasons
    start = loop.sent[-1]
    loop.run(0.5, FAR)
    assert (np.abs(loop.sent[-1] - start) > 0.05).all()  # braked on the way, not frozen
    assert (loop.safety.limiter.velocity == 0.0).all()
    loop.robot.frozen = False
    loop.run(1.0, FAR)
    assert loop.safety.state == "FAULT"
    loop.check_limits()


def test_12_states_never_start_stays_in_startup_and_refuses(make_loop):
    loop = make_loop()
    for _ in range(100):
        loop.tick(lambda: loop.command(FAR), state=None)
    assert loop.safety.state == "STARTUP"
    assert not loop.verdict.publish
    assert "state_never" in loop.safety.enable()


def test_13_states_freeze_with_new_stamps_is_a_fault(make_loop):
    loop = make_loop().moving()
    held = loop.robot.read()
    loop.alter = lambda state: replaced(held, stamp=loop.now)
    loop.run(0.6, FAR)
    assert loop.safety.state in ("STOPPING", "FAULT")
    assert loop.verdict.fault == "state_frozen"
    loop.check_limits()


@pytest.mark.parametrize(
    ("row", "change", "fault"),
    [
        (14, {"position": np.array([0.9, 0.0, 0.0])}, "state_jump"),
        (15, {"position": np.array([0.0, np.nan, 0.0])}, "state_nonfinite"),
        (15, {"velocity": np.array([0.0, np.inf, 0.0])}, "state_nonfinite"),
        (16, {"position": np.zeros(2), "velocity": np.zeros(2)}, "state_name_missing"),
        (0, {"velocity": np.array([1.6, 0.0, 0.0])}, "velocity_measured"),
        (0, {"effort": np.array([0.0, 0.0, 16.0])}, "effort_measured"),
    ],
)
def test_14_15_16_bad_state_latches_its_code(make_loop, row, change, fault):
    loop = make_loop().active()
    loop.alter = lambda state: replaced(state, **change)
    loop.tick(lambda: loop.command(np.zeros(3)))
    assert loop.verdict.level is Level.STOP
    assert loop.verdict.fault == fault
    loop.alter = lambda state: state
    loop.run(1.0, np.zeros(3))
    assert loop.safety.state == "FAULT"
    assert loop.safety.rearm() == []
    assert loop.safety.state == "IDLE"


def test_18_delayed_jittered_lossy_state_runs_without_fault(make_loop):
    settings = SafetySettings(state_timeout=0.3, lead_soft=0.25, lead_fault=0.5)
    loop = make_loop(settings=settings, latency=0.04, jitter=0.02, loss=0.2, noise=1e-4, state_timeout=0.3, seed=3)
    loop.active().run(4.0, lambda now: 0.3 * np.sin(0.8 * (now - 100.0)) * np.ones(3))
    assert loop.safety.state == "ACTIVE"
    assert loop.safety.faults == ()
    loop.check_limits()


def test_20_own_clock_backwards_is_a_fault_not_an_exception(make_loop):
    loop = make_loop().moving()
    _, verdict = loop.safety.filter(loop.command(FAR), loop.robot.read(), loop.now - 1.0)
    assert (verdict.level, verdict.fault) == (Level.STOP, "clock_jump")


def test_20_a_clock_that_went_back_for_good_does_not_keep_the_robot_moving(make_loop, make_arm):
    loop = make_loop(spec=make_arm(command_mode="forward_velocity", controller_timeout=0.1, dead_time=0.0)).active()
    loop.run(0.3, np.ones(3))
    for k in range(25):  # 1 rad/s at 5 rad/s2
        sent, verdict = loop.safety.filter(None, None, loop.now - 60.0 + k * 0.01)
    assert verdict.fault == "clock_jump"
    assert not sent.value.any()


def test_22_blocked_joint_lead_is_bounded_and_tracking_fault(make_loop):
    loop = make_loop().moving()
    loop.robot.blocked[0] = True
    while loop.safety.state == "ACTIVE":
        loop.tick(lambda: loop.command(FAR))
        lead = abs(loop.sent[-1][0] - loop.robot.position[0])
        assert lead <= 0.1 + 1.0 / (2 * 5.0) + 1e-9  # lead_soft plus the way of the brake
    assert loop.verdict.fault == "tracking"
    loop.run(1.0)
    loop.robot.blocked[0] = False
    loop.run(0.5)
    assert loop.safety.state == "FAULT"
    assert np.abs(loop.robot.velocity).max() < 0.02  # released: it goes to the command near it and rests
    loop.check_limits()


def test_23_push_beyond_the_limit_then_only_inward_motion(make_loop):
    loop = make_loop().active().run(3.0, np.array([1.98, 0.0, 0.0]))
    assert loop.safety.state == "ACTIVE"
    loop.robot.blocked[0] = True  # stays where it is pushed
    for _ in range(2):  # slower than a jump
        loop.robot.push(np.array([0.02, 0.0, 0.0]))
        loop.tick(lambda: loop.command([1.98, 0.0, 0.0]))
    loop.run(0.05, np.array([1.98, 0.0, 0.0]))
    assert loop.verdict.fault == "limit_measured"
    loop.run(1.0)
    assert loop.safety.rearm() == []
    loop.run(0.6)
    assert loop.safety.enable() == []
    start = len(loop.sent)
    loop.run(0.05)
    loop.robot.blocked[0] = False
    loop.run(0.3, np.array([2.05, 0.0, 0.0]))  # outward is not followed
    assert max(q[0] for q in loop.sent[start:]) <= 2.02 + 1e-9
    loop.run(2.0, np.array([1.9, 0.0, 0.0]))
    assert loop.sent[-1][0] == pytest.approx(1.9)
    assert loop.safety.state == "ACTIVE"


@pytest.mark.parametrize("source", ["topic", "service", "button"])
def test_24_estop_while_moving_within_one_tick_and_release_clears_nothing(make_loop, source):
    loop = make_loop().moving()
    loop.safety.estop(source)
    loop.tick(lambda: loop.command(FAR))
    assert loop.verdict.level is Level.STOP
    assert loop.verdict.fault == f"estop_{source}"
    assert "operator" in loop.verdict.reasons
    assert (loop.safety.limiter.velocity < 1.0).all()
    loop.safety.estop(source, pressed=False)
    loop.run(1.0, FAR)
    assert loop.safety.state == "ESTOP"
    assert (loop.safety.limiter.velocity == 0.0).all()
    loop.check_limits()


def test_24_estop_action_zero_stops_at_once_and_halt_goes_quiet(make_loop):
    for action in ("zero", "halt"):
        loop = make_loop(settings=SafetySettings(estop_action=action)).moving()
        loop.safety.estop()
        before = loop.sent[-1]
        loop.tick(lambda loop=loop: loop.command(FAR))
        assert loop.verdict.publish is (action == "zero")
        assert (loop.sent[-1] == before).all()


def test_25_reset_is_refused_with_reasons(make_loop):
    loop = make_loop().run(0.6)
    assert loop.safety.rearm() == ["nothing to reset"]
    loop = make_loop().active()
    assert loop.safety.rearm() == ["nothing to reset"]
    assert loop.safety.state == "ACTIVE"
    loop.safety.estop()
    loop.run(1.0)
    assert "estop is pressed" in loop.safety.rearm()
    loop.safety.estop(pressed=False)
    assert "estop released too shortly ago" in loop.safety.rearm()
    loop.run(0.6)
    assert loop.safety.rearm() == []
    assert loop.safety.state == "IDLE"


def test_26_after_reset_nothing_moves_without_enable(make_loop):
    loop = make_loop().moving()
    old = loop.command(FAR)
    loop.safety.estop()
    loop.safety.estop(pressed=False)
    loop.run(1.0)
    assert loop.safety.rearm() == []
    count = len(loop.sent)
    for _ in range(300):
        loop.tick(old)
    for _ in range(100):
        loop.tick(lambda: loop.command(loop.robot.position))
    assert loop.safety.state == "IDLE"
    assert len(loop.sent) == count
    assert "not_enabled" in loop.verdict.reasons


def test_31_exception_inside_brakes_and_latches_internal(make_loop, make_arm):
    def forward(q):
        if armed[0]:
            raise RuntimeError("model is gone")
        return np.zeros(3)

    armed = [False]
    spec = make_arm(workspace={"lower": [-1.0, -1.0, -1.0], "upper": [1.0, 1.0, 1.0]})
    loop = make_loop(spec=spec, forward=forward).moving()
    armed[0] = True
    loop.tick(lambda: loop.command(FAR))
    assert (loop.verdict.level, loop.verdict.fault) == (Level.STOP, "internal")
    loop.run(0.5, FAR)
    assert (loop.safety.limiter.velocity == 0.0).all()
    assert loop.safety.state == "FAULT"


def test_32_own_loop_starved_is_loop_overrun(make_loop):
    loop = make_loop().moving()
    loop.tick(lambda: loop.command(FAR), dt=0.07)
    assert loop.verdict.fault == "loop_overrun"
    loop.run(0.3, FAR)
    assert np.ptp(loop.sent[-32:], axis=0).max() == 0.0  # it stood there by then and is not set going again


@pytest.mark.parametrize("code", ["duplicate_publisher", "controller_gone", "temperature"])
def test_33_34_reported_fault_brakes_and_latches(make_loop, code):
    loop = make_loop().moving()
    loop.safety.report(code)
    loop.run(0.5, FAR)
    assert loop.safety.state == "FAULT"
    assert loop.verdict.fault == code
    assert "platform" in loop.verdict.reasons
    loop.check_limits()


def test_lost_commands_too_often_is_cmd_timeout(make_loop):
    loop = make_loop().active()
    for _ in range(6):
        loop.run(0.3)
        assert loop.safety.state == "ARMED"
        loop.run(0.1, loop.robot.position.copy())
    loop.run(0.3)
    assert loop.safety.state == "FAULT"
    assert loop.safety.faults == ("cmd_timeout",)


def test_release_brakes_and_stays_armed(make_loop):
    loop = make_loop().moving()
    loop.tick(lambda: loop.command([]))
    assert loop.safety.state == "STOPPING"
    loop.run(0.5)
    assert loop.safety.state == "ARMED"
    loop.check_limits()


def test_force_above_the_limit_for_three_samples_is_a_stop(make_loop, make_arm):
    loop = make_loop(spec=make_arm(force=10.0)).active()
    loop.alter = lambda state: replaced(state, wrench=np.array([0.0, 0.0, 16.0, 0.0, 0.0, 0.0]))
    loop.run(0.02, np.zeros(3))
    assert loop.safety.state == "ACTIVE"
    loop.run(0.01, np.zeros(3))
    assert loop.verdict.fault == "force"
    assert "force" in loop.verdict.reasons


def test_workspace_tool_never_leaves_the_box(make_loop, make_arm):
    spec = make_arm(workspace={"lower": [-0.5, -0.5, -0.5], "upper": [0.5, 0.5, 0.5]})
    loop = make_loop(spec=spec, forward=lambda q: np.array([q[0] + 0.3 * q[1], q[1], q[2]])).active()
    rng = np.random.default_rng(0)
    goals = [rng.uniform(-2, 2, 3) for _ in range(4)]
    seen = set()
    for goal in goals:
        loop.run(1.0, goal)
        seen |= set(loop.verdict.reasons)
    sent = np.array(loop.sent)
    tool = np.stack([sent[:, 0] + 0.3 * sent[:, 1], sent[:, 1], sent[:, 2]])
    assert np.abs(tool).max() <= 0.5 + 1e-6
    assert np.abs(tool).max() > 0.49
    assert "workspace" in seen
    loop.check_limits()


def test_filter_never_raises_and_stays_in_limits_for_garbage(make_loop):
    loop = make_loop().active()
    rng = np.random.default_rng(1)
    good = loop.robot.read()
    junk = [None, "x", np.nan, np.array([[1.0]]), np.array([np.inf] * 3), [], np.full(3, 1e308)]
    for k in range(400):
        value = junk[rng.integers(len(junk))]
        command = [None, 3, Command(rng.choice([np.nan, loop.now]), value)][rng.integers(3)]  # type: ignore[arg-type]
        state = rng.choice([None, "state", good, replaced(good, stamp=loop.now, position=value)])
        now = rng.choice([np.nan, np.inf, loop.now, None]) if k % 10 == 0 else loop.now + 0.01 * k
        out, verdict = loop.safety.filter(command, state, now)
        assert np.isfinite(out.value).all()
        assert (np.abs(out.value) <= 1.98).all()
        assert verdict.level is Level.STOP or k < 5


def test_velocity_mode_needs_a_timed_controller_and_brakes_at_limits(make_loop, make_arm):
    with pytest.raises(ValueError, match="controller_timeout"):
        make_loop(spec=make_arm(command_mode="forward_velocity", dead_time=0.0))
    loop = make_loop(spec=make_arm(command_mode="forward_velocity", dead_time=0.0, controller_timeout=0.1)).run(0.6)
    assert loop.safety.enable() == []
    peak = 0.0
    for _ in range(300):
        loop.tick(lambda: loop.command([5.0, -5.0, 0.3]))
        peak = max(peak, np.abs(loop.robot.position).max())
    v = np.array(loop.sent)
    assert np.abs(v).max() <= 1.0 + 1e-9
    assert np.abs(np.diff(v, axis=0)).max() <= 0.05 + 1e-9
    assert 1.8 < peak <= 1.98 + 1e-6
    assert loop.safety.faults == ()


def test_a_fault_tells_its_numbers_and_forgets_them_at_the_reset(make_loop):
    loop = make_loop().active()
    for _ in range(9):  # the newest state is 96 ms old in the eighth tick and 108 in the ninth
        loop.tick(lambda: loop.command(np.zeros(3)), state=None, dt=0.012)
    assert loop.safety.faults == ("state_stale",)
    assert loop.safety.numbers == {"state_stale": "108 ms old, allowed 100"}
    loop.run(1.0)
    assert loop.safety.rearm() == []
    assert loop.safety.numbers == {}
    loop.active()
    good = loop.state()
    loop.alter = lambda state: replaced(state, position=state.position + np.array([0.0, 1.0, 0.0]))
    loop.run(0.02, good.position)
    # it may move by 3 x 1 rad/s x 10 ms
    assert loop.safety.numbers == {"state_jump": "j1 is 1.000 rad further within 10 ms, allowed 0.030"}


@pytest.mark.parametrize(("code", "gap"), [("loop_overrun", 0.15), ("controller_gone", 0.0)])
def test_nothing_is_said_to_a_driver_that_comes_back_after_another_fault(make_loop, code, gap):
    loop = make_loop().run(0.6)
    assert loop.safety.enable() == []
    loop.run(0.1)
    loop.safety.report(code)
    for _ in range(round(gap / 0.01)):
        loop.tick(state=None)
    loop.run(0.02)
    said = len(loop.sent)
    loop.run(1.0)  # the states are there again, perhaps from a driver that reads arrays in another order
    assert len(loop.sent) == said


def test_a_brake_without_states_ends_with_a_command_that_stands_and_then_silence(make_loop):
    loop, said = make_loop().moving(), []
    for _ in range(100):
        _, verdict = loop.tick(state=None)
        if verdict.publish:
            said.append(float(np.abs(loop.safety.limiter.velocity).max()))
    assert loop.safety.state == "FAULT"
    assert said[-1] == 0.0
    assert said[-2] > 0.0


def test_an_exception_in_the_tick_is_told_with_the_fault(make_loop):
    loop = make_loop().active()
    loop.safety.limiter.step = lambda *_: 1 / 0
    loop.run(0.02, np.zeros(3))
    assert loop.safety.numbers == {"internal": "ZeroDivisionError in a tick: division by zero"}


def test_decision_is_a_function_of_its_inputs(make_loop):
    first, second = make_loop().moving(), make_loop().moving()
    assert (np.array(first.sent) == np.array(second.sent)).all()
    assert first.verdicts == second.verdicts
    assert time.monotonic() != first.now  # its time is injected


def test_a_robot_that_answers_after_its_dead_time_is_not_taken_for_frozen(make_loop, make_arm):
    # at rest its numbers are the same bit for bit; 0.15 s of dead time, and way of 0.005 rad is commanded in 45 ms
    loop = make_loop(spec=make_arm(dead_time=0.15)).active()
    held = loop.robot.read()
    loop.alter = lambda state: replaced(held, stamp=loop.now)
    loop.run(0.3, FAR)
    assert loop.safety.faults == ()
    loop.run(0.1, FAR)
    assert loop.verdict.fault == "state_frozen"


def test_a_robot_that_has_rested_may_take_its_time_to_answer(make_loop, make_arm):
    # encoders that only count say the same at rest: a second of it is no part of the 0.2 s after which it is a fault
    loop = make_loop(spec=make_arm(dead_time=0.03)).active()
    held = loop.robot.read()
    loop.alter = lambda state: replaced(held, stamp=loop.now)
    loop.run(1.0, held.position)
    loop.run(0.2, FAR)
    assert loop.safety.faults == ()
    loop.run(0.1, FAR)
    assert loop.verdict.fault == "state_frozen"
