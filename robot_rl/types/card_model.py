"""Where the model of a card is: beside it or, of a card that comes with the package alone, in the usual places."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from robot_rl.types.card import Card

READY = Path(__file__).parents[1] / "sim" / "assets" / "cards"
"""Cards that come with the package, without their models."""
MODELS = "ROBOT_RL_MODELS"
"""Environment variable: folders in which models of ready cards are looked for, between colons."""


def with_model(card: Card, model: Path) -> Card:
    """A card whose model lies at another place."""
    return card.model_copy(update={"model": card.model.model_copy(update={"path": str(model)})})


def find_model(name: str, beside: Path = READY) -> Path:
    """Where a card's model is: from its own folder or, of a ready card, the first of these places that has it: the
    current folder, those of ROBOT_RL_MODELS, and Python's packages (pip's robosuite ships models); it may be absent.

    Args:
        name: path in the card.
        beside: folder of the card.
    """
    own = Path(os.path.normpath(beside / Path(name).expanduser()))
    if own.is_file() or beside.resolve() != READY.resolve():
        return own
    named = [Path(folder).expanduser() for folder in os.environ.get(MODELS, "").split(os.pathsep) if folder]
    places = [Path.cwd(), *named, *map(Path, sys.path)]
    return next((place.resolve() / name for place in places if (place / name).is_file()), Path.cwd() / name)


def need_model(card: Card) -> Card:
    """The card, whose model is there.

    Raises:
        ValueError: it is not; says where it comes from and what to do.
    """
    path = Path(card.model.path)
    if path.is_file():
        return card
    if not card.model.source:
        raise ValueError(f"the model of {card.name}, {path}, is not there; put its path into the card (model: path)")
    raise ValueError(
        f"the model of {card.name} does not come with this package: {card.model.source}. Looked for "
        f"{path.parent.name}/{path.name} in this folder, in those of {MODELS} and in Python's packages. Say where "
        f'yours is: robot-rl robot new {card.name} name=my_{card.name} model="<path of {path.name}>", then '
        f"robot=my_{card.name}"
    )
