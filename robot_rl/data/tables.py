"""Logs as tables of numbers: CSV with a column map, resampled to a control rate.

A map is a YAML file:

    time: time                          # column of seconds; without it rows are one period apart
    control_hz: 100                     # resample to this rate; null keeps the rows
    state:                              # in order
      - {column: pos_meas1, transform: sin}
      - {column: pos_meas1, transform: cos}
      - {column: vel_meas1, scale: 0.05}
      - vel_meas2                       # as it is
    action:
      - {column: tau_con1, scale: 0.2, name: tau, unit: "N*m"}
    info: [tau_con2]                    # kept per step; or {name: column}
    reward: "..."                       # expression of columns, or the name of one; null for zeros
    success: "..."                      # expression that has to hold for the last `success_hold_s` seconds
    success_hold_s: 0.5
    complete_s: 9.9                     # a shorter recording is a cut one
    variants: {acrobot: {...}}          # entries that replace those above when the name is part of the path; all files
                                        # have one rate, and -1 and +1 of their actions mean one thing

Expressions are those of `expression.Expression` over the columns and pi.
Commands are held (the last value before t), other columns interpolated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from robot_rl.data import foreign, sources
from robot_rl.data.episode import Logs, episode_from_columns
from robot_rl.data.findings import BadData, Finding, error, note, refusal, stop_on_errors, warning
from robot_rl.data.log_map import Real, Word, check_map, read_map
from robot_rl.data.read_options import AS_IT_IS, ReadOptions
from robot_rl.expression import Expression
from robot_rl.types import Episode, IOSpec, Options

HEEDS = ("map",)
MAPS = Path(__file__).parent / "maps"
_TRANSFORMS: dict[str | None, Callable[[np.ndarray], np.ndarray]] = {"sin": np.sin, "cos": np.cos}
_Span = Annotated[float, Field(strict=True, ge=0, le=1e5)]


def _check_scale(scale: float) -> float:
    if scale == 0.0:
        raise ValueError("a scale of 0 leaves nothing of a column")
    return scale


class _Entry(Options):
    """A component of the state or the action: a column, or what is made of it."""

    column: str
    transform: Literal["sin", "cos"] | None = None
    scale: Annotated[Real, AfterValidator(_check_scale)] | None = None
    offset: Real = 0.0
    name: Word | None = None
    unit: Word = "1"

    @property
    def label(self) -> str:
        """Its name."""
        return self.name or (f"{self.transform}({self.column})" if self.transform else self.column)

    def take(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """(N,) its values."""
        value = columns[self.column]
        if self.transform is not None:
            value = _TRANSFORMS[self.transform](value)
        return value * (1.0 if self.scale is None else self.scale) + self.offset


_Item = Annotated[_Entry, BeforeValidator(lambda given: {"column": given} if isinstance(given, str) else given)]
_Items = Annotated[tuple[_Item, ...], Field(min_length=1)]
_Info = Annotated[dict[str, str], BeforeValidator(lambda x: {name: name for name in x} if isinstance(x, list) else x)]


class TableMap(Options):
    """See above."""

    time: str | None = None
    control_hz: _Span | None = None
    state: _Items
    action: _Items
    info: _Info = Field(default_factory=dict)
    reward: Word | None = None
    success: Word | None = None
    success_hold_s: _Span = 0.0
    complete_s: _Span = 0.0
    variants: dict[str, dict[str, object]] = Field(default_factory=dict)

    @property
    def io(self) -> IOSpec:
        """Actions in [-1, 1] mean (+-1 - offset) / scale in the units of their columns; nobody knows without scale."""
        known = all(item.scale is not None and item.transform is None for item in self.action)
        scaled = [(item.scale or 1.0, item.offset) for item in self.action]
        return IOSpec(
            obs={"state": ((len(self.state),), "float32")},
            action_names=tuple(item.label for item in self.action),
            action_low=tuple((-1.0 - offset) / scale if known else None for scale, offset in scaled),
            action_high=tuple((1.0 - offset) / scale if known else None for scale, offset in scaled),
            action_units=tuple(item.unit for item in self.action),
            control_hz=self.control_hz or 20.0,
            obs_names=tuple(item.label for item in self.state),
        )


def read(path: str | os.PathLike[str], options: ReadOptions = AS_IT_IS) -> Logs:
    """Read a CSV file (plain or .gz), or every one below a folder, each as one episode.

    Args:
        path: file or folder.
        options: `map` is the column map: a YAML file, one of the maps that come with the package by name (such as
            "double_pendulum"), or a mapping.

    Raises:
        FileNotFoundError: there is nothing.
        BadData: no map, a column is missing, a value is no number.
    """
    path = Path(path)
    files = sorted([*path.rglob("*.csv"), *path.rglob("*.csv.gz")]) if path.is_dir() else [path]
    if not files:
        raise refusal("no_rows", f"{path} holds no .csv or .csv.gz")
    for file in files:
        sources.check_file(foreign.inside(path, file.relative_to(path)) if path.is_dir() else file)
    if options.map is None:
        header = ", ".join(foreign.csv(files[0])[0])
        repair = f"give map=<file.yaml> that names state and action columns; maps of the package: {_list_known()}"
        raise refusal("no_map", f"{path} has the columns {header}, but nothing says what they are", repair)
    plan = read_map(options.map, TableMap, f"a YAML file or one of {_list_known()}", MAPS)
    bare, changes = plan.model_dump(exclude={"variants"}, exclude_none=True), plan.variants.items()
    variants = {name: check_map(f"variant {name} of the map", bare | change, TableMap) for name, change in changes}
    plans = [next((other for name, other in variants.items() if name in file.parts), plan) for file in files]
    first, io = plans[0], plans[0].io
    for file, other in zip(files, (one.io for one in plans)):
        if (other.control_hz, other.action_low, other.action_high) != (io.control_hz, io.action_low, io.action_high):
            message = f"{files[0]} and {file} have another rate, or other actions, by the variants of the map"
            raise refusal("map", message, "convert them into separate stores")
    findings: list[Finding] = []
    episodes: list[Episode] = []
    periods: list[tuple[float, float, str]] = []
    for file, one in zip(files, plans):
        made = _episode(file, one, findings, periods)
        if made is not None:
            episodes.append(made)
    if periods:
        findings.append(_report_resampled(periods, io.control_hz))
    stop_on_errors(findings)
    if not episodes:
        raise BadData([*findings, error("no_rows", f"{path} has no row of data")])
    if first.time and not first.control_hz:  # the rows are kept, and tell the rate themselves
        period = np.median(np.concatenate([np.diff(e.stamp) for e in episodes]))
        io = replace(io, control_hz=round(1.0 / float(period), 6))
    return Logs(episodes, findings, io, {"path": str(path), "format": "csv"})


def evaluate(expression: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Value of an `Expression` of columns and pi, (N,) float64.

    Raises:
        BadData: it is none, or an unknown name.
    """
    known = {
        **{name: np.asarray(value, np.float64)[:, None] for name, value in columns.items()},
        "pi": np.full((1, 1), np.pi),
    }
    try:
        return Expression(expression, dict.fromkeys(known, 1))(known)
    except ValueError as problem:
        repair = f"correct the map: Python's + - * / ** and comparisons of {', '.join(known)}"
        raise refusal("map", f"the map's expression '{expression}': {problem}", repair) from problem


def hold(stamp: np.ndarray, value: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Last value at or before each time `at` (to a microsecond: stamps are rounded); the first before the first."""
    return value[np.maximum(np.searchsorted(stamp, at + 1e-6, "right") - 1, 0)]


def even_times(begin: float, end: float, hz: float) -> np.ndarray:
    """(n,) seconds from `begin` to `end`, which may be seconds since 1970: `np.arange` rounds their distance."""
    return begin + np.arange(int((end - begin) * hz + 1e-3) + 1) / hz


def interpolate(stamp: np.ndarray, value: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Linear between samples, (len(at), ...); constant outside."""
    flat = value.reshape(len(value), -1)
    return np.stack([np.interp(at, stamp, column) for column in flat.T], 1).reshape(len(at), *value.shape[1:])


def _list_known() -> str:
    return ", ".join(sorted(p.stem for p in MAPS.glob("*.yaml"))) or "none"


def _load(path: Path, findings: list[Finding]) -> dict[str, np.ndarray] | None:
    names, rows, words = foreign.csv(path)
    if words and not any(found.case == "words" for found in findings):  # once, however many files a folder holds
        findings.append(note("words", f"{path} has columns of words, which are left out: {', '.join(words)}"))
    if not rows.size:
        findings.append(warning("no_rows", f"{path} has no rows: left out", where=path.name))
        return None
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise ValueError(f"it has several columns called {', '.join(twice)}; give each a name of its own")
    if rows.shape[1] != len(names):
        raise ValueError(f"it has {rows.shape[1]} columns of data, but {len(names)} names")
    return dict(zip(names, rows.T))


def _report_resampled(periods: list[tuple[float, float, str]], hz: float) -> Finding:
    """One line about the sampling of all files: usual periods, the largest gap."""
    low, high = min(p[0] for p in periods) * 1e3, max(p[0] for p in periods) * 1e3
    gap, file = max((p[1], p[2]) for p in periods)
    slow = sum(p[0] > 1.5 / hz for p in periods)
    text = f"{len(periods)} files with rows every {low:.3g} to {high:.3g} ms (largest gap {gap * 1e3:.3g} ms in {file})"
    text += f", resampled to {hz:g} Hz"
    if slow:
        text += f"; {slow} of them are slower than that: states between their rows are interpolated"
    return note("resampled", text, count=len(periods))


def _episode(
    path: Path, plan: TableMap, findings: list[Finding], periods: list[tuple[float, float, str]]
) -> Episode | None:
    try:
        columns = _load(path, findings)
    except BadData:
        raise
    except (OSError, EOFError, ValueError) as problem:
        findings.append(error("bad_csv", f"{path} cannot be read: {problem}", sources.AGAIN, where=path.name))
        return None
    if columns is None:
        return None
    commands = {item.column for item in plan.action} | set(plan.info.values())
    wanted = [*(item.column for item in plan.state), *sorted(commands), *([plan.time] if plan.time else [])]
    missing = [name for name in dict.fromkeys(wanted) if name not in columns]
    for name in missing:
        findings.extend(sources.missing_key(path, name, columns).findings)
    if missing:
        return None
    hz = plan.control_hz
    stamp = columns[plan.time] if plan.time else np.arange(len(next(iter(columns.values())))) / (hz or 1.0)
    backwards = np.flatnonzero(np.diff(stamp) <= 0)
    if len(backwards):
        message = f"{path}: {len(backwards)} rows whose time does not increase, first row {backwards[0]}: left out"
        findings.append(warning("stamps_backwards", message, count=len(backwards), where=f"row {backwards[0]}"))
        keep = stamp > np.maximum.accumulate(np.concatenate(([-np.inf], stamp[:-1])))
        stamp, columns = stamp[keep], {name: value[keep] for name, value in columns.items()}
    if hz and len(stamp) > 1:
        periods.append((float(np.median(np.diff(stamp))), float(np.diff(stamp).max()), path.name))
        foreign.room(path, int(8 * len(columns) * (stamp[-1] - stamp[0]) * hz), "its rows at this rate")
        grid = even_times(stamp[0], stamp[-1], hz)
        columns = {
            name: hold(stamp, value, grid) if name in commands else interpolate(stamp, value, grid)
            for name, value in columns.items()
        }
        stamp = grid
    if len(stamp) < 2:
        findings.append(warning("short_episode", f"{path} has fewer than two rows: left out", where=path.name))
        return None
    state = np.stack([item.take(columns) for item in plan.state], 1).astype(np.float32)
    action = np.stack([item.take(columns) for item in plan.action], 1).astype(np.float32)[:-1]
    # expressions see the columns and, as action0, action1 ..., the scaled actions
    values = {**columns, **{f"action{i}": np.append(a, a[-1]) for i, a in enumerate(action.T.astype(np.float64))}}
    reward = np.zeros(len(action), np.float32)
    if plan.reward:
        reward = evaluate(plan.reward, values)[:-1].astype(np.float32)
    length = float(stamp[-1] - stamp[0])
    complete = length >= plan.complete_s
    meta: dict[str, Any] = {"source": "/".join(path.parts[-3:]), "seconds": round(length, 4)}
    if not complete:
        meta["cut"] = True
    if plan.success:
        good = evaluate(plan.success, values).astype(bool)
        held = stamp >= stamp[-1] - plan.success_hold_s
        meta["success"] = bool(complete and good[held].all())
    if plan.info:
        meta["columns"] = {name: columns[key][:-1].astype(np.float32) for name, key in plan.info.items()}
    return episode_from_columns({"state": state}, action, reward, stamp=stamp, meta=meta)
