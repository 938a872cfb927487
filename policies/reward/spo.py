"""Self-play preference rewards: an episode is worth how often it beats the policy's own recent ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

Rater = Callable[[Any, Any], float]
"""(first, second) -> probability in [0, 1] that the first is the better one; 0.5 for a tie."""


class SelfPlayReward:
    """Reward of a new trajectory: its mean win rate against the other members of a queue of the last M.

    No scalar reward is fitted, so preferences need not be transitive; any online method can be trained on it.

    Source: Swamy et al., A Minimaximalist Approach to Reinforcement Learning from Human Feedback (SPO), recalled.
    """

    def __init__(self, rater: Rater, *, size: int = 10, spread: str = "every") -> None:
        """Start with an empty queue.

        Args:
            rater: who compares.
            size: M.
            spread: "every" step of the trajectory gets the win rate, or only the "last".

        Raises:
            ValueError: an option outside its range.
        """
        if size < 1 or spread not in ("every", "last"):
            raise ValueError(f"size is {size} and spread '{spread}', expected at least 1 and 'every' or 'last'")
        self._rater, self._spread = rater, spread
        self.queue: deque[Any] = deque(maxlen=size)

    def __call__(self, trajectory: object, steps: int) -> np.ndarray:
        """Add a trajectory to the queue and compare it with the others in it.

        Args:
            trajectory: what the rater reads.
            steps: its length.

        Returns:
            (steps,) float32 rewards in [0, 1]; 0.5 while there is nothing to compare with.

        Raises:
            ValueError: the rater answers outside [0, 1].
        """
        others = list(self.queue)[-(self.queue.maxlen or 1) + 1 :] if self.queue.maxlen != 1 else []
        self.queue.append(trajectory)
        rates = [float(self._rater(trajectory, other)) for other in others]
        if any(not 0.0 <= rate <= 1.0 for rate in rates):
            raise ValueError(f"the rater answered {rates}, expected probabilities in [0, 1]")
        value = float(np.mean(rates)) if rates else 0.5
        reward = np.full(steps, value if self._spread == "every" else 0.0, np.float32)
        if self._spread == "last" and steps:
            reward[-1] = value
        return reward
