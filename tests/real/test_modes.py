"""Effort and twist modes of the core: limits, stops, acceptance."""

from dataclasses import replace

import numpy as np
import pytest

from robot_rl.real.core.chunk_player import play_effort
from robot_rl.real.core.intake import CommandMessage, Intake
from robot_rl.real.core.limiter_effort import EffortLimiter
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import RobotSpec, SpecError
from robot_rl.real.core.supervisor import SafetySupervisor
from robot_rl.real.port import SpecPort

PERIOD = 0.01
ODOM = {"odom": {"topic": "odom", "type": "nav_msgs/Odometry"}}


def effort_arm(make_arm, **changes):
    return make_arm(command_mode="forward_effort", controller_timeout=0.1, **changes)


def base(**changes):
    axes = [
        {"name": "linear_x", "velocity": 1.0, "acceleration": 2.0},
        {"name": "angular_z", "velocity": 2.0, "acceleration": 4.0},
    ]
    raw = {"name": "base", "joints": axes, "command_mode": "twist", "controller_topic": "cmd_vel"}
    return RobotSpec.from_dict({**raw, "controller_timeout": 0.5, "sensors": ODOM, **changes})


# ---------------------------------------------------------------- velocity


@pytest.mark.parametrize("late", [0.0, 0.03, 0.08])
def test_a_workspace_holds_for_velocities_that_are_followed_late(make_loop, make_arm, late):
    """The tool never leaves the box, though the robot goes on for its dead time with what it was told before."""
    box = {"lower": [-0.5, -0.5, -0.5], "upper": [0.5, 0.5, 0.5]}
    spec = make_arm(command_mode="forward_velocity", controller_timeout=0.1, dead_time=late + 0.005, workspace=box)
    tool = lambda q: np.array([q[0] + 0.3 * q[1], q[1], q[2]])  # noqa: E731
    loop = make_loop(spec=spec, forward=tool, latency=late).active()
    rng, seen, places = np.random.default_rng(0), set(), []
    for _ in range(12):
        goal = rng.uniform(-1.5, 1.5, 3)
        for _ in range(60):
            loop.tick(lambda goal=goal: loop.command(goal))
            seen |= set(loop.verdict.reasons)
            places.append(tool(loop.robot.position))
    assert "workspace" in seen
    assert np.abs(places).max() <= 0.5 + 1e-6
    assert np.abs(places).max() > 0.48


def test_a_workspace_holds_on_the_way_of_a_brake_too(make_loop, make_arm):
    """Of two long links that stop at different times the tool swings out further than where it comes to rest."""
    box = {"lower": [-3.0, -3.0, -3.0], "upper": [3.0, 1.2, 3.0]}
    spec = make_arm(command_mode="forward_velocity", controller_timeout=0.1, dead_time=0.005, workspace=box)
    tool = lambda q: np.array([np.cos(q[0]) + np.cos(q[0] + q[1]), np.sin(q[0]) + np.sin(q[0] + q[1]), q[2]])  # noqa: E731
    loop = make_loop(spec=spec, forward=tool).active()
    rng, seen, places = np.random.default_rng(0), set(), []
    for _ in range(60):
        goal = rng.uniform(-3.0, 3.0, 3)
        for _ in range(30):
            loop.tick(lambda goal=goal: loop.command(goal))
            seen |= set(loop.verdict.reasons)
            places.append(tool(loop.robot.position)[1])
    assert "workspace" in seen
    assert max(places) > 1.18
    assert max(places) <= 1.2


def test_a_motion_after_a_pause_begins_from_rest_where_the_pause_is_no_fault(make_loop):
    """The joints have stood at their last command for 0.2 s; at 5 rad/s^2 they come to 0.1 rad/s in the late tick."""
    settings = SafetySettings(overrun_ticks=40, command_timeout=0.3, state_timeout=0.3)
    loop = make_loop(settings=settings).moving()
    loop.tick(lambda: loop.command(np.full(3, 1.5)), dt=0.2)
    assert loop.safety.state == "ACTIVE"
    assert np.allclose(loop.sent[-1] - loop.sent[-2], 0.1 * 0.02)
    loop.run(0.05, np.full(3, 1.5))
    assert np.allclose(np.diff(loop.sent[-3:], axis=0), [[0.3e-2] * 3, [0.35e-2] * 3])


def test_a_driver_that_hangs_while_it_tells_rest_is_moved_by_one_small_step_at_most(make_loop):
    """Nobody can tell it from a robot that friction holds: no fault, and no more than the policy's 0.02 rad."""
    loop = make_loop().active()
    told = loop.state().position.copy()
    loop.alter = lambda state: replace(state, position=told, velocity=np.zeros(3))
    loop.run(3.0, told + 0.02)
    assert loop.safety.state == "ACTIVE"
    assert np.allclose(loop.sent[-1], told + 0.02)
    assert np.max(loop.sent) <= np.max(told) + 0.02 + 1e-9


@pytest.mark.parametrize(("gap", "sent"), [(0.07, (0.9, 0.85)), (0.25, (0.0, 0.0))])
def test_a_brake_after_a_pause_begins_with_what_the_controller_does_by_then(make_loop, make_arm, gap, sent):
    """Within its timeout it goes on at the last velocity, 1 rad/s; later it stands, and is not set going again."""
    spec = make_arm(command_mode="forward_velocity", controller_timeout=0.2, dead_time=0.0)
    loop = make_loop(spec=spec).active().run(0.5, np.ones(3))
    loop.tick(lambda: loop.command(np.ones(3)), dt=gap)
    assert loop.verdict.fault == "loop_overrun"
    loop.tick()
    # it brakes by 5 rad/s^2, and the late tick counts as two
    assert np.allclose(loop.sent[-2:], np.array(sent)[:, None])


# ---------------------------------------------------------------- effort


def test_effort_is_bounded_and_its_rate_too(make_arm):
    limiter = EffortLimiter(effort_arm(make_arm), period=PERIOD)
    zero = np.zeros(3)
    # tau_max 10 N m, full scale in 0.1 s: 1 N m per period
    assert limiter.step([np.nan, 5.0, 0.5], zero, zero).tolist() == [0.0, 1.0, 0.5]
    assert limiter.at_rate.tolist() == [False, True, False]
    for _ in range(20):
        limiter.step([1e300, -np.inf, 50.0], zero, zero)
    assert limiter.effort.tolist() == [10.0, 0.0, 10.0]


def test_effort_beyond_the_margin_pushes_back_by_hand():
    joint = {"lower": -1.0, "upper": 1.0, "velocity": 2.0, "acceleration": 5.0, "effort": 10.0, "kp": 100.0, "kd": 2.0}
    spec = RobotSpec.from_dict(
        {"name": "one", "joints": [{"name": "j", **joint}], "command_mode": "forward_effort", "controller_timeout": 0.1}
    )
    limiter = EffortLimiter(spec, period=PERIOD)
    # margin 0.02: the wall begins at 0.98. At 0.99 with 0.5 rad/s outward: -(100 * 0.01 + 2 * 0.5) = -2; outward is cut
    assert limiter.step([4.0], np.array([0.99]), np.array([0.5]))[0] == pytest.approx(-2.0)
    assert limiter.at_limit[0]
    # moving inward only the spring acts, on top of the inward effort that is asked (1 N m per period)
    assert limiter.step([-4.0], np.array([0.99]), np.array([-0.5]))[0] == pytest.approx(-1.0 - 1.0)
    # the other end mirrors it
    limiter.reset([0.0])
    assert limiter.step([-4.0], np.array([-0.99]), np.array([-0.5]))[0] == pytest.approx(2.0)


@pytest.mark.filterwarnings("error")
def test_effort_of_a_joint_that_turns_for_ever_has_no_wall():
    joint = {"continuous": True, "velocity": 2.0, "acceleration": 5.0, "effort": 10.0}
    raw = {"name": "one", "joints": [{"name": "j", **joint}], "command_mode": "forward_effort"}
    limiter = EffortLimiter(RobotSpec.from_dict({**raw, "controller_timeout": 0.1}), period=PERIOD)
    assert limiter.step([0.5], np.array([1e3]), np.array([0.1]))[0] == 0.5
    assert not limiter.at_limit[0]


def test_effort_beyond_the_velocity_limit_does_not_drive_on(make_arm):
    limiter = EffortLimiter(effort_arm(make_arm), period=PERIOD)
    fast = np.array([1.2, -1.2, 0.5])
    assert limiter.step([1.0, 1.0, 1.0], np.zeros(3), fast).tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("seed", range(4))
def test_effort_random_input_never_leaves_bound_and_rate(make_arm, seed):
    rng = np.random.default_rng(seed)
    limiter = EffortLimiter(effort_arm(make_arm), period=PERIOD)
    before = np.zeros(3)
    for _ in range(2000):
        target = rng.choice([np.nan, np.inf, -np.inf, 1e300, *rng.normal(0, 20, 3)], 3)
        period = rng.uniform(0.005, 0.02)
        inside = rng.uniform(-1.9, 1.9, 3)
        out = limiter.step(target, inside, rng.normal(0, 0.3, 3), period)
        assert (np.abs(out) <= 10.0).all()
        assert (np.abs(out - before) <= 100.0 * period + 1e-9).all() or (np.abs(limiter.velocity) > 1.0).any()
        before = out


def test_effort_mode_drives_stops_and_faults_through_the_supervisor(make_loop, make_arm):
    loop = make_loop(spec=effort_arm(make_arm))
    loop.run(0.6)
    assert loop.verdict.publish  # zeros while IDLE
    assert not np.any(loop.sent[-1])
    assert loop.safety.enable() == []
    loop.run(0.1)
    assert loop.safety.state == "ARMED"
    assert not np.any(loop.sent[-1])
    loop.run(0.3, np.full(3, 5.0))
    assert loop.safety.state == "ACTIVE"
    assert loop.sent[-1] == pytest.approx([5.0] * 3)
    assert (loop.robot.velocity > 0.4).all()
    start = loop.now
    while not (np.abs(loop.robot.velocity) < 0.02).all():  # a silent source: the brake damps the motion
        loop.tick()
        assert loop.now - start < 1.5
    loop.run(0.3)
    assert loop.safety.state == "ARMED"
    assert np.abs(loop.sent[-1]).max() < 1e-6
    loop.run(0.3, np.full(3, 5.0))
    loop.robot.frozen = True  # nothing to trust: fade to zero at once
    loop.run(0.3, np.full(3, 5.0))
    assert loop.verdict.fault == "state_stale"
    assert not np.any(loop.sent[-1])
    assert np.abs(loop.sent).max() <= 10.0


def test_effort_estop_stops_the_motion_and_zero_cuts_at_once(make_loop, make_arm):
    from robot_rl.real.core.settings import SafetySettings

    for action in ("brake", "zero"):
        loop = make_loop(spec=effort_arm(make_arm), settings=SafetySettings(estop_action=action))
        loop.run(0.6)
        loop.safety.enable()
        loop.run(0.3, np.full(3, 5.0))
        loop.safety.estop()
        loop.tick()
        assert (not np.any(loop.sent[-1])) is (action == "zero")
        loop.run(1.5)
        assert loop.safety.state == "ESTOP"
        assert not np.any(np.round(loop.sent[-1], 6))
        if action == "brake":
            assert np.abs(loop.robot.velocity).max() < 0.02


def test_effort_mode_needs_a_controller_timeout_and_no_workspace(make_arm):
    with pytest.raises(ValueError, match="effort mode needs controller_timeout"):
        SafetySupervisor(make_arm(command_mode="forward_effort"))
    box = {"lower": [-1.0] * 3, "upper": [1.0] * 3}
    with pytest.raises(ValueError, match="cannot be kept in effort mode"):
        SafetySupervisor(effort_arm(make_arm, workspace=box), forward=lambda q: q)


def test_effort_chunk_holds_each_knot_and_is_zero_after_the_last():
    times, knots = np.array([1.0, 2.0]), np.array([[1.0], [3.0]])
    assert [play_effort(t, times, knots)[0] for t in (0.5, 1.0, 1.01, 2.0, 2.01)] == [1.0, 1.0, 3.0, 3.0, 0.0]


def test_effort_commands_are_taken_only_in_their_field(make_arm):
    door = Intake(effort_arm(make_arm))

    def offer(field, seq):
        names = ("j0", "j1", "j2")
        rows = {field: np.ones((1, 3))}
        return door.offer(CommandMessage("policy", "p", seq, names, 10.0, np.array([0.01]), rows), 10.0)

    assert offer("positions", 1) == "field"
    assert offer("effort", 2) == ""
    command, _ = door.select(10.01)
    assert command is not None
    assert command.value.tolist() == [1.0] * 3


def test_effort_policy_needs_the_effort_mapping(make_arm):
    spec = effort_arm(make_arm, action={"mapping": "effort", "scale": [4.0]})
    port = SpecPort(spec, 50.0)
    assert port.io.action_units == ("N*m",) * 3
    assert port.act(np.array([[0.5, -2.0, 0.0]])).tolist() == [2.0, -4.0, 0.0]
    with pytest.raises(SpecError, match=r"forward_effort takes effort"):
        SpecPort(effort_arm(make_arm), 50.0)
    with pytest.raises(SpecError, match="jtc takes absolute or delta or velocity"):
        SpecPort(make_arm(action={"mapping": "effort", "scale": [4.0]}), 50.0)


# ---------------------------------------------------------------- twist


def test_twist_spec_has_axes_and_needs_to_know_how_it_moves():
    spec = base()
    assert spec.mode == "twist"
    assert all(joint.continuous for joint in spec.joints)
    with pytest.raises(SpecError, match="no axis of a twist"):
        base(joints=[{"name": "wheel", "velocity": 1.0, "acceleration": 2.0}])
    with pytest.raises(SpecError, match="needs a required one of type nav_msgs/Odometry"):
        base(sensors={})
    with pytest.raises(ValueError, match="twist mode needs controller_timeout"):
        SafetySupervisor(base(controller_timeout=0.0))


def test_joints_of_other_modes_still_need_their_effort():
    with pytest.raises(SpecError, match=r"effort is missing; write it down"):
        RobotSpec.from_dict(
            {"name": "a", "joints": [{"name": "j", "lower": -1.0, "upper": 1.0, "velocity": 1.0, "acceleration": 1.0}]}
        )


def test_twist_mode_follows_within_its_limits_and_brakes(make_loop):
    loop = make_loop(spec=base())
    alter = loop.alter
    loop.alter = lambda state: type(state)(**{**alter(state).__dict__, "position": np.zeros(2)})
    loop.run(0.6)
    assert loop.safety.enable() == []
    loop.run(2.0, np.array([5.0, -5.0]))
    assert loop.safety.state == "ACTIVE"
    assert loop.sent[-1] == pytest.approx([1.0, -2.0])
    sent = np.array(loop.sent)
    assert (np.abs(np.diff(sent, axis=0)) <= np.array([2.0, 4.0]) * PERIOD + 1e-9).all()
    loop.run(0.1 + 0.5 + 0.02)  # command_timeout + v / a + 2 dt
    assert not np.any(loop.sent[-1])
    assert loop.safety.state == "ARMED"


@pytest.mark.parametrize(("stiction", "way"), [(0.0, 0.005), (0.05, 0.055)])
def test_joints_that_stick_may_stand_for_as_long_as_their_card_says(make_loop, make_arm, stiction, way):
    loop = make_loop(make_arm(stiction=stiction)).active()
    held, begin = loop.robot.read(), loop.now
    loop.alter = lambda state: replace(held, stamp=loop.now)
    while loop.safety.state == "ACTIVE" and loop.now < begin + 4.0:
        loop.tick(lambda: loop.command(np.full(3, 0.02 * (loop.now - begin))))
    assert loop.verdict.fault == "state_frozen"
    assert 0.02 * (loop.now - begin) == pytest.approx(way, abs=0.002)
