"""Every row of the validation table: a broken file, the message, the exit code, and that the input stays as it is."""
# pyright: reportOperatorIssue=false

from __future__ import annotations

import json
import os
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from broken import d4rl_columns, episode, hashes, hdf5

from robot_rl.data import d4rl, formats, minari
from robot_rl.data.convert import convert, convert_once, validate
from robot_rl.data.episode import Logs, unnamed_io
from robot_rl.data.findings import BadData, Finding, exit_code
from robot_rl.data.read_options import ReadOptions
from robot_rl.data.recorder import Recorder
from robot_rl.data.repairs import Repairs
from robot_rl.data.store import open_store


def found(path: Path, pattern: str, code: int, **options: Any) -> Finding:
    """Validate; one finding matches, the exit code is right, no byte of the input changed."""
    before = hashes(path)
    findings = validate(path, **options)
    assert exit_code(findings) == code, [str(f) for f in findings]
    matching = [f for f in findings if re.search(pattern, str(f), re.DOTALL)]
    assert matching, [str(f) for f in findings]
    assert hashes(path) == before
    return matching[0]


def record(path: Path, *episodes: Any) -> Path:
    with Recorder(path) as recorder:
        for item in episodes:
            recorder.append(item)
    return path


def mine(tmp_path: Path, name: str = "robot.hdf5", **changes: Any) -> Path:
    return hdf5(tmp_path / name, {**d4rl_columns(), **changes})


def test_sound_file_is_clean(tmp_path: Path) -> None:
    assert validate(mine(tmp_path)) == []


def test_lfs_pointer(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345678\n")
    size = path.stat().st_size
    found(path, rf"x.hdf5 is a Git LFS pointer \({size} bytes\), not data: run git lfs pull", 2)


def test_not_hdf5(tmp_path: Path) -> None:
    (tmp_path / "x.hdf5").write_bytes(b"hello world" * 50)
    found(tmp_path / "x.hdf5", "is not an HDF5 file", 2)


def test_truncated_hdf5(tmp_path: Path) -> None:
    path = mine(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    found(path, rf"cut short: {len(data) // 2:,} of {len(data):,} bytes; download or copy it again", 2)


def damaged(tmp_path: Path) -> Path:
    """600 rows in chunks of 50; the fourth chunk of the observations cannot be decompressed."""
    path = hdf5(tmp_path / "robot.hdf5", d4rl_columns())
    data = d4rl_columns()
    with h5py.File(path, "w") as file:
        for key, value in data.items():
            file.create_dataset(key, data=value, chunks=(50, *value.shape[1:]), compression="gzip")
        offset = file["observations"].id.get_chunk_info(3).byte_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 200] = bytes(200)
    path.write_bytes(content)
    return path


def test_damaged_chunk_names_rows(tmp_path: Path) -> None:
    found(damaged(tmp_path), r"key 'observations' .*rows 150–199 cannot be decompressed; salvage=true", 2)


def test_damaged_chunk_salvage_keeps_whole_episodes(tmp_path: Path) -> None:
    path = damaged(tmp_path)
    findings = convert(path, tmp_path / "s.store", salvage=True)
    assert any("1 of 6 episodes touch damaged rows" in str(f) for f in findings)
    store, want = open_store(tmp_path / "s.store"), d4rl_columns()["observations"]
    assert store.length.tolist() == [100] * 5
    np.testing.assert_array_equal(store.obs()[:100], want[:100])
    np.testing.assert_array_equal(store.obs()[101:201], want[200:300])  # rows 100-199 held the damage


def test_missing_key_lists_and_guesses(tmp_path: Path) -> None:
    path = mine(tmp_path, rewards=None, reward=np.zeros(600, np.float32))
    found(path, r"'rewards' is missing; the file has: .*reward.*; did you mean 'reward'\?", 2)


def test_everything_wrong_is_collected_before_stopping(tmp_path: Path) -> None:
    path = mine(tmp_path, rewards=np.zeros(599, np.float32), actions=np.zeros((600, 2, 1), np.float32), terminals=None)
    assert {f.case for f in validate(path)} == {"missing_key"}
    path = mine(tmp_path, rewards=np.zeros(599, np.float32), timeouts=np.zeros(601, bool))
    assert [f.case for f in validate(path)] == ["lengths", "lengths"]


def test_lengths_differ(tmp_path: Path) -> None:
    found(mine(tmp_path, rewards=np.zeros(599, np.float32)), "'rewards' has 599 rows, 'actions' has 600", 2)


def test_final_rows_that_fit_every_episode_are_read(tmp_path: Path) -> None:
    data = d4rl_columns()
    parts = [np.append(data["observations"][i : i + 100], [[9, 9, i]], 0) for i in range(0, 600, 100)]
    path = mine(tmp_path, observations=np.concatenate(parts).astype(np.float32))
    found(path, "606 rows for 600 actions: one more for each of the 6 episodes", 1)
    episodes = d4rl.read(path).episodes
    assert [e.obs["state"][-1].tolist() for e in episodes][:2] == [[9, 9, 0], [9, 9, 100]]
    assert all(e.meta.get("final_obs_valid", True) for e in episodes)


def test_column_vectors_are_squeezed(tmp_path: Path) -> None:
    data = d4rl_columns()
    found(mine(tmp_path, rewards=data["rewards"][:, None]), r"rewards has shape \(N, 1\): read as \(N,\)", 1)


def test_dimensions_disagree_with_the_environment(tmp_path: Path) -> None:
    path = mine(tmp_path, "hopper-medium-v2.hdf5")
    found(path, "have 3 and 2 components, hopper-medium-v2 has 11 and 3", 2)


def test_missing_timeouts_are_inferred_or_asked_for(tmp_path: Path) -> None:
    data = d4rl_columns(size=45)
    data["actions"] = np.resize(data["actions"], (600, 24))
    path = hdf5(tmp_path / "pen-human-v0.hdf5", {**data, "timeouts": None})
    found(path, "no 'timeouts': 6 ends assumed at 100 steps", 1)
    ends = np.arange(600) % 150 == 149
    path = mine(tmp_path, timeouts=None, terminals=ends)
    found(path, "no known limit: episodes end at terminals only; give episode_length", 1)


def test_no_boundary_at_all_names_the_option(tmp_path: Path) -> None:
    path = mine(tmp_path, timeouts=np.zeros(600, bool))
    found(path, "no episode ends in this file: read as one cut recording; give episode_length", 1)
    path = mine(tmp_path, timeouts=None)
    found(path, "marks no episode's end .*600 rows.*; give episode_length=<steps>", 2)
    assert len(d4rl.read(path, ReadOptions(episode_length=200)).episodes) == 3
    pen = mine(tmp_path, "pen-human-v0.hdf5", timeouts=np.zeros(600, bool))
    found(pen, "marks no episode's end in 600 rows, but episodes have at most 100 steps", 2)


def test_both_ends_terminal_wins(tmp_path: Path) -> None:
    data = d4rl_columns()
    terminals = np.zeros(600, bool)
    terminals[[99, 299]] = True
    found(mine(tmp_path, terminals=terminals, rewards=data["rewards"]), "2 rows are terminal and timeout at once", 1)


def test_timeout_stored_as_terminal(tmp_path: Path) -> None:
    # two episodes of HalfCheetah, which never terminates, end by a terminal after 1000 steps
    data = d4rl_columns(2000, 1000, 17)
    data["actions"] = np.resize(data["actions"], (2000, 6))
    data |= {"terminals": data["timeouts"], "timeouts": np.zeros(2000, bool)}
    after = np.roll(data["observations"], -1, 0)
    path = hdf5(tmp_path / "halfcheetah-medium-v2.hdf5", {**data, "next_observations": after})
    found(path, "2 of 2 episodes end by a terminal at 1000 steps: probably a time limit.*trust_terminals=true", 1)
    findings = convert(path, tmp_path / "a.store")
    line = "2 of 2 episodes end by terminal at the time limit; treated as truncated (robot-rl data convert ... "
    assert any(line in str(f) for f in findings)
    assert not open_store(tmp_path / "a.store").column("terminal").any()
    named = convert_once(path)  # `offline data=` reads it by the same rule, and says so
    assert not named.column("terminal").any()
    assert any(line in told for told in named.report)
    convert(path, tmp_path / "b.store", mend=Repairs(trust_terminals=True))
    assert open_store(tmp_path / "b.store").column("terminal").sum() == 2


def test_fallen_hopper_at_the_limit_is_a_true_end(tmp_path: Path) -> None:
    data = d4rl_columns(2000, 1000, 11)
    data["actions"] = np.resize(data["actions"], (2000, 3))
    after = np.roll(data["observations"], -1, 0)
    after[[999, 1999], 0] = 0.3  # below the height at which Hopper ends
    data |= {"terminals": data["timeouts"], "timeouts": np.zeros(2000, bool), "next_observations": after}
    assert not any(f.case == "timeout_as_terminal" for f in validate(hdf5(tmp_path / "hopper-x-v2.hdf5", data)))


def test_unmarked_boundary_by_next_observations_and_by_jump(tmp_path: Path) -> None:
    data = d4rl_columns(3000, 3000)
    after = np.roll(data["observations"], -1, 0)
    after[1499] += 5.0
    path = mine(tmp_path, **data, next_observations=after)
    found(path, "1 ends that no flag marks, first after row 1499: cut there", 1)
    data["observations"][1500:] += 500.0  # a reset that nothing tells
    path = mine(tmp_path, **data)
    found(path, "1 ends that no flag marks, first after row 1499: cut there", 1)
    assert [len(e) for e in d4rl.read(path).episodes] == [1500, 1500]


def test_shuffled_rows_are_refused_or_read_as_single_transitions(tmp_path: Path) -> None:
    data = d4rl_columns()
    after = np.roll(data["observations"], -1, 0)
    order = np.random.default_rng(1).permutation(600)
    shuffled = {key: value[order] for key, value in {**data, "next_observations": after}.items()}
    path = mine(tmp_path, **shuffled)
    found(path, "rows are probably shuffled.*; shuffled=true", 2)
    convert(path, tmp_path / "s.store", shuffled=True)
    store = open_store(tmp_path / "s.store")
    assert (len(store), store.meta["shuffled"]) == (600, True)
    np.testing.assert_array_equal(store.obs()[1::2], shuffled["next_observations"])


def test_not_finite_names_places_and_is_dropped_on_request(tmp_path: Path) -> None:
    data = d4rl_columns()
    data["observations"][205, 1] = np.nan
    data["rewards"][410] = np.inf
    path = mine(tmp_path, **data)
    found(path, "2 values are not finite: 'state' episode 2 step 5 component 1; .*drop_bad_episodes", 2)
    with pytest.raises(BadData, match="not finite"):
        convert(path, tmp_path / "s.store")
    assert not (tmp_path / "s.store").exists()
    findings = convert(path, tmp_path / "s.store", mend=Repairs(drop_bad_episodes=True))
    assert any("2 episodes with values that are not finite left out" in str(f) for f in findings)
    assert len(open_store(tmp_path / "s.store")) == 4


def test_constant_dimension_is_named(tmp_path: Path) -> None:
    data = d4rl_columns()
    data["observations"][:, 2] = 4.0
    found(mine(tmp_path, **data), r"'state' components that never change: \[2\]", 1)


def test_duplicate_episodes(tmp_path: Path) -> None:
    path = record(tmp_path / "r", episode(1, 300), episode(2, 9), episode(1, 300))
    found(path, "1 episodes are exact copies of others, first: episode 2 repeats episode 0; dedupe=true", 1)
    convert(path, tmp_path / "s.store", mend=Repairs(dedupe=True))
    assert open_store(tmp_path / "s.store").length.tolist() == [300, 9]


def test_actions_outside_few_warn_many_stop(tmp_path: Path) -> None:
    data = d4rl_columns()
    data["actions"][7, 0] = 1.05
    found(mine(tmp_path, **data), r"0.08% of the action components lie outside \[-1, 1\], worst 1.05; action=clip", 1)
    data["actions"] *= 3
    data["actions"][100, 1] = -5.13
    path = mine(tmp_path, "hopper.hdf5", **data)
    item = found(path, r"\d\d% of Hopper action components lie outside \[-1, 1\], worst -5.13 \(logged before clip", 2)
    assert "action=clip (simulators clip anyway) or action=rescale" in item.repair
    with pytest.raises(BadData, match="outside"):
        convert(path, tmp_path / "s.store")
    convert(path, tmp_path / "clip.store", mend=Repairs(action="clip"))
    np.testing.assert_array_equal(open_store(tmp_path / "clip.store").column("action"), data["actions"].clip(-1, 1))
    convert(path, tmp_path / "scaled.store", mend=Repairs(action="rescale"))
    scaled = open_store(tmp_path / "scaled.store")
    low, high = np.array(scaled.io.action_low), np.array(scaled.io.action_high)
    back = low + (scaled.column("action") + 1) / 2 * (high - low)
    np.testing.assert_allclose(back, data["actions"], atol=1e-5)
    convert(path, tmp_path / "kept.store", mend=Repairs(action="keep"))
    np.testing.assert_array_equal(open_store(tmp_path / "kept.store").column("action"), data["actions"])


def test_actions_at_the_bounds_or_whole(tmp_path: Path) -> None:
    data = d4rl_columns()
    found(mine(tmp_path, **{**data, "actions": np.sign(data["actions"])}), "whole number: possibly discrete", 1)
    half = np.where(np.arange(600)[:, None] % 3 > 0, np.sign(data["actions"]), data["actions"])
    found(mine(tmp_path, **{**data, "actions": half}), "67% of the action components lie at the bounds", 1)


def images(kind: str) -> Logs:
    rng = np.random.default_rng(0)
    frames = {
        "float": rng.random((301, 6, 8, 3)).astype(np.float32),
        "double": rng.random((301, 6, 8, 3)),
        "chw": rng.integers(0, 256, (301, 3, 6, 8), dtype=np.uint8),
        "range": rng.normal(size=(301, 6, 8, 3)).astype(np.float32),
        "layout": np.zeros((301, 3, 8, 3), np.uint8),
        "depth": rng.integers(0, 5000, (301, 6, 8, 1)).astype(np.uint16),  # millimetres, which a byte does not hold
    }[kind]
    one = episode(1, 300)
    one = replace(one, obs={**one.obs, "image.top": frames})
    return Logs([one], [], unnamed_io(one.obs, 2, 20.0))


@pytest.mark.parametrize(
    ("kind", "pattern", "code"),
    [
        ("float", r"image.top' are float32 in \[.*x 255, rounded", 1),
        ("double", r"are float64 in .*\(0.00035 GB as they are, 4.3e-05 GB as uint8\)", 1),
        ("chw", r"channels first; convert transposes them", 1),
        ("range", r"neither \[0, 1\] nor \[0, 255\]", 2),
        ("depth", r"are uint16 in .*neither \[0, 1\] nor \[0, 255\]", 2),
        ("layout", "channels cannot be told from rows", 2),
    ],
)
def test_images(tmp_path: Path, kind: str, pattern: str, code: int) -> None:
    logs = images(kind)
    path = record(tmp_path / "r", *logs.episodes)
    found(path, pattern, code)
    if code == 1:
        convert(path, tmp_path / "s.store")
        kept = open_store(tmp_path / "s.store").obs("image.top")
        assert (kept.shape, kept.dtype) == ((301, 6, 8, 3), np.uint8)
        frames = logs.episodes[0].obs["image.top"]
        want = frames.transpose(0, 2, 3, 1) if kind == "chw" else np.rint(frames * 255)
        np.testing.assert_array_equal(kept, want.astype(np.uint8))
    else:
        with pytest.raises(BadData):
            convert(path, tmp_path / "s.store")


def test_jpeg_of_minari_is_lossy(tmp_path: Path) -> None:
    minari.write(tmp_path / "x-v0", [episode(1, 300)], dataset_id="x-v0")
    meta = tmp_path / "x-v0/data/metadata.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "jpeg_encoding": True}))
    found(tmp_path / "x-v0", "images are JPEG-encoded: lossy", 1)


def test_time_stamps(tmp_path: Path) -> None:
    stamp = np.arange(301) * 0.05
    stamp[100:] += 1.0  # a gap
    stamp[200] = stamp[199]  # the same twice
    stamp[250] -= 0.3  # backwards, and a gap behind it
    path = record(tmp_path / "r", replace(episode(1, 300), stamp=stamp))
    found(path, "gaps of more than 2.5 periods between rows, largest 1.05 s, first episode 0 step 99; split_gaps", 1)
    found(path, r"1 time stamps are duplicated .*first episode 0 step 199", 1)
    found(path, r"1 time stamps run backwards .*first episode 0 step 249", 1)
    convert(path, tmp_path / "s.store", mend=Repairs(split_gaps=True))
    store = open_store(tmp_path / "s.store")
    # steps 99, 199, 249 and 250 lead across a break and are left out
    assert store.length.tolist() == [99, 99, 49, 49]
    assert store.complete.tolist() == [False, False, False, True]
    assert not any(f.case.startswith("stamps") for f in validate(tmp_path / "s.store"))
    still = record(tmp_path / "still", replace(episode(1, 300), stamp=np.zeros(301)))
    with pytest.raises(BadData, match="no time stamp runs on, so split_gaps=true leaves no step"):
        convert(still, tmp_path / "still.store", mend=Repairs(split_gaps=True))
    assert not (tmp_path / "still.store").exists()


def test_reward_zero_or_constant(tmp_path: Path) -> None:
    found(mine(tmp_path, rewards=np.zeros(600, np.float32)), "the reward is zero everywhere", 1)
    found(mine(tmp_path, rewards=np.full(600, -1, np.float32)), r"the reward is constant \(-1\)", 1)


def test_returns_inconsistent_with_metadata(tmp_path: Path) -> None:
    minari.write(tmp_path / "x-v0", [episode(1, 300)], dataset_id="x-v0")
    with h5py.File(tmp_path / "x-v0/data/main_data.hdf5", "a") as file:
        file["episode_0"].attrs["rewards_sum"] += 5.0
    found(tmp_path / "x-v0", r"episode_0 says rewards_sum .*\(difference -5\)", 1)


def test_short_episodes_and_small_data(tmp_path: Path) -> None:
    path = record(tmp_path / "r", episode(1, 20), episode(2, 1))
    found(path, "1 episodes have one step or none, first episode 1; sequence methods leave them out", 1)
    found(path, "the data has 21 steps, fewer than a batch of 256", 1)
    assert not any(f.case == "small" for f in validate(path, batch=16))


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/robot_rl_was_run",)


def test_pickle_that_runs_code_is_named_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(pickle.dumps([{"observations": Evil()}]))
    found(tmp_path / "x.pkl", r"asks for '(posix|os|nt)\.system', which is neither an array nor a plain container", 2)
    assert not Path("/tmp/robot_rl_was_run").exists()


def test_npz_with_objects(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", observations=np.array([{}, {}], object), actions=np.zeros((2, 1)), rewards=np.zeros(2))
    found(tmp_path / "x.npz", "array of Python objects.*; write it again with one plain array per key", 2)


def test_torn_recording(tmp_path: Path) -> None:
    path = record(tmp_path / "r", episode(1, 300), episode(2, 9))
    (segment,) = path.iterdir()
    segment.write_bytes(segment.read_bytes()[:-10])
    found(path, "an episode that was never completed: passed over", 1)


def test_changed_store_is_told(tmp_path: Path) -> None:
    convert(mine(tmp_path), tmp_path / "s.store")
    file = tmp_path / "s.store" / "reward.bin"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    found(tmp_path / "s.store", "column 'reward' changed since it was written", 2)
    file.write_bytes(content[:-1])
    found(tmp_path / "s.store", "has 2,399 bytes, expected 2,400", 2)


def test_unknown_folder_and_option(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    found(tmp_path, "holds no log that can be read, expected", 2)
    with pytest.raises(ValueError, match=r"ros_distro: data in the format 'd4rl' has no such option; it has .*salvage"):
        formats.load(mine(tmp_path), ros_distro="humble")


def test_convert_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        convert(mine(tmp_path), tmp_path / "out")
    with pytest.raises(ValueError, match="expected one of store"):
        convert(mine(tmp_path), tmp_path / "o", to="zarr")


def test_command_exit_codes_and_text(tmp_path: Path, robot_rl: Callable[..., Any]) -> None:
    mine(tmp_path, "clean.hdf5")
    done = robot_rl("data", "validate", "clean.hdf5")
    assert (done.returncode, "0 errors, 0 warnings" in done.stdout) == (0, True), done.stderr
    mine(tmp_path, "warn.hdf5", rewards=np.zeros(600, np.float32))
    done = robot_rl("data", "validate", "warn.hdf5", "--json")
    assert done.returncode == 1, done.stderr
    (item,) = json.loads(done.stdout)["findings"]
    assert (item["severity"], item["case"], bool(item["repair"])) == ("warning", "constant_reward", True)
    data = d4rl_columns()
    data["rewards"][3] = np.nan
    mine(tmp_path, "bad.hdf5", **data)
    before = hashes(tmp_path)
    done = robot_rl("data", "validate", "bad.hdf5")
    assert done.returncode == 2
    assert "episode 0 step 3" in done.stdout
    refused = robot_rl("data", "convert", "bad.hdf5", "out=bad.store")
    assert refused.returncode == 2
    assert "drop_bad_episodes=true" in refused.stderr
    assert hashes(tmp_path) == before
    made = robot_rl("data", "convert", "bad.hdf5", "out=bad.store", "drop_bad_episodes=true")
    assert made.returncode == 0, made.stderr
    assert len(open_store(tmp_path / "bad.store")) == 5
    shown = robot_rl("data", "info", "bad.store")
    assert "5 (0 terminated, 5 truncated, 0 cut), 500 steps" in shown.stdout
    drawn = robot_rl("data", "plot", "bad.store", "out=p.png")
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "p.png").stat().st_size > 10_000
