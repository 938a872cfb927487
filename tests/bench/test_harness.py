"""Contestants in turn: what is timed, in which order, and what a ratio is; where the suites are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness import compare, ratio, repeat
from robot_rl.verbs import bench


def test_cases_are_timed_in_turning_order_without_what_comes_before_a_round() -> None:
    now, order = 0.0, []

    def work(name: str, seconds: float) -> Callable[[], None]:
        def go() -> None:
            nonlocal now
            now += seconds
            order.append(name)

        return go

    cases = {"a": work("a", 2.0), "b": repeat(work("b", 0.5), 3)}
    found = compare(cases, 2, warm=1, before=work("before", 100.0), clock=lambda: now)
    assert found == {"a": [2.0, 2.0], "b": [1.5, 1.5]}
    assert order == ["before", "b", "b", "b", "a", "before", "a", "b", "b", "b", "before", "b", "b", "b", "a"]


def test_ratio_is_of_the_same_round_and_above_one_where_ours_is_faster() -> None:
    # 4 / 2, 3 / 1, 8 / 8: the median is 2, the quartiles lie half way to the extremes
    assert ratio([2.0, 1.0, 8.0], [4.0, 3.0, 8.0]) == {"ratio": 2.0, "ratio_low": 1.0, "ratio_high": 3.0}
    assert ratio([2.0, 1.0, 8.0], [4.0, 3.0, 8.0], quartiles=True)["ratio_high"] == 2.5
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_bench_of_an_install_says_where_the_suites_are(robot_rl_in, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bench, "SUITES", tmp_path / "benchmarks")
    done = robot_rl_in(tmp_path, "bench", "sac")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "robot-rl: the benchmarks are not part of an installed robot_rl: run robot-rl bench from a checkout of it"
    ]
