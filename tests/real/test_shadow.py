"""Before the first motion: healthy starts of real worlds raise no alarm, and every fault is named."""
# pyright: reportArgumentType=false, reportOptionalMemberAccess=false

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from robot_rl.data.seen import RowSample, measure_seen
from robot_rl.gaps import (
    CamerasSwapped,
    GravityFrame,
    JointOrder,
    JointScale,
    JointSign,
    Late,
    QuaternionOrder,
    TurnScale,
    VelocityMissing,
)
from robot_rl.legs import gravity
from robot_rl.real.core.shadow import Shadow, ShadowSample
from robot_rl.real.core.shadow_report import card_digest, missing_leave, report_path
from robot_rl.real.core.spec import JointSpec, RobotSpec
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.sim.mujoco_env import make
from robot_rl.types.io import mosaic
from tests.real.legs_world import needs_g1
from tests.real.shadow_starts import REST, arm_start, legs_start, reach_of

ARM = (
    ("joint order", lambda n: JointOrder(order=(0, 2, 1, *range(3, n))), False),
    ("joint order", lambda n: JointOrder(order=tuple(range(n))[::-1]), False),
    ("sign", lambda n: JointSign(joints=(1,)), False),
    ("sign", lambda n: JointSign(joints=tuple(range(n))), False),
    ("scale", lambda n: JointScale(), True),
    ("scale", lambda n: JointScale(part="positions"), True),
    ("velocity", lambda n: VelocityMissing(), False),
    ("velocity", lambda n: JointScale(part="velocities"), False),
    ("velocity", lambda n: JointScale(factor=-1.0, part="velocities"), False),
    ("delay", lambda n: Late(seconds=0.12), True),
    ("delay", lambda n: Late(seconds=0.12, restamp=True), False),
)
"""Check that names it, the fault on n joints, and whether rest shows it."""
BODY = (
    ("quaternion order", lambda n: QuaternionOrder(), True),
    ("gravity frame", lambda n: GravityFrame(kind="inverse"), False),
    ("gravity frame", lambda n: GravityFrame(kind="down"), True),
    ("gravity frame", lambda n: GravityFrame(kind="sign"), True),
    ("angular velocity", lambda n: TurnScale(), False),
)
OWN = {"joint order", "sign", "scale", "velocity", "delay", "quaternion order", "gravity frame", "angular velocity"}


def checks(report, state="wrong"):
    return {note.check for note in report.of(state)}


def healthy(start) -> None:
    """Neither at rest nor in motion anything is wrong, and after the motion nothing is left to check."""
    rest, driven = start.play(until=REST).judge(), start.play().judge()
    assert checks(rest) == checks(driven) == set(), (rest.lines(), driven.lines())
    assert {"joint order", "sign", "velocity"} <= checks(rest, "open")
    assert "delay" in checks(rest, "fine")
    assert driven.clean, driven.lines()


def named(start, check, make_gap, at_rest) -> None:
    count = len(start.spec.names)
    found = start.play((make_gap(count),)).judge()
    assert check in checks(found), found.lines()
    also = {"velocity"} if "positions" in str(make_gap(count)) else set()  # then one is not the other's change
    assert checks(found) & OWN <= {check} | also, found.lines()
    assert not found.clean
    rest = start.play((make_gap(count),), until=REST).judge()
    if at_rest:
        assert check in checks(rest), rest.lines()
    elif check != "delay":  # rest cannot show it, and says so; of a delay without a trace in stamps it knows nothing
        assert check not in checks(rest, "fine"), rest.lines()


@pytest.fixture(scope="module")
def arms():
    return [arm_start("desk_arm", 0), arm_start("small", 1)]


@pytest.fixture(scope="module")
def legs(tmp_path_factory):
    return legs_start(tmp_path_factory.mktemp("legs") / "g1", 1)


def test_healthy_arms_raise_no_alarm_and_nothing_is_left_to_check(arms) -> None:
    for start in arms:
        healthy(start)


@needs_g1
def test_healthy_legs_raise_no_alarm_and_nothing_is_left_to_check(legs) -> None:
    healthy(legs)


@pytest.mark.parametrize("number", range(len(ARM)))
def test_every_fault_of_an_arm_is_named(arms, number) -> None:
    for start in arms:
        named(start, *ARM[number])


@needs_g1
@pytest.mark.parametrize("number", range(len(ARM) + len(BODY)))
def test_every_fault_of_legs_is_named(legs, number) -> None:
    named(legs, *(*ARM, *BODY)[number])


@pytest.mark.slow
@needs_g1
@pytest.mark.timeout(1200)
def test_twenty_healthy_starts_without_a_false_alarm_and_every_fault_of_each_named(tmp_path) -> None:
    makers = [partial(arm_start, "desk_arm", seed) for seed in range(10, 17)]
    makers += [partial(arm_start, "small", seed) for seed in range(10, 17)]
    makers += [partial(legs_start, tmp_path / str(seed), seed) for seed in range(6)]
    assert len(makers) == 20
    for start in (make_start() for make_start in makers):
        healthy(start)
        for fault in (*ARM, *(BODY if start.spec.imu else ())):
            if fault[0] != "scale" or np.abs(np.rad2deg(start.measured[0].position)).max() > 4.0:
                named(start, *fault)


@pytest.mark.slow
@needs_g1
def test_an_imu_on_a_level_trunk_with_its_yaw_at_zero_is_told_as_one_of_two_until_it_turns(tmp_path) -> None:
    start = legs_start(tmp_path / "g1", 0)
    for gap in (QuaternionOrder(), GravityFrame(kind="down")):
        rest = start.play((gap,), until=REST).judge()
        assert {"quaternion order", "gravity frame"} <= checks(rest)
        assert any("told apart once the trunk turns" in note.text for note in rest.of("wrong"))
    named(start, *BODY[0])
    named(start, "gravity frame", BODY[2][1], True)


@needs_g1
def test_an_imu_whose_driver_takes_gravity_out_leaves_up_unknown_and_is_no_fault(legs) -> None:
    def without(told):
        return replace(told, imu=np.concatenate([told.imu[:7], told.imu[7:] + 9.81 * gravity(told.imu[:4])]))

    bare = replace(legs, measured=[without(told) for told in legs.measured])
    assert "gravity frame" in checks(bare.play().judge())  # who does not say so
    imu = replace(bare.spec.sensors["imu"], acceleration="free")
    found = replace(bare, spec=replace(bare.spec, sensors={**bare.spec.sensors, "imu": imu})).play().judge()
    assert checks(found) == set()
    assert {"quaternion order", "gravity frame"} <= checks(found, "unknown")


def test_hands_that_move_it_without_commands_show_velocity_and_leave_order_and_sign_open(arms) -> None:
    found = arms[0].play(drive=False).judge()
    assert "velocity" in checks(found, "fine")
    assert {"joint order", "sign"} <= checks(found, "open")
    assert "by no command through the supervisor" in found.of("open")[-1].text
    assert checks(found) == set()


def test_joints_that_were_told_the_same_are_not_told_apart(arms) -> None:
    start = arms[0]
    alike = [None if one is None else np.array([one[0], one[0] + 1.0, *one[2:]]) for one in start.executed]
    moved = [
        replace(m, position=np.array([m.position[0], m.position[0] + 1.0, *m.position[2:]])) for m in start.measured
    ]
    found = replace(start, executed=alike, measured=moved).play().judge()
    assert "waist moves as waist and as shoulder were told alike" in " ".join(found.lines())
    assert "joint order" in checks(found, "open")


def test_sentences_say_where_and_what_to_do(arms) -> None:
    start = arms[0]
    for gap, words in (
        (JointOrder(order=(0, 2, 1, 3, 4, 5)), "shoulder moves as elbow is told"),
        (JointSign(joints=(1,)), "shoulder moves the other way than it is told"),
        (JointScale(), "the joint states are in degrees; let the driver tell radians"),
        (VelocityMissing(), "velocity of waist is zero while it moves (and 5 more joints): let the driver fill it in"),
        (Late(seconds=0.12), "states are 124 ms old when they are acted on, by their own stamps"),
    ):
        assert words in " ".join(start.play((gap,)).judge().lines())


def test_a_robot_that_is_where_training_never_was_is_told_by_the_component(arms) -> None:
    start = arms[0]
    names = start.make_runner().port.io.obs_names
    seen = start.seen.to_dict()
    seen["obs"]["state"][2] = [7.0, 7.1, 7.5, 7.9, 8.0]
    found = replace(start, seen=type(start.seen).from_dict(seen)).play(until=REST).judge()
    [note] = found.of("wrong")
    assert note.check == "range"
    assert note.text.startswith(f"{names[2]} is ")
    assert "training saw 7 to 8: bring the robot, or the task, to where training was" in note.text


def test_a_wheel_whose_position_goes_round_is_healthy() -> None:
    wheel = JointSpec("wheel", velocity=4.0, acceleration=20.0, effort=5.0, continuous=True)
    spec = RobotSpec("base", (wheel,), command_mode="forward_velocity", controller_timeout=0.1, dead_time=0.0)
    shadow, place = Shadow(spec, None, arm_io()), 0.0
    for k in range(600):
        speed = np.array([2.0 + np.sin(0.04 * k)])
        place += 0.02 * float(speed[0])
        told = np.array([(place + np.pi) % (2 * np.pi) - np.pi])
        shadow.take(ShadowSample(0.02 * k, 0.02 * k, told, speed))
        shadow.execute(0.02 * k, speed)
    assert checks(shadow.judge()) == set()


def test_too_little_is_told_as_such() -> None:
    spec = RobotSpec.load("launch/params/desk_arm.yaml")
    shadow = Shadow(spec, None, arm_io())
    assert "no complete state has come yet" in shadow.judge().of("open")[0].text
    for k in range(50):
        shadow.take(ShadowSample(0.02 * k, 0.02 * k, np.zeros(6), np.zeros(6)))
    assert "1.0 s of states so far, 2 are needed" in shadow.judge().of("open")[0].text


def arm_io():
    from robot_rl.real.port import SpecPort

    return SpecPort(RobotSpec.load("launch/params/desk_arm.yaml"), 10.0).io


@pytest.fixture(scope="module")
def looked():
    """What two cameras of the world saw in training, and now."""
    world, spec, _ = reach_of("desk_arm")
    try:
        env = make(
            4, 0, world=world, options=EngineOptions(num_threads=1, cameras=("front", "side"), camera_size=(48, 64))
        )
        obs, _ = env.reset()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"nothing renders here: {error}")
    rows, shots = RowSample(), []
    for _ in range(12):
        action = env.expert(obs).astype(np.float32)
        rows.add({k: v[None] for k, v in obs.items()}, action[None], np.ones((1, 4), bool))
        obs, *_ = env.step(action)
    io = env.io
    env.close()
    other = make(
        1, 99, world=world, options=EngineOptions(num_threads=1, cameras=("front", "side"), camera_size=(48, 64))
    )
    obs, _ = other.reset()
    for _ in range(8):
        shots.append({name: obs[f"image.{name}"][0] for name in ("front", "side")})
        obs, *_ = other.step(other.expert(obs))
    other.close()
    sensor = {"topic": "x", "type": "sensor_msgs/Image", "timeout": 0.5}
    table = {"front": sensor, "side": {**sensor, "topic": "y"}}
    from robot_rl.real.core.flight import spec_table

    return RobotSpec.from_dict({**spec_table(spec), "cameras": table}), io, measure_seen(rows, io), shots


@pytest.mark.parametrize("swapped", [False, True])
def test_cameras_that_were_swapped_are_named_and_others_are_not(looked, swapped) -> None:
    spec, io, seen, shots = looked
    shadow = Shadow(spec, seen, io, cameras=("front", "side"))
    rng = np.random.default_rng(0)
    for k in range(150):
        now, views = 0.02 * k, shots[k // 20]
        if swapped:
            views = {"front": views["side"], "side": views["front"]}
        noisy = {name: np.clip(shot + rng.normal(0.0, 3.0, shot.shape), 0, 255) for name, shot in views.items()}
        pictures = {name: (now, mosaic(shot)) for name, shot in noisy.items()}
        shadow.take(ShadowSample(now, now, np.zeros(6), np.zeros(6), None, pictures))
    found = shadow.judge()
    if swapped:
        assert "front shows what side saw in training" in " ".join(found.lines())
    else:
        assert "cameras" in checks(found, "fine"), found.lines()


def test_swapped_cameras_are_those_of_the_gap(looked) -> None:
    from robot_rl.gaps import Measured

    views = looked[3][0]
    got = CamerasSwapped(first="front", second="side").measure(Measured(0.0, np.zeros(1), np.zeros(1), None, views))
    np.testing.assert_array_equal(got.pictures["front"], views["side"])


def test_what_training_saw_of_a_camera_may_be_unknown_and_is_then_no_fault(looked) -> None:
    spec, io, seen, shots = looked
    for told, words in ((None, "does not tell what front, side saw"), (seen, "shows nothing like training's pictures")):
        shadow = Shadow(spec, told, io, cameras=("front", "side"))
        for k in range(150):
            black = {name: (0.02 * k, np.zeros(48)) for name in shots[0]}
            shadow.take(ShadowSample(0.02 * k, 0.02 * k, np.zeros(6), np.zeros(6), None, black))
        found = shadow.judge()
        assert "cameras" in checks(found, "unknown")
        assert any(words in note.text for note in found.of("unknown"))


def test_leave_is_given_for_these_weights_and_this_card_alone(arms, tmp_path) -> None:
    card = tmp_path / "arm.yaml"
    card.write_text("name: arm\n")
    facts = {"robot": "arm", "card": card_digest(card), "files": {"policy.pt": "ab"}}

    def leave(**changes):
        return missing_leave(tmp_path, **{**facts, **changes})

    assert "no policy has been shadowed on arm yet" in leave()
    assert "checked=false" in leave()
    clean, dirty = arms[0].play().judge(), arms[0].play((VelocityMissing(),)).judge()
    first = report_path(tmp_path, "arm")
    first.write_text(json.dumps(clean.table(**facts)))
    assert leave() == ""
    assert "are of other weights" in leave(files={"policy.pt": "cd"})
    assert "has changed since" in leave(card="0")
    assert "no policy has been shadowed on leg yet" in leave(robot="leg")
    second = report_path(tmp_path, "arm")
    assert second != first
    second.write_text(json.dumps(dirty.table(**facts)))
    assert "is not clean: velocity: velocity of waist is zero while it moves" in leave()
    rest = arms[0].play(until=REST).judge()
    second.write_text(json.dumps(rest.table(**facts)))
    assert "not yet checked: " in leave()
    second.write_text("{ torn")
    assert leave() == ""
