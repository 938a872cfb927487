"""A method of somebody's own whose policy answers one action, for ever; beyond [-1, 1] too."""

from typing import Any

import numpy as np
import torch

from robot_rl.types import Action, IOSpec, Learner


class ConstantPolicy:
    """Answers `value`."""

    def __init__(self, io: IOSpec) -> None:
        self.io, self.value = io, torch.zeros(io.action_dim)

    def reset(self, rows: Any = None) -> None: ...

    def act(self, obs: Any, *, deterministic: bool = False) -> Action:
        value = self.value.expand(len(obs["state"]), -1)
        return Action(value if isinstance(obs["state"], torch.Tensor) else value.numpy().astype(np.float32))

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"].clone()


class Constant(Learner):
    """Learns nothing."""

    def __init__(self, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        self.policy = ConstantPolicy(io)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
