"""Local Minari datasets: reader (HDF5 and Arrow) and writer (HDF5), without the minari package.

A dataset is a folder `<name>-v<k>/data` with `main_data.hdf5` and `metadata.json`. A plain observation array is called
"state" here; dictionaries keep their keys, nested ones joined with "/"; tuples count theirs as `_index_0` ....

Source: Farama-Foundation/Minari minari/dataset/_storages/hdf5_storage.py and minari/serialization.py (0.5.4).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from robot_rl.atomic import new_folder, new_hdf5
from robot_rl.data import foreign, minari_arrow, sources
from robot_rl.data.bounds import attributes, facts, read_declared
from robot_rl.data.episode import Logs, beside, episode_from_columns, is_usual, read_beside, unnamed_io
from robot_rl.data.findings import BadData, Finding, error, refusal, warning
from robot_rl.data.read_options import AS_IT_IS, ReadOptions, rate_of
from robot_rl.data.video import picture
from robot_rl.types import Episode, IOSpec

FILE, META = "main_data.hdf5", "metadata.json"
HEEDS = ("infos", "control_hz")


def locate(path: Path) -> Path:
    """The data folder of a dataset, given it, the folder above it or the file in it.

    Raises:
        FileNotFoundError: there is none.
    """
    for folder in (path, path / "data", path.parent):
        if (folder / FILE).is_file():
            return folder
        if (folder / META).is_file() and minari_arrow.folders(folder):
            return folder
    raise FileNotFoundError(
        f"{path} holds no Minari dataset, expected {FILE} or a folder per episode in it or in its folder 'data'"
    )


def read(path: str | Path, options: ReadOptions = AS_IT_IS) -> Logs:
    """Read a local dataset; JPEG-encoded images (Minari's default; lossy) by pillow where it is installed.

    Args:
        path: the dataset's folder, its data folder or its HDF5 file.
        options: how it is read.

    Raises:
        FileNotFoundError: no dataset there.
        ValueError: the data is damaged or incomplete; with the remedy.
    """
    path = Path(path)
    metadata = _metadata(path)
    folder = locate(path)
    arrow = metadata.get("data_format", "hdf5") == "arrow"
    file_path = folder if arrow else folder / FILE
    findings: list[Finding] = []
    episodes: list[Episode] = []
    jpeg = bool(metadata.get("jpeg_encoding", False))
    if jpeg:
        findings.append(warning("jpeg", f"{file_path}: images are JPEG-encoded: lossy"))
    if arrow and options.infos:
        findings.append(warning("no_infos", f"{folder}: infos of the Arrow format are not read"))
    for name, group in minari_arrow.episodes(folder, metadata) if arrow else _groups(file_path):
        episodes.append(_episode(file_path, name, group, options.infos, findings))
    for key, found in (("total_episodes", len(episodes)), ("total_steps", sum(map(len, episodes)))):
        if key in metadata and metadata[key] != found:
            findings.append(warning("metadata", f"{META} says {key} {metadata[key]}, the data has {found}"))
    interface = unnamed_io(
        episodes[0].obs, episodes[0].action.shape[1], options.control_hz or rate_of(metadata.get("control_hz"))
    )
    known = {**metadata, "path": str(file_path), "format": "minari"}
    size = interface.action_dim
    space = foreign.parse(folder / META, metadata["action_space"]) if metadata.get("action_space") else {}
    bounds = attributes(size, metadata)
    if bounds is None and space.get("type") == "Box":
        bounds = read_declared(space.get("low"), space.get("high"), size)
    return Logs(episodes, findings, interface, known, bounds)


def _groups(path: Path) -> Iterator[tuple[str, Any]]:
    """Names and groups of the HDF5 format, by number."""
    with foreign.hdf5(foreign.inside(path.parent, path.name)) as file:
        names = [name for name in map(str, file) if name.startswith("episode_") and name[8:].isdigit()]
        if not names:
            raise sources.missing_key(path, "episode_0", file)
        for name in sorted(names, key=lambda name: int(name[8:])):  # episode_10 comes after episode_2
            yield name, file[name]


def write(
    path: str | Path,
    episodes: Sequence[Episode],
    *,
    dataset_id: str | None = None,
    io: IOSpec | None = None,
    said: str | None = None,
    **metadata: object,
) -> None:
    """Write episodes as a dataset that Minari loads; images are stored as they are, not JPEG-encoded.

    Episodes that neither terminated nor were truncated are marked as truncated, because Minari has no cut recordings,
    and by `infos/cut`; `infos/final_obs_valid` tells of last observations that were never recorded, `infos/succeeded`
    of successes.
    `meta["columns"]`, proposals, interventions and stamps go to `infos`, whose first entry repeats the first step's.

    Args:
        path: folder of the dataset, by Minari's rules <MINARI_DATASETS_PATH>/<dataset_id>; replaced as a whole.
        episodes: what to write.
        dataset_id: "<namespace>/<name>-v<k>"; the folder's name when None.
        io: interface; its rate and what -1 and +1 mean are kept in metadata.json.
        said: what is known of the actions beside it, see `bounds.ActionBounds.statement`.
        metadata: further entries of metadata.json, such as author or algorithm_name.

    Raises:
        ValueError: no episodes.
    """
    if not episodes:
        raise ValueError("got no episodes to write, expected at least one")
    first = episodes[0]
    plain = list(first.obs) == ["state"]
    spaces = {key: _box(value, key) for key, value in first.obs.items()}
    space = spaces["state"] if plain else {"type": "Dict", "subspaces": spaces}
    action = _box(first.action, "action")
    told = facts(io, said)
    if told:
        shape = first.action.shape[1:]
        action |= {"low": np.full(shape, -1.0).tolist(), "high": np.ones(shape).tolist()}
    with new_folder(Path(path)) as folder:
        data = folder / "data"
        data.mkdir()
        with new_hdf5(data / FILE, track_order=True) as file:
            for i, episode in enumerate(episodes):
                _write_episode(file.create_group(f"episode_{i}"), i, episode, plain)
        kept = {
            "total_episodes": len(episodes),
            "total_steps": sum(len(e) for e in episodes),
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "observation_space": json.dumps(space),
            "action_space": json.dumps(action),
            "dataset_id": dataset_id or Path(path).name,
            "minari_version": "0.5.4",
            "dataset_size": round((data / FILE).stat().st_size / 1e6, 1),
            **({} if io is None else {"control_hz": io.control_hz}),
            **told,
            **metadata,
        }
        (data / META).write_text(json.dumps(kept))


def _metadata(path: Path) -> dict[str, Any]:
    for folder in (path, path / "data", path.parent):
        if (folder / META).is_file():
            facts = foreign.read_json(foreign.inside(folder, META))
            if facts.get("data_format", "hdf5") not in ("hdf5", "arrow"):
                message = f"{folder} is in Minari's '{facts['data_format']}' format, expected 'hdf5' or 'arrow'"
                raise refusal("minari_format", message, "convert it with minari")
            return facts
    return {}


def _episode(path: Path, name: str, group: Any, infos: bool, findings: list[Finding]) -> Episode:
    for key in ("observations", "actions", "rewards", "terminations", "truncations"):
        if key not in group:
            raise sources.missing_key(path, f"{name}/{key}", [f"{name}/{k}" for k in group])
    obs = _flat(path, group["observations"], "state")
    words = [key for key, value in obs.items() if value.dtype.kind in "OSU"]
    if words and len(words) < len(obs):
        obs = {key: value for key, value in obs.items() if key not in words}
        if not any(item.case == "text" for item in findings):
            findings.append(warning("text", f"{path}: observations that are text are left out: {', '.join(words)}"))
    action = np.concatenate([_columns(a) for a in _flat(path, group["actions"], "action").values()], 1)
    try:
        reward, terminated, truncated = (
            foreign.take(path, group[key]) for key in ("rewards", "terminations", "truncations")
        )
    except OSError as problem:
        raise sources.unreadable_error(path, name, problem) from problem
    steps = len(action)
    wrong = [
        error("lengths", f"{path}: {name}/{key} has {len(value)} rows, expected {rows} ({steps} actions)")
        for key, value, rows in (
            ("rewards", reward, steps),
            ("terminations", terminated, steps),
            ("truncations", truncated, steps),
            *((f"observations/{key}", value, steps + 1) for key, value in obs.items()),
        )
        if len(value) != rows
    ]
    if wrong:
        raise BadData([*findings, *wrong])
    early = int((terminated | truncated)[:-1].sum())
    if early:
        message = f"{name} has {early} ends before its last step: ignored"
        findings.append(warning("early_end", message, count=early, where=name))
    ended, stopped = (bool(steps and flags[-1]) for flags in (terminated, truncated))
    if ended and stopped:
        message = f"{name} is terminated and truncated at once: terminated wins"
        findings.append(warning("both_ends", message, where=name))
    meta: dict[str, object] = {"id": int(group.attrs.get("id", name[8:]))}
    if str(group.attrs.get("seed")).isdecimal():  # Minari 0.3 wrote "None"
        meta["seed"] = int(group.attrs["seed"])
    if "rewards_sum" in group.attrs and not np.isclose(float(group.attrs["rewards_sum"]), reward.sum(), atol=1e-3):
        said, found = float(group.attrs["rewards_sum"]), float(reward.sum())
        message = f"{name} says rewards_sum {said:.4g}, its rewards sum to {found:.4g} (difference {found - said:.3g})"
        findings.append(warning("metadata", message, where=name))
    info = _flat(path, group["infos"], "info", exact=True) if "infos" in group else {}
    columns = {key: value[1:] for key, value in info.items() if len(value) == steps + 1}
    told, endless = read_beside(columns)
    proposed, intervened = (columns.pop(name, None) for name in ("proposed", "intervened"))
    stamp = None if columns.pop("stamp", None) is None else info["stamp"]
    if infos and columns:
        meta["columns"] = columns
    return episode_from_columns(
        obs,
        action,
        reward.astype(np.float32),
        terminated=ended,
        truncated=stopped and not ended and not endless,
        proposed=None if proposed is None else proposed.astype(np.float32),
        intervened=None if intervened is None else intervened.astype(bool),
        stamp=stamp,
        meta=meta | told,
    )


def _flat(path: Path, item: Any, name: str, exact: bool = False) -> dict[str, np.ndarray]:
    """Every array below an HDF5 item; the item itself is called `name`. float64 becomes float32 unless `exact`."""
    if isinstance(item, (h5py.Group, Mapping)):
        nested = {key: _flat(path, child, "", exact) for key, child in item.items()}
        return {f"{k}/{sub}" if sub else k: v for k, inner in nested.items() for sub, v in inner.items()}
    try:
        value = foreign.take(path, item)
    except OSError as problem:
        raise sources.unreadable_error(path, item.name, problem) from problem
    if h5py.check_vlen_dtype(value.dtype) == np.uint8:
        first = picture(bytes(value[0])) if len(value) else None
        foreign.room(path, len(value) * (0 if first is None else first.nbytes), f"'{item.name}', decoded,")
        value = np.stack([picture(bytes(row)) for row in value])
    if value.dtype == np.float64 and not exact:
        value = value.astype(np.float32)
    return {name: value}


def _columns(value: np.ndarray) -> np.ndarray:
    return value.reshape(len(value), int(np.prod(value.shape[1:]))).astype(np.float32)


def _box(value: np.ndarray, key: str) -> dict[str, object]:
    shape = list(value.shape[1:])
    if value.dtype.kind == "f":
        ends = -np.inf, np.inf
    elif value.dtype.kind == "i" or value.dtype == np.uint8:
        ends = np.iinfo(value.dtype).min, np.iinfo(value.dtype).max
    else:
        raise ValueError(f"'{key}' is {value.dtype}, expected numbers")
    low, high = (np.full(shape, end).tolist() for end in ends)
    return {"type": "Box", "dtype": str(value.dtype), "shape": shape, "low": low, "high": high}


def _write_episode(group: Any, number: int, episode: Episode, plain: bool) -> None:
    reward = episode.reward.astype(np.float64)
    group.attrs.update({"id": number, "total_steps": len(episode)})
    for name, fold in (("sum", np.sum), ("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std)):
        group.attrs[f"rewards_{name}"] = float(fold(reward)) if len(reward) else 0.0
    if "seed" in episode.meta and episode.meta["seed"] is not None:
        group.attrs["seed"] = int(episode.meta["seed"])
    if plain:
        group["observations"] = episode.obs["state"]
    else:
        for key, value in episode.obs.items():
            group[f"observations/{key}"] = value
    ends = np.zeros((2, len(episode)), bool)
    ends[:, -1:] = [[episode.terminated], [not episode.terminated]]
    group["actions"], group["rewards"] = episode.action, reward
    group["terminations"], group["truncations"] = ends
    for key, value in beside(episode).items():
        if len(episode) and not is_usual(key, value):
            group[f"infos/{key}"] = np.concatenate((value[:1], value))
    group["infos/stamp"] = episode.stamp
