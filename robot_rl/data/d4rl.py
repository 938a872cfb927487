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

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from robot_rl.atomic import new_hdf5
from robot_rl.data import scores
from robot_rl.data.bounds import attributes, facts
from robot_rl.data.d4rl_table import D4rlTable, load
from robot_rl.data.episode import Logs, beside, is_usual, read_beside, split, unnamed_io
from robot_rl.data.findings import note, refusal, warning
from robot_rl.data.read_options import AS_IT_IS, ReadOptions
from robot_rl.types import Episode, IOSpec

_JUMP = 5.0
"""Metres that an AntMaze ant cannot move in one step."""
_JUMP_FACTOR = 20.0


HEEDS = (
    "dataset", "episode_length", "antmaze_terminal", "maze2d_shift", "terminals", "shuffled", "salvage", "infos",
    "control_hz",
)  # fmt: skip


def read(path: str | os.PathLike[str], options: ReadOptions = AS_IT_IS) -> Logs:
    """Read a D4RL file as episodes; observations are called "state".

    Args:
        path: the HDF5 file.
        options: how it is read.

    Raises:
        FileNotFoundError: there is no such file.
        BadData: it is damaged or incomplete, its columns differ in length, no episode boundary can be found, or rows do
            not follow one another; with the remedy.
    """
    path, o = Path(path), options
    name = (o.dataset or path.stem).lower().replace("_", "-")
    table = load(path, o.infos, salvage=o.salvage)
    control_hz = table.rate if o.control_hz is None else o.control_hz
    if o.shuffled:
        episodes = _single_rows(table)
    else:
        episodes = _tell_apart(table, name, o)
    io = unnamed_io({"state": table["observations"]}, table["actions"].shape[1], control_hz)
    known = {"path": str(path), "name": name, "format": "d4rl", "rows": len(table)}
    if o.shuffled:
        known["shuffled"] = True
    return Logs(episodes, table.findings, io, known, attributes(io.action_dim, table.told))


def _tell_apart(table: D4rlTable, name: str, o: ReadOptions) -> list[Episode]:
    """The episodes of a table in time order."""
    findings, terminals = table.findings, o.terminals
    if terminals == "auto":
        terminals = "timeout" if name.startswith("kitchen") else "terminal"
        if terminals == "timeout" and table["terminals"].any():
            count = int(table["terminals"].sum())
            findings.append(note("kitchen", f"{count} kitchen terminals read as cuts, not as true ends", count=count))
    terminal, timeout = _ends(table, name, o.episode_length, terminals)
    cut = _hidden_ends(table, terminal | timeout, name)
    if name.startswith("antmaze") and o.antmaze_terminal == "first_hit":
        keep, terminal = _first_hits(terminal, timeout | cut)
        dropped = int(np.count_nonzero(~keep))
        findings.append(note("first_hit", f"{dropped} rows after the first hit of the goal left out", count=dropped))
        table.column = {key: value[keep] for key, value in table.column.items()}
        table.lost = None if table.lost is None else table.lost[keep]
        terminal, timeout, cut = terminal[keep], timeout[keep] & ~terminal[keep], cut[keep] & ~terminal[keep]
    episodes = _episodes(table, terminal, timeout, cut)
    if table.lost is not None:
        episodes = _salvage(table, episodes)
    if o.maze2d_shift == "fix":
        episodes = [_shift(episode) for episode in episodes if len(episode) > 1]
        findings.append(note("maze2d_shift", "rewards moved one step back; the last step of every episode left out"))
    return episodes


def write(
    path: str | os.PathLike[str],
    episodes: Sequence[Episode],
    *,
    compress: bool = True,
    metadata: Mapping[str, object] | None = None,
    io: IOSpec | None = None,
    said: str | None = None,
) -> None:
    """Write episodes as a D4RL file (gym v2 layout), which D4RL's own reader loads.

    Episodes that neither terminated nor were truncated are marked by a timeout, because the format has no other
    boundary, and by `infos/cut`; `infos/final_obs_valid` tells of last observations that were never recorded,
    `infos/succeeded` whether the episode was a success (-1: not known).
    `meta["columns"]` become `infos/*` where all episodes have them; proposals and interventions are kept as
    `infos/proposed` and `infos/intervened`, stamps as `infos/stamp` and `infos/next_stamp`.

    Args:
        path: the file; it appears when it is complete.
        episodes: with one vector observation, or several, which are put one behind another; those without a step have
            no place in a table of steps.
        compress: gzip, as D4RL does.
        metadata: name -> plain value, kept as `metadata/<name>` (numbers and texts as they are, others as JSON).
        io: interface; what -1 and +1 mean is kept in attributes.
        said: what is known of the actions beside it, see `bounds.ActionBounds.statement`.

    Raises:
        ValueError: there are no episodes, or an observation is not a vector of numbers.
    """
    path, episodes = Path(path), [e for e in episodes if len(e)]
    if not episodes:
        raise ValueError("got no steps to write, expected at least one episode")
    keys = list(episodes[0].obs)
    for key in keys:
        if episodes[0].obs[key].ndim != 2 or episodes[0].obs[key].dtype.kind != "f":
            raise ValueError(
                f"observation '{key}' is {episodes[0].obs[key].dtype}{list(episodes[0].obs[key].shape[1:])}, but D4RL "
                "files hold one vector; write it with to=lerobot, or as a store (out=<name>.store)"
            )
    states = [np.concatenate([episode.obs[key] for key in keys], 1) for episode in episodes]
    last = np.cumsum([len(e) for e in episodes]) - 1
    terminals, timeouts = np.zeros((2, last[-1] + 1), bool)
    terminals[last] = [e.terminated for e in episodes]
    timeouts[last] = [not e.terminated for e in episodes]
    columns = {
        "observations": np.concatenate([state[:-1] for state in states]).astype(np.float32),
        "next_observations": np.concatenate([state[1:] for state in states]).astype(np.float32),
        "actions": np.concatenate([e.action for e in episodes]).astype(np.float32),
        "rewards": np.concatenate([e.reward for e in episodes]).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
        "infos/stamp": np.concatenate([e.stamp[:-1] for e in episodes]).astype(np.float64),
        "infos/next_stamp": np.concatenate([e.stamp[1:] for e in episodes]).astype(np.float64),
    }
    tables = [beside(e) for e in episodes]
    for name in tables[0]:
        if all(name in table for table in tables):
            column = np.concatenate([table[name] for table in tables])
            if not is_usual(name, column):
                columns[name if name.startswith("infos/") else f"infos/{name}"] = column
    with new_hdf5(path) as file:
        for key, value in columns.items():
            file.create_dataset(key, data=value, compression="gzip" if compress else None)
        rate = {} if io is None else {"control_hz": io.control_hz}
        for key, value in {**rate, **(metadata or {})}.items():
            file[f"metadata/{key}"] = value if isinstance(value, (int, float, str)) else json.dumps(value)
        file.attrs.update(facts(io, said))


def limit_rows(terminal: np.ndarray, limit: int) -> np.ndarray:
    """(N,) step inside the episode, where episodes end at terminals and after `limit` steps."""
    starts = np.concatenate(([0], np.flatnonzero(terminal[:-1]) + 1))
    begin = np.zeros(len(terminal), np.int64)
    begin[starts] = starts
    return (np.arange(len(terminal)) - np.maximum.accumulate(begin)) % limit


def _ends(table: D4rlTable, name: str, limit: int | None, meaning: str) -> tuple[np.ndarray, np.ndarray]:
    terminal, rows = table["terminals"].copy(), len(table)
    known = limit or scores.episode_limit(name)
    ask = "give episode_length=<steps>"
    if "timeouts" in table.column and not (limit and not (table["timeouts"] | terminal).any()):
        timeout = table["timeouts"].copy()
        if known is not None and rows > known and not (terminal | timeout).any():
            message = f"{table.path} marks no episode's end in {rows:,} rows, but episodes have at most {known} steps"
            raise refusal("no_boundary", message, ask)
    elif known is not None:
        timeout = (limit_rows(terminal, known) == known - 1) & ~terminal
        count = int(timeout.sum())
        said = warning("no_timeouts", f"no 'timeouts': {count} ends assumed at {known} steps", count=count)
        table.findings.append(said if count else note("no_timeouts", "no 'timeouts'"))
    elif terminal.any():
        timeout = np.zeros(rows, bool)
        message = "no 'timeouts' and no known limit: episodes end at terminals only"
        table.findings.append(warning("no_timeouts", message, ask))
    else:
        message = f"{table.path} marks no episode's end (no 'timeouts', no terminal in {rows:,} rows)"
        raise refusal("no_boundary", message, ask)
    if meaning == "timeout":
        timeout, terminal = timeout | terminal, np.zeros_like(terminal)
    both = terminal & timeout
    if both.any():
        message = f"{both.sum()} rows are terminal and timeout at once: terminal wins"
        table.findings.append(warning("both_ends", message, count=both.sum(), where=f"row {int(np.argmax(both))}"))
        timeout &= ~terminal
    if not (terminal | timeout).any():
        table.findings.append(warning("no_boundary", "no episode ends in this file: read as one cut recording", ask))
    return terminal, timeout


def _hidden_ends(table: D4rlTable, ended: np.ndarray, name: str) -> np.ndarray:
    """(N,) bool: rows after which the file goes on elsewhere without saying so."""
    cut = np.zeros(len(table), bool)
    state = table["observations"]
    if "next_observations" in table.column:
        cut[:-1] = _gaps(table["next_observations"], state) & ~ended[:-1]
        if cut.sum() > max(1, 0.001 * len(table)):
            message = (
                f"{table.path}: {cut.sum():,} of {len(table):,} rows are not followed by their next observation, first "
                f"row {int(np.argmax(cut))}; the rows are probably shuffled, and episodes cannot be told"
            )
            repair, where = "shuffled=true reads them as single transitions, for TD learning only", np.argmax(cut)
            raise refusal("shuffled", message, repair, count=cut.sum(), where=f"row {where}")
    elif not name.startswith("antmaze") and len(state) > 2:
        cut[:-1] = _jumps(state, ended)
    if cut.any():
        first = int(np.argmax(cut))
        message = f"{cut.sum()} ends that no flag marks, first after row {first}: cut there"
        table.findings.append(warning("unmarked_end", message, count=cut.sum(), where=f"row {first}"))
    if name.startswith("antmaze"):
        jump = np.linalg.norm(np.diff(state[:, :2], axis=0), axis=1) > _JUMP
        jump &= ~(ended | cut)[:-1]
        if jump.any():
            message = (
                f"{table.path}: the ant jumps more than {_JUMP:g} m inside an episode at {jump.sum()} rows, first "
                f"after row {int(np.argmax(jump))}; timeouts and resets do not fit (AntMaze v0): use the v2 file"
            )
            raise refusal("antmaze_v0", message, count=jump.sum(), where=f"row {int(np.argmax(jump))}")
    return cut


def _gaps(after: np.ndarray, state: np.ndarray) -> np.ndarray:
    """(N - 1,) bool: rows whose successor is not the row that follows."""
    gap = np.zeros(max(len(state) - 1, 0), bool)
    width = int(np.prod(state.shape[1:], dtype=np.int64))
    step = max((1 << 22) // max(width, 1), 1)  # of rows, so that what is compared stays in the cache
    for begin in range(0, len(gap), step):
        end = min(begin + step, len(gap))
        mine, theirs = after[begin:end], state[begin + 1 : end + 1]
        # nearly all rows are equal bit for bit; only of the others is it asked by how much they differ
        rows = np.unique(np.flatnonzero(mine.ravel() != theirs.ravel()) // max(width, 1))
        gap[begin + rows] = np.abs(mine[rows] - theirs[rows]).max(1, initial=0.0) > 1e-6
    return gap


def _jumps(state: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """(N - 1,) bool: steps far larger than the 99.9th percentile, where no end is marked."""
    size = np.empty(len(state) - 1)
    for begin in range(0, len(size), 1 << 18):
        part = state[begin : begin + (1 << 18) + 1]
        size[begin : begin + len(part) - 1] = np.linalg.norm(np.diff(part, axis=0), axis=1)
    inside = size[~ended[:-1] & np.isfinite(size)]
    if not len(inside):
        return np.zeros(len(size), bool)
    # With fewer than a thousand steps the percentile would be the jump itself: take the second largest at most.
    usual = min(np.percentile(inside, 99.9), np.partition(inside, -2)[-2]) if len(inside) > 1 else inside[0]
    return (size > _JUMP_FACTOR * usual) & ~ended[:-1] if usual > 0 else np.zeros(len(size), bool)


def _single_rows(table: D4rlTable) -> list[Episode]:
    """Every row as an episode of one step."""
    if "next_observations" not in table.column:
        raise refusal("missing_key", f"{table.path} has no 'next_observations': shuffled rows need them")
    count, terminal = len(table), table["terminals"].copy()
    timeout = table["timeouts"] & ~terminal if "timeouts" in table.column else np.zeros(count, bool)
    message = f"{count:,} rows read as single transitions: returns and sequences mean nothing"
    table.findings.append(warning("shuffled", message, count=count))
    episodes = _episodes(table, terminal, timeout, np.ones(count, bool))
    for episode in episodes:
        episode.meta["cut"] = True
    return episodes if table.lost is None else _salvage(table, episodes)


def _salvage(table: D4rlTable, episodes: list[Episode]) -> list[Episode]:
    """The episodes that touch no lost row."""
    assert table.lost is not None
    lost = np.concatenate(([0], np.cumsum(table.lost)))
    starts = np.cumsum([0, *(len(e) for e in episodes)])
    kept = [e for e, a, b in zip(episodes, starts, starts[1:]) if lost[b] == lost[a]]
    dropped = len(episodes) - len(kept)
    if not kept:
        raise refusal("damaged_chunk", f"{table.path}: no episode lies whole outside the damaged rows")
    message = f"{dropped} of {len(episodes)} episodes touch damaged rows: left out"
    table.findings.append(warning("salvaged", message, count=dropped))
    return kept


def _first_hits(terminal: np.ndarray, boundary: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows to keep, terminals): of every trajectory between boundaries, only up to its first terminal."""
    begins = np.concatenate(([True], boundary[:-1]))
    before = np.cumsum(terminal) - terminal  # hits before this row
    keep = before == before[begins][np.cumsum(begins) - 1]  # as many as at the start of its trajectory
    return keep, terminal & keep


def _episodes(table: D4rlTable, terminal: np.ndarray, timeout: np.ndarray, cut: np.ndarray) -> list[Episode]:
    """Cut the table into episodes that share one array per column."""
    rows = len(terminal)
    ends = np.flatnonzero(terminal | timeout | cut)
    tail_cut = False
    if not len(ends) or ends[-1] != rows - 1:
        ends = np.append(ends, rows - 1)
        tail = rows - 1 - (ends[-2] if len(ends) > 1 else -1)
        message = f"the file ends inside an episode: its last {tail} rows are read as a truncated one"
        table.findings.append(warning("tail", message, count=tail, where=f"row {rows - tail}"))
        timeout[-1] = tail_cut = True
    starts = np.concatenate(([0], ends[:-1] + 1))
    known = "next_observations" in table.column or table.final is not None
    state = np.empty((rows + len(ends), table["observations"].shape[1]), np.float32)
    logged = table["observations"]
    if table.final is not None:
        state[ends + 1 + np.arange(len(ends))] = table.final
    else:
        state[ends + 1 + np.arange(len(ends))] = table["next_observations" if known else "observations"][ends]
    steps = np.arange((ends - starts).max() + 2, dtype=np.float64)
    more = {key: value for key, value in table.column.items() if key.startswith("infos/")}
    human = more.pop("infos/intervened", np.zeros(rows, bool)).astype(bool)
    proposed = more.pop("infos/proposed", table["actions"])
    stamp, after = more.pop("infos/stamp", None), more.pop("infos/next_stamp", None)
    episodes = []
    for i, (a, b) in enumerate(zip(starts.tolist(), (ends + 1).tolist())):
        state[a + i : b + i] = logged[a:b]  # every episode before adds one final observation
        columns = {key: value[a:b] for key, value in more.items()}
        meta, endless = read_beside(columns, "infos/")
        if columns:
            meta["columns"] = columns
        if not known:
            meta["final_obs_valid"] = False
        if tail_cut and b == rows:
            meta["cut"] = True
        time = steps[: b - a + 1]
        if stamp is not None and after is not None:
            time = np.append(stamp[a:b], after[b - 1])
        episodes.append(
            Episode(
                obs={"state": state[a + i : b + i + 1]},
                action=table["actions"][a:b],
                proposed=proposed[a:b],
                reward=table["rewards"][a:b],
                terminated=bool(terminal[b - 1]),
                truncated=bool(timeout[b - 1]) and not endless,
                intervened=human[a:b],
                stamp=time,
                meta=meta,
            )
        )
    return episodes


def _shift(episode: Episode) -> Episode:
    whole, _ = split(episode, [len(episode) - 1])
    said = {key: value for key, value in episode.meta.items() if key == "success"}
    return replace(whole, reward=episode.reward[1:], truncated=True, meta=whole.meta | said)
