"""Several agents spread over as many places: cover all of them, whoever goes where."""

from __future__ import annotations

import numpy as np

from robot_rl.types import IOSpec
from robot_rl.types.options import Count, Positive


class Spread:
    """N points on a square of side 2 move to N landmarks; one reward for all.

    Observation: per agent its place and the vectors to all landmarks, 2 + 2 N numbers, agents one behind another:
    alike for every agent, so that exchanging two of them exchanges their parts. Action: velocity of every agent in x
    and y, at most 1 per second. Reward: minus the mean distance of the landmarks from their nearest agents. Success:
    every landmark has an agent within 0.1. Who covers which has to be agreed on: two agents at one landmark leave
    another bare.

    Args:
        agents: N.
        seconds: length of an episode.

    Raises:
        ValueError: fewer than one agent, or an episode without a step.
    """

    def __init__(self, agents: Count = 3, seconds: Positive = 2.5) -> None:
        if agents < 1 or seconds < 0.1:
            raise ValueError(f"agents, seconds are {agents}, {seconds}; expected at least 1 and 0.1")
        self.agents, self._dt, self.episode_steps = agents, 0.1, round(seconds * 10)
        names = tuple(f"agent{i}_{axis}" for i in range(agents) for axis in "xy")
        seen = ["x", "y", *(f"to_landmark{j}_{axis}" for j in range(agents) for axis in "xy")]
        self.io = IOSpec(
            {"state": ((agents * (2 + 2 * agents),), "float32")}, names, (-1.0,) * (2 * agents),
            (1.0,) * (2 * agents), ("1",) * (2 * agents), control_hz=10.0,
            obs_names=tuple(f"agent{i}.{name}" for i in range(agents) for name in seen),
        )  # fmt: skip

    def start(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Agents and landmarks anywhere."""
        return {"place": rng.uniform(-1, 1, (self.agents, 2)), "landmark": rng.uniform(-1, 1, (self.agents, 2))}

    def _nearest(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """(rows, landmarks) distance from the nearest agent."""
        gap = state["landmark"][:, :, None] - state["place"][:, None]
        return np.linalg.norm(gap, axis=-1).min(2)

    def step(self, state: dict[str, np.ndarray], action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Move; nobody leaves the square."""
        moved = state["place"] + self._dt * action.reshape(len(action), self.agents, 2)
        state["place"] = np.clip(moved, -1.0, 1.0)
        far = self._nearest(state)
        return -far.mean(1), np.zeros(len(far), bool), np.asarray((far < 0.1).all(1))

    def observe(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """(rows, N (2 + 2 N))."""
        to = state["landmark"][:, None] - state["place"][:, :, None]
        parts = [state["place"], to.reshape(*to.shape[:2], -1)]
        return np.concatenate(parts, 2).reshape(len(to), -1).astype(np.float32)

    def expert(self, obs: np.ndarray) -> np.ndarray:
        """Each landmark in turn takes the nearest agent that is still free; straight there."""
        seen = np.asarray(obs).reshape(len(obs), self.agents, 2 + 2 * self.agents)
        to = seen[:, :, 2:].reshape(len(obs), self.agents, self.agents, 2)
        distance = np.linalg.norm(to, axis=-1)
        action = np.zeros((len(obs), self.agents, 2), np.float32)
        rows = np.arange(len(obs))
        for landmark in range(self.agents):
            chosen = distance[:, :, landmark].argmin(1)
            action[rows, chosen] = to[rows, chosen, landmark] / self._dt
            distance[rows, chosen] = np.inf
        return np.clip(action, -1.0, 1.0).reshape(len(obs), -1)

    def picture(self, state: dict[str, np.ndarray], row: int) -> np.ndarray:
        """Landmarks green, agents blue."""
        frame = np.full((208, 208, 3), 245, np.uint8)
        for name, colour, half in (("landmark", (60, 170, 80), 9), ("place", (50, 90, 200), 5)):
            for x, y in state[name][row]:
                column, line = int((x + 1) * 96) + 8, int((1 - y) * 96) + 8
                frame[max(line - half, 0) : line + half, max(column - half, 0) : column + half] = colour
        return frame
