"""The actions of a log on one scale, [-1, 1], and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from robot_rl.data import scores
from robot_rl.data.bounds import (
    DENSITIES,
    HOW,
    NORMALISED,
    ActionBounds,
    Scale,
    bounds_of_io,
    meaning,
    one_unit,
    read_stated,
)
from robot_rl.data.episode import Logs
from robot_rl.data.findings import Finding, note, warning
from robot_rl.types import Episode


def settle(
    logs: Logs, *, action: str | None = None, low: object = None, high: object = None
) -> tuple[Logs, list[Finding]]:
    """A log whose actions mean what its interface says: in [-1, 1] where the range is known.

    Args:
        logs: as a reader made them.
        action: "clip" to the range (to [-1, 1] where none is known); "rescale": from the range (where none is known,
            from the smallest and largest value of each component) to [-1, 1]; "keep": numbers stay, in physical units
            where the log declares a range; "normalised": they are in [-1, 1] already; None: scaled from a known range.
        low: physical bounds that a person gives, a number or a list.
        high: likewise.

    Raises:
        ValueError: `low` and `high` are no range.
    """
    said = NORMALISED if action == NORMALISED else None
    known = read_stated(_find_bounds(logs), logs.io.action_dim, action=said, low=low, high=high)
    done: list[Finding] = []
    if action == "rescale" and (known is None or not (known.normalised or known.low)):
        known, done = _own_range(logs.episodes)
    if action == "keep" and known is not None and not known.normalised:
        # as they are: the number 1 is one unit, as whoever keeps them says
        low, high = one_unit(logs.io.action_dim)
        known = replace(known, low=low, high=high, stated=True)
    io, scale = meaning(logs.io, known)
    episodes = logs.episodes
    if scale.changes and known is not None and known.low and known.high:
        episodes = [_scale(e, scale) for e in episodes]
        if not done:
            who = "given" if known.stated else "declared"
            text = f"actions scaled from their {who} range, {min(known.low):.4g} to {max(known.high):.4g}, to [-1, 1]"
            done.append(note("action_scale", text))
    if action in ("clip", "rescale"):
        episodes, more = _clip(episodes)
        done += more
    if known is not None and known.low is not None:
        known = replace(known, normalised=True)
    return replace(logs, episodes=episodes, io=io, bounds=known), done


def find_unknown_bounds(logs: Logs) -> list[Finding]:
    """A finding where nobody can tell what the actions of a log mean."""
    if logs.bounds is not None:
        return []
    message = "nothing says what the actions mean: their range is unknown, and will be asked for where it matters"
    return [Finding("note", "action_unknown", message, repair=HOW)]


def _find_bounds(logs: Logs) -> ActionBounds | None:
    """What the file says, or what everybody knows of a data set of that name and size: D4RL's are in [-1, 1]."""
    found = logs.bounds if logs.bounds is not None else bounds_of_io(logs.io)
    if found is not None or not logs.episodes:
        return found
    state = logs.episodes[0].obs.get("state")
    wanted = scores.sizes(str(logs.meta.get("name") or "-"))
    here = None if state is None or state.ndim != 2 else (state.shape[1], logs.io.action_dim)
    return ActionBounds(None, None, None, normalised=True) if wanted is not None and wanted == here else None


def _own_range(episodes: list[Episode]) -> tuple[ActionBounds, list[Finding]]:
    low = np.min([e.action.min(0) for e in episodes if len(e)], 0).astype(np.float64)
    high = np.max([e.action.max(0) for e in episodes if len(e)], 0).astype(np.float64)
    still = high - low < 1e-9
    low, high = np.where(still, low - 1.0, low), np.where(still, high + 1.0, high)
    message = (
        f"actions rescaled from their range in the data, {low.min():.4g} to {high.max():.4g}, to [-1, 1]: they are "
        "taken to be in the robot's units"
    )
    bounds = ActionBounds(tuple(low.tolist()), tuple(high.tolist()), stated=True)
    return bounds, [warning("action_rescale", message)]


def _scale(episode: Episode, scale: Scale) -> Episode:
    columns = episode.meta.get("columns", {})
    less = {name: columns[name] - np.float32(scale.log_volume) for name in DENSITIES if name in columns}
    meta = {**episode.meta, "columns": {**columns, **less}} if less else episode.meta
    action, proposed = (np.asarray(x, np.float32) for x in (episode.action, episode.proposed))
    return replace(episode, action=scale(action), proposed=scale(proposed), meta=meta)


def _clip(episodes: list[Episode]) -> tuple[list[Episode], list[Finding]]:
    count = sum(int((np.abs(e.action) > 1.0 + 1e-6).sum()) for e in episodes)
    if not count:
        return episodes, []
    episodes = [replace(e, action=e.action.clip(-1.0, 1.0), proposed=e.proposed.clip(-1.0, 1.0)) for e in episodes]
    return episodes, [warning("action_clip", f"{count} action components clipped to [-1, 1]", count=count)]
