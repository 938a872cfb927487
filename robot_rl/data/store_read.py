"""Open a columnar store: mapped files, and a `meta.json` that says what they are. See `store` for the format."""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import foreign
from robot_rl.data.bounds import DENSITIES, Scale
from robot_rl.types import Episode, IOSpec

FORMAT = 2  # 1 had no bounds of actions
META, EPISODES = "meta.json", "episodes.jsonl"
PER_EPISODE = ("start_obs", "start_step", "len", "final_obs_valid", "complete", "success")


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
        start_obs, start_step, length, valid, complete, success = (self.column(f"episode_{n}") for n in PER_EPISODE)
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
            self._lines = foreign.json_lines(foreign.inside(self.path, EPISODES))
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

    def rescale(self, scale: Scale, io: IOSpec, said: str | None = None) -> Store:
        """The same data with actions, proposals and their log-densities on another scale, held in memory.

        Args:
            scale: of the actions.
            io: what the new ones mean.
            said: see `bounds.ActionBounds.statement`.
        """
        other = copy.copy(self)
        other.io, other.meta = replace(io, obs=self.io.obs), {**self.meta, "action": said}
        if not scale.changes:
            return other
        other._columns = {**self._columns, "action": scale(self.column("action"))}
        if "proposed" in self.names:
            other._columns["proposed"] = scale(self.column("proposed"))
        for name in DENSITIES:
            if f"info/{name}" in self.names:
                other._columns[f"info/{name}"] = self.column(f"info/{name}") - np.float32(scale.log_volume)
        return other

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
        count = max(1, int(fraction * len(self) + 1e-9))  # 0.29 * 100 is a little less than 29
        if unit == "steps":
            reached = np.cumsum(self.length[order]) >= fraction * self.steps
            count = int(np.argmax(reached)) + 1
        return np.sort(order[:count])

    def verify(self) -> None:
        """Compare every column with its SHA-256; reads the whole store.

        Raises:
            ValueError: a column changed since it was written.
        """
        for name, item in self.meta["columns"].items():
            digest = file_sha256(foreign.inside(self.path, item["file"]))
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


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a store; nothing but meta.json is read, and nothing compared with its SHA-256 (`Store.verify`).

    Args:
        path: the folder.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it is no store, of a newer format, or a column is missing or of the wrong size.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist; expected a folder written by `robot-rl data convert`")
    try:
        meta = foreign.read_json(foreign.inside(path, META))
        known = meta["format"]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is no store ({error}); expected a folder with {META} by `data convert`") from error
    if known != FORMAT:
        raise ValueError(f"{path} has store format {known}, this program reads {FORMAT}; convert the source again")
    store = Store(path, meta)
    for item in meta["columns"].values():
        _check_size(path, item)
    return store


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            total.update(block)
    return total.hexdigest()


def _map(folder: Path, item: dict[str, Any]) -> np.ndarray:
    path, shape = _check_size(folder, item), tuple(item["shape"])
    if 0 in shape:
        empty = np.zeros(shape, item["dtype"])
        empty.flags.writeable = False
        return empty
    return np.asarray(np.memmap(path, item["dtype"], "r", shape=shape))  # a plain view is cheaper to index


def _check_size(folder: Path, item: dict[str, Any]) -> Path:
    path, kind = foreign.inside(folder, str(item["file"])), np.dtype(item["dtype"])
    if kind.kind not in "biuf":
        raise ValueError(f"{path} is said to hold {kind}, expected numbers; convert the source again")
    expected = math.prod(item["shape"]) * kind.itemsize
    size = path.stat().st_size if path.is_file() else -1
    if size != expected:
        found = "is missing" if size < 0 else f"has {size:,} bytes, expected {expected:,}"
        raise ValueError(f"{path} {found}; the store is incomplete, copy or convert it again")
    return path
