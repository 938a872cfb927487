"""An environment whose reward is what a critic says of its pictures; its own reward is left aside."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode

from robot_rl.loops.hiding import Hiding
from robot_rl.types import Obs, StateDict, VecEnv


class Rewarder(Protocol):
    """What pays, such as `policies.reward.critic_reward.CriticReward`."""

    def start(self, rows: np.ndarray, pictures: np.ndarray, sentences: list[str]) -> None:
        """Episodes begin."""
        ...

    def step(
        self, pictures: np.ndarray, terminated: np.ndarray, ended: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(reward, met, over) of one control step."""
        ...

    def state_dict(self) -> StateDict:
        """Exact continuation."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Continue."""
        ...


class Rewarded(Hiding):
    """N copies of an environment with the reward of a critic.

    `info` holds further "critic_success" (N,) bool, whether the critic holds the goal for met, and "env_reward" (N,).
    "success" stays the environment's own.

    Args:
        env: vector environment of ours with "image.<camera>" among its observations; same-step autoreset or none.
        reward: what pays.
        camera: which pictures.
        hide: leave these pictures out of the observation, for policies that read the state.
        instruction: the sentence for all copies; None asks `env.parts.instructions()`.
        audit: takes (critic's success, true success) of each episode and may answer with a warning; None: no audit.

    Raises:
        ValueError: no such pictures, no sentence, or another way of resetting.
    """

    def __init__(
        self,
        env: VecEnv,
        reward: Rewarder,
        *,
        camera: str = "front",
        hide: bool = False,
        instruction: str | None = None,
        audit: Any = None,
    ) -> None:
        self._key = f"image.{camera}"
        super().__init__(env, needed=(self._key,), hide=(self._key,) if hide else (), own=reward)
        self._reward, self._audit = reward, audit
        self._instruction = instruction
        if instruction is None and self.parts.instructions is None:
            raise ValueError("the environment asks nothing in words; add rewarder.instruction='<sentence>'")

    def _begin(self, rows: np.ndarray, obs: Obs) -> None:
        self._reward.start(rows, obs[self._key], self._sentences())

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One control step; a goal that the critic holds for met may end the episode (terminated)."""
        obs, own, terminated, truncated, info = self.env.step(actions)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        ended = terminated | truncated
        final = self._final(obs, info, ended)
        reward, met, over = self._reward.step(final[self._key], terminated, ended)
        new = over & ~ended
        terminated, truncated = over, truncated & ~over
        if self._mode is AutoresetMode.SAME_STEP:
            if new.any():
                obs, _ = self.env.reset(options={"reset_mask": new})
            if (new | ended).any():
                info = {**info, "final_obs": self._show(final), "_final_obs": new | ended}
                self._begin(new | ended, obs)
            else:
                info = {**info, "final_obs": self._show(info.get("final_obs", final))}
        info = {**info, "critic_success": met, "env_reward": own, "reward_terms": {}}  # those were of the own one
        self._look_after(new | ended, met, info)
        return self._show(obs), reward.astype(np.float32), terminated, truncated, info

    def _sentences(self) -> list[str]:
        if self._instruction is not None:
            return [self._instruction] * self.num_envs
        asked = self._ask()
        assert asked is not None  # checked at the beginning
        return asked

    def _look_after(self, ended: np.ndarray, met: np.ndarray, info: dict[str, object]) -> None:
        if self._audit is None or "success" not in info:
            return
        for row in np.flatnonzero(ended):
            finding = self._audit.add(met[row], np.asarray(info["success"])[row])
            if finding is not None:
                warnings.warn(finding, stacklevel=2)
