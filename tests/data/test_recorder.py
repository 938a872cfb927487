from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from robot_rl.data import formats
from robot_rl.data import recorder as recorder_module
from robot_rl.data.recorder import Recorder, Recording
from robot_rl.types import Episode, IOSpec

IO = IOSpec({"state": ((3,), "float32")}, ("a",), (-1.0,), (1.0,), ("m",), 20.0)


def episode(number: int, steps: int = 2, images: bool = False) -> Episode:
    rng = np.random.default_rng(number)
    obs: dict[str, np.ndarray] = {"state": rng.normal(size=(steps + 1, 3)).astype(np.float32)}
    if images:
        obs["image.top"] = rng.integers(0, 255, (steps + 1, 4, 5, 3), dtype=np.uint8)
    return Episode(
        obs=obs,
        action=rng.normal(size=(steps, 1)).astype(np.float32),
        proposed=rng.normal(size=(steps, 1)).astype(np.float32),
        reward=rng.normal(size=steps).astype(np.float32),
        terminated=number % 3 == 1,
        truncated=number % 3 == 2,
        intervened=rng.random(steps) < 0.5,
        stamp=np.arange(steps + 1) * 0.05 + number,
        meta={"number": number, "io": IO, "columns": {"success": np.zeros(steps, bool)}, "seed": np.int64(3)},
    )


def assert_same(a: Episode, b: Episode) -> None:
    assert a.obs.keys() == b.obs.keys()
    for key in a.obs:
        assert a.obs[key].dtype == b.obs[key].dtype
        np.testing.assert_array_equal(a.obs[key], b.obs[key])
    for name in ("action", "proposed", "reward", "intervened", "stamp", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert {k: v for k, v in a.meta.items() if k != "columns"} == {k: v for k, v in b.meta.items() if k != "columns"}
    for name, column in a.meta["columns"].items():
        np.testing.assert_array_equal(column, b.meta["columns"][name])


def test_recorder_round_trip_keeps_every_field(tmp_path: Path) -> None:
    written = [episode(i, steps=1 + i, images=True) for i in range(5)]
    with Recorder(tmp_path) as recorder:
        for item in written:
            recorder.append(item)
    assert (recorder.episodes, recorder.steps) == (5, 15)
    recording = Recording(tmp_path)
    assert len(recording) == 5
    for a, b in zip(written, recording):
        assert_same(a, b)
    assert recording.torn == []


def test_recorder_segments_rotate_and_keep_the_order(tmp_path: Path) -> None:
    with Recorder(tmp_path, segment_bytes=2000) as recorder:
        files = [recorder.append(episode(i)).name for i in range(6)]
    assert len(set(files)) > 1
    assert [item.meta["number"] for item in Recording(tmp_path)] == list(range(6))


def test_recorder_two_writers_share_a_folder(tmp_path: Path) -> None:
    with Recorder(tmp_path) as a, Recorder(tmp_path) as b:
        for i in range(4):
            (a, b)[i % 2].append(episode(i))
    assert sorted(item.meta["number"] for item in Recording(tmp_path)) == [0, 1, 2, 3]


def test_recording_cut_at_every_byte_has_all_complete_episodes(tmp_path: Path) -> None:
    recorder, path, ends = Recorder(tmp_path), tmp_path, []
    for i in range(3):
        path = recorder.append(episode(i))
        ends.append(path.stat().st_size)
    recorder.close()
    folder, written, shown = path.parent, [episode(i) for i in range(3)], None
    for size in reversed(range(ends[-1])):
        os.truncate(path, size)
        recording = Recording(folder)
        complete = sum(end <= size for end in ends)
        assert len(recording) == complete
        left = size - (ends[complete - 1] if complete else 0)
        assert [torn[2] for torn in recording.torn] == ([left] if left else [])
        if complete != shown:
            shown = complete
            for a, b in zip(written, recording):
                assert_same(a, b)
        if size % 197 == 0:  # whoever goes on recording there loses nothing
            with Recorder(folder) as more:
                added = more.append(episode(9))
            assert [item.meta["number"] for item in Recording(folder)] == [*range(complete), 9]
            added.unlink()


def test_recorder_killed_process_leaves_complete_episodes(tmp_path: Path, fork) -> None:
    def record(say: Callable[..., None]) -> None:
        recorder = Recorder(tmp_path / "rec")
        for i in range(10**6):
            recorder.append(episode(i, steps=200, images=True))
            say(i)

    child = fork(record)
    acknowledged = [int(child.stdout.readline()) for _ in range(20)]
    acknowledged += [int(line) for line in child.wait(signal.SIGKILL)[1].split()]
    recording = Recording(tmp_path / "rec")
    assert len(recording) in (len(acknowledged), len(acknowledged) + 1)
    for i in range(len(recording)):
        assert_same(recording[i], episode(i, steps=200, images=True))


def test_recorder_full_disk_keeps_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path)
    recorder.append(episode(0))
    write, calls = recorder_module._write, []

    def full(file: object, data: object) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, data)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(recorder_module, "_write", full)
    with pytest.raises(OSError, match="No space"):
        recorder.append(episode(1))
    assert Recording(tmp_path).torn == []
    calls[:] = [1, 1, 1]
    with pytest.raises(OSError, match="No space"):  # in a file of its own, which nothing is left of
        recorder.append(episode(1))
    assert len(list(tmp_path.glob("segment-*"))) == 1
    recorder.append(episode(2))
    assert [item.meta["number"] for item in Recording(tmp_path)] == [0, 2]
    assert recorder.episodes == 2


def test_recording_flipped_bit_is_reported_and_the_rest_read(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        path = [recorder.append(episode(i)) for i in range(3)][-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    recording = Recording(tmp_path)
    with pytest.raises(ValueError, match=r"episode 1 .* damaged"):
        recording[1]
    assert_same(recording[2], episode(2))


def test_recorder_unrecordable_meta_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    bad = episode(0)
    bad.meta["thing"] = object()
    with pytest.raises(ValueError, match="object is neither JSON nor an IOSpec"):
        recorder.append(bad)
    assert list(tmp_path.iterdir()) == []


def test_recording_without_segments_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"segment-\*.episodes"):
        Recording(tmp_path)


def test_a_file_that_somebody_renamed_stops_no_recording(tmp_path: Path) -> None:
    (tmp_path / "segment-000000-old.episodes").touch()
    with Recorder(tmp_path) as recorder:
        assert recorder.append(episode(1)).name == "segment-000000.episodes"


def test_one_segment_is_read_alone(tmp_path: Path) -> None:
    for number in range(2):
        with Recorder(tmp_path) as recorder:
            recorder.append(episode(number, 2 + number))
    assert [len(e) for e in formats.load(tmp_path / "segment-000001.episodes").episodes] == [3]
    assert [len(e) for e in formats.load(tmp_path).episodes] == [2, 3]
