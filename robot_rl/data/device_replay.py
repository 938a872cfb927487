"""Replay of transitions on the learner's device: tensors, one ring, and no wait for the device in any call.

The host knows how many steps were added, the device knows it too (`filled`), so that drawing a batch can be part of a
captured CUDA graph. `ReplayBuffer` is the one for images, windows, demonstrations and small memories.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.arrays import DeviceArrays, Store
from robot_rl.data.buffer import Replay
from robot_rl.data.chains import check_sizes
from robot_rl.data.layout import RecordLayout
from robot_rl.data.ring import TransitionRing
from robot_rl.types import IOSpec, Step, Transitions


class DeviceReplay(Replay):
    """Ring of the last `steps` steps of N environments, sampled uniformly with replacement; see `Replay`.

    Every step takes N rows, also of environments that give no transition (`valid` False): these rows can be drawn,
    their `mask` is False and a learner gives them weight 0. n-step returns end at the end of an episode, before a row
    that is no transition, and at the newest row; each row holds its own true successor, so the bootstrap is right in
    all three cases. A state of another number of steps may be loaded: it takes over the newest that it can hold.

    Args:
        io: interface of the environments; observations are vectors of floats.
        steps: steps kept of every environment.
        num_envs: N.
        n_step: steps summed into one reward.
        gamma: discount per step.
        device: where everything lives.
        seed: of the sampling.

    Raises:
        ValueError: a size out of range, or an observation that is no vector of floats.
    """

    def __init__(
        self,
        io: IOSpec,
        steps: int,
        *,
        num_envs: int,
        n_step: int = 1,
        gamma: float = 0.99,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        check_sizes(gamma, steps=steps, num_envs=num_envs, n_step=n_step)
        layout = RecordLayout(io, {})
        for key, (shape, dtype) in io.obs.items():
            if len(shape) != 1 or key in layout.frames:
                raise ValueError(
                    f"the replay on the device keeps vectors of floats, got observation '{key}' of shape {shape} and "
                    f"type {dtype}; build the environment without cameras, or train with policy=online/sac"
                )
        ring = TransitionRing(DeviceArrays(device), layout, steps * num_envs, slack=0)
        super().__init__(io, ring, num_envs=num_envs, n_step=n_step, gamma=gamma, window=1, seed=seed)
        self.steps, self.device = steps, torch.device(device)
        self.record: Tensor = ring.record.view(steps, num_envs, -1)
        """(steps, N, width) the rows, see `RecordLayout`."""
        self.filled = torch.zeros((), dtype=torch.int64, device=self.device)
        self.oldest = torch.zeros((), dtype=torch.int64, device=self.device)

    @torch.no_grad()
    def add(self, step: Step) -> None:
        """Store one step of all environments; its arrays are tensors on this device."""
        ring, layout, n = self._ring, self._layout, self.num_envs
        start = ring.count % ring.capacity
        before = (start - n) % ring.capacity
        rows = ring.record[start : start + n]
        flags = (step.terminated, step.truncated, step.valid, step.intervened)
        terminated, truncated, valid, intervened = (cast(Tensor, flag) for flag in flags)
        if ring.count:
            stopped = ring.flags[before : before + n, :3].any(-1)
            ring.onward[before : before + n] = (valid & ~stopped) * (start - before)
        ring.onward[start : start + n] = 0
        layout.write(rows, step.obs, step.next_obs, step.action, step.reward)
        rows[:, layout.discount] = self.gamma * ~terminated
        ring.flags[start : start + n] = torch.stack((terminated, truncated, ~valid, intervened), -1)
        ring.count += n
        ring.retire()
        self._tell()

    def cut(self) -> None:
        """What comes next continues no episode: the newest steps count as truncated where they ended none."""
        start = (self._ring.count - self.num_envs) % self._ring.capacity
        if self._ring.count:
            flags = self._ring.flags[start : start + self.num_envs]
            flags[:, 1] |= ~flags[:, 0]

    def _tell(self) -> None:
        """The host's counts, for the device; filling with a number waits for nothing."""
        self.filled.fill_(len(self._ring) // self.num_envs)
        self.oldest.fill_(self._ring.oldest // self.num_envs % self.steps)

    @torch.no_grad()
    def sample(self, size: int) -> Transitions:
        """One batch.

        Raises:
            ValueError: the buffer is empty.
        """
        if not len(self):
            raise ValueError("the replay buffer is empty; add steps before sampling")
        draw = torch.rand(2, size, generator=self._generator, device=self.device, dtype=torch.float64)
        age = torch.minimum((draw[0] * self.filled).long(), self.filled - 1)  # 0 is the oldest step
        env = (draw[1] * self.num_envs).long().clamp_(max=self.num_envs - 1)
        return self.gather(age, env)

    def gather(self, age: Tensor, env: Tensor) -> Transitions:
        """Samples that start `age` (B,) steps after the oldest one, in the environments `env` (B,)."""
        return self._collect((self.oldest + age) % self.steps * self.num_envs + env)

    def _mask(self, first: Store) -> Tensor:
        return ~self._layout.read_flags(self._arrays, first)[:, 2]

    def _may_move(self, saved: dict[str, object]) -> bool:
        return True

    def _restore(self, small: dict[str, np.ndarray]) -> None:
        super()._restore(small)
        self._tell()
