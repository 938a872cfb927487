"""Options of a class as lines of a page of help: name, default, type, range and what it means."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from robot_rl import build
from robot_rl.words import describe_field

WIDTH = 100


def words_page(text: str, model: type[BaseModel]) -> str:
    """The page of a verb without a configuration: its options, with two dashes each, in the place of $OPTIONS."""
    return text.replace("$OPTIONS", "\n".join(rows(model, "--")))


def rows(model: type[BaseModel], where: str, values: Mapping[str, object] | None = None) -> Iterator[str]:
    """Lines of a class: `name=default  type and range: what it means`.

    Args:
        model: the options.
        where: prefix of the names.
        values: in place of the class's defaults, where a preset has others.
    """
    values = {**build.values_of(model), **(values or {})}
    for name, field in model.model_fields.items():
        kind, value = field.annotation, values.get(name)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from rows(kind, f"{where}{name}.", value if isinstance(value, Mapping) else None)
            continue
        text = " ".join((field.description or "").split()).rstrip(".")
        text, kinds = f"{text[:1].upper()}{text[1:]}. " if text else "", describe_field(field)
        head = f"{where}{name}={_show(value)}"
        yield wrap(f"  {head:<24}  {text}{kinds[0].upper()}{kinds[1:]}.", " " * 28)


def _show(value: object) -> str:
    if isinstance(value, str):
        return "<...>" if value == "???" else value or "''"
    if isinstance(value, list):
        return f"[{','.join(_show(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_show(item)}" for key, item in value.items()) + "}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def wrap(line: str, indent: str) -> str:
    """A line at the width of the terminal, 60 to 100 columns, its other lines behind `indent`."""
    width = min(WIDTH, shutil.get_terminal_size().columns)
    return "\n".join(textwrap.wrap(line, max(width, 60), subsequent_indent=indent, break_on_hyphens=False))
