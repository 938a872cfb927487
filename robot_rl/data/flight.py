"""A flight: an MCAP file in which every record is chained to those before it, written beside a control loop.

The control loop appends a tuple to a queue. Ten times a second a thread of its own makes one chunk of what has come
and hands it to the operating system in one call: what a kill -9 costs is the chunk in flight. The last message of a
chunk is the SHA-256 of the chain before it and of the chunk's messages, so whatever is altered, taken out or put
elsewhere afterwards is noticed, and told from an end that is missing because the process was killed.

A chunk is made with a handful of calls into C, which hold the interpreter's lock for microseconds; a writer that adds
message by message with an index (rosbags has one) holds it several times as long, and the control loop waits for it.
The file is one that MCAP tools read, without the optional index.

Source: the MCAP format specification (mcap.dev/spec), records Header, Channel, Message, Chunk, DataEnd, Footer.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import secrets
import shutil
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from robot_rl.data.exact import pack

MAGIC = b"\x89MCAP0\r\n"
TOPICS = ("chain", "facts", "call", "tick", "offer", "event", "sent", "policy", "end")
"""Records of a flight; their places are the numbers of the channels."""
END = b"\x0f" + struct.pack("<QI", 4, 0) + b"\x02" + struct.pack("<QQQI", 20, 0, 0, 0) + MAGIC
"""DataEnd and Footer without an index."""
NUMBERS = {topic: number for number, topic in enumerate(TOPICS)}
EVERY = 0.1
"""Seconds between two chunks."""
WAITING = 200_000
"""Records that may wait for the disk; a flight with a hole could not be replayed, so it ends there."""
LARGEST = 1 << 22
"""Bytes after which a chunk is closed and the next one begun."""
ROOM = 256 << 20
"""Bytes that are left free on the disk."""
_MESSAGE = struct.Struct("<BQHIQQ")
_CHUNK = struct.Struct("<QQQIIQ")


def head(key: bytes) -> bytes:
    """Beginning of a file: what it is, and one channel per topic.

    Args:
        key: (16 bytes) of this file alone; its chunks repeat it.
    """
    parts = [_record(1, _text(b"") + _text(b"robot_rl flight 1 " + key.hex().encode()))]
    for number, topic in enumerate(TOPICS):
        names = _text(f"flight/{topic}".encode()) + _text(b"robot_rl_exact")  # robot_rl/data/exact.py
        parts.append(_record(4, struct.pack("<HH", number, 0) + names + struct.pack("<I", 0)))
    return MAGIC + b"".join(parts)


def chunk(messages: bytes, span: tuple[int, int], number: int, digest: bytes, key: bytes) -> bytes:
    """A chunk of messages with the link of the chain behind them.

    Args:
        messages: as `message` makes them.
        span: first and last of their times [ns].
        number: of the chunk.
        digest: of the chain with this chunk.
        key: of the file.
    """
    last = message(0, number, span[1], struct.pack("<Q", number) + digest + key)
    content = messages + last
    return _record(6, _CHUNK.pack(*span, len(content), 0, 0, len(content)) + content)


def message(channel: int, number: int, when: int, data: bytes) -> bytes:
    """One message, received at `when` [ns]."""
    return _MESSAGE.pack(5, 22 + len(data), channel, number & 0xFFFFFFFF, when, when) + data


def link(digest: bytes, messages: bytes) -> bytes:
    """The chain's next digest."""
    state = hashlib.sha256(digest)
    state.update(messages)
    return state.digest()


def _record(kind: int, body: bytes) -> bytes:
    return struct.pack("<BQ", kind, len(body)) + body


def _text(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def make_room(folder: Path, most: float) -> list[Path]:
    """Delete the oldest flights of a folder until at most so many bytes are left; those that are being written stay.

    Args:
        folder: of flights; others' files are left alone.
        most: bytes.

    Returns:
        What was deleted.
    """
    found: list[tuple[float, int, Path]] = []
    for path in folder.glob("flight_*.mcap"):
        with suppress(FileNotFoundError):  # another process makes room, too
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    total, gone = sum(size for _, size, _ in found), []
    for _, size, path in sorted(found):
        if total <= most:
            break
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its writer holds this lock
            path.unlink()
            total -= size
            gone.append(path)
    return gone


class FlightWriter:
    """Writes a flight; `put` may be called from any thread and costs the caller an append.

    What is put is kept by reference until the thread has written it, at most some tenths of a second later: whoever
    puts arrays does not write into them afterwards.

    Args:
        path: of the file, which must not exist.
        clock: of the records; None: the steady clock of this machine, told in the file as time since the epoch.

    Attributes:
        now: () -> present time of the clock [s].
        path: of the file.
        problem: why nothing more is written; "" while all is well.
        written: bytes on their way to the disk so far.
        digest: of the chain so far.

    Raises:
        FileExistsError: there is such a file.
        OSError: it cannot be made.
    """

    def __init__(self, path: str | Path, *, clock: Callable[[], float] | None = None) -> None:
        self.path, self.problem = Path(path), ""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.now = time.monotonic if clock is None else clock
        self._origin = time.time_ns() - time.monotonic_ns() if clock is None else 0
        self._key, self._number, self._when = secrets.token_bytes(16), 0, self._origin + int(1e9 * self.now())
        begin = head(self._key)
        self.digest, self.written = hashlib.sha256(begin).digest(), len(begin)
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # `make_room` leaves it alone
        os.write(self._file, begin)
        self._waiting: deque[tuple[str, float, object]] = deque()
        self._taking = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="flight", daemon=True)
        self._thread.start()

    def put(self, topic: str, when: float, value: object) -> None:
        """Append a record.

        Args:
            topic: of `TOPICS`.
            when: [s of the flight's clock].
            value: what `exact.pack` takes.
        """
        if self._taking:
            self._waiting.append((topic, when, value))
            if len(self._waiting) > WAITING:
                self._give_up(f"{WAITING:,} records waited for the disk")

    def close(self, patience: float = 10.0) -> None:
        """Write what waits and the end, for `patience` s at most; a second call does nothing."""
        if not self._over.is_set():
            self._taking = False
            self._over.set()
            self._thread.join(patience)

    def _give_up(self, why: str) -> None:
        self.problem = f"the flight {self.path} ends here: {why}; nothing more of this run is recorded"
        self._taking = False
        self._waiting.clear()

    def _work(self) -> None:
        try:
            while not self._over.wait(EVERY):
                self._write()
            if not self.problem:
                self._waiting.append(("end", math.nan, self._number))
                self._write()
                self._put_down(END)
        except Exception as error:  # of the disk, mostly; the robot goes on
            self._give_up(f"{type(error).__name__}: {error}")
        finally:
            os.close(self._file)

    def _write(self) -> None:
        while self._waiting and not self.problem:
            if shutil.disk_usage(self.path.parent).free < ROOM:
                self._give_up(f"less than {ROOM >> 20} MiB are free on its disk")
                return
            messages: list[bytes] = []
            size, times = 0, []
            while self._waiting and size < LARGEST:
                topic, when, value = self._waiting.popleft()
                if abs(when) < 9e9:  # else it is no time, and the one before stands
                    self._when = max(self._origin + int(1e9 * when), 0)
                times.append(self._when)
                messages.append(message(NUMBERS[topic], self._number, self._when, pack(value)))
                size += len(messages[-1])
                time.sleep(0)  # gives the interpreter's lock to the control loop, should it wait for it
            content = b"".join(messages)
            self.digest = link(self.digest, content)
            self._put_down(chunk(content, (min(times), max(times)), self._number, self.digest, self._key))
            self._number += 1

    def _put_down(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.written += len(data)
