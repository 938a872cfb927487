"""Where a run comes from, and what came of it: `lineage.json`, with a hash for everything that could change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from robot_rl.checkpoint import git_commit, write_json
from robot_rl.version import VERSION

FILE = "lineage.json"
_CHUNK = 2**20


def digest(path: Path) -> dict[str, object]:
    """Path, size and SHA-256 of a file, or of a folder's files with their names, in the order of the names."""
    path = Path(path)
    files = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
    found, size = hashlib.sha256(), 0
    for file in files:
        if file != path:
            found.update(f"{file.relative_to(path).as_posix()}\0".encode())
        with file.open("rb") as content:
            while block := content.read(_CHUNK):
                found.update(block)
                size += len(block)
    return {"path": str(path.resolve()), "bytes": size, "sha256": found.hexdigest()}


def begin(folder: Path, sources: Mapping[str, Mapping[str, object]]) -> None:
    """Write what a new run comes from.

    Args:
        folder: the run folder.
        sources: what it was to the run ("log", "demonstrations", "parent", "card") -> facts, such as `digest` gives.
    """
    facts = {
        "run": folder.name,
        "begun": _now(),
        "version": VERSION,
        "git_commit": git_commit(),
        "from": {kind: dict(facts) for kind, facts in sources.items()},
    }
    write_json(folder / FILE, facts)


def add(folder: Path, kind: str, facts: Mapping[str, object]) -> None:
    """Append to a list in the file: "continued", "weights", "deployed" …; a folder without the file gets one."""
    path = folder / FILE
    try:
        known: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        known = {"run": folder.name}
    known.setdefault(kind, []).append({"at": _now(), **facts})
    write_json(path, known)


def _now() -> str:
    return f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
