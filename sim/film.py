"""Pictures of N environments that are taken anew only every so many control steps, and held in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from robot_rl.types import StateDict


class Film:
    """The newest picture of each camera and environment.

    Drawing dominates the cost of a step where a processor draws; a policy that decides every k steps looks at every
    k-th picture only.

    Args:
        cameras: names.
        every: control steps of an episode between two pictures; the first observation always has a new one.

    Raises:
        ValueError: `every` is below 1.
    """

    def __init__(self, cameras: Sequence[str], every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"camera_every is {every}, expected 1 or more control steps")
        self._cameras, self._every = tuple(cameras), every
        self._held: dict[str, np.ndarray] = {}

    def take(
        self,
        rows: np.ndarray,
        step: np.ndarray,
        draw: Callable[[np.ndarray], dict[Any, np.ndarray]],
        *,
        anew: bool,
        ended: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Pictures of all environments, those of `rows` as new as they are due.

        Args:
            rows: (n,) environments that have moved.
            step: (N,) control steps since their resets.
            draw: environments (m,) -> camera -> (m, height, width, 3) uint8.
            anew: take new ones of all rows, due or not.
            ended: (N,) bool, whose episode is over: the last picture is new as well.

        Returns:
            "image.<camera>" -> (N, height, width, 3) uint8, arrays of their own.
        """
        last = False if ended is None else ended[rows]
        due = rows if anew or not self._held else rows[(step[rows] % self._every == 0) | last]
        if len(due):
            for name, value in draw(due).items():
                if f"image.{name}" not in self._held:
                    self._held[f"image.{name}"] = np.zeros((len(step), *value.shape[1:]), np.uint8)
                self._held[f"image.{name}"][due] = value
        return {key: value.copy() for key, value in self._held.items()}

    def state_dict(self) -> dict[str, np.ndarray]:
        """What is held, where it cannot be drawn again."""
        return {f"film.{key}": value.copy() for key, value in self._held.items()} if self._every > 1 else {}

    def load_state_dict(self, state: StateDict) -> dict[str, np.ndarray]:
        """Go on with what was held; returns it as `take` does, empty where everything is drawn anew anyway."""
        for key in self._held:
            if f"film.{key}" in state:
                self._held[key] = np.array(state[f"film.{key}"], np.uint8)
        return {key: value.copy() for key, value in self._held.items()}
