"""Rolling statistics of finished episodes, for every loop that steps environments."""

from __future__ import annotations

from collections import deque

import numpy as np

from robot_rl.loops.reward_terms import RewardTerms, to_numpy
from robot_rl.loops.step_signs import StepSigns
from robot_rl.state import Saved
from robot_rl.types import Metrics, Step


class EpisodeStats(Saved):
    """Return, length and success of the last episodes of N environments.

    Args:
        num_envs: N.
        window: number of finished episodes averaged over.
        choices: whether an action is one of several choices (`IOSpec.action_choices`).
        rewardless: whether the learner reads no reward (`Needs.rewardless`).
    """

    saved = ("episodes", "_return", "_length", "_returns", "_lengths", "_successes", "_claims", "_terms", "_signs")

    def __init__(self, num_envs: int, window: int = 100, *, choices: bool = False, rewardless: bool = False) -> None:
        self._rewardless = rewardless
        self.episodes, self._terms, self._signs = 0, RewardTerms(), StepSigns(choices)
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)
        self._successes: deque[float] = deque(maxlen=window)
        self._claims: deque[float] = deque(maxlen=window)

    def begin(self) -> None:
        """New episodes begin everywhere; those under way do not count."""
        self._return[:], self._length[:] = 0.0, 0

    def add(self, step: Step) -> None:
        """Count one step of every environment; rows with `valid` False are left out."""
        self._terms.add(step)
        self._signs.add(step)
        reward, valid = to_numpy(step.reward), to_numpy(step.valid)
        terminated, truncated = to_numpy(step.terminated), to_numpy(step.truncated)
        self._length += valid
        self._return += reward * valid
        if np.count_nonzero(terminated) + np.count_nonzero(truncated) == 0:
            return
        over = (terminated | truncated) & valid
        success = step.info.get("success")
        success = None if success is None else to_numpy(success)
        for row in np.flatnonzero(over):
            self._returns.append(float(self._return[row]))
            self._lengths.append(int(self._length[row]))
            if success is not None:
                self._successes.append(float(success[row]))
            if "critic_success" in step.info:
                self._claims.append(float(step.info["critic_success"][row]))
        self.episodes += int(over.sum())
        self._return[over] = 0.0
        self._length[over] = 0

    def metrics(self) -> Metrics:
        """Means over the window: `rollout/return`, `rollout/length`, `rollout/success` (where environments report
        it), `rollout/critic_success` (where a critic pays) and the number of finished episodes so far; only the last
        before the first episode has ended. Reward terms (`RewardTerms`) and signs
        (`StepSigns`) are of the steps since the last reading. `rollout/rewardless` is 1 where the learner reads no
        reward, and is left out elsewhere."""
        row = {"rollout/episodes": float(self.episodes), **self._terms.metrics(), **self._signs.metrics()}
        if self._rewardless:
            row["rollout/rewardless"] = 1.0
        kept = {"return": self._returns, "length": self._lengths, "success": self._successes}
        for name, values in {**kept, "critic_success": self._claims}.items():
            if values:
                row[f"rollout/{name}"] = float(np.mean(values))
        return row
