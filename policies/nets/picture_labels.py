"""Which of two pictures is nearer to a goal, asked of a model in words: two stages, one integer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from robot_rl.policies.nets.preferences import TIE

DESCRIBE = (
    'The goal is: "{goal}".\n'
    "1. What is shown in picture 1?\n"
    "2. What is shown in picture 2?\n"
    "3. With respect to the goal, how do the two pictures differ?"
)
DECIDE = (
    "Two pictures were compared. This is what was said of them:\n\n{said}\n\n"
    'The goal is: "{goal}".\n'
    "In which picture is the goal reached better? Answer with one integer alone: 0 if it is picture 1, 1 if it is "
    "picture 2, -1 if they do not differ in that or it is not clear."
)
_GOAL = re.compile(r'The goal is: "(.*?)"\.', re.DOTALL)


@runtime_checkable
class VisionModel(Protocol):
    """Whatever looks at pictures and reads and writes text."""

    def answer(self, pictures: Sequence[np.ndarray], text: str) -> str:
        """Text for pictures, each (H, W, 3) uint8 (there may be none), and text."""
        ...


def read_label(text: str) -> int | None:
    """The one integer 0, 1 or -1 in the last line of an answer; None where there is none, another, or several."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    found = re.findall(r"(?<![\w.])-?\d+(?![\w]|\.\d)", lines[-1]) if lines else []
    return int(found[0]) if len(found) == 1 and found[0] in ("0", "1", "-1") else None


def check_picture(picture: np.ndarray) -> None:
    """Refuse what is no picture.

    Raises:
        TypeError: not uint8.
        ValueError: not (H, W, 3).
    """
    if picture.dtype != np.uint8:
        raise TypeError(f"a picture has dtype {picture.dtype}, expected uint8 from 0 to 255")
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise ValueError(f"a picture has shape {picture.shape}, expected (height, width, 3)")


@dataclass
class Counts:
    """What became of the pairs.

    Attributes:
        asked: pairs that the model was asked about.
        skipped: pairs that were not sent: they hardly differ, or show nothing.
        unreadable: answers of stage two without one integer, also when asked again.
    """

    asked: int = 0
    skipped: int = 0
    unreadable: int = 0


class TwoStage:
    """A `Labeller` of pictures: the model describes both, then reads its description and answers with one integer.

    Which picture is called picture 1 is drawn for each pair, from the seed and the pictures, and the answer turned
    back: a model that prefers a place prefers nothing, and a run that was stopped goes on with the same orders.
    Unreadable answers are asked for once more, and are ties then. Pairs that hardly differ and pictures of one colour
    are ties without being asked.

    Args:
        model: with `answer`.
        seed: of the order.
        least_difference: Euclidean distance of pictures in [0, 1] below which they are not sent.
        describe, decide: the two questions, with {goal}, and {goal} and {said}.

    Raises:
        ValueError: a question without its places.

    Source: Wang et al., RL-VLM-F (arXiv 2402.03681): two stages, labels, dropping of equal pictures. Order and second
    try are ours.
    """

    def __init__(
        self,
        model: VisionModel,
        *,
        seed: int = 0,
        least_difference: float = 1e-3,
        describe: str = DESCRIBE,
        decide: str = DECIDE,
    ) -> None:
        if "{goal}" not in describe or "{said}" not in decide:
            raise ValueError("the first question must hold {goal}, the second {said}")
        self.model, self.counts = model, Counts()
        self._least, self._describe, self._decide = least_difference, describe, decide
        self._salt = seed.to_bytes(8, "little")

    def label(self, first: np.ndarray, second: np.ndarray, goal: str) -> int:
        """0: the first (H, W, 3) uint8 is nearer to the goal, 1: the second, -1: neither, or not clear.

        Raises:
            TypeError: a picture is not uint8.
            ValueError: pictures of other or different sizes, or no goal.
        """
        first, second = np.asarray(first), np.asarray(second)
        check_picture(first)
        check_picture(second)
        if first.shape != second.shape:
            raise ValueError(f"the pictures are {first.shape} and {second.shape}, expected one size")
        if not goal.strip():
            raise ValueError("the goal is empty; say in words what the better picture shows")
        mark = first.tobytes() + second.tobytes()
        swap = bool(hashlib.blake2b(mark, digest_size=1, salt=self._salt).digest()[0] & 1)
        gap = (first.astype(np.float64) - second.astype(np.float64)) / 255.0
        if np.linalg.norm(gap) < self._least or min(first.std(), second.std()) < 1.0:
            self.counts.skipped += 1
            return TIE
        self.counts.asked += 1
        shown = [second, first] if swap else [first, second]
        said = self.model.answer(shown, self._describe.format(goal=goal))
        question = self._decide.format(goal=goal, said=said)
        answer = read_label(self.model.answer([], question))
        if answer is None:
            answer = read_label(self.model.answer([], question))
        if answer is None:
            self.counts.unreadable += 1
            return TIE
        return 1 - answer if swap and answer != TIE else answer


class ScriptedJudge:
    """A `VisionModel` that knows the truth: it describes each picture by its score and then compares what it reads.

    For tests and demonstrations. The description carries the scores as text, so both stages are gone through.

    Args:
        score: (picture, goal) -> number, larger is nearer to the goal.
        error: share of answers of stage two that are turned round.
        tie: difference of scores up to which it answers -1.
        seed: of wrong answers.
    """

    def __init__(
        self, score: Callable[[np.ndarray, str], float], *, error: float = 0.0, tie: float = 0.0, seed: int = 0
    ) -> None:
        self._score, self._error, self._tie = score, error, tie
        self._rng = np.random.default_rng(seed)

    def answer(self, pictures: Sequence[np.ndarray], text: str) -> str:
        """See `VisionModel`."""
        if pictures:
            goal = _GOAL.search(text)
            scores = [self._score(picture, goal.group(1) if goal else "") for picture in pictures]
            return "\n".join(f"In picture {i} the score is {x:.9g}." for i, x in enumerate(scores, 1))
        one, two = (float(x) for x in re.findall(r"the score is (\S+)\.(?=\n|$)", text)[:2])
        if not abs(two - one) > self._tie:
            return "-1"
        answer = int(two > one)
        return str(1 - answer if self._rng.random() < self._error else answer)
