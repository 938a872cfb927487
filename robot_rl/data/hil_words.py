"""What people said about recorded episodes after their end, and the episodes as they count since then."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.hil_episode import EpisodeRules, relabel, to_episode, to_steps
from robot_rl.data.hil_record import COLUMNS, EndReason, Key, RewardSource
from robot_rl.types import Episode

CORRECTIONS = "corrections.jsonl"


def episode_key(facts: Mapping[str, Any]) -> Key:
    """Key of an episode from its `meta` or its line in the manifest."""
    return Key(int(facts["run_id"]), int(facts["actor_id"]), int(facts["episode_id"]))


def read_corrections(path: Path) -> list[dict[str, object]]:
    """What a person said about the episodes of a log after their end, in order; the last word counts."""
    return read_lines(path / CORRECTIONS)


def read_lines(path: Path) -> list[dict[str, object]]:
    """Objects of a file with one in every line; what a kill has cut off is left out, and there may be no file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    lines = []
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines


def correct_episodes(episodes: Sequence[Episode], words: Iterable[Mapping[str, Any]]) -> list[Episode]:
    """Episodes with the last word about each in its reward, its end and its facts; the others as they are.

    A demonstration counts as thrown away unless the last word about it is success.

    Args:
        episodes: as robot-rl hil recorded them.
        words: lines of `read_corrections`.
    """
    last = {episode_key(line): line for line in words}
    if not last:
        return list(episodes)
    # what is no end is discounted as the recording's other steps are
    gamma = max((float(np.max(e.meta["columns"]["discount"])) for e in episodes if _is_recorded(e)), default=0.0)
    return [_correct(e, last[episode_key(e.meta)], gamma) if _is_recorded(e, last) else e for e in episodes]


def _is_recorded(episode: Episode, keys: Mapping[Key, object] | None = None) -> bool:
    """robot-rl hil recorded it, and its key is one of these."""
    columns = episode.meta.get("columns", {})
    known = len(episode) > 0 and set(COLUMNS) <= set(columns)
    return known and (keys is None or episode_key(episode.meta) in keys)


def _correct(episode: Episode, word: Mapping[str, Any], gamma: float) -> Episode:
    steps, success, undone = to_steps(episode), bool(word["success"]), bool(word.get("undone"))
    reason = EndReason(episode.meta["end_reason"])
    if not undone:
        reason = EndReason.SUCCESS if success else EndReason.FAILURE
    elif any(step.reward_source == RewardSource.HUMAN_KEY for step in steps):
        reason = EndReason.HUMAN_STOP  # what the key had said is taken back: how it ended is not known
    if not undone or reason == EndReason.HUMAN_STOP:
        relabel(steps, EpisodeRules(gamma=gamma), None if undone else success)
    found = to_episode(steps, reason, episode.meta)
    shown = bool(episode.meta.get("shown", episode.meta.get("demo")))
    return replace(found, meta={**found.meta, "discarded": not success}) if shown else found
