"""A replay buffer on disk: raw columns in segments, of which a later save writes only the new ones.

Rows and frames never change once they are written, so a save consists of the segments that an earlier save already
holds (hard-linked from there, no copy) and one new segment per column. Every save is a complete folder of its own:
deleting an older one takes nothing from a newer one.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from robot_rl.atomic import new_folder, write_json
from robot_rl.data.arrays import Store
from robot_rl.data.ring import TransitionRing

FORMAT = 2
"""1 kept links by slot; 2 by number, so that they hold in a ring of another size."""
CHUNK = 1 << 26
"""Bytes moved at once, so that saving a large buffer takes no second copy of it."""


@dataclass(frozen=True)
class Segment:
    """Rows (or frames) `begin` to `end` of every column of one kind; `tag` is unique to its content."""

    kind: str
    begin: int
    end: int
    tag: str

    def file(self, column: str) -> str:
        """File name of one column."""
        return f"{self.kind}.{column}.{self.begin:012d}-{self.end:012d}.{self.tag}.npy"


class Segments:
    """Writes and reads the rows of one ring, and remembers which of its segments lie on disk."""

    def __init__(self) -> None:
        self._known: list[Segment] = []

    def save(
        self,
        ring: TransitionRing,
        path: Path,
        base: Path | None,
        meta: Mapping[str, object],
        small: dict[str, np.ndarray],
    ) -> None:
        """Write a folder.

        Args:
            ring: what to save.
            path: the folder; replaced as a whole when it exists.
            base: folder of an earlier save of the same ring, or None.
            meta: plain values that are stored with it.
            small: arrays that are written in full each time.
        """
        folders = [folder for folder in (base, path) if folder is not None and folder.is_dir()]
        kept: list[Segment] = []
        with new_folder(path) as folder:
            for kind, (begin, end, columns) in _columns(ring).items():
                for segment in (s for s in self._known if s.kind == kind and s.end > begin):
                    if segment.begin > begin or not _link(segment, columns, folders, folder):
                        break
                    kept.append(segment)
                    begin = segment.end
                if begin < end:
                    segment = Segment(kind, begin, end, uuid.uuid4().hex[:12])
                    for column, store in columns.items():
                        _write(folder / segment.file(column), ring, store, begin, end)
                    kept.append(segment)
            with open(folder / "small.npz", "wb") as file:
                np.savez(file, allow_pickle=False, distance=ring.distances(), **small)
                file.flush()
                os.fsync(file.fileno())
            frames = 0 if ring.frames is None else ring.frames.count
            counts = {"count": ring.count, "oldest": ring.oldest, "frames": frames}
            listed = [asdict(segment) for segment in kept]
            write_json(folder / "meta.json", {"format": FORMAT, **counts, "segments": listed, **meta})
        self._known = kept

    def load(
        self, ring: TransitionRing, path: Path, check: Callable[[dict[str, object]], None]
    ) -> dict[str, np.ndarray]:
        """Fill `ring` from a folder and return the small arrays; of more rows than there is room for, the newest.

        Args:
            ring: of the same layout.
            path: the folder.
            check: refuses the counts and the plain values that were stored.

        Raises:
            ValueError: the folder is no saved buffer, is damaged, or was saved from a different one.
        """
        try:
            stored = json.loads((path / "meta.json").read_text())
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{path} holds no saved replay buffer ({error}); expected a folder by its save()"
            ) from error
        if stored.get("format") != FORMAT:
            raise ValueError(f"{path} has replay format {stored.get('format')}, expected {FORMAT}")
        check(stored)
        with np.load(path / "small.npz", allow_pickle=False) as file:
            small = {key: file[key] for key in file.files}
        ring.count = stored["count"]
        ring.restore_links(stored["oldest"], small.pop("distance"))
        if ring.frames is not None:
            ring.frames.count = stored["frames"]
        columns = _columns(ring)
        known = [Segment(**raw) for raw in stored["segments"]]
        for segment in known:
            first, end, stores = columns[segment.kind]
            for column, store in stores.items():
                _read(
                    path / segment.file(column), ring, store, segment, max(first, segment.begin), min(end, segment.end)
                )
        self._known = known
        return small


def _columns(ring: TransitionRing) -> dict[str, tuple[int, int, dict[str, Store]]]:
    """kind -> (first number still needed, end, column -> ring store)."""
    if ring.frames is None:
        return {"rows": (ring.oldest, ring.count, ring.store)}
    rows = {**ring.store, "born": ring.born}
    first = ring.frames.count
    if len(ring):
        # `born` of the oldest row may not be read yet (load); frames that still exist are then all wanted.
        first = ring.frames.oldest
    frames = {f"{i}": store for i, store in enumerate(ring.frames.store.values())}
    return {"rows": (ring.oldest, ring.count, rows), "frames": (first, ring.frames.count, frames)}


def _pieces(store: Store, begin: int, end: int) -> list[slice]:
    """Slices of a ring that hold the numbers `begin` to `end` in order, each of at most `CHUNK` bytes."""
    capacity = len(store)
    row = int(np.prod(store.shape[1:], dtype=np.int64)) * store.itemsize
    most = max(1, CHUNK // row)
    pieces = []
    while begin < end:
        slot = begin % capacity
        length = min(end - begin, capacity - slot, most)
        pieces.append(slice(slot, slot + length))
        begin += length
    return pieces


def _write(path: Path, ring: TransitionRing, store: Store, begin: int, end: int) -> None:
    with open(path, "wb") as file:
        dtype = ring.arrays.host(store[:1]).dtype
        header = {"descr": dtype.str, "fortran_order": False, "shape": (end - begin, *store.shape[1:])}
        np.lib.format.write_array_header_2_0(file, header)
        for piece in _pieces(store, begin, end):
            file.write(np.ascontiguousarray(ring.arrays.host(store[piece])).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, ring: TransitionRing, store: Store, segment: Segment, begin: int, end: int) -> None:
    try:
        saved = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is missing or damaged ({error}); use an earlier checkpoint") from error
    expected = (segment.end - segment.begin, *store.shape[1:])
    if saved.shape != expected:
        raise ValueError(f"{path} has shape {saved.shape}, expected {expected}; it is not of this buffer")
    for piece in _pieces(store, begin, end):
        rows = saved[begin - segment.begin : begin - segment.begin + piece.stop - piece.start]
        if isinstance(store, np.ndarray):
            store[piece] = rows
        else:
            ring.arrays.load(store, piece, np.array(rows))  # a mapped file is read-only
        begin += piece.stop - piece.start


def _link(segment: Segment, columns: dict[str, Store], folders: list[Path], target: Path) -> bool:
    """Put the files of `segment` from the first folder that has them all into `target`; False if none does."""
    names = [segment.file(column) for column in columns]
    for folder in folders:
        if all((folder / name).is_file() for name in names):
            for name in names:
                try:
                    os.link(folder / name, target / name)
                except OSError:  # another file system, or one without hard links
                    shutil.copyfile(folder / name, target / name)
            return True
    return False
