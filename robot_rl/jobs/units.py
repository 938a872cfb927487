"""A policy on the scale of actions of another environment: what it commands stays the same in physical units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from robot_rl.data.bounds import Scale, of_io, stated
from robot_rl.types import Action, Array, IOSpec, Obs

_EDGE = 1e-5


def meaning_of(io: IOSpec, known: str | None, options: Mapping[str, Any]) -> tuple[IOSpec, str | None]:
    """What -1 and +1 of a policy mean once a person has said something of the log that it was made from.

    Args:
        io: of its checkpoint.
        known: what the checkpoint says of its actions beside it, see `bounds.ActionBounds.said`.
        options: `action`, `action_low` and `action_high` where they are given.

    Returns:
        The interface, and what is known beside it.

    Raises:
        ValueError: the bounds are none.
    """
    given = {"action": options.get("action"), "low": options.get("action_low"), "high": options.get("action_high")}
    bounds = stated(of_io(io, known), io.action_dim, **given)
    if bounds is None or bounds.low is None or bounds.high is None:
        return io, None if bounds is None else bounds.said
    if bounds.normalised:
        return replace(io, action_low=bounds.low, action_high=bounds.high), bounds.said
    ones = (1.0,) * io.action_dim  # its log was taken as it was: what it answers is in physical units
    return replace(io, action_low=tuple(-x for x in ones), action_high=ones), bounds.said


class InUnits:
    """A policy whose [-1, 1] means other bounds than the environment's.

    What the environment cannot do is clipped to its bounds, and told once. Anything else that a policy has (memory,
    chunks, goals) is the inner policy's.

    Args:
        policy: the inner one.
        scale: of its actions to the environment's.
        io: the environment's.
        say: told once, in words, that an action was clipped.
    """

    def __init__(self, policy: Any, scale: Scale, io: IOSpec, say: Callable[[str], object]) -> None:
        self.policy, self.io = policy, io
        self._scale, self._back, self._say = scale, scale.inverse, say
        self._told = False

    def __getattr__(self, name: str) -> Any:
        if name == "policy":  # while it is copied or unpickled there is none yet
            raise AttributeError(name)
        return getattr(self.policy, name)

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory and chunks of these rows."""
        self.policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The inner policy's action, in [-1, 1] of the environment; its log-density is that on the new scale."""
        found: Action = self.policy.act(obs, deterministic=deterministic)
        value = self._scaled(found.value, self._scale)
        beyond = abs(value) > 1.0 + _EDGE
        if not self._told and bool(beyond.any()):
            self._told = True
            which = beyond.reshape(-1, beyond.shape[-1]).any(0)
            names = ", ".join(name for name, out in zip(self.io.action_names, which) if out)
            self._say(f"NOTE: the policy commands more than the environment can do ({names}): clipped to its bounds")
        logp = None if found.logp is None else found.logp - self._scale.log_volume
        return Action(value.clip(-1.0, 1.0), logp, found.extras)

    def executed(self, action: Array) -> None:
        """What was done in the last tick, for a policy that reads it."""
        told = getattr(self.policy, "executed", None)
        if told is not None:
            told(self._scaled(action, self._back))

    def log_prob(self, obs: Obs, action: Tensor) -> Tensor:
        """(B,) log-density of an action of the environment."""
        return self.policy.log_prob(obs, self._scaled(action, self._back)) - self._scale.log_volume

    @staticmethod
    def _scaled(value: Any, scale: Scale) -> Any:
        if isinstance(value, Tensor):
            return value * value.new_tensor(scale.gain) + value.new_tensor(scale.shift)
        return scale(np.asarray(value))
