"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def sync_folder(path: Path) -> None:
    """Make the names inside a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, then give it its name."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_bytes` of readable JSON."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and vanishes when it does not.

    An older folder of that name is replaced; it is moved aside first and is back if anything fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:8]
    temporary, old = path.with_name(f".{path.name}.{mark}.part"), path.with_name(f".{path.name}.{mark}.old")
    temporary.mkdir()
    try:
        yield temporary
        sync_folder(temporary)
        replaced = path.exists()
        if replaced:
            os.rename(path, old)
        try:
            os.rename(temporary, path)
        except OSError:
            if replaced:
                os.rename(old, path)
            raise
        sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
