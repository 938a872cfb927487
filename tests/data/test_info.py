from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.data import d4rl, minari
from robot_rl.data.formats import detect, load
from robot_rl.data.info import info, report
from robot_rl.data.recorder import Recorder
from robot_rl.types import Episode


def episode(number: int, steps: int = 4, **changes: object) -> Episode:
    rng = np.random.default_rng(number)
    parts = {
        "obs": {"state": rng.normal(size=(steps + 1, 3)).astype(np.float32)},
        "action": rng.uniform(-0.9, 0.9, (steps, 2)).astype(np.float32),
        "proposed": np.zeros((steps, 2), np.float32),
        "reward": np.full(steps, number, np.float32),
        "terminated": number == 1,
        "truncated": number != 1,
        "intervened": np.arange(steps) < number,
        "stamp": np.arange(steps + 1.0),
        "meta": {"columns": {"success": np.arange(steps) == steps - 1 if number == 1 else np.zeros(steps, bool)}},
    }
    return Episode(**{**parts, **changes})  # pyright: ignore[reportArgumentType]


EPISODES = [episode(0), episode(1, 2), episode(2)]


def store(path: Path, kind: str, episodes: list[Episode]) -> Path:
    if kind == "d4rl":
        d4rl.write(path / "hopper-mine-v2.hdf5", episodes)
        return path / "hopper-mine-v2.hdf5"
    if kind == "minari":
        minari.write(path / "mine-v0", episodes, dataset_id="mine-v0")
        return path / "mine-v0"
    with Recorder(path / "mine") as recorder:
        for item in episodes:
            recorder.append(item)
    return path / "mine"


@pytest.mark.parametrize("kind", ["d4rl", "minari", "recording"])
def test_info_same_data_in_every_format(tmp_path: Path, kind: str) -> None:
    path = store(tmp_path, kind, EPISODES)
    assert detect(path) == kind
    options: dict[str, Any] = {} if kind == "recording" else {"infos": True}
    facts = info(path, **options)
    # returns 0, 2, 8; lengths 4, 2, 4; interventions 0, 1 and 2 of 10 steps
    assert facts["format"] == kind
    assert (facts["episodes"], facts["steps"], facts["terminated"], facts["truncated"]) == (3, 10, 1, 2)
    assert facts["return"]["mean"] == pytest.approx(10 / 3)
    assert (facts["return"]["min"], facts["return"]["max"]) == (0, 8)
    assert facts["length"]["mean"] == pytest.approx(10 / 3)
    assert facts["intervened"] == pytest.approx(0.3)
    assert facts["success"] == pytest.approx(1 / 3)
    assert facts["observations"] == {"state": "float32[3]"}
    assert facts["findings"] == []
    text = report(facts)
    assert "3 (1 terminated, 2 truncated, 0 cut), 10 steps" in text
    assert "nothing looks wrong" in text
    if kind == "d4rl":  # 100 (10/3 + 20.272305) / 3254.572305
        assert facts["normalized_return"] == pytest.approx(0.725308, abs=1e-5)
        assert "D4RL score" in text


@pytest.mark.parametrize("kind", ["d4rl", "minari", "recording"])
def test_info_reports_what_looks_wrong_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    spoiled = episode(3)
    spoiled.reward[2] = np.nan
    wild = episode(4, action=np.full((4, 2), 2.5, np.float32))
    episodes = [episode(5), episode(5), spoiled, wild, episode(6, 1)]
    for item in episodes:
        item.obs["state"][:, 1] = 7.0
    path = store(tmp_path, kind, episodes)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    text = report(info(path))
    for line in (
        "1 episodes are exact copies",
        "outside [-1, 1], worst 2.5",
        "1 values",
        "episode 2 step 2",
        "1 episodes have one step",
        "never change: [1]",
    ):
        assert line in text
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_info_terminals_at_the_limit_look_like_timeouts(tmp_path: Path) -> None:
    episodes = [episode(i, terminated=True, truncated=False) for i in range(5)]
    text = report(info(store(tmp_path, "recording", episodes)))
    assert "terminal at 4 steps: probably a time limit" in text


def test_info_torn_recording_counts_the_rest(tmp_path: Path) -> None:
    path = store(tmp_path, "recording", EPISODES)
    (segment,) = path.iterdir()
    segment.write_bytes(segment.read_bytes()[:-1])
    facts = info(path)
    assert facts["episodes"] == 2
    assert "never completed" in facts["findings"][0]


def test_detect_unknown_folder_lists_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected segment"):
        detect(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        detect(tmp_path / "nothing.hdf5")


def test_load_gives_an_interface_for_a_buffer(tmp_path: Path) -> None:
    logs = load(store(tmp_path, "recording", EPISODES))
    assert logs.io.action_dim == 2
    assert logs.io.obs["state"] == ((3,), "float32")


def test_what_a_person_says_of_the_actions_counts(tmp_path: Path) -> None:
    path = store(tmp_path, "d4rl", EPISODES)
    assert info(path)["action"]["meaning"] == "unknown"
    facts = info(path, said={"low": -2.0, "high": 2.0})
    assert facts["action"]["meaning"] == "-2 to 2"
    assert max(facts["action"]["max"]) == pytest.approx(max(info(path)["action"]["max"]) / 2, abs=1e-4)


def test_a_log_without_a_step_is_told(tmp_path: Path) -> None:
    none = {name: np.zeros((0, 2), np.float32) for name in ("action", "proposed")}
    empty = episode(1, 0, **none, meta={})
    with pytest.raises(ValueError, match=r"no episode of .* has a step"):
        info(store(tmp_path, "recording", [empty]))
