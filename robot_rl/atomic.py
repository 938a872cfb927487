"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import h5py


READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of a place where nothing may be written."""
_FRESH = 2.0
"""Seconds in which a new file or folder is left alone, whether it is locked or not."""


def sync_folder(path: Path) -> None:
    """Make the names inside a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, then give it its name; folders are made on the way."""
    path.parent.mkdir(parents=True, exist_ok=True)
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


def write_json(path: Path, value: object) -> None:
    """`write_bytes` of readable JSON without NaN, which is no JSON."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def append_line(path: Path, value: object) -> None:
    """Add a line of JSON to a file; it is on the disk when this returns, and nothing of it is when that fails."""
    line = (json.dumps(value) + "\n").encode()
    with FileIO(path, "ab+") as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"  # a power cut has left half a line: not glued
        data = memoryview(b"\n" * torn + line)
        try:
            while data:
                data = data[file.write(data) or 0 :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(size)  # half a line would spoil the next one
            raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and vanishes when it does not.

    An older folder of that name is replaced; it is moved aside first and is back if anything fails. A link stays one:
    the folder that it leads to is replaced.
    """
    path = path.resolve() if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:8]
    temporary, old = path.with_name(f".{path.name}.{mark}.part"), path.with_name(f".{path.name}.{mark}.old")
    _sweep(path)
    temporary.mkdir()
    hold = _hold(temporary)
    try:
        with _remove_after_kill(temporary):
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
        shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(hold)


def _hold(path: Path) -> int:
    """A handle whose lock says that somebody is at work here; the system drops it with the process."""
    handle = os.open(path, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks: then nothing is ever swept there
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


@contextmanager
def _remove_after_kill(temporary: Path) -> Iterator[None]:
    """A process of its own removes `temporary` when this one has gone, even by SIGKILL, while the block runs.

    It waits at a pipe that the system closes with us; what ended well no longer has that name.
    """
    words = ["sh", "-c", 'cat >/dev/null; rm -rf -- "$0"', str(temporary.absolute())]
    quiet = subprocess.DEVNULL
    try:
        keeper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
    except OSError:  # no shell: the next try to write the path sweeps
        yield
        return
    try:
        yield
    finally:
        keeper.communicate()


def _sweep(path: Path) -> None:
    """Remove what processes that were killed have left of earlier tries to write `path`."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.{'?' * 8}.part"):
        try:
            if time.time() - part.stat().st_mtime < _FRESH:
                continue  # its owner may be about to lock it
            handle = os.open(part, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        except OSError:
            continue  # somebody is at work there
        finally:
            os.close(handle)


@contextmanager
def new_hdf5(path: Path, **options: Any) -> Iterator[h5py.File]:
    """An HDF5 file that is called `path` when the block ends well and it is on the disk; else it vanishes.

    Args:
        path: the file; an older one of that name is replaced.
        options: of `h5py.File`.

    Raises:
        OSError: the disk is full or gone.
    """
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    _sweep(path)
    try:
        with _remove_after_kill(temporary), _Patient(temporary) as raw:
            with suppress(OSError):
                fcntl.flock(raw.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                with h5py.File(raw, "w", **options) as file:
                    yield file
            except Exception:
                if raw.problem is not None:  # what HDF5 then says of it misses the point
                    raise raw.problem from None
                raise
            if raw.problem is not None:
                raise raw.problem
            os.fsync(raw.fileno())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


class _Patient(FileIO):
    """A new file that keeps the first error of the disk for later.

    HDF5 does not survive an error while it writes: what it could not write stays in its cache, and the process dies of
    that when it ends. So it is told that all went well, and whoever closes the file looks at `problem`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x+")
        self.problem: OSError | None = None

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        rest = view
        try:
            while len(rest) and self.problem is None:
                rest = rest[super().write(rest) or 0 :]
        except OSError as problem:
            self.problem = problem
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return super().truncate(size)
        except OSError as problem:
            self.problem = self.problem or problem
            return size or 0
