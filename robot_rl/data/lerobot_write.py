"""LeRobot v3.0 data sets: writer.

Rewards and ends go into `next.reward`, `next.terminated`, `next.truncated`, `next.done` and `next.success`; the
observation after the last action, which the format has no row for, into columns `final/<feature>` of the episode list.

Source: huggingface/lerobot, dataset format v3.0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import extras
from robot_rl.atomic import new_folder
from robot_rl.data import video
from robot_rl.data.bounds import facts
from robot_rl.data.normalize import DataNorm
from robot_rl.types import Episode, IOSpec

_FILE_BYTES = 100 << 20
_INDEX = {"timestamp": "float32", **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64")}


def write(
    path: str | os.PathLike[str],
    episodes: Sequence[Episode],
    *,
    io: IOSpec | None = None,
    fps: int | None = None,
    lossless: bool = False,
    said: str | None = None,
) -> None:
    """Write episodes as a data set.

    Args:
        path: its folder; replaced as a whole.
        episodes: what to write, those without a step left out; images are (T + 1, H, W, 3) uint8 with even height and
            width.
        io: interface, for names and the rate; that of the first episode when None.
        fps: rows per second; the interface's rate, rounded, when None.
        lossless: keep every pixel value of videos, at many times the size.
        said: what is known of the actions beside the interface, see `bounds.ActionBounds.statement`.

    Raises:
        ValueError: there are no episodes, or an observation is neither a vector nor an image.
    """
    episodes = [e for e in episodes if len(e)]
    if not episodes:
        raise ValueError("got no steps to write, expected at least one episode")
    given = episodes[0].meta.get("io")
    io = io or (IOSpec.from_dict(given) if isinstance(given, dict) else given)
    rate = fps or (max(1, round(io.control_hz)) if io is not None else 20)
    for key, value in episodes[0].obs.items():
        image = value.ndim == 4 and value.dtype == np.uint8 and value.shape[3] == 3
        if not image and (value.ndim != 2 or value.dtype.kind != "f"):
            raise ValueError(
                f"observation '{key}' is {value.dtype}{list(value.shape[1:])}; a LeRobot data set holds float vectors "
                "and uint8 images (H, W, 3)"
            )
        if image and not lossless and (value.shape[1] % 2 or value.shape[2] % 2):
            raise ValueError(
                f"images '{key}' have {value.shape[1]} x {value.shape[2]} pixels, expected even numbers, which H.264 "
                "needs; scale or crop them, or write a store"
            )
    with new_folder(Path(path)) as root:
        _Writer(root, episodes, io, rate, lossless, said).run()


@dataclass
class _Writer:
    """See `write`."""

    root: Path
    episodes: Sequence[Episode]
    io: IOSpec | None
    fps: int
    lossless: bool
    said: str | None
    tasks: dict[str, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    stats: dict[str, _Stats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pa, self.parquet = extras.require("pyarrow"), extras.require("pyarrow.parquet")
        episodes, fps = self.episodes, self.fps
        self.cameras = {key: value.shape[1:] for key, value in episodes[0].obs.items() if value.ndim == 4}
        self.columns = self._columns_of_all()
        self.with_stamp = any(not np.array_equal(e.stamp, np.arange(len(e) + 1) / fps) for e in episodes)
        self.with_human = any(e.intervened.any() for e in episodes)
        self.with_proposed = any(not np.array_equal(e.proposed, e.action) for e in episodes)
        self.with_success = all("success" in e.meta for e in episodes)

    def run(self) -> None:
        """Data files, videos, lists."""
        batch: list[dict[str, np.ndarray]] = []
        size = file = index = 0
        for number, episode in enumerate(self.episodes):
            columns = self._columns(number, index, episode)
            size += sum(value.nbytes for value in columns.values())
            if batch and size > _FILE_BYTES:
                self._flush(batch, file)
                batch, file, size = [], file + 1, 0
            batch.append(columns)
            self._row(number, index, file, episode, columns)
            index += len(episode)
        self._flush(batch, file)
        for key in self.cameras:
            self._video(key)
        self._lists(index)

    def _columns_of_all(self) -> list[str]:
        tables = [e.meta.get("columns", {}) for e in self.episodes]
        first = {name: np.asarray(value) for name, value in tables[0].items()}
        fitting = [name for name, value in first.items() if value.dtype.kind in "biuf" and value.ndim <= 2]
        return [name for name in fitting if all(name in table for table in tables)]

    def _columns(self, number: int, index: int, episode: Episode) -> dict[str, np.ndarray]:
        steps = len(episode)
        frame = np.arange(steps)
        task = self.tasks.setdefault(_task(episode), len(self.tasks))
        last = frame == steps - 1
        found: dict[str, np.ndarray] = {f"observation.{k}": v[:-1] for k, v in self._vectors(episode).items()}
        found |= {"action": episode.action, "next.reward": episode.reward.astype(np.float32)}
        found |= {"next.terminated": last & episode.terminated, "next.truncated": last & episode.truncated}
        found["next.done"] = last & (episode.terminated or episode.truncated)
        if self.with_success:
            found["next.success"] = last & bool(episode.meta["success"])
        if self.with_stamp:
            found["stamp"] = episode.stamp[:-1].astype(np.float64)
        if self.with_human:
            found["intervened"] = episode.intervened
        if self.with_proposed:
            found["proposed"] = episode.proposed.astype(np.float32)
        for name in self.columns:
            found[f"info.{name}"] = np.asarray(episode.meta["columns"][name])
        found["timestamp"] = (frame / self.fps).astype(np.float32)
        found |= {"frame_index": frame, "episode_index": np.full(steps, number), "index": index + frame}
        found["task_index"] = np.full(steps, task)
        return found

    def _vectors(self, episode: Episode) -> dict[str, np.ndarray]:
        return {key: value for key, value in episode.obs.items() if key not in self.cameras}

    def _row(self, number: int, index: int, file: int, episode: Episode, columns: dict[str, np.ndarray]) -> None:
        row: dict[str, object] = {"episode_index": number, "tasks": [_task(episode)]}
        row |= {"length": len(episode), "data/chunk_index": 0, "data/file_index": file}
        row |= {"dataset_from_index": index, "dataset_to_index": index + len(episode)}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        for key in self.cameras:
            name = f"videos/{_camera(key)}"
            row |= {f"{name}/chunk_index": 0, f"{name}/file_index": 0, f"{name}/from_timestamp": index / self.fps}
            row[f"{name}/to_timestamp"] = (index + len(episode)) / self.fps
        known = episode.meta.get("final_obs_valid", True)
        for key, value in self._vectors(episode).items():
            row[f"final/observation.{key}"] = value[-1].astype(np.float32).tolist() if known else None
        row["final_stamp"] = float(episode.stamp[-1])
        row["cut"] = bool(episode.meta.get("cut", False))
        for key, value in columns.items():
            self.stats.setdefault(key, _Stats()).add(value)
            if key not in _INDEX:
                row |= {f"stats/{key}/{name}": item for name, item in _Stats(value).to_dict().items()}
        self.rows.append(row)

    def _flush(self, batch: list[dict[str, np.ndarray]], file: int) -> None:
        pa = self.pa
        arrays = {}
        for key in batch[0]:
            value = np.concatenate([columns[key] for columns in batch])
            value = value.astype(_INDEX.get(key, str(value.dtype)))
            if value.ndim == 1:
                arrays[key] = pa.array(value)
            else:
                flat = pa.array(np.ascontiguousarray(value).reshape(-1))
                arrays[key] = pa.FixedSizeListArray.from_arrays(flat, value.shape[1])
        self._table(f"data/chunk-000/file-{file:03d}.parquet", pa.table(arrays))

    def _table(self, name: str, table: object) -> None:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        self.parquet.write_table(table, target)

    def _video(self, key: str) -> None:
        target = self.root / f"videos/{_camera(key)}/chunk-000/file-000.mp4"
        target.parent.mkdir(parents=True)
        self.stats[_camera(key)] = _Stats(*(e.obs[key][:-1].reshape(-1, 3) / 255.0 for e in self.episodes))
        images = (image for episode in self.episodes for image in episode.obs[key][:-1])
        video.write(target, images, fps=self.fps, lossless=self.lossless)

    def _lists(self, total: int) -> None:
        pa = self.pa
        self._table("meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(self.rows))
        tasks = pa.table({"task_index": list(self.tasks.values()), "__index_level_0__": list(self.tasks)})
        pandas = {"index_columns": ["__index_level_0__"], "columns": [], "column_indexes": []}
        pandas["pandas_version"] = "2.0.0"
        self._table("meta/tasks.parquet", tasks.replace_schema_metadata({b"pandas": json.dumps(pandas).encode()}))
        first, features = self._columns(0, 0, self.episodes[0]), {}
        for key, value in first.items():
            features[key] = {"dtype": _INDEX.get(key, str(value.dtype)), "shape": list(value.shape[1:]) or [1]}
            features[key]["names"] = self._names(key, value)
        for key, shape in self.cameras.items():
            names = ["height", "width", "channels"]
            about = {f"video.{name}": size for name, size in zip(names, shape)}
            about |= {"video.fps": float(self.fps), "video.codec": "h264", "has_audio": False}
            about["video.pix_fmt"] = "gbrp" if self.lossless else "yuv420p"
            features[_camera(key)] = {"dtype": "video", "shape": list(shape), "names": names, "info": about}
        info = {
            "codebase_version": "v3.0",
            "robot_type": "unknown",
            "total_episodes": len(self.episodes),
            "total_frames": total,
            "total_tasks": len(self.tasks),
            "chunks_size": 1000,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 500,
            "fps": self.fps,
            "control_hz": float(self.fps if self.io is None else self.io.control_hz),  # fps is a whole number
            "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
            "features": features,
            "action_bounds": facts(self.io, self.said) or None,
        }
        stats = {}
        for key, item in self.stats.items():
            values = item.to_dict()
            if key.startswith("observation.image"):  # (3, 1, 1), as LeRobot broadcasts them over (C, H, W)
                values = {n: v if n == "count" else [[[x]] for x in v] for n, v in values.items()}
            stats[key] = values
        (self.root / "meta/info.json").write_text(json.dumps(info, indent=4))
        (self.root / "meta/stats.json").write_text(json.dumps(stats, indent=4))

    def _names(self, key: str, value: np.ndarray) -> list[str] | None:
        if self.io is None:
            return None
        if key in ("action", "proposed"):
            return list(self.io.action_names)
        if key == "observation.state" and len(self.io.obs_names) == value.shape[1]:
            return list(self.io.obs_names)
        return None


class _Stats:
    """min, max, mean, std and count per component of rows that come in pieces; rows with NaN are left out."""

    def __init__(self, *pieces: np.ndarray) -> None:
        self._norm: DataNorm | None = None
        for piece in pieces:
            self.add(piece)

    def add(self, value: np.ndarray) -> None:
        rows = np.asarray(value, np.float64).reshape(len(value), -1)
        if self._norm is None:
            self._norm, unknown = DataNorm(rows.shape[1]), np.full(rows.shape[1], np.nan)
            self._low, self._high = unknown, unknown
        rows = rows[np.isfinite(rows).all(1)]  # what an episode does not know, such as the density of a person's action
        if len(rows):
            self._norm.update(rows)
            self._low, self._high = np.fmin(self._low, rows.min(0)), np.fmax(self._high, rows.max(0))

    def to_dict(self) -> dict[str, list[float] | list[int]]:
        norm = self._norm
        assert norm is not None  # no episode is without steps
        named = {"min": self._low, "max": self._high, "mean": norm.mean, "std": norm.deviation}
        return {**{name: value.tolist() for name, value in named.items()}, "count": [norm.count]}


def _task(episode: Episode) -> str:
    return str(episode.meta.get("task") or "")


def _camera(key: str) -> str:
    return "observation.images." + key.removeprefix("image.")
