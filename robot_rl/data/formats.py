"""Which format a log is in, and its reader and writer."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from robot_rl.atomic import new_folder
from robot_rl.data import checks, foreign, replay_log, sources
from robot_rl.data.bounds import bounds_of_io
from robot_rl.data.episode import Logs, sound, unnamed_io
from robot_rl.data.findings import BadData, Finding, error, note, refusal, stop_on_errors, warning
from robot_rl.data.read_options import ReadOptions
from robot_rl.types import Episode, IOSpec

_OWN = ("recording", "store")
FORMATS = ("d4rl", "minari", "robomimic", "lerobot", "rosbag", "csv", "npz", "replay", *_OWN)
_ENDS = {
    "csv": (".csv", ".csv.gz"),
    "recording": (".episodes",),
    "npz": (".npz", ".pkl", ".pickle"),
    "rosbag": (".mcap", ".db3"),
}
_ONLY_READ = (".csv", ".gz", ".npz", ".pkl", ".pickle", ".parquet", ".mcap", ".db3", ".bag", ".json")
WRITERS = ("store", "d4rl", "minari", "lerobot", "recording")


def detect(path: str | os.PathLike[str]) -> str:
    """Which of `FORMATS` a file or folder is in.

    Raises:
        FileNotFoundError: there is nothing.
        BadData: it is none of them, or a Git LFS pointer.
    """
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    sources.check_file(path)
    name = path.name.lower()
    known = next((kind for kind, ends in _ENDS.items() if name.endswith(ends)), None)
    if known is not None:
        return known
    if name.endswith(".parquet"):
        repair = (
            "of a LeRobot set name the folder that holds meta/; a table of your own is read as CSV with a map, each "
            "episode a file: pandas.read_parquet(...).to_csv(..., index=False)"
        )
        raise refusal("unknown_format", f"{path} is a single Parquet file", repair)
    if name == "main_data.hdf5":
        return "minari"
    return "robomimic" if _is_robomimic(path) else "d4rl"


def _folder(path: Path) -> str:
    if (path / "meta.json").is_file() and (path / "episodes.jsonl").is_file():
        return "store"
    if any(path.glob("segment-*.episodes")) or any(path.glob("log/segment-*.episodes")):
        return "recording"
    if replay_log.find(path) is not None:
        return "replay"
    for kind, patterns in _FOLDERS.items():
        if any(any(path.glob(pattern)) for pattern in patterns):
            return kind
    message = (
        f"{path} holds no log that can be read, expected segment-*.episodes (our recordings), meta.json (a store), "
        "checkpoints/step_*/buffer (a run that learnt from a replay buffer), data/main_data.hdf5 (Minari), "
        "meta/info.json (LeRobot), metadata.yaml (rosbag2) or .csv files"
    )
    raise refusal("unknown_format", message, "for D4RL, robomimic, NPZ and pickles name the file itself")


_FOLDERS = {
    "lerobot": ("meta/info.json",),
    "minari": ("metadata.json", "main_data.hdf5", "data/metadata.json", "data/main_data.hdf5"),
    "rosbag": ("*.mcap", "*.db3", "metadata.yaml"),
    "csv": ("**/*.csv", "**/*.csv.gz"),
}
"""Format -> what a folder of it holds, one of these; in the order in which they are tried."""


def _is_robomimic(path: Path) -> bool:
    import h5py

    try:
        with foreign.hdf5(path) as file:
            group = file.get("data")
            return isinstance(group, h5py.Group) and any(str(name).startswith("demo") for name in group)
    except (OSError, BadData, KeyError, RuntimeError):
        return False  # the D4RL reader says what is wrong


@cache
def _readers() -> dict[str, ModuleType]:
    """Format -> the module of its reader; only who reads a log waits for h5py."""
    from robot_rl.data import d4rl, lerobot, minari, npz, robomimic, rosbag, tables

    return {
        "d4rl": d4rl,
        "minari": minari,
        "robomimic": robomimic,
        "lerobot": lerobot,
        "rosbag": rosbag,
        "csv": tables,
        "npz": npz,
        "replay": replay_log,
    }


def load(path: str | os.PathLike[str], *, allow_nan: bool = False, **options: Any) -> Logs:
    """Read a log of any known format.

    Args:
        path: file or folder.
        allow_nan: also where values are not finite; `checks` tells of them.
        options: of `ReadOptions`; those that are None are left at their defaults.

    Raises:
        FileNotFoundError: there is nothing.
        BadData: it cannot be read; says why.
        ValueError: there is no such option, or the format has none of that name.
    """
    path, kind = Path(path), detect(path)
    given = ReadOptions(**{key: value for key, value in options.items() if value is not None})
    reader = _readers().get(kind)
    heeds = () if reader is None else reader.HEEDS
    idle = [name for name, value in given if value != ReadOptions.model_fields[name].default and name not in heeds]
    idle = [name for name in idle if name != "infos"]  # a format without further columns reads none
    if idle:
        listed = ", ".join(sorted(heeds)) or "none"
        raise ValueError(f"{idle[0]}: data in the format '{kind}' has no such option; it has {listed}")
    with foreign.reading(path):
        if reader is not None:
            logs = reader.read(path, given)
        else:
            logs = _recording(path) if kind == "recording" else _store(path)
        logs = sound(path, logs)
        if not allow_nan and kind not in _OWN:
            stop_on_errors([*logs.findings, *checks.not_finite(logs.episodes)])
        return logs


def _recording(path: Path) -> Logs:
    from robot_rl.data.hil_words import correct_episodes, episode_key, read_corrections
    from robot_rl.data.recorder import Recording

    folder = path if path.is_dir() else path.parent
    if not any(folder.glob("segment-*.episodes")):
        folder = folder / "log"  # a run folder of robot-rl hil
    for file in folder.glob("segment-*.episodes"):
        foreign.inside(folder, file.name)
    recording = Recording(path if path.is_file() else folder)
    findings: list[Finding] = []
    for file, offset, size in recording.torn:
        message = f"{file.name}: {size:,} bytes at {offset:,} are an episode that was never completed: passed over"
        findings.append(warning("torn", message, where=file.name))
    episodes = []
    for i in range(len(recording)):
        try:
            episodes.append(recording[i])
        except ValueError as problem:
            findings.append(error("damaged", str(problem), "copy the recording again", where=f"episode {i}"))
    words = read_corrections(folder)
    if words:
        episodes = correct_episodes(episodes, words)
        said = f"what a person said after the end of {len({episode_key(line) for line in words})} episodes counts"
        findings.append(note("corrected", said))
    episodes = _sample(episodes, findings)
    if not episodes:
        raise BadData([*findings, error("no_rows", f"{folder} has no complete episode")])
    io = episodes[0].meta.get("io")
    if not isinstance(io, IOSpec):
        io = unnamed_io(episodes[0].obs, episodes[0].action.shape[1], 20.0)
    said = episodes[0].meta.get("actions")
    bounds = None if said is None else bounds_of_io(io, said)
    return Logs(episodes, findings, io, {"path": str(folder), "format": "recording"}, bounds)


def _sample(episodes: list[Episode], findings: list[Finding]) -> list[Episode]:
    """Episodes with a person in the loop as the pieces that learners see: no gaps, holds or thrown away episodes."""
    from robot_rl.data.hil_episode import valid_pieces
    from robot_rl.data.hil_record import COLUMNS

    found: list[Episode] = []
    invalid = discarded = 0
    for episode in episodes:
        columns = episode.meta.get("columns", {})
        if not set(COLUMNS) <= set(columns):
            found.append(episode)
        elif episode.meta.get("discarded"):
            discarded += 1
        else:
            invalid += int((~columns["valid"]).sum())
            found += [episode] if columns["valid"].all() else valid_pieces(episode)
    if invalid:
        findings.append(note("invalid", f"{invalid} steps that are recorded as invalid are left out", count=invalid))
    if discarded:
        findings.append(note("discarded", f"{discarded} episodes that were thrown away are left out", count=discarded))
    return found


def _store(path: Path) -> Logs:
    from robot_rl.data.store import open_store

    try:
        store = open_store(path)
    except ValueError as problem:
        raise refusal("damaged", str(problem)) from problem
    facts = {"path": str(path), "format": "store", "name": store.meta.get("name", path.stem)}
    findings = [note("conversion", line) for line in store.report]
    return Logs(list(store.episodes()), findings, store.io, facts, bounds_of_io(store.io, store.meta.get("action")))


def write(path: str | os.PathLike[str], logs: Logs, to: str, **facts: Any) -> None:
    """Write episodes in one of `WRITERS`.

    Args:
        path: the file or folder.
        logs: what to write.
        to: the format.
        facts: "sources" and further entries for a store's meta.json; no other format keeps them.

    Raises:
        ValueError: there is no such writer, or the format cannot hold the data.
    """
    path, said = Path(path), None if logs.bounds is None else logs.bounds.statement
    if to == "store":
        from robot_rl.data.store import write_store

        made_of = facts.pop("sources", ())
        report, facts = [str(item) for item in logs.findings], {**facts, "action": said}
        write_store(path, logs.episodes, io=logs.io, report=report, sources=made_of, facts=facts)
    elif to in ("d4rl", "minari", "lerobot"):
        from robot_rl.data import d4rl, lerobot_write, minari

        writer = {"d4rl": d4rl, "minari": minari, "lerobot": lerobot_write}[to]
        writer.write(path, logs.episodes, io=logs.io, said=said)
    elif to == "recording":
        from robot_rl.data.recorder import Recorder

        told = {} if said is None else {"actions": said}
        with new_folder(path) as folder, Recorder(folder) as recorder:
            for episode in logs.episodes:
                recorder.append(replace(episode, meta={**episode.meta, "io": logs.io, **told}))
    else:
        raise ValueError(f"to is '{to}', expected one of {', '.join(WRITERS)}")


def guess_writer(path: str | os.PathLike[str]) -> str:
    """Format of an output by its name: .hdf5 is D4RL, <name>-v<k> Minari, everything else a store.

    Raises:
        ValueError: the name is that of a format which is read only.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (".hdf5", ".h5"):
        return "d4rl"
    if suffix in _ONLY_READ:
        raise ValueError(
            f"out={path}: {suffix} files are not written; a name with .hdf5 becomes a D4RL file, others a store, and "
            f"to= says one of {', '.join(WRITERS)}"
        )
    head, _, version = path.name.rpartition("-v")
    return "minari" if head and version.isdigit() else "store"
