"""LeRobot data sets, v2.1 (one parquet per episode) and v3.0 (many episodes per file): reader.

Row t holds the observation and the action commanded at t; the observation after the last action is not there (unless a
data set of ours kept it). There is no reward: say where it comes from with `reward`. An end is a true one only where
success says so; `next.done` marks time limits too and is not believed alone.

Source: huggingface/lerobot, dataset formats v2.1 and v3.0.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl import extras
from robot_rl.data import foreign, sources, video
from robot_rl.data.bounds import ActionBounds, attributes, read_declared
from robot_rl.data.episode import Logs, episode_from_columns, unnamed_io
from robot_rl.data.findings import BadData, Finding, error, note, refusal, stop_on_errors, warning
from robot_rl.data.read_options import AS_IT_IS, ReadOptions
from robot_rl.types import Episode, IOSpec

if TYPE_CHECKING:
    import pyarrow as pa

INFO = "meta/info.json"
HEEDS = ("reward", "videos", "image_size", "infos", "salvage")
_INDEX = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_STAMP_TOLERANCE = 1e-4


@dataclass
class _Set:
    """What meta/ says, and what was found."""

    root: Path
    info: dict[str, Any]
    version: str
    tasks: dict[int, str] = field(default_factory=dict)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)  # by episode_index
    findings: list[Finding] = field(default_factory=list)
    pictures: tuple[Path, pa.Table] | None = None  # the last table of which pictures were read


def read(path: str | os.PathLike[str], options: ReadOptions = AS_IT_IS) -> Logs:
    """Read a data set.

    Args:
        path: its folder.
        options: how it is read; `salvage` leaves out episodes whose file cannot be read, and numbers the others anew.

    Raises:
        FileNotFoundError: there is no such folder.
        BadData: it is no data set, episodes have gaps, files cannot be read; with the remedy.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} does not exist; expected the folder of a LeRobot data set")
    data = _meta(root)
    tables = _tables(data, options.salvage)
    stop_on_errors(data.findings)
    if not tables:
        raise BadData([*data.findings, error("no_rows", f"{root} holds no episode")])
    cameras = [key for key, item in data.info["features"].items() if item["dtype"] in ("video", "image")]
    if cameras and not options.videos:
        names = ", ".join(c.removeprefix("observation.images.") for c in cameras)
        data.findings.append(note("videos", f"{len(cameras)} cameras left out ({names}): videos=true decodes them"))
    _check_rows(data, tables)
    stop_on_errors(data.findings)
    episodes = []
    for number, table in tables.items():
        size = options.image_size
        images = _images(data, number, len(table["action"]), cameras, size) if options.videos else {}
        episodes.append(_episode(data, number, table, images, options))
    stop_on_errors(data.findings)
    _reward_facts(data, episodes, options.reward)
    lag = action_lag(episodes)
    if lag is not None:
        data.findings.append(note("lag", f"states follow actions by {lag} rows ({lag / data.info['fps']:.3g} s)"))
    facts = {
        "path": str(root),
        "format": "lerobot",
        "version": data.version,
        "name": root.name,
        "robot": data.info.get("robot_type"),
        "rewards": options.reward,
    }
    return Logs(episodes, data.findings, _io(data, episodes[0]), facts, _bounds(data, episodes[0].action.shape[1]))


def action_lag(episodes: Sequence[Episode], most: int = 30) -> int | None:
    """Rows k by which the state follows the action: argmin of mean |a_t - s_(t+k)|.

    None where state and action have different sizes, or no lag stands out (less than 5 % better than none).
    """
    first = episodes[0]
    if "state" not in first.obs or first.obs["state"].shape[1:] != first.action.shape[1:]:
        return None
    total, count = np.zeros(most + 1), np.zeros(most + 1)
    for episode in episodes[:50]:
        state = episode.obs["state"][: len(episode)]
        for k in range(min(most + 1, len(episode))):
            total[k] += np.abs(episode.action[: len(episode) - k] - state[k:]).sum()
            count[k] += len(episode) - k
    mean = np.where(count > 0, total / np.maximum(count, 1), np.inf)
    best = int(np.argmin(mean))
    return best if best and mean[best] < 0.95 * mean[0] else None


def _meta(root: Path) -> _Set:
    try:
        info = foreign.read_json(foreign.inside(root, INFO))
        data = _Set(root, info, str(info["codebase_version"]))
        for key in ("fps", "features", "data_path"):
            info[key]
    except (OSError, KeyError) as problem:
        raise refusal("metadata", f"{root / INFO} cannot be used: {problem!r}", sources.AGAIN) from problem
    if not data.version.startswith(("v2.", "v3.")):
        message = f"{root} is of LeRobot version {data.version}, known are v2.x and v3.x"
        raise refusal("version", message, "convert it with lerobot")
    if data.version.startswith("v3"):
        files = sorted((root / "meta/episodes").rglob("*.parquet"))
        rows = [row for file in files for row in _parquet(root, file, "episodes of its list").to_pylist()]
        tasks = root / "meta/tasks.parquet"
        if tasks.is_file():
            for row in _parquet(root, tasks, "the list of tasks").to_pylist():
                text = row.get("task", row.get("__index_level_0__", ""))
                data.tasks[int(row["task_index"])] = str(text)
    else:
        rows = _read_rows(root, "episodes")
        data.tasks = {int(r["task_index"]): str(r["task"]) for r in _read_rows(root, "tasks")}
    data.rows = {int(row["episode_index"]): row for row in rows}
    numbers = [int(row["episode_index"]) for row in rows]
    if numbers != list(range(len(numbers))):
        first = next(i for i, n in enumerate(numbers) if n != i)
        known = len(numbers) - 1
        message = f"{root}: episode_index is not 0 ... {known}: row {first} of the list is episode {numbers[first]}"
        repair = "every later episode would get another one's video; export the data set again (lerobot-edit-dataset)"
        data.findings.append(error("index_gap", message, repair, where=f"row {first}"))
    return data


def _parquet(root: Path, file: Path, what: str, *, numeric: bool = False) -> pa.Table:
    return foreign.parquet(foreign.inside(root, file.relative_to(root)), what, numeric=numeric)


def _read_rows(root: Path, name: str) -> list[dict[str, Any]]:
    return foreign.json_lines(foreign.inside(root, f"meta/{name}.jsonl"))


def _file_of(data: _Set, number: int, kind: str = "data", **more: str) -> Path:
    """The file that holds an episode, by a template of info.json; below the data set's folder.

    Args:
        data: the data set.
        number: of the episode.
        kind: how the list of episodes calls it.
        more: further fields of the template.
    """
    row, template = data.rows[number], data.info.get(f"{kind.partition('/')[0].removesuffix('s')}_path")
    if data.version.startswith("v3"):
        where = {field: int(row[f"{kind}/{field}"]) for field in ("chunk_index", "file_index")}
    else:
        where = {"episode_chunk": number // int(data.info.get("chunks_size", 1000)), "episode_index": number}
    return foreign.inside(data.root, foreign.fill(template, **where, **more))


def _tables(data: _Set, salvage: bool) -> dict[int, dict[str, np.ndarray]]:
    """Episode -> its columns."""
    wanted: dict[Path, list[int]] = {}
    for number in data.rows:
        wanted.setdefault(_file_of(data, number), []).append(number)
    tables: dict[int, dict[str, np.ndarray]] = {}
    missing: list[int] = []
    for file, held in sorted(wanted.items()):
        if not file.is_file():
            missing += held
            continue
        try:
            columns = _columns(_parquet(data.root, file, f"episodes {_spans(held)}", numeric=True))
        except BadData as bad:
            _report_broken(data, bad, salvage)
            continue
        if not data.version.startswith("v3"):  # the file is the episode
            tables[held[0]] = columns
            continue
        index = columns["episode_index"].reshape(-1)
        for episode in held:
            rows = np.flatnonzero(index == episode)
            if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
                tables[episode] = {key: value[rows[0] : rows[-1] + 1] for key, value in columns.items()}
            elif len(rows):
                message, where = f"{file}: the rows of episode {episode} do not lie together", f"episode {episode}"
                data.findings.append(error("index_gap", message, "export the data set again", where=where))
            else:
                missing.append(episode)
    if missing:
        message = f"{len(missing)} of {len(data.rows)} episodes are missing: {_spans(sorted(missing))}"
        data.findings.append(warning("episodes_missing", message, "copy them, or go on without", count=len(missing)))
    return dict(sorted(tables.items()))


def _report_broken(data: _Set, bad: BadData, salvage: bool) -> None:
    for item in bad.findings:
        if salvage:
            message = item.message + ": left out, the others are numbered anew (salvage)"
            data.findings.append(replace(item, severity="warning", message=message, repair=""))
        else:
            data.findings.append(replace(item, repair=f"salvage=true leaves it out and renumbers; or {sources.AGAIN}"))


def _spans(numbers: Sequence[int]) -> str:
    """ "0-3, 7" """
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in parts[:20]) + (" ..." if len(parts) > 20 else "")


def _columns(table: pa.Table) -> dict[str, np.ndarray]:
    """Numeric columns as (T,) or (T, width) arrays."""
    pa = extras.require("pyarrow")
    found = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        kind = column.type
        width: tuple[int, ...] = ()
        while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            outer = len(column)
            if len(extras.require("pyarrow.compute").list_value_length(column).unique()) > 1 or column.null_count:
                if name != "action" and not name.startswith("observation."):
                    break  # nothing reads it
                message = f"'{name}' has rows of different lengths, or without numbers"
                raise refusal("bad_parquet", message, "export the data set again")
            column = column.flatten()
            kind = column.type
            width = (*width, len(column) // outer if outer else 0)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            found[name] = np.asarray(column.to_numpy(zero_copy_only=False)).reshape(-1, *width)
    return found


def _check_rows(data: _Set, tables: dict[int, dict[str, np.ndarray]]) -> None:
    features, fps = data.info["features"], float(data.info["fps"])
    off: dict[int, np.ndarray] = {}  # seconds by which stamps are wrong, by episode
    for number, table in tables.items():
        for key in ("action", "timestamp", "frame_index"):
            if key not in table:
                data.findings += sources.missing_key(data.root, key, table).findings
                return
        rows, said = len(table["action"]), int(data.rows[number].get("length", len(table["action"])))
        if rows != said:
            message = f"{data.root}: episode {number} has {rows} rows, its list says {said}"
            data.findings.append(error("lengths", message, sources.AGAIN, where=f"episode {number}"))
        for key, item in features.items():
            if key in table and item["dtype"] not in ("video", "image") and key not in _INDEX:
                width = int(np.prod(table[key].shape[1:]))
                if width != int(np.prod(item["shape"])):
                    message = f"{data.root}: '{key}' has {width} numbers per row, info.json says {item['shape']}"
                    data.findings.append(error("feature_shape", message, where=f"episode {number}"))
                    return
        wrong = np.abs(table["timestamp"].reshape(-1) - table["frame_index"].reshape(-1) / fps)
        if table["frame_index"].size and int(table["frame_index"].reshape(-1)[0]) != 0:
            wrong = np.append(wrong, 1.0 / fps)
        if (wrong > _STAMP_TOLERANCE).any():
            off[number] = wrong[wrong > _STAMP_TOLERANCE]
    if off:
        count, worst = sum(map(len, off.values())), max(seconds.max() for seconds in off.values())
        message = f"{count} time stamps differ from frame_index / {fps:g}, at most by {worst:.3g} s"
        message += f", first in episode {next(iter(off))}"
        data.findings.append(warning("stamps_off", message, "video frames may not fit", count=count))
    _check_stats(data, tables)


def _check_stats(data: _Set, tables: dict[int, dict[str, np.ndarray]]) -> None:
    """Do the episodes lie in the range that the stored statistics give?"""
    said = _read_said(data)
    gaps: dict[int, float] = {}
    for number, table in tables.items():
        most = (said.get(number, {}).get("action") or {}).get("max")
        if most is not None and len(table["action"]):
            gap = np.abs(np.asarray(most, np.float64).reshape(-1) - table["action"].max(0).reshape(-1)).max()
            gaps |= {number: float(gap)} if gap > 1e-3 else {}
    if gaps:
        message = f"{len(gaps)} episodes differ from their stored statistics, at most by {max(gaps.values()):.3g}"
        where = f"episode {next(iter(gaps))}"
        data.findings.append(warning("metadata", f"{message}, first {where}", count=len(gaps), where=where))


def _bounds(data: _Set, size: int) -> ActionBounds | None:
    """What our own writer says, else the range that the statistics of the whole set give: LeRobot's own policies take
    that range for [-1, 1], and actions are in the robot's units."""
    if "action_bounds" in data.info:
        return attributes(size, data.info["action_bounds"] or {})
    said = _read_said(data)
    whole = foreign.inside(data.root, "meta/stats.json")
    if whole.is_file():
        said = {-1: foreign.read_json(whole)}
    ends = []
    for name, least in (("min", np.min), ("max", np.max)):
        rows = [one["action"][name] for one in said.values() if name in one.get("action", {})]
        if not rows or any(np.size(row) != size for row in rows):
            return None
        ends.append(least([np.asarray(row, np.float64).reshape(-1) for row in rows], axis=0))
    still = ends[1] - ends[0] < 1e-9
    return read_declared(np.where(still, ends[0] - 1.0, ends[0]), np.where(still, ends[1] + 1.0, ends[1]), size)


def _read_said(data: _Set) -> dict[int, dict[str, Any]]:
    """Episode -> its stored statistics."""
    said = {int(row["episode_index"]): row["stats"] for row in _read_rows(data.root, "episodes_stats")}
    for number, row in data.rows.items():
        flat = {end: row[f"stats/action/{end}"] for end in ("min", "max") if row.get(f"stats/action/{end}") is not None}
        if flat:
            said[number] = {"action": flat}
    return said


def _images(
    data: _Set, number: int, rows: int, cameras: list[str], size: tuple[int, int] | None
) -> dict[str, np.ndarray]:
    found = {}
    fps = float(data.info["fps"])
    for key in cameras:
        begin, short = 0.0, "image." + key.removeprefix("observation.images.").removeprefix("observation.")
        if data.info["features"][key]["dtype"] == "image":
            found[short] = _read_embedded(data, number, key, size)
            continue
        if data.version.startswith("v3"):
            begin = float(data.rows[number][f"videos/{key}/from_timestamp"])
        file = _file_of(data, number, f"videos/{key}", video_key=key)
        try:
            if file.is_file():
                length = video.facts(file)[0] - begin
                if length < rows / fps - 1.5 / fps:
                    message = f"{file}: {length:.2f} s of video for {rows} rows at {fps:g} Hz ({rows / fps:.2f} s)"
                    data.findings.append(error("video_short", message, sources.AGAIN, where=f"episode {number}"))
                    continue
            frames = video.frames(file, begin_s=begin, count=rows, size=size)
        except BadData as bad:
            data.findings += bad.findings
            continue
        if len(frames) != rows:
            message = f"{file}: {len(frames)} frames from {begin:.2f} s on, episode {number} has {rows} rows"
            data.findings.append(error("video_short", message, sources.AGAIN, where=f"episode {number}"))
            continue
        found[short] = frames
    return found


def _read_embedded(data: _Set, number: int, key: str, size: tuple[int, int] | None) -> np.ndarray:
    """(T, H, W, 3) uint8: pictures that lie in the table itself, as PNG or JPEG."""
    file = _file_of(data, number)
    if data.pictures is None or data.pictures[0] != file:  # an episode after another from one file, read once
        data.pictures = file, _parquet(data.root, file, "pictures")
    table = data.pictures[1]
    mine = table.filter(extras.require("pyarrow.compute").equal(table["episode_index"], number))
    rows = [item["bytes"] for item in mine[key].to_pylist()]
    first = video.picture(rows[0], size)
    foreign.room(file, len(rows) * first.nbytes, f"'{key}', decoded,")
    return np.stack([first, *(video.picture(one, size) for one in rows[1:])])


def _episode(
    data: _Set, number: int, table: dict[str, np.ndarray], images: dict[str, np.ndarray], options: ReadOptions
) -> Episode:
    row, steps = data.rows[number], len(table["action"])
    seen, last = "observation.", "final/observation."
    numeric = {key: value for key, value in table.items() if value.dtype.kind in "biuf" and key.startswith(seen)}
    obs = {key.removeprefix(seen): value.astype(np.float32).reshape(steps, -1) for key, value in numeric.items()}
    obs |= images
    kept = {key: value for key, value in row.items() if key.startswith(last) and value is not None}
    final = {key.removeprefix(last): np.asarray(value, np.float32) for key, value in kept.items()}
    flat = {key: value.reshape(steps, -1)[:, 0] for key, value in table.items() if value.size == steps}
    told = {key: bool(value[-1]) for key, value in flat.items() if key.startswith("next.") and steps}
    reward, success = np.zeros(steps, np.float32), told.get("next.success")
    terminated = told.get("next.terminated", success is True)
    if options.reward == "column":
        if "next.reward" not in flat:
            raise BadData([*data.findings, *sources.missing_key(data.root, "next.reward", table).findings])
        reward = flat["next.reward"].astype(np.float32)
    elif options.reward == "success_at_end" and success is not False and steps:
        reward[-1], terminated = 1.0, True
    truncated = not terminated and told.get("next.truncated", True)
    tasks = row.get("tasks") or [data.tasks.get(int(flat.get("task_index", [0])[0]), "")]
    meta: dict[str, object] = {"id": number, "task": str(tasks[0])}
    if success is not None:
        meta["success"] = success
    if row.get("cut"):
        meta["cut"] = True
    known = {*_INDEX, "action", "stamp", "proposed", "intervened"}
    more = {k: v for k, v in table.items() if k not in known and not k.startswith(("observation", "next."))}
    if options.infos and more:
        meta["columns"] = {k.removeprefix("info."): v for k, v in more.items()}
    frame = table["frame_index"].reshape(-1)
    stamp = np.append(frame, frame[-1:] + 1) / float(data.info["fps"])
    if "stamp" in flat:
        stamp = np.append(flat["stamp"], row.get("final_stamp") or stamp[-1])
    vectors_known = bool(final) and not images and set(final) == set(obs)
    return episode_from_columns(
        obs,
        table["action"].astype(np.float32).reshape(steps, -1),
        reward,
        terminated=terminated,
        truncated=truncated,
        final_obs=final if vectors_known else None,
        proposed=table["proposed"].reshape(steps, -1) if "proposed" in table else None,
        intervened=flat["intervened"].astype(bool) if "intervened" in flat else None,
        stamp=stamp,
        meta=meta,
    )


def _reward_facts(data: _Set, episodes: list[Episode], mode: str) -> None:
    if mode == "none":
        message = "no reward: every step has 0"
        repair = "TD learning needs reward=column or reward=success_at_end; cloning does not"
        data.findings.append(warning("no_reward", message, repair))
    unknown = sum("success" not in e.meta for e in episodes)
    if mode == "success_at_end" and unknown:
        message = f"{unknown} episodes do not say whether they succeeded: taken as demonstrations that did"
        data.findings.append(warning("success_assumed", message, count=unknown))


def _io(data: _Set, episode: Episode) -> IOSpec:
    told = data.info.get("control_hz") or data.info["fps"]  # ours tells both
    io = unnamed_io(episode.obs, episode.action.shape[1], float(told))

    def names(key: str, size: int) -> tuple[str, ...]:
        given = data.info["features"].get(key, {}).get("names")
        while isinstance(given, (list, tuple)) and len(given) == 1 and isinstance(given[0], (list, tuple)):
            given = given[0]
        if isinstance(given, dict):
            given = [f"{k}_{i}" for k, v in given.items() for i in (v if isinstance(v, list) else [v])]
        return tuple(map(str, given)) if isinstance(given, (list, tuple)) and len(given) == size else ()

    actions = names("action", io.action_dim) or io.action_names
    state = names("observation.state", episode.obs["state"].shape[1]) if "state" in episode.obs else ()
    return replace(io, action_names=actions, obs_names=state)
