"""Reads flights and refuses those that are not as they were written."""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot_rl.data.exact import Unreadable, pack, unpack
from robot_rl.data.flight import END, MAGIC, NUMBERS, TOPICS, chunk, head, link, message

_KEY_AT = len(MAGIC) + 9 + 4 + 4 + len(b"robot_rl flight 1 ")
_LINK = 9 + 22 + 8 + 32 + 16
"""Bytes of the last message of a chunk."""


class AlteredFlight(ValueError):
    """A file that is no flight, or not as it was written; the message says where."""


@dataclass(frozen=True)
class Record:
    """One record.

    Args:
        topic: of `flight.TOPICS`.
        when: [ns since the epoch, or of the flight's own clock].
        data: as `exact.pack` made it.
    """

    topic: str
    when: int
    data: memoryview

    @property
    def value(self) -> Any:
        """What was put.

        Raises:
            AlteredFlight: the bytes are no value.
        """
        try:
            return unpack(self.data)
        except Unreadable as error:
            raise AlteredFlight(f"a record of the topic {self.topic} cannot be read: {error}") from error


@dataclass
class Flight:
    """What a file holds.

    Attributes:
        path: of the file.
        records: in their order.
        closed: whether it ends as its writer wanted; False: its process was killed, and all but the last tenths of a
            second is there.
        digest: of the chain, hexadecimal; equal digests are equal flights.
    """

    path: Path
    records: list[Record] = field(default_factory=list)
    closed: bool = False
    digest: str = ""

    @property
    def seconds(self) -> float:
        """From the first record to the last."""
        return 1e-9 * (self.records[-1].when - self.records[0].when) if self.records else 0.0


def read(path: str | Path) -> Flight:
    """A flight, every byte of which is as it was written.

    Raises:
        FileNotFoundError: no such file.
        AlteredFlight: it is no flight, or was altered; a missing end is neither.
    """
    flight = Flight(Path(path))
    data = memoryview(flight.path.read_bytes())
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise AlteredFlight(f"{path} does not begin like an MCAP file; give a flight_*.mcap that a deployment wrote")
    try:
        key = bytes.fromhex(bytes(data[_KEY_AT : _KEY_AT + 32]).decode("ascii"))
    except ValueError:
        key = b""
    begin = head(key)
    if len(key) != 16 or bytes(data[: len(begin)]) != begin:
        raise AlteredFlight(
            f"{path} does not begin as a flight of this version does: it is another MCAP file, or its beginning was "
            "altered; give a flight_*.mcap as a deployment wrote it"
        )
    at, digest, number = len(begin), hashlib.sha256(begin).digest(), 0
    while True:
        rest = data[at:]
        size = _whole(rest)
        if size is None:
            break
        digest = _take(flight, rest[:size], number, digest, key)
        at, number = at + size, number + 1
    flight.digest = digest.hex()
    ended = bool(flight.records) and flight.records[-1].topic == "end"
    flight.closed = ended
    tail = bytes(data[at:])
    fine = END.startswith(tail) if ended else tail[:1] in (b"", b"\x06") and key not in tail
    if not fine:
        raise _alteration(flight, number, "what stands there is neither a piece nor the end of a flight")
    if ended:
        flight.records.pop()
    return flight


def write(path: str | Path, records: Iterable[Record]) -> str:
    """A flight of records that are there already; returns its digest.

    Raises:
        FileExistsError: there is such a file.
    """
    key = secrets.token_bytes(16)
    begin = head(key)
    digest, pieces = hashlib.sha256(begin).digest(), [begin]
    everything = list(records)
    everything.append(Record("end", everything[-1].when if everything else 0, memoryview(pack(len(everything)))))
    for number in range(math.ceil(len(everything) / 1000)):
        some = everything[1000 * number : 1000 * (number + 1)]
        content = b"".join(message(NUMBERS[one.topic], number, one.when, bytes(one.data)) for one in some)
        digest = link(digest, content)
        span = min(one.when for one in some), max(one.when for one in some)
        pieces.append(chunk(content, span, number, digest, key))
    with open(path, "xb") as file:
        file.write(b"".join([*pieces, END]))
    return digest.hex()


def _whole(rest: memoryview) -> int | None:
    """Bytes of the chunk that begins here; None where no whole one does."""
    if len(rest) < 9 or rest[0] != 6:
        return None
    size = 9 + struct.unpack_from("<Q", rest, 1)[0]
    return size if size <= len(rest) else None


def _take(flight: Flight, piece: memoryview, number: int, before: bytes, key: bytes) -> bytes:
    """Add the records of a piece; the chain's digest with it."""
    content = piece[9 + 40 : -_LINK]  # behind the heads of record and chunk
    digest = link(before, bytes(content))
    try:
        records = list(_messages(content))
        span = min(record.when for record in records), max(record.when for record in records)
    except (ValueError, struct.error, IndexError):
        raise _alteration(flight, number, "its messages cannot be told apart") from None
    if chunk(bytes(content), span, number, digest, key) != bytes(piece):
        raise _alteration(flight, number, "its bytes do not match the digest that was written with them")
    flight.records += records
    return digest


def _messages(content: memoryview) -> Iterator[Record]:
    at = 0
    while at < len(content):
        kind, size, channel, _, when, _ = struct.unpack_from("<BQHIQQ", content, at)
        body = content[at + 31 : at + 9 + size]
        if kind != 5 or size < 22 or len(body) != size - 22:
            raise ValueError("no message")
        yield Record(TOPICS[channel], when, body)
        at += 9 + size


def _alteration(flight: Flight, number: int, why: str) -> AlteredFlight:
    last = flight.records[-1].when if flight.records else 0
    behind = f", {1e-9 * (last - flight.records[0].when):.2f} s after its begin" if flight.records else ""
    return AlteredFlight(
        f"{flight.path} is not as it was written: at piece {number}{behind}, {why}. Something was altered, removed or "
        "put elsewhere after the flight; nothing of it is replayed. Take an untouched copy of the file"
    )
