"""Gaps: what each changes, by hand-worked numbers; what undoes it; and what is refused."""
# pyright: reportArgumentType=false, reportOptionalSubscript=false

from __future__ import annotations

import math

import numpy as np
import pytest

from robot_rl.gaps import (
    KINDS,
    CameraMoved,
    CamerasSwapped,
    CommandGain,
    Dropped,
    Gap,
    GravityFrame,
    JointOffset,
    JointOrder,
    JointScale,
    JointSign,
    Late,
    Measured,
    QuaternionOrder,
    Stiction,
    TurnScale,
    apply_gaps,
    inverse_of,
    read_gaps_text,
)
from robot_rl.legs import gravity

TILT = np.array([math.sin(0.1), 0.0, 0.0, math.cos(0.1)])
"""Rolled by 0.2 rad."""


def told(**changes) -> Measured:
    imu = np.array([*TILT, 0.1, 0.2, 0.3, 0.0, 9.81 * math.sin(0.2), 9.81 * math.cos(0.2)])
    shots = {"a": np.full((4, 6, 3), 10, np.uint8), "b": np.full((4, 6, 3), 20, np.uint8)}
    values = {"time": 1.0, "position": np.array([0.1, 0.2, 0.3]), "velocity": np.array([1.0, 2.0, 3.0])}
    return Measured(**{**values, "imu": imu, "pictures": shots, **changes})


def test_joints_get_the_values_of_others_and_other_signs_units_and_zeros() -> None:
    assert JointOrder(order=(2, 0, 1)).measure(told()).position.tolist() == [0.3, 0.1, 0.2]
    assert JointSign(joints=(1,)).measure(told()).velocity.tolist() == [1.0, -2.0, 3.0]
    assert JointScale().measure(told(position=np.array([math.pi]))).position.tolist() == [pytest.approx(180.0)]
    assert JointScale(part="velocities").measure(told()).position.tolist() == [0.1, 0.2, 0.3]
    assert JointOffset(offset=(1.0, 0.0, 0.0)).measure(told()).position[0] == pytest.approx(1.1)
    with pytest.raises(ValueError, match="1 entries, expected 3"):
        JointOffset(offset=(1.0,)).measure(told())


def test_commands_of_pd_mode_keep_their_gains() -> None:
    value = np.arange(15.0).reshape(5, 3)
    turned = JointSign(joints=(0,), side="commands").command(value)
    assert turned[:, 0].tolist() == [0.0, -3.0, -6.0, 9.0, 12.0]
    assert JointOrder(order=(1, 0, 2), side="commands").command(value)[3].tolist() == [10.0, 9.0, 11.0]
    assert CommandGain(factor=2.0).command(value)[:2, 1].tolist() == [2.0, 4.0]
    assert JointSign(joints=(0,)).command(value) is value


def test_gravity_of_a_rolled_trunk_in_each_wrong_frame() -> None:
    """Rolled by 0.2 rad gravity is (0, -sin, -cos); of the inverse it points to the other side; upside down, up."""
    sine, cosine = math.sin(0.2), math.cos(0.2)
    np.testing.assert_allclose(gravity(told().imu[:4]), [0.0, -sine, -cosine], atol=1e-12)
    for kind, expected in (("inverse", [0.0, sine, -cosine]), ("down", [0.0, sine, cosine])):
        found = GravityFrame(kind=kind).measure(told()).imu
        np.testing.assert_allclose(gravity(found[:4]), expected, atol=1e-12)
    assert GravityFrame(kind="sign").measure(told()).imu[9] == pytest.approx(-9.81 * cosine)
    assert QuaternionOrder().measure(told()).imu[:4].tolist() == [TILT[3], *TILT[:3]]
    assert TurnScale().measure(told()).imu[4] == pytest.approx(0.1 * 180.0 / math.pi)


def test_late_states_keep_their_stamps_unless_the_driver_stamps_what_it_sends() -> None:
    for restamp, stamps in ((False, [0.0, 0.0, 0.0, 0.1, 0.2]), (True, [0.0, 0.1, 0.2, 0.3, 0.4])):
        gap = Late(seconds=0.2, restamp=restamp)
        found = [gap.measure(told(time=0.1 * k, position=np.array([float(k)]))) for k in range(5)]
        assert [one.position[0] for one in found] == [0.0, 0.0, 0.0, 1.0, 2.0]
        assert [one.time for one in found] == pytest.approx(stamps)


def test_a_share_of_messages_is_told_again() -> None:
    gap = Dropped(share=0.3, seed=1)
    found = [gap.measure(told(time=float(k))).time for k in range(2000)]
    assert np.mean(np.diff(found) == 0.0) == pytest.approx(0.3, abs=0.03)


def test_a_joint_that_sticks_stays_behind_by_the_band_both_ways() -> None:
    gap = Stiction(band=0.1)
    found = [float(gap.command(np.array([x]))[0]) for x in (0.0, 0.05, 0.3, 0.25, 0.15, 0.0)]
    assert found == pytest.approx([0.0, 0.0, 0.2, 0.2, 0.2, 0.1])


def test_cameras_are_swapped_and_moved() -> None:
    swapped = CamerasSwapped(first="a", second="b").measure(told()).pictures
    assert (swapped["a"][0, 0, 0], swapped["b"][0, 0, 0]) == (20, 10)
    shot = np.zeros((4, 6, 3), np.uint8)
    shot[1, 2] = 200
    moved = CameraMoved(camera="a", right=2, down=1).measure(told(pictures={"a": shot})).pictures["a"]
    assert np.argwhere(moved[..., 0]).tolist() == [[2, 4]]
    square = np.zeros((5, 5, 3), np.uint8)
    square[0, 2] = 200  # above the middle; a quarter turn clockwise brings it to the right
    turned = CameraMoved(camera="a", degrees=90).measure(told(pictures={"a": square})).pictures["a"]
    assert np.argwhere(turned[..., 0]).tolist() == [[2, 4]]


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "joint_order", "order": [2, 0, 1]}, {"name": "joint_sign", "joints": [0, 2]}]',
        '[{"name": "joint_scale"}, {"name": "joint_offset", "offset": [0.1, -0.2, 0.3]}]',
        '[{"name": "quaternion_order"}, {"name": "gravity_frame", "kind": "down"}, {"name": "turn_scale"}]',
        '[{"name": "gravity_frame", "kind": "inverse"}, {"name": "gravity_frame", "kind": "sign"}]',
        '[{"name": "cameras_swapped", "first": "a", "second": "b"}]',
    ],
)
def test_the_inverse_gives_back_what_was(text: str) -> None:
    gaps, was = read_gaps_text(text), told()
    got = apply_gaps(inverse_of(gaps), apply_gaps(gaps, was))
    np.testing.assert_allclose(got.position, was.position, atol=1e-12)
    np.testing.assert_allclose(got.velocity, was.velocity, atol=1e-12)
    np.testing.assert_allclose(gravity(got.imu[:4]), gravity(was.imu[:4]), atol=1e-12)
    np.testing.assert_allclose(got.imu[4:], was.imu[4:], atol=1e-12)
    assert {key: int(shot[0, 0, 0]) for key, shot in got.pictures.items()} == {"a": 10, "b": 20}


def test_what_loses_something_has_no_inverse_and_says_so() -> None:
    with pytest.raises(ValueError, match="VelocityMissing loses what it changes"):
        inverse_of(read_gaps_text('[{"name": "velocity_missing"}]'))


def test_every_gap_is_found_by_the_name_that_it_states() -> None:
    for name, kind in KINDS.items():
        assert kind.model_fields["name"].default == name
        assert issubclass(kind, Gap)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("joint_sign", "which is no JSON"),
        ('{"name": "joint_sign"}', r"expected a list such as \[\{\"name\": \"velocity_missing\"\}\]"),
        ('[{"name": "joint_sing", "joints": [1]}]', "there is no gap 'joint_sing'; gaps are joint_order, joint_sign"),
        ('[{"name": "joint_order", "order": [0, 0]}]', r"order is \[0, 0\], expected every number from 0 to 1 once"),
        ('[{"name": "late"}]', "this has to be given: seconds"),
    ],
)
def test_a_wrong_text_is_answered_with_what_was_expected(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_gaps_text(text)
