"""A log by any name as a store, and the sampler and facts that a learner gets of it."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from robot_rl.atomic import READ_ONLY
from robot_rl.data.bounds import (
    NORMALISED,
    STATED,
    bounds_of_io,
    identity_scale,
    meaning,
    read_stated,
    scale_between,
)
from robot_rl.data.convert import convert_once, is_converted
from robot_rl.data.features import Reader, cache_path, features, moments
from robot_rl.data.findings import BadData
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import Store, open_store
from robot_rl.data.store_read import META
from robot_rl.data.units import agree, describe_span
from robot_rl.types import IOSpec, LogFacts, Needs
from robot_rl.types.options import Discount, Mixing, Number
from robot_rl.verbs.options import ActionMeaning
from robot_rl.words import Refused

FEATURES = "features"
_EDGE = 1e-5
ROWS = Needs()
"""Transitions and nothing besides."""


class LogSettings(ActionMeaning):
    """How a log is read."""

    data: str
    """A store, or a file or folder in any format that `robot-rl data info` reads."""
    gamma: Discount = 0.99
    """Discount per control step."""
    reward: Literal["none", "minus_one", "scale_bias", "return_range"] = "none"
    """How rewards are changed: not, minus_one (r - 1: AntMaze), scale_bias (scale r + bias), or return_range (1000 r
    over the largest minus the smallest return of complete episodes: locomotion)."""
    reward_scale: Number = 1.0
    """Of reward=scale_bias."""
    reward_bias: Number = 0.0
    """Of reward=scale_bias."""
    top_fraction: Mixing = 1.0
    """Share of the best episodes that is kept (%BC)."""
    top_unit: Literal["episodes", "steps"] = "episodes"
    """What `top_fraction` counts."""
    action_clip: bool = False
    """Clip logged actions to [-1, 1] instead of refusing those outside."""


def read_log(settings: LogSettings, path: str | None = None) -> Store:
    """The log that settings name, or another one, with what they say of its actions.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it cannot be read, or the bounds are none; says why.
    """
    s = settings
    return apply_meaning(
        open_log(s.data if path is None else path), action=s.action, low=s.action_low, high=s.action_high
    )


def apply_meaning(store: Store, *, action: str | None = None, low: object = None, high: object = None) -> Store:
    """A store with what a person says of its actions; the same one where nothing is said."""
    if action is None and low is None and high is None:
        return store
    bounds = read_stated(
        bounds_of_io(store.io, store.meta.get("action")), store.io.action_dim, action=action, low=low, high=high
    )
    assert bounds is not None
    io, scale = meaning(store.io, bounds)
    return store.rescale(scale, io, bounds.statement)


@cache
def _say_once(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def open_log(path: str | Path) -> Store:
    """Open a store, or convert another format once: the store lies beside the source, with ".store" for its suffix.

    Where the source's folder cannot be written, the store goes to runs/stores. Actions are scaled to [-1, 1] where the
    log declares their range, which the store keeps.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: it cannot be read; says why.
    """
    path = Path(path)
    if (path / META).is_file():
        return open_store(path)
    out = path.with_suffix(".store") if path.is_file() else path.with_name(path.name + ".store")
    try:
        store = convert_once(path, out)
        if is_converted(store):
            _say_once(
                f"{path}: read from {out}, which robot-rl data convert made of it"
                + "".join(f"; {line}" for line in store.report[:4])
            )
        return store
    except OSError as problem:
        if problem.errno not in READ_ONLY:
            raise
        mark = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
        return convert_once(path, Path("runs/stores") / f"{path.stem}-{mark}.store")
    except BadData as problem:
        if not any("=" in found.repair for found in problem.findings):
            raise
        raise Refused(
            f"{str(problem).rstrip('.')}. That is said once, when the log is converted: robot-rl data convert {path} "
            f"out={out} …, and then {out} is the log to name here"
        ) from problem


def sampler(
    store: Store,
    settings: LogSettings,
    *,
    seed: int,
    need: Needs = ROWS,
    reader: Reader | None = None,
) -> tuple[LogDataset, list[str]]:
    """The data set that a learner draws from, and what was assumed, repaired or left out.

    Args:
        store: the log.
        settings: how it is read.
        seed: of the sampling.
        need: what the learner asks of it: `seeds` independent streams in one batch, `window` steps per sample, `keys`,
            `extras` besides transitions, and how "return_to_go" is made. Its column `progress`, after each step, is the
            observation "progress" (M, 1) of a batch, 0 at the start of every episode.
        reader: frozen; its answers become the observation "features" of every batch, computed once and kept on disk.

    Raises:
        ValueError: an option out of range, or actions outside [-1, 1] without `action_clip`.
    """
    s = settings
    scale: float | str = {"scale_bias": s.reward_scale, "return_range": "return_range"}.get(s.reward, 1.0)
    bias = {"scale_bias": s.reward_bias, "minus_one": -1.0}.get(s.reward, 0.0)
    notes = [*store.report]
    share, worst = _outside(store)
    if worst > 1.0 + _EDGE:
        text = f"{share:.1%} of the action components lie outside [-1, 1], worst {worst:.3g}"
        if not s.action_clip:
            raise ValueError(
                f"{text}; add action_clip=true if the robot clipped them anyway, or say what they mean with "
                "action_low=… action_high=…"
            )
        notes.append(f"{text}: clipped")
    episodes = None
    if s.top_fraction < 1.0:
        episodes = store.top_episodes(s.top_fraction, unit=s.top_unit)
        notes.append(f"{len(episodes)} of {len(store)} episodes kept (top_fraction={s.top_fraction:g} of {s.top_unit})")
    data = LogDataset(
        store,
        LogView(
            gamma=s.gamma,
            window=need.window,
            next_action="next_action" in need.extras,
            return_to_go="return_to_go" in need.extras,
            return_gamma=need.return_gamma,
            return_bootstrap=need.return_bootstrap,
            extras=tuple(name for name in need.extras if name not in ("next_action", "return_to_go")),
            reward_scale=scale,
            reward_bias=bias,
            action_clip=1.0 if s.action_clip else None,
        ),
        seed=seed,
        seeds=need.seeds,
        episodes=episodes,
        keys=need.keys,
        derived={
            **({} if reader is None else {FEATURES: features(store, reader)}),
            **({} if need.progress is None else {"progress": _progress(store, need.progress)}),
        },
    )
    if reader is not None:
        notes.append(f"{reader.width} features of each observation, read once and kept in {cache_path(store, reader)}")
    low, high = data.reward_range()
    if low == high:
        notes.append(f"every reward is {low:g}: only when an episode ends can tell good from bad")
    return data, [*notes, *data.notes]


def _progress(store: Store, name: str) -> np.ndarray:
    """(M, 1) float32: a column of steps as one of observations."""
    if f"info/{name}" not in store.names:
        raise ValueError(
            f"{store.path} has no column '{name}' of progress, its columns are {', '.join(store.names)}: write it with "
            "robot-rl critic label"
        )
    rows = np.zeros((int((store.length + 1).sum()), 1), np.float32)
    first = np.repeat(store.start_obs - store.start_step, store.length)
    rows[np.arange(store.steps) + first + 1, 0] = store.column(f"info/{name}")
    return rows


def check_rewards(data: LogDataset) -> None:
    """Refuse value learning where nothing could be learnt.

    Raises:
        ValueError: every reward is 0, or every one is the same and no episode ends by itself.
    """
    low, high = data.reward_range()
    if low == high and (low == 0.0 or not data.store.column("terminal").any()):
        raise ValueError(
            f"every reward of the log is {low:g}, so there is no value to learn: say where the reward comes from when "
            "converting it (robot-rl data convert … reward=column or reward=success_at_end), or clone the log with "
            "policy=offline/bc"
        )


def facts(data: LogDataset) -> LogFacts:
    """What `learner.prepare` gets."""
    mean, std = data.moments("state")
    low, high = data.reward_range()
    returns = data.store.returns()[data.episodes] * data.reward_scale
    returns = returns + data.reward_bias * data.store.length[data.episodes]
    ends = float(returns.min()), float(returns.max())
    made = {key: moments(rows) for key, rows in data.derived.items()}
    return LogFacts(mean, std, low, high, data.gamma, data.horizon, *ends, data.reward_scale, data.reward_bias, made)


def fit(store: Store, env: IOSpec) -> tuple[Store, list[str]]:
    """A log with its actions as an environment, or the policy that is judged, takes them, and what was done to them.

    Raises:
        ValueError: they do not fit, or nobody knows what the actions mean; see `agree`.
    """
    meant = agree(store.io, env, store.meta.get("action"))
    if meant is env:
        return store.rescale(identity_scale(env.action_dim), env, NORMALISED), []
    scale = scale_between(meant, env)
    return store.rescale(scale, env, STATED), [
        f"actions from {describe_span(meant)} in the log, scaled to the environment's, from {describe_span(env)}"
    ]


def _outside(store: Store) -> tuple[float, float]:
    """Share of the action components beyond 1, and the largest size; read in pieces."""
    action, beyond, worst = store.column("action"), 0, 0.0
    for begin in range(0, len(action), 1 << 20):
        part = np.abs(action[begin : begin + (1 << 20)])
        beyond, worst = beyond + int((part > 1.0).sum()), max(worst, float(part.max()))
    return beyond / max(action.size, 1), worst
