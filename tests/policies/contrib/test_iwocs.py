"""Worst-case search on tables: the windy walk, bounds that prove it, a case by hand, and bad input."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.iwocs import run
from robot_rl.policies.contrib.iwocs import (
    KnownTask,
    iwocs,
    optimal_values,
    policy_values,
    robust_values,
    start_of,
    windy_walk,
)


def test_windy_walk_is_solved_in_two_iterations_and_no_policy_is_better_in_the_worst_wind() -> None:
    """25 winds in [0, 0.5]. What a policy earns in its worst wind is at most the least of the winds' optimal values:
    the search reaches that bound, and so does robust value iteration."""
    tables = [windy_walk(float(w)) for w in np.linspace(0.0, 0.5, 25)]
    found = iwocs(tables, start=start_of())
    assert len(found.history) == 2
    assert found.chosen == [0, 24]
    bound = min(optimal_values(table, 0.99)[start_of()].max() for table in tables)
    assert found.value == pytest.approx(bound, abs=1e-8)
    robust = robust_values(tables, 0.99).argmax(1)
    worst = min(policy_values(table, robust, 0.99)[start_of()] for table in tables)
    assert found.value == pytest.approx(worst, abs=1e-8)


def test_policy_for_no_wind_loses_in_wind() -> None:
    calm, strong = windy_walk(0.0), windy_walk(0.5)
    naive = optimal_values(calm, 0.99).argmax(1)
    assert policy_values(strong, naive, 0.99)[start_of()] < optimal_values(strong, 0.99)[start_of()].max() - 0.01


def test_search_may_go_round_in_circles_where_each_dynamics_is_the_worst_somewhere() -> None:
    """The known failure: wind that also helps. The policy of the minimum never arrives (-0.01 for ever is about -1)."""
    tables = [windy_walk(float(w), blow="up") for w in np.linspace(0.0, 0.5, 5)]
    found = iwocs(tables, start=start_of())
    bound = min(optimal_values(table, 0.99)[start_of()].max() for table in tables)
    assert found.value < -0.9 < 0.0 < bound


def two_doors(pays: tuple[float, float, float]) -> KnownTask:
    """One decision, three actions, then the end."""
    transition = np.zeros((2, 3, 2))
    transition[:, :, 1] = 1.0
    return KnownTask(transition, np.array([pays, (0.0, 0.0, 0.0)]))


def test_search_by_hand() -> None:
    """A: 3, 0, 1; B: 0, 3, 1. Solved A: take 0, worst in B. Both: minima 0, 0, 1: take the third, 1 in both."""
    found = iwocs([two_doors((3.0, 0.0, 1.0)), two_doors((0.0, 3.0, 1.0))])
    assert found.history[0] == (0.0, 1)
    assert found.policy[0] == 2
    assert found.value == 1.0


def test_values_of_a_policy_are_exact() -> None:
    """One state that pays 1 for ever at discount 0.9: 10."""
    assert policy_values(KnownTask(np.ones((1, 1, 1)), np.ones((1, 1))), np.zeros(1, int), 0.9)[0] == pytest.approx(
        10.0
    )


def test_bench_reports_the_bound() -> None:
    result = run(quick=True)
    row = {row["policy"]: row for row in result["rows"]}
    assert row["IWOCS"]["worst"] == pytest.approx(result["bound"], abs=1e-8)
    assert row["solved without wind"]["worst"] < row["IWOCS"]["worst"]


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        KnownTask(np.zeros((1, 1, 1)), np.zeros((1, 1)))
    with pytest.raises(ValueError, match="same states"):
        iwocs([windy_walk(0.1), windy_walk(0.1, width=5)])
    with pytest.raises(ValueError, match="gamma is 1"):
        iwocs([windy_walk(0.1)], gamma=1.0)
    with pytest.raises(ValueError, match="wind"):
        windy_walk(1.0)
