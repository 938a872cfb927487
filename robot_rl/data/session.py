"""Recorded robot sessions: one HDF5 file per episode in D4RL's layout, in a folder that is always readable.

A file appears with its name when it is complete and flushed (`*.part` before), so a kill or a full disk costs the
episode that was being recorded and no other. `join` makes one D4RL file of a session. Columns, N rows each:

    observations, next_observations (N, S) float32; actions (N, A) float32, executed, in [-1, 1]
    rewards float32; terminals, timeouts bool, never both, one of them on the last row
    infos/<name>: what else was known per step
    images/<camera>: pictures, JPEG or PNG bytes of variable length or (M, H, W, C) uint8, one per row or, where
    infos/picture_<camera> (N,) int32 says which one each row saw (-1: none yet), each stored once

Source: layout of Farama-Foundation/D4RL, gym v2 files.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np

from robot_rl.atomic import new_hdf5, write_bytes
from robot_rl.data import foreign
from robot_rl.data.recorder import as_plain

Column: TypeAlias = "np.ndarray | list[bytes]"
"""(N, ...) numbers, or N pictures as JPEG or PNG."""
SCHEMA = 1
PICTURES, SEEN = "images/", "infos/picture_"
CORE = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def check(columns: Mapping[str, Column]) -> int:
    """Number of rows of a table of columns.

    Raises:
        ValueError: a column of the layout is missing, lengths differ, a row is terminal and timeout at once, an end
            lies inside, there are no rows, or a row saw a picture that is not there.
    """
    missing = [key for key in CORE[:5] if key not in columns]
    if missing:
        raise ValueError(f"columns lack {', '.join(missing)}; expected {', '.join(CORE[:5])}")
    lengths = {key: len(value) for key, value in columns.items() if _index_of(key) not in columns}
    rows = lengths["actions"]
    wrong = {key: n for key, n in lengths.items() if n != rows}
    if wrong or not rows:
        raise ValueError(f"columns differ in length or are empty: actions has {rows} rows, others {wrong}")
    for key in columns:
        if key.startswith(SEEN):
            camera = PICTURES + key.removeprefix(SEEN)
            most = int(np.max(columns[key]))
            if most >= len(columns.get(camera, ())):
                raise ValueError(f"{key} names picture {most}, {camera} has {len(columns.get(camera, ()))}")
    ends = np.asarray(columns["terminals"], bool).astype(int) + np.asarray(columns["timeouts"], bool)
    if (ends > 1).any():
        raise ValueError(f"row {int(np.argmax(ends > 1))} is terminal and timeout at once, expected at most one")
    if ends[:-1].any() or not ends[-1]:
        raise ValueError("an episode has its only end on its last row; split episodes before writing")
    return rows


def _index_of(key: str) -> str:
    """Column that says which row saw which picture of column `key`; "" for columns that are no pictures."""
    return SEEN + key.removeprefix(PICTURES) if key.startswith(PICTURES) else ""


def write(path: str | os.PathLike[str], columns: Mapping[str, Column], attributes: Mapping[str, object]) -> Path:
    """Write one episode; the file appears when it is complete and on the disk.

    Args:
        path: `.hdf5` file.
        columns: name -> N rows; a list of `bytes` becomes a column of variable length.
        attributes: facts about the session; what is neither text nor number is stored as JSON.

    Raises:
        ValueError: see `check`.
        OSError: the disk is full; nothing of that name is there then.
    """
    check(columns)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Built in memory: HDF5 itself cannot be trusted to leave an error of the disk behind cleanly.
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        for key, value in columns.items():
            if isinstance(value, list) and value:
                table = file.create_dataset(key, (len(value),), dtype=h5py.vlen_dtype(np.uint8))
                for i, item in enumerate(value):
                    table[i] = np.frombuffer(item, np.uint8)
                continue
            array = np.asarray(value)
            chunks = (1, *array.shape[1:]) if array.ndim > 2 else None
            file.create_dataset(key, data=array, chunks=chunks, compression="gzip" if array.ndim > 2 else None)
        _describe(file, attributes)
    write_bytes(path, image.getvalue())
    return path


def _describe(file: h5py.File, attributes: Mapping[str, object]) -> None:
    file.attrs["schema"] = SCHEMA
    for key, value in attributes.items():
        plain = isinstance(value, (str, int, float, bool, np.generic))
        file.attrs[key] = value if plain else json.dumps(value, default=as_plain)


def episodes(folder: str | os.PathLike[str]) -> list[Path]:
    """Complete episode files of a session, in the order in which they were recorded."""
    return sorted(Path(folder).glob("episode_*.hdf5"))


def next_path(folder: str | os.PathLike[str]) -> Path:
    """Name for the next episode of a session."""
    found = (path.stem.removeprefix("episode_") for path in episodes(folder))
    numbers = [int(name) for name in found if name.isdecimal()]  # a file that somebody renamed has none
    return Path(folder) / f"episode_{max(numbers, default=-1) + 1:06d}.hdf5"


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns and attributes of an episode or a joined file; JSON attributes come back as they were.

    Raises:
        ValueError: not an HDF5 file, or one that claims more than it holds.
    """
    columns: dict[str, Column] = {}
    with foreign.hdf5(Path(path)) as file:

        def visit(key: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                value = foreign.take(Path(path), item)
                columns[key] = [v.tobytes() for v in value] if h5py.check_vlen_dtype(item.dtype) else value

        file.visititems(visit)
        attributes = {key: _parse(value) for key, value in file.attrs.items()}
    return columns, attributes


def _parse(value: object) -> object:
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(json.JSONDecodeError):
            return json.loads(value)
    return value.item() if isinstance(value, np.generic) else value


def join(sources: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> int:
    """One D4RL file of several episodes, in order; columns that not all of them have are left out.

    Args:
        sources: episode files, or folders of them.
        out: new file.

    Returns:
        Rows written.

    Raises:
        ValueError: no episodes, or they are of different robots (observation or action widths differ).
        FileExistsError: the new file exists.
    """
    paths = [p for source in map(Path, sources) for p in (episodes(source) if source.is_dir() else [source])]
    out = Path(out)
    if not paths:
        raise ValueError(f"no episodes in {', '.join(map(str, sources))}, expected files episode_*.hdf5")
    if out.exists():
        raise FileExistsError(f"{out} exists already; nothing is overwritten, choose another name")
    shared: set[str] = set()
    every: set[str] = set()
    widths: dict[str, tuple[int, ...]] = {}
    for i, path in enumerate(paths):
        with foreign.hdf5(path) as file:
            keys: set[str] = set()
            file.visititems(lambda k, v, keys=keys: keys.add(k) if isinstance(v, h5py.Dataset) else None)
            shared, every = keys if not i else shared & keys, every | keys
            for key in ("observations", "actions"):
                shape = foreign.dataset(path, file, key).shape[1:]
                if widths.setdefault(key, shape) != shape:
                    raise ValueError(f"{path}: {key} has shape {shape}, the first episode {widths[key]}")
    # pictures of which some episodes do not say which row saw them would be taken for those of other rows
    shared -= {PICTURES + key.removeprefix(SEEN) for key in every - shared if key.startswith(SEEN)}
    rows = 0
    with new_hdf5(out) as target:
        for path in paths:
            with foreign.hdf5(path) as file:
                rows = _append(target, file, sorted(shared), rows)
                if path == paths[0]:
                    for key, value in file.attrs.items():
                        target.attrs[key] = value
    return rows


def _append(target: h5py.File, source: h5py.File, keys: Sequence[str], rows: int) -> int:
    origin, made = Path(source.filename), Path(target.filename)
    before = {key: len(foreign.dataset(made, target, key)) if key in target else 0 for key in keys}
    for key in keys:
        item = foreign.dataset(origin, source, key)
        if key not in target:
            target.create_dataset(key, (0, *item.shape[1:]), item.dtype, maxshape=(None, *item.shape[1:]), chunks=True)
        table = foreign.dataset(made, target, key)
        if table.shape[1:] != item.shape[1:]:
            raise ValueError(f"{source.filename}: {key} has shape {item.shape[1:]}, earlier episodes {table.shape[1:]}")
        values = foreign.take(origin, item)
        if key.startswith(SEEN):  # pictures of earlier episodes lie before these
            values = np.where(values < 0, values, values + before.get(PICTURES + key.removeprefix(SEEN), 0))
        table.resize(before[key] + len(item), axis=0)
        if h5py.check_vlen_dtype(item.dtype):  # one by one: h5py makes a matrix of rows of equal length
            for k, value in enumerate(values):
                table[before[key] + k] = value
        else:
            table[before[key] :] = values
    return rows + len(foreign.dataset(origin, source, "actions"))


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """Room left on the disk of a folder [bytes]."""
    return shutil.disk_usage(folder).free
