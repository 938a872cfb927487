"""Repairs of episodes, each only on request, each counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from robot_rl.data import checks
from robot_rl.data.actions import settle
from robot_rl.data.episode import Logs, split
from robot_rl.data.findings import BadData, Finding, error, warning
from robot_rl.types import Episode, Options
from robot_rl.types.options import Bound


class Repairs(Options):
    """What a conversion may do to the data."""

    action: Literal["clip", "rescale", "keep", "normalised"] | None = None
    """What is done to actions, see `actions.settle`; normalised: -1 and +1 are the bounds of the robot
    (docs/data.md)."""
    action_low: Bound | None = None
    """Lower bound of the actions where the log does not tell, or tells wrong: a number or a list."""
    action_high: Bound | None = None
    """Upper bound."""
    drop_bad_episodes: bool = False
    """Leave out episodes with NaN or infinity."""
    dedupe: bool = False
    """Keep one of several equal episodes."""
    trust_terminals: bool = False
    """Keep terminals at the time limit as true ends."""
    split_gaps: bool = False
    """Cut episodes where time stamps run backwards, repeat, or jump by more than 2.5 periods."""


def apply(logs: Logs, repairs: Repairs) -> tuple[Logs, list[Finding]]:
    """The repaired log, and what was done to it.

    Raises:
        BadData: no episode is left.
    """
    done: list[Finding] = []
    episodes = list(logs.episodes)
    if repairs.drop_bad_episodes:
        bad = set(checks.bad_episodes(episodes))
        if bad:
            episodes = [e for i, e in enumerate(episodes) if i not in bad]
            message = f"{len(bad)} episodes with values that are not finite left out, first episode {min(bad)}"
            done.append(warning("dropped", message, count=len(bad)))
    if repairs.dedupe:
        first: dict[bytes, Episode] = {}
        for episode in episodes:
            first.setdefault(checks.fingerprint(episode), episode)
        kept = list(first.values())
        if len(kept) < len(episodes):
            count = len(episodes) - len(kept)
            done.append(warning("deduped", f"{count} copies of episodes left out", count=count))
        episodes = kept
    if not episodes:
        raise BadData([*done, error("nothing_left", "no episode is left after the repairs")])
    if not repairs.trust_terminals and not logs.meta.get("shuffled"):
        episodes, more = _drop_untrusted(episodes, str(logs.meta.get("name", "")))
        done += more
    if repairs.split_gaps:
        episodes, more = _split_gaps(episodes)
        done += more
        if not episodes:
            raise BadData([*done, error("nothing_left", "no time stamp runs on, so split_gaps=true leaves no step")])
    episodes, more = _images(episodes)
    done += more
    how = {"action": repairs.action, "low": repairs.action_low, "high": repairs.action_high}
    logs, more = settle(replace(logs, episodes=episodes), **how)
    done += more
    episodes, io = logs.episodes, logs.io
    if episodes[0].obs.keys() == io.obs.keys():
        obs = {key: (tuple(v.shape[1:]), str(v.dtype)) for key, v in episodes[0].obs.items()}
        io = replace(io, obs=obs)
    return replace(logs, io=io), done


def _drop_untrusted(episodes: list[Episode], name: str) -> tuple[list[Episode], list[Finding]]:
    if not checks.timeout_as_terminal(episodes, name):
        return episodes, []
    limit = max(len(e) for e in episodes if e.terminated)
    at_limit = [e.terminated and len(e) == limit for e in episodes]
    count, cut = sum(at_limit), {"terminated": False, "truncated": True}
    changed = [replace(e, **cut) if here else e for e, here in zip(episodes, at_limit)]
    message = (
        f"{count} of {len(episodes)} episodes end by terminal at the time limit; treated as truncated "
        "(robot-rl data convert ... trust_terminals=true keeps them)"
    )
    return changed, [warning("timeout_as_terminal", message, count=count)]


def _split_gaps(episodes: list[Episode]) -> tuple[list[Episode], list[Finding]]:
    pieces: list[Episode] = []
    cuts = lost = 0
    for episode in episodes:
        period = np.diff(episode.stamp)
        broken = set(np.union1d(checks.gaps(episode.stamp), np.flatnonzero(period <= 0)).tolist())
        # The step that ends beyond the gap leads nowhere known: it is left out, and the piece before it is cut.
        cuts += len(broken)
        edges = sorted({0, len(episode), *broken, *(t + 1 for t in broken)})
        parts = split(episode, edges[1:-1]) if len(edges) > 2 else [episode]
        for begin, part in zip(edges, parts):
            if begin in broken:
                lost += 1
            else:
                last = begin + len(part) == len(episode)
                pieces.append(part if last else replace(part, truncated=True, meta={**part.meta, "cut": True}))
    if not cuts:
        return episodes, []
    message = f"episodes cut at {cuts} places where time stamps do not run on; {lost} steps across them left out"
    return pieces, [warning("split_gaps", message, count=cuts)]


def _images(episodes: list[Episode]) -> tuple[list[Episode], list[Finding]]:
    done = []
    for key, value in episodes[0].obs.items():
        if value.ndim != 4:
            continue
        layout = checks.image_layout(value.shape[1:])
        turn = layout == "chw"
        if value.dtype == np.uint8 and not turn:
            continue
        low, top = checks.image_range(episodes, key)
        if layout is None or not (low >= 0.0 and top <= 255.0):
            continue  # nobody can tell what was meant: the check stops the conversion
        scale = 255.0 if value.dtype.kind == "f" and top <= 1.0 else 1.0

        def mend(frames: np.ndarray, turn: bool = turn, scale: float = scale) -> np.ndarray:
            frames = frames.transpose(0, 2, 3, 1) if turn else frames
            return frames if frames.dtype == np.uint8 else np.rint(frames * scale).clip(0, 255).astype(np.uint8)

        episodes = [replace(e, obs={**e.obs, key: mend(e.obs[key])}) for e in episodes]
        what = ["transposed to (H, W, C)"] * turn + [f"stored as uint8 (x {scale:g})"] * (value.dtype != np.uint8)
        count = sum(len(e) + 1 for e in episodes)
        done.append(warning("images", f"{count} images '{key}' {' and '.join(what)}", count=count))
    return episodes, done
