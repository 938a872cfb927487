"""What a bag claims, compared with what it holds, before the reader of bags unpacks anything of it."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from robot_rl import extras
from robot_rl.data import foreign
from robot_rl.data.findings import refusal
from robot_rl.data.mcap_salvage import CHUNK, MAGIC, records

_HEAD = struct.Struct("<QQQII")  # of a chunk: first and last time, unpacked size, checksum, length of a name
_BLOCK = 1 << 20


def check(path: Path) -> None:
    """Look at a bag's folder, or its .mcap or .db3 file.

    Raises:
        BadData: a file lies elsewhere, or something unpacks to more than there is room for.
    """
    if not path.is_dir():
        _check_file(path, packed=False)
        return
    facts: Any = foreign.read_yaml(foreign.inside(path, "metadata.yaml")).get("rosbag2_bagfile_information")
    names = facts.get("relative_file_paths") if isinstance(facts, dict) else None
    if not isinstance(names, list):
        raise refusal("metadata", f"{path / 'metadata.yaml'} lists no files", "run `ros2 bag reindex`")
    mode = str(facts.get("compression_mode") or "").lower()
    for name in names:
        file = foreign.inside(path, PurePath(str(name)).name)  # the reader takes the last part of the name only
        if not file.is_file():
            continue  # the reader says which one is missing
        if mode == "file":
            _check_packed(file)
        else:
            _check_file(file, packed=mode == "message")


def _check_file(file: Path, *, packed: bool) -> None:
    with open(file, "rb") as start:
        kind = start.read(16)
    if kind.startswith(MAGIC):
        if packed:
            raise refusal("unreadable", f"{file}: messages packed one by one are read from sqlite3 only")
        _check_chunks(file)
    elif kind.startswith(b"SQLite format 3"):
        _check_tables(file, packed)


def _check_chunks(file: Path) -> None:
    """Walk over the records of an MCAP file; of a chunk only its head is read, unless it does not tell its size."""
    content = np.memmap(file, np.uint8, "r").data
    for kind, body, whole in records(content[len(MAGIC) :]):
        if not whole:
            return  # a break: the reader says so
        if kind == CHUNK and len(body) >= _HEAD.size:
            _, _, claimed, _, name = _HEAD.unpack_from(body)
            foreign.room(file, claimed, "a chunk")
            packed = _HEAD.size + name
            if body[_HEAD.size : packed] == b"zstd":
                _unpack(file, bytes(body[packed + 8 :]), claimed)


def _check_tables(file: Path, packed: bool) -> None:
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
        try:
            kinds = dict(base.execute("SELECT name, type FROM sqlite_master WHERE type != 'index'"))
        except sqlite3.DatabaseError:
            return  # damaged: the reader says so
        made = sorted(str(name) for name, kind in kinds.items() if kind != "table")
        if made:
            message = f"{file} computes {', '.join(made)[:200]} instead of storing rows"
            raise refusal("unreadable", message, "convert the bag on the robot (`ros2 bag convert`)")
        if packed and "messages" in kinds:
            for (data,) in base.execute("SELECT data FROM messages"):
                _unpack(file, bytes(data), foreign.SMALL)


def _unpack(file: Path, data: bytes, most: int) -> None:
    """Refuse zstd data that unpacks to more than `most` bytes: by what its frames say, else by trying."""
    zstd = extras.require("backports.zstd")
    total = 0
    while data:
        try:
            told = zstd.get_frame_info(data).decompressed_size
            length = zstd.get_frame_size(data)
        except zstd.ZstdError:
            return  # damaged: the reader says so
        if told is None:
            machine, told, rest = zstd.ZstdDecompressor(), 0, data[:length]
            while not machine.eof and total + told <= most:
                piece = machine.decompress(rest, _BLOCK)
                told, rest = told + len(piece), b""
                if not piece and machine.needs_input:
                    break
        total += told
        if total > most:
            raise refusal("claim", f"{file}: {length:,} packed bytes stand for {total:,}, told are {most:,}")
        data = data[length:]


def _check_packed(file: Path) -> None:
    """Unpack a whole packed file once, keeping nothing."""
    zstd = extras.require("backports.zstd")
    total = 0
    try:
        with zstd.open(file, "rb") as data:
            while block := data.read(_BLOCK):
                total += len(block)
                foreign.room(file, total, "the unpacked bag")
    except (zstd.ZstdError, EOFError):
        return  # damaged: the reader says so
