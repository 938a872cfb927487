"""Options of a method, a world or a verb: names, types, ranges and one line of explanation each, stated once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from robot_rl.types.option_words import Meaning, option_error


def _check_order(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError("the first is above the second, expected [low,high]")
    return ends


def _apart(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] >= ends[1]:
        raise ValueError("the first is not below the second, expected [low,high]")
    return ends


Count = Annotated[int, Field(ge=1)]
"""How many, at least one: rows, layers, steps, widths."""
Whole = Annotated[int, Field(ge=0)]
"""How many, perhaps none: 0 mostly stands for never."""
Rate = Annotated[float, Field(gt=0, lt=1)]
"""A step size of gradient descent."""
Positive = Annotated[float, Field(gt=0)]
"""A time, a scale, a temperature."""
NotNegative = Annotated[float, Field(ge=0)]
"""A weight, a noise, a time that may be none."""
Share = Annotated[float, Field(ge=0, le=1)]
"""A part of a whole, or a probability."""
Part = Annotated[float, Field(gt=0, lt=1)]
"""A part that is neither nothing nor everything: an expectile, a quantile."""
Discount = Annotated[float, Field(ge=0, le=1)]
"""Of a reward one step later."""
Average = Annotated[float, Field(ge=0, lt=1)]
"""The part of a running mean that stays: a beta of Adam; 0 keeps nothing."""
Mixing = Annotated[float, Field(gt=0, le=1)]
"""The part by which a slow copy moves towards its network: tau."""
Bins = Annotated[int, Field(ge=2)]
"""Atoms of a distribution, or values of an action's component: two are the fewest that differ."""
Number = Annotated[float, Meaning("a number")]
"""Any, of either sign: a log deviation, an offset, a reward."""
Bound = Annotated[float | tuple[float, ...], Meaning("a number, or a list of them")]
"""Of a vector: one for all components, or one for each."""
Interval = Annotated[tuple[float, float], AfterValidator(_check_order), Meaning("two numbers, [low,high]")]
"""From where to where something is drawn; the ends may be the same."""
Support = Annotated[tuple[float, float], AfterValidator(_apart), Meaning("two numbers, [low,high]")]
"""Of a distribution over returns."""
Pixels = Annotated[tuple[Count, Count], Meaning("two whole numbers of at least 1, [height,width]")]
"""Height and width of a picture."""
Device = Annotated[
    str, Field(pattern=r"^(cpu|cuda|mps|xpu)(:\d{1,3})?$"), Meaning("cpu, cuda, or cuda:<number> for one of several")
]
"""Where tensors live."""


class Options(BaseModel):
    """Base of every options class; a field states its type, its default, its range and, below it, what it means.

    What is wrong is one sentence, a `ValueError`, also where they are made in Python. Frozen, so that what was checked
    stays checked; unknown names are refused. What a method is given by whoever builds it (its interface, seed, device)
    is no option.

    ```python
    class IqlOptions(Options):
        expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7
        \"\"\"Of the value loss; 0.9 for AntMaze.\"\"\"
    ```

    Attributes:
        pictures_only: names of options that act where pictures are observed, and on nothing elsewhere.
    """

    pictures_only: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
    )

    if not TYPE_CHECKING:  # the constructor that the fields make is the one that is checked

        def __init__(self, **values: object) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ValueError(option_error(error, type(self), "", type(self).__name__)) from error

        __init__.__pydantic_base_init__ = True  # options within options are read as before, with their place
