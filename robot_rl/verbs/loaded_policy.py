"""A policy in the hands of somebody's Python: an observation that is none is answered in words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from robot_rl.types import Action, Array, Obs, Policy, PolicyParts
from robot_rl.words import Refused


class LoadedPolicy:
    """What `load` returns: the policy of a run, which says what it expects where an observation is none of its.

    Args:
        policy: the policy itself.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy, self.io = policy, policy.io

    @property
    def parts(self) -> PolicyParts:
        """The policy's."""
        return self.policy.parts

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory and chunks of these rows."""
        self.policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions (B, A) in [-1, 1] for a batch.

        Raises:
            Refused: the observation is no dict of (B, ...) arrays of the shapes of `io.obs`.
        """
        if not isinstance(obs, Mapping):
            arrays = isinstance(obs, np.ndarray | torch.Tensor)
            first = next(iter(self.io.obs.values()))[0]
            got = f"an array of shape {tuple(obs.shape)}" if arrays else f"a {type(obs).__name__}"
            raise Refused(self._expectation(got, batch=arrays and tuple(obs.shape[1:]) == tuple(first)))
        for key, (shape, _) in self.io.obs.items():
            if key in obs and tuple(obs[key].shape[1:]) != tuple(shape):
                raise Refused(self._expectation(f"'{key}' of shape {tuple(obs[key].shape)}"))
        try:
            return self.policy.act(obs, deterministic=deterministic)
        except KeyError as error:
            if missing := [key for key in self.io.obs if key not in obs]:
                raise Refused(self._expectation(f"no {', '.join(map(repr, missing))}")) from error
            raise

    def _expectation(self, got: str, batch: bool = False) -> str:
        wanted = ", ".join(
            f"'{key}': ({', '.join(map(str, ('B', *shape)))}) {kind}" for key, (shape, kind) in self.io.obs.items()
        )
        first = next(iter(self.io.obs))
        line = f"'{first}': obs}}).value" if batch else f"'{first}': obs[None]}}).value[0] for one observation"
        return (
            f"this policy acts on a dict of arrays whose first axis is the batch, {{{wanted}}}, and got {got}. Write "
            f"policy.act({{{line}; the answer is in [-1, 1], from policy.io.action_low to policy.io.action_high of the "
            "task. What rr.make(...) makes gives such dicts and takes such actions"
        )
