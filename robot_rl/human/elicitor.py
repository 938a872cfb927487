"""Looks at every demonstration as it comes, and asks the person to redo one that contradicts the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from robot_rl.data.hil_record import ControlStep


class Elicitor:
    """Accepts the first `base` demonstrations, compares later ones with them.

    A demonstration that conflicts is not counted and the person is told at which moments; after `patience` refusals in
    a row the next is accepted: the person means it. Interventions are never judged.

    Args:
        fit: (states, actions) of the base -> object with `assess(states, actions)`; see
            `robot_rl.policies.human.compatibility`.
        base: demonstrations that are taken as they are.
        control_hz: decisions per second, for the words.
        patience: refusals in a row.
        say: hears one line about every demonstration that was compared.
    """

    def __init__(
        self,
        fit: Callable[[list[np.ndarray], list[np.ndarray]], Any],
        *,
        base: int,
        control_hz: float,
        patience: int = 2,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        if base < 4 or patience < 0:
            raise ValueError(f"base is {base} and patience {patience}, expected at least 4 and 0")
        self._fit, self._base, self._hz, self._patience, self._say = fit, base, control_hz, patience, say
        self._states: list[np.ndarray] = []
        self._actions: list[np.ndarray] = []
        self._model = None
        self._refused = 0
        self.refused = 0
        """Demonstrations that conflicted and were not counted."""
        self.message = ""
        """About the last one."""

    def restore(self, demonstrations: Iterable[Sequence[ControlStep]]) -> None:
        """Demonstrations that an earlier process accepted, in order."""
        for steps in demonstrations:
            valid = [step for step in steps if step.valid]
            if valid:
                self._keep(np.stack([s.obs["state"] for s in valid]), np.stack([s.action_cmd for s in valid]))

    def offer(self, steps: Sequence[ControlStep]) -> bool:
        """Whether a successful demonstration counts."""
        valid = [step for step in steps if step.valid]
        states = np.stack([step.obs["state"] for step in valid])
        actions = np.stack([step.action_cmd for step in valid])
        if len(self._states) < self._base:
            self._keep(states, actions)
            return True
        if self._model is None:
            self._model = self._fit(self._states[: self._base], self._actions[: self._base])
        found = self._model.assess(states, actions)
        moments = ", ".join(f"{i / self._hz:.1f} s" for i in sorted(found.worst))
        accepted = found.kind != "conflicting" or self._refused >= self._patience
        self._refused = 0 if accepted else self._refused + 1
        self.refused += not accepted
        words = {
            "redundant": "like the others",
            "extension": "new places, done alike",
            "coverage": "new places",
            "conflicting": f"differs from the others at {moments}",
        }[found.kind]
        ending = "" if accepted else "; please do it again, the way the first ones went"
        self.message = f"demonstration {found.kind} (compatibility {found.score:.2f}): {words}{ending}"
        self._say(self.message)
        if accepted:
            self._keep(states, actions)
        return accepted

    def _keep(self, states: np.ndarray, actions: np.ndarray) -> None:
        self._states.append(states)
        self._actions.append(actions)
