"""Small reads of what a world answers: flags that are flags, a reward and its terms, the view of some environments."""

from __future__ import annotations

import numpy as np

from robot_rl.sim.scene import Sensors
from robot_rl.sim.world import View, World


def pay(world: World, view: View) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The reward (N,) float32, and the named terms (N,) float32 that it was added up from, if it was (`View.total`)."""
    view.terms = {}
    reward = np.asarray(world.reward(view), np.float32)
    return reward, {name: np.array(term, np.float32) for name, term in view.terms.items()}


def flags(value: object, world: str, term: str) -> np.ndarray:
    """A copy of (N,) flags.

    Raises:
        TypeError: they are not bool.
    """
    found = np.array(value)
    if found.dtype != bool:  # a distance would count as true wherever it is not exactly 0
        raise TypeError(f"{world}.{term} returned {found.dtype}, expected bool (N,); compare with a threshold")
    return found


def select(view: View, rows: np.ndarray) -> View:
    """The view of some environments, as copies."""
    arrays = ("qpos", "qvel", "ctrl", "action", "previous_action", "step")
    return View(
        xp=view.xp,
        sensors=Sensors({key: value[rows] for key, value in view.sensors.items()}),
        task={key: value[rows] for key, value in view.task.items()},
        **{name: vars(view)[name][rows] for name in arrays},
    )
