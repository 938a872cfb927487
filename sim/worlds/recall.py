"""A cue that is shown once decides where to go later: a task that needs a memory."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from robot_rl.sim.array_env import Reward
from robot_rl.types import IOSpec

_DT = 0.1  # s
_NEAR = 0.1  # m


class Recall:
    """Stand below the lamp that was lit in the first tenth of the episode.

    While it is lit the cart is held, so that its place cannot remember for the policy. Observation: the lamp, -1
    or 1 while it is lit and 0 afterwards; 1 when the cart is let go; its place [m]. Action: speed, up to 1 m/s. Reward
    of a step: 1 - |place - lamp| once it is let go, which is 0 on average for whoever does not know the side. Success:
    within 10 cm of the lamp, so that a guess succeeds in half of the episodes.

    Args:
        steps: of an episode, 0.1 s each.
    """

    expert = None  # one observation does not tell the side

    def __init__(self, steps: Annotated[int, Field(ge=30)] = 50) -> None:
        self.episode_steps, self._lit = steps, steps // 10
        names = ("lamp", "free", "place")
        self.io = IOSpec(
            {"state": ((3,), "float32")}, ("speed",), (-1.0,), (1.0,), ("m/s",), control_hz=1.0 / _DT, obs_names=names
        )

    def start(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Within 0.2 m of the middle, either lamp; the place says nothing of it."""
        side, place = rng.choice((-1.0, 1.0)), rng.uniform(-0.2, 0.2)
        return {"side": np.array(side), "place": np.array(place), "tick": np.array(0)}

    def step(self, state: dict[str, np.ndarray], action: np.ndarray) -> tuple[Reward, np.ndarray, np.ndarray]:
        """One step of 0.1 s; nothing ends an episode but time."""
        free = state["tick"] >= self._lit
        state["place"] = np.clip(state["place"] + _DT * action[:, 0] * free, -1.0, 1.0)
        state["tick"] = state["tick"] + 1
        gap = np.abs(state["place"] - state["side"])
        return free * (1.0 - gap), np.zeros(len(gap), bool), gap < _NEAR

    def observe(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """(N, 3)."""
        free = state["tick"] >= self._lit
        return np.stack([np.where(free, 0.0, state["side"]), free, state["place"]], 1).astype(np.float32)

    def privileged(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What is seen, and which lamp it was."""
        lamp, free, place = self.observe(state).T
        return {"lamp": lamp, "free": free, "place": place, "side": state["side"]}

    def picture(self, state: dict[str, np.ndarray], row: int) -> np.ndarray:
        """The cart, both lamps, and which is lit; 64 x 128."""
        frame = np.full((64, 128, 3), 235, np.uint8)
        lit = bool(state["tick"][row] < self._lit)
        for side in (-1.0, 1.0):
            x = 64 + round(54 * side)
            shines = lit and side == float(state["side"][row])
            frame[8:20, x - 6 : x + 6] = (240, 190, 40) if shines else (120, 120, 120)
        x = 64 + round(54 * float(state["place"][row]))
        frame[36:52, x - 8 : x + 8] = (190, 70, 70)
        return frame
