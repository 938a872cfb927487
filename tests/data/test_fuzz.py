"""Every reader against files that are cut, flipped, hostile, huge or of wrong types, in a process of its own."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from pathlib import Path

import pytest

for module in ("av", "h5py", "pyarrow", "rosbags", "yaml"):
    pytest.importorskip(module, reason=f"needs {module} (extra `logs`)")
ROOM = 200 << 20
"""Bytes that a case may need: three claims of what is always allowed (64 MB), and the conversion."""


def test_damaged_files_of_every_format_end_in_a_finding(tmp_path: Path) -> None:
    """Read as it is or refused with the file's name: no other error, no crash, nothing written, memory bounded."""
    program = Path(__file__).parent / "fuzz.py"
    line = [sys.executable, str(program), str(tmp_path), "0", "20"]
    child = subprocess.run(line, capture_output=True, text=True, timeout=280, check=False)
    rows = [json.loads(row) for row in child.stdout.splitlines()]
    assert child.returncode == 0, f"the process died in {rows[-1]}: {child.stderr[-2000:]}"
    rows = [row for row in rows if row["result"] != "began"]
    assert [row for row in rows if row["result"] not in ("read", "refused")] == []
    assert [row for row in rows if row["peak"] > ROOM or row["after"] - row["before"] > ROOM] == []
    assert max(row["after"] for row in rows) - rows[0]["before"] < 2 * ROOM  # nothing of a case is kept
    assert [row for row in rows if row["number"] == 0 and row["result"] != "read"] == []  # undamaged
    refused = collections.Counter(row["format"] for row in rows if row["result"] == "refused")
    assert len(refused) == 15
    assert min(refused.values()) >= 5
