"""The ROS bench at its shortest: two processes, one second."""

import os

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed")

from robot_rl.bench import ros


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
