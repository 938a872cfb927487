"""A run folder belongs to one process, and to nobody once that process is gone."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from robot_rl.claim import InUse, claim_existing, claim_new

ROOT = Path(__file__).resolve().parents[1]
HOLD = """
import os, sys, time
from pathlib import Path
from robot_rl.claim import claim_new
claim = claim_new(Path(sys.argv[1]))
told, tell = os.pipe()
if os.fork() == 0:  # a worker that outlives its parent must not keep the folder
    os.write(tell, b"1")  # it runs, and has let go
    time.sleep(30)
    os._exit(0)
os.read(told, 1)
(claim.folder / "config.yaml").write_text("")
print(claim.folder, flush=True)
time.sleep(60)
"""


def hold(folder: Path) -> "subprocess.Popen[str]":
    """Another process that has claimed the folder."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_folder_in_use_is_refused_with_its_owner_and_free_once_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = hold(folder)
    try:
        with pytest.raises(InUse, match=rf"in use by process {process.pid} on .*, since"):
            claim_existing(folder)
        second = claim_new(folder)
        assert second.folder == tmp_path / "run-2"
        process.send_signal(signal.SIGKILL)
        process.wait()
        claim_existing(folder).release()  # although the child that it forked still lives
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_new_run_never_takes_the_folder_of_another(tmp_path: Path) -> None:
    first = claim_new(tmp_path / "run")
    (first.folder / "config.yaml").write_text("")
    first.release()
    assert claim_new(tmp_path / "run").folder.name == "run-2"
    assert claim_existing(tmp_path / "run").folder.name == "run"


def test_what_is_refused_while_it_is_built_leaves_no_folder(tmp_path: Path) -> None:
    claim = claim_new(tmp_path / "run")
    with pytest.raises(ValueError, match="unfit"), claim.building():
        raise ValueError("unfit")
    assert not list(tmp_path.iterdir())
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine.txt").write_text("")
    with pytest.raises(ValueError, match="unfit"), claim_new(tmp_path / "old").building():
        raise ValueError("unfit")
    assert (tmp_path / "old" / "mine.txt").exists()  # it was there before


def test_folder_without_locks_is_used_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    claim = claim_new(tmp_path / "run")
    assert "knows no locks" in claim.note
    assert json.loads((claim.folder / "run.lock").read_text())["process"] == os.getpid()
