"""Episodes on disk: append-only segments that survive a kill at any byte.

A folder holds `segment-000000.episodes`, `segment-000001.episodes` ... Every writer opens segments of its own and only
ever appends, so several may share a folder and nobody has to repair another's file. An episode is one record:

    start  64 bytes: magic, version, header length, body length
    header JSON, padded to 64
    body   raw little-endian arrays, each padded to 64
    end    64 bytes: magic, CRC-32 of header and body

It is flushed to the disk before `append` returns. A record without its end is not there: readers pass over it.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path

import numpy as np

from robot_rl.atomic import sync_folder
from robot_rl.types import Episode, IOSpec

START, END, VERSION = b"robotRLe", b"eLRtobor", 1
_BLOCK = 64
_HEAD = struct.Struct("<8sQQQ")
_FOOT = struct.Struct("<8sI")
_LARGEST_HEADER = 1 << 26


def pack(episode: Episode) -> bytes:
    """An episode as bytes, in the format of the files: the unit on the wire. Inverse of `unpack`.

    Raises:
        ValueError: `meta` holds something that is neither JSON nor an IOSpec, or an array of objects.
    """
    return b"".join(_encode(episode))


def unpack(data: bytes) -> Episode:
    """An episode from bytes that may come from anywhere; nothing in them is executed.

    Raises:
        ValueError: they are no whole episode, or damaged.
    """
    found = _record(BytesIO(data), 0, len(data))
    if found is None or found[2] != len(data):
        raise ValueError(f"{len(data)} bytes are no packed episode; expected the result of pack()")
    header, body, _ = found
    filling = data[_HEAD.size : _BLOCK] + data[len(data) - _BLOCK + _FOOT.size :]
    if (
        any(filling)
        or zlib.crc32(data[_BLOCK : _BLOCK + header + body]) != _FOOT.unpack_from(data, _BLOCK + header + body)[1]
    ):
        raise ValueError("a packed episode is damaged: its checksum differs")
    try:
        raw = np.frombuffer(data, np.uint8, body, _BLOCK + header)
        return _decode(data[_BLOCK : _BLOCK + header], raw)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"a packed episode has a header that fits no episode: {error!r}") from error


class Recorder:
    """Appends episodes to a folder.

    Args:
        path: the folder; made when missing.
        segment_bytes: a new file is begun when the current one is larger.
        sync: flush every episode to the disk. Without it a killed process still loses nothing, a power cut may.
    """

    def __init__(self, path: str | os.PathLike[str], *, segment_bytes: int = 1 << 28, sync: bool = True) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.segment_bytes, self._sync = segment_bytes, sync
        self.episodes = 0
        """Episodes appended by this recorder."""
        self.steps = 0
        """Their steps."""
        self._file: FileIO | None = None

    def append(self, episode: Episode) -> Path:
        """Write an episode; when this returns it is on the disk for good.

        Returns:
            The segment that holds it.

        Raises:
            ValueError: `meta` holds something that is neither JSON nor an IOSpec, or an array of objects.
            OSError: the disk is full or gone; what was recorded before is unharmed, and the recorder can go on.
        """
        blocks = _encode(episode)
        if self._file is None or self._file.tell() >= self.segment_bytes:
            self.close()
            self._file = self._open()
        file, offset = self._file, self._file.tell()
        try:
            for block in blocks:
                _write(file, block)
            if self._sync:
                os.fsync(file.fileno())
        except OSError:
            # Take the torn record away; where even that fails, readers pass over it. The next episode goes into a new
            # file in any case.
            self._file = None
            with file, suppress(OSError):
                os.ftruncate(file.fileno(), offset)
                if not offset:  # who tries again until there is room leaves no empty files behind
                    os.unlink(file.name)
            raise
        self.episodes += 1
        self.steps += len(episode)
        return Path(str(file.name))

    def close(self) -> None:
        """Close the current segment."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> FileIO:
        names = (path.stem.removeprefix("segment-") for path in _segments(self.path))
        taken = [int(name) for name in names if name.isdecimal()]  # a file that somebody renamed has no number
        number = max(taken, default=-1) + 1
        while True:
            try:
                file = FileIO(self.path / f"segment-{number:06d}.episodes", "xb")
            except FileExistsError:
                number += 1
                continue
            sync_folder(self.path)
            return file


class Recording:
    """The complete episodes of a folder, read on demand.

    The arrays of an episode are read-only views of the mapped file, so a recording may be larger than memory.

    Args:
        path: folder written by `Recorder`s, finished or not; or one of its segments.

    Raises:
        ValueError: the folder has no segments.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        segments = [self.path] if self.path.is_file() else _segments(self.path)
        if not segments:
            raise ValueError(f"{self.path} holds no recording, expected files named segment-*.episodes")
        self._where: list[tuple[Path, int, int, int]] = []  # segment, offset, header and body length
        self.torn: list[tuple[Path, int, int]] = []
        """(segment, offset, bytes) of what no reader can use: records that were being written when a writer died."""
        for segment in segments:
            self._scan(segment)

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, index: int) -> Episode:
        """Read one episode.

        Raises:
            ValueError: its bytes changed since they were written.
        """
        path, offset, header_bytes, body_bytes = self._where[index]
        data = np.memmap(path, np.uint8, "r", offset + _BLOCK, (header_bytes + body_bytes + _BLOCK,))
        crc = _FOOT.unpack_from(data.data, header_bytes + body_bytes)[1]
        if zlib.crc32(data[: header_bytes + body_bytes].data) != crc:
            raise ValueError(
                f"{path}: episode {index} at byte {offset} is damaged (its checksum differs); the others are readable"
            )
        return _decode(bytes(data[:header_bytes]), data[header_bytes : header_bytes + body_bytes])

    def __iter__(self) -> Iterator[Episode]:
        for index in range(len(self)):
            yield self[index]

    def _scan(self, segment: Path) -> None:
        size, offset = segment.stat().st_size, 0
        with open(segment, "rb") as file:
            while offset < size:
                end = _record(file, offset, size)
                if end is None:
                    self.torn.append((segment, offset, size - offset))
                    return
                header, body, after = end
                self._where.append((segment, offset, header, body))
                offset = after


def _record(file: BytesIO | BufferedReader, offset: int, size: int) -> tuple[int, int, int] | None:
    """(header bytes, body bytes, offset behind it) of the record at `offset`; None when it is not complete."""
    file.seek(offset)
    raw = file.read(_BLOCK)
    if len(raw) < _BLOCK:
        return None
    magic, version, header, body = _HEAD.unpack_from(raw)
    if magic != START:
        return None
    if version != VERSION:
        name = file.name if isinstance(file, BufferedReader) else "the packed episode"
        raise ValueError(f"{name} is of recording version {version}, this program reads {VERSION}; update it")
    after = offset + _BLOCK + header + body + _BLOCK
    if header > _LARGEST_HEADER or after > size:
        return None
    file.seek(after - _BLOCK)
    return (header, body, after) if file.read(len(END)) == END else None


def _segments(path: Path) -> list[Path]:
    return sorted(path.glob("segment-*.episodes"))


def _write(file: FileIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]


def _encode(episode: Episode) -> list[bytes | memoryview]:
    """The parts of a record, one behind another; the arrays are not copied."""
    meta = dict(episode.meta)
    columns = meta.pop("columns", {})
    io = meta.pop("io", None)
    named = {f"obs/{key}": value for key, value in episode.obs.items()}
    named |= episode.columns()
    named |= {f"columns/{key}": value for key, value in columns.items()}
    body: list[bytes | memoryview] = []
    listed = []
    for name, value in named.items():
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            raise ValueError(f"Episode '{name}' is an array of objects; expected numbers")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        body += [array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % _BLOCK)]
        listed.append({"name": name, "dtype": array.dtype.str, "shape": list(array.shape)})
    facts = {
        "terminated": bool(episode.terminated),
        "truncated": bool(episode.truncated),
        "io": io,
        "meta": meta,
        "arrays": listed,
    }
    try:
        header = json.dumps(facts, default=as_plain).encode()
    except TypeError as error:
        raise ValueError(f"Episode.meta cannot be recorded: {error}; keep arrays in meta['columns']") from error
    header = header.ljust(-(-len(header) // _BLOCK) * _BLOCK)
    crc = zlib.crc32(header)
    for block in body:
        crc = zlib.crc32(block, crc)
    start = _HEAD.pack(START, VERSION, len(header), sum(map(len, body)))
    return [start.ljust(_BLOCK, b"\0"), header, *body, _FOOT.pack(END, crc).ljust(_BLOCK, b"\0")]


def as_plain(value: object) -> object:
    """NumPy's values and interfaces as JSON holds them: for `json.dumps(..., default=as_plain)`.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, IOSpec):
        return value.to_dict()
    raise ValueError(f"{type(value).__name__} is neither JSON nor an IOSpec; keep arrays in Episode.meta['columns']")


def _decode(header: bytes, body: np.ndarray) -> Episode:
    facts = json.loads(header)
    arrays, offset = {}, 0
    for item in facts["arrays"]:
        dtype, shape = np.dtype(item["dtype"]), tuple(item["shape"])
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays[item["name"]] = body[offset : offset + count].view(dtype).reshape(shape)
        offset += count + -count % _BLOCK
    meta = facts["meta"]
    columns = {name[8:]: value for name, value in arrays.items() if name.startswith("columns/")}
    if columns:
        meta["columns"] = columns
    if facts["io"] is not None:
        meta["io"] = IOSpec.from_dict(facts["io"])
    return Episode(
        obs={name[4:]: value for name, value in arrays.items() if name.startswith("obs/")},
        **{name: arrays[name] for name in ("action", "proposed", "reward", "intervened", "stamp")},
        terminated=facts["terminated"],
        truncated=facts["truncated"],
        meta=meta,
    )
