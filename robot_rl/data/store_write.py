"""Write a columnar store episode by episode. See `store` for the format."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np

from robot_rl.atomic import new_folder, write_json
from robot_rl.data.episode import success_of, unnamed_io
from robot_rl.data.normalize import DataNorm
from robot_rl.data.recorder import as_plain
from robot_rl.data.store_read import EPISODES, FORMAT, META, PER_EPISODE, Store, file_sha256, open_store
from robot_rl.types import Episode, IOSpec

_WHOLE, _SAMPLE = 1 << 24, 1 << 16  # bytes of a source that are hashed

CHUNK = 1 << 25
"""Bytes of episodes gathered before they are written."""


class StoreWriter:
    """Writes a store episode by episode; the folder appears when the block ends well.

    Columns are those of the first episode; a further column that another episode lacks is left out with a finding.

    Args:
        path: the folder; one that exists is replaced when the new one is complete.
        io: interface of the data; made from the first episode when None.
        report: findings of whoever read the source.
        sources: files the data came from; their size and SHA-256 are noted.
        facts: further plain values kept in meta.json.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        io: IOSpec | None = None,
        report: Sequence[str] = (),
        sources: Sequence[str | os.PathLike[str]] = (),
        facts: dict[str, object] | None = None,
    ) -> None:
        self.path, self.io = Path(path), io
        self.report = list(report)
        self._sources, self._facts = [Path(s) for s in sources], dict(facts or {})
        self._stack = ExitStack()
        self._columns: dict[str, _Column] = {}
        self._pending: list[Episode] = []
        self._bytes = 0
        self._episode: dict[str, list[int]] = {name: [] for name in PER_EPISODE}
        self._metas: list[dict[str, Any]] = []
        self._norms: dict[str, DataNorm] = {}
        self._later: set[str] = set()  # further columns that the first episode lacks
        self._steps = self._observations = 0

    def __enter__(self) -> StoreWriter:
        self._folder = self._stack.enter_context(new_folder(self.path))
        self._stack.callback(self._close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        except BaseException:
            self._stack.__exit__(*sys.exc_info())
            raise
        self._stack.__exit__(kind, error, trace)

    def _close(self) -> None:
        for column in self._columns.values():
            column.close()

    def add(self, episode: Episode) -> None:
        """Append an episode.

        Raises:
            ValueError: its observations or actions differ in shape from those before.
        """
        if not self._columns:
            self._begin(episode)
        if episode.obs.keys() != {name[4:] for name in self._columns if name.startswith("obs/")}:
            raise ValueError(f"episode {len(self._metas)} observes {sorted(episode.obs)}, the first one did not")
        arrays = {**{f"obs/{key}": value for key, value in episode.obs.items()}, "action": episode.action}
        for name, value in arrays.items():
            column = self._columns[name]
            if value.shape[1:] != column.shape:
                raise ValueError(
                    f"episode {len(self._metas)}: '{name}' has shape {list(value.shape[1:])} per step, the episodes "
                    f"before have {list(column.shape)}; convert them into separate stores"
                )
            if not _holds(column.dtype, value.dtype):
                raise ValueError(
                    f"episode {len(self._metas)}: '{name}' is {value.dtype}, in the first one {column.dtype}, which "
                    "does not hold it; write both alike"
                )
        meta = {key: value for key, value in episode.meta.items() if key not in ("columns", "io")}
        facts = self._episode
        facts["start_obs"].append(self._observations)
        facts["start_step"].append(self._steps)
        facts["len"].append(len(episode))
        facts["final_obs_valid"].append(bool(meta.pop("final_obs_valid", True)))
        facts["complete"].append(bool((episode.terminated or episode.truncated) and not meta.get("cut", False)))
        said = success_of(episode.meta)
        facts["success"].append(-1 if said is None else int(said))
        self._metas.append(json.loads(json.dumps(meta, default=as_plain)))
        self._steps += len(episode)
        self._observations += len(episode) + 1
        self._pending.append(episode)
        self._bytes += sum(value.nbytes for value in arrays.values())
        if self._bytes >= CHUNK:
            self._flush()

    def _begin(self, episode: Episode) -> None:
        if self.io is None:
            io = episode.meta.get("io")
            if isinstance(io, dict):
                io = IOSpec.from_dict(io)
            self.io = io if isinstance(io, IOSpec) else unnamed_io(episode.obs, episode.action.shape[1], 20.0)
        for key, value in episode.obs.items():
            if value.dtype.kind not in "biuf":
                raise ValueError(f"an observation is {value.dtype}, expected numbers")
            self._add_column(f"obs/{key}", value.shape[1:], "f4" if value.dtype.kind == "f" else value.dtype)
            if value.ndim == 2 and value.dtype.kind == "f":
                self._norms[key] = DataNorm(value.shape[1])
            if value.dtype == np.float64:
                self.report.append(f"observation '{key}' is float64: kept as float32")
        self._add_column("action", episode.action.shape[1:], "f4")
        for name in ("reward", "terminal", "truncated", "intervened", "stamp"):
            self._add_column(name, (), {"reward": "f4", "stamp": "f8"}.get(name, "?"))
        self._first = set(episode.meta.get("columns", {}))
        for key, value in episode.meta.get("columns", {}).items():
            value = np.asarray(value)
            if value.dtype.kind in "biuf":
                self._add_column(f"info/{key}", value.shape[1:], value.dtype)
            else:
                self.report.append(f"column '{key}' is {value.dtype}, not numbers: left out")

    def _add_column(self, name: str, shape: tuple[int, ...], dtype: str | np.dtype) -> _Column:
        column = self._columns[name] = _Column(self._folder, name, shape, np.dtype(dtype).newbyteorder("<"))
        return column

    def _flush(self) -> None:
        batch, self._pending, self._bytes = self._pending, [], 0
        if not batch:
            return
        ends = np.zeros((2, sum(len(e) for e in batch)), bool)
        filled = [e for e in batch if len(e)]
        last = np.cumsum([len(e) for e in filled], dtype=np.int64) - 1
        ends[0, last] = [e.terminated for e in filled]
        ends[1, last] = [e.truncated for e in filled]
        values: dict[str, np.ndarray] = {"terminal": ends[0], "truncated": ends[1]}
        columns = [e.columns() for e in batch]
        for name in ("action", "reward", "intervened", "stamp"):
            values[name] = np.concatenate([column[name] for column in columns])
        for key in batch[0].obs:
            values[f"obs/{key}"] = np.concatenate([e.obs[key] for e in batch])
            if key in self._norms:
                rows = np.concatenate([e.obs[key][:-1] for e in batch])
                self._norms[key].update(rows[np.isfinite(rows).all(1)])
        self._flush_proposed(batch, values["action"])
        self._later |= {name for e in batch for name in e.meta.get("columns", {})} - self._first
        for name in [name for name in self._columns if name.startswith("info/")]:
            shape, dtype = self._columns[name].shape, self._columns[name].dtype
            pieces = [np.asarray(e.meta.get("columns", {}).get(name[5:])) for e in batch]
            if any(p.ndim == 0 or len(p) != len(e) or p.shape[1:] != shape for p, e in zip(pieces, batch)) or (
                not all(_holds(dtype, p.dtype) for p in pieces)
            ):
                self._columns.pop(name).discard()
                self.report.append(f"column '{name[5:]}' is not in every episode in one form: left out")
                continue
            values[name] = np.concatenate(pieces)
        for name, value in values.items():
            self._columns[name].append(value)

    def _flush_proposed(self, batch: list[Episode], action: np.ndarray) -> None:
        """The column exists from the first proposal on that differs from its action."""
        proposed = np.concatenate([e.proposed for e in batch])
        if "proposed" not in self._columns and not np.array_equal(proposed, action):
            self._columns["proposed"] = self._columns["action"].twin("proposed")
        if "proposed" in self._columns:
            self._columns["proposed"].append(proposed)

    def _finish(self) -> None:
        self._flush()
        if not self._columns or self.io is None:
            raise ValueError("got no episodes, expected at least one")
        for name in sorted(self._later):
            self.report.append(f"column '{name}' is not in every episode in one form: left out")
        for name, values in self._episode.items():
            kind = {"final_obs_valid": "?", "complete": "?", "success": "i1"}.get(name, "i8")
            self._add_column(f"episode_{name}", (), kind).append(np.array(values))
        common = _common(self._metas)
        with open(self._folder / EPISODES, "x", encoding="utf-8") as file:
            for meta in self._metas:
                rest = {key: value for key, value in meta.items() if key not in common}
                file.write(json.dumps(rest) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with ThreadPoolExecutor(8) as pool:  # the disk takes them together in little more than the time of one
            columns = dict(zip(self._columns, pool.map(_Column.describe, self._columns.values())))
        obs = {n[4:]: (c.shape, c.dtype.name) for n, c in self._columns.items() if n.startswith("obs/")}
        norms = self._norms.items()
        meta = {
            "format": FORMAT,
            "episodes": len(self._metas),
            "steps": self._steps,
            "observations": self._observations,
            "io": {**self.io.to_dict(), "obs": IOSpec(obs, (), (), (), (), 1.0).to_dict()["obs"]},
            "columns": columns,
            "moments": {k: {"mean": norm.mean.tolist(), "std": norm.deviation.tolist()} for k, norm in norms},
            "report": self.report,
            "sources": [source_facts(path) for path in self._sources],
            "episode_meta": common,
            **self._facts,
        }
        write_json(self._folder / META, meta)


def write_store(
    path: str | os.PathLike[str],
    episodes: Iterable[Episode],
    *,
    io: IOSpec | None = None,
    report: Sequence[str] = (),
    sources: Sequence[str | os.PathLike[str]] = (),
    facts: dict[str, object] | None = None,
) -> Store:
    """Write episodes, one after another, and open the result; see `StoreWriter` for the arguments.

    Raises:
        ValueError: there are no episodes, or their shapes differ.
    """
    with StoreWriter(path, io=io, report=report, sources=sources, facts=facts) as writer:
        for episode in episodes:
            writer.add(episode)
    return open_store(path)


def extent(path: Path) -> tuple[int, int, int]:
    """How many files a file or folder is, their bytes, and the sum of their times of change [ns]."""
    files = [file.stat() for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return len(files), sum(one.st_size for one in files), sum(one.st_mtime_ns for one in files)


def source_facts(path: Path) -> dict[str, object]:
    """Name, size, time of change and SHA-256 of a source file; of a folder its name and the `extent` of its files.

    Of a file above 16 MB only 64 blocks of 64 KB are hashed, evenly spaced, the first and the last among them
    ("sha256_sampled"): what was read from it is pinned by the columns' own checksums, and hashing all of it would
    take a fifth of the time of a conversion.
    """
    if path.is_dir():
        files, size, changed = extent(path)
        return {"name": path.name, "folder": True, "files": files, "bytes": size, "modified_ns": changed}
    status = path.stat()
    facts = {"name": path.name, "bytes": status.st_size, "modified_ns": status.st_mtime_ns}
    if status.st_size <= _WHOLE:
        return {**facts, "sha256": file_sha256(path)}
    total = hashlib.sha256()
    with open(path, "rb") as file:
        for i in range(64):
            file.seek((status.st_size - _SAMPLE) * i // 63)
            total.update(file.read(_SAMPLE))
    return {**facts, "sha256_sampled": total.hexdigest()}


class _Column:
    """A raw file that grows by rows, and its running checksum."""

    def __init__(self, folder: Path, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype, self.rows = tuple(shape), dtype, 0
        self._path = folder / f"{quote(name.replace('/', '.'), safe='.-_ ')}.bin"
        number = 2
        while self._path.exists():  # "a/b" and "a.b" are different columns
            self._path, number = folder / f"{self._path.stem}-{number}.bin", number + 1
        self._file = open(self._path, "xb")  # noqa: SIM115  (closed by the writer)
        self._sha = hashlib.sha256()

    def append(self, value: np.ndarray) -> None:
        rows = np.ascontiguousarray(value, self.dtype)
        data = rows.reshape(-1).view(np.uint8).data
        self._file.write(data)
        self._sha.update(data)
        self.rows += len(rows)

    def twin(self, name: str) -> _Column:
        """A new column with the same content so far."""
        self._file.flush()
        other = _Column(self._path.parent, name, self.shape, self.dtype)
        with open(self._path, "rb") as file:
            shutil.copyfileobj(file, other._file, 1 << 22)
        other._sha, other.rows = self._sha.copy(), self.rows
        return other

    def discard(self) -> None:
        self._file.close()
        self._path.unlink()

    def close(self) -> None:
        self._file.close()

    def describe(self) -> dict[str, object]:
        self._file.flush()
        os.fsync(self._file.fileno())
        return {
            "file": self._path.name,
            "dtype": self.dtype.str,
            "shape": [self.rows, *self.shape],
            "sha256": self._sha.hexdigest(),
        }


def _holds(column: np.dtype, given: np.dtype) -> bool:
    """Whether numbers of one type keep their values, up to the precision of a float, in a column of another."""
    return column.kind == "f" or np.can_cast(given, column)


def _common(metas: list[dict[str, object]]) -> dict[str, object]:
    """Entries that are the same in every episode."""
    first = metas[0]
    return {key: value for key, value in first.items() if all(m.get(key, _common) == value for m in metas)}
