"""A method of somebody's own whose policy answers one action, for ever; beyond [-1, 1] too."""

from typing import Any, ClassVar

import numpy as np
import torch

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan
from robot_rl.types import Action, IOSpec, Learner, Options, PolicyParts

NAMES = ("a_effort", "b_effort")
"""Of actions: those of a robot of two joints that takes efforts."""


class ConstantPolicy:
    """Answers `value`."""

    parts = PolicyParts()

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
        super().__init__(Options(), io)
        self.policy = ConstantPolicy(io)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ConstantChunks(Constant):
    """The same in chunks of four."""

    def __init__(self, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        self.policy = ChunkedPolicy(io, _Plan(io), Execution(Horizons(4, 2, 2), io.action_dim, mode="receding"))


class _Plan(ConstantPolicy):
    def plan(self, obs: Any, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        return Plan(np.tile(self.value.numpy(), (len(obs["state"]), 4, 1)))


class Bench:
    """An actuator of +-4 N*m on a bench: writes down what it is commanded; an episode is one step."""

    io = IOSpec({"state": ((4,), "float32")}, NAMES, (-4.0, -4.0), (4.0, 4.0), ("N*m", "N*m"), 20.0)
    episode_steps = 1
    commanded: ClassVar[list[np.ndarray]] = []

    def start(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"state": np.zeros(4, np.float32)}

    def observe(self, state: dict[str, np.ndarray]) -> np.ndarray:
        return state["state"].copy()

    def step(self, state: dict[str, np.ndarray], action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high = (np.array(ends) for ends in self.io.bounds)
        self.commanded.extend(low + (action.astype(float) + 1.0) / 2.0 * (high - low))
        none = np.zeros(len(action), bool)
        return np.zeros(len(action), np.float32), none, none

    def expert(self, obs: np.ndarray) -> np.ndarray:
        return np.zeros((len(obs), 2), np.float32)

    def picture(self, state: dict[str, np.ndarray], row: int) -> np.ndarray:
        return np.zeros((8, 8, 3), np.uint8)
