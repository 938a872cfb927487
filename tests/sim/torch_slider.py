"""The slider of conftest as an engine in torch: the simplest `TensorPhysics`, exact, as the model takes Euler steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

MASS, TIMESTEP, SUBSTEPS, REACH = 2.0, 0.01, 4, 0.5


class TorchSlider:
    """A car of 2 kg on a line, pushed by `ctrl` newton; sensors "tip" (N, 3), half a metre ahead, and "x" (N, 1)."""

    def __init__(self, num_envs: int, *, latency: bool = False) -> None:
        self.model = SimpleNamespace(nq=1, nv=1, nu=1, nbody=3, opt=SimpleNamespace(timestep=TIMESTEP))
        self.substeps = SUBSTEPS
        self.qpos, self.qvel, self.ctrl = (torch.zeros((num_envs, 1)) for _ in range(3))
        self.sensors = {"tip": torch.zeros((num_envs, 3)), "x": torch.zeros((num_envs, 1))}
        self.pending = torch.zeros((SUBSTEPS if latency else 0, num_envs, 1))
        self.scaled: list[tuple[Tensor, dict[str, Tensor]]] = []
        self.words: str | None = None
        self.closed = False

    def advance(self) -> None:
        for index in range(SUBSTEPS):
            force = self.pending[index] if len(self.pending) else self.ctrl
            self.qvel += TIMESTEP * force / MASS
            self.qpos += TIMESTEP * self.qvel
        self.forward()

    def forward(self) -> None:
        self.sensors["x"].copy_(self.qpos)
        self.sensors["tip"][:, :1] = self.qpos + REACH

    def place(self, mask: Tensor, qpos: Tensor, qvel: Tensor, ctrl: Tensor) -> None:
        for target, value in ((self.qpos, qpos), (self.qvel, qvel), (self.ctrl, ctrl)):
            target.copy_(torch.where(mask[:, None], value.float(), target))

    def scale(self, mask: Tensor, factors: dict[str, Tensor]) -> None:
        self.scaled.append((mask.clone(), {key: value.clone() for key, value in factors.items()}))

    def trouble(self) -> str | None:
        return self.words

    def state_dict(self) -> dict[str, Tensor]:
        state = {"qpos": self.qpos, "qvel": self.qvel, "ctrl": self.ctrl, **self.sensors}
        return {key: value.clone() for key, value in state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        targets = {"qpos": self.qpos, "qvel": self.qvel, "ctrl": self.ctrl, **self.sensors}
        for key, target in targets.items():
            target.copy_(state[key])

    def close(self) -> None:
        self.closed = True
