"""Labelled observations out of recorded episodes, and what a classifier's probabilities are worth on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_rl.data.hil_episode import to_steps
from robot_rl.data.hil_record import ControlStep, EndReason, Invalid, RewardSource
from robot_rl.data.hil_words import episode_key
from robot_rl.stats import upper_bound
from robot_rl.types import Episode, Obs


@dataclass(frozen=True)
class LabelRules:
    """Which observations count as what.

    Attributes:
        margin: steps before a labelled success that count as neither: the person pressed when they were sure.
        after: observations after the labelled one, while the person's finger was on its way, count as success.
    """

    margin: int = 2
    after: bool = True

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise ValueError(f"margin is {self.margin}, expected at least 0")


@dataclass(frozen=True)
class LabelledFrames:
    """Labelled observations.

    Attributes:
        obs: (N, ...).
        label: (N,) bool: success.
        hard: (N,) bool: a classifier said success and a person said otherwise.
        episode: (N,) int64 index of the episode among those read.
        step: (N,) int64 index of the step whose successor it is.
        names: of the episodes, "run.actor.episode".
    """

    obs: Obs
    label: np.ndarray
    hard: np.ndarray
    episode: np.ndarray
    step: np.ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: np.ndarray) -> LabelledFrames:
        """Some of them."""
        return LabelledFrames(
            {key: value[rows] for key, value in self.obs.items()},
            label=self.label[rows],
            hard=self.hard[rows],
            episode=self.episode[rows],
            step=self.step[rows],
            names=self.names,
        )

    def split(self, shares: Sequence[float], seed: int) -> list[LabelledFrames]:
        """Parts by episode, never by observation: neighbours look alike. Successes are spread evenly."""
        rng = np.random.default_rng(seed)
        count = len(self.names)
        good = np.zeros(count, bool)
        good[self.episode[self.label]] = True
        part = np.zeros(count, np.int64)
        edges = np.cumsum(shares) / np.sum(shares)
        for kind in (np.flatnonzero(good), np.flatnonzero(~good)):
            order = rng.permutation(kind)
            part[order] = np.searchsorted(edges, (np.arange(len(order)) + 0.5) / max(len(order), 1))
        return [self.take(np.flatnonzero(part[self.episode] == i)) for i in range(len(shares))]


def frames(
    episodes: Iterable[Episode], keys: Sequence[str], rules: LabelRules | None = None, corrected: Iterable[Any] = ()
) -> LabelledFrames:
    """Observations after each driven step: the last one of a success is positive, those before it are negative.

    Episodes that ended in success without anybody or anything saying which step it was hold no labels, and neither do
    those that ended with a key which was taken back. An episode that a person corrected counts as they say.

    Args:
        episodes: of human-in-the-loop recordings.
        keys: observations to keep.
        rules: which count as what.
        corrected: lines of corrections: {"run_id", "actor_id", "episode_id", "success"} and perhaps "undone".

    Raises:
        ValueError: nothing with a label.
    """
    rules = rules or LabelRules()
    words = {episode_key(line): line for line in corrected}  # the last one about each
    parts: dict[str, list[object]] = {"label": [], "hard": [], "episode": [], "step": []}
    obs: dict[str, list[np.ndarray]] = {key: [] for key in keys}
    names: list[str] = []
    for episode in episodes:
        key = episode_key(episode.meta)
        steps = to_steps(episode)
        word = words.get(key)
        undone = word is not None and bool(word.get("undone"))
        if undone and any(step.reward_source == RewardSource.HUMAN_KEY for step in steps):
            continue  # what a key had said is taken back: how it ended is not known
        fix = None if word is None or undone else bool(word["success"])
        labels = _labels(steps, EndReason(episode.meta["end_reason"]), rules, fix)
        if not labels:
            continue
        for index, (label, hard) in labels.items():
            for name, kept in obs.items():
                kept.append(steps[index].next_obs[name])
            for name, value in (("label", label), ("hard", hard), ("episode", len(names)), ("step", index)):
                parts[name].append(value)
        names.append(f"{key.run_id}.{key.actor_id}.{key.episode_id}")
    if not names:
        raise ValueError("no labelled observations: record episodes with robot-rl hil first")
    return LabelledFrames(
        {name: np.stack(kept) for name, kept in obs.items()},
        np.array(parts["label"], bool),
        np.array(parts["hard"], bool),
        np.array(parts["episode"], np.int64),
        np.array(parts["step"], np.int64),
        tuple(names),
    )


def _labels(
    steps: list[ControlStep], reason: EndReason, rules: LabelRules, fix: bool | None
) -> dict[int, tuple[bool, bool]]:
    """Step -> (success, corrected by a person)."""
    last = next((i for i in range(len(steps) - 1, -1, -1) if steps[i].valid), None)
    if last is None:
        return {}
    by_classifier = steps[last].reward_source == RewardSource.CLASSIFIER
    key = steps[last].reward_source == RewardSource.HUMAN_KEY
    success = reason == EndReason.SUCCESS if fix is None else fix
    out: dict[int, tuple[bool, bool]] = {}
    if not success:
        # what a classifier called success and a person did not is what it has to learn
        for i in range(last + 1):
            if steps[i].valid:
                fooled = steps[i].reward_prob > 0.5 and (key or fix is not None)
                out[i] = False, bool(fooled or (by_classifier and fix is False and i == last))
        return out
    if by_classifier and fix is None:
        return {i: (False, False) for i in range(max(last - 10, 0)) if steps[i].valid}  # its own word is no label
    for i in range(last - rules.margin):
        if steps[i].valid:
            out[i] = False, False
    out[last] = True, False
    if rules.after and key:
        for i in range(last + 1, len(steps)):
            if steps[i].invalid_reason == Invalid.AFTER_END:
                out[i] = True, False
    return out


def quality(probability: np.ndarray, label: np.ndarray, threshold: float, bins: int = 10) -> dict[str, float]:
    """What probabilities (N,) are worth against labels (N,).

    Returns:
        Counts of the confusion at the threshold, `false_positive` rate per observation with its 95 % upper bound,
        `recall`, `brier` score, `ece` (expected calibration error over equal-width bins) and `nll`.

    Source: Guo et al., On Calibration of Modern Neural Networks (ECE); the upper bound is Clopper-Pearson's for 0
    events ("rule of three") and Wilson's otherwise.
    """
    p, y = np.asarray(probability, float), np.asarray(label, bool)
    said = p >= threshold
    tp, fp = int((said & y).sum()), int((said & ~y).sum())
    fn, tn = int((~said & y).sum()), int((~said & ~y).sum())
    place = np.minimum((p * bins).astype(int), bins - 1)
    ece = sum(
        abs(p[place == b].mean() - y[place == b].mean()) * (place == b).mean()
        for b in range(bins)
        if (place == b).any()
    )
    safe = np.clip(p, 1e-7, 1 - 1e-7)
    return {
        "true_positives": tp,
        "false_positives": fp,
        "false_negatives": fn,
        "true_negatives": tn,
        "false_positive": fp / max(fp + tn, 1),
        "false_positive_high": upper_bound(fp, fp + tn),
        "recall": tp / max(tp + fn, 1),
        "brier": float(np.mean((p - y) ** 2)) if len(p) else math.nan,
        "ece": float(ece),
        "nll": float(-np.mean(np.where(y, np.log(safe), np.log(1 - safe)))) if len(p) else math.nan,
    }


def false_alarms(probability: np.ndarray, data: LabelledFrames, threshold: float, in_a_row: int) -> tuple[int, int]:
    """Episodes in which success would have been called before it was there, and how many there are.

    Args:
        probability: (N,) of the observations.
        data: the observations.
        threshold: of the probability.
        in_a_row: observations above it that it takes.
    """
    alarms = 0
    found = np.unique(data.episode)
    for number in found:
        rows = np.flatnonzero((data.episode == number) & ~data.label)
        rows = rows[np.argsort(data.step[rows])]
        run = before = 0
        for row in rows:
            follows = data.step[row] == before + 1
            run = (run + 1 if follows or run == 0 else 1) if probability[row] >= threshold else 0
            before = int(data.step[row])
            if run >= in_a_row:
                alarms += 1
                break
    return alarms, len(found)


def pick_threshold(probability: np.ndarray, label: np.ndarray, steps: int, most: float = 0.01) -> float:
    """Smallest threshold at which an episode of `steps` observations has a false alarm with probability below `most`.

    Args:
        probability: (N,) on observations that were not trained on.
        label: (N,) bool.
        steps: of an episode.
        most: 1 - (1 - f)^steps <= most decides the rate f per observation.

    Returns:
        In [0.5, 0.999]; with few negatives the rate cannot be resolved, and it lies above the highest of them.
    """
    negative = np.sort(np.asarray(probability, float)[~np.asarray(label, bool)])
    rate = 1.0 - (1.0 - most) ** (1.0 / max(steps, 1))
    allowed = int(rate * len(negative))
    if not len(negative):
        return 0.5
    edge = float(negative[len(negative) - 1 - allowed])
    return float(np.clip(np.nextafter(edge, 1.0) + 1e-6, 0.5, 0.999))
