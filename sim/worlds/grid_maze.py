"""A maze on a grid that is another one in every episode: walls, agent and goal are seen, the way is not."""

from __future__ import annotations

from collections import deque

import numpy as np

from robot_rl.types import IOSpec
from robot_rl.types.options import Count, Share

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Up, down, left, right as (row, column): action i is the largest of the four components."""


class GridMaze:
    """Walk from a random cell to a random goal through a maze drawn for each episode.

    Observation: three planes of size x size, flattened: walls, agent, goal (1 or 0). Action: four numbers, the largest
    says where to step; into a wall means standing still. Reward 1 at the goal, which ends the episode, 0.

    Args:
        size: cells of a side, odd, the outer ring being walls.
        openings: share of inner walls knocked out after a perfect maze was carved: several ways then lead to the goal.
        steps: limit.

    Raises:
        ValueError: size even or below 5, or openings no share.
    """

    def __init__(self, size: Count = 9, openings: Share = 0.1, steps: Count = 60) -> None:
        if size < 5 or size % 2 == 0 or not 0.0 <= openings <= 1.0 or steps < 1:
            raise ValueError(
                f"size, openings, steps are {size}, {openings}, {steps}; expected an odd number of at least 5, a "
                "share, and at least 1"
            )
        self.size, self.openings, self.episode_steps = size, openings, steps
        self.io = IOSpec(
            {"state": ((3 * size * size,), "float32")}, ("up", "down", "left", "right"), (-1.0,) * 4, (1.0,) * 4,
            ("1",) * 4, control_hz=5.0,
        )  # fmt: skip

    def start(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """A maze, an agent and a goal."""
        n = self.size
        wall = np.ones((n, n), bool)
        wall[1, 1] = False
        stack = [(1, 1)]
        while stack:  # depth first: a tree of corridors
            y, x = stack[-1]
            ways = [(dy, dx) for dy, dx in MOVES if 0 < y + 2 * dy < n - 1 and 0 < x + 2 * dx < n - 1]
            ways = [(dy, dx) for dy, dx in ways if wall[y + 2 * dy, x + 2 * dx]]
            if not ways:
                stack.pop()
                continue
            dy, dx = ways[int(rng.integers(len(ways)))]
            wall[y + dy, x + dx] = wall[y + 2 * dy, x + 2 * dx] = False
            stack.append((y + 2 * dy, x + 2 * dx))
        inner = np.zeros_like(wall)
        inner[1:-1, 1:-1] = True
        wall &= ~(inner & (rng.random((n, n)) < self.openings))
        free = np.argwhere(~wall)
        agent, goal = free[rng.choice(len(free), 2, replace=False)]
        return {"wall": wall, "agent": agent.astype(np.int64), "goal": goal.astype(np.int64)}

    def step(self, state: dict[str, np.ndarray], action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Move where the largest component says."""
        there = state["agent"] + np.asarray(MOVES)[action.argmax(1)]
        rows = np.arange(len(there))
        blocked = state["wall"][rows, there[:, 0], there[:, 1]]
        state["agent"] = np.where(blocked[:, None], state["agent"], there)
        done = (state["agent"] == state["goal"]).all(1)
        return done.astype(np.float32), done, done

    def observe(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """(N, 3 size^2): walls, agent, goal."""
        count = len(state["agent"])
        planes = np.zeros((count, 3, self.size, self.size), np.float32)
        planes[:, 0] = state["wall"]
        for i, name in enumerate(("agent", "goal"), 1):
            planes[np.arange(count), i, state[name][:, 0], state[name][:, 1]] = 1.0
        return planes.reshape(count, -1)

    def expert(self, obs: np.ndarray) -> np.ndarray:
        """A shortest way's first step, of several that of the lowest number."""
        planes = np.asarray(obs).reshape(len(obs), 3, self.size, self.size) > 0.5
        action = -np.ones((len(obs), 4), np.float32)
        for i, (wall, agent, goal) in enumerate(planes):
            distance = distances(wall, tuple(np.argwhere(goal)[0]))
            y, x = np.argwhere(agent)[0]
            action[i, int(np.argmin([distance[y + dy, x + dx] for dy, dx in MOVES]))] = 1.0
        return action

    def picture(self, state: dict[str, np.ndarray], row: int) -> np.ndarray:
        """Walls dark, agent blue, goal green, 24 pixels a cell."""
        frame = np.full((self.size, self.size, 3), 235, np.uint8)
        frame[state["wall"][row]] = 60
        frame[tuple(state["goal"][row])] = (40, 160, 70)
        frame[tuple(state["agent"][row])] = (50, 90, 200)
        return frame.repeat(24, 0).repeat(24, 1)


def distances(wall: np.ndarray, goal: tuple[int, int]) -> np.ndarray:
    """(n, n) steps to the goal; infinite in walls and where no way leads."""
    found = np.full(wall.shape, np.inf)
    found[goal] = 0.0
    queue = deque([goal])
    while queue:
        y, x = queue.popleft()
        for dy, dx in MOVES:
            there = (y + dy, x + dx)
            if not wall[there] and np.isinf(found[there]):
                found[there] = found[y, x] + 1.0
                queue.append(there)
    return found
