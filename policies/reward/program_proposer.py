"""Who writes reward programs: a model that reads and writes text, or a list."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from robot_rl.expression import FUNCTIONS
from robot_rl.policies.nets.picture_labels import VisionModel

_PROMPT = """A robot learns by reinforcement. Its task: {goal}
Write {count} different reward programs. A program is one expression in Python's notation that gives one number for each
control step, larger where the robot does better. Lines "name = expression" may stand before it.
Observables (name: components; before_... is the state before the step): {names}
Allowed: numbers, + - * /, ** with a constant, comparisons, and, or, not, a if c else b, v[0], v[1:3], and the functions
{functions}. Nothing else.
{tried}
Answer with {count} blocks, each between ``` and ```, and nothing but the program inside."""


class Listed:
    """Programs of a list, in their order; each is proposed once."""

    def __init__(self, codes: Sequence[str]) -> None:
        self._codes = [str(code) for code in codes]

    def propose(self, attempts: Sequence[Any], count: int) -> list[str]:
        """The next ones that were not tried."""
        tried = {item.code for item in attempts}
        return [code for code in self._codes if code not in tried][:count]


class ModelProposer:
    """Programs from a model, which is shown the best and the worst so far with their curves, and what was refused.

    Args:
        model: with `answer(pictures, text)`; no pictures are sent.
        goal: the task in words.
        names: observable -> components.

    Raises:
        ValueError: no goal.

    Source: ICPL, with the language of `Expression` in place of free Python.
    """

    def __init__(self, model: VisionModel, goal: str, names: Mapping[str, int]) -> None:
        if not goal.strip():
            raise ValueError("the goal is empty; say in words what the robot should do")
        self._model, self._goal, self._names = model, goal, names

    def propose(self, attempts: Sequence[Any], count: int) -> list[str]:
        """Programs in the blocks of the answer, at most `count`."""
        ranked = sorted((item for item in attempts if item.rank is not None), key=lambda item: item.rank)
        tried = []
        for name, item in (("best", ranked[:1]), ("worst", ranked[1:][-1:])):
            for one in item:
                curves = "; ".join(f"{key}: {_short(values)}" for key, values in one.curves.items())
                tried.append(f"The {name} program so far:\n```\n{one.code}\n```\nwith training curves {curves}")
        wrong = [f"- {item.error}: {item.code}" for item in attempts[-2 * count :] if item.error]
        if wrong:
            tried.append("These could not be used:\n" + "\n".join(wrong))
        names = ", ".join(f"{name}: {width}" for name, width in self._names.items())
        text = _PROMPT.format(
            goal=self._goal, count=count, names=names, functions=", ".join(FUNCTIONS), tried="\n".join(tried)
        )
        return programs(self._model.answer([], text))[:count]


def programs(text: str) -> list[str]:
    """What stands between ``` and ``` in an answer."""
    found = re.findall(r"```(?:[a-zA-Z]*\n)?(.*?)```", text, flags=re.DOTALL)
    return [code.strip() for code in found if code.strip()]


def _short(values: Sequence[float], most: int = 10) -> str:
    step = max(1, len(values) // most)
    return "[" + ", ".join(f"{value:.3g}" for value in values[::step]) + "]"
