"""Write docs/reference/: every option of verbs, methods, worlds and other things, from the classes that state them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from robot_rl import build
from robot_rl.types.option_words import describe_field
from robot_rl.verbs.table import VERBS

FOLDER = Path(__file__).with_name("reference")
HEAD = ("| option | type and range | default | what it means |", "|---|---|---|---|")
PYTHON = ("robot_rl.types", "robot_rl.build", "robot_rl.advantage", "robot_rl.data.formats", "robot_rl.data.episode")


def rows(model: type[BaseModel], where: str = "") -> Iterator[str]:
    """A line of a table for each option, those of inner classes by their path."""
    defaults = build.values_of(model)
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from rows(kind, f"{where}{name}.")
            continue
        cells = (describe_field(field), _plain(defaults.get(name)), " ".join((field.description or "").split()))
        yield " | ".join((f"| `{where}{name}`", *(_cell(text) for text in cells))) + " |"


def table(title: str, model: type[BaseModel], text: str | None = None) -> list[str]:
    """A heading, what the thing is, and its options."""
    found = list(rows(model))
    said = [text.strip().split("\n")[0], ""] if text else []
    return [f"## {title}", "", *said, *((*HEAD, *found) if found else ("No options.",)), ""]


def verbs() -> list[str]:
    """Every verb that has a configuration."""
    lines = ["# Options of the verbs", "", "`robot-rl <verb> --help` prints the same. `???` has to be given.", ""]
    for word, verb in VERBS.items():
        lines += table(word, verb.options())
    return lines


def things(title: str, kinds: list[str]) -> list[str]:
    """Every name of some kinds."""
    lines = [f"# {title}", "", "As `<kind>=<name>`, options as `<kind>.<option>=`. `???` has to be given.", ""]
    for kind in kinds:
        for name in build.names(kind):
            found = build.find(kind, name)
            lines += table(name if len(kinds) == 1 else f"{kind}: {name}", build.options_of(kind, found), found.__doc__)
    return lines


def python() -> list[str]:
    """The page that mkdocstrings fills."""
    return ["# Python", "", *(line for name in PYTHON for line in (f"::: {name}", ""))]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return str(value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    plain = text.replace("|", "\\|").replace("<", "&lt;").replace("[", "&#91;")
    return plain.replace("*", "\\*")


def write() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    rest = [kind for kind in build.PLACES if kind != "policy"]
    pages = {
        "verbs": verbs(),
        "methods": things("Options of the methods", ["policy"]),
        "things": things("Options of worlds and the rest", rest),
        "python": python(),
    }
    for name, lines in pages.items():
        (FOLDER / f"{name}.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    write()
