"""Gymnasium tasks of the user's own: classes and functions of a file, "./my_task.py:MyTask"; wrappers with moments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import gymnasium
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from robot_rl.extras import own


def is_file(id: str) -> bool:
    """Whether an id is no name of the registry but a class or function of a file."""
    return id.rpartition(":")[0].endswith(".py")


def make(id: str, options: Mapping[str, object]) -> gymnasium.Env:
    """One environment of the class, or what the function answers.

    Raises:
        ValueError: the user did not name it on the command line, it makes no environment, or takes other options.
    """
    kind = own(id, "id=")
    if not (inspect.isfunction(kind) or (isinstance(kind, type) and issubclass(kind, gymnasium.Env))):
        raise ValueError(
            f"{id} is no environment; expected a class that inherits from gymnasium.Env, or a function that makes one"
        )
    try:
        env = kind(**options)
    except TypeError as error:
        raise ValueError(f"{id} cannot be made with env.kwargs={dict(options)}: {error}") from error
    if not isinstance(env, gymnasium.Env):
        raise ValueError(f"{id} makes {type(env).__name__}, which is no gymnasium.Env; a world is named by its class")
    return env


def find_moments(env: gymnasium.Env) -> tuple[str, ...]:
    """Sentences about wrappers whose moments belong to one copy, so that every other copy gives other numbers."""
    found: list[str] = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, NormalizeObservation):
            found.append(
                "NormalizeObservation counts anew in every copy, so evaluations, resumed runs and robots see other "
                "numbers than training did: leave it out, and standardise with policy.normalize_obs=true"
            )
        if isinstance(env, NormalizeReward):
            found.append(
                "NormalizeReward changes what evaluations report, too: leave it out (policy=online/ppo normalises "
                "rewards itself)"
            )
        env = env.env
    return tuple(found)
