"""Every option that is a number says its range, or that any number will do; what is wrong with one is one sentence."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from robot_rl import build
from robot_rl.link import LinkSettings
from robot_rl.types import Options
from robot_rl.types.options import Interval, Support
from robot_rl.verbs.hil import HilVerbOptions
from robot_rl.verbs.offline import OfflineSettings
from robot_rl.verbs.table import VERBS
from robot_rl.verbs.train_job import TrainSettings


def bare(kind: Any) -> bool:
    """Whether a type holds a number without a range."""
    if get_origin(kind) in (Annotated, Literal):
        return False
    return kind in (int, float) or any(bare(item) for item in get_args(kind))


def unranged(model: type[BaseModel]) -> list[str]:
    return [key for key, item in model.model_fields.items() if not item.metadata and bare(item.annotation)]


@pytest.mark.parametrize("kind", build.PLACES)
def test_numbers_among_the_options_of_everything_that_is_built_have_ranges(kind: str) -> None:
    for name in build.names(kind):
        try:
            maker = build.find(kind, name)
        except ImportError:  # a simulator that is not installed
            continue
        assert not unranged(build.options_of(kind, maker)), name


def test_numbers_among_the_options_of_verbs_have_ranges() -> None:
    assert {verb: found for verb, model in VERBS.items() if (found := unranged(model.options()))} == {}


class Ends(Options):
    """Of a draw."""

    drawn: Interval = (0.0, 1.0)
    """From where to where."""
    support: Support | Literal["auto"] = "auto"
    """Of returns."""


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (TrainSettings, {"total_steps": -5}, "total_steps is -5, expected a whole number of at least 1"),
        (TrainSettings, {"totl_steps": 5}, "did you mean total_steps"),
        (TrainSettings, {"eval_every": float("nan")}, "eval_every is nan, expected a whole number"),
        (OfflineSettings, {}, "this has to be given: data=<"),
        (LinkSettings, {"speed": 0}, "speed is 0, expected a number above 0"),
        (HilVerbOptions, {"link": {"speed": 0}}, "link.speed is 0, expected a number above 0"),
        (Ends, {"drawn": (1, 0)}, r"drawn is \(1, 0\): the first is above the second, expected \[low,high\]"),
        (Ends, {"support": (1.0, 1.0)}, "the first is not below the second"),
        (Ends, {"support": "autto"}, "did you mean auto"),
    ],
)
def test_options_made_in_python_answer_in_one_sentence(kind: type[Options], values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        kind(**values)
    assert "\n" not in str(error.value)
    assert "pydantic" not in str(error.value)
    assert Ends(drawn=(1.0, 1.0)).drawn == (1.0, 1.0)
