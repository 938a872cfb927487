"""The report on a critic that can be shown its goal: the whole table for each way of giving a goal, and traps.

A trap shows another task than the one that was done: alone ("wrong reference"), against the right sentence, or the
right reference against a wrong sentence. None of them is done.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robot_rl.policies.nets.progress import true_values
from robot_rl.policies.nets.reference import FRAMES
from robot_rl.policies.vla.critic_report import Clips, CriticReport
from robot_rl.policies.vla.critic_report import evaluate as table
from robot_rl.policies.vla.critic_report import lines as rows_of
from robot_rl.policies.vla.interface import MomentCritic, ReferenceCritic

CONDITIONS = ("sentence", "reference", "both", "picture")
TRAPS = ("wrong_reference", "right_sentence_wrong_reference", "wrong_sentence_right_reference")


class ContextReport(CriticReport):
    """The report of the sentences alone, the same of each of `CONDITIONS`, and numbers of each of `TRAPS`."""

    conditions: dict[str, CriticReport]
    traps: dict[str, dict[str, float]]


class References:
    """Draws a reference of a goal from clips other than the one judged, and keeps what the critic made of it.

    Args:
        critic: a `ContextCritic`, to be shown them.
        clips: with labels under every goal.
        frames: R.
        seed: of the draws.

    Raises:
        ValueError: a goal that fewer than two clips show.
    """

    def __init__(self, critic: ReferenceCritic, clips: Clips, *, frames: int = FRAMES, seed: int = 0) -> None:
        self.critic, self.clips, self.frames = critic, clips, frames
        self._pool = clips.showing(frames)
        short = [goal for goal, rows in enumerate(self._pool) if len(rows) < 2]
        if short:
            raise ValueError(
                f"fewer than two clips show goals {short}, so there is no reference in another scene; judge on more "
                "clips (robot-rl critic clips count=240 seed=2)"
            )
        self._random = np.random.default_rng([seed, 3])
        self._kept: dict[int, MomentCritic] = {}

    def draw(self, goal: int, clip: int) -> MomentCritic:
        """The critic, shown a random reference of `goal` that is not `clip`."""
        rows = self._pool[goal][self._pool[goal] != clip]
        row = int(self._random.choice(rows))
        if row not in self._kept:
            self._kept[row] = self.critic.with_reference(self.clips.reference(row, self.frames))
        return self._kept[row]


def evaluate(
    critic: ReferenceCritic,
    clips: Clips,
    *,
    phrasing: str = "held_out",
    frames: int = FRAMES,
    seed: int = 0,
    on_clip: Callable[[int], None] | None = None,
    loops: int = 100,
) -> ContextReport:
    """Judge a critic on labelled clips; references are other clips of the same set, of the same task.

    Args:
        critic: a `ContextCritic`, which can be shown a goal.
        clips: successes and failures.
        phrasing: which sentences.
        frames: R.
        seed: of sentences, loops and references.
        on_clip: called with the clips done so far, in each condition anew.
        loops: closed loops of frames for the cycle residual.

    Returns:
        The report of the sentences alone, as for any critic, with "conditions" (name -> report of the same form;
        "reference" leaves the sentence empty, "picture" shows the last frame alone) and "traps" (name -> pairs,
        false_done, value, and their truth where one goal is asked), over all clips that meet a goal.
    """
    plain = table(critic, clips, phrasing=phrasing, seed=seed, on_clip=on_clip, loops=loops)
    told: dict[str, CriticReport] = {"sentence": plain}
    for name in CONDITIONS[1:]:
        drawn = References(critic, clips, frames=1 if name == "picture" else frames, seed=seed)

        def ask(
            text: str, goal: int, clip: int, name: str = name, drawn: References = drawn
        ) -> tuple[MomentCritic, str]:
            return drawn.draw(goal, clip), text if name == "both" else ""

        told[name] = table(critic, clips, phrasing=phrasing, seed=seed, on_clip=on_clip, ask=ask, loops=loops)
    return {**plain, "conditions": told, "traps": traps(critic, clips, phrasing=phrasing, frames=frames, seed=seed)}


def traps(
    critic: ReferenceCritic, clips: Clips, *, phrasing: str = "held_out", frames: int = FRAMES, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Every clip that meets its goal, with something else shown or told under every other goal; see `TRAPS`.

    NaN where no clip and other goal make one, as where all clips are of one goal.
    """
    sentences = clips.held_out if phrasing == "held_out" else clips.phrasings
    random, drawn = np.random.default_rng([seed, 4]), References(critic, clips, frames=frames, seed=seed)
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in TRAPS}
    for c in np.flatnonzero(clips.meets_goal()).tolist():
        part = slice(int(clips.start[c]), int(clips.start[c + 1]))
        frames_of, asked = clips.frames[part], int(clips.goal[c])
        for goal in range(len(sentences)):
            if goal == asked or clips.done[part][[0, -1], goal].any() or clips.done[part][0, asked]:
                continue
            right, wrong = (sentences[g][int(random.integers(len(sentences[g])))] for g in (asked, goal))
            work = clips.work[part]
            for name, shows, text, asks in (
                ("wrong_reference", goal, "", work[:, goal]),
                ("right_sentence_wrong_reference", goal, right, np.maximum(work[:, goal], work[:, asked])),
                ("wrong_sentence_right_reference", asked, wrong, np.maximum(work[:, goal], work[:, asked])),
            ):
                path = drawn.draw(shows, c).trajectory(frames_of, text)
                found[name].append((float(path.done[-1] > 0.5), path.values[-1], true_values(asks)[-1]))
    out = {}
    for name, rows in found.items():
        done, value, truth = np.array(rows).T if rows else np.full((3, 1), np.nan)
        out[name] = {
            "pairs": len(rows),
            "false_done": float(done.mean()),
            "value": float(value.mean()),
            "truth": float(truth.mean()),
            "value_mae": float(np.abs(value - truth).mean()),
        }
    return out


def lines(report: ContextReport) -> list[tuple[str, str, str]]:
    """Rows (what, measured, wanted): the table of sentences, each condition side by side, and the traps."""
    rows = rows_of(report)
    parts = [rows_of(report["conditions"][name]) for name in CONDITIONS]
    rows.append((f"goal given by {', '.join(CONDITIONS)}:", "", ""))
    for i, (what, _, wanted) in enumerate(parts[0]):
        if not what.startswith("form "):
            rows.append((what, " | ".join(part[i][1] for part in parts), wanted))
    for name, part in report["traps"].items():
        what = name.replace("_", " ")
        rows.append((f"trap, {what}: false done", f"{part['false_done']:.3f}", "<= .05"))
        rows.append((f"trap, {what}: end value MAE", f"{part['value_mae']:.3f}", "<= .1"))
    return rows
