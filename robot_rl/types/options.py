"""Options of a method, a world or a verb: names, types, ranges and one line of explanation each, stated once."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


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
