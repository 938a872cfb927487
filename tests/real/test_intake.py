"""Commands from the network: rows 3 to 7, 27 to 29 and 37 of the fault list, with the supervisor behind the door."""
# pyright: reportAssignmentType=false
# pyright: reportOptionalMemberAccess=false

import numpy as np
import pytest

from robot_rl.real.core.intake import CommandMessage, DoorOptions, Intake

NAMES = ("j0", "j1", "j2")


def message(stamp, seq, value=(0.0, 0.0, 0.0), source="policy", tag="p", names=NAMES, times=(0.01,), **fields):
    knots = np.array(value, float)
    knots = knots[None] if knots.ndim == 1 and len(times) == 1 else knots
    return CommandMessage(source, tag, seq, names, stamp, np.array(times), fields or {"positions": knots})


@pytest.fixture
def door(make_arm):
    return Intake(make_arm())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"names": ("j0", "j1")}, "joint_names"),
        ({"names": ("j0", "j1", "jx")}, "joint_names"),
        ({"names": ("j0", "j1", "j1")}, "joint_names"),
        ({"value": (0.0, 0.0)}, "lengths"),
        ({"value": (0.0, np.nan, 0.0)}, "not_finite"),
        ({"value": (0.0, np.inf, 0.0)}, "not_finite"),
        ({"velocities": np.zeros((1, 3))}, "field"),
        ({"velocities": np.zeros((1, 3)), "positions": np.zeros((1, 3))}, "field"),
        ({"stamp": 0.0}, "stamp"),
        ({"stamp": np.nan}, "stamp"),
        ({"stamp": 3610.0}, "stamp"),
        ({"stamp": 9.0}, "stamp"),
        ({"times": (0.0,)}, "times"),
        ({"times": (0.2, 0.1), "value": np.zeros((2, 3))}, "times"),
        ({"times": (1.0, 6.0), "value": np.zeros((2, 3))}, "horizon"),
        ({"seq": 4}, "sequence"),
        ({"source": "external"}, "source"),
        ({"source": "nobody"}, "source"),
    ],
)
def test_04_05_06_07_bad_message_is_dropped_and_counted(door, change, reason):
    assert door.offer(message(10.0, 4), 10.0) == ""
    assert door.offer(message(**{"stamp": 10.01, "seq": 5, **change}), 10.011) == reason
    assert door.dropped == {reason: 1}


def test_05_permuted_joints_are_put_in_order(door):
    door.offer(message(10.0, 1, (0.03, 0.01, 0.02), names=("j2", "j0", "j1")), 10.0)
    command, _ = door.select(10.0)
    assert command.value.tolist() == [0.01, 0.02, 0.03]


def test_02_message_that_was_held_up_is_stale(door):
    assert door.offer(message(10.0, 1), 10.0) == ""
    assert door.offer(message(10.1, 2), 11.0) == "stale"


def test_03_flood_and_ten_drops_are_soft_stops(door):
    for k in range(500):
        door.offer(message(10.0 + k * 0.001, k), 10.0 + k * 0.001)
        if k == 10:
            assert door.select(10.01)[1] == ""
    assert door.select(10.5)[1] == "cmd_flood"
    for _ in range(10):
        door.offer(message(10.6, 0, (np.nan, 0, 0)), 10.6)
    assert door.select(10.6)[1] == "cmd_drops"


def run(loop, door, seconds, each=None):
    """Tick door and supervisor together; `each(now, k)` sends messages."""
    for k in range(round(seconds / 0.01)):
        loop.clock.advance(0.01)
        now = loop.now
        if each is not None:
            each(now, k)
        command, stop = door.select(now)
        if stop:
            loop.safety.soft_stop()
        out, verdict = loop.safety.filter(command, loop.state(), now)
        limiter = loop.safety.limiter
        door.note_executed(now, limiter.position, limiter.velocity, as_asked=verdict.level == 0)
        if verdict.publish:
            loop.robot.write(out)
            loop.sent.append(out.value)
        loop.verdicts.append(verdict)


def started(make_loop):
    loop, door = make_loop(), Intake(make_loop().spec)
    run(loop, door, 0.6)
    assert loop.safety.enable() == []
    return loop, door, policy_of(door)


def policy_of(door, goal=1.0):
    count = [0]

    def send(now, k):
        count[0] += 1
        door.offer(message(now, count[0], np.full(3, goal if count[0] > 3 else 0.0)), now)

    return send


def test_empty_message_releases_at_once_and_counts_as_no_lost_command(make_loop):
    """A source that lets go says so: braking begins in the same tick, and twenty of them in a row are no fault."""
    loop, door, send = started(make_loop)
    for _ in range(20):
        run(loop, door, 0.2, send)
        assert loop.safety.state == "ACTIVE"
        last = door._last_seq["p"]
        door.offer(message(loop.now, last + 1, times=()), loop.now)
        run(loop, door, 0.01)
        assert loop.safety.state == "STOPPING"
        run(loop, door, 0.5)
        assert loop.safety.state == "ARMED"
        here = loop.safety.limiter.position.copy()
        first = [last + 1]

        def send(now, k, first=first, here=here):
            first[0] += 1
            door.offer(message(now, first[0], here + 0.001 * k), now)

    assert loop.safety.faults == ()


def test_27_takeover_and_release_in_motion_are_continuous(make_loop):
    loop, door, policy = started(make_loop)
    run(loop, door, 0.5, policy)
    assert (loop.safety.state, door.authority) == ("ACTIVE", "policy")
    count = [0]

    def both(now, k):
        count[0] += 1
        policy(now, k)
        door.takeover(True, now)
        here = loop.safety.limiter.position
        door.offer(message(now, count[0], here - 0.05, source="human", tag="h"), now)

    run(loop, door, 0.5, both)
    assert door.authority == "human"
    assert (loop.safety.limiter.velocity < 0).all()
    door.takeover(False, loop.now)
    run(loop, door, 0.3, policy)  # the policy still asks for 1.0, far from the command: hold
    assert door.authority == "none"
    assert (loop.safety.limiter.velocity == 0).all()
    near = loop.safety.limiter.position + 0.01
    run(loop, door, 0.2, lambda now, k: door.offer(message(now, 10_000 + k, near), now))
    assert door.authority == "policy"
    loop.check_limits()


def test_28_takeover_with_dead_teleop_stream_holds_and_never_falls_back(make_loop):
    loop, door, policy = started(make_loop)
    run(loop, door, 0.5, policy)

    def held(now, k):
        policy(now, k)
        door.takeover(True, now)

    run(loop, door, 1.0, held)
    assert door.authority == "human"
    assert loop.safety.state == "ARMED"
    assert (loop.safety.limiter.velocity == 0).all()
    loop.check_limits()


def test_29_teleop_dies_with_takeover_true_soft_stop_and_no_authority(make_loop):
    loop, door, _ = started(make_loop)

    def human(now, k):
        door.takeover(True, now)
        door.offer(message(now, k, np.full(3, 0.02 * k if k < 40 else 0.8) * 0.3, source="human", tag="h"), now)

    run(loop, door, 0.3, human)
    assert loop.safety.state == "ACTIVE"
    run(loop, door, 1.0)
    assert door.authority == "none"
    assert loop.safety.state == "ARMED"
    loop.check_limits()


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_37_chunks_late_by_whole_lengths_stay_continuous(make_loop, late):
    loop, door, _ = started(make_loop)
    rng = np.random.default_rng(late)

    def chunks(now, k):
        door.offer(message(now, 10**6 + k, times=()), now) if k == 399 else None
        if k % 10 == 0 and k // 10 % 5 != 4:
            begin = now - 0.09 if late else now  # computed from an old observation
            knots = (
                0.08 * np.sin(0.5 * (now + 0.05 * np.arange(1, 4))[:, None]) * np.ones(3) + rng.normal(size=3) * 1e-3
            )
            stretch = 0.1 if late < 2 else 0.1 / late
            door.offer(message(begin, k + 1, knots, times=tuple(stretch * np.arange(1, 4))), now)

    run(loop, door, 4.0, chunks)
    assert loop.safety.faults == ()
    loop.check_limits()


def test_37_chunk_that_came_too_late_is_rejected(door):
    door.offer(message(10.0, 1), 10.0)
    late = message(10.05, 2, np.zeros((2, 3)), times=(0.01, 0.02))
    assert door.offer(late, 10.1) == "chunk_late"


def test_external_is_lowest_and_one_shot_lasts_until_its_last_point(make_arm):
    door = Intake(make_arm(), options=DoorOptions(allow_external=True))
    foreign = message(0.0, 0, (0.05, 0.0, 0.0), source="external", tag="x", times=(4.0,))
    assert door.offer(foreign, 10.0) == ""
    halfway = [float(door.select(10.0 + 0.01 * k)[0].value[0]) for k in range(1, 390)]
    assert door.authority == "external"
    assert np.diff(halfway).min() > -1e-5  # one point says when to be there: a motion, not a step
    assert halfway[-1] == pytest.approx(0.05, abs=1e-3)
    assert np.diff(halfway)[-1] < 1e-5  # and it ends at rest
    door.offer(message(13.91, 1, (0.05, 0.0, 0.0)), 13.91)
    door.note_executed(13.91, np.array([0.05, 0.0, 0.0]), np.zeros(3), as_asked=True)
    door.select(13.92)
    assert door.authority == "policy"


@pytest.mark.parametrize(("mode", "field"), [("forward_velocity", "velocities"), ("forward_effort", "effort")])
def test_external_point_of_velocities_or_efforts_holds_until_its_time(make_arm, mode, field):
    door = Intake(
        make_arm(command_mode=mode, controller_timeout=0.1, dead_time=0.0), options=DoorOptions(allow_external=True)
    )
    door.note_executed(9.99, np.full(3, 1.2), np.zeros(3), as_asked=True)  # where the robot stands is no speed
    asked = {field: np.full((1, 3), 0.1)}
    assert door.offer(message(0.0, 0, source="external", tag="x", times=(0.5,), **asked), 10.0) == ""
    assert [door.select(10.0 + t)[0].value.tolist() for t in (0.01, 0.25, 0.49)] == [[0.1] * 3] * 3
    assert door.select(10.51)[0].value.size == 0


def test_external_far_step_is_refused_or_approached_when_asked(make_arm):
    far = message(0.0, 0, (1.0, 0.0, 0.0), source="external", tag="x", times=(0.1,))
    strict = Intake(make_arm(), options=DoorOptions(allow_external=True))
    strict.offer(far, 10.0)
    assert strict.select(10.01)[0].value.size == 0
    assert strict.authority == "none"
    eager = Intake(make_arm(), options=DoorOptions(allow_external=True, external_align=True))
    eager.offer(far, 10.0)
    assert [float(eager.select(t)[0].value[0]) for t in (10.01, 10.02)] == [0.0, 1.0]  # begins where the robot is


def test_nothing_from_anybody_is_none(door):
    assert door.select(1.0) == (None, "")
    assert door.authority == "none"
