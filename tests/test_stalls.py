"""What the marker `timing` promises: one more try where the machine stood still, and none anywhere else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TRIES = """
import os, signal, subprocess, time
import pytest

tries = []

def stall():  # to a process that is stopped the machine stands still
    pid = int(subprocess.check_output(["pgrep", "-P", str(os.getpid()), "-f", "monotonic"]))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.15)
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.1)

{mark}
def test_it():
    time.sleep(0.3)  # the witness is there
    tries.append(1)
    print("TRY", len(tries))
    {body}
"""


@pytest.mark.parametrize(
    ("mark", "body", "tries", "code", "words"),
    [
        ("@pytest.mark.timing", "assert False", 1, 1, ("1 failed",)),
        ("@pytest.mark.timing", "stall(); assert len(tries) == 2", 2, 0, ("1 passed", "machine stalls: 1", "ms late")),
        ("@pytest.mark.timing", "stall(); assert False", 2, 1, ("1 failed", "machine stalls: 1")),
        ("@pytest.mark.timing", "stall()", 1, 0, ("1 passed",)),
        ("", "stall; assert False", 1, 1, ("1 failed",)),
    ],
    ids=["fails", "stalls", "stalls_and_fails", "stalls_and_passes", "no_mark"],
)
def test_a_test_about_time_is_tried_once_more_only_where_the_machine_stood_still(
    tmp_path, mark, body, tries, code, words
):
    lines = Path(__file__).with_name("conftest.py").read_text().splitlines()
    (tmp_path / "conftest.py").write_text("\n".join(line for line in lines if "torch" not in line))  # seconds to load
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = timing\n")
    (tmp_path / "test_it.py").write_text(TRIES.format(mark=mark, body=body))
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == code, done.stdout
    assert len(re.findall(r"TRY \d", done.stdout)) == tries
    for word in words:
        assert word in done.stdout
    assert ("machine stalls" in done.stdout) == (tries == 2)
