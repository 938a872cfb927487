"""NPZ archives and pickles of arrays: reader that executes nothing from the file.

Layouts, with singular or plural names (`observation`/`observations`/`obs` and so on):

- one array per key over all rows, with `index` (NeoRL: first row of every episode), `next_obs` and `done`;
- one group per episode: `episode_00/observations` ... in an NPZ, or a pickled list of dictionaries.

`action_low`, `action_high` and `action_units`, where they are there, say what the actions mean.

`done` at the last row of an episode is a true end, unless `timeout`/`timeouts` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import foreign, scores, sources
from robot_rl.data.bounds import attributes
from robot_rl.data.episode import Logs, episode_from_columns, unnamed_io
from robot_rl.data.findings import BadData, Finding, error, note, refusal, stop_on_errors, warning
from robot_rl.data.read_options import AS_IT_IS, RATE, ReadOptions
from robot_rl.types import Episode

_NAMES = {
    "obs": ("observations", "observation", "obs"),
    "next_obs": ("next_observations", "next_observation", "next_obs"),
    "action": ("actions", "action"),
    "reward": ("rewards", "reward"),
    "done": ("terminals", "terminal", "dones", "done"),
    "timeout": ("timeouts", "timeout", "truncations", "truncated"),
}
HEEDS = ("dataset", "control_hz")
_TOLD = ("action_low", "action_high", "action_units", "action_normalised")


def read(path: str | os.PathLike[str], options: ReadOptions = AS_IT_IS) -> Logs:
    """Read an archive.

    Args:
        path: a .npz, .pkl or .pickle file.
        options: how it is read.

    Raises:
        FileNotFoundError: there is no such file.
        BadData: it is damaged, holds objects or code, or lacks arrays; with the remedy.
    """
    path = Path(path)
    sources.check_file(path)
    content: Any = foreign.unpickle(path) if path.suffix.lower() in (".pkl", ".pickle") else foreign.npz(path)
    findings: list[Finding] = []
    groups = _groups(path, content)
    if groups is None:
        episodes = _flat(path, content, findings)
    else:
        episodes = [_one(path, where, group, findings) for where, group in groups]
    stop_on_errors(findings)
    io = unnamed_io(episodes[0].obs, episodes[0].action.shape[1], options.control_hz or RATE)
    facts = {"path": str(path), "format": "npz", "name": (options.dataset or path.stem).lower().replace("_", "-")}
    known = content if isinstance(content, Mapping) else {}
    told = {key: np.asarray(known[key]).tolist() for key in _TOLD if key in known}
    return Logs(episodes, findings, io, facts, attributes(io.action_dim, told))


def _groups(path: Path, content: object) -> list[tuple[str, Mapping[str, object]]] | None:
    """One mapping per episode, or None for arrays over all rows."""
    if isinstance(content, (list, tuple)):
        if not content or not all(isinstance(item, Mapping) for item in content):
            raise refusal("layout", f"{path} holds a list, expected one dictionary of arrays per episode")
        return [(f"[{i}]", item) for i, item in enumerate(content)]
    if not isinstance(content, Mapping):
        raise refusal("layout", f"{path} holds a {type(content).__name__}, expected arrays by name")
    if any(_find(content, kind) for kind in ("obs", "action")):
        return None
    inside: dict[str, dict[str, object]] = {}
    for key, value in content.items():
        head, _, rest = str(key).partition("/")
        if isinstance(value, Mapping):
            inside[str(key)] = dict(value)
        elif rest:
            inside.setdefault(head, {})[rest] = value
    if not inside:
        raise sources.missing_key(path, "observations", map(str, content))
    return sorted(inside.items(), key=lambda item: (len(item[0]), item[0]))


def _find(content: Mapping[str, object], kind: str) -> str | None:
    return next((name for name in _NAMES[kind] if name in content), None)


def _arrays(path: Path, where: str, content: Mapping[str, object], findings: list[Finding]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for kind in _NAMES:
        key = _find(content, kind)
        if key is None:
            if kind in ("obs", "action", "reward"):
                findings.extend(sources.missing_key(path, f"{where}{_NAMES[kind][0]}", map(str, content)).findings)
            continue
        value = foreign.numbers(path, content[key])
        if value.dtype.kind not in "biuf":
            findings.append(error("object_array", f"{path}: '{where}{key}' is {value.dtype}, expected numbers"))
            continue
        if kind in ("reward", "done", "timeout") and value.ndim == 2 and value.shape[1] == 1:
            value = value[:, 0]
            findings.append(warning("squeezed", f"{where}{key} has shape (N, 1): read as (N,)"))
        found[kind] = value
    rows = len(found.get("action", ()))
    for kind, value in found.items():
        extra = 1 if kind == "obs" and len(value) == rows + 1 else 0
        if len(value) != rows + extra:
            message = f"{path}: '{where}{_find(content, kind)}' has {len(value):,} rows, the actions have {rows:,}"
            findings.append(error("lengths", message, "the arrays do not belong together", where=where or str(path)))
    return found


def _one(path: Path, where: str, content: Mapping[str, object], findings: list[Finding]) -> Episode:
    found = _arrays(path, f"{where}/", content, findings)
    stop_on_errors(findings)
    return _episode(found, {"id": where})


def _episode(found: Mapping[str, np.ndarray], meta: dict[str, object]) -> Episode:
    """Of the arrays of its steps; "obs" may have the final observation behind them."""
    obs, action, reward = (found[kind].astype(np.float32) for kind in ("obs", "action", "reward"))
    final = {"state": found["next_obs"][-1].astype(np.float32)} if "next_obs" in found else None
    stopped, ended = (bool(len(action) and kind in found and found[kind][-1]) for kind in ("timeout", "done"))
    return episode_from_columns(
        {"state": obs}, action, reward, terminated=ended and not stopped, final_obs=final, meta=meta
    )


def _flat(path: Path, content: Mapping[str, object], findings: list[Finding]) -> list[Episode]:
    found = _arrays(path, "", content, findings)
    stop_on_errors(findings)
    rows = len(found["action"])
    if not rows:
        raise BadData([*findings, error("no_rows", f"{path} has no rows", sources.AGAIN)])
    last = np.zeros(rows, bool)
    for kind in {"done", "timeout"} & found.keys():
        last |= found[kind].astype(bool)
    if "index" in content:
        starts = foreign.numbers(path, content["index"]).astype(np.int64).reshape(-1)
        if not len(starts) or starts[0] or starts[-1] > rows or (np.diff(starts) < 0).any():
            message = (
                f"{path}: 'index' is {starts[:8].tolist()}, expected the first row of every episode, from 0 to {rows}"
            )
            raise BadData([*findings, error("no_boundary", message, "write it again")])
        told, last = last, np.zeros(rows, bool)
        last[starts[starts > 0] - 1] = last[-1] = True
        if early := int((told & ~last).sum()):
            message = f"{early} ends before the last step of an episode: ignored"
            findings.append(warning("early_end", message, count=early))
    else:
        limit = scores.episode_limit(path.stem)
        if not last.any() and (limit is None or rows > limit):
            message = f"{path} marks no episode's end ('index', 'done' or 'timeout')"
            raise BadData([*findings, error("no_boundary", message, "add 'index': the first row of every episode")])
    last[-1] = True
    by = "index" if "index" in content else "done"
    findings.append(note("npz", f"{int(last.sum())} episodes told apart by {by}"))
    ends = [0, *(np.flatnonzero(last) + 1).tolist()]
    episodes = []
    for begin, end in pairwise(ends):
        mine = {kind: value[begin:end] for kind, value in found.items()}
        if end == rows < len(found["obs"]) and "next_obs" not in found:
            mine["obs"] = found["obs"][begin:]
        episodes.append(_episode(mine, {}))
    return episodes
