"""Cards of robots as files: found by name or path, read strictly, written in a form that a person edits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from robot_rl.tables import TableError, read_table, table_text
from robot_rl.types import card_model
from robot_rl.types.card import CameraCard, Card, ServosCard
from robot_rl.types.card_model import READY, find_model, with_model
from robot_rl.words import file_error, near


class CardError(ValueError):
    """A card that cannot be used; the message names the file and the key."""


def ready() -> list[str]:
    """Names of the cards that come with the package."""
    return sorted(path.stem for path in READY.glob("*.yaml"))


def find(name: str) -> Path:
    """The file of a card: a path, or a name that stands for `./<name>.yaml` or for a card of this package.

    Raises:
        CardError: there is none.
    """
    path = Path(name).expanduser()
    path = path if path.suffix in (".yaml", ".yml") or "/" in name else Path(f"{name}.yaml")
    if not path.is_file() and name in ready():
        return READY / f"{name}.yaml"
    if not path.is_file():
        here = [item.stem for item in Path().glob("*.yaml")]
        raise CardError(
            f"there is no card '{name}' (looked for {path}){near(name, [*here, *ready()])}; write one with "
            f"robot-rl robot new <model.urdf or .xml> name={path.stem}, or take one that comes with the package: "
            f"{', '.join(ready())}"
        )
    return path


def find_own(name: str) -> Path:
    """The file of a card that is to be written.

    Raises:
        CardError: there is none, or it comes with the package.
    """
    path = find(name)
    if path.parent == READY:
        raise CardError(
            f"{name} is the card of every such robot; yours is robot-rl robot new {name} name=my_arm model=<file>"
        )
    return path


def is_card(table: object) -> bool:
    """Whether a table that was read is a card: a RobotSpec has no model."""
    return isinstance(table, Mapping) and "model" in table


def read(name: str | Path) -> Card:
    """A card from its file, with the model's path made absolute.

    Raises:
        CardError: no such file, not YAML, or a key that is unknown, stands twice, is missing or holds a wrong value.
    """
    path = find(str(name))
    try:
        table = read_table(path)
    except TableError as error:
        raise CardError(str(error)) from error
    if not is_card(table):
        raise CardError(f"{path} is no card: it names no model; robot-rl robot new writes one")
    card = of_table(table, str(path))
    return with_model(card, find_model(card.model.path, path.resolve().parent))


def in_file(path: Path) -> Card | None:
    """The card in a robot's file; None where that holds a plain RobotSpec.

    Raises:
        CardError, TableError: it cannot be read.
    """
    return read(path) if is_card(read_table(path)) else None


def need_model(card: Card) -> Card:
    """The card, whose model is there.

    Raises:
        CardError: it is not; says where it comes from and what to do.
    """
    try:
        return card_model.need_model(card)
    except ValueError as error:
        raise CardError(str(error)) from error


def of_table(table: Mapping[str, object], where: str) -> Card:
    """A card from plain values.

    Raises:
        CardError: a key that is unknown, is missing or holds a wrong value.
    """
    try:
        return Card.model_validate({str(key): value for key, value in table.items()})
    except ValidationError as error:
        raise CardError(f"{where}: {file_error(error, Card, 'a card')}") from error


def to_table(card: Card) -> dict[str, Any]:
    """Plain values of a card, without what is at its default of nothing."""
    return card.model_dump(mode="json", exclude_none=True)


def write(card: Card, path: Path) -> None:
    """Write a card; the model's path becomes relative to the file where both lie below one folder.

    Raises:
        CardError: the file exists.
    """
    if path.exists():
        raise CardError(f"{path} exists; take another name= or remove it")
    table = to_table(card)
    model = Path(card.model.path).resolve()
    if path.resolve().parent in model.parents:
        table["model"]["path"] = str(model.relative_to(path.resolve().parent))
    if not card.action.scale:
        del table["action"]
    stated = ("lower", "upper", "limit_slack")  # of these 0 says something
    table["joints"] = [{k: v for k, v in row.items() if v or k in stated} for row in table["joints"]]
    known = {
        key: value
        for key, value in table.items()
        if value or isinstance(value, (int, float)) or key == "controller_topic"
    }
    head = f"Card of {card.name}: the one source for simulation, safety and the ROS bridge. '?' = nobody knows yet."
    _replace(path, table_text(head, known))


def put_camera(path: Path, name: str, camera: CameraCard) -> None:
    """Put a camera into the file of a card; every other line stays as somebody wrote it.

    Raises:
        CardError: the file is no card.
    """
    told = read_table(path).get("cameras") or {}
    _put(path, "cameras", {**told, name: camera.model_dump(mode="json", exclude_none=True)})


def put_servos(path: Path, servos: ServosCard) -> None:
    """The same of the servos.

    Raises:
        CardError: the file is no card.
    """
    _put(path, "servos", servos.model_dump(mode="json"))


def _put(path: Path, name: str, table: Mapping[str, Any]) -> None:
    """Replace one table of the file of a card, or add it, a line for each of its keys."""
    text = path.read_text(encoding="utf-8")
    of_table({**read_table(path), name: table}, str(path))
    rows: list[str] = []
    for key, value in table.items():
        nested = isinstance(value, dict) and all(isinstance(item, dict) for item in value.values())
        style: dict[str, Any] = {"sort_keys": False, "width": 10_000}
        if nested or not isinstance(value, dict):
            said = yaml.safe_dump({key: value}, default_flow_style=None if nested else False, **style)
        else:
            said = f"{key}: {yaml.safe_dump(value, default_flow_style=True, **style)}"
        rows += [f"  {row}" for row in said.strip().splitlines()]
    lines, first, last = text.splitlines(), None, None
    for key, value in yaml.compose(text, Loader=yaml.SafeLoader).value:
        if key.value == name:
            first = key.start_mark.line
            while isinstance(value, yaml.CollectionNode) and not value.flow_style and value.value:
                value = value.value[-1][-1] if isinstance(value, yaml.MappingNode) else value.value[-1]
            last = value.end_mark.line + (value.end_mark.column > 0)  # of a block it lies behind the comments after it
    first = len(lines) if first is None else first
    made = [*lines[:first], f"{name}:", *rows, *lines[first if last is None else max(last, first + 1) :]]
    _replace(path, "\n".join(made) + "\n")


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
