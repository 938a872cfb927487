"""Tells a person when help is worth most: critics that disagree, a value that falls, a robot that is stuck."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from robot_rl.types import Obs, StateDict

SIGNALS = ("disagreement", "value drop", "stuck")


class Adviser:
    """Asks for help in about `share` of the policy's steps: those that stand out most.

    Per step, with critics Q_1 ... Q_E at the observation s and the policy's action a:

        disagreement   standard deviation of Q_e(s, a) over e
        value drop     highest mean Q of the episode so far, less the present one
        stuck          minus the distance in the state (standardised) that the last `window_s` brought

    Each is compared with its own past (the last `memory` steps); one that lies above its 1 - share/3 quantile for two
    steps in a row asks. Nothing is asked before `warm` steps are known: all critics disagree at first.

    Args:
        values: (observation (1, ...), action (1, A)) -> (E, 1) values of the critics.
        control_hz: decisions per second.
        share: of the steps in which help is wanted.
        window_s: over which the robot should get somewhere.
        warm: steps before the first question.
        memory: steps that a signal is compared with.

    Source: Hoque et al., ThriftyDAgger (recalled): help by novelty and by the risk that a critic sees, with thresholds
    that follow the quantiles of a budget. Where we differ: critics' disagreement for novelty, a drop of the value for
    risk, and a third signal for a robot that gets nowhere.
    """

    def __init__(
        self,
        values: Callable[[Obs, np.ndarray], np.ndarray],
        control_hz: float,
        *,
        share: float = 0.1,
        window_s: float = 1.0,
        warm: int = 100,
        memory: int = 500,
    ) -> None:
        if not 0.0 < share < 1.0 or window_s <= 0 or warm < 20 or memory < warm:
            raise ValueError(
                f"share is {share}, window_s {window_s}, warm {warm}, memory {memory}; expected a share in (0, 1), a "
                "positive time, at least 20 steps to warm up and a memory of at least as many"
            )
        self._values, self._share, self._warm = values, share, warm
        self._steps = max(1, round(window_s * control_hz))
        self._past = {name: deque[float](maxlen=memory) for name in SIGNALS}
        self._states: deque[np.ndarray] = deque(maxlen=self._steps + 1)
        self._count, self._mean, self._square = 0, np.zeros(0), np.zeros(0)
        self._best = -np.inf
        self._run = 0
        self.asked = 0
        """Steps in which help was wanted."""
        self.why = ""
        """The reason of the newest question, "" while none is asked."""

    def begin(self) -> None:
        """A new episode."""
        self._states.clear()
        self._best, self._run, self.why = -np.inf, 0, ""

    def look(self, obs: Obs, action: np.ndarray) -> bool:
        """Whether help is wanted now.

        Args:
            obs: (1, ...).
            action: (A,) that the policy proposes.
        """
        found = self._signals(obs, action)
        loud = [name for name, value in found.items() if self._stands_out(name, value)]
        for name, value in found.items():
            self._past[name].append(value)
        self._run = self._run + 1 if loud else 0
        wanted = self._run >= 2
        self.asked += wanted
        self.why = ", ".join(loud) if wanted else ""
        return wanted

    def state_dict(self) -> StateDict:
        """Between episodes."""
        past = {name: list(values) for name, values in self._past.items()}
        return {"past": past, "count": self._count, "mean": self._mean, "square": self._square, "asked": self.asked}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue."""
        for name, values in state["past"].items():
            self._past[name].clear()
            self._past[name].extend(values)
        self._count, self.asked = int(state["count"]), int(state["asked"])
        self._mean, self._square = np.asarray(state["mean"], float), np.asarray(state["square"], float)

    def _signals(self, obs: Obs, action: np.ndarray) -> dict[str, float]:
        q = np.asarray(self._values(obs, action[None]), float)[:, 0]
        found: dict[str, float] = {}
        if np.isfinite(q).all():
            found["disagreement"] = float(q.std())
            self._best = max(self._best, float(q.mean()))
            found["value drop"] = self._best - float(q.mean())
        state = obs.get("state")
        if state is not None:
            here = np.asarray(state[0], float)
            self._observe(here)
            self._states.append(here)
            if len(self._states) > self._steps:
                spread = np.sqrt(self._square / max(self._count, 1))
                used = spread > 1e-6
                far = (here - self._states[0])[used] / spread[used]
                found["stuck"] = -float(np.sqrt(np.mean(far**2))) if used.any() else 0.0
        return found

    def _observe(self, state: np.ndarray) -> None:
        """Running moments of the state (Welford)."""
        if not self._count:
            self._mean, self._square = np.zeros_like(state), np.zeros_like(state)
        self._count += 1
        delta = state - self._mean
        self._mean = self._mean + delta / self._count
        self._square = self._square + delta * (state - self._mean)

    def _stands_out(self, name: str, value: float) -> bool:
        past = self._past[name]
        return len(past) >= self._warm and value > float(np.quantile(past, 1.0 - self._share / len(SIGNALS)))
