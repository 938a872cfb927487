"""A Gymnasium task that is a class of the user's own file, without a registration: "./my_task.py:MyTask"."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium

from robot_rl.extras import own


def is_file(id: str) -> bool:
    """Whether an id is no name of the registry but a class of a file."""
    return id.rpartition(":")[0].endswith(".py")


def is_task(found: object) -> bool:
    """Whether this is a class of Gymnasium's, and so no world of ours."""
    return isinstance(found, type) and issubclass(found, gymnasium.Env)


def make(id: str, options: Mapping[str, object]) -> gymnasium.Env:
    """One environment of the class.

    Raises:
        ValueError: the user did not name it on the command line, it is no such class, or takes other options.
    """
    kind = own(id, "id=")
    if not is_task(kind):
        raise ValueError(f"{id} is no environment; expected a class that inherits from gymnasium.Env")
    try:
        return kind(**options)
    except TypeError as error:
        raise ValueError(f"{id} cannot be made with env.kwargs={dict(options)}: {error}") from error
