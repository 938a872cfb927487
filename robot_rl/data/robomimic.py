"""robomimic HDF5 demonstrations: reader.

Low-dimensional observations are put one behind another into "state", in the order of their names; images become
"image.<camera>". `dones` cannot tell success from the end of a demonstration: an end is a true one where the last
reward reaches `success_reward`, else a cut.

Source: ARISE-Initiative/robomimic docs/datasets/overview.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from robot_rl.data import foreign, sources
from robot_rl.data.bounds import attributes
from robot_rl.data.episode import Logs, episode_from_columns, unnamed_io
from robot_rl.data.findings import Finding, error, note, refusal, stop_on_errors, warning
from robot_rl.data.read_options import AS_IT_IS, ReadOptions, rate_of
from robot_rl.types import Episode

HEEDS = ("keys", "filter", "success_reward", "infos", "control_hz")


def read(path: str | os.PathLike[str], options: ReadOptions = AS_IT_IS) -> Logs:
    """Read demonstrations; `infos` keeps the simulator's `states` as a column.

    Args:
        path: the HDF5 file.
        options: how it is read.

    Raises:
        FileNotFoundError: there is no such file.
        BadData: it is damaged or incomplete, or has no such filter or key; with the remedy.
    """
    path, o = Path(path), options
    findings: list[Finding] = []
    with foreign.hdf5(path) as file:
        if not isinstance(file.get("data"), h5py.Group):
            raise sources.missing_key(path, "data", file)
        group: Any = file["data"]
        masked: Any = file.get("mask", {})
        names = sorted((n for n in group if n.rpartition("_")[2].isdigit()), key=lambda n: int(n.rpartition("_")[2]))
        if o.filter is not None:
            masks = list(masked)
            if o.filter not in masks:
                message = f"{path} has no filter '{o.filter}'; it has {', '.join(masks) or 'none'}"
                raise refusal("missing_key", message, where=o.filter)
            kept = {bytes(n).decode() for n in foreign.take(path, masked[o.filter])}
            names = [name for name in names if name in kept]
        if not names:
            raise refusal("no_rows", f"{path} has no demonstrations (data/demo_<i>)")
        order = list(o.keys) if o.keys is not None else sorted(group[names[0]].get("obs", {}))
        if not order:
            findings.append(note("states", "no 'obs': the simulator's states are taken as observations"))
        episodes = [_episode(path, name, group[name], order, o, findings) for name in names]
        facts: dict[str, Any] = {"path": str(path), "format": "robomimic", "filter": o.filter, "order": order}
        told_hz = None
        if "env_args" in group.attrs:
            facts["env_args"] = foreign.parse(path, group.attrs["env_args"])
            facts["name"] = str(facts["env_args"].get("env_name", path.stem))
            told_hz = (facts["env_args"].get("env_kwargs") or {}).get("control_freq")
        total = int(group.attrs.get("total", -1))
        told = attributes(episodes[0].action.shape[1], file.attrs, group.attrs, group[names[0]]["actions"].attrs)
    steps = sum(len(e) for e in episodes)
    if o.filter is None and total >= 0 and total != steps:
        findings.append(warning("metadata", f"{path}: data says total {total}, its demonstrations have {steps} steps"))
    missing = sum(not e.meta.get("final_obs_valid", True) for e in episodes)
    if missing:
        message = f"{missing} demonstrations have no next_obs: their last observation was never recorded"
        findings.append(note("final_obs", message, count=missing))
    io = unnamed_io(episodes[0].obs, episodes[0].action.shape[1], o.control_hz or rate_of(told_hz))
    return Logs(episodes, findings, io, facts, told)


def _episode(path: Path, name: str, demo: Any, order: list[str], o: ReadOptions, findings: list[Finding]) -> Episode:
    for key in ("actions", "rewards", "dones"):
        if key not in demo:
            raise sources.missing_key(path, f"data/{name}/{key}", [f"data/{name}/{k}" for k in demo])
    try:
        action = foreign.take(path, demo["actions"]).astype(np.float32)
        reward, done = (foreign.take(path, demo[key]).reshape(-1) for key in ("rewards", "dones"))
        reward = reward.astype(np.float32)
        obs = _observe(path, name, demo, "obs", order)
        whole = bool(order) and all(key in demo.get("next_obs", {}) for key in order)
        after = _observe(path, name, demo, "next_obs", order) if whole else None
        states = foreign.take(path, demo["states"]) if "states" in demo else None
    except OSError as problem:
        raise sources.unreadable_error(path, name, problem) from problem
    rows = {"rewards": reward, "dones": done, **{f"obs/{k}": v for k, v in obs.items()}}
    for key, value in rows.items():
        if len(value) != len(action):
            message = f"{path}: data/{name}/{key} has {len(value)} rows, expected {len(action)} (actions)"
            findings.append(error("lengths", message, "the demonstration is damaged; leave it out or record it again"))
    stop_on_errors(findings)
    finished = bool(len(done) and done[-1] and reward[-1] >= o.success_reward)
    columns = {"states": states} if o.infos and states is not None and len(states) == len(action) else {}
    meta: dict[str, object] = {"name": name, "success": bool(len(reward) and reward.max() >= o.success_reward)}
    return episode_from_columns(
        obs,
        action,
        reward,
        terminated=finished,
        final_obs=None if after is None else {key: value[-1] for key, value in after.items()},
        meta={**meta, "columns": columns} if columns else meta,
    )


def _observe(path: Path, name: str, demo: Any, group: str, order: list[str]) -> dict[str, np.ndarray]:
    if not order:
        if "states" not in demo:
            raise sources.missing_key(path, f"data/{name}/obs", [f"data/{name}/{k}" for k in demo])
        return {"state": foreign.take(path, demo["states"]).astype(np.float32)}
    found: dict[str, np.ndarray] = {}
    low = []
    for key in order:
        if key not in demo.get(group, {}):
            where = f"data/{name}/{group}"
            raise sources.missing_key(path, f"{where}/{key}", [f"{where}/{k}" for k in demo.get(group, {})])
        value = foreign.take(path, demo[group][key])
        if value.ndim >= 4 or (value.ndim == 3 and value.dtype == np.uint8):  # (T, 4, 4) poses are none
            found[f"image.{key.removesuffix('_image')}"] = value
        else:
            low.append(value.reshape(len(value), -1).astype(np.float32))
    return {"state": np.concatenate(low, 1), **found} if low else found
