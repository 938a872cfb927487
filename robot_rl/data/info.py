"""What is in a log: format, sizes, returns, and what looks wrong, without changing anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import d4rl, minari, scores, sources
from robot_rl.data.episode import OUTSIDE, Logs, problems, unnamed_io
from robot_rl.data.recorder import Recording
from robot_rl.types import Episode, IOSpec

FORMATS = ("d4rl", "minari", "recording")


def detect(path: str | os.PathLike[str]) -> str:
    """Which of `FORMATS` a file or folder is in.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it is none of them.
    """
    path = Path(path)
    if path.is_dir():
        if any(path.glob("segment-*.episodes")):
            return "recording"
        if any((folder / minari.META).exists() or (folder / minari.FILE).exists() for folder in (path, path / "data")):
            return "minari"
        raise ValueError(
            f"{path} holds no log that can be read, expected segment-*.episodes (our recordings) or "
            f"data/{minari.FILE} (Minari); for D4RL name the file itself"
        )
    sources.check_file(path)
    if path.suffix == ".episodes":
        return "recording"
    return "minari" if path.name == minari.FILE else "d4rl"


def load(path: str | os.PathLike[str], **options: Any) -> Logs:
    """Read a log of any known format; `options` go to its reader.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it cannot be read; says why.
    """
    path, kind = Path(path), detect(path)
    if kind == "d4rl":
        return d4rl.read(path, **options)
    if kind == "minari":
        return minari.read(path, **options)
    folder = path if path.is_dir() else path.parent
    recording = Recording(folder)
    findings = [
        f"{file.name}: {size:,} bytes at {offset:,} are an episode that was never completed: passed over"
        for file, offset, size in recording.torn
    ]
    episodes = list(recording)
    if not episodes:
        raise ValueError(f"{folder} has no complete episode")
    io = episodes[0].meta.get("io")
    if not isinstance(io, IOSpec):
        io = unnamed_io(episodes[0].obs, episodes[0].action.shape[1], 20.0)
    findings += sources.saturation(np.concatenate([episode.action for episode in episodes]))
    return Logs(episodes, findings, io, {"path": str(folder), "format": "recording"})


def info(path: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """Everything worth knowing about a log, as plain values.

    Args:
        path: a D4RL file, a Minari dataset, or a folder of recordings.
        options: for the format's reader.

    Returns:
        path, format, bytes, episodes, steps, observations (key -> "dtype[shape]"), action_dim, return and length
        (mean, std, min, max; episodes with NaN left out), terminated, truncated, cut and final_obs_missing (numbers of
        episodes), success (fraction, or None when nothing says so), intervened (fraction of steps), action (min and max
        per dimension, saturated fraction), findings (lines), normalized_return (None for data without a reference).

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it cannot be read; says why.
    """
    path = Path(path)
    if detect(path) != "recording":
        options.setdefault("allow_nan", True)
    logs = load(path, **options)
    episodes = logs.episodes
    findings = list(logs.findings)
    action = np.concatenate([episode.action for episode in episodes])
    length = np.array([len(episode) for episode in episodes])
    returns = np.array([float(episode.reward.sum(dtype=np.float64)) for episode in episodes])
    findings += _suspicions(episodes, length, returns)
    success = [s for s in map(_success, episodes) if s is not None]
    facts: dict[str, Any] = {
        "path": str(path),
        "format": logs.meta["format"],
        "bytes": _size(path),
        "episodes": len(episodes),
        "steps": int(length.sum()),
        "observations": {key: f"{dtype}{list(shape)}" for key, (shape, dtype) in logs.io.obs.items()},
        "action_dim": logs.io.action_dim,
        "return": _spread(returns),
        "length": _spread(length),
        "terminated": sum(episode.terminated for episode in episodes),
        "truncated": sum(episode.truncated for episode in episodes),
        "cut": sum(not episode.terminated and not episode.truncated for episode in episodes),
        "final_obs_missing": sum(not episode.meta.get("final_obs_valid", True) for episode in episodes),
        "success": float(np.mean(success)) if success else None,
        "intervened": float(np.mean(np.concatenate([episode.intervened for episode in episodes]))),
        "action": {
            "min": np.nanmin(action, 0).round(4).tolist(),
            "max": np.nanmax(action, 0).round(4).tolist(),
            "saturated": float((np.abs(action) > 1 - 1e-3).mean()),
        },
        "findings": findings,
    }
    try:
        facts["normalized_return"] = scores.normalized_score(
            str(logs.meta.get("name", path.stem)), facts["return"]["mean"]
        )
    except ValueError:
        facts["normalized_return"] = None
    return facts


def report(facts: dict[str, Any]) -> str:
    """`info` as text for people."""

    def spread(item: dict[str, float]) -> str:
        return f"{item['mean']:.6g} ± {item['std']:.4g}  ({item['min']:.6g} to {item['max']:.6g})"

    ends = f"{facts['terminated']} terminated, {facts['truncated']} truncated, {facts['cut']} cut"
    lines = [
        f"{facts['path']}",
        f"  format        {facts['format']}, {facts['bytes'] / 1e6:,.1f} MB",
        f"  episodes      {facts['episodes']:,} ({ends}), {facts['steps']:,} steps",
        f"  return        {spread(facts['return'])}",
        f"  length        {spread(facts['length'])}",
    ]
    if facts["normalized_return"] is not None:
        lines.append(f"  D4RL score    {facts['normalized_return']:.1f}")
    if facts["success"] is not None:
        lines.append(f"  success       {facts['success']:.1%}")
    if facts["intervened"]:
        lines.append(f"  intervened    {facts['intervened']:.1%} of the steps")
    lines += [f"  observation   {key}: {spec}" for key, spec in facts["observations"].items()]
    low, high = min(facts["action"]["min"]), max(facts["action"]["max"])
    lines.append(
        f"  action        {facts['action_dim']} dimensions in [{low:g}, {high:g}], "
        f"{facts['action']['saturated']:.1%} at or beyond the bounds"
    )
    if facts["final_obs_missing"]:
        lines.append(f"  final obs     not recorded in {facts['final_obs_missing']:,} episodes")
    lines += [f"  ! {line}" for line in facts["findings"]] or ["  nothing looks wrong"]
    return "\n".join(lines)


def _success(episode: Episode) -> bool | None:
    if "success" in episode.meta:
        return bool(episode.meta["success"])
    columns = episode.meta.get("columns", {})
    column = columns.get("success", columns.get("infos/success"))
    return None if column is None or not len(column) else bool(np.asarray(column)[-1])


def _suspicions(episodes: list[Episode], length: np.ndarray, returns: np.ndarray) -> list[str]:
    lines = []
    listed: dict[str, list[tuple[int, str]]] = {}
    for i, episode in enumerate(episodes):
        for kind, detail in problems(episode).items():
            listed.setdefault(kind, []).append((i, detail))
    listed.pop(OUTSIDE, None)  # the readers have said so for all episodes together
    for kind, places in listed.items():
        lines.append(f"{kind} in {len(places)} episodes, first in episode {places[0][0]}: {places[0][1]}")
    if len(episodes) > 1 and len(set(returns.tolist())) < len(episodes):
        seen: dict[int, int] = {}
        for episode in episodes:
            key = hash((episode.action.tobytes(), episode.reward.tobytes()))
            seen[key] = seen.get(key, 0) + 1
        doubled = sum(count - 1 for count in seen.values())
        if doubled:
            lines.append(f"{doubled} episodes are exact copies of others")
    if (length <= 1).any():
        lines.append(f"{int((length <= 1).sum())} episodes have one step or none")
    ended = np.array([episode.terminated for episode in episodes])
    if len(episodes) >= 2 and length.max() > 1 and (ended & (length == length.max())).mean() >= 0.9:
        lines.append(f"nearly all episodes end by a terminal at {length.max()} steps: probably a time limit")
    if all((episode.reward == episodes[0].reward[:1]).all() for episode in episodes):
        lines.append("the reward is constant")
    state = next((v for v in (e.obs.get("state") for e in episodes[:1]) if v is not None), None)
    if state is not None:
        all_states = np.concatenate([episode.obs["state"] for episode in episodes])
        still = np.flatnonzero(all_states.std(0) < 1e-6)
        if len(still):
            lines.append(f"state components that never change: {still.tolist()}")
    return lines


def _spread(values: np.ndarray) -> dict[str, float]:
    values = values[np.isfinite(values)]
    if not len(values):
        values = np.zeros(1)
    return {name: float(getattr(np, name)(values)) for name in ("mean", "std", "min", "max")}


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
