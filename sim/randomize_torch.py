"""What domain randomisation has done to N environments on a device; the counterpart of `sim.randomize.Randomizer`.

Options, streams and draws are those of the CPU engine: the same seed gives the same factors on either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from robot_rl.sim.draw_torch import TorchStreams
from robot_rl.sim.randomize import PUSH_SECONDS, Randomize, check_push, factor_sizes, horizontal_push
from robot_rl.types import StateDict

if TYPE_CHECKING:
    from mujoco import MjModel


class TorchRandomizer:
    """Factors, the controls on their way, and the streams drawn from, as tensors.

    Args:
        options: what to randomise.
        num_envs: N.
        seed: as in `Streams`.
        model: the nominal one.
        substeps: physics steps per control step.
        device: of all tensors.
    """

    def __init__(
        self,
        options: Randomize,
        num_envs: int,
        seed: int,
        model: MjModel,
        substeps: int,
        *,
        device: torch.device,
    ) -> None:
        self.options = options
        self._sizes, self._substeps, self._timestep = factor_sizes(model), substeps, float(model.opt.timestep)
        check_push(options, model)
        purposes = {"factors": 1, "noise": 2} | ({} if options.push is None else {"pushes": 3})
        self._streams = {name: TorchStreams(num_envs, seed, i, device=device) for name, i in purposes.items()}
        self._everyone = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._noise = torch.as_tensor(options.noise, dtype=torch.float32, device=device)
        self.factors = {key: torch.ones((num_envs, self._sizes[key]), device=device) for key in options.scaled}
        self._drawn = torch.zeros(num_envs, dtype=torch.bool, device=device)
        depth = 1 + -(-options.longest_latency(self._timestep) // substeps)
        self._history = torch.zeros((num_envs, depth, model.nu), device=device)  # newest first
        self._age = torch.zeros((num_envs, substeps), dtype=torch.int64, device=device)

    def seed(self, seed: int | Sequence[int]) -> None:
        """Start all streams anew and forget what was drawn once per environment."""
        for streams in self._streams.values():
            streams.seed(seed)
        self._drawn.zero_()

    def restart(self, mask: Tensor, ctrl: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Begin episodes of the environments of `mask` (N,) with (N, nu) controls in force.

        Returns:
            Rows whose factors were drawn anew, and all factors by name; latency is kept here.
        """
        options = self.options
        self._history.copy_(torch.where(mask[:, None, None], ctrl[:, None, :].float(), self._history))
        if options.per != "episode":
            mask = mask & ~self._drawn
        if not (options.needs_models or options.latency is not None):
            return mask, {}
        self._drawn |= mask
        draw = self._streams["factors"].draw(mask)
        for key, (low, high) in options.scaled.items():
            target = self.factors[key]
            target.copy_(torch.where(mask[:, None], draw.uniform(self._sizes[key], low=low, high=high), target))
        if options.latency is not None:
            seconds = draw.uniform(low=options.latency[0], high=options.latency[1])
            late = torch.round(seconds / self._timestep).long()[:, None]
            late = late - torch.arange(self._substeps, device=late.device)
            # physics step j of a control step follows the decision taken ceil((latency - j) / substeps) steps ago
            age = torch.clamp(-torch.div(-late, self._substeps, rounding_mode="floor"), min=0)
            self._age.copy_(torch.where(mask[:, None], age, self._age))
        return mask, self.factors

    def delayed(self, control: Tensor) -> Tensor:
        """What acts when (N, nu) `control` is decided: itself, or (N, substeps, nu) with latency."""
        if self.options.latency is None:
            return control
        self._history[:, 1:] = self._history[:, :-1].clone()
        self._history[:, 0] = control
        index = self._age[:, :, None].expand(-1, -1, self._history.shape[2])
        return torch.gather(self._history, 1, index)

    def push(self) -> Tensor | None:
        """(N, 2) by how much the horizontal speeds of the trunks change now [m/s]; None where nothing pushes."""
        if self.options.push is None:
            return None
        chance = self._streams["pushes"].draw(self._everyone).uniform(3)
        return horizontal_push(chance, self.options.push, self._substeps * self._timestep / PUSH_SECONDS)

    def noisy(self, state: Tensor, mask: Tensor) -> Tensor:
        """(N, S) observations with noise; the streams of the rows of `mask` move on."""
        if not self.options.noisy:
            return state
        return state + self._streams["noise"].draw(mask).normal(state.shape[1], std=self._noise)

    def state_dict(self) -> StateDict:
        """All of it, as NumPy arrays."""
        out: dict[str, object] = {
            name: value.cpu().numpy().copy()
            for name, value in (("history", self._history), ("age", self._age), ("drawn", self._drawn))
        }
        out |= {f"factor.{key}": value.cpu().numpy().copy() for key, value in self.factors.items()}
        for name, streams in self._streams.items():
            out |= {f"{name}.{key}": value for key, value in streams.state_dict().items()}
        return out

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from `state_dict` of the same options.

        Raises:
            ValueError: saved with other options or another number of environments.
        """
        targets = {"history": self._history, "age": self._age, "drawn": self._drawn}
        targets |= {f"factor.{key}": value for key, value in self.factors.items()}
        for name, target in targets.items():
            found = tuple(state[name].shape) if name in state else "nothing"
            if found != tuple(target.shape):
                raise ValueError(
                    f"saved randomisation has {found} for '{name}', expected {tuple(target.shape)}; make the "
                    "environment with the options that it was saved with"
                )
            target.copy_(torch.as_tensor(state[name]))
        for name, streams in self._streams.items():
            streams.load_state_dict({key: state[f"{name}.{key}"] for key in ("key", "counter")})
