"""What is written appears whole or not at all: on a full disk, at a kill, beside other writers."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from broken import d4rl_columns, episode, hdf5

from robot_rl import cli
from robot_rl.atomic import append_line, new_folder, new_hdf5
from robot_rl.data import d4rl, minari, store_write
from robot_rl.data.d4rl import read
from robot_rl.data.recorder import Recorder


@pytest.mark.parametrize("limit", [4_000, 300_000, 1_000_000])
@pytest.mark.parametrize("kind", ["packed", "plain", "minari"])
def test_hdf5_that_the_disk_does_not_take_ends_in_its_error(tmp_path: Path, fork, kind: str, limit: int) -> None:
    """Files of 3 MB, of which the system takes less: one error with the system's number, no crash, nothing left."""
    episodes = [episode(i, 4000, size=50) for i in range(4)]

    def write(say: Callable[..., None]) -> None:
        os.chdir(tmp_path)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            if kind == "minari":
                minari.write("x-v0", episodes, dataset_id="x-v0")
            else:
                d4rl.write("x.hdf5", episodes, compress=kind == "packed")
        except OSError as problem:
            say("OSError", problem.errno)

    assert fork(write).wait() == (0, "OSError 27\n")  # EFBIG
    assert list(tmp_path.iterdir()) == []


def test_hdf5_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with new_hdf5(path) as file:
        file["x"] = np.arange(100_000)
        assert not path.exists()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["x"][()], np.arange(100_000))  # pyright: ignore[reportIndexIssue]
    with pytest.raises(KeyError), new_hdf5(path) as file:
        raise KeyError
    assert [p.name for p in tmp_path.iterdir()] == ["x.hdf5"]


_KILLS = [(number, "x.store") for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)]


@pytest.mark.parametrize(("number", "out"), [*_KILLS, (signal.SIGKILL, "x.hdf5"), (signal.SIGKILL, "x to=recording")])
def test_killed_conversion_leaves_nothing(
    tmp_path: Path, fork, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, out: str
) -> None:
    hdf5(tmp_path / "log.hdf5", d4rl_columns())

    def killed(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        signal.pause()

    def convert(_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without
        cli.main()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["robot-rl", "data", "convert", "log.hdf5", *f"out={out}".split()])
    monkeypatch.setattr(store_write.StoreWriter, "_finish", killed)
    monkeypatch.setattr(h5py.Group, "create_dataset", killed)
    monkeypatch.setattr(Recorder, "append", killed)
    assert fork(convert).wait()[0] == (-number if number == signal.SIGKILL else 128 + number)
    limit = time.monotonic() + 10
    while len(list(tmp_path.iterdir())) > 1 and time.monotonic() < limit:
        time.sleep(0.01)  # the process that removes it outlives the killed one by a moment
    assert [p.name for p in tmp_path.iterdir()] == ["log.hdf5"]


def test_what_a_kill_has_left_is_removed_by_the_next_try(tmp_path: Path) -> None:
    (tmp_path / ".x.store.01234567.part").mkdir()
    os.utime(tmp_path / ".x.store.01234567.part", (0, 0))
    with new_folder(tmp_path / "x.store") as folder:
        (folder / "whole").touch()
    assert [p.name for p in tmp_path.iterdir()] == ["x.store"]


def test_what_somebody_is_writing_is_left_alone(tmp_path: Path) -> None:
    with new_folder(tmp_path / "x") as first:
        os.utime(first, (0, 0))
        with new_folder(tmp_path / "x"):
            assert first.is_dir()
        assert first.is_dir()
    with new_hdf5(tmp_path / "y.hdf5") as file:
        (part,) = tmp_path.glob(".y.hdf5.*.part")
        os.utime(part, (0, 0))
        with new_hdf5(tmp_path / "y.hdf5") as other:
            other["x"] = 1
        file["x"] = 2
    with h5py.File(tmp_path / "y.hdf5") as file:
        assert file["x"][()] == 2  # pyright: ignore
    assert not list(tmp_path.glob(".*"))


def test_reading_keeps_the_rate_of_a_written_file(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "log.hdf5", {**d4rl_columns(), "metadata/control_hz": 50.0})
    assert read(path).io.control_hz == 50.0


def test_a_line_behind_half_a_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"b"')  # as a power cut leaves it
    append_line(path, {"c": 2})
    append_line(path, {"d": 3})
    assert path.read_text() == '{"a": 1}\n{"b"\n{"c": 2}\n{"d": 3}\n'


def test_a_link_stays_one_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    large, link, file = tmp_path / "large", tmp_path / "log.store", tmp_path / "other.store"
    large.mkdir()
    link.symlink_to(large)
    file.touch()
    for path in (link, file):
        with new_folder(path) as folder:
            (folder / "new").touch()
    assert link.is_symlink()
    assert (large / "new").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large", "log.store", "other.store"]
