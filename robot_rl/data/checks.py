"""What looks wrong in episodes of any origin. Nothing here changes anything; see `repairs` for what mends it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from robot_rl.data import scores, sources
from robot_rl.data.episode import Logs
from robot_rl.data.findings import Finding, error, warning
from robot_rl.types import Episode

GAP = 2.5
"""Periods without a row after which a recording counts as interrupted."""


def check(logs: Logs, *, batch: int = 256, limit: int | None = None) -> list[Finding]:
    """Everything that looks wrong with a log's numbers.

    Args:
        logs: the data.
        batch: rows per training batch; a smaller data set is warned of.
        limit: steps after which the task ends an episode; that of the named data set, else the longest, when None.
    """
    episodes, name = logs.episodes, str(logs.meta.get("name", ""))
    known = {item.case for item in logs.findings}
    found = [*not_finite(episodes), *_sizes(logs, name)]
    label = name.split("-")[0].capitalize() if scores.episode_limit(name or "-") else ""
    declared = logs.bounds is not None and logs.bounds.low is not None
    found += sources.saturation(np.concatenate([e.action for e in episodes]), label, declared=declared)
    found += [*_stamps(episodes), *_images(episodes), *_copies(episodes)]
    length = np.array([len(e) for e in episodes])
    if not logs.meta.get("shuffled"):
        found += timeout_as_terminal(episodes, name, limit)
        if (length <= 1).any():
            count, first = int((length <= 1).sum()), int(np.argmax(length <= 1))
            message = f"{count} episodes have one step or none, first episode {first}"
            found.append(warning("short_episode", message, "sequence methods leave them out", count=count))
    if length.sum() < batch:
        message = f"the data has {length.sum()} steps, fewer than a batch of {batch}"
        found.append(warning("small", message, "the batch is reduced, or rows repeat"))
    if "no_reward" not in known:
        found += _rewards(episodes)
    found += _constant(episodes)
    return found


def timeout_as_terminal(episodes: list[Episode], name: str, limit: int | None = None) -> list[Finding]:
    """Episodes that end by a terminal exactly at the time limit, where the task's own rule does not end them."""
    length = np.array([len(e) for e in episodes])
    if len(episodes) < 2 or length.max(initial=0) <= 1 or name.startswith(("antmaze", "maze2d")):
        return []
    limit = limit or scores.episode_limit(name or "-") or int(length.max())
    at_limit = [i for i, e in enumerate(episodes) if e.terminated and len(e) == limit]
    if len(at_limit) < 0.9 * len(episodes):
        return []
    last = [episodes[i] for i in at_limit]
    if all("state" in e.obs and e.meta.get("final_obs_valid", True) for e in last):
        ends = scores.terminates(name or "-", np.stack([e.obs["state"][-1] for e in last]))
        if ends is not None:
            at_limit = [i for i, really in zip(at_limit, ends) if not really]
    if len(at_limit) < 0.9 * len(episodes):
        return []
    message = (
        f"{len(at_limit)} of {len(episodes)} episodes end by a terminal at {limit} steps: probably a time limit, "
        "stored as a true end"
    )
    repair, where = "convert treats them as truncated (trust_terminals=true keeps them)", f"episode {at_limit[0]}"
    return [warning("timeout_as_terminal", message, repair, count=len(at_limit), where=where)]


def bad_episodes(episodes: Iterable[Episode]) -> list[int]:
    """Indices of the episodes with a value that is not finite."""
    return [
        i
        for i, e in enumerate(episodes)
        if not all(np.isfinite(v).all() for v in (e.action, e.reward, *e.obs.values()) if v.dtype.kind == "f")
    ]


def fingerprint(episode: Episode) -> bytes:
    """Equal for episodes with equal observations, actions and rewards."""
    total = hashlib.blake2b(digest_size=16)
    for value in (episode.action, episode.reward, *episode.obs.values()):
        total.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return total.digest()


def gaps(stamp: np.ndarray) -> np.ndarray:
    """Steps t after which more than `GAP` usual periods pass."""
    period = np.diff(stamp)
    usual = np.median(period[period > 0]) if (period > 0).any() else 0.0
    return np.flatnonzero(period > GAP * usual) if usual > 0 else np.zeros(0, np.int64)


def not_finite(episodes: list[Episode]) -> list[Finding]:
    """An error about NaN and infinity, with the first five places; none where all is finite."""
    count, places = 0, []
    for i, episode in enumerate(episodes):
        values = {"action": episode.action, "reward": episode.reward, **episode.obs}
        for name, value in values.items():
            if value.dtype.kind != "f" or np.isfinite(value).all():
                continue
            bad = np.argwhere(~np.isfinite(value))
            count += len(bad)
            for place in bad[: max(0, 5 - len(places))]:
                inside = ", ".join(str(int(x)) for x in place[1:])
                places.append(f"'{name}' episode {i} step {place[0]}" + (f" component {inside}" if inside else ""))
    if not count:
        return []
    more = " ..." if count > 5 else ""
    message = f"{count} values are not finite: {'; '.join(places)}{more}"
    repair = "drop those episodes (drop_bad_episodes=true) or repair the source"
    return [error("not_finite", message, repair, count=count, where=places[0])]


def _sizes(logs: Logs, name: str) -> list[Finding]:
    wanted = scores.sizes(name or "-")
    state = logs.episodes[0].obs.get("state")
    if wanted is None or state is None or state.ndim != 2:
        return []
    have = (state.shape[1], logs.episodes[0].action.shape[1])
    if have == wanted:
        return []
    message = (
        f"observations and actions have {have[0]} and {have[1]} components, {name} has {wanted[0]} and {wanted[1]}"
    )
    return [error("dimensions", message, "name the data set that it is (name=...), or check how it was recorded")]


def _stamps(episodes: list[Episode]) -> list[Finding]:
    places: dict[str, list[str]] = {"stamps_backwards": [], "stamps_twice": [], "stamps_gap": []}
    largest = 0.0
    for i, episode in enumerate(episodes):
        period, wide = np.diff(episode.stamp), gaps(episode.stamp)
        largest = max(largest, float(period[wide].max(initial=0.0)))
        for case, steps in zip(places, (np.flatnonzero(period < 0), np.flatnonzero(period == 0), wide)):
            places[case] += [f"episode {i} step {t}" for t in steps]
    said = {
        "stamps_backwards": "time stamps run backwards (a stamp does not increase)",
        "stamps_twice": "time stamps are duplicated (a stamp does not increase)",
        "stamps_gap": f"gaps of more than {GAP:g} periods between rows, largest {largest:.3g} s",
    }
    return [
        warning(
            case, f"{len(at)} {said[case]}, first {at[0]}", "split_gaps=true cuts there", count=len(at), where=at[0]
        )
        for case, at in places.items()
        if at
    ]


def _images(episodes: list[Episode]) -> list[Finding]:
    found, steps = [], sum(len(e) + 1 for e in episodes)
    for key, value in episodes[0].obs.items():
        if value.ndim != 4:
            continue
        shape = value.shape[1:]
        layout = image_layout(shape)
        if layout is None:
            message = f"images '{key}' have shape {list(shape)}: channels cannot be told from rows"
            found.append(error("image_layout", message, "write them as (H, W, 3)"))
        elif layout == "chw":
            message = f"images '{key}' have shape {list(shape)}: channels first"
            found.append(warning("image_layout", message, "convert transposes them to (H, W, C)", count=steps))
        if value.dtype == np.uint8:
            continue
        low, high = image_range(episodes, key)
        size = steps * int(np.prod(shape)) * value.dtype.itemsize / 1e9
        facts = f"images '{key}' are {value.dtype} in [{low:.3g}, {high:.3g}]"
        if value.dtype == np.float64:
            facts += f" ({size:.2g} GB as they are, {size / 8:.2g} GB as uint8)"
        if value.dtype.kind == "f" and low >= 0.0 and high <= 1.0:
            found.append(warning("image_range", facts, "convert takes them as fractions: x 255, rounded", count=steps))
        elif low >= 0.0 and high <= 255.0:
            found.append(warning("image_range", facts, "convert rounds them to uint8", count=steps))
        else:
            found.append(error("image_range", facts + ": neither [0, 1] nor [0, 255]", "write them as uint8"))
    return found


def image_layout(shape: tuple[int, ...]) -> str | None:
    """ "hwc", "chw", or None where both are possible or neither."""
    last, first = shape[-1] in (1, 3, 4), shape[0] in (1, 3, 4)
    return None if last == first else "hwc" if last else "chw"


def image_range(episodes: list[Episode], key: str) -> tuple[float, float]:
    """Smallest and largest value of these observations."""
    return min(float(e.obs[key].min()) for e in episodes), max(float(e.obs[key].max()) for e in episodes)


def _copies(episodes: list[Episode]) -> list[Finding]:
    seen: dict[bytes, int] = {}
    doubled, first = 0, ""
    for i, episode in enumerate(episodes):
        before = seen.setdefault(fingerprint(episode), i)
        if before != i:
            doubled += 1
            first = first or f"episode {i} repeats episode {before}"
    if not doubled:
        return []
    message = f"{doubled} episodes are exact copies of others, first: {first}"
    return [warning("duplicates", message, "dedupe=true keeps one of each", count=doubled, where=first)]


def _rewards(episodes: list[Episode]) -> list[Finding]:
    reward = np.concatenate([e.reward for e in episodes])
    low, high = (float(np.nanmin(reward)), float(np.nanmax(reward))) if len(reward) else (0.0, 0.0)
    if low != high:
        return []
    message = "the reward is " + ("zero everywhere" if low == 0.0 else f"constant ({low:.4g})")
    return [warning("constant_reward", message, "only cloning can learn from it; check what was logged")]


def _constant(episodes: list[Episode]) -> list[Finding]:
    found = []
    columns = {key: [e.obs[key] for e in episodes] for key, v in episodes[0].obs.items() if v.ndim == 2}
    columns["action"] = [e.action for e in episodes]
    for key, values in columns.items():
        values = [v for v in values if len(v) and v.dtype.kind == "f"]
        if not values:
            continue
        low, high = np.min([v.min(0) for v in values], 0), np.max([v.max(0) for v in values], 0)
        still = np.flatnonzero(high - low < 1e-6)
        if len(still):
            message = f"'{key}' components that never change: {still.tolist()}"
            found.append(warning("constant", message, "they pass normalisation unscaled", count=len(still)))
    return found
