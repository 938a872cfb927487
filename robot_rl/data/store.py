"""One memory-mapped form for logs of every origin: contiguous columns, one raw file each, and a `meta.json`.

    <name>.store/
      meta.json              format, shapes, dtypes, SHA-256 of every column, sources, conversion report, moments
      episodes.jsonl         what is known of single episodes (task, seed, ...), one JSON object per line
      obs.<key>.bin          [M, ...]   M = sum of (T_e + 1): every episode keeps its final observation
      action.bin             [N, A] float32, N = sum of T_e; proposed.bin only where it ever differs
      reward.bin             [N] float32
      terminal.bin           [N] bool, true only where the task ended; truncated.bin [N] bool, any other end
      intervened.bin         [N] bool
      stamp.bin              [M] float64, seconds
      info.<key>.bin         [N, ...] further columns
      episode_*.bin          [E] start_obs, start_step, len (int64), final_obs_valid, complete (bool),
                             success (int8, -1 unknown)

All numbers are little-endian. Transition t of episode e leads from row start_obs[e] + t to the row behind it. Opening
maps the files and reads nothing but `meta.json`; episodes are written as they come, so neither side needs the data in
memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from robot_rl.data.atomic import new_folder, write_json
from robot_rl.data.episode import unnamed_io
from robot_rl.data.normalize import RunningNorm
from robot_rl.types import Episode, IOSpec

FORMAT = 1
META, EPISODES = "meta.json", "episodes.jsonl"
_CHUNK = 1 << 25
"""Bytes of episodes gathered before they are written."""
_PER_EPISODE = ("start_obs", "start_step", "len", "final_obs_valid", "complete", "success")


class Store:
    """An opened store; every array is a read-only view of its file.

    Use `open_store`.

    Attributes:
        path: the folder.
        meta: content of meta.json.
        io: interface of the data.
        start_obs: (E,) int64 first observation row of every episode.
        start_step: (E,) int64 first step of every episode.
        length: (E,) int64 steps.
        final_obs_valid: (E,) bool; False where the source never held the last observation (its row then repeats the
            one before).
        complete: (E,) bool; False for recordings that were cut, such as the tail of a file.
    """

    def __init__(self, path: Path, meta: dict[str, Any]) -> None:
        self.path, self.meta = path, meta
        self.io = IOSpec.from_dict(meta["io"])
        self._columns: dict[str, np.ndarray] = {}
        start_obs, start_step, length, valid, complete, success = (self.column(f"episode_{n}") for n in _PER_EPISODE)
        self.start_obs, self.start_step, self.length = start_obs, start_step, length
        self.final_obs_valid, self.complete = valid, complete
        self._success = success
        self._lines: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        """Number of episodes E."""
        return len(self.length)

    @property
    def steps(self) -> int:
        """Number of steps N."""
        return int(self.meta["steps"])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, such as "obs/state", "action", "info/success"."""
        return tuple(self.meta["columns"])

    @property
    def obs_keys(self) -> tuple[str, ...]:
        """Keys of the observations."""
        return tuple(name[4:] for name in self.names if name.startswith("obs/"))

    @property
    def report(self) -> list[str]:
        """What the conversion found, assumed and repaired."""
        return list(self.meta["report"])

    def column(self, name: str) -> np.ndarray:
        """A column as a read-only array over its file.

        Raises:
            KeyError: there is none of that name; lists those that are there.
        """
        if name not in self._columns:
            if name == "proposed" and name not in self.meta["columns"]:
                return self.column("action")
            if name not in self.meta["columns"]:
                raise KeyError(f"{self.path} has no column '{name}'; it has {', '.join(self.names)}")
            self._columns[name] = _map(self.path, self.meta["columns"][name])
        return self._columns[name]

    def obs(self, key: str = "state") -> np.ndarray:
        """(M, ...) observations of one key."""
        return self.column(f"obs/{key}")

    def moments(self, key: str = "state") -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of a vector observation over all steps (final observations left out), float64.

        Raises:
            KeyError: the observation is no vector of floats.
        """
        if key not in self.meta["moments"]:
            raise KeyError(f"'{key}' has no moments; there are some for {', '.join(self.meta['moments']) or 'none'}")
        item = self.meta["moments"][key]
        return np.array(item["mean"]), np.array(item["std"])

    def returns(self) -> np.ndarray:
        """(E,) float64 undiscounted returns."""
        total = np.zeros(len(self))
        reward, filled = self.column("reward"), self.length > 0
        for begin in range(0, len(self), 4096):  # a large store is not pulled into memory at once
            part = slice(begin, begin + 4096)
            here = filled[part]
            if not here.any():
                continue
            first = self.start_step[part][here]
            end = int(first[-1] + self.length[part][here][-1])
            rows = np.asarray(reward[first[0] : end], np.float64)
            total[part][here] = np.add.reduceat(rows, first - first[0])
        return total

    def success(self) -> np.ndarray | None:
        """(E,) bool, or None when the data does not say it of every episode."""
        return None if (self._success < 0).any() or not len(self) else self._success.astype(bool)

    def episode_meta(self, index: int) -> dict[str, Any]:
        """What is known of one episode."""
        if self._lines is None:
            with open(self.path / EPISODES, encoding="utf-8") as file:
                self._lines = [json.loads(line) for line in file]
        return {**self.meta["episode_meta"], **self._lines[index]}

    def episode(self, index: int) -> Episode:
        """One episode; its arrays are views."""
        index = range(len(self))[index]
        a, o, t = int(self.start_step[index]), int(self.start_obs[index]), int(self.length[index])
        meta = self.episode_meta(index)
        columns = {n[5:]: self.column(n)[a : a + t] for n in self.names if n.startswith("info/")}
        if columns:
            meta["columns"] = columns
        if not self.final_obs_valid[index]:
            meta["final_obs_valid"] = False
        return Episode(
            obs={key: self.obs(key)[o : o + t + 1] for key in self.obs_keys},
            action=self.column("action")[a : a + t],
            proposed=self.column("proposed")[a : a + t],
            reward=self.column("reward")[a : a + t],
            terminated=bool(t and self.column("terminal")[a + t - 1]),
            truncated=bool(t and self.column("truncated")[a + t - 1]),
            intervened=self.column("intervened")[a : a + t],
            stamp=self.column("stamp")[o : o + t + 1],
            meta=meta,
        )

    def episodes(self) -> Iterator[Episode]:
        """Every episode in order."""
        return (self.episode(i) for i in range(len(self)))

    def top_episodes(self, fraction: float, *, unit: str = "episodes") -> np.ndarray:
        """Indices of the episodes with the highest undiscounted returns, in order of the file.

        Args:
            fraction: in (0, 1].
            unit: "episodes": the best max(1, floor(fraction E)); "steps": the best until that share of the steps is
                reached. Ties go to the lower index.

        Raises:
            ValueError: an argument is outside its range.

        Source: Chen et al., Decision Transformer (%BC); their code counts steps.
        """
        if not 0.0 < fraction <= 1.0 or unit not in ("episodes", "steps"):
            raise ValueError(f"got fraction {fraction}, unit '{unit}'; expected (0, 1] and 'episodes' or 'steps'")
        order = np.argsort(-self.returns(), kind="stable")
        count = max(1, int(fraction * len(self)))
        if unit == "steps":
            reached = np.cumsum(self.length[order]) >= fraction * self.steps
            count = int(np.argmax(reached)) + 1
        return np.sort(order[:count])

    def split_episodes(self, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Indices (held in, held out) of a random split by episode; `fraction` of the episodes are held out.

        Raises:
            ValueError: the fraction is outside (0, 1), or there are fewer than two episodes.
        """
        if not 0.0 < fraction < 1.0 or len(self) < 2:
            raise ValueError(f"got fraction {fraction} of {len(self)} episodes, expected (0, 1) of at least two")
        order = np.random.default_rng(seed).permutation(len(self))
        out = min(max(1, round(fraction * len(self))), len(self) - 1)
        return np.sort(order[out:]), np.sort(order[:out])

    def verify(self) -> None:
        """Compare every column with its SHA-256; reads the whole store.

        Raises:
            ValueError: a column changed since it was written.
        """
        for name, item in self.meta["columns"].items():
            digest = file_sha256(self.path / item["file"])
            if digest != item["sha256"]:
                raise ValueError(
                    f"{self.path}: column '{name}' changed since it was written (SHA-256 {digest[:12]}, expected "
                    f"{item['sha256'][:12]}); convert the source again"
                )

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the columns' own: equal for equal data, wherever it lies."""
        parts = [f"{name}:{item['sha256']}" for name, item in sorted(self.meta["columns"].items())]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class StoreWriter:
    """Writes a store episode by episode; the folder appears when the block ends well.

    Columns are those of the first episode; a further column that a later episode lacks is dropped with a finding.

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
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.path, self.io = Path(path), io
        self.report = list(report)
        self._sources, self._facts = [Path(s) for s in sources], dict(facts or {})
        self._stack = ExitStack()
        self._columns: dict[str, _Column] = {}
        self._pending: list[Episode] = []
        self._bytes = 0
        self._episode: dict[str, list[int]] = {name: [] for name in _PER_EPISODE}
        self._metas: list[dict[str, Any]] = []
        self._norms: dict[str, RunningNorm] = {}
        self._steps = self._observations = 0

    def __enter__(self) -> StoreWriter:
        self._folder = self._stack.enter_context(new_folder(self.path))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            try:
                self._finish()
            except BaseException as problem:
                for column in self._columns.values():
                    column.close()
                self._stack.__exit__(type(problem), problem, problem.__traceback__)
                raise
        for column in self._columns.values():
            column.close()
        self._stack.__exit__(kind, error, trace)

    def add(self, episode: Episode) -> None:
        """Append an episode.

        Raises:
            ValueError: its observations or actions differ in shape from those before.
        """
        if not self._columns:
            self._begin(episode)
        for name, value in self._required(episode).items():
            column = self._columns[name]
            if value.shape[1:] != column.shape:
                raise ValueError(
                    f"episode {len(self._metas)}: '{name}' has shape {list(value.shape[1:])} per step, the episodes "
                    f"before have {list(column.shape)}; convert them into separate stores"
                )
        if episode.obs.keys() != {name[4:] for name in self._columns if name.startswith("obs/")}:
            raise ValueError(f"episode {len(self._metas)} observes {sorted(episode.obs)}, the first one did not")
        meta = dict(episode.meta)
        columns = meta.pop("columns", {})
        facts = self._episode
        facts["start_obs"].append(self._observations)
        facts["start_step"].append(self._steps)
        facts["len"].append(len(episode))
        facts["final_obs_valid"].append(bool(meta.pop("final_obs_valid", True)))
        facts["complete"].append(bool((episode.terminated or episode.truncated) and not meta.get("cut", False)))
        facts["success"].append(_success(meta, columns))
        meta.pop("io", None)
        self._metas.append(_json_ready(meta))
        self._steps += len(episode)
        self._observations += len(episode) + 1
        self._pending.append(episode)
        self._bytes += sum(v.nbytes for v in self._required(episode).values())
        if self._bytes >= _CHUNK:
            self._flush()

    def _required(self, episode: Episode) -> dict[str, np.ndarray]:
        return {**{f"obs/{key}": value for key, value in episode.obs.items()}, "action": episode.action}

    def _begin(self, episode: Episode) -> None:
        if self.io is None:
            io = episode.meta.get("io")
            if isinstance(io, dict):
                io = IOSpec.from_dict(io)
            self.io = io if isinstance(io, IOSpec) else unnamed_io(episode.obs, episode.action.shape[1], 20.0)
        shapes = {f"obs/{key}": (value.shape[1:], _kept(value.dtype)) for key, value in episode.obs.items()}
        shapes["action"] = (episode.action.shape[1:], np.dtype("<f4"))
        shapes |= {"reward": ((), np.dtype("<f4")), "terminal": ((), np.dtype(bool))}
        shapes |= {"truncated": ((), np.dtype(bool)), "intervened": ((), np.dtype(bool))}
        shapes["stamp"] = ((), np.dtype("<f8"))
        for key, value in episode.meta.get("columns", {}).items():
            value = np.asarray(value)
            if value.dtype.kind not in "biuf":
                self.report.append(f"column '{key}' is {value.dtype}, not numbers: left out")
                continue
            kept = value.dtype.newbyteorder("<") if value.dtype.itemsize > 1 else value.dtype
            shapes[f"info/{key}"] = (value.shape[1:], kept)
        for name, (shape, dtype) in shapes.items():
            self._columns[name] = _Column(self._folder, name, shape, dtype)
        for key, value in episode.obs.items():
            if value.ndim == 2 and value.dtype.kind == "f":
                self._norms[key] = RunningNorm(value.shape[1:])
            if value.dtype == np.float64:
                self.report.append(f"observation '{key}' is float64: kept as float32")

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
        for name in ("action", "reward", "intervened", "stamp"):
            values[name] = np.concatenate([getattr(e, name) for e in batch])
        for key in batch[0].obs:
            values[f"obs/{key}"] = np.concatenate([e.obs[key] for e in batch])
            if key in self._norms:
                rows = np.concatenate([e.obs[key][:-1] for e in batch])
                self._norms[key].update(rows[np.isfinite(rows).all(1)])
        self._flush_proposed(batch, values["action"])
        for name in [name for name in self._columns if name.startswith("info/")]:
            shape, kind = self._columns[name].shape, self._columns[name].dtype.kind
            pieces = [np.asarray(e.meta.get("columns", {}).get(name[5:])) for e in batch]
            if any(p.ndim == 0 or len(p) != len(e) or p.shape[1:] != shape for p, e in zip(pieces, batch)) or (
                kind in "biu" and any(p.dtype.kind == "f" for p in pieces)
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
        if "proposed" not in self._columns and proposed is not action and not np.array_equal(proposed, action):
            base = self._columns["action"]
            self._columns["proposed"] = base.twin("proposed")
        if "proposed" in self._columns:
            self._columns["proposed"].append(proposed)

    def _finish(self) -> None:
        self._flush()
        if not self._columns or self.io is None:
            raise ValueError("got no episodes, expected at least one")
        for name, values in self._episode.items():
            kind = {"final_obs_valid": "?", "complete": "?", "success": "i1"}.get(name, "<i8")
            column = self._columns[f"episode_{name}"] = _Column(self._folder, f"episode_{name}", (), np.dtype(kind))
            column.append(np.array(values))
        common = _common(self._metas)
        with open(self._folder / EPISODES, "x", encoding="utf-8") as file:
            for meta in self._metas:
                rest = {key: value for key, value in meta.items() if key not in common}
                file.write(json.dumps(rest) + "\n")
            file.flush()
            os.fsync(file.fileno())
        obs = {n[4:]: (c.shape, c.dtype.name) for n, c in self._columns.items() if n.startswith("obs/")}
        moments = {}
        for key, norm in self._norms.items():
            spread = np.sqrt(np.maximum(norm.state_dict()["square"].numpy() / max(norm.count, 1), 0.0))
            moments[key] = {"mean": norm.mean.tolist(), "std": spread.tolist()}
        meta = {
            "format": FORMAT,
            "episodes": len(self._metas),
            "steps": self._steps,
            "observations": self._observations,
            "io": {**self.io.to_dict(), "obs": IOSpec(obs, (), (), (), (), 1.0).to_dict()["obs"]},
            "columns": {name: column.describe() for name, column in self._columns.items()},
            "moments": moments,
            "report": self.report,
            "sources": [source_facts(path) for path in self._sources],
            "episode_meta": common,
            **self._facts,
        }
        write_json(self._folder / META, meta)


def open_store(path: str | os.PathLike[str], *, verify: bool = False) -> Store:
    """Open a store; nothing but meta.json is read.

    Args:
        path: the folder.
        verify: also compare every column with its SHA-256, which reads everything.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it is no store, of a newer format, or a column is missing or of the wrong size.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist; expected a folder written by `robot-rl data convert`")
    try:
        meta = json.loads((path / META).read_text())
        known = meta["format"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is no store ({error}); expected a folder with {META} by `data convert`") from error
    if known != FORMAT:
        raise ValueError(f"{path} has store format {known}, this program reads {FORMAT}; convert the source again")
    store = Store(path, meta)
    for item in meta["columns"].values():
        _check_size(path, item)
    if verify:
        store.verify()
    return store


def write_store(
    path: str | os.PathLike[str],
    episodes: Iterable[Episode],
    *,
    io: IOSpec | None = None,
    report: Sequence[str] = (),
    sources: Sequence[str | os.PathLike[str]] = (),
    facts: dict[str, Any] | None = None,
) -> Store:
    """Write episodes, one after another, and open the result; see `StoreWriter` for the arguments.

    Raises:
        ValueError: there are no episodes, or their shapes differ.
    """
    with StoreWriter(path, io=io, report=report, sources=sources, facts=facts) as writer:
        for episode in episodes:
            writer.add(episode)
    return open_store(path)


def store_from_d4rl(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, **options: Any) -> Store:
    """Convert a D4RL file once, and open the store from then on.

    Args:
        path: the HDF5 file.
        out: folder of the store; the file's name with ".store" beside it when None. An existing one is opened as it is
            if it came from this very file with these options, else replaced.
        options: of `robot_rl.data.d4rl.read`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read; with the remedy.
    """
    from robot_rl.data import d4rl

    path = Path(path)
    out = path.with_suffix(".store") if out is None else Path(out)
    facts = {"options": {key: options[key] for key in sorted(options)}}
    if (out / META).is_file() and path.is_file():
        store = open_store(out)
        if store.meta.get("options") == facts["options"] and came_from(store, path):
            return store
    logs = d4rl.read(path, **options)
    name = str(logs.meta.get("name", path.stem))
    return write_store(
        out, logs.episodes, io=logs.io, report=logs.findings, sources=[path], facts={**facts, "name": name}
    )


def came_from(store: Store, path: Path) -> bool:
    """Was the store made of this file, as far as size and time of change tell?"""
    made = store.meta["sources"]
    now = path.stat()
    return len(made) == 1 and (made[0]["bytes"], made[0]["modified_ns"]) == (now.st_size, now.st_mtime_ns)


def source_facts(path: Path) -> dict[str, Any]:
    """Name, size, time of change and SHA-256 of a source file; of a folder, of its name only."""
    if path.is_dir():
        return {"name": path.name, "folder": True}
    status = path.stat()
    return {
        "name": path.name,
        "bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "sha256": file_sha256(path),
    }


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


def _digest(file: Any) -> str:
    total = hashlib.sha256()
    while block := file.read(1 << 22):
        total.update(block)
    return total.hexdigest()


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

    def describe(self) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        return {
            "file": self._path.name,
            "dtype": self.dtype.str,
            "shape": [self.rows, *self.shape],
            "sha256": self._sha.hexdigest(),
        }


def _map(folder: Path, item: dict[str, Any]) -> np.ndarray:
    path, shape = _check_size(folder, item), tuple(item["shape"])
    if 0 in shape:
        empty = np.zeros(shape, item["dtype"])
        empty.flags.writeable = False
        return empty
    return np.asarray(np.memmap(path, item["dtype"], "r", shape=shape))  # a plain view is cheaper to index


def _check_size(folder: Path, item: dict[str, Any]) -> Path:
    path = folder / item["file"]
    expected = int(np.prod(item["shape"], dtype=np.int64)) * np.dtype(item["dtype"]).itemsize
    size = path.stat().st_size if path.is_file() else -1
    if size != expected:
        found = "is missing" if size < 0 else f"has {size:,} bytes, expected {expected:,}"
        raise ValueError(f"{path} {found}; the store is incomplete, copy or convert it again")
    return path


def _kept(dtype: np.dtype) -> np.dtype:
    if dtype.kind == "f":
        return np.dtype("<f4")
    if dtype.kind not in "biu":
        raise ValueError(f"an observation is {dtype}, expected numbers")
    return dtype.newbyteorder("<") if dtype.itemsize > 1 else dtype


def _success(meta: dict[str, Any], columns: dict[str, Any]) -> int:
    if "success" in meta:
        return int(bool(meta["success"]))
    column = columns.get("success", columns.get("infos/success"))
    return -1 if column is None or not len(column) else int(bool(np.asarray(column)[-1]))


def _json_ready(meta: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, (np.generic, np.ndarray)):
            return value.tolist()
        if isinstance(value, IOSpec):
            return value.to_dict()
        raise ValueError(f"Episode.meta holds a {type(value).__name__}, which is no JSON; keep arrays in its columns")

    return json.loads(json.dumps(meta, default=plain))


def _common(metas: list[dict[str, Any]]) -> dict[str, Any]:
    """Entries that are the same in every episode."""
    first = metas[0]
    return {key: value for key, value in first.items() if all(m.get(key, _common) == value for m in metas)}
