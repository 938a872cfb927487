"""The ROS bench at its shortest: two processes, one second; and the parts of it that need no ROS."""

import os

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed")

from benchmarks import ros, ros_core, ros_soak


def test_ros_bench_probe_counts_every_state_and_orders_its_percentiles() -> None:
    with ros._domain():
        row = ros._probe(50.0, 1.0, 0, policy=True)
    assert row["ticks"] == 50
    assert row["answered"] > 0.5
    assert 0.0 < row["one_way_p50_ms"] <= row["one_way_p99_ms"] <= row["one_way_max_ms"]
    # the closed loop holds one way and the computation
    assert row["closed_loop_p50_ms"] > row["one_way_p50_ms"]
    assert 40.0 < row["held_hz"] < 51.0


def test_ros_bench_domain_is_left_as_it_was(monkeypatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "42")
    monkeypatch.delenv("ROS_AUTOMATIC_DISCOVERY_RANGE", raising=False)
    with ros._domain():
        assert os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
        assert 1 <= int(os.environ["ROS_DOMAIN_ID"]) <= 101
    assert os.environ["ROS_DOMAIN_ID"] == "42"
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE" not in os.environ


def test_ros_bench_failing_process_says_what_it_said() -> None:
    with pytest.raises(RuntimeError, match="No module named"):
        ros._json("robot_rl.real.ros.nothing_there", [], 60.0)


def test_ros_bench_tick_is_timed_while_commands_are_followed() -> None:
    found = ros_core.tick_cost(100)
    assert found["ticks"] == 100
    assert 10.0 < found["p50_us"] <= found["p99_us"] <= found["max_us"]


def test_ros_bench_37_border_jerk_of_late_and_missing_chunks_stays_inside_what_the_limits_allow() -> None:
    rows = ros_core.border_jerk(5.0, joints=3)
    worst = 2.0 * 10.0 / 0.01  # the acceleration goes from one limit to the other within a period
    for name, row in rows.items():
        for key in ("border_p50", "border_p99", "inside_p50", "inside_p99"):
            assert not row[key] > worst * (1.0 + 1e-6), (name, key)
    assert rows["on time"]["border_p99"] < 100.0  # chunks of one smooth path: no kick where they meet
    assert rows["on time"]["stops"] == 0
    assert rows["1 of 2 missing"]["stops"] == 0  # half a second of chunk covers one that is missing
    assert rows["2 of 3 missing"]["stops"] > 3  # but not two
    assert rows["1 of 3 late by 150 ms"]["refused"] > 3
    assert rows["1 of 3 late by 150 ms"]["stops"] == 0


def test_ros_bench_soak_slopes_by_hand() -> None:
    # 100 MB and 2 MB per hour, 25 % of a core; the first 100 s, in which memory grows by 50 MB, are left out
    rows = [(t, 100.0 + 2.0 * t / 3600.0 + max(0.0, 50.0 - 0.5 * t), 7.0 + 0.25 * t) for t in map(float, range(1000))]
    found = ros_soak._flatness(rows, 100.0)
    assert found["rss_mb_per_h"] == pytest.approx(2.0)
    assert found["rss_start_mb"] == pytest.approx(100.0 + 200.0 / 3600.0)
    assert found["cpu_percent"] == pytest.approx(25.0)
    assert found["cpu_points_per_h"] == pytest.approx(0.0, abs=1e-6)
