"""An environment of which some observations are kept from the policy: pictures rendered for a reward alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorWrapper
from gymnasium.vector.utils import batch_space

from robot_rl.loops.stepping import autoreset_mode
from robot_rl.types import IOSpec


class Hiding(VectorWrapper):
    """Base of wrappers that pay with a reward of their own and may look at more than the policy sees.

    Args:
        env: vector environment of ours; same-step autoreset or none.
        needed: pictures that must be there, "image.<camera>".
        hide: observations that the policy does not see.

    Attributes:
        io: of what the policy sees.

    Raises:
        ValueError: no such pictures, nothing is left to observe, or another way of resetting.
    """

    def __init__(self, env: Any, *, needed: Collection[str], hide: Collection[str]) -> None:
        super().__init__(env)
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
            kept = self._shown(io.obs)
            if not kept:
                raise ValueError(
                    f"nothing is left to observe without {sorted(self._hidden)}; observe the state, or hide nothing"
                )
            self.io = replace(io, obs=kept)
            spaces: Any = env.single_observation_space
            self.single_observation_space = gymnasium.spaces.Dict({key: spaces[key] for key in kept})
            self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the environment offers: its expert, its world, its tool."""
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def _shown(self, obs: Any) -> Any:
        return {key: value for key, value in obs.items() if key not in self._hidden} if self._hidden else obs

    @property
    def _asks(self) -> bool:
        """Whether the environment asks in words, which it can say before its first episode."""
        ask, world = getattr(self.env, "instructions", None), getattr(self.env, "world", None)
        return ask is not None and (world is None or hasattr(world, "instructions"))

    def _asked(self) -> list[str] | None:
        """The sentence of each copy, or None where the environment asks nothing in words; once an episode has begun."""
        return list(self.env.instructions()) if self._asks else None  # type: ignore[attr-defined]
