"""An option that is wrong, in one sentence: what it is, what was expected, and the near name."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails


@dataclass(frozen=True)
class Meaning:
    """What a value has to be, in words, where type and range do not say it: `Annotated[str, Meaning("a folder")]`."""

    text: str


def near(given: str, known: Iterable[str], most: int = 2) -> str:
    """ "; did you mean …?" with the nearest names, else "; expected one of …"."""
    known = sorted(known)
    short = {name.rpartition("/")[2]: name for name in known}
    given = given if given in known else given.lower()
    found = difflib.get_close_matches(given, known, most) or [
        short[name] for name in difflib.get_close_matches(given.rpartition("/")[2], short, most)
    ]
    if found:
        return f"; did you mean {' or '.join(found)}?"
    shown = ", ".join(known[:12]) + (" …" if len(known) > 12 else "")
    return f"; expected one of {shown}" if known else ""


def option_error(error: ValidationError, model: type[BaseModel], where: str, name: str) -> str:
    """pydantic's list as our sentence: the first thing that is wrong, what was expected and the near name.

    Args:
        error: of the model.
        model: the options.
        where: prefix of the options on the command line, "" where they have none.
        name: of what the options are of.
    """
    first = _first(error)
    place, kind = [str(item) for item in first["loc"]], str(first["type"])
    value = first["input"]
    while len(place) > 1 and _inner(model, place[0]):  # options of options
        model, where = _inner(model, place[0]), _join(where, place[0])  # type: ignore[assignment]
        name, place = where, place[1:]
    said = str(first["msg"]).removeprefix("Value error, ")
    if not place:
        return said
    option, field = _join(where, place[0]), model.model_fields.get(place[0])
    if kind == "extra_forbidden":
        known = list(model.model_fields)
        hint = near(place[0], known) if known else "; it has no options"
        if place[0] in ("gamma", "seed", "device") and place[0] not in known:
            hint = f"; {place[0]}=… (without {where}.) sets it for the whole run"
        return f"{option} is no option of {name}{hint}"
    if kind == "missing" or field is None:
        names = [str(item["loc"][-1]) for item in error.errors(include_url=False) if item["type"] == "missing"]
        shown = " ".join(f"{_join(where, key)}=<{_line(model.model_fields.get(key)) or '...'}>" for key in names)
        return f"{'this has' if len(names) == 1 else 'these have'} to be given: {shown}"
    if kind == "value_error":
        return f"{option}{'' if isinstance(value, Mapping) else f' is {_show(value)}'}: {said}"
    choices = _choices(field.annotation)
    hint = near(str(value), choices) if isinstance(value, str) and choices else ""
    return f"{option} is {_show(value)}, expected {describe_field(field)}{hint if 'did you mean' in hint else ''}"


def file_error(error: ValidationError, model: type[BaseModel], noun: str) -> str:
    """The same of a file, with the whole way to the key, which goes through lists and tables.

    Args:
        error: of the model.
        model: what the file holds.
        noun: for it, such as "a card".
    """
    first = _first(error)
    place = ".".join(str(item) for item in first["loc"] if not str(item).startswith(("constrained", "literal[")))
    if len(first["loc"]) < 2 and first["loc"]:
        return option_error(error, model, "", noun)
    if first["type"] == "extra_forbidden":
        way = list(first["loc"])
        key = str(way.pop())
        there = _model_at(model, way)
        return f"{place} is no key of {noun}{'' if there is None else near(key, there.model_fields)}"
    said = str(first["msg"]).removeprefix("Value error, ")
    return f"{place}: {said} (it is {str(first['input'])[:60]!r})" if place else said


def _first(error: ValidationError) -> ErrorDetails:
    """The complaint to begin with: a key that is not known, which may be the one that is missing, misspelt."""
    found = error.errors(include_url=False)
    return next((item for item in found if item["type"] == "extra_forbidden"), found[0])


def describe_field(field: FieldInfo) -> str:
    """Type and range of an option in words: "a whole number of at least 1"."""
    return _describe(field.annotation, field.metadata)


def _describe(kind: object, facts: Sequence[object] = ()) -> str:
    for fact in facts:
        if isinstance(fact, Meaning):
            return fact.text
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _describe(inner[0], [*facts, *_flat(inner[1:])])
    if origin is Literal:
        return ("one of " if len(inner) > 2 else "") + _either([_word(item) for item in inner])
    if origin in (Union, types.UnionType):
        return _either(dict.fromkeys(_describe(item, facts) for item in inner), " or ")
    if kind is type(None) or kind is None:
        return "null"
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        return _number("a whole number" if kind is int else "a number", _flat(facts))
    if kind is str:
        return "a text"
    if (isinstance(kind, type) and issubclass(kind, BaseModel)) or origin in (dict, Mapping) or kind in (dict, Mapping):
        return "names with values, {name: value}"
    if origin in (tuple, list, frozenset) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        parts = [item for item in inner if item is not ...]
        if origin is tuple and ... not in inner and parts:
            return f"a list of {len(parts)}: " + ", ".join(_describe(item) for item in parts)
        return f"a list, each {_describe(parts[0])}" if parts else "a list"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return "names with values, {name: value}"
    return "any value"


def _number(word: str, facts: Sequence[object]) -> str:
    low = next((fact for fact in facts if isinstance(fact, (Ge, Gt))), None)
    high = next((fact for fact in facts if isinstance(fact, (Le, Lt))), None)
    closed, open_ = isinstance(low, Ge), isinstance(high, Lt)
    least = None if low is None else (low.ge if isinstance(low, Ge) else low.gt)
    most = None if high is None else (high.le if isinstance(high, Le) else high.lt)
    if low is not None and high is not None:
        return f"{word} in {'[' if closed else '('}{least:g}, {most:g}{')' if open_ else ']'}"
    if low is not None:
        return f"{word} {'of at least' if closed else 'above'} {least:g}"
    return word if high is None else f"{word} {'below' if open_ else 'of at most'} {most:g}"


def _flat(facts: Iterable[object]) -> list[object]:
    """The facts of `Field(ge=0)` among others."""
    return [part for fact in facts for part in (fact.metadata if isinstance(fact, FieldInfo) else [fact])]


def _either(words: Iterable[str], last: str = " or ") -> str:
    words = list(words)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + last + words[-1]


def _word(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value) or "nothing"


def _choices(kind: object) -> list[str]:
    if get_origin(kind) is Literal:
        return [_word(item) for item in get_args(kind)]
    return list(dict.fromkeys(name for item in get_args(kind) for name in _choices(item)))


def _inner(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The class of an option that holds options, or null."""
    kind = model.model_fields[name].annotation if name in model.model_fields else None
    kinds = [item for item in get_args(kind) or (kind,) if item is not type(None)]
    one = kinds[0] if len(kinds) == 1 else None
    return one if isinstance(one, type) and issubclass(one, BaseModel) else None


def _model_at(model: type[BaseModel], way: Sequence[int | str]) -> type[BaseModel] | None:
    """The class of the table that a way through lists and tables leads to; None where it may be one of several."""
    for part in way:
        if isinstance(part, str):
            kinds = _models(model.model_fields[part].annotation) if part in model.model_fields else []
            if len(kinds) != 1:
                return None
            model = kinds[0]
    return model


def _models(kind: object) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for item in get_args(kind) for model in _models(item)]


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _line(field: FieldInfo | None) -> str:
    text = " ".join((field.description or "").split()).rstrip(".") if field is not None else ""
    return text.split("; ")[0].split(". ")[0].split(": ")[0]


def _show(value: object) -> str:
    text = f"'{value}'" if isinstance(value, str) else str(_word(value) if isinstance(value, bool) else value)
    return "null" if value is None else text if len(text) < 80 else text[:77] + "..."
