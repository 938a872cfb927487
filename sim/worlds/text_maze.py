"""Maze: walk from room to room by words, in a maze that is always the same, to a goal that changes."""

from __future__ import annotations

from collections import deque

import numpy as np

from robot_rl.types.options import Count, Whole

MOVES = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}


class TextMaze:
    """A maze with one path between any two rooms; "go north" and so on moves, if there is a door.

    Reaching the goal earns 1 and every turn costs 1 / max_turns, so the optimum is 1 - shortest path / max_turns. The
    world tells the room, its doors and the goal; the plan of the maze has to be learned.

    Args:
        size: rooms along each side, 2 to 9.
        goals: how many rooms can be the goal, spread over the maze.
        min_distance: shortest path from start to goal, at least.
        max_turns: turns after which the dialogue is cut.
        layout: seed of the plan.

    Raises:
        ValueError: an option outside its range, or no start is that far from a goal.
    """

    name = "text_maze"

    def __init__(
        self, size: Count = 4, goals: Count = 3, min_distance: Whole = 4, max_turns: Count = 20, layout: Whole = 0
    ) -> None:
        if not 2 <= size <= 9 or not 1 <= goals < size * size:
            raise ValueError(f"size is {size} and goals {goals}, expected 2 to 9 and 1 to {size * size - 1}")
        self.size, self.max_turns = size, max_turns
        self._doors = _plan(size, np.random.default_rng(layout))
        rooms = sorted(self._doors)
        self._goals = [rooms[i] for i in np.linspace(0, len(rooms) - 1, goals).round().astype(int)]
        self._distance = {goal: self._from(goal) for goal in self._goals}
        self._tasks = [
            (start, goal)
            for goal in self._goals
            for start in rooms
            if min_distance <= self._distance[goal][start] <= max_turns
        ]
        if not self._tasks:
            raise ValueError(f"no room is {min_distance} to {max_turns} moves from a goal; lower min_distance")
        self.vocabulary = ("doors", "goal", "reached", "wall", "what", "go", *MOVES, *map(_name, rooms))
        self._turn, self.success = 0, False
        self._start, self._goal = self._tasks[0]
        self._room = self._start

    @property
    def optimum(self) -> float:
        """Return of the shortest path."""
        return 1.0 - self.shortest / self.max_turns

    @property
    def shortest(self) -> int:
        """Moves of the shortest path from the start of this dialogue."""
        return self._distance[self._goal][self._start]

    @property
    def anchor(self) -> str:
        """Room and goal."""
        return f"{_name(self._room)} {_name(self._goal)}"

    def reset(self, seed: int) -> str:
        """Draw start and goal."""
        self._start, self._goal = self._tasks[int(np.random.default_rng(seed).integers(len(self._tasks)))]
        self._room, self._turn, self.success = self._start, 0, False
        return self._look()

    def step(self, utterance: str) -> tuple[str, float, bool, bool]:
        """Move, or stay where there is no door."""
        self._turn += 1
        words, prefix = utterance.split(), ""
        if len(words) != 2 or words[0] != "go" or words[1] not in MOVES:
            prefix = "what "
        elif words[1] not in self._doors[self._room]:
            prefix = "wall "
        else:
            self._room = self._doors[self._room][words[1]]
        cost = 1.0 / self.max_turns
        if self._room == self._goal:
            self.success = True
            return "reached", 1.0 - cost, True, False
        return prefix + self._look(), -cost, False, self._turn >= self.max_turns

    def expert(self) -> str:
        """A move along the shortest path."""
        distance = self._distance[self._goal]
        doors = self._doors[self._room]
        return "go " + min(doors, key=lambda move: distance[doors[move]])

    def _look(self) -> str:
        doors = " ".join(move for move in MOVES if move in self._doors[self._room])
        return f"{_name(self._room)} doors {doors} goal {_name(self._goal)}"

    def _from(self, goal: tuple[int, int]) -> dict[tuple[int, int], int]:
        distance, line = {goal: 0}, deque([goal])
        while line:
            room = line.popleft()
            for other in self._doors[room].values():
                if other not in distance:
                    distance[other] = distance[room] + 1
                    line.append(other)
        return distance


def _plan(size: int, draw: np.random.Generator) -> dict[tuple[int, int], dict[str, tuple[int, int]]]:
    """Doors of every room of a spanning tree, made by a random depth-first walk."""
    doors: dict[tuple[int, int], dict[str, tuple[int, int]]] = {(0, 0): {}}
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    path = [(0, 0)]
    while path:
        room = path[-1]
        around = {move: (room[0] + step[0], room[1] + step[1]) for move, step in MOVES.items()}
        new = [move for move, (i, j) in around.items() if 0 <= i < size and 0 <= j < size and (i, j) not in doors]
        if not new:
            path.pop()
            continue
        move = new[int(draw.integers(len(new)))]
        doors[around[move]] = {back[move]: room}
        doors[room][move] = around[move]
        path.append(around[move])
    return doors


def _name(room: tuple[int, int]) -> str:
    return f"{'abcdefghi'[room[0]]}{room[1] + 1}"
