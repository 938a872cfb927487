"""Options of a method, a world or a verb: names, types, ranges and one line of explanation each, stated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


@dataclass(frozen=True)
class Meaning:
    """What a value has to be, in words, where type and range do not say it: `Annotated[str, Meaning("a folder")]`."""

    text: str


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
Mixing = Annotated[float, Field(gt=0, le=1)]
"""The part by which a slow copy moves towards its network: tau."""
Pixels = Annotated[tuple[Count, Count], Meaning("two whole numbers of at least 1, [height,width]")]
"""Height and width of a picture."""
Device = Annotated[
    str, Field(pattern=r"^(cpu|cuda|mps|xpu)(:\d{1,3})?$"), Meaning("cpu, cuda, or cuda:<number> for one of several")
]
"""Where tensors live."""


class Options(BaseModel):
    """Base of every options class; a field states its type, its default, its range and, below it, what it means.

    Frozen, so that what was checked stays checked; unknown names are refused. What a method is given by whoever builds
    it (its interface, seed, device) is no option.

    ```python
    class IqlOptions(Options):
        expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7
        \"\"\"Of the value loss; 0.9 for AntMaze.\"\"\"
    ```
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
    )
