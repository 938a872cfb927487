"""A reward written as a small program over what the robot observes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from robot_rl.expression import Expression, ProgramError, observables
from robot_rl.state import Saved
from robot_rl.types import IOSpec
from robot_rl.types.options import NotNegative, Positive, Share


class ProgramReward(Saved):
    """Pays what a program says of every control step; for `rewarder=program`.

    r = clip(program, -limit, limit) + keep * the environment's own reward. Where the program gives no finite number, 0
    is paid and counted in `bad`; more than `most_bad` of at least 1000 steps stop the run.

    Args:
        code: see `Expression`; the names are those of `observables`.
        only: observables that may be used; None: all.
        limit: bound of the program's value.
        keep: factor of the environment's own reward.
        most_bad: share of steps without a finite number that is borne.

    Raises:
        ValueError: limit not above 0.

    Source: ICPL (rewards in code from a language model, ranked by people); the language and its parser are ours.
    """

    saved = ("_before", "bad", "steps")

    cameras: tuple[str, ...] = ()

    def __init__(
        self,
        code: str,
        *,
        only: Collection[str] | None = None,
        limit: Positive = 10.0,
        keep: NotNegative = 0.0,
        most_bad: Share = 0.05,
    ) -> None:
        if not limit > 0:
            raise ValueError(f"limit is {limit}, expected a number above 0")
        self.code, self.limit, self.keep, self.bad, self.steps = code, float(limit), float(keep), 0, 0
        self._only, self._most_bad = only, most_bad
        self._places: dict[str, tuple[str, list[int]]] = {}
        self._program: Expression | None = None
        self._before = np.zeros((0, 0))

    def close(self) -> None:
        """Nothing to stop."""

    def bind(self, io: IOSpec) -> None:
        """Compile for an interface.

        Raises:
            ProgramError: the program is not allowed, or needs what this interface does not observe.
            ValueError: no vector observation "state".
        """
        self._places = places(io, self._only)
        self._program = Expression(self.code, {name: len(columns) for name, (_, columns) in self._places.items()})

    def start(self, rows: np.ndarray, seen: Mapping[str, object]) -> None:
        """Episodes of `rows` (N,) bool begin; `seen` holds "state" (N, S)."""
        state = np.asarray(seen["state"], np.float64)
        if self._before.shape != state.shape:
            self._before = state.copy()
        self._before[rows] = state[rows]

    def step(self, seen: Mapping[str, Any], ended: np.ndarray) -> np.ndarray:
        """(N,) reward after a control step.

        Args:
            seen: "state" (N, S), the true successor, "action" (N, A) and "env_reward" (N,).
            ended: (N,) bool.

        Raises:
            ProgramError: too many values that are not finite.
        """
        assert self._program is not None, "bind first"
        sources = {
            "state": np.asarray(seen["state"], np.float64),
            "action": np.asarray(seen["action"], np.float64),
            "before": self._before,
        }
        value = self._program({name: sources[kind][:, columns] for name, (kind, columns) in self._places.items()})
        wrong = ~np.isfinite(value)
        self.bad, self.steps = self.bad + int(wrong.sum()), self.steps + len(value)
        if self.steps >= 1000 and self.bad > self._most_bad * self.steps:
            raise ProgramError(
                f"{self.bad} of {self.steps} values of the reward are not finite numbers; keep logarithms, roots and "
                f"divisions away from 0: {self.code}"
            )
        self._before = sources["state"].copy()
        return np.clip(np.where(wrong, 0.0, value), -self.limit, self.limit) + self.keep * seen["env_reward"]


def places(io: IOSpec, only: Collection[str] | None = None) -> dict[str, tuple[str, list[int]]]:
    """Observables of an interface, or some of them.

    Raises:
        ValueError: no vector "state"; names in `only` that are none.
    """
    if "state" not in io.obs or len(io.obs["state"][0]) != 1:
        raise ValueError(f"programs read a vector observation 'state', and there is {sorted(io.obs)}")
    found = observables(io.obs_names, io.obs["state"][0][0], io.action_names)
    unknown = sorted(set(only or ()) - set(found))
    if unknown:
        raise ValueError(f"there are no observables {', '.join(unknown)}; there are: {', '.join(sorted(found))}")
    return found if only is None else {name: found[name] for name in only}
