"""The acting half of learners whose policy plays chunks: it shares their networks, and has noise of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robot_rl.state import Saved
from robot_rl.types import Obs


class ChunkPlanner(Saved):
    """Base of planners. Samples have no mode: `deterministic` only keeps their noise apart, so that an evaluation does
    not change the training that goes on after it.

    Args:
        learner: whose `acting_nets`, `norm` and `see` it shares.
        seed: of the noise.
    """

    def __init__(self, learner: Any, seed: int) -> None:
        self._learner = learner
        device = learner.generator.device
        self._noise = [torch.Generator(device=device).manual_seed(seed + i) for i in range(2)]

    def state(self, obs: Obs) -> Tensor:
        """(B, n) what the networks read of observations."""
        state = torch.as_tensor(obs["state"]).to(self._learner.generator.device, torch.float32)
        return self._learner.see(state)

    def saved_parts(self) -> dict[str, object]:
        """Weights, noise, and moments, where there are some."""
        own = self._learner
        noise = {f"noise{i}": generator for i, generator in enumerate(self._noise)}
        return {**{name: net.params.flat for name, net in own.acting_nets().items()}, **noise, "norm": own.norm}

    def after_load(self) -> None:
        """Take over the new weights."""
        for net in self._learner.acting_nets().values():
            net.refresh()
