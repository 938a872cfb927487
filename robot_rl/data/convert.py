"""Validate a log, and convert it: everything that was found is told, and only what was asked for is repaired."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import actions, checks, foreign, formats, repairs
from robot_rl.data.episode import Logs
from robot_rl.data.findings import BadData, Finding, error, note, stop_on_errors, warning
from robot_rl.data.repairs import Repairs
from robot_rl.data.store import Store, open_store, write_store
from robot_rl.data.store_read import META, file_sha256
from robot_rl.data.store_write import extent


def examine(
    path: str | os.PathLike[str], *, batch: int = 256, said: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Logs | None, list[Finding]]:
    """Read a log and list everything that looks wrong; nothing is raised for bad data, and nothing is changed.

    Args:
        path: file or folder.
        batch: rows per training batch.
        said: what a person says of the actions, see `actions.settle`.
        options: for the format's reader.

    Returns:
        The log, or None when it cannot be read, and the findings.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: an option is wrong.
        ImportError: a package is missing.
    """
    try:
        logs = formats.load(path, allow_nan=True, **options)
        with foreign.reading(path):
            logs, done = actions.settle(logs, **(said or {}))
            found = [*logs.findings, *done, *checks.check(logs, batch=batch, limit=options.get("episode_length"))]
    except BadData as bad:
        return None, bad.findings
    if logs.meta["format"] == "store":
        try:
            with foreign.reading(path):
                open_store(path).verify()
        except ValueError as problem:
            found.append(error("damaged", str(problem)))
        fresh = {f.message for f in found if f.case != "conversion"}  # and is so still
        found = [f for f in found if f.case != "conversion" or not any(f.message.startswith(said) for said in fresh)]
    return logs, found


def validate(path: str | os.PathLike[str], *, batch: int = 256, **options: Any) -> list[Finding]:
    """Findings about a log, worst first; see `examine`."""
    logs, found = examine(path, batch=batch, **options)
    if logs is None and found and {f.case for f in found if f.severity == "error"} == {"no_map"}:
        # The file itself is sound: what is missing is the reader's wish.
        found = [note("no_map", str(f)) if f.case == "no_map" else f for f in found]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda item: order[item.severity])


def convert(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    to: str | None = None,
    mend: Repairs | None = None,
    **options: object,
) -> list[Finding]:
    """Write a log in another format.

    Args:
        path: file or folder.
        out: what to write; must not exist.
        to: one of `formats.WRITERS`; by the name of `out` when None.
        mend: repairs to make.
        options: for the reader.

    Returns:
        What was found and done.

    Raises:
        FileExistsError: `out` exists.
        BadData: the log cannot be read, or has errors that no requested repair mends; nothing is written.
        ValueError: an option is wrong, or the format cannot hold the data.
    """
    out, mend = Path(out), mend or Repairs()
    if out.exists():
        raise FileExistsError(f"{out} exists already; choose another name or remove it first (nothing is overwritten)")
    to = to or formats.guess_writer(out)
    if to not in formats.WRITERS:
        raise ValueError(f"to is '{to}', expected one of {', '.join(formats.WRITERS)}")
    logs = formats.load(path, **{"allow_nan": True, "infos": True, **options})
    with foreign.reading(path):
        mended, done = repairs.apply(replace(logs, findings=[]), mend)
        left = checks.check(mended)
    if mend.action == "keep":
        left = [replace(f, severity="warning", repair="") if f.case == "action_bounds" else f for f in left]
    if mend.trust_terminals:
        left = [f for f in left if f.case != "timeout_as_terminal"]
    mended, dropped = _drop_columns(mended, alike=to not in ("minari", "recording"))
    findings = [*logs.findings, *done, *dropped, *left, *actions.find_unknown_bounds(mended)]
    stop_on_errors(findings)
    facts = {key: logs.meta[key] for key in ("name", "rewards", "shuffled", "robot") if logs.meta.get(key) is not None}
    source = Path(path)
    told = replace(mended, findings=[f for f in findings if f.case != "action_unknown"])  # whoever reads it may be told
    formats.write(out, told, to, sources=_files(source), origin=logs.meta["format"], **facts)
    return findings


def _drop_columns(logs: Logs, *, alike: bool) -> tuple[Logs, list[Finding]]:
    """The log without further columns that are no numbers, or, with `alike`, not in every episode in one form."""
    tables = [e.meta.get("columns", {}) for e in logs.episodes]

    def fits(name: str) -> bool:
        values = [np.asarray(table[name]) for table in tables if name in table]
        one = len(values) == len(tables) and len({value.shape[1:] for value in values}) == 1
        return all(value.dtype.kind in "biuf" for value in values) and (one or not alike)

    lost = [name for name in dict.fromkeys(name for table in tables for name in table) if not fits(name)]
    if not lost:
        return logs, []
    kept = [{name: value for name, value in table.items() if name not in lost} for table in tables]
    episodes = [replace(e, meta={**e.meta, "columns": columns}) for e, columns in zip(logs.episodes, kept)]
    message = f"columns that are no numbers, or not in every episode in one form, left out: {', '.join(lost)}"
    return replace(logs, episodes=episodes), [warning("columns", message, count=len(lost))]


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a store keeps them, with a digest of the map that they name: another map is another log."""
    found, file = json.loads(json.dumps(options, default=str)), options.get("map")
    if isinstance(file, (str, Path)) and Path(file).is_file():
        found["map_sha256"] = file_sha256(Path(file))
    return found


def _files(source: Path) -> list[Path]:
    """The files that a conversion read, up to a hundred; beyond that the folder alone is named."""
    if source.is_file():
        return [source]
    files = sorted(p for p in source.rglob("*") if p.is_file())
    return files if len(files) <= 100 else [source]


def convert_once(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, **options: Any) -> Store:
    """Convert a log of any format once, and open the store from then on.

    Args:
        path: the log.
        out: folder of the store; the file's name with ".store" beside it when None. An existing one is opened as it is
            if it came from this very file or folder with these options, else replaced. One that `convert` wrote may
            hold repairs: it is opened if it came from this very file or folder, and never replaced.
        options: of `robot_rl.data.read_options.ReadOptions`.

    Raises:
        FileNotFoundError: there is no such log.
        ValueError: it cannot be read, or a store is in the way that somebody wrote with `convert` from something else
            or before the file changed; with the remedy.
    """
    path = Path(path)
    out = path.with_suffix(".store") if out is None else Path(out)
    store = _earlier(out)
    fresh = store is not None and _is_of(store, path)
    if store is not None and is_converted(store) and not (fresh and not options):
        raise ValueError(
            f"beside {path} lies {out}, which robot-rl data convert wrote, and not from {path.name} as it is now; what "
            f"{path.name} is read from would be {out}, and it is not replaced. Name the log that is meant: {out}, or "
            f"{path} after that store was moved to another name"
        )
    told = _plain(options)
    if store is not None and fresh and store.meta.get("options", {}) == told:
        return store
    logs, done = repairs.apply(formats.load(path, **options), Repairs())
    return write_store(
        out,
        logs.episodes,
        io=logs.io,
        report=[str(item) for item in (*logs.findings, *done)],
        sources=[path],
        facts={
            "options": told,
            "name": str(logs.meta.get("name", path.stem)),
            "action": None if logs.bounds is None else logs.bounds.statement,
        },
    )


def is_converted(store: Store) -> bool:
    """Somebody wrote it with `convert`, which may have repaired what is in it."""
    return "options" not in store.meta


def _earlier(out: Path) -> Store | None:
    """The store `out`, if there is one that can be read.

    Raises:
        ValueError: something else lies there than a store that `convert_once` made.
    """
    if not out.exists():
        return None
    try:
        return open_store(out)
    except (ValueError, OSError) as problem:
        with suppress(ValueError, OSError):
            if "options" in foreign.read_json(out / META):  # ours, of an earlier version or damaged: it is made anew
                return None
        raise ValueError(
            f"{out} is where the log would be kept, and is no store that may be replaced ({problem}): move it to "
            "another name, or name another log"
        ) from problem


def _is_of(store: Store, path: Path) -> bool:
    """It was made of this file or folder alone, as far as sizes and times of change tell."""
    made = [(one.get("files", 1), one.get("bytes", 0), one.get("modified_ns", 0)) for one in store.meta["sources"]]
    return tuple(map(sum, zip(*made))) == extent(path)
