"""Defects of the tools that others read these formats with, each as a test that ours has not got it."""
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from broken import episode, hdf5

from benchmarks.d4rl_pairs import qlearning_dataset
from robot_rl.data import d4rl, minari, scores
from robot_rl.data.convert import convert, convert_once, validate
from robot_rl.data.episode import episode_from_columns
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.read_options import ReadOptions
from robot_rl.data.recorder import Recorder
from robot_rl.data.repairs import Repairs
from robot_rl.data.store import open_store, write_store
from robot_rl.verbs.logs import open_log


def rows(n: int, terminals: tuple[int, ...] = (), timeouts: tuple[int, ...] | None = ()) -> dict[str, Any]:
    index = np.arange(n, dtype=np.float32)
    flags = {key: np.isin(np.arange(n), at) for key, at in (("terminals", terminals), ("timeouts", timeouts or ()))}
    data = {"observations": np.stack((index, index / 2), 1), "actions": index[:, None] / n / 2, "rewards": index + 1}
    return {**data, **flags} if timeouts is not None else {**data, "terminals": flags["terminals"]}


def test_d4rl_sequence_dataset_cuts_later_episodes_one_step_early(tmp_path: Path) -> None:
    """Its counter starts at 0 for the first episode and at 1 after that; ours counts every episode from its start."""
    path = hdf5(tmp_path / "x.hdf5", rows(12, terminals=(1,), timeouts=None))
    assert [len(e) for e in d4rl.read(path, ReadOptions(episode_length=5)).episodes] == [2, 5, 5]


def test_d4rl_drops_the_tail_of_the_file(tmp_path: Path) -> None:
    """Its sequences hold finished episodes only; ours keep the tail as a truncated one without a last observation."""
    logs = d4rl.read(hdf5(tmp_path / "x.hdf5", rows(10, timeouts=(3,))))
    assert [len(e) for e in logs.episodes] == [4, 6]
    store = write_store(tmp_path / "s", logs.episodes)
    assert store.column("truncated").tolist() == [i in (3, 9) for i in range(10)]
    assert (store.final_obs_valid.any(), store.complete.tolist()) == (False, [True, False])
    assert len(LogDataset(store)) == 8  # neither last step has a successor
    assert len(LogDataset(store, LogView(require_next=False))) == 10


def test_d4rl_terminate_on_end_bootstraps_from_a_foreign_state(tmp_path: Path) -> None:
    """It keeps timeout rows with done=False and the next episode's first state as s'; ours marks them done."""
    path = hdf5(tmp_path / "x.hdf5", rows(10, timeouts=(3,)))
    got = qlearning_dataset(path, terminate_on_end=True)
    row = int(np.flatnonzero(got["observations"][:, 0] == 3)[0])
    assert got["next_observations"][row, 0] == 4
    assert got["terminals"][row]


def test_d4rl_loads_training_metadata_as_if_it_were_per_step(tmp_path: Path) -> None:
    """Weights below metadata/ may have as many rows as the data: they are skipped by name."""
    data = {**rows(6, timeouts=(5,)), "metadata/policy/fc0/weight": np.zeros((6, 6)), "metadata/iteration": np.int32(3)}
    (one,) = d4rl.read(hdf5(tmp_path / "x.hdf5", data), ReadOptions(infos=True)).episodes
    assert "columns" not in one.meta


def test_corl_return_range_counts_a_thousand_rows_as_an_episode(tmp_path: Path) -> None:
    """It forgets the timeouts and ends episodes at terminals or 1000 rows; the range must come from true episodes."""
    data = rows(2500, terminals=(499,), timeouts=(1299, 2099))
    data["rewards"] = np.ones(2500, np.float32)
    store = write_store(tmp_path / "s", d4rl.read(hdf5(tmp_path / "x.hdf5", data)).episodes)
    # episodes of 500, 800 and 800 steps, and a tail of 400 that is none
    assert LogDataset(store, LogView(reward_scale="return_range")).reward_scale == pytest.approx(1000 / (800 - 500))


def test_maze2d_reward_belongs_to_the_observation_before(tmp_path: Path) -> None:
    """D4RL issue 194: reward[i] is of observation[i]; kept by default, moved on request."""
    path = hdf5(tmp_path / "maze2d-umaze-v1.hdf5", rows(6, timeouts=(5,)))
    assert d4rl.read(path).episodes[0].reward.tolist() == [1, 2, 3, 4, 5, 6]
    assert d4rl.read(path, ReadOptions(maze2d_shift="fix")).episodes[0].reward.tolist() == [2, 3, 4, 5, 6]


def test_antmaze_timeouts_out_of_step_are_refused(tmp_path: Path) -> None:
    """The v0 files' timeouts do not fit their resets: the ant jumps inside an episode."""
    data = rows(20, timeouts=(19,))
    data["observations"][10:] += 30
    findings = validate(hdf5(tmp_path / "antmaze-umaze-v0.hdf5", data))
    assert any("use the v2 file" in str(f) for f in findings)


def test_minari_episodes_sorted_as_text(tmp_path: Path) -> None:
    """episode_10 comes after episode_9, not after episode_1."""
    minari.write(tmp_path / "x-v0", [episode(i, 3 + i) for i in range(12)], dataset_id="x-v0")
    assert [len(e) for e in minari.read(tmp_path / "x-v0").episodes] == list(range(3, 15))


def test_normalised_deviation_must_not_subtract_the_minimum() -> None:
    """A standard deviation is scaled only: 100 on hopper is 3.0726, not 3.70."""
    assert scores.normalized_std("hopper-medium-v2", 100.0) == pytest.approx(3.0726, abs=1e-4)
    assert scores.normalized_score("halfcheetah-expert-v2", 11947.0) == pytest.approx(98.486, abs=1e-3)
    assert scores.normalized_score("pen-human-v1", 2661.5) == pytest.approx(86.065, abs=1e-3)
    assert scores.normalized_score("antmaze-umaze-v2", 1.0) == 100.0


def test_constant_component_is_not_blown_up_by_normalisation(tmp_path: Path) -> None:
    """1 / (0 + 1e-3) would multiply any later change by a thousand; the moments tell of it."""
    one = episode_from_columns(
        {"state": np.full((50, 2), 3.0, np.float32)}, np.zeros((50, 1)), np.zeros(50), terminated=False, truncated=True
    )
    assert write_store(tmp_path / "s", [one]).moments()[1].tolist() == [0.0, 0.0]


def literal_qlearning(data: dict[str, np.ndarray], limit: int | None) -> dict[str, list[Any]]:
    """What D4RL's row loop does: one pass, a conversion per row, a step counter, timeouts left out."""
    names = ("observations", "next_observations", "actions", "rewards", "terminals")
    out: dict[str, list[Any]] = {name: [] for name in names}
    step = 0
    for i in range(len(data["rewards"]) - 1):
        here, after = data["observations"][i].astype(np.float32), data["observations"][i + 1].astype(np.float32)
        action, reward = data["actions"][i].astype(np.float32), data["rewards"][i].astype(np.float32)
        done = bool(data["terminals"][i])
        final = bool(data["timeouts"][i]) if "timeouts" in data else step == (limit or 0) - 1
        if final:
            step = 0
            continue
        if done:
            step = 0
        out["observations"].append(here)
        out["next_observations"].append(after)
        out["actions"].append(action)
        out["rewards"].append(reward)
        out["terminals"].append(done)
        if not done:
            step += 1
    return out


@pytest.mark.parametrize("with_timeouts", [True, False])
def test_compatibility_mode_equals_a_literal_row_loop(tmp_path: Path, with_timeouts: bool) -> None:
    rng = np.random.default_rng(0)
    data = rows(2000)
    data["terminals"], data["timeouts"] = rng.random(2000) < 0.02, rng.random(2000) < 0.02
    if not with_timeouts:
        del data["timeouts"]
    path = hdf5(tmp_path / "x.hdf5", data)
    got = qlearning_dataset(path, episode_length=30)
    for key, value in literal_qlearning(data, 30).items():
        np.testing.assert_array_equal(got[key], np.array(value), err_msg=key)


def test_compatibility_mode_is_thirty_times_faster_than_the_row_loop(tmp_path: Path) -> None:
    data = rows(1_000_000, timeouts=tuple(range(999, 1_000_000, 1000)))
    data["actions"] = data["actions"].astype(np.float32)
    path = hdf5(tmp_path / "x.hdf5", data)
    part = {key: value[:20_000] for key, value in data.items()}
    best = []
    for _ in range(3):
        start = time.process_time()
        literal_qlearning(part, None)
        middle = time.process_time()
        qlearning_dataset(path)
        best.append(50 * (middle - start) / (time.process_time() - middle))
    assert max(best) > 30


def test_infinite_rewards_and_masks_do_not_touch_the_source(tmp_path: Path) -> None:
    """A converter that repairs in place has lost the evidence: the store is new, the source opens for reading only."""
    path = hdf5(tmp_path / "x.hdf5", rows(600, timeouts=(299, 599)))
    path.chmod(0o444)
    convert(path, tmp_path / "s.store")
    with h5py.File(path) as file:
        assert file["rewards"].shape == (600,)
    assert open_store(tmp_path / "s.store").meta["sources"][0]["name"] == "x.hdf5"


def test_what_a_conversion_found_is_not_said_twice_of_its_store(tmp_path: Path) -> None:
    values = rows(20, timeouts=(9,))
    values["observations"][:, 1] = 3.0
    convert(hdf5(tmp_path / "x.hdf5", values), tmp_path / "y.store")
    assert len([f for f in validate(tmp_path / "y.store") if "never change" in f.message]) == 1


def test_store_of_a_file_with_findings_is_made_once(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "x.hdf5", rows(10, timeouts=(3,)))
    store = convert_once(path)
    assert any("its last 6 rows" in line for line in store.report)
    made = (store.path / "meta.json").stat().st_mtime_ns
    assert (convert_once(path).path / "meta.json").stat().st_mtime_ns == made


def test_store_of_a_folder_is_made_once_until_a_file_of_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Recorder(path) as recorder:
        recorder.append(episode(1, 5))
    made = (open_log(path).path / "meta.json").stat().st_mtime_ns
    assert (open_log(path).path / "meta.json").stat().st_mtime_ns == made
    with Recorder(path) as recorder:
        recorder.append(episode(2, 7))
    assert open_log(path).length.tolist() == [5, 7]
    shutil.rmtree(tmp_path / "log.store")
    convert(path, tmp_path / "log.store", mend=Repairs(action="clip"))  # by hand: opened as it is
    made = (tmp_path / "log.store/meta.json").stat().st_mtime_ns
    assert (open_log(path).path / "meta.json").stat().st_mtime_ns == made


def test_what_lies_where_the_store_would_is_replaced_only_if_we_made_it(tmp_path: Path) -> None:
    path, out = hdf5(tmp_path / "x.hdf5", rows(10, timeouts=(4, 9))), tmp_path / "x.store"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is no store that may be replaced .*move it to another name"):
        convert_once(path)
    assert (out / "notes.txt").read_text() == "mine"
    shutil.rmtree(out)
    convert(path, out)  # by hand, so it may hold repairs
    (out / "reward.bin").unlink()
    with pytest.raises(ValueError, match="is no store that may be replaced"):
        convert_once(path)
    shutil.rmtree(out)
    (convert_once(path).path / "reward.bin").unlink()
    assert len(convert_once(path).column("reward")) == 10
