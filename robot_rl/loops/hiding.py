"""An environment of which some observations are kept from the policy: pictures rendered for a reward alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper
from gymnasium.vector.utils import batch_space

from robot_rl.loops.stepping import autoreset_mode
from robot_rl.types import EnvParts, IOSpec, Obs, StateDict, Stateful


class Hiding(VectorWrapper):
    """Base of wrappers that pay with a reward of their own and may look at more than the policy sees.

    Args:
        env: vector environment of ours; same-step autoreset or none.
        needed: pictures that must be there, "image.<camera>".
        hide: observations that the policy does not see.
        own: what continues the wrapper itself.

    Attributes:
        io: of what the policy sees.
        inner: the environment.

    Raises:
        ValueError: no such pictures, nothing is left to observe, or another way of resetting.
    """

    def __init__(self, env: Any, *, needed: Collection[str], hide: Collection[str], own: Stateful) -> None:
        super().__init__(env)
        self.inner, self._own = env, own
        io: IOSpec = env.io
        for key in needed:
            if key not in io.obs:
                pictures = [name for name in io.obs if name.startswith("image.")]
                raise ValueError(f"the environment shows no '{key}'; it shows {pictures or 'no pictures'}")
        self._mode = autoreset_mode(env)
        if self._mode is AutoresetMode.NEXT_STEP:
            raise ValueError("this reward needs an environment that resets in the same step, or not by itself")
        self._hidden = frozenset(hide)
        self.io = io
        if self._hidden:
            kept = self._show(io.obs)
            if not kept:
                raise ValueError(
                    f"nothing is left to observe without {sorted(self._hidden)}; observe the state, or hide nothing"
                )
            self.io = replace(io, obs=kept)
            spaces: Any = env.single_observation_space
            self.single_observation_space = gymnasium.spaces.Dict({key: spaces[key] for key in kept})
            self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    @property
    def parts(self) -> EnvParts:
        """What the environment offers, without its goals: what they pay is not what is paid here."""
        return replace(self.inner.parts, goals=None)

    def state_dict(self) -> StateDict:
        """State of the environment and of the wrapper; "exact" as the environment says it."""
        inner = self.inner.state_dict()
        return {"env": inner, "own": self._own.state_dict(), "exact": inner.get("exact", True)}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly."""
        self.inner.load_state_dict(state["env"])
        self._own.load_state_dict(state["own"])

    def reset(self, *, seed: Any = None, options: dict[str, object] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes; `options={"reset_mask": (N,) bool}` starts some."""
        obs, info = self.env.reset(seed=seed, options=options)
        mask = (options or {}).get("reset_mask")
        self._begin(np.ones(self.num_envs, bool) if mask is None else np.asarray(mask, bool), obs)
        return self._show(obs), info

    def _begin(self, rows: np.ndarray, obs: Obs) -> None:
        """Episodes of `rows` (N,) bool begin with these observations."""
        raise NotImplementedError

    def _final(self, obs: Obs, info: dict[str, Any], ended: np.ndarray) -> Obs:
        """What the step led to, also where an episode has ended and the next one has begun."""
        return info["final_obs"] if self._mode is AutoresetMode.SAME_STEP and ended.any() else obs

    def _show(self, obs: Obs) -> Obs:
        return {key: value for key, value in obs.items() if key not in self._hidden} if self._hidden else obs

    def _ask(self) -> list[str] | None:
        """The sentence of each copy, or None where the environment asks nothing in words; once an episode has begun."""
        ask = self.parts.instructions
        return None if ask is None else list(ask())
