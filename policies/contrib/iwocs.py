"""Incremental worst-case search on tables: a policy for the worst of several dynamics, found one dynamics at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class KnownTask:
    """A task with known dynamics.

    Attributes:
        transition: (S, A, S) probabilities; a state that ends leads to itself and pays nothing.
        reward: (S, A).
    """

    transition: np.ndarray
    reward: np.ndarray

    def __post_init__(self) -> None:
        states, actions = self.reward.shape
        if self.transition.shape != (states, actions, states):
            raise ValueError(
                f"transition has shape {self.transition.shape}, expected {(states, actions, states)} for rewards of "
                f"shape {self.reward.shape}"
            )
        if not np.allclose(self.transition.sum(-1), 1.0):
            raise ValueError("transition does not sum to 1 over successors")


@dataclass
class Search:
    """What `iwocs` found.

    Attributes:
        policy: (S,) actions.
        worst: the dynamics (index) in which that policy earns least.
        value: what it earns there from the first state.
        chosen: dynamics that were solved, in order.
        pessimistic: (S, A) minimum of their optimal values.
        history: (worst value, index of the worst dynamics) of every iteration's policy.
    """

    policy: np.ndarray
    worst: int
    value: float
    chosen: list[int]
    pessimistic: np.ndarray
    history: list[tuple[float, int]] = field(default_factory=list)


def optimal_values(table: KnownTask, gamma: float, tolerance: float = 1e-10) -> np.ndarray:
    """(S, A) optimal values by value iteration.

    Args:
        table: the task.
        gamma: discount below 1.
        tolerance: largest change of the last sweep.
    """
    q = np.zeros(table.reward.shape)
    while True:
        new = table.reward + gamma * table.transition @ q.max(1)
        if np.abs(new - q).max() <= tolerance:
            return new
        q = new


def policy_values(table: KnownTask, policy: np.ndarray, gamma: float) -> np.ndarray:
    """(S,) exact values of a policy (S,) of actions."""
    rows = np.arange(len(policy))
    return np.linalg.solve(np.eye(len(policy)) - gamma * table.transition[rows, policy], table.reward[rows, policy])


def robust_values(tables: Sequence[KnownTask], gamma: float, tolerance: float = 1e-10) -> np.ndarray:
    """(S, A) values against an adversary who may change the dynamics at every step and state (robust value iteration).

    A lower bound of what a fixed but unknown dynamics leaves; `iwocs` is for the latter.
    """
    q = np.zeros(tables[0].reward.shape)
    while True:
        value = q.max(1)
        new = np.min([table.reward + gamma * table.transition @ value for table in tables], axis=0)
        if np.abs(new - q).max() <= tolerance:
            return new
        q = new


def iwocs(
    tables: Sequence[KnownTask], *, gamma: float = 0.99, start: int = 0, first: int = 0, epsilon: float = 1e-6
) -> Search:
    """A policy for the worst of a finite set of static dynamics, by solving ordinary tasks one after another.

    Solve the first dynamics; act greedily on the minimum of the optimal values of all solved ones; look for the one in
    which that policy earns least from the first state; solve it, too. Stop when its value there is what the minimum
    promised, or when the worst dynamics is one that was solved already and nothing changes. The minimum of optimal
    values is no policy's value: where each dynamics is the worst somewhere, acting on it may go round in circles.

    Args:
        tables: dynamics over the same states and actions.
        gamma: discount below 1.
        start: first state.
        first: index of the dynamics that is solved first.
        epsilon: of the comparison.

    Raises:
        ValueError: no dynamics, or of different sizes, or a discount of 1.

    Source: Zouitine et al., Solving Robust MDPs through No-Regret Dynamics / Incremental Worst-Case Search (IWOCS),
    algorithm 1. The deep form is `iwocs_deep`.
    """
    if not tables or len({table.reward.shape for table in tables}) != 1:
        raise ValueError("expected at least one dynamics, all over the same states and actions")
    if not 0.0 <= gamma < 1.0:
        raise ValueError(f"gamma is {gamma}, expected a discount in [0, 1)")
    chosen, solved = [first], [optimal_values(tables[first], gamma)]
    history: list[tuple[float, int]] = []
    best: Search | None = None
    while True:
        pessimistic = np.min(solved, axis=0)
        policy = pessimistic.argmax(1)
        earned = [float(policy_values(table, policy, gamma)[start]) for table in tables]
        worst = int(np.argmin(earned))
        history.append((earned[worst], worst))
        if best is None or earned[worst] > best.value:  # the worst value of later policies need not rise
            best = Search(policy, worst, earned[worst], list(chosen), pessimistic)
        promised = float(pessimistic[start, policy[start]])
        if abs(earned[worst] - promised) <= epsilon or worst in chosen:
            best.history, best.chosen = history, chosen
            return best
        chosen.append(worst)
        solved.append(optimal_values(tables[worst], gamma))


def windy_walk(wind: float, width: int = 9, height: int = 4, blow: str = "back") -> KnownTask:
    """Cross a field from the left end of its first row to the right end, which pays 1 and ends; every move costs 0.01.

    Actions: up, down, left, right. After a move the wind blows one cell with probability `wind` in row 1, `wind`^2 in
    row 2, `wind`^3 in row 3: the straight way is short and windy, lower rows are calm and a detour.

    Args:
        wind: in [0, 1).
        width: columns.
        height: rows, row 0 included: it is a cliff (-1, end) above the way.
        blow: "back": away from the goal, so that more wind is worse everywhere; "up": towards the cliff, so that wind
            also spares steps on the way up, and no wind is the worst everywhere.

    Returns:
        Tables over width x height cells and one state for everything that has ended. Our definition.

    Raises:
        ValueError: an argument outside its range.
    """
    if not 0.0 <= wind < 1.0 or width < 2 or height < 3 or blow not in ("back", "up"):
        raise ValueError(
            f"wind, width, height, blow are {wind}, {width}, {height}, '{blow}'; expected [0, 1), at least 2 and 3, "
            "and back or up"
        )
    count = width * height
    end = count  # everything that has ended
    transition, reward = np.zeros((count + 1, 4, count + 1)), np.full((count + 1, 4), -0.01)
    transition[end, :, end], reward[end] = 1.0, 0.0
    for y in range(height):
        for x in range(width):
            here = y * width + x
            if y == 0 or (y, x) == (1, width - 1):
                transition[here, :, end] = 1.0
                reward[here] = -1.0 if y == 0 else 1.0
                continue
            for action, (dy, dx) in enumerate(((-1, 0), (1, 0), (0, -1), (0, 1))):
                row, column = min(max(y + dy, 0), height - 1), min(max(x + dx, 0), width - 1)
                blown = wind ** max(row, 1)
                away = (row, max(column - 1, 0)) if blow == "back" else (max(row - 1, 0), column)
                transition[here, action, away[0] * width + away[1]] += blown
                transition[here, action, row * width + column] += 1.0 - blown
    return KnownTask(transition, reward)


def start_of(width: int = 9) -> int:
    """First state of `windy_walk`: the left end of row 1."""
    return width
