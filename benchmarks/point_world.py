"""A world made of tensors with a known answer: points that fly to goals, thousands at a time, on any device."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from robot_rl.types import EnvParts, IOSpec, Obs

STEP = 0.1  # metres per step at full action
RADIUS = 0.05


class PointWorld:
    """N points in the plane; the state is the vector to the goal, the action a velocity.

    x' = x + 0.1 a per axis, reward = -|goal - x'| after the move, episodes of `length` steps. The best policy goes
    straight at the goal on every axis: a = clip(d / 0.1, -1, 1), its return is `best_return`.

    Args:
        num_envs: N.
        seed: of goals and starts.
        device: where everything is computed.
        length: steps until an episode is truncated.
        terminate: end an episode at the goal (within 5 cm).
        constant: reward 1 in every step instead, for the value of truncation.
    """

    @property
    def parts(self) -> EnvParts:
        """Exact states in tensors."""
        return EnvParts(saves=True, device=self.device)

    def __init__(
        self,
        num_envs: int,
        seed: int = 0,
        device: str = "cpu",
        *,
        length: int = 16,
        terminate: bool = False,
        constant: bool = False,
    ) -> None:
        self.num_envs, self.device, self._length = num_envs, torch.device(device), length
        self._terminate, self._constant = terminate, constant
        self.io = IOSpec(
            obs={"state": ((2,), "float32")},
            action_names=("x", "y"),
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            action_units=("m/s", "m/s"),
            control_hz=10.0,
        )
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self.delta = torch.zeros(num_envs, 2, device=self.device)
        self.clock = torch.zeros(num_envs, device=self.device)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start anew in every row."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self.delta = self._fresh()
        self.clock = torch.zeros(self.num_envs, device=self.device)
        return {"state": self.delta}, {}

    def step(self, action: Tensor) -> tuple[Obs, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Move; the contract of a device world (docs/gpu_learners.md)."""
        final = self.delta - STEP * action
        distance = final.norm(dim=1)
        reward = torch.ones_like(distance) if self._constant else -distance
        near = distance < RADIUS
        clock = self.clock + 1
        terminated = near & self._terminate
        truncated = (clock >= self._length) & ~terminated
        over = terminated | truncated
        self.delta = torch.where(over[:, None], self._fresh(), final)
        self.clock = torch.where(over, torch.zeros_like(clock), clock)
        info = {"final_obs": {"state": final}, "success": near}
        return {"state": self.delta}, reward, terminated, truncated, info

    def best_return(self, episodes: int = 4096) -> float:
        """Mean return of the best policy without termination, by playing it."""
        generator = torch.Generator(self.device).manual_seed(12345)
        delta = torch.rand(episodes, 2, generator=generator, device=self.device) * 2 - 1
        total = torch.zeros(episodes, device=self.device)
        for _ in range(self._length):
            delta = delta - STEP * (delta / STEP).clamp(-1.0, 1.0)
            total -= delta.norm(dim=1)
        return float(total.mean())

    def state_dict(self) -> dict[str, Any]:
        """Where everything is."""
        return {"delta": self.delta.cpu(), "clock": self.clock.cpu(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.delta, self.clock = state["delta"].to(self.device), state["clock"].to(self.device)
        self._generator.set_state(state["generator"].cpu())

    def close(self) -> None:
        """Nothing to close."""

    def _fresh(self) -> Tensor:
        return torch.rand(self.num_envs, 2, generator=self._generator, device=self.device) * 2 - 1
