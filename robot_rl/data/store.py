"""One memory-mapped form for logs of every origin: contiguous columns, one raw file each, and a `meta.json`.

    <name>.store/
      meta.json              format, interface (what -1 and +1 of the actions mean, null where nobody knows; "action":
                             "normalised" or "stated", see `bounds`), shapes, dtypes, SHA-256 of every column, sources,
                             conversion report, moments
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

import os
from pathlib import Path
from typing import Any

from robot_rl.data import formats
from robot_rl.data.actions import settle
from robot_rl.data.store_read import META, Store, open_store
from robot_rl.data.store_write import StoreWriter, write_store

__all__ = ["Store", "StoreWriter", "convert_once", "open_store", "write_store"]


def convert_once(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, **options: Any) -> Store:
    """Convert a log of any format once, and open the store from then on.

    Args:
        path: the log.
        out: folder of the store; the file's name with ".store" beside it when None. An existing one is opened as it is
            if it came from this very file with these options, else replaced.
        options: of `robot_rl.data.read_options.ReadOptions`.

    Raises:
        FileNotFoundError: there is no such log.
        ValueError: it cannot be read; with the remedy.
    """
    path = Path(path)
    out = path.with_suffix(".store") if out is None else Path(out)
    store = _earlier(out, path)
    if store is not None and store.meta.get("options", {}) == options:
        return store
    logs, done = settle(formats.load(path, **options))
    return write_store(
        out,
        logs.episodes,
        io=logs.io,
        report=[str(item) for item in (*logs.findings, *done)],
        sources=[path],
        facts={
            "options": options,
            "name": str(logs.meta.get("name", path.stem)),
            "action": None if logs.bounds is None else logs.bounds.said,
        },
    )


def _earlier(out: Path, path: Path) -> Store | None:
    """The store `out` if it was made of this file, as far as size and time of change tell, and can be read."""
    if not (out / META).is_file() or not path.is_file():
        return None
    try:
        store = open_store(out)
    except ValueError:  # of an earlier version, or damaged: it is made anew
        return None
    made, now = store.meta["sources"], path.stat()
    same = len(made) == 1 and (made[0].get("bytes"), made[0].get("modified_ns")) == (now.st_size, now.st_mtime_ns)
    return store if same else None
