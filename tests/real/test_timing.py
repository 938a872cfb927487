# pyright: reportPossiblyUnboundVariable=false
import numpy as np
import pytest

from robot_rl.real.core.alignment import JointMerger, SimulatedStamps, SourceClock, Timeline
from robot_rl.real.core.clock import ManualClock, SteadyClock
from robot_rl.real.core.scheduler import Scheduler
from robot_rl.real.core.watchdogs import Burst, Overrun, Watchdogs


def test_scheduler_keeps_absolute_deadlines_without_drift():
    clock, rng = ManualClock(5.0), np.random.default_rng(0)
    loop = Scheduler(0.01, clock)
    for k in range(10_000):
        tick = loop.wait()
        assert tick.deadline == 5.0 + k * 0.01
        assert tick.lateness == pytest.approx(0.0, abs=1e-9)
        clock.advance(float(rng.uniform(0.0, 0.0099)))
    assert loop.missed == 0


def test_scheduler_late_loop_skips_and_never_bursts():
    # work ends 0.035 after t_0 = 0: deadlines 0.01, 0.02, 0.03 are gone, the next is 0.04
    clock = ManualClock()
    loop = Scheduler(0.01, clock)
    loop.wait()
    clock.advance(0.035)
    tick = loop.wait()
    assert (tick.index, tick.skipped, loop.missed) == (4, 3, 3)
    assert clock.now() == pytest.approx(0.04)
    assert loop.wait().deadline == pytest.approx(0.05)


def test_scheduler_random_work_counts_every_deadline_once():
    clock, rng = ManualClock(), np.random.default_rng(1)
    loop = Scheduler(0.01, clock)
    last = -1.0
    for _ in range(3000):
        tick = loop.wait()
        assert tick.deadline > last
        assert clock.now() >= tick.deadline - 1e-9
        last = tick.deadline
        clock.advance(float(rng.exponential(0.01)))
    assert loop.ticks + loop.missed == tick.index + 1


def test_scheduler_wrong_period_is_named():
    with pytest.raises(ValueError, match="period is 0"):
        Scheduler(0.0, ManualClock())


def test_steady_clock_sleeps_until_the_deadline():
    clock = SteadyClock(spin=0.0005)
    goal = clock.now() + 0.003
    clock.sleep_until(goal)
    assert clock.now() >= goal
    with pytest.raises(ValueError, match="backwards"):
        ManualClock().advance(-1.0)


def test_watchdogs_age_and_reaction():
    dogs = Watchdogs({"joints": (0.1, "fault"), "estop": (0.25, "estop")})
    assert [(name, age) for name, _, _, age in dogs.late(15.1)] == [("joints", np.inf), ("estop", np.inf)]
    dogs.feed("joints", 15.0)
    dogs.feed("estop", 15.0)
    assert dogs.late(15.1 - 1e-9) == []
    assert dogs.late(15.2) == [("joints", 0.1, "fault", pytest.approx(0.2))]
    with pytest.raises(KeyError, match="watched"):
        dogs.feed("imu", 0.0)


def test_burst_full_at_ten_in_a_second():
    burst = Burst(10)
    assert [burst.add(0.1 * k) for k in range(12)] == [False] * 9 + [True] * 3
    assert not burst.full(2.2)


def test_overrun_counts_missing_ticks():
    loop = Overrun(0.01, limit=5)
    assert [loop.tick(t) for t in (0.0, 0.01, 0.05, 0.11)] == [False, False, False, True]
    assert loop.gap == 5


@pytest.mark.parametrize("offset", [5.0, -5.0])
def test_19_host_clock_off_by_seconds_age_is_right_and_no_fault(offset):
    rng, source = np.random.default_rng(0), SourceClock()
    errors = []
    for k in range(500):
        true, delay = 50.0 + 0.01 * k, 0.002 + float(rng.exponential(0.003))
        found = source.arrive(true + delay, true + offset)
        assert found.fault == ""
        if k >= 100:
            errors.append(abs(found.time - true))
    assert max(errors) <= 0.005


@pytest.mark.parametrize(("step", "fault"), [(1.0, "future"), (-1.0, "backwards")])
def test_20_host_clock_step_is_one_fault_and_freshness_stays(step, fault):
    source, faults = SourceClock(), []
    for k in range(300):
        now = 50.0 + 0.01 * k
        found = source.arrive(now + 0.001, now + (step if k >= 150 else 0.0))
        faults.append(found.fault)
        assert found.delay <= 0.001
    assert [f for f in faults if f] == [fault]
    assert source.faults == 1


def test_source_clock_tells_a_latency_that_grows_by_9_ms_a_second():
    source, told = SourceClock(), []
    for k in range(12_001):  # 120 s; the estimate may rise by 200 ppm, 24 ms
        told.append(source.arrive(100.0 + 0.01 * k, 700.0 + 0.01 * k - 0.009 * 0.01 * k).delay)
    assert told[100] == pytest.approx(0.009, abs=5e-4)
    assert told[-1] == pytest.approx(1.08 - 0.024, abs=1e-3)


def test_source_clock_follows_a_drift_of_100_ppm_for_an_hour_without_ageing():
    source = SourceClock()
    for k in range(36_000):
        found = source.arrive(100.0 + 0.1 * k, 5000.0 + 0.1 * k * (1.0 - 1e-4))
        assert (found.delay, found.fault) == (pytest.approx(0.0, abs=1e-9), "")
    assert source.offset == pytest.approx(100.0 - 5000.0 + 0.36, abs=1e-3)


def test_source_clock_of_the_same_host_is_believed_from_the_first_stamp_on():
    source = SourceClock()  # our steady clock is 5000 s behind its clock
    first = source.arrive(100.0, 5100.0 - 3600.0, known=-5000.0)
    assert (first.delay, first.time, first.fault) == (3600.0, 100.0 - 3600.0, "")
    assert source.arrive(100.1, 5100.1 - 0.02, known=-5000.0).delay == pytest.approx(0.02)
    assert source.arrive(100.2, 5101.2, known=-5000.0).fault == "future"
    assert source.arrive(100.3, 5100.3, known=-5000.0).fault == ""
    assert source.arrive(100.4, 5099.4, known=-5000.0).fault == "backwards"


def test_source_clock_unstamped_counts_from_arrival_and_reset_forgets():
    source = SourceClock()
    source.arrive(0.0, 100.0)
    assert source.arrive(0.5, 100.48).delay == pytest.approx(0.02, abs=2e-4)
    assert source.arrive(1.5, 0.0).time == 1.5
    source.reset()
    assert np.isnan(source.offset)


def test_timeline_equals_brute_force():
    rng = np.random.default_rng(0)
    line, samples = Timeline(1000), np.sort(rng.uniform(0, 10, 200))
    for time in rng.permutation(samples):  # out of order
        line.add(float(time), np.array([time]))
    for time in rng.uniform(-0.1, 10, 500):
        best = max((t for t in samples if t <= time), default=None)
        found = line.newest(float(time))
        assert (None if found is None else found[0]) == best
        assert found is None or float(found[1][0]) == best


def test_timeline_keeps_the_newest_capacity_samples():
    line = Timeline(3)
    for k in range(5):
        line.add(float(k), k)
    assert len(line) == 3
    assert line.newest(1.5) is None
    assert line.newest(9.0) == (4.0, 4)


def test_16_17_merged_halves_reordered_and_foreign_joints():
    merge = JointMerger(("a", "b", "c"))
    assert merge.add(1.0, ["c", "x", "a"], np.array([3.0, 9.0, 1.0]), np.array([0.3, 0.9, 0.1])) == ""
    assert np.isnan(merge.position[1])
    assert merge.add(2.0, ["b"], np.array([2.0]), np.array([0.2])) == ""
    assert merge.position == [1.0, 2.0, 3.0]
    assert merge.velocity == [0.1, 0.2, 0.3]
    assert merge.time == [1.0, 2.0, 1.0]
    assert merge.add(3.0, ["a", "a"], np.zeros(2)) == "duplicate"
    assert merge.add(3.0, ["a"], np.zeros(2)) == "lengths"


def test_missing_velocity_is_estimated_and_marked():
    merge = JointMerger(("a",))
    for k in range(300):
        merge.add(0.01 * k, ["a"], np.array([0.02 * k]))
    assert merge.estimated[0]
    assert merge.velocity[0] == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_estimated_velocity_of_a_wheel_whose_position_goes_round(sign):
    merge = JointMerger(("a",), (True,))
    told = []
    for k in range(700):
        merge.add(0.01 * k, ["a"], np.array([(sign * 0.02 * k + np.pi) % (2 * np.pi) - np.pi]))
        told.append(merge.velocity[0])
    assert told[100:] == pytest.approx([2.0 * sign] * 600, rel=1e-6)


def test_simulated_stamps_age_in_simulated_time_and_keep_their_order():
    stamps = SimulatedStamps()
    # simulated time runs at half pace and is known in steps of 10 ms, late
    assert stamps.steady(100.0, 5.0, 4.99) == pytest.approx(99.99)
    assert stamps.steady(100.02, 5.0, 5.0) == pytest.approx(100.02)  # no age
    assert stamps.steady(100.03, 5.03, 5.005) == pytest.approx(100.02)  # 25 ms old would be before the one above
    assert stamps.steady(100.04, 5.0, 5.02) == pytest.approx(100.04)  # the clock's message is not here yet
    assert stamps.steady(100.05, 5.04, 3.0) == pytest.approx(98.01)  # a stamp that goes back does go back
    assert stamps.steady(100.06, 3.0, 0.0) == 0.0
