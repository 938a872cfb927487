# pyright: reportArgumentType=false
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import safety
from robot_rl.real.core.limiter import JointLimiter, JointLimits, stopping_distance, stopping_speed, wrap


def limiter(*rows, period, min_period=None, **more):
    return JointLimiter(JointLimits(*rows, **more), period=period, min_period=min_period)


def one(period=0.1, **kw):
    limits = limiter([-1.0], [1.0], [2.0], [1.0], period=period, **kw)
    limits.reset([0.0])
    return limits


def test_stopping_speed_hand_worked_three_period_brake():
    # a = 1, T = 0.1: one period changes the speed by 0.1. From v' = 0.3 the joint moves 0.03, then 0.02, 0.01, 0:
    # 0.06 in all. So 0.3 is the largest speed for d = 0.06. For d = 0.045: v' = 0.25 moves 0.025 + 0.015 + 0.005.
    speed = stopping_speed(np.array([0.06, 0.045, 0.0, -1.0]), np.array(1.0), 0.1, 0.1)
    assert speed == pytest.approx([0.3, 0.25, 0.0, 0.0], abs=1e-12)


def test_stopping_distance_hand_worked():
    # after a step with 0.25 the next ones have 0.15 and 0.05: 0.015 + 0.005
    assert stopping_distance(np.array(0.25), np.array(1.0), 0.1) == pytest.approx(0.02)


def test_stopping_speed_short_periods_after_a_long_one_hand_worked():
    # this period 0.2, later ones 0.1, a = 1: v' = 0.2 moves 0.04 now, then 0.1 * 0.1 = 0.01: d = 0.05
    assert stopping_speed(np.array(0.05), np.array(1.0), 0.2, 0.1) == pytest.approx(0.2)


@given(st.floats(0.001, 10), st.floats(0.01, 100), st.floats(0.0005, 0.1), st.floats(1, 5))
def test_stopping_speed_is_the_largest_that_stops_by_brute_force(distance, a, shortest, ratio):
    period = shortest * ratio

    def way(v):
        total, steps = v * period, 0
        while v > 0 and steps < 200_000:
            v = max(v - a * shortest, 0.0)
            total, steps = total + v * shortest, steps + 1
        return total

    v = float(stopping_speed(np.array(distance), np.array(a), period, shortest))
    if v / (a * shortest) < 3000:  # the slow reference stays fast enough
        assert way(v) == pytest.approx(distance, rel=1e-6)


def test_step_first_periods_hand_worked():
    limits = one()
    # from rest with a = 1, T = 0.1 speeds are 0.1, 0.2, 0.3 and positions 0.01, 0.03, 0.06
    assert [float(limits.step([1.0])[0]) for _ in range(3)] == pytest.approx([0.01, 0.03, 0.06])
    assert limits.at_rate[0]
    assert limits.acceleration[0] == pytest.approx(1.0)


def test_step_to_a_far_target_arrives_without_overshoot():
    limits = one()
    path = [float(limits.step([0.8])[0]) for _ in range(100)]
    assert max(path) <= 0.8 + 1e-12
    assert path[-1] == pytest.approx(0.8)


def test_step_feasible_motion_is_followed_exactly():
    limits = one(period=0.01)
    time = np.arange(1, 400) * 0.01
    wanted = 0.2 * (1 - np.cos(2.0 * time))  # speed 0.4, acceleration 0.8
    got = [float(limits.step([x])[0]) for x in wanted]
    assert got == pytest.approx(wanted, abs=1e-12)


def test_step_target_beyond_the_limit_stops_at_it():
    limits = one()
    path = [float(limits.step([1e300])[0]) for _ in range(200)]
    assert max(path) <= 1.0 + 1e-12
    assert path[-1] == pytest.approx(1.0)
    assert limits.at_limit[0]


def test_step_started_outside_moves_only_inward():
    limits = one()
    limits.reset([1.5])
    path = [1.5] + [float(limits.step([3.0])[0]) for _ in range(20)]
    assert max(path) <= 1.5
    back = [float(limits.step([0.0])[0]) for _ in range(60)]
    assert back[-1] == pytest.approx(0.0, abs=1e-9)


def test_step_nan_brakes_and_other_joints_go_on():
    limits = limiter([-1, -1], [1, 1], [2, 2], [1, 1], period=0.1)
    limits.reset([0, 0])
    for _ in range(5):
        limits.step([1.0, 1.0])
    for _ in range(6):
        limits.step([np.nan, 1.0])
    assert limits.velocity[0] == 0.0
    assert limits.velocity[1] > 0.4


def test_brake_uses_the_stop_acceleration():
    limits = one(stop_acceleration=[4.0])
    limits.reset([0.0], [0.6])
    # 4 * 0.1 = 0.4 a period: 0.2, then 0; way 0.02
    assert limits.brake()[0] == pytest.approx(0.02)
    assert limits.brake()[0] == pytest.approx(0.02)
    assert limits.velocity[0] == 0.0


def test_continuous_joint_takes_the_short_way():
    limits = limiter([0], [0], [1.0], [5.0], period=0.01, continuous=[True])
    limits.reset([3.0])
    for _ in range(200):
        limits.step([-3.0])
    assert limits.position[0] == pytest.approx(2 * np.pi - 3.0)  # through pi, 0.283 rad, not back 6 rad
    assert wrap(limits.position)[0] == pytest.approx(-3.0)


def test_velocity_mode_brakes_before_the_measured_limit():
    limits = one(period=0.01)
    q, path = 0.0, []
    for _ in range(500):
        way = np.array([[0.02 * max(limits.velocity[0], 0.0)], [0.0]])
        q += float(limits.step_velocity([5.0], [q], under_way=way)[0]) * 0.01
        path.append(q)
    assert max(path) <= 1.0
    assert path[-1] > 0.9


def test_jerk_limit_holds_away_from_the_position_limits_and_settles():
    limits = limiter([-9.0], [9.0], [1.0], [5.0], period=0.01, jerk=[50.0])
    limits.reset([0.0])
    path, acceleration = [], [0.0]
    for _ in range(600):
        path.append(float(limits.step([1.0])[0]))
        acceleration.append(float(limits.acceleration[0]))
    assert np.abs(np.diff(acceleration)).max() / 0.01 <= 50.0 * (1 + 1e-9)
    assert np.abs(np.array(path[-50:]) - 1.0).max() < 1e-6


def test_step_period_too_short_is_an_error():
    with pytest.raises(ValueError, match="min_period"):
        one().step([0.0], 0.05)
    with pytest.raises(ValueError, match="period"):
        one().step([0.0], np.nan)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"velocity": [0.0]}, "velocity"),
        ({"acceleration": [np.inf]}, "acceleration"),
        ({"upper": [-2.0]}, "lower"),
        ({"upper": [np.inf]}, "finite"),
        ({"stop_acceleration": [0.5]}, "stop_acceleration"),
        ({"velocity": [1.0, 1.0]}, "shape"),
        ({"min_period": 0.2}, "min_period"),
    ],
)
def test_limiter_wrong_arguments_are_named(change, named):
    good = {"lower": [-1.0], "upper": [1.0], "velocity": [1.0], "acceleration": [1.0], "period": 0.1}
    with pytest.raises(ValueError, match=named):
        limiter(**{**good, **change})


@settings(max_examples=60)
@given(st.data())
def test_limits_hold_for_any_input_sequence(data):
    number = st.floats(allow_nan=True, allow_infinity=True, width=64)
    v, a = data.draw(st.floats(0.01, 20)), data.draw(st.floats(0.05, 100))
    shortest, width = data.draw(st.floats(0.0005, 0.1)), data.draw(st.floats(0.001, 6))
    limits = limiter([0.0], [width], [v], [a], period=shortest)
    limits.reset([width * data.draw(st.floats(0, 1))])
    for target, ratio in data.draw(st.lists(st.tuples(number, st.floats(1, 5)), max_size=40)):
        before = float(limits.velocity[0])
        q = float(limits.step([target], shortest * ratio)[0])
        assert -1e-9 <= q <= width + 1e-9
        assert abs(limits.velocity[0]) <= v * (1 + 1e-9)
        assert abs(limits.velocity[0] - before) <= a * shortest * ratio * (1 + 1e-9)


def test_bench_counts_no_violation_and_would_see_one():
    result = safety.run(quick=True, joints=3_200, steps=1_200)
    assert result["violations"] == 0
    assert result["joint_steps"] == 4 * 3_200 * 60


class Naive(JointLimiter):
    """Clamps the target and its speed only, as range limiters do."""

    def _move(self, wanted, highest, lowest, period):
        self.at_limit = self.at_rate = np.zeros(len(highest), bool)
        speed = np.clip(
            wanted, self.velocity - self.max_acceleration * period, self.velocity + self.max_acceleration * period
        )
        return self._take(np.clip(speed, -self.max_velocity, self.max_velocity), period)


def test_bench_sees_a_limiter_without_braking_bound(monkeypatch):
    monkeypatch.setattr("robot_rl.real.core.limiter.Naive", Naive, raising=False)
    result = safety.run(quick=True, joints=320, steps=1_200, limiter="robot_rl.real.core.limiter.Naive")
    assert result["violations"] > 1000


@pytest.mark.parametrize("seed", range(20))
def test_few_joints_in_floats_equal_arrays_bit_for_bit(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    limits = {"velocity": rng.uniform(0.1, 5, n), "acceleration": 10.0 ** rng.uniform(-1, 2, n)}
    limits["lower"] = -rng.uniform(0.1, 3, n)
    limits["upper"] = limits["lower"] + rng.uniform(0.1, 5, n)
    limits |= {"continuous": rng.random(n) < 0.3, "period": 0.01, "min_period": 0.005}
    floats, arrays = limiter(**limits), limiter(**limits)
    assert floats._few is not None
    arrays._few = None
    for made in (floats, arrays):
        made.reset(np.clip(0.0, limits["lower"], limits["upper"]))
    junk = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0])
    for _ in range(300):
        period = float(rng.uniform(0.005, 0.02))
        target = np.where(rng.random(n) < 0.2, rng.choice(junk, n), rng.normal(size=n) * 10.0 ** rng.uniform(-3, 1))
        if seed % 2:
            floats.step(target, period)
            arrays.step(target, period)
        else:
            measured = floats.position + rng.normal(size=n) * 1e-3
            way = np.stack([rng.uniform(0.0, 0.1, n), rng.uniform(-0.1, 0.0, n)])
            floats.step_velocity(target, measured, under_way=way, period=period)
            arrays.step_velocity(target, measured, under_way=way, period=period)
        for name in ("position", "velocity", "acceleration", "at_limit", "at_rate"):
            assert np.array_equal(getattr(floats, name), getattr(arrays, name)), name
