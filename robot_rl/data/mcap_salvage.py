"""Messages of an MCAP file up to a break, without its index.

A file is a magic number and records of one byte of kind, eight of length and the content; messages lie in chunks, which
may be compressed. A writer that dies leaves out the end, where the index is, so records are read one after another
until one is cut.

Source: the MCAP format specification (mcap.dev/spec), records Schema, Channel, Message and Chunk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from robot_rl import extras
from robot_rl.data import foreign
from robot_rl.data.findings import refusal

MAGIC = b"\x89MCAP0\r\n"
_SCHEMA, _CHANNEL, _MESSAGE, CHUNK = 3, 4, 5, 6


@dataclass(frozen=True)
class Raw:
    """One message: topic, type, definition of the type, encoding, time of reception in ns, serialised content."""

    topic: str
    kind: str
    definition: str
    encoding: str
    received_ns: int
    data: bytes


def messages(path: Path) -> Iterator[Raw]:
    """Messages in the order of the file, as far as it goes.

    Raises:
        BadData: it is no MCAP file.
    """
    foreign.room(path, path.stat().st_size, "the file")
    content = path.read_bytes()
    if not content.startswith(MAGIC):
        raise refusal("unreadable", f"{path} does not begin like an MCAP file", "copy it again")
    schemas: dict[int, tuple[str, str]] = {}
    channels: dict[int, tuple[int, str, str]] = {}
    for kind, body in _unpacked(path, memoryview(content)[len(MAGIC) :]):
        if kind == _SCHEMA:
            number = struct.unpack_from("<H", body)[0]
            name, offset = _text(body, 2)
            _, offset = _text(body, offset)
            size = struct.unpack_from("<I", body, offset)[0]
            schemas[number] = (name, bytes(body[offset + 4 : offset + 4 + size]).decode("utf-8", "replace"))
        elif kind == _CHANNEL:
            number, schema = struct.unpack_from("<HH", body)
            topic, offset = _text(body, 4)
            channels[number] = (schema, topic, _text(body, offset)[0])
        elif kind == _MESSAGE:
            number, _, logged, _ = struct.unpack_from("<HIQQ", body)
            if number in channels:
                schema, topic, encoding = channels[number]
                name, text = schemas.get(schema, ("", ""))
                name = name if "/msg/" in name else name.replace("/", "/msg/", 1)
                yield Raw(topic, name, text, encoding, logged, bytes(body[22:]))


def records(data: memoryview) -> Iterator[tuple[int, memoryview, bool]]:
    """Kind and content of every record behind the magic number, and whether it is whole."""
    at = 0
    while at + 9 <= len(data):
        kind, length = struct.unpack_from("<BQ", data, at)
        yield kind, data[at + 9 : at + 9 + length], at + 9 + length <= len(data)
        at += 9 + length


def _unpacked(path: Path, data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Kind and content of every whole record, those in chunks (which may be cut) in their place."""
    for kind, body, whole in records(data):
        if kind == CHUNK and len(body) > 32:
            name, offset = _text(body, 28)
            claimed = struct.unpack_from("<Q", body, 16)[0]
            foreign.room(path, claimed, "a chunk")
            content = memoryview(_unpack(name, bytes(body[offset + 8 :]), claimed))
            yield from ((kind, body) for kind, body, whole in records(content) if whole)
        elif whole:
            yield kind, body


def _text(data: memoryview, at: int) -> tuple[str, int]:
    size = struct.unpack_from("<I", data, at)[0]
    return bytes(data[at + 4 : at + 4 + size]).decode("utf-8", "replace"), at + 4 + size


def _unpack(compression: str, packed: bytes, most: int) -> bytes:
    """As much of a chunk as can be decompressed, up to what it claims to hold."""
    if compression == "":
        return packed
    if compression == "lz4":
        machine = extras.require("lz4.frame").LZ4FrameDecompressor()
    elif compression == "zstd":
        machine = extras.require("backports.zstd").ZstdDecompressor()
    else:
        raise refusal("unreadable", f"a chunk is compressed by '{compression}', expected lz4 or zstd")
    found, step, held = [], 4096, 0
    with suppress(Exception):  # the libraries' own errors: the rest is lost
        for begin in range(0, len(packed), step):  # piece by piece: what precedes a break comes out
            found.append(machine.decompress(packed[begin : begin + step], max(most - held, 1)))
            held += len(found[-1])
            if machine.eof or held >= most:
                break
    return b"".join(found)
