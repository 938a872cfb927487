"""An environment whose reward is computed beside it, from what is seen of every control step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium.vector import AutoresetMode

from robot_rl.loops.hiding import Hiding
from robot_rl.types import IOSpec, Obs, StateDict, VecEnv


class Watcher(Protocol):
    """What pays, such as `policies.reward.program.ProgramReward`.

    What is seen is a mapping: the observations (N, ...), "action" (N, A) as executed, "env_reward" (N,), and
    "instructions", N sentences or None.
    """

    cameras: tuple[str, ...]
    """Pictures that it looks at."""

    def bind(self, io: IOSpec) -> None:
        """Once, before the first episode."""
        ...

    def start(self, rows: np.ndarray, seen: Mapping[str, object]) -> None:
        """Episodes of `rows` (N,) bool begin with these observations."""
        ...

    def step(self, seen: Mapping[str, object], ended: np.ndarray) -> np.ndarray:
        """(N,) reward of a control step; `seen` holds the true successors."""
        ...

    def state_dict(self) -> StateDict:
        """Exact continuation."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Continue."""
        ...

    def close(self) -> None:
        """Stop what works for it."""
        ...


@runtime_checkable
class PictureWatcher(Watcher, Protocol):
    """A watcher whose pictures have a size of their own, and whose scale may have to be measured."""

    image_size: tuple[int, int] | None
    """(height, width) that it reads; None: any."""
    z_max: float | None
    """Its scale; None: `calibrate` finds it."""
    calibration: int
    """Random steps for that."""

    def calibrate(self, pictures: np.ndarray) -> float:
        """z_max of the pictures of a random policy (n, H, W, 3)."""
        ...


class Watched(Hiding):
    """N copies of an environment with the reward of a `Watcher`; when episodes end stays the environment's affair.

    `info` holds further "env_reward" (N,). "success" stays the environment's own.

    Args:
        env: vector environment of ours; same-step autoreset or none.
        reward: what pays.
        hide: observations that the policy does not see, such as the pictures that are rendered for `reward` alone.

    Raises:
        ValueError: no such pictures, or another way of resetting.
    """

    def __init__(self, env: VecEnv, reward: Watcher, *, hide: tuple[str, ...] = ()) -> None:
        super().__init__(env, needed=[f"image.{camera}" for camera in reward.cameras], hide=hide, own=reward)
        self._reward = reward
        reward.bind(env.io)

    def _begin(self, rows: np.ndarray, obs: Obs) -> None:
        if not all(isinstance(value, np.ndarray) for value in obs.values()):
            raise ValueError("this reward is computed on the CPU, and the environment gives tensors; take no engine=")
        self._reward.start(rows, {**obs, "instructions": self._ask()})

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One control step."""
        asked = self._ask()  # what ended was asked this, and not what its row is asked next
        obs, own, terminated, truncated, info = self.env.step(actions)
        ended = np.asarray(terminated, bool) | np.asarray(truncated, bool)
        own = np.asarray(own, np.float64)
        final = self._final(obs, info, ended)
        executed = np.asarray(info.get("executed", actions))
        seen = {**final, "action": executed, "env_reward": own, "instructions": asked}
        reward = self._reward.step(seen, ended)
        if self._mode is AutoresetMode.SAME_STEP:
            if ended.any():
                self._begin(ended, obs)
            info = {**info, "final_obs": self._show(info.get("final_obs", final))}
        info = {**info, "env_reward": own.astype(np.float32), "reward_terms": {}}  # those were of the own one
        return self._show(obs), np.asarray(reward, np.float32), terminated, truncated, info

    def close(self, **options: object) -> None:
        """Close the environment, and what works for the reward."""
        self._reward.close()
        self.env.close(**options)
