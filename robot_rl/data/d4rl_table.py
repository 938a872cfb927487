"""The per-step columns of a D4RL file, with their shapes put right, before anything is known of episodes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from robot_rl.data import foreign, sources
from robot_rl.data.episode import USUAL
from robot_rl.data.findings import Finding, error, note, refusal, stop_on_errors, warning
from robot_rl.data.read_options import rate_of

REQUIRED = ("observations", "actions", "rewards", "terminals")
_FLAGS = ("terminals", "timeouts")
_BOUNDS = ("action_low", "action_high", "action_units", "action_normalised")
_KEPT = {*USUAL, "action_log_probs", "intervened", "proposed", "stamp", "next_stamp"}
_PART = re.compile(r"virtual/(\d{1,9})/(.+)")


@dataclass
class D4rlTable:
    """The per-step columns of a file, all with the same number of rows.

    Attributes:
        path: the file.
        column: name -> (N, ...).
        findings: so far.
        lost: (N,) bool, rows that could not be read (salvage), or None.
        final: (E, S) final observations where `observations` holds T + 1 rows per episode, else None.
        rate: decisions per second.
        told: what the file says of its actions (`bounds.attributes`).
    """

    path: Path
    column: dict[str, np.ndarray]
    findings: list[Finding]
    lost: np.ndarray | None = None
    final: np.ndarray | None = None
    rate: float = 20.0
    told: dict[str, object] = field(default_factory=dict)

    def __getitem__(self, key: str) -> np.ndarray:
        return self.column[key]

    def __len__(self) -> int:
        return len(self.column["actions"])


def load(path: Path, infos: bool, *, salvage: bool = False) -> D4rlTable:
    """Read the columns; everything that is wrong with keys, lengths and shapes is collected before giving up.

    Args:
        path: the HDF5 file.
        infos: also `infos/*`; log-densities of the behaviour are read in any case.
        salvage: go on where chunks cannot be decompressed; their rows are marked in `lost`.

    Raises:
        FileNotFoundError: there is no such file.
        BadData: it cannot be read; holds all findings.
    """
    findings: list[Finding] = []
    column: dict[str, np.ndarray] = {}
    holes: list[tuple[int, int]] = []
    with foreign.hdf5(path) as file:
        present, rate = _find_parts(file), _rate(file)
        told = {key: value for key in _BOUNDS if (value := _read_told(file, key)) is not None}
        for key in REQUIRED:
            if key not in present:
                findings += sources.missing_key(path, key, present).findings
        wanted = [key for key in (*REQUIRED, "timeouts", "next_observations") if key in present]
        wanted += [key for key in present if key.startswith("infos/") and (infos or key[6:] in _KEPT)]
        for key in wanted:
            try:
                column[key] = _read(path, present[key])
            except OSError as problem:
                got, bad, findings_here = _by_chunk(path, key, present[key][0], problem, salvage)
                findings += findings_here
                if got is not None:
                    column[key], holes = got, holes + bad
    if all(key in column for key in REQUIRED):
        table = D4rlTable(path, column, findings, rate=rate, told=told)
        _shapes(table)
        if not any(item.severity == "error" for item in findings):
            _types(table)
            if holes:
                table.lost = np.zeros(len(table), bool)
                for begin, end in holes:
                    table.lost[begin:end] = True
            return table
    stop_on_errors(findings)
    raise refusal("unreadable", f"{path} cannot be read", sources.AGAIN)


def _find_parts(file: h5py.File) -> dict[str, list[h5py.Dataset]]:
    """Key -> its parts: one, or several where the file is chunked into virtual/<k>/<key>."""
    parts: dict[str, dict[int, h5py.Dataset]] = {}

    def visit(name: str, item: object) -> None:
        if not isinstance(item, h5py.Dataset) or name.startswith("metadata/"):  # metadata is never per step
            return
        number = 0
        if name.startswith("virtual/"):
            part = _PART.fullmatch(name)
            if part is None:
                return
            number, name = int(part[1]), part[2]
        parts.setdefault(name, {})[number] = item

    file.visititems(visit)
    return {key: [found[i] for i in sorted(found)] for key, found in parts.items()}


def _read(path: Path, parts: list[h5py.Dataset]) -> np.ndarray:
    found = [foreign.take(path, part) for part in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _rate(file: h5py.File) -> float:
    """Decisions per second as the file itself says, else 20."""
    kept = file.get("metadata/control_hz")
    return rate_of(kept[()] if isinstance(kept, h5py.Dataset) and kept.shape == () else None)


def _read_told(file: h5py.File, key: str) -> Any:
    """An attribute of the file or of its actions ("action_low" or "low"), or `metadata/<key>`."""
    actions = file.get("actions")
    if key in file.attrs:
        return file.attrs[key]
    for name in (key, key.removeprefix("action_")):
        if isinstance(actions, h5py.Dataset) and name in actions.attrs:
            return actions.attrs[name]
    kept = file.get(f"metadata/{key}")
    return foreign.take(Path(file.filename), kept) if isinstance(kept, h5py.Dataset) else None


def _by_chunk(
    path: Path, key: str, dataset: h5py.Dataset, problem: Exception, salvage: bool
) -> tuple[np.ndarray | None, list[tuple[int, int]], list[Finding]]:
    """Read chunk by chunk to tell which rows are damaged: (column with holes or None, holes, findings)."""
    if not dataset.chunks or dataset.ndim == 0:
        return None, [], sources.unreadable_error(path, key, problem).findings
    foreign.room(path, dataset.size * dataset.dtype.itemsize, f"'{key}'")
    value = np.zeros(dataset.shape, dataset.dtype)
    if value.dtype.kind == "f":
        value[...] = np.nan
    holes: list[tuple[int, int]] = []
    step = dataset.chunks[0]
    for begin in range(0, len(dataset), step):
        end = min(begin + step, len(dataset))
        try:
            value[begin:end] = dataset[begin:end]
        except OSError:
            if holes and holes[-1][1] == begin:
                holes[-1] = (holes[-1][0], end)
            else:
                holes.append((begin, end))
    rows = ", ".join(f"{a:,}–{b - 1:,}" for a, b in holes[:5]) + (" ..." if len(holes) > 5 else "")
    message = f"{path}: key '{key}' cannot be read: rows {rows} cannot be decompressed"
    count, where = sum(b - a for a, b in holes), f"row {holes[0][0]}"
    if salvage:
        message += "; whole episodes outside them are kept (salvage)"
        return value, holes, [warning("damaged_chunk", message, count=count, where=where)]
    repair = "salvage=true keeps the whole episodes outside them; better, download or copy the file again"
    return None, [], [error("damaged_chunk", message, repair, count=count, where=where)]


def _shapes(table: D4rlTable) -> None:
    column, findings, path = table.column, table.findings, table.path
    for key in ("rewards", *_FLAGS):
        if key in column and column[key].ndim == 2 and column[key].shape[1] == 1:
            column[key] = column[key][:, 0]
            findings.append(warning("squeezed", f"{key} has shape (N, 1): read as (N,)"))
    rows = len(np.atleast_1d(column["actions"]))
    if not rows:
        findings.append(error("no_rows", f"{path} has no rows", sources.AGAIN))
        return
    for key in list(column):
        found = len(np.atleast_1d(column[key]))
        if column[key].ndim and found == rows:
            if key.startswith("infos/"):
                continue
            if column[key].dtype.kind not in "biuf":
                findings.append(error("dtype", f"{path}: '{key}' is {column[key].dtype}, expected numbers"))
                continue
            axes = 2 if key.endswith(("observations", "actions")) else 1
            if column[key].ndim != axes:
                shape, wanted = tuple(column[key].shape), "(N, numbers)" if axes == 2 else "(N,)"
                repair = "choices of a discrete action have no place in this format" if key == "actions" else ""
                findings.append(error("shape", f"{path}: '{key}' has shape {shape}, expected {wanted}", repair))
            continue
        if key.startswith("infos/"):
            del column[key]
            findings.append(note("no_step_column", f"{key} is no per-step column: left out"))
        elif key == "observations" and _split_finals(table):
            continue
        else:
            message = f"{path}: '{key}' has {found:,} rows, 'actions' has {rows:,}"
            repair = "the columns do not belong together; write the file again"
            findings.append(error("lengths", message, repair, count=abs(found - rows)))


def _split_finals(table: D4rlTable) -> bool:
    """Observations with T + 1 rows per episode: take the final ones apart, if that fits every episode."""
    column = table.column
    obs, rows = column["observations"], len(column["actions"])
    if obs.ndim != 2 or any(key in column and len(column[key]) != rows for key in _FLAGS):
        return False
    ends = column["terminals"].astype(bool).copy()
    if "timeouts" in column:
        ends |= column["timeouts"].astype(bool)
    ends[-1] = True
    last = np.flatnonzero(ends)
    if len(obs) != rows + len(last):
        return False
    final = last + 1 + np.arange(len(last))
    keep = np.ones(len(obs), bool)
    keep[final] = False
    table.final, column["observations"] = obs[final].astype(np.float32), obs[keep]
    message = (
        f"observations has {len(obs):,} rows for {rows:,} actions: one more for each of the {len(last):,} episodes, "
        "read as their final observations"
    )
    table.findings.append(warning("final_rows", message, count=len(last)))
    return True


def _types(table: D4rlTable) -> None:
    column = table.column
    for key in _FLAGS:
        if key in column:
            column[key] = column[key].astype(bool)
    for key in ("observations", "actions", "rewards", "next_observations"):
        if key in column and column[key].dtype != np.float32:
            column[key] = column[key].astype(np.float32)
