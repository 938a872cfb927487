"""Maps, which say what columns or topics of a log are: YAML, checked against a class that states its keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from robot_rl.data import foreign
from robot_rl.data.findings import refusal
from robot_rl.types import Options
from robot_rl.types.option_words import file_error

Map = TypeVar("Map", bound=Options)
Real = Annotated[float, Field(strict=True)]
"""A number; no text that looks like one, and no truth."""
Hertz = Annotated[float, Field(strict=True, gt=0, le=1e5)]
Word = Annotated[str, BeforeValidator(str)]
"""A text, which YAML may have taken for a number."""


def read_map(given: str | Path | Mapping[str, object], model: type[Map], wanted: str, known: Path | None = None) -> Map:
    """A map by its file, or its content.

    Args:
        given: file, name of one of the `known`, or content.
        model: its keys.
        wanted: what is expected in the place of a file that is not there, in words.
        known: folder of maps that have names.

    Raises:
        BadData: there is no such file, or something in it is wrong.
    """
    if isinstance(given, Mapping):
        return check_map("the map", given, model)
    file = Path(given)
    if known is not None and not file.exists() and (known / f"{given}.yaml").exists():
        file = known / f"{given}.yaml"
    if not file.is_file():
        raise refusal("map", f"there is no map '{given}'; expected {wanted}")
    return check_map(str(given), foreign.read_yaml(file), model)


def check_map(name: str, values: Mapping[str, object], model: type[Map]) -> Map:
    """The content of a map, once it is sure that it is one; null stands for what is left out.

    Raises:
        BadData: names the map and what is wrong in it.
    """
    try:
        return model.model_validate({str(key): value for key, value in values.items() if value is not None})
    except ValidationError as error:
        repair = f"a map has {', '.join(sorted(model.model_fields))} (docs/data.md)"
        raise refusal("map", f"{name}: {file_error(error, model, 'a map')}", repair) from error
