"""The chunk bench: equal ticks for every estimator, runs that are skipped when done, the table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("mujoco", reason="needs mujoco (extra `sim`)")
pytest.importorskip("matplotlib", reason="needs matplotlib (extra `report`)")
from benchmarks import advantage_learning as bench


def test_every_estimator_runs_once_at_equal_ticks(tmp_path, monkeypatch):
    small = {**bench.WORLDS["reach"].learner, "rollout_steps": 40, "epochs": 1}
    monkeypatch.setitem(bench.WORLDS, "reach", replace(bench.WORLDS["reach"], ticks=160, num_envs=2, learner=small))
    options: dict[str, Any] = {"worlds": ("reach",), "seeds": (0,), "chunks": (4,)}
    rows = bench.run(str(tmp_path), methods=("gigpo",), **options)["rows"]
    assert [row["method"] for row in rows] == ["gigpo"]
    done = (tmp_path / "reach_gigpo_k4_seed0.json").read_bytes()
    rows = bench.run(str(tmp_path), **options)["rows"]
    assert sorted(row["method"] for row in rows) == sorted(bench.METHODS)
    assert (tmp_path / "reach_gigpo_k4_seed0.json").read_bytes() == done
    ticks = {json.loads(path.read_text())["curve"][-1]["ticks"] for path in tmp_path.glob("*.json")}
    assert ticks == {160}
    assert (tmp_path / "advantage_learning.png").stat().st_size > 1000


def test_wrong_use_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no world 'chess'"):
        bench.run(str(tmp_path), worlds=("chess",))
    with pytest.raises(ValueError, match="out is empty"):
        bench.run()
