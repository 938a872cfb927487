"""The report on a critic: order on successes, failures, wrong goals, done; never one number alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

import numpy as np

from robot_rl.policies.nets.critic_scores import (
    auc,
    calibration_error,
    kendall,
    precision_recall,
    voc,
    voc_f1,
)
from robot_rl.policies.nets.progress import FORMS, accumulate, log_delta, true_values
from robot_rl.policies.vla.critic_clips import Clips
from robot_rl.policies.vla.interface import MomentCritic, Trajectory
from robot_rl.stats import rank_correlation

Asking: TypeAlias = Callable[[str, int, int], tuple[MomentCritic, str]]
"""(sentence, goal, clip) -> the critic that judges the clip, and what it is told."""


class FailureReport(TypedDict):
    """On clips that do not meet their goal; `kinds` holds clips, false_done, value, truth and value_mae by kind."""

    rank_end: float
    tau_a_end: float
    rank_within: float
    value_mae: float
    absolute_mae: float
    auc_value: float
    auc_done: float
    kinds: dict[str, dict[str, float]]


class CriticReport(TypedDict):
    """What `evaluate` finds; `forms` by accumulation."""

    clips: int
    phrasing: str
    success: dict[str, float]
    failure: FailureReport
    wrong_goal: dict[str, float]
    done: dict[str, float]
    forms: dict[str, dict[str, float]]
    cycle_residual: float
    latency_ms: dict[str, float]


@dataclass(frozen=True)
class _Read:
    """A clip read under one goal.

    Attributes:
        path: what the critic says.
        truth: (T + 1,) progress towards the goal.
        met: (n + 1,) bool, of the frames that the critic used.
    """

    path: Trajectory
    truth: np.ndarray
    met: np.ndarray

    @property
    def value(self) -> float:
        """At the end, as the others."""
        return float(self.path.values[-1])

    @property
    def value_error(self) -> float:
        return abs(self.value - float(self.truth[-1]))

    @property
    def absolute_error(self) -> float:
        return abs(float(self.path.absolute[-1] - self.truth[-1]))

    @property
    def called_done(self) -> bool:
        return bool(self.path.done[-1] > 0.5)


@dataclass(frozen=True)
class _Success:
    """A success under its own goal, the same played backwards, and under every goal that it does not begin with."""

    asked: _Read
    back: Trajectory
    wrong: list[_Read]


def evaluate(
    critic: MomentCritic,
    clips: Clips,
    *,
    phrasing: str = "held_out",
    loops: int = 100,
    seed: int = 0,
    on_clip: Callable[[int], None] | None = None,
    ask: Asking | None = None,
) -> CriticReport:
    """Judge a critic on labelled clips that it was not trained on.

    Args:
        critic: to be judged.
        clips: successes and failures with labels under every goal.
        phrasing: "held_out" or "train": which sentences to ask in.
        loops: closed loops of 4 to 12 frames for the cycle residual.
        seed: of sentences and loops.
        on_clip: called with the clips done so far.
        ask: for goals that are given otherwise than by a sentence alone; None tells this critic the sentence.

    Returns:
        Plain numbers. False done is at the last frame with P > .5; every failure's last frame is truly
        not done. Values and truths lie in [-1, 1).

    Raises:
        ValueError: unknown phrasing; no successes or no failures among the clips.
    """
    if phrasing not in ("train", "held_out"):
        raise ValueError(f"phrasing is '{phrasing}', expected 'train' or 'held_out'")
    sentences = clips.held_out if phrasing == "held_out" else clips.phrasings
    random = np.random.default_rng(seed)
    asking = ask or (lambda text, goal, clip: (critic, text))
    good = clips.meets_goal()
    if not good.any() or good.all():
        raise ValueError("the clips hold no success or no failure; a critic is judged on both")
    successes: list[_Success] = []
    failures: dict[str, list[_Read]] = {}

    def read(critic: MomentCritic, text: str, part: slice, goal: int) -> _Read:
        path = critic.trajectory(clips.frames[part], text)
        return _Read(path, true_values(clips.work[part][:, goal]), clips.done[part][path.index, goal])

    for c in range(len(clips)):
        part = slice(int(clips.start[c]), int(clips.start[c + 1]))
        asked, begins_done = int(clips.goal[c]), clips.done[part][0]
        if begins_done[asked]:
            continue  # nothing remains at the start: no order to find
        judge, text = asking(_sentence(sentences[asked], random), asked, c)
        one = read(judge, text, part, asked)
        if good[c]:
            back = judge.trajectory(clips.frames[part][::-1].copy(), text)
            others = [goal for goal in range(len(sentences)) if goal != asked and not begins_done[goal]]
            wrong = [read(*asking(_sentence(sentences[goal], random), goal, c), part, goal) for goal in others]
            successes.append(_Success(one, back, wrong))
        else:
            failures.setdefault(clips.kinds[int(clips.kind[c])], []).append(one)
        if on_clip is not None:
            on_clip(c + 1)
    wrong, bad = [one for row in successes for one in row.wrong], [one for rows in failures.values() for one in rows]
    reads = [*(row.asked for row in successes), *wrong, *bad]
    done, label = np.concatenate([one.path.done for one in reads]), np.concatenate([one.met for one in reads])
    precision, recall = precision_recall(done, label)
    return {
        "clips": len(successes) + len(bad),
        "phrasing": phrasing,
        "success": _success(successes),
        "failure": _failure([row.asked for row in successes], failures),
        "wrong_goal": _wrong(successes),
        "done": {"precision": precision, "recall": recall, "ece": calibration_error(done, label)},
        "forms": {form: _form(successes, form) for form in FORMS},
        "cycle_residual": _residual(asking, clips, sentences, loops, random),
        "latency_ms": _latency(critic, clips, sentences),
    }


def _sentence(texts: list[str], random: np.random.Generator) -> str:
    return texts[int(random.integers(len(texts)))]


def _orders(row: _Success, form: str) -> tuple[float, float]:
    """VOC and VROC of a success; constant values count 0. VROC is against the reversed order: a fall is right.

    The order of "log" is that of u before its floor: a reversed success falls far below the floor, where all values
    would be equal.
    """
    paths = []
    for deltas in (row.asked.path.deltas, row.back.deltas):
        steps = log_delta(np.clip(deltas, -1.0 + 1e-9, 1.0 - 1e-9))
        paths.append(np.concatenate([[0.0], np.cumsum(steps)]) if form == "log" else accumulate(deltas, form))
    forward, reverse = voc(paths[0]), -voc(paths[1])
    return (0.0 if np.isnan(forward) else forward), (0.0 if np.isnan(reverse) else reverse)


def _success(rows: list[_Success]) -> dict[str, float]:
    orders = [_orders(row, "log") for row in rows]
    return {
        "voc": _mean(order[0] for order in orders),
        "vroc": _mean(order[1] for order in orders),
        "voc_f1": _mean(voc_f1(*order) for order in orders),
        "negative_rate": _mean(float(np.mean(row.asked.path.deltas < 0)) for row in rows),
        "value": _mean(row.asked.value for row in rows),
        "done": _mean(row.asked.called_done for row in rows),
        "always_zero": float(sum(np.std(row.asked.path.deltas) < 0.01 for row in rows)),
    }


def _failure(good: list[_Read], failures: dict[str, list[_Read]]) -> FailureReport:
    bad = [one for rows in failures.values() for one in rows]
    value, truth = np.array([one.value for one in bad]), np.array([one.truth[-1] for one in bad])
    orders = [rank_correlation(one.path.values, one.truth) for one in bad]
    kinds = {
        kind: {
            "clips": len(rows),
            "false_done": _mean(one.called_done for one in rows),
            "value": _mean(one.value for one in rows),
            "truth": _mean(float(one.truth[-1]) for one in rows),
            "value_mae": _mean(one.value_error for one in rows),
        }
        for kind, rows in failures.items()
    }
    return {
        "rank_end": rank_correlation(value, truth),
        "tau_a_end": kendall(value, truth),
        "rank_within": _mean(order for order in orders if not np.isnan(order)),
        "value_mae": _mean(one.value_error for one in bad),
        "absolute_mae": _mean(one.absolute_error for one in bad),
        "auc_value": auc(np.array([one.value for one in good]), value),
        "auc_done": auc(np.array([one.path.done[-1] for one in good]), np.array([one.path.done[-1] for one in bad])),
        "kinds": kinds,
    }


def _wrong(rows: list[_Success]) -> dict[str, float]:
    pairs = [(row.asked, other) for row in rows for other in row.wrong]
    return {
        "pairs": len(pairs),
        "value": _mean(other.value for _, other in pairs),
        "truth": _mean(float(other.truth[-1]) for _, other in pairs),
        "value_mae": _mean(other.value_error for _, other in pairs),
        "absolute_mae": _mean(other.absolute_error for _, other in pairs),
        "false_done": _mean(other.called_done for _, other in pairs),
        "margin": _mean(asked.value - other.value for asked, other in pairs),
    }


def _form(rows: list[_Success], form: str) -> dict[str, float]:
    def error(one: _Read, floor: float = -np.inf) -> float:
        return abs(max(float(accumulate(one.path.deltas, form)[-1]), floor) - float(one.truth[-1]))

    return {
        "voc_f1": _mean(voc_f1(*_orders(row, form)) for row in rows),
        "success_value_mae": _mean(error(row.asked) for row in rows),
        "wrong_goal_value_mae": _mean(error(other, -1.0) for row in rows for other in row.wrong),
    }


def _residual(
    asking: Asking,
    clips: Clips,
    sentences: list[list[str]],
    loops: int,
    random: np.random.Generator,
) -> float:
    """Mean |sum of delta u| around random closed loops of frames of one clip."""
    found = []
    for _ in range(loops):
        c = int(random.integers(len(clips)))
        picks = random.integers(clips.start[c], clips.start[c + 1], int(random.integers(4, 13)))
        path = clips.frames[np.concatenate([picks, picks[:1]])]
        critic, text = asking(_sentence(sentences[int(clips.goal[c])], random), int(clips.goal[c]), c)
        out = critic(path[:-1], path[1:], [text] * (len(path) - 1))
        found.append(abs(float(out.dlogw.sum())))
    return _mean(found)


def _latency(critic: MomentCritic, clips: Clips, sentences: list[list[str]], calls: int = 30) -> dict[str, float]:
    """Processor milliseconds of one pair alone, after three calls that do not count."""
    first, second, text = clips.frames[:1], clips.frames[1:2], [sentences[int(clips.goal[0])][0]]
    spent = []
    for call in range(calls + 3):
        before = time.process_time()
        critic(first, second, text)
        if call >= 3:
            spent.append((time.process_time() - before) * 1e3)
    return {"p50": float(np.percentile(spent, 50)), "p95": float(np.percentile(spent, 95))}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else float("nan")


def lines(report: CriticReport) -> list[tuple[str, str, str]]:
    """Rows (what, measured, wanted) of the table that people read."""
    success, failure, wrong, done = report["success"], report["failure"], report["wrong_goal"], report["done"]
    rows = [
        ("success VOC-F1", f"{success['voc_f1']:.3f}", ">= .97"),
        (
            "success VOC / VROC / NR",
            f"{success['voc']:.3f} / {success['vroc']:.3f} / {success['negative_rate']:.3f}",
            "",
        ),
        ("success end value, called done", f"{success['value']:.3f}, {success['done']:.3f}", ""),
    ]
    for kind, part in failure["kinds"].items():
        rows.append((f"{kind}: false done", f"{part['false_done']:.3f}", "<= .05"))
        rows.append((f"{kind}: end value (truth)", f"{part['value']:.3f} ({part['truth']:.3f})", ""))
    rows += [
        ("failures: rank of end value with truth", f"{failure['rank_end']:.3f}", ">= .8"),
        ("failures: rank within clips", f"{failure['rank_within']:.3f}", ""),
        ("failures: end value MAE", f"{failure['value_mae']:.3f}", ""),
        ("AUC value, done: success over failure", f"{failure['auc_value']:.3f}, {failure['auc_done']:.3f}", ""),
        ("wrong goal: false done", f"{wrong['false_done']:.3f}", "<= .05"),
        (
            "wrong goal: end value MAE (absolute head)",
            f"{wrong['value_mae']:.3f} ({wrong['absolute_mae']:.3f})",
            "<= .1",
        ),
        ("wrong goal: margin", f"{wrong['margin']:.3f}", ""),
        ("done precision / recall", f"{done['precision']:.3f} / {done['recall']:.3f}", ""),
        ("done calibration error", f"{done['ece']:.3f}", "<= .05"),
        ("cycle residual", f"{report['cycle_residual']:.3f}", ""),
    ]
    for form, part in report["forms"].items():
        text = f"{part['voc_f1']:.3f} / {part['success_value_mae']:.3f} / {part['wrong_goal_value_mae']:.3f}"
        rows.append((f"form {form}: VOC-F1 / value MAE / wrong goal MAE", text, ""))
    return rows
