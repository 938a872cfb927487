"""The table of scores: numbers by hand, nothing begun without time, unknown names refused."""

import json
from pathlib import Path

import pytest

from benchmarks import offline_scores
from benchmarks.offline_scores import METHODS, run, summarise


def cell(folder: Path, name: str, **fields: object) -> None:
    plain = {"set": "halfcheetah-medium-expert", "method": "bc", "updates": 10, "curve": [], "cpu_seconds": 60.0}
    (folder / f"{name}.json").write_text(json.dumps({**plain, **fields}))


def test_scores_are_normalised_per_seed_and_files_of_one_method_joined(tmp_path: Path) -> None:
    low, high = -280.178953, 12135.0
    half = (low + high) / 2
    cell(tmp_path, "a", returns=[[high, high], [half, half]])
    cell(tmp_path, "b_seed0", method="edac", returns=[[low, high]])
    cell(tmp_path, "b_seed1", method="edac", returns=[[high, high]])
    rows = {row["method"]: row for row in summarise(tmp_path)}
    assert rows["bc"]["seeds"] == [100.0, 50.0]
    assert rows["bc"]["score"] == pytest.approx(75.0)
    assert rows["edac"]["seeds"] == [50.0, 100.0]
    assert rows["edac"]["cpu_minutes"] == 2.0


def test_without_time_nothing_is_begun_and_everything_is_open(tmp_path: Path) -> None:
    result = run(str(tmp_path), sets=("hopper-medium-expert",), methods=("bc", "edac"), seeds=3, minutes=0.0)
    assert result == {"rows": [], "open": 1 + 3}  # batched seeds are one run, others one each
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_unknown_names_and_a_missing_zoo_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown sarsa"):
        run(str(tmp_path), methods=("sarsa",))
    with pytest.raises(ValueError, match=r"name the agents it is made from with \+zoo="):
        run(str(tmp_path), sets=("hopper-medium-expert",), methods=("bc",))


def test_a_begun_run_with_other_options_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on with the old ones and be recorded under the new."""
    calls: list[list[str]] = []
    monkeypatch.setattr(offline_scores, "_call", lambda command, *_: calls.append(command))  # interrupted at once
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "hopper-medium-expert.hdf5").touch()

    def ask(updates: int) -> int:
        return run(str(tmp_path), sets=("hopper-medium-expert",), methods=("bc",), updates=updates)["open"]

    assert ask(90) == ask(60) == 1  # without a checkpoint it begins anew
    begun = tmp_path / "runs" / "offline" / "x_hopper-medium-expert_bc"
    (begun / "checkpoints" / "step_1").mkdir(parents=True)
    assert ask(60) == 1
    assert calls[-1][-1] == f"resume={begun}"
    with pytest.raises(ValueError, match=r"begun with updates=60, .* and now has updates=30, .*\+label="):
        ask(30)


def test_published_settings_name_known_sets() -> None:
    levels = ("medium-expert", "medium-replay")
    known = {f"{env}-{level}" for env in ("halfcheetah", "hopper", "walker2d") for level in levels}
    for method in METHODS.values():
        assert set(method.per_set) in (set(), known)
