"""Trained agents that come with the package: checkpoints with the actor alone, and a card each.

    robot-rl eval preset=Hopper-v5           the number of its card
    robot-rl train preset=Hopper-v5          the training that it comes from

`card.json` says how an agent was trained and evaluated and what came out; `python -m benchmarks.online.zoo` makes both.
"""

from __future__ import annotations

from pathlib import Path

from robot_rl.words import Refused, near

FOLDER = Path(__file__).parent / "policies" / "zoo"


def names() -> list[str]:
    """Tasks that an agent is here for."""
    return sorted(card.parent.name for card in FOLDER.glob("*/card.json"))


def find(name: str) -> Path:
    """The checkpoint folder of an agent, for `robot_rl.load` and wherever a run folder is asked for.

    Raises:
        Refused: there is none of this name.
    """
    if name not in names():
        raise Refused(f"no trained agent is named '{name}'{near(name, names())}; there are {', '.join(names())}")
    return FOLDER / name


def as_path(word: str, option: str = "path") -> str:
    """`preset=NAME` of a verb that takes a trained policy, as the path that it stands for; other words as they are.

    Args:
        word: of a command line.
        option: of the verb, that takes the path.

    Raises:
        Refused: there is no agent of this name.
    """
    key, equals, name = word.partition("=")
    return f"{option}={find(name)}" if key == "preset" and equals else word
