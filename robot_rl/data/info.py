"""What is in a log: format, sizes, returns, and what looks wrong, without changing anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import checks, scores
from robot_rl.data.actions import settle
from robot_rl.data.episode import Logs, success_of
from robot_rl.data.foreign import reading
from robot_rl.data.formats import load
from robot_rl.types import Episode


def info(path: str | os.PathLike[str], *, said: Mapping[str, Any] | None = None, **options: object) -> dict[str, Any]:
    """Everything worth knowing about a log, as plain values.

    Args:
        path: file or folder of any known format.
        said: what a person says of the actions, see `actions.settle`.
        options: for the format's reader.

    Returns:
        path, format, bytes, episodes, steps, observations (key -> "dtype[shape]"), action_dim, return and length
        (mean, std, min, max; episodes with NaN left out), terminated, truncated, cut and final_obs_missing (numbers of
        episodes), success (fraction, or None when nothing says so), intervened (fraction of steps), action (min and max
        per dimension, saturated fraction, meaning of -1 and +1), period (seconds: median, jitter_p99, max; None where
        stamps only count), findings (lines), normalized_return (None for data without a reference).

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it cannot be read; says why.
    """
    path = Path(path)
    logs = load(path, allow_nan=True, **options)
    with reading(path):
        logs, done = settle(logs, **(said or {}))
        return _facts(path, replace(logs, findings=[*logs.findings, *done]))


def _facts(path: Path, logs: Logs) -> dict[str, Any]:
    episodes = logs.episodes
    findings = [str(item) for item in (*logs.findings, *checks.check(logs, batch=0))]
    action = np.concatenate([episode.action for episode in episodes])
    length = np.array([len(episode) for episode in episodes])
    returns = np.array([float(episode.reward.sum(dtype=np.float64)) for episode in episodes])
    success = [s for e in episodes if (s := success_of(e.meta)) is not None]
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
            "meaning": _meaning(logs),
        },
        "period": _periods(episodes),
        "findings": findings,
    }
    facts["normalized_return"] = None
    with suppress(ValueError):  # not of D4RL
        name = str(logs.meta.get("name", path.stem))
        facts["normalized_return"] = scores.normalized_score(name, facts["return"]["mean"])
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
    lines.append(f"  -1 and +1     {facts['action']['meaning']}")
    if facts["period"]:
        period = facts["period"]
        lines.append(
            f"  sampling      every {period['median'] * 1e3:.4g} ms, jitter {period['jitter_p99'] * 1e3:.3g} ms "
            f"(99 %), longest {period['max'] * 1e3:.4g} ms"
        )
    if facts["final_obs_missing"]:
        lines.append(f"  final obs     not recorded in {facts['final_obs_missing']:,} episodes")
    lines += [f"  ! {line}" for line in facts["findings"]] or ["  nothing looks wrong"]
    return "\n".join(lines)


def _meaning(logs: Logs) -> str:
    """What -1 and +1 stand for."""
    if logs.io.knows_bounds:
        low, high = logs.io.bounds
        units = sorted({unit for unit in logs.io.action_units if unit != "1"})
        return f"{min(low):.4g} to {max(high):.4g}" + (f" {', '.join(units)}" if units else "")
    return "the bounds of the robot" if logs.bounds is not None else "unknown"


def _periods(episodes: list[Episode]) -> dict[str, float] | None:
    """Seconds between rows: median, and the 99th percentile of the distance from it; None where stamps only count."""
    periods = np.concatenate([np.diff(episode.stamp) for episode in episodes])
    if not len(periods) or (periods == 1.0).all():
        return None
    usual = float(np.median(periods))
    jitter = np.abs(periods - usual)
    return {"median": usual, "jitter_p99": float(np.percentile(jitter, 99)), "max": float(periods.max())}


def _spread(values: np.ndarray) -> dict[str, float]:
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    ways = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}
    return {name: float(way(values)) for name, way in ways.items()}


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
