"""robot_rl: train, improve and deploy robot control policies, from simulation to the robot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from robot_rl.version import VERSION as __version__

if TYPE_CHECKING:
    from robot_rl.api import RunResult, evaluate, load, make, offline, resume, train

__all__ = ["RunResult", "__version__", "evaluate", "load", "make", "offline", "resume", "train"]


def __getattr__(name: str) -> Any:
    """The verbs from Python, loaded on first use: rooms below and the robot's nodes import no Hydra for them."""
    if name not in __all__:
        raise AttributeError(f"module 'robot_rl' has no attribute '{name}'")
    from robot_rl import api

    return vars(api)[name]
