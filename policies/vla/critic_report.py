"""The report on a critic: order on successes, failures, wrong goals, done; never one number alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

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
from robot_rl.stats import rank_correlation
from robot_rl.types import Array


class PairCritic(Protocol):
    """What is judged: a `policies.vla.interface.MomentCritic`."""

    def __call__(self, images_t0: Array, images_t1: Array, goal: Sequence[str]) -> Any:
        """Pairs of pictures (B, H, W, 3) uint8 and B sentences -> answers with `dlogw` (B,)."""
        ...

    def trajectory(self, frames: Array, goal: str) -> Any:
        """Pictures (T + 1, H, W, 3) -> values, deltas, done and the frames used."""
        ...


def evaluate(
    critic: PairCritic,
    clips: Clips,
    *,
    phrasing: str = "held_out",
    loops: int = 100,
    seed: int = 0,
    on_clip: Callable[[int], None] | None = None,
    ask: Callable[[str, int, int], tuple[Any, str]] | None = None,
) -> dict[str, Any]:
    """Judge a critic on labelled clips that it was not trained on.

    Args:
        critic: with the contract `ProgressCritic`.
        clips: successes and failures with labels under every goal.
        phrasing: "held_out" or "train": which sentences to ask in.
        loops: closed loops of 4 to 12 frames for the cycle residual.
        seed: of sentences and loops.
        on_clip: called with the clips done so far.
        ask: (sentence, goal, clip) -> the critic that judges the clip and what it is told, for goals that are given
            otherwise than by a sentence alone; None tells this one the sentence.

    Returns:
        Nested plain numbers: "success", "failure" (by kind), "wrong_goal", "done", "forms" (by accumulation),
        "cycle_residual", "latency_ms". False done is at the last frame with P > .5; every failure's last frame is truly
        not done. Values and truths lie in [-1, 1).

    Raises:
        ValueError: unknown phrasing; no successes or no failures among the clips.
    """
    if phrasing not in ("train", "held_out"):
        raise ValueError(f"phrasing is '{phrasing}', expected 'train' or 'held_out'")
    sentences = clips.held_out if phrasing == "held_out" else clips.phrasings
    random = np.random.default_rng(seed)
    asking = ask or (lambda text, goal, clip: (critic, text))
    goals = len(sentences)
    good = clips.succeeded()
    if not good.any() or good.all():
        raise ValueError("the clips hold no success or no failure; a critic is judged on both")
    rows: list[dict[str, Any]] = []
    probability, met = [], []
    for c in range(len(clips)):
        part = slice(int(clips.start[c]), int(clips.start[c + 1]))
        frames, asked = clips.frames[part], int(clips.goal[c])
        if clips.done[part][0, asked]:
            continue  # nothing remains at the start: no order to find
        text = _sentence(sentences[asked], random)
        judge, text = asking(text, asked, c)
        path = judge.trajectory(frames, text)
        probability.append(path.done)
        met.append(clips.done[part][path.index, asked])
        truth = true_values(clips.work[part][:, asked])
        row: dict[str, Any] = {
            "kind": clips.kinds[int(clips.kind[c])],
            "good": bool(good[c]),
            "value": float(path.values[-1]),
            "absolute": float(path.absolute[-1]),
            "truth": float(truth[-1]),
            "done": float(path.done[-1]),
            "order": rank_correlation(path.values, truth),
            "flat": bool(np.std(path.deltas) < 0.01),
        }
        if good[c]:
            back = judge.trajectory(frames[::-1].copy(), text)
            row["back_deltas"], row["deltas"] = back.deltas, path.deltas
            wrong = []
            for goal in range(goals):
                if goal == asked or clips.done[part][0, goal]:
                    continue
                other_judge, other_text = asking(_sentence(sentences[goal], random), goal, c)
                other = other_judge.trajectory(frames, other_text)
                probability.append(other.done)
                met.append(clips.done[part][other.index, goal])
                truth = true_values(clips.work[part][:, goal])
                wrong.append((other.values[-1], other.absolute[-1], truth[-1], other.done[-1], other.deltas))
            row["wrong"] = wrong
        rows.append(row)
        if on_clip is not None:
            on_clip(c + 1)
    done, label = np.concatenate(probability), np.concatenate(met)
    precision, recall = precision_recall(done, label)
    successes, failures = [r for r in rows if r["good"]], [r for r in rows if not r["good"]]
    return {
        "clips": len(rows),
        "phrasing": phrasing,
        "success": _success(successes),
        "failure": _failure(successes, failures),
        "wrong_goal": _wrong(successes),
        "done": {"precision": precision, "recall": recall, "ece": calibration_error(done, label)},
        "forms": {form: _form(successes, form) for form in FORMS},
        "cycle_residual": _residual(asking, clips, sentences, loops, random),
        "latency_ms": _latency(critic, clips, sentences),
    }


def _sentence(texts: list[str], random: np.random.Generator) -> str:
    return texts[int(random.integers(len(texts)))]


def _orders(row: dict[str, Any], form: str) -> tuple[float, float]:
    """VOC and VROC of a success; constant values count 0. VROC is against the reversed order: a fall is right.

    The order of "log" is that of u before its floor: a reversed success falls far below the floor, where all values
    would be equal.
    """
    paths = []
    for deltas in (row["deltas"], row["back_deltas"]):
        steps = log_delta(np.clip(deltas, -1.0 + 1e-9, 1.0 - 1e-9))
        paths.append(np.concatenate([[0.0], np.cumsum(steps)]) if form == "log" else accumulate(deltas, form))
    forward, reverse = voc(paths[0]), -voc(paths[1])
    return (0.0 if np.isnan(forward) else forward), (0.0 if np.isnan(reverse) else reverse)


def _success(rows: list[dict[str, Any]]) -> dict[str, float]:
    orders = [_orders(row, "log") for row in rows]
    return {
        "voc": _mean(order[0] for order in orders),
        "vroc": _mean(order[1] for order in orders),
        "voc_f1": _mean(voc_f1(*order) for order in orders),
        "negative_rate": _mean(float(np.mean(row["deltas"] < 0)) for row in rows),
        "value": _mean(row["value"] for row in rows),
        "done": _mean(row["done"] > 0.5 for row in rows),
        "always_zero": float(sum(row["flat"] for row in rows)),
    }


def _failure(good: list[dict[str, Any]], bad: list[dict[str, Any]]) -> dict[str, Any]:
    value, truth = (np.array([row[key] for row in bad]) for key in ("value", "truth"))
    orders = [row["order"] for row in bad if not np.isnan(row["order"])]
    kinds = {}
    for kind in dict.fromkeys(row["kind"] for row in bad):
        mine = [row for row in bad if row["kind"] == kind]
        kinds[kind] = {
            "clips": len(mine),
            "false_done": _mean(row["done"] > 0.5 for row in mine),
            "value": _mean(row["value"] for row in mine),
            "truth": _mean(row["truth"] for row in mine),
            "value_mae": _mean(abs(row["value"] - row["truth"]) for row in mine),
        }
    return {
        "rank_end": rank_correlation(value, truth),
        "tau_a_end": kendall(value, truth),
        "rank_within": _mean(orders),
        "value_mae": float(np.mean(np.abs(value - truth))),
        "absolute_mae": _mean(abs(row["absolute"] - row["truth"]) for row in bad),
        "auc_value": auc(np.array([row["value"] for row in good]), value),
        "auc_done": auc(np.array([row["done"] for row in good]), np.array([row["done"] for row in bad])),
        "kinds": kinds,
    }


def _wrong(rows: list[dict[str, Any]]) -> dict[str, float]:
    pairs = [(row["value"], *item) for row in rows for item in row["wrong"]]
    return {
        "pairs": len(pairs),
        "value": _mean(p[1] for p in pairs),
        "truth": _mean(p[3] for p in pairs),
        "value_mae": _mean(abs(p[1] - p[3]) for p in pairs),
        "absolute_mae": _mean(abs(p[2] - p[3]) for p in pairs),
        "false_done": _mean(p[4] > 0.5 for p in pairs),
        "margin": _mean(p[0] - p[1] for p in pairs),
    }


def _form(rows: list[dict[str, Any]], form: str) -> dict[str, float]:
    wrong = [(accumulate(item[4], form)[-1], item[2]) for row in rows for item in row["wrong"]]
    return {
        "voc_f1": _mean(voc_f1(*_orders(row, form)) for row in rows),
        "success_value_mae": _mean(abs(accumulate(row["deltas"], form)[-1] - row["truth"]) for row in rows),
        "wrong_goal_value_mae": _mean(abs(max(value, -1.0) - truth) for value, truth in wrong),
    }


def _residual(
    asking: Callable[[str, int, int], tuple[Any, str]],
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


def _latency(critic: PairCritic, clips: Clips, sentences: list[list[str]], calls: int = 30) -> dict[str, float]:
    """Processor milliseconds of one pair alone, after three calls that do not count."""
    first, second, text = clips.frames[:1], clips.frames[1:2], [sentences[int(clips.goal[0])][0]]
    spent = []
    for call in range(calls + 3):
        before = time.process_time()
        critic(first, second, text)
        if call >= 3:
            spent.append((time.process_time() - before) * 1e3)
    return {"p50": float(np.percentile(spent, 50)), "p95": float(np.percentile(spent, 95))}


def _mean(values: Any) -> float:
    found = [float(value) for value in values]
    return float(np.mean(found)) if found else float("nan")


def lines(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Rows (what, measured, wanted) of the table that people read."""
    success, failure, wrong, done = (report[key] for key in ("success", "failure", "wrong_goal", "done"))
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
