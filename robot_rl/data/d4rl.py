"""D4RL HDF5 files: reader for the quirks of all versions, and writer.

A file is a flat table in time order; an episode ends where terminals or timeouts says so. What is special:

- Without `timeouts` episodes are also cut at the task's limit, counted from each episode's own first row.
- Where `next_observations` exist the final observation of every episode is known. Elsewhere the row after an episode
  belongs to the next one, and the final observation is marked as not recorded.
- A file that ends in the middle of an episode ends with a truncated one.
- Kitchen writes a terminal on the last row of every demonstration, which is a cut and is read as one. AntMaze marks
  every row near the goal as terminal while the ant walks on; Maze2d's rewards belong to the observation before the
  step.

Source: Farama-Foundation/D4RL d4rl/offline_env.py and scripts/generation.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from robot_rl.data import scores, sources
from robot_rl.data.episode import Logs, unnamed_io
from robot_rl.types import Episode

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_JUMP = 5.0
"""Metres that an AntMaze ant cannot move in one step."""


@dataclass
class _Table:
    """The per-step columns of a file, all with the same number of rows."""

    path: Path
    column: dict[str, np.ndarray]
    findings: list[str]

    def __getitem__(self, key: str) -> np.ndarray:
        return self.column[key]

    def __len__(self) -> int:
        return len(self.column["actions"])


def read(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    max_episode_steps: int | None = None,
    antmaze_terminal: Literal["keep", "first_hit"] = "keep",
    maze2d_shift: Literal["none", "fix"] = "none",
    terminals: Literal["auto", "terminal", "timeout"] = "auto",
    infos: bool = False,
    allow_nan: bool = False,
    control_hz: float = 20.0,
) -> Logs:
    """Read a D4RL file as episodes; observations are called "state".

    Args:
        path: the HDF5 file.
        name: dataset, such as "hopper-medium-v0", which tells the episode limit and the family; the file's name when
            None.
        max_episode_steps: limit for files without `timeouts`; that of the dataset when None.
        antmaze_terminal: "keep" every terminal row (what published numbers use), or end each trajectory at the
            "first_hit".
        maze2d_shift: "fix" gives each step the reward of the observation that it leads to, which costs every episode
            its last step; "none" leaves the file's.
        terminals: what `terminals` means: "terminal", "timeout" (ends are cuts), or "auto": timeout for Kitchen.
        infos: also read `infos/*` into `meta["columns"]`.
        allow_nan: list values that are not finite as a finding instead of refusing the file.
        control_hz: for the interface; the files do not tell.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged or incomplete, its columns differ in length, values are not finite, no episode
            boundary can be found, or rows do not follow one another; with the remedy.
    """
    path = Path(path)
    name = (name or path.stem).lower().replace("_", "-")
    table = _load(path, infos)
    findings = table.findings
    if terminals == "auto":
        terminals = "timeout" if name.startswith("kitchen") else "terminal"
        if terminals == "timeout" and table["terminals"].any():
            findings.append(f"{table['terminals'].sum()} kitchen terminals read as cuts, not as true ends")
    terminal, timeout = _ends(table, name, max_episode_steps, terminals)
    cut = _hidden_ends(table, terminal | timeout, name, allow_nan)
    if name.startswith("antmaze") and antmaze_terminal == "first_hit":
        keep, terminal = _first_hits(terminal, timeout | cut)
        findings.append(f"{np.count_nonzero(~keep)} rows after the first hit of the goal left out")
        table.column = {key: value[keep] for key, value in table.column.items()}
        terminal, timeout, cut = terminal[keep], timeout[keep] & ~terminal[keep], cut[keep] & ~terminal[keep]
    episodes = _episodes(table, terminal, timeout, cut)
    if maze2d_shift == "fix":
        episodes = [_shifted(episode) for episode in episodes if len(episode) > 1]
        findings.append("rewards moved one step back; the last step of every episode left out")
    findings += sources.saturation(table["actions"])
    io = unnamed_io({"state": table["observations"]}, table["actions"].shape[1], control_hz)
    return Logs(episodes, findings, io, {"path": str(path), "name": name, "format": "d4rl", "rows": len(table)})


def qlearning_dataset(
    path: str | os.PathLike[str], *, max_episode_steps: int | None = None, terminate_on_end: bool = False
) -> dict[str, np.ndarray]:
    """The transitions that D4RL's own `qlearning_dataset` makes, to reproduce published numbers.

    s' is the next row, also where that row begins another episode: on terminal rows (masked by the terminal) and, with
    `terminate_on_end`, on timeout rows, which D4RL keeps unmasked and we mark as terminal. The last row of the file is
    left out.

    Args:
        path: the HDF5 file.
        max_episode_steps: limit for files without `timeouts`.
        terminate_on_end: keep timeout rows instead of leaving them out.

    Returns:
        observations, actions, next_observations, rewards and terminals, (N', ...).

    Source: Farama-Foundation/D4RL d4rl/__init__.py, qlearning_dataset.
    """
    path = Path(path)
    table = _load(path, infos=False)
    count = len(table)
    if "timeouts" in table.column:
        final = table["timeouts"].copy()
    else:
        limit = max_episode_steps or scores.episode_limit(path.stem) or 0
        if not limit:
            raise ValueError(f"{path} has no 'timeouts' and names no known task; give max_episode_steps")
        final = _limit_rows(table["terminals"], limit) == limit - 1
    rows = np.arange(count - 1)
    terminal = table["terminals"].copy()
    if terminate_on_end:
        terminal |= final
    else:
        rows = rows[~final[:-1]]
    return {
        "observations": table["observations"][rows],
        "actions": table["actions"][rows],
        "next_observations": table["observations"][rows + 1],
        "rewards": table["rewards"][rows],
        "terminals": terminal[rows],
    }


def write(path: str | os.PathLike[str], episodes: Sequence[Episode], *, compress: bool = True) -> None:
    """Write episodes as a D4RL file (gym v2 layout), which D4RL's own reader loads.

    Episodes that neither terminated nor were truncated are marked by a timeout, because the format has no other
    boundary. `meta["columns"]` become `infos/*` where all episodes have them; proposals and interventions are kept as
    `infos/proposed` and `infos/intervened`, stamps as `infos/stamp`.

    Args:
        path: the file; it appears when it is complete.
        episodes: with one vector observation, or several, which are put one behind another.
        compress: gzip, as D4RL does.

    Raises:
        ValueError: there are no episodes, or an observation is not a vector of numbers.
    """
    path = Path(path)
    if not episodes or not any(len(e) for e in episodes):
        raise ValueError("got no steps to write, expected at least one episode")
    keys = list(episodes[0].obs)
    for key in keys:
        if episodes[0].obs[key].ndim != 2 or episodes[0].obs[key].dtype.kind != "f":
            raise ValueError(
                f"observation '{key}' is {episodes[0].obs[key].dtype}{list(episodes[0].obs[key].shape[1:])}, but D4RL "
                "files hold one vector; record images with `robot_rl.data.recorder`"
            )
    states = [np.concatenate([episode.obs[key] for key in keys], 1) for episode in episodes]
    ends = np.zeros((2, sum(len(e) for e in episodes)), bool)
    last = np.cumsum([len(e) for e in episodes]) - 1
    ends[0, last] = [e.terminated for e in episodes]
    ends[1, last] = [not e.terminated for e in episodes]
    columns = {
        "observations": np.concatenate([state[:-1] for state in states]).astype(np.float32),
        "next_observations": np.concatenate([state[1:] for state in states]).astype(np.float32),
        "actions": np.concatenate([e.action for e in episodes]).astype(np.float32),
        "rewards": np.concatenate([e.reward for e in episodes]).astype(np.float32),
        "terminals": ends[0],
        "timeouts": ends[1],
        "infos/proposed": np.concatenate([e.proposed for e in episodes]).astype(np.float32),
        "infos/intervened": np.concatenate([e.intervened for e in episodes]),
        "infos/stamp": np.concatenate([e.stamp[:-1] for e in episodes]),
    }
    for column in episodes[0].meta.get("columns", {}):
        if all(column in e.meta.get("columns", {}) for e in episodes):
            key = column if column.startswith("infos/") else f"infos/{column}"
            columns[key] = np.concatenate([e.meta["columns"][column] for e in episodes])
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with h5py.File(temporary, "x") as file:
            for key, value in columns.items():
                file.create_dataset(key, data=value, compression="gzip" if compress else None)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _load(path: Path, infos: bool) -> _Table:
    """All per-step columns, with their shapes put right."""
    sources.check_file(path)
    column: dict[str, np.ndarray] = {}
    findings: list[str] = []
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise sources.explain(path, error) from error
    with file:
        present: dict[str, Any] = {}
        file.visititems(lambda key, item: present.update({key: item}) if isinstance(item, h5py.Dataset) else None)
        for key in _REQUIRED:
            if key not in present:
                raise sources.missing_key(path, key, present)
        wanted = [*_REQUIRED, *(key for key in ("timeouts", "next_observations") if key in present)]
        if infos:
            wanted += [key for key in present if key.startswith("infos/")]
        for key in wanted:
            try:
                column[key] = present[key][()]
            except OSError as error:
                raise sources.unreadable(path, key, error) from error
    for key in ("rewards", "terminals", "timeouts"):
        if key in column and column[key].ndim == 2 and column[key].shape[1] == 1:
            column[key] = column[key][:, 0]
            findings.append(f"{key} has shape (N, 1): read as (N,)")
    rows = len(column["actions"])
    for key in list(column):
        if column[key].ndim == 0 or len(column[key]) != rows:
            if key.startswith("infos/"):
                del column[key]
                findings.append(f"{key} is no per-step column: left out")
                continue
            raise ValueError(f"{path}: '{key}' has {len(np.atleast_1d(column[key])):,} rows, 'actions' has {rows:,}")
        if not key.startswith("infos/") and column[key].ndim != (2 if key.endswith(("observations", "actions")) else 1):
            raise ValueError(f"{path}: '{key}' has shape {column[key].shape}, expected one row or number per step")
    if not rows:
        raise ValueError(f"{path} has no rows")
    for key in ("terminals", "timeouts"):
        if key in column:
            column[key] = column[key].astype(bool)
    for key in ("observations", "actions", "rewards", "next_observations"):
        if key in column:
            column[key] = column[key].astype(np.float32, copy=False)
    return _Table(path, column, findings)


def _limit_rows(terminal: np.ndarray, limit: int) -> np.ndarray:
    """(N,) step inside the episode, where episodes end at terminals and after `limit` steps."""
    starts = np.concatenate(([0], np.flatnonzero(terminal[:-1]) + 1))
    begin = np.zeros(len(terminal), np.int64)
    begin[starts] = starts
    return (np.arange(len(terminal)) - np.maximum.accumulate(begin)) % limit


def _ends(table: _Table, name: str, limit: int | None, meaning: str) -> tuple[np.ndarray, np.ndarray]:
    terminal = table["terminals"].copy()
    if "timeouts" in table.column:
        timeout = table["timeouts"].copy()
    else:
        limit = limit or scores.episode_limit(name)
        if limit is None and not terminal.any():
            raise ValueError(
                f"{table.path} marks no episode's end (no 'timeouts', no terminal in {len(table):,} rows); give "
                "max_episode_steps"
            )
        timeout = np.zeros(len(terminal), bool)
        if limit is not None:
            timeout = (_limit_rows(terminal, limit) == limit - 1) & ~terminal
            table.findings.append(f"no 'timeouts': {timeout.sum()} ends assumed at {limit} steps")
        else:
            table.findings.append("no 'timeouts' and no known limit: episodes end at terminals only")
    if meaning == "timeout":
        timeout, terminal = timeout | terminal, np.zeros_like(terminal)
    both = terminal & timeout
    if both.any():
        table.findings.append(f"{both.sum()} rows are terminal and timeout at once: terminal wins")
        timeout &= ~terminal
    if not (terminal | timeout).any():
        table.findings.append("no episode ends in this file: read as one cut recording")
    return terminal, timeout


def _hidden_ends(table: _Table, ended: np.ndarray, name: str, allow_nan: bool) -> np.ndarray:
    """(N,) bool: rows after which the file goes on elsewhere without saying so."""
    cut = np.zeros(len(table), bool)
    state = table["observations"]
    starts = np.concatenate(([0], np.flatnonzero(ended[:-1]) + 1))
    for key in ("observations", "actions", "rewards", "next_observations"):
        line = sources.not_finite(table.path, key, table[key], starts) if key in table.column else None
        if line and not allow_nan:
            raise ValueError(line)
        if line:
            table.findings.append(line)
    if "next_observations" in table.column:
        gap = np.abs(table["next_observations"][:-1] - state[1:]).max(1, initial=0.0) > 1e-6
        cut[:-1] = gap & ~ended[:-1]
        if cut.sum() > max(1, 0.001 * len(table)):
            raise ValueError(
                f"{table.path}: {cut.sum():,} of {len(table):,} rows are not followed by their next observation, first "
                f"row {int(np.argmax(cut))}; the rows are probably shuffled, and episodes cannot be told"
            )
        if cut.any():
            table.findings.append(
                f"{cut.sum()} ends that no flag marks, first after row {int(np.argmax(cut))}: cut there"
            )
    if name.startswith("antmaze"):
        jump = np.linalg.norm(np.diff(state[:, :2], axis=0), axis=1) > _JUMP
        jump &= ~(ended | cut)[:-1]
        if jump.any():
            raise ValueError(
                f"{table.path}: the ant jumps more than {_JUMP:g} m inside an episode at {jump.sum()} rows, first "
                f"after row {int(np.argmax(jump))}; timeouts and resets do not fit (AntMaze v0): use the v2 file"
            )
    return cut


def _first_hits(terminal: np.ndarray, boundary: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows to keep, terminals): of every trajectory between boundaries, only up to its first terminal."""
    starts = np.concatenate(([0], np.flatnonzero(boundary[:-1]) + 1))
    trajectory = np.zeros(len(terminal), np.int64)
    trajectory[starts[1:]] = 1
    trajectory = np.cumsum(trajectory)
    hits = np.cumsum(terminal)
    before = hits - terminal  # hits before this row
    at_start = before[starts][trajectory]
    keep = before == at_start
    return keep, terminal & keep


def _episodes(table: _Table, terminal: np.ndarray, timeout: np.ndarray, cut: np.ndarray) -> list[Episode]:
    """Cut the table into episodes that share one array per column."""
    rows = len(terminal)
    ends = np.flatnonzero(terminal | timeout | cut)
    if not len(ends) or ends[-1] != rows - 1:
        ends = np.append(ends, rows - 1)
        tail = rows - 1 - (ends[-2] if len(ends) > 1 else -1)
        table.findings.append(f"the file ends inside an episode: its last {tail} rows are read as a truncated one")
        timeout[-1] = True
    starts = np.concatenate(([0], ends[:-1] + 1))
    known = "next_observations" in table.column
    state = np.empty((rows + len(ends), table["observations"].shape[1]), np.float32)
    # Every episode before a row adds one final observation.
    state[np.arange(rows) + np.searchsorted(ends, np.arange(rows), "left")] = table["observations"]
    state[ends + 1 + np.arange(len(ends))] = table["next_observations" if known else "observations"][ends]
    steps = np.arange((ends - starts).max() + 2, dtype=np.float64)
    human = np.zeros(rows, bool)
    more = {key: value for key, value in table.column.items() if key.startswith("infos/")}
    human = more.pop("infos/intervened", human).astype(bool)
    proposed = more.pop("infos/proposed", table["actions"])
    episodes = []
    for i, (a, b) in enumerate(zip(starts.tolist(), (ends + 1).tolist())):
        meta: dict[str, Any] = {"columns": {key: value[a:b] for key, value in more.items()}} if more else {}
        if not known:
            meta["final_obs_valid"] = False
        episodes.append(
            Episode(
                obs={"state": state[a + i : b + i + 1]},
                action=table["actions"][a:b],
                proposed=proposed[a:b],
                reward=table["rewards"][a:b],
                terminated=bool(terminal[b - 1]),
                truncated=bool(timeout[b - 1]),
                intervened=human[a:b],
                stamp=steps[: b - a + 1],
                meta=meta,
            )
        )
    return episodes


def _shifted(episode: Episode) -> Episode:
    columns = {key: value[:-1] for key, value in episode.meta.get("columns", {}).items()}
    meta = {key: value for key, value in episode.meta.items() if key not in ("columns", "final_obs_valid")}
    return Episode(
        obs={"state": episode.obs["state"][:-1]},
        action=episode.action[:-1],
        proposed=episode.proposed[:-1],
        reward=episode.reward[1:],
        terminated=False,
        truncated=True,
        intervened=episode.intervened[:-1],
        stamp=episode.stamp[:-1],
        meta={**meta, "columns": columns} if columns else meta,
    )
