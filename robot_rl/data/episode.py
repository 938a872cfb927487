"""Episodes out of step streams, and what can be done with whole episodes.

Further per-step columns live in `Episode.meta["columns"]`: name -> (T, ...) array. Two names have a meaning everywhere:
"valid" (bool, False: stored but no transition to learn from) and "success" (bool). `Episode.meta["final_obs_valid"]` is
False where the recording never contained the observation after the last step; `obs[-1]` then repeats the one before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from robot_rl.data.bounds import ActionBounds
from robot_rl.data.findings import BadData, Finding, error
from robot_rl.types import Episode, IOSpec, Step

_KINDS = {"action": "float32", "proposed": "float32", "reward": "float32", "intervened": "bool"}
"""Columns of an episode with a row per step -> dtype."""


class EpisodeBuilder:
    """Collects the steps of N environments and hands out each episode when it ends.

    Args:
        num_envs: rows of every `Step`.
        meta: copied into every episode.
        columns: names of `Step.info` entries (N, ...) that are kept per step in `meta["columns"]`.

    Rows with `valid=False` are dropped, and an episode that was open is handed out as cut: the observation after such a
    row belongs to no recorded action.
    """

    def __init__(self, num_envs: int, *, meta: Mapping[str, object] | None = None, columns: Sequence[str] = ()) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}, expected at least 1")
        self.num_envs, self.columns = num_envs, tuple(columns)
        self._meta = dict(meta or {})
        self._rows: list[list[dict[str, Any]]] = [[] for _ in range(num_envs)]

    def add(self, step: Step, stamp: np.ndarray | None = None, next_stamp: np.ndarray | None = None) -> list[Episode]:
        """Take one step of every environment.

        Args:
            step: the arrays are copied.
            stamp: (N,) seconds at which `step.obs` was taken; the step's index when None.
            next_stamp: (N,) seconds at which `step.next_obs` was taken; one later than `stamp` when None.

        Returns:
            The episodes that ended, in the order of their environments.
        """
        obs, successor = _numpy(step.obs), _numpy(step.next_obs)
        given = (step.action, step.proposed, step.reward, step.intervened)
        named = dict(zip(_KINDS, map(_numpy, given)))
        terminated, truncated, valid = map(_numpy, (step.terminated, step.truncated, step.valid))
        more = {name: _numpy(step.info[name]) for name in self.columns}
        done = []
        for e, rows in enumerate(self._rows):
            if not valid[e]:
                if rows:
                    done.append(self._finish(e))
                continue
            time = float(len(rows)) if stamp is None else float(stamp[e])
            after = time + 1.0 if next_stamp is None else float(next_stamp[e])
            if rows:  # only the last row's successor is needed
                rows[-1]["next_obs"] = None
            rows.append(
                {
                    "obs": {key: np.array(value[e]) for key, value in obs.items()},
                    "next_obs": {key: np.array(value[e]) for key, value in successor.items()},
                    **{name: np.array(value[e], _KINDS[name]) for name, value in named.items()},
                    "stamp": (time, after),
                    "columns": {name: np.array(value[e]) for name, value in more.items()},
                }
            )
            if terminated[e] or truncated[e]:
                done.append(self._finish(e, bool(terminated[e]), bool(truncated[e] and not terminated[e])))
        return done

    def flush(self) -> list[Episode]:
        """Hand out what is still open, as cut recordings."""
        return [self._finish(e) for e in range(self.num_envs) if self._rows[e]]

    def _finish(self, env: int, terminated: bool = False, truncated: bool = False) -> Episode:
        rows, self._rows[env] = self._rows[env], []
        last = rows[-1]
        meta = dict(self._meta)
        if self.columns:
            meta["columns"] = {name: np.stack([row["columns"][name] for row in rows]) for name in self.columns}
        return Episode(
            obs={key: np.stack([*(row["obs"][key] for row in rows), last["next_obs"][key]]) for key in last["obs"]},
            **{name: np.stack([row[name] for row in rows]) for name in _KINDS},
            terminated=terminated,
            truncated=truncated,
            stamp=np.array([*(row["stamp"][0] for row in rows), last["stamp"][1]]),
            meta=meta,
        )


@dataclass(frozen=True)
class Logs:
    """What a reader of foreign files found.

    Attributes:
        episodes: in the order of the file; their arrays may share memory.
        findings: what was repaired, assumed or looks wrong, with counts and places.
        io: interface of the data; action names and units as far as the file tells them.
        meta: facts about the file.
        bounds: range of the actions as far as the file tells it.
    """

    episodes: list[Episode]
    findings: list[Finding]
    io: IOSpec
    meta: dict[str, Any] = field(default_factory=dict)
    bounds: ActionBounds | None = None


def sound(path: str | os.PathLike[str], logs: Logs) -> Logs:
    """The logs, once it is sure that every episode holds numbers of fitting and equal shapes.

    Raises:
        BadData: one does not; names the episode and what is wrong with it.
    """
    if not logs.episodes:
        raise BadData([*logs.findings, error("no_rows", f"{path} holds no episode")])
    if not any(len(episode.action) for episode in logs.episodes):
        raise BadData([*logs.findings, error("no_rows", f"no episode of {path} has a step")])
    first = logs.episodes[0]
    known = {key: value.shape[1:] for key, value in _columns(first).items()}
    for i, episode in enumerate(logs.episodes):  # which have counted their rows themselves
        columns = _columns(episode)
        wrong = [f"'{k}' is {v.dtype}, expected numbers" for k, v in columns.items() if v.dtype.kind not in "biuf"]
        if columns.keys() != known.keys():
            wrong.append(f"it observes {sorted(episode.obs)}, the first one {sorted(first.obs)}")
        for key, value in columns.items():
            if value.shape[1:] != known.get(key, value.shape[1:]):
                wrong.append(f"'{key}' has {list(value.shape[1:])} numbers per row, episode 0 has {list(known[key])}")
        if episode.action.ndim != 2 or not episode.action.shape[1] or not episode.obs:
            wrong.append(f"its actions have shape {list(episode.action.shape)}, it observes {list(episode.obs)}")
        if episode.proposed.shape != episode.action.shape:
            wrong.append(f"what was proposed has shape {list(episode.proposed.shape)}, the actions not")
        if episode.reward.ndim != 1 or episode.stamp.ndim != 1:
            wrong.append("reward and stamp are not one number per step")
        if wrong:
            message = f"{path}: episode {i} cannot be used: {'; '.join(wrong[:3])}"
            raise BadData([*logs.findings, error("types", message, "repair the source", where=f"episode {i}")])
    return logs


def _columns(episode: Episode) -> dict[str, np.ndarray]:
    named = {f"obs/{key}": np.asarray(value) for key, value in episode.obs.items()}
    return named | {name: np.asarray(value) for name, value in episode.columns().items()}


def success_of(meta: Mapping[str, Any]) -> bool | None:
    """Whether an episode of these facts was a success; None where nothing says so."""
    if "success" in meta:
        return bool(meta["success"])
    columns = meta.get("columns", {})
    column = columns.get("success", columns.get("infos/success"))
    return None if column is None or not len(column) else bool(np.asarray(column)[-1])


USUAL = {"cut": 0, "final_obs_valid": True, "succeeded": -1}
"""What the columns of `beside` hold where there is nothing to tell."""


def beside(episode: Episode) -> dict[str, np.ndarray]:
    """(T, ...) columns of what D4RL and Minari have no place for, and the further ones; inverse of `read_beside`.

    "cut": 1 where neither terminated nor truncated, 2 where `meta["cut"]` says so, else 0; "final_obs_valid": whether
    the last observation was recorded; "succeeded": 1, 0, or -1 where nothing is known.
    """
    steps, meta = len(episode), episode.meta
    cut = 2 if meta.get("cut") else int(not (episode.terminated or episode.truncated))
    success = -1 if meta.get("success") is None else int(meta["success"])
    return {
        "proposed": episode.proposed.astype(np.float32, copy=False),
        "intervened": episode.intervened,
        "cut": np.full(steps, cut, np.int8),
        "final_obs_valid": np.full(steps, meta.get("final_obs_valid", True)),
        "succeeded": np.full(steps, success, np.int8),
        **meta.get("columns", {}),
    }


def is_usual(name: str, column: np.ndarray) -> bool:
    """Whether such a column tells nothing, so that no file has to hold it."""
    return name in USUAL and bool((column == USUAL[name]).all())


def read_beside(columns: dict[str, np.ndarray], prefix: str = "") -> tuple[dict[str, Any], bool]:
    """Facts for `Episode.meta`, and whether the episode is neither terminated nor truncated.

    Args:
        columns: of the episode, (T, ...); those that tell it are taken out.
        prefix: of their names.
    """
    said = {name: columns.pop(prefix + name, None) for name in USUAL}
    last = USUAL | {name: column[-1] for name, column in said.items() if column is not None and len(column)}
    meta: dict[str, Any] = {}
    if not last["final_obs_valid"]:
        meta["final_obs_valid"] = False
    if last["cut"] == 2:
        meta["cut"] = True
    if last["succeeded"] >= 0:
        meta["success"] = bool(last["succeeded"])
    return meta, last["cut"] == 1


def unnamed_io(obs: dict[str, np.ndarray], action_dim: int, control_hz: float) -> IOSpec:
    """Interface of data that names nothing: actions a0 ... of unknown range, observations as in `obs` (T, ...)."""
    return IOSpec(
        obs={key: (tuple(value.shape[1:]), str(value.dtype)) for key, value in obs.items()},
        action_names=tuple(f"a{i}" for i in range(action_dim)),
        action_low=(None,) * action_dim,
        action_high=(None,) * action_dim,
        action_units=("1",) * action_dim,
        control_hz=control_hz,
    )


def episode_from_columns(
    obs: dict[str, np.ndarray],
    action: np.ndarray,
    reward: np.ndarray,
    *,
    terminated: bool = False,
    truncated: bool | None = None,
    final_obs: dict[str, np.ndarray] | None = None,
    proposed: np.ndarray | None = None,
    intervened: np.ndarray | None = None,
    stamp: np.ndarray | None = None,
    meta: Mapping[str, object] | None = None,
) -> Episode:
    """An episode from T observations and, if there is one, the final observation.

    Args:
        obs: (T, ...) per key, or (T + 1, ...) with the final observation.
        action: (T, A).
        reward: (T,).
        terminated: of the last step.
        truncated: of the last step; where it is not terminated when None.
        final_obs: (...) per key; where there is none the last observation is repeated and `meta["final_obs_valid"]` is
            False.
        proposed: (T, A); the actions when None.
        intervened: (T,) bool; all False when None.
        stamp: (T + 1,) seconds; step indices when None.
        meta: further facts.
    """
    facts, steps = dict(meta or {}), len(action)
    if any(len(value) == steps for value in obs.values()):
        if final_obs is None:
            final_obs = {key: value[-1] for key, value in obs.items()}
            facts["final_obs_valid"] = False
        obs = {key: np.concatenate((value, final_obs[key][None])) for key, value in obs.items()}
    return Episode(
        obs=obs,
        action=action,
        proposed=action if proposed is None else proposed,
        reward=reward,
        terminated=terminated,
        truncated=not terminated if truncated is None else truncated,
        intervened=np.zeros(steps, bool) if intervened is None else intervened,
        stamp=np.arange(steps + 1.0) if stamp is None else stamp,
        meta=facts,
    )


def split(episode: Episode, at: Sequence[int]) -> list[Episode]:
    """Cut an episode before the steps `at`; the pieces share its memory, and all but the last are cut recordings.

    Raises:
        ValueError: a cut lies outside 1 ... T - 1, or they do not increase.
    """
    cuts = [0, *at, len(episode)]
    if any(b <= a for a, b in pairwise(cuts)):
        raise ValueError(f"cuts are {list(at)}, expected increasing steps in 1 ... {len(episode) - 1}")
    return [_piece(episode, a, b) for a, b in pairwise(cuts)]


def _piece(episode: Episode, begin: int, end: int) -> Episode:
    meta = dict(episode.meta)
    if "columns" in meta:
        meta["columns"] = {name: column[begin:end] for name, column in meta["columns"].items()}
    last = end == len(episode)
    if not last:
        meta.pop("final_obs_valid", None)
        meta |= {"success": False} if "success" in meta else {}  # what the recording came to is the last one's
    return Episode(
        obs={key: value[begin : end + 1] for key, value in episode.obs.items()},
        action=episode.action[begin:end],
        proposed=episode.proposed[begin:end],
        reward=episode.reward[begin:end],
        terminated=episode.terminated and last,
        truncated=episode.truncated and last,
        intervened=episode.intervened[begin:end],
        stamp=episode.stamp[begin : end + 1],
        meta=meta,
    )


def _numpy(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _numpy(item) for key, item in value.items()}
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
