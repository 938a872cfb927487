"""The closed-loop bench: what a film shows, the table from its files, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.closed_loop import judged_film, on_plates, run, summarise
from robot_rl.sim.worlds.tabletop import Tabletop
from robot_rl.types import Episode

NAMES = Tabletop().obs_names


def film(asked: str, on: tuple[str, str] | None, *, success: bool, done: float) -> Episode:
    """Two frames of the state; at the end `on` = (block, plate) lies where it says, all else is far away."""
    state = np.zeros((2, len(NAMES)), np.float32)
    for i, block in enumerate(("red", "green", "blue")):
        state[:, NAMES.index(f"tip_to_{block}_x")] = 5.0 + i  # in units of 10 cm
    if on is not None:
        state[1, NAMES.index(f"tip_to_{on[0]}_x")] = 0.3
        state[1, NAMES.index(f"tip_to_{on[1]}_plate_x")] = 0.0
        other = "purple" if on[1] == "yellow" else "yellow"
        state[:, NAMES.index(f"tip_to_{other}_plate_x")] = -2.0
    meta: dict[str, Any] = {
        "instruction": asked,
        "success": success,
        "io": {"obs_names": list(NAMES)},
        "columns": {"critic_done": np.array([done], np.float32)},
    }
    action, stamp = np.zeros((1, 4), np.float32), np.arange(2.0)
    return Episode({"state": state}, action, action, np.zeros(1), False, True, np.zeros(1, bool), stamp, meta)


def test_a_film_says_which_block_lies_where_and_what_was_believed() -> None:
    asked = "put the green block on the yellow plate"
    right = film(asked, ("green", "yellow"), success=True, done=0.99)
    wrong = film(asked, ("red", "yellow"), success=False, done=0.8)
    nothing = film("put the blue block on the purple plate", None, success=False, done=0.1)
    assert on_plates(right) == ["green block on the yellow plate"]
    assert on_plates(wrong) == ["red block on the yellow plate"]
    assert on_plates(nothing) == []
    found = judged_film([right, wrong, wrong, nothing])
    assert found["sentences"] == {asked: [1, 3], "put the blue block on the purple plate": [0, 1]}
    assert found["called done"] == 0.75
    assert found["another goal met"] == 0.5


def test_the_table_orders_cells_and_gives_shares_of_the_true_reward(tmp_path: Path) -> None:
    for reward, seed, success in (("critic", 0, 0.8), ("truth", 1, 0.8), ("truth", 0, 1.0), ("success_only", 0, 0.09)):
        cell = {"reward": reward, "seed": seed, "before": 0.4, "success": success, "sentences": {"do it": [1, 4]}}
        cell |= {"called done": 0.9, "another goal met": 0.1}
        (tmp_path / f"{reward}_s{seed}.json").write_text(json.dumps(cell))
    result = summarise(tmp_path)
    assert [(row["reward"], row["seed"]) for row in result["rows"]] == [
        ("truth", 0), ("truth", 1), ("critic", 0), ("success_only", 0)
    ]  # fmt: skip
    assert result["rows"][0]["do it"] == 0.25
    assert result["share"] == {"critic": pytest.approx(0.8 / 0.9), "success_only": pytest.approx(0.1)}


def test_without_time_nothing_is_begun_and_missing_critics_are_named(tmp_path: Path) -> None:
    result = run(str(tmp_path), critics=("a", "b"), success_only=("c", "d"), minutes=0.0)
    assert result == {"rows": [], "share": {}, "open": 6}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"\+success_only="):
        run(str(tmp_path), critics=("a", "b"), success_only=("c",))
    with pytest.raises(ValueError, match="unknown reward praise"):
        run(str(tmp_path), critics=("a",), rewards=("praise",))
