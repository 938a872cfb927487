"""What domain randomisation has done to N environments on a device; the counterpart of `sim.randomize.Randomizer`.

Options, streams and draws are those of the CPU engine: the same seed gives the same factors on either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from robot_rl.sim.draw_torch import TorchStreams
from robot_rl.sim.randomize import Randomize, Randomizer

if TYPE_CHECKING:
    from mujoco import MjModel


class TorchRandomizer(Randomizer):
    """`Randomizer` on tensors, whose `rows` are a mask (N,) bool, so that nothing has to be known on the host.

    Args:
        options, num_envs, seed, model, substeps: as there.
        device: of all tensors.
    """

    def __init__(
        self, options: Randomize, num_envs: int, seed: int, model: MjModel, substeps: int, *, device: torch.device
    ) -> None:
        self._device = device
        super().__init__(options, num_envs, seed, model, substeps)
        self._everyone = torch.ones(num_envs, dtype=torch.bool, device=device)

    def place(self, values: np.ndarray) -> Tensor:
        """The values on the device; numbers as float32."""
        return torch.from_numpy(values.astype(np.float32) if values.dtype == np.float64 else values).to(self._device)

    def _stream(self, num_envs: int, seed: int, purpose: int) -> TorchStreams:
        return TorchStreams(num_envs, seed, purpose, device=self._device)

    def restart(self, rows: Tensor, ctrl: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """As there; all factors are returned, with the mask of those that were drawn anew."""
        options, mask = self.options, rows
        self._history.copy_(torch.where(mask[:, None, None], ctrl[:, None, :].float(), self._history))
        if options.per != "episode":
            mask = mask & ~self._drawn
        if not (options.needs_models or options.latency is not None):
            return mask, {}
        self._drawn |= mask
        draw = self._streams["factors"].draw(mask)
        for key, (low, high) in options.factor_ranges.items():
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

    def delay(self, control: Tensor) -> Tensor:
        """What acts when (N, nu) `control` is decided: itself, or (N, substeps, nu) with latency."""
        if self.options.latency is None:
            return control
        self._history[:, 1:] = self._history[:, :-1].clone()
        self._history[:, 0] = control
        index = self._age[:, :, None].expand(-1, -1, self._history.shape[2])
        return torch.gather(self._history, 1, index)
