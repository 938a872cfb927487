"""Who may write to a run folder: a lock that the system drops when its process dies, with the process's id in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from robot_rl import parallel

LOCK = "run.lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_TRACES = ("config.yaml", "checkpoints", "log", "rows")  # any of these: the folder is a run's already


class InUse(RuntimeError):
    """Another process runs in this folder; the message says which, and what to do."""


class Claim:
    """A run folder that this process alone writes to, until `release` or its death.

    Attributes:
        folder: where the run goes; for a new run the first free name.
        fresh: the folder was made for this claim.
        note: why nobody else is kept out, where the folder knows no locks; else "".
    """

    def __init__(self, folder: Path, lock: int | None, *, fresh: bool, note: str) -> None:
        self.folder, self.fresh, self.note = folder, fresh, note
        self._lock = lock
        if lock is not None:
            _held.add(self)

    @contextlib.contextmanager
    def building(self) -> Iterator[Path]:
        """While what belongs to the run is built; whatever is refused then gives the folder back, a new one whole."""
        try:
            yield self.folder
        except BaseException:
            self.release()
            if self.fresh and not (self.folder / "config.yaml").exists():  # the run had not begun
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def release(self) -> None:
        """Let others in. The file stays: who waits for it has it open, and a new one would be another lock."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock, 0)
            self._close()

    def _close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def __del__(self) -> None:
        self._close()


_held: weakref.WeakSet[Claim] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A forked child (a worker that steps environments) must not keep the lock when its parent is gone."""
    for held in list(_held):
        held._close()


os.register_at_fork(after_in_child=_leave_to_parent)


def claim_new(folder: Path) -> Claim:
    """Take `folder`, or the next free name `<folder>-2`, `-3` … where it is a run's already.

    With several processes (torchrun) rank 0 takes it, and all get the same one.

    Raises:
        OSError: the folder cannot be made or written.
    """
    return _for_all_ranks(folder, _take_free)


def claim_existing(folder: Path) -> Claim:
    """Take the folder of a run that goes on.

    Raises:
        InUse: another process runs in it.
        OSError: it cannot be written.
    """
    return _for_all_ranks(folder, _take)


def _for_all_ranks(folder: Path, take: Callable[[Path], Claim]) -> Claim:
    own = take(folder) if parallel.rank() == 0 else None
    place = parallel.agree(folder if own is None else own.folder)
    return own or Claim(place, None, fresh=False, note="")


def _take_free(folder: Path) -> Claim:
    name, number = folder, 1
    while True:
        made = not name.exists()
        name.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(InUse):
            found = _take(name, fresh=made)
            if not any((name / trace).exists() for trace in _TRACES):
                return found
            found.release()
        number += 1
        name = folder.with_name(f"{folder.name}-{number}")


def _take(folder: Path, *, fresh: bool = False) -> Claim:
    path = folder / LOCK
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    note = ""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(lock)
            if not isinstance(error, BlockingIOError):
                raise
            raise InUse(
                f"{folder} is in use by {_owner(path)}: a run folder belongs to one process. Wait until that one has "
                "ended, or stop it (Ctrl-C saves), and try again"
            ) from None
        note = f"{folder} knows no locks ({error.strerror}): nothing keeps a second start from writing to it as well"
    os.ftruncate(lock, 0)
    facts = {"process": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
    os.pwrite(lock, json.dumps(facts).encode(), 0)
    return Claim(folder, lock, fresh=fresh, note=note)


def _owner(path: Path) -> str:
    try:
        facts = json.loads(path.read_text())
        return f"process {facts['process']} on {facts['host']}, since {facts['since']}"
    except (OSError, ValueError, KeyError):  # it has just come, and has not written who it is
        return "another process"
