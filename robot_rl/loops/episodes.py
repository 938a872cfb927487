"""Rolling statistics of finished episodes, for every loop that steps environments."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from robot_rl.loops.reward_terms import RewardTerms, to_numpy
from robot_rl.loops.step_signs import StepSigns
from robot_rl.types import Metrics, StateDict, Step


class EpisodeStats:
    """Return, length and success of the last episodes of N environments.

    Args:
        num_envs: N.
        window: number of finished episodes averaged over.
        choices: whether an action is one of several choices (`IOSpec.action_choices`).
    """

    def __init__(self, num_envs: int, window: int = 100, *, choices: bool = False) -> None:
        self.episodes, self._terms, self._signs = 0, RewardTerms(), StepSigns(choices)
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)
        self._successes: deque[float] = deque(maxlen=window)
        self._claims: deque[float] = deque(maxlen=window)

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
        (`StepSigns`) are of the steps since the last reading."""
        row = {"rollout/episodes": float(self.episodes), **self._terms.metrics(), **self._signs.metrics()}
        kept = {"return": self._returns, "length": self._lengths, "success": self._successes}
        for name, values in {**kept, "critic_success": self._claims}.items():
            if values:
                row[f"rollout/{name}"] = float(np.mean(values))
        return row

    def state_dict(self) -> StateDict:
        """Running and finished episodes, as tensors and numbers."""
        return {
            "episodes": self.episodes,
            "return": torch.from_numpy(self._return.copy()),
            "length": torch.from_numpy(self._length.copy()),
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "successes": list(self._successes),
            "claims": list(self._claims),
            "terms": self._terms.state_dict(),
            "signs": self._signs.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from `state_dict`.

        Raises:
            ValueError: the number of environments differs.
        """
        if len(state["return"]) != len(self._return):
            raise ValueError(
                f"the saved statistics are of {len(state['return'])} environments, this run has {len(self._return)}; "
                "resume with the same num_envs"
            )
        self.episodes = int(state["episodes"])
        self._return[:] = np.asarray(state["return"])
        self._length[:] = np.asarray(state["length"])
        for name, values in (
            ("returns", self._returns),
            ("lengths", self._lengths),
            ("successes", self._successes),
            ("claims", self._claims),
        ):
            values.clear()
            values.extend(state.get(name, []))
        self._terms.load_state_dict(state.get("terms", {}))
        self._signs.load_state_dict(state.get("signs", {}))
