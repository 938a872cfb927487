"""The data suite runs, and its reference loop makes what D4RL's makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import data
from benchmarks.d4rl_pairs import qlearning_dataset


def test_reference_loop_equals_the_compatibility_mode(tmp_path: Path) -> None:
    path = data._write(tmp_path / "x.hdf5", 2500)
    theirs, ours = data.reference_loop(path), qlearning_dataset(path)
    pairs = {"obs": "observations", "next_obs": "next_observations", "action": "actions", "reward": "rewards"}
    for a, b in (pairs | {"done": "terminals"}).items():
        np.testing.assert_array_equal(theirs[a], ours[b])


def test_suite_reports_every_case() -> None:
    result = data.run(quick=True, rows=3000)
    cases = [row["case"] for row in result["rows"]]
    assert sum(case.startswith("load, ours") for case in cases) == 4
    assert any("row loop" in case for case in cases)
    assert all(row["ours_over"] > 0 for row in result["rows"])
