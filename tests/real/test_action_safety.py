"""The safety layer at the level of actions: limits for every input, latched stops, the same for people."""
# pyright: reportPossiblyUnboundVariable=false

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.human.pilot import Pilot
from robot_rl.real.action_safety import BITS, ActionSafety, Axes, SafetyLimits
from robot_rl.real.robot import Level
from robot_rl.types import IOSpec

DT = 0.1
IO = IOSpec(
    {"state": ((3,), "float32")},
    ("tip_dx", "tip_dy", "gripper_opening"),
    (-0.02, -0.02, 0.0),
    (0.02, 0.02, 0.08),
    ("m", "m", "m"),
    10.0,
)
LOW, HIGH = np.array([-0.1, -0.1]), np.array([0.1, 0.1])


class Rig:
    """A robot that does exactly what the layer lets through."""

    def __init__(self, **limits):
        self.place, self.speed, self.now = np.zeros(2), np.zeros(2), 0.0
        self.safety = ActionSafety(IO, self.axes(), SafetyLimits(**limits))
        for _ in range(5):
            self.safety.watch(self.axes(), self.now)
            self.now += DT
        assert self.safety.enable() == []

    def axes(self):
        return Axes(self.place.copy(), self.speed.copy(), LOW, HIGH)

    def __call__(self, action, *, moving=True, human=False):
        out = self.safety.filter(np.array(action, float), self.axes(), self.now, moving=moving, human=human)
        self.speed = out.action[:2] * 0.02 / DT
        self.place = self.place + self.speed * DT
        self.now += DT
        return out


numbers = st.one_of(
    st.floats(-1, 1), st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0]), st.floats(-5, 5)
)


@settings(max_examples=60)
@given(st.lists(st.tuples(numbers, numbers, numbers, st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_whatever_comes_in_limits_hold(actions):
    rig = Rig(acceleration=1.0, jerk=1000.0)
    before = np.zeros(2)
    for x, y, grip, moving, human in actions:
        out = rig((x, y, grip), moving=moving, human=human)
        assert np.isfinite(out.action).all()
        assert np.abs(out.action).max() <= 1.0 + 1e-6
        assert (rig.place >= LOW - 1e-6).all()  # the workspace, for people too
        assert (rig.place <= HIGH + 1e-6).all()
        assert (np.abs(rig.speed - before) <= 1.0 * DT + 1e-6).all()  # acceleration
        before = rig.speed


def test_good_action_passes_unchanged():
    rig = Rig(acceleration=10.0, jerk=1000.0)
    out = rig((0.5, -0.25, -1.0))
    np.testing.assert_allclose(out.action, [0.5, -0.25, -1.0], atol=1e-6)
    assert out.level is Level.OK
    assert out.bits == 0
    assert out.clip_frac == pytest.approx(0.0, abs=1e-6)


def test_wall_stops_the_robot_and_says_so():
    rig = Rig()
    reasons = set()
    for _ in range(60):
        reasons |= set(rig((1.0, 0.0, 1.0)).reasons)
    assert 0.08 < rig.place[0] <= 0.1
    assert "limit" in reasons


def test_three_bad_actions_latch_and_only_a_person_clears():
    rig = Rig()
    assert not rig((math.nan, 0, 0)).finite
    assert not rig.safety.stopped
    rig((0, 0, 0))
    for _ in range(3):
        out = rig((math.inf, 0, 0))
    assert out.level is Level.STOP
    assert rig.safety.stopped
    for _ in range(20):  # good actions do not clear it, nor does enabling
        out = rig((1.0, 0, 0))
        rig.safety.enable()
    assert rig.safety.stopped
    np.testing.assert_allclose(out.action[:2], 0.0)
    assert rig.safety.rearm() == []
    assert rig.safety.enable() == []
    assert rig((0.1, 0, 0)).level in (Level.OK, Level.CLIPPED)


def test_estop_is_latched_while_pressed_and_after():
    rig = Rig()
    rig((0.5, 0, 0))
    rig.safety.estop()
    assert rig((1.0, 0, 0)).level is Level.STOP
    for _ in range(10):
        rig((1.0, 0, 0))
    assert rig.safety.rearm()  # still pressed
    rig.safety.estop(pressed=False)
    rig((0, 0, 0))
    assert rig.safety.rearm()  # released too shortly ago
    for _ in range(10):
        rig((0, 0, 0))
    assert rig.safety.rearm() == []


def test_gripper_keeps_its_grip_when_nobody_drives():
    rig = Rig()
    for _ in range(3):
        rig((0.0, 0.0, -1.0))
    out = rig((0.0, 0.0, 1.0), moving=False)
    assert out.action[2] == pytest.approx(-1.0)


def test_robot_that_jumps_while_it_may_move_is_a_fault():
    rig = Rig()
    rig((0.1, 0, 0))
    rig.place = rig.place + 0.5
    rig((0.1, 0, 0))
    assert rig.safety.stopped


def test_lost_state_stops():
    rig = Rig()
    rig((0.1, 0, 0))
    rig.place[:] = math.nan
    assert rig((0.1, 0, 0)).level is Level.STOP


def test_bits_name_the_reasons():
    rig = Rig()
    rig.safety.estop()
    out = rig((1.0, 0, 0))
    assert out.bits & (1 << BITS.index("operator"))


@pytest.mark.parametrize("wrong", [{"acceleration": 0.0}, {"jerk": math.inf}, {"direct_rate": -1.0}])
def test_limits_refuse_nonsense(wrong):
    with pytest.raises(ValueError, match="expected"):
        SafetyLimits(**wrong)


def test_late_loop_holds_and_is_counted():
    rig = Rig()
    pilot = Pilot(IO, None, axes=rig.axes)
    assert pilot.begin() == []
    still = np.zeros(3, np.float32)
    pilot.drive({}, still)
    pilot.wait()
    pilot.clock.sleep_until(pilot.clock.now() + 1.0)  # the process was away for ten periods
    pilot.wait()
    driven = pilot.drive({}, still)
    assert pilot.late == 1
    assert driven.lost
    assert driven.driver == "HOLD"


def test_rotation_may_swing_further_past_its_limit_than_a_move():
    io = IOSpec({"state": ((2,), "float32")}, ("dx", "dyaw"), (-0.02, -0.1), (0.02, 0.1), ("m", "rad"), 10.0)
    for place, fault in (([0.0, 1.24], False), ([0.0, 1.32], True), ([0.14, 0.0], True), ([0.125, 0.0], False)):
        axes = Axes(np.array(place), np.zeros(2), np.array([-0.1, -1.2]), np.array([0.1, 1.2]))
        safety = ActionSafety(io, axes)
        for tick in range(5):
            safety.watch(axes, 0.1 * tick)
        assert bool(safety.enable()) is fault, place
