"""Observations of a log read once by a frozen reader: one vector each, kept on disk beside the log.

    <name>.store.features/<mark>.npy     [M, D] float32, a row for each observation row of the store

The mark is a digest of the reader (weights, tokenizer, cameras) and of the columns that it reads, so that another
reader or other data never meets these rows.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from robot_rl.atomic import READ_ONLY, write_bytes
from robot_rl.data.store import Store

_AT_ONCE = 256
"""Rows that are read at once."""


class Reader(Protocol):
    """What turns observations into vectors; deterministic, and never trained here.

    Attributes:
        keys: observations that it reads.
        width: D.
        digest: of everything that its answers depend on.
    """

    keys: tuple[str, ...]
    width: int
    digest: str

    def __call__(self, obs: Mapping[str, np.ndarray], /) -> np.ndarray:
        """Observations (n, ...) -> (n, D) float32."""
        ...


def cache_path(store: Store, reader: Reader) -> Path:
    """Where the rows of this reader for this store lie."""
    parts = [reader.digest, str(reader.width)]
    parts += [f"{key}:{store.meta['columns'][f'obs/{key}']['sha256']}" for key in reader.keys]
    mark = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
    return store.path.with_name(store.path.name + ".features") / f"{mark}.npy"


def features(store: Store, reader: Reader) -> np.ndarray:
    """(M, D) float32, read-only: the reader's answer to every observation row of a store.

    Rows that repeat the one before (a picture that is held between looks) are read once. Where the folder beside the
    log cannot be written, the rows are computed again in every run.

    Args:
        store: the log.
        reader: frozen.

    Raises:
        ValueError: the log lacks an observation that the reader reads, or an answer is not finite.
    """
    missing = [key for key in reader.keys if key not in store.obs_keys]
    if missing:
        raise ValueError(f"the reader reads {missing}, and the log {store.path} holds {list(store.obs_keys)}")
    path = cache_path(store, reader)
    columns = {key: store.obs(key) for key in reader.keys}
    count = len(next(iter(columns.values())))
    kept = _read_kept(path, (count, reader.width))
    if kept is not None:
        return kept
    source = _first_of_run(columns, count)
    wanted = np.flatnonzero(source == np.arange(count))
    found = np.zeros((count, reader.width), np.float32)
    for begin in range(0, len(wanted), _AT_ONCE):
        index = wanted[begin : begin + _AT_ONCE]
        answer = reader({key: column[index] for key, column in columns.items()})
        if answer.shape != (len(index), reader.width) or not np.isfinite(answer).all():
            raise ValueError(
                f"the reader answered {answer.shape} (finite: {bool(np.isfinite(answer).all())}), expected finite "
                f"numbers of shape {(len(index), reader.width)}"
            )
        found[index] = answer
    found = found[source]
    data = io.BytesIO()
    np.save(data, found, allow_pickle=False)
    try:
        write_bytes(path, data.getvalue())
    except OSError as problem:
        if problem.errno not in READ_ONLY:
            raise
    found.flags.writeable = False
    return found


def moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(D,) mean and standard deviation of the columns, float64."""
    return rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)


def _first_of_run(columns: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """(M,) for each row, the first row of the run of equal rows that it belongs to."""
    new = np.zeros(count, bool)
    for column in columns.values():
        for begin in range(0, count, 4096):
            here = np.asarray(column[max(begin - 1, 0) : begin + 4096])
            changed = (here[1:] != here[:-1]).reshape(len(here) - 1, -1).any(axis=1)
            new[max(begin, 1) : begin + 4096] |= changed
    new[:1] = True
    return np.maximum.accumulate(np.where(new, np.arange(count), 0))


def _read_kept(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """The rows on disk, or None where there are none or they are damaged."""
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return np.asarray(rows) if rows.shape == shape and rows.dtype == np.float32 else None
