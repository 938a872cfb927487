"""What the user reads when a request cannot be carried out: one sentence that says how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError


class Refused(Exception):
    """The request cannot be carried out; the message is the paragraph that the user reads."""


def near(given: str, known: Iterable[str], most: int = 2) -> str:
    """ "; did you mean …?" with the nearest names, else "; expected one of …"."""
    known = sorted(known)
    short = {name.rpartition("/")[2]: name for name in known}
    found = difflib.get_close_matches(given, known, most) or [
        short[name] for name in difflib.get_close_matches(given.rpartition("/")[2], short, most)
    ]
    if found:
        return f"; did you mean {' or '.join(found)}?"
    shown = ", ".join(known[:12]) + (" …" if len(known) > 12 else "")
    return f"; expected one of {shown}" if known else ""


EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
    "tuple_type": "a list such as [256,256]",
    "list_type": "a list such as [256,256]",
    "dict_type": "names with values, {name:value}",
    "mapping_type": "names with values, {name:value}",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "too_short": "at least {min_length} values",
    "too_long": "at most {max_length} values",
}
"""pydantic's kind of error -> what was expected, in words."""


def option_error(error: ValidationError, model: type[BaseModel], where: str, name: str) -> str:
    """pydantic's list as our sentence: the first thing that is wrong, what was expected and the near name."""
    first = error.errors(include_url=False)[0]
    place = [str(item) for item in first["loc"]]
    option, given = f"{where}.{place[0]}" if place else where, first["input"]
    kind, facts = str(first["type"]), dict(first.get("ctx", {}))
    if kind == "extra_forbidden":
        known = list(model.model_fields)
        hint = near(place[0], known) if known else "; it has no options"
        if place[0] in ("gamma", "seed", "device"):
            hint = f"; {place[0]}=… (without {where}.) sets it for the whole run"
        return f"{option} is no option of {name}{hint}"
    if kind == "missing":
        return f"{option} has to be given: {option}=<{_meaning(model, place[0]) or '...'}>"
    wanted = _wanted(error, kind, facts, model.model_fields.get(place[0]) if place else None)
    choice = near(str(given), _choices(facts)) if kind == "literal_error" else ""
    return f"{option} is {_show(given)}, expected {wanted}{choice if 'did you mean' in choice else ''}"


def _wanted(error: ValidationError, kind: str, facts: dict[str, Any], field: Any) -> str:
    if kind == "literal_error":
        return "one of " + ", ".join(_choices(facts))
    found = error.errors(include_url=False)
    same = [item for item in found if item["loc"][:1] == found[0]["loc"][:1]]
    parts = []
    for item in same:  # the members of a union, each with what it would have taken
        words = EXPECTED.get(str(item["type"]))
        if words is None:
            words = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
        parts.append(words.format(**item.get("ctx", {})))
    if field is not None and not field.is_required() and field.default is None:
        parts.append("null")
    return " or ".join(dict.fromkeys(parts))


def _choices(facts: dict[str, Any]) -> list[str]:
    return [
        item.strip(" '") for item in str(facts.get("expected", "")).replace(" or ", ", ").split(",") if item.strip()
    ]


def _meaning(model: type[BaseModel], name: str) -> str:
    field = model.model_fields.get(name)
    return (field.description or "").partition(".")[0] if field is not None else ""


def _show(value: Any) -> str:
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) < 80 else text[:77] + "..."
