"""The worst of a box of dynamics: an analytic family with noise, refinement, and bad boxes."""

from __future__ import annotations

import numpy as np
import pytest

from robot_rl.loops.worst_case import grid, worst_case


def test_grid_has_all_combinations_and_both_ends() -> None:
    points = grid({"a": (0.0, 1.0), "b": (-1.0, 1.0)}, 3)
    assert len(points) == 9
    assert points[0] == {"a": 0.0, "b": -1.0}
    assert points[1] == {"a": 0.0, "b": 0.0}
    assert points[-1] == {"a": 1.0, "b": 1.0}


def family(point: dict[str, float], seed: int) -> list[float]:
    """Least at a = 0.5, b = -1 by a margin of 0.01, under noise of 5 per episode that the seed alone decides."""
    noise = 5.0 * np.random.default_rng(seed).standard_normal(10)
    return (noise + 0.04 * abs(point["a"] - 0.5) + 0.01 * (point["b"] + 1.0)).tolist()


def test_worst_case_common_random_numbers_find_what_noise_would_hide() -> None:
    box, rng = {"a": (0.0, 1.0), "b": (-1.0, 1.0)}, np.random.default_rng(0)
    for seed in range(20):
        assert worst_case(family, box, points=5, seed=seed)[0] == {"a": 0.5, "b": -1.0}
    # the same family with noise of its own for every dynamics: the order is luck
    lucky = [worst_case(lambda p, _: family(p, int(rng.integers(1 << 30))), box)[0] for _ in range(20)]
    assert sum(point == {"a": 0.5, "b": -1.0} for point in lucky) < 10


def test_worst_case_asks_every_dynamics_once_and_with_one_seed() -> None:
    asked: list[tuple[float, int]] = []

    def score(point: dict[str, float], seed: int) -> list[float]:
        asked.append((point["a"], seed))
        return [point["a"]]

    best, value, seen = worst_case(score, {"a": (1.0, 3.0)}, points=3, refine=3, seed=7)
    assert (best, value) == ({"a": 1.0}, 1.0)
    assert {seed for _, seed in asked} == {7}
    assert len(asked) == len({a for a, _ in asked}) == len(seen)


def test_worst_case_refinement_leaves_the_grid() -> None:
    """Least at 0.3; the grid of 0, 0.5, 1 says 0.5. Steps 0.25, 0.125, 0.0625, ...: 0.25, then 0.3125, 0.296875."""

    def score(point: dict[str, float], _: int) -> list[float]:
        return [(point["x"] - 0.3) ** 2]

    assert worst_case(score, {"x": (0.0, 1.0)}, points=3)[0]["x"] == 0.5
    assert worst_case(score, {"x": (0.0, 1.0)}, points=3, refine=6)[0]["x"] == pytest.approx(0.3, abs=0.01)


def test_worst_case_refinement_stays_in_the_box() -> None:
    _, _, seen = worst_case(lambda p, _: [p["x"]], {"x": (0.0, 1.0)}, points=2, refine=4)
    assert min(point["x"] for point, _ in seen) == 0.0


def test_worst_case_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"look at \['a'\]"):
        grid({"a": (1.0, 1.0)}, 3)
    with pytest.raises(ValueError, match="at least one parameter"):
        grid({}, 3)
    with pytest.raises(ValueError, match="at least 2 points"):
        grid({"a": (0.0, 1.0)}, 1)
    with pytest.raises(ValueError, match=r"mean return in .* is nan"):
        worst_case(lambda *_: [float("nan")], {"a": (0.0, 1.0)})
