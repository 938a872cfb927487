"""Replay of transitions on the learner's device: tensors, one ring, and no wait for the device in any call.

The host knows how many steps were added, the device knows it too (`filled`), so that drawing a batch can be part of a
captured CUDA graph. `ReplayBuffer` is the one for images, windows, demonstrations and small memories.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from robot_rl.data.seen import space_rows
from robot_rl.types import IOSpec, Step, Transitions


class DeviceReplay:
    """Ring of the last `steps` steps of N environments, sampled uniformly with replacement.

    One float32 record per transition, [s | a | s' | r | terminated | truncated | valid], so that a batch of single
    steps is one gather. n-step returns end at the end of an episode, before a row that is no transition, and at the
    newest row; each row holds its own true successor, so the bootstrap is right in all three cases. Rows with `valid`
    False can be drawn; their `mask` is False and a learner gives them weight 0.

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
        for name, number in (("steps", steps), ("num_envs", num_envs), ("n_step", n_step)):
            if number < 1:
                raise ValueError(f"{name} is {number}, expected at least 1")
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma is {gamma}, expected a number in [0, 1]")
        self.io, self.steps, self.num_envs, self.n_step, self.gamma = io, steps, num_envs, n_step, gamma
        self.device = torch.device(device)
        self._parts: dict[str, slice] = {}
        at = 0
        for key in sorted(io.obs):
            shape, dtype = io.obs[key]
            if len(shape) != 1 or not dtype.startswith("float"):
                raise ValueError(
                    f"the replay on the device keeps vectors of floats, got observation '{key}' of shape {shape} and "
                    f"type {dtype}; build the environment without cameras, or train with policy=online/sac"
                )
            self._parts[key] = slice(at, at + shape[0])
            at += shape[0]
        self._obs_dim, actions = at, io.action_dim
        self._action = slice(at, at + actions)
        self._next = slice(at + actions, 2 * at + actions)
        self._reward = 2 * at + actions
        self.record = torch.zeros(steps, num_envs, self._reward + 4, device=self.device)
        self.filled = torch.zeros((), dtype=torch.int64, device=self.device)
        self.oldest = torch.zeros((), dtype=torch.int64, device=self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._powers = gamma ** torch.arange(n_step + 1, device=self.device, dtype=torch.float32)
        self._off: dict[int, Tensor] = {}
        self.count = 0

    def __len__(self) -> int:
        return min(self.count, self.steps) * self.num_envs

    @torch.no_grad()
    def add(self, step: Step) -> None:
        """Store one step of all environments; its arrays are tensors on this device."""
        row = self.record[self.count % self.steps]
        for key, part in self._parts.items():
            row[:, part] = step.obs[key]
            row[:, self._next][:, part] = step.next_obs[key]
        row[:, self._action] = cast(Tensor, step.action)
        for offset, column in enumerate((step.reward, step.terminated, step.truncated, step.valid)):
            row[:, self._reward + offset] = cast(Tensor, column)
        self.count += 1
        self._tell()

    def _tell(self) -> None:
        """The host's count, for the device; filling with a number waits for nothing."""
        self.filled.fill_(min(self.count, self.steps))
        self.oldest.fill_(self.count % self.steps if self.count > self.steps else 0)

    def batches(self, size: int) -> DeviceBatches:
        """Endless batches of `size` rows."""
        return DeviceBatches(self, size)

    @torch.no_grad()
    def sample(self, size: int) -> Transitions:
        """One batch.

        Raises:
            ValueError: the buffer is empty.
        """
        if not self.count:
            raise ValueError("the replay buffer is empty; add steps before sampling")
        draw = torch.rand(2, size, generator=self.generator, device=self.device, dtype=torch.float64)
        age = torch.minimum((draw[0] * self.filled).long(), self.filled - 1)  # 0 is the oldest step
        env = (draw[1] * self.num_envs).long().clamp_(max=self.num_envs - 1)
        return self.gather(age, env)

    @torch.no_grad()
    def look(self, most: int) -> tuple[dict[str, Any], Any, int]:
        """Observations and actions of evenly spaced rows, and how many steps came in; see `data.seen`."""
        rows = torch.from_numpy(space_rows(int(self.filled) * self.num_envs, most)).to(self.device)
        flat = self.record.view(-1, self.record.shape[-1])
        where = self._slot(rows // self.num_envs) * self.num_envs + rows % self.num_envs
        first = flat.index_select(0, where)
        obs = {key: first[:, part] for key, part in self._parts.items()}
        return obs, first[:, self._action], self.count * self.num_envs

    def gather(self, age: Tensor, env: Tensor) -> Transitions:
        """Samples that start `age` (B,) steps after the oldest one, in the environments `env` (B,)."""
        flat = self.record.view(-1, self.record.shape[-1])
        first = last = flat.index_select(0, self._slot(age) * self.num_envs + env)
        reward, at = first[:, self._reward], self._reward
        steps = torch.ones_like(age)
        going = (first[:, at + 1] + first[:, at + 2] == 0) & (first[:, at + 3] > 0)
        for i in range(1, self.n_step):
            ahead = age + i
            there = flat.index_select(0, self._slot(torch.minimum(ahead, self.filled - 1)) * self.num_envs + env)
            going = going & (ahead < self.filled) & (there[:, at + 3] > 0)
            reward = torch.where(going, torch.addcmul(reward, there[:, at], self._powers[i]), reward)
            last = torch.where(going[:, None], there, last)
            steps = steps + going
            going = going & (there[:, at + 1] + there[:, at + 2] == 0)
        terminated = last[:, at + 1] > 0
        return Transitions(
            obs={key: first[:, part] for key, part in self._parts.items()},
            action=first[:, self._action],
            reward=reward,
            discount=self._powers[steps] * (1.0 - last[:, at + 1]),
            next_obs={key: last[:, self._next][:, part] for key, part in self._parts.items()},
            terminated=terminated,
            truncated=last[:, at + 2] > 0,
            intervened=self._no(len(age)),
            mask=first[:, at + 3] > 0,
        )

    def _slot(self, age: Tensor) -> Tensor:
        return (self.oldest + age) % self.steps

    def _no(self, size: int) -> Tensor:
        if size not in self._off:
            self._off[size] = torch.zeros(size, dtype=torch.bool, device=self.device)
        return self._off[size]

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next `add` and the next batch depend on."""
        return {
            "meta": self._meta(),
            "count": self.count,
            "record": self.record[: min(self.count, self.steps)].cpu(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy in place; a buffer with room for more or fewer steps takes over the newest that it can hold.

        Raises:
            ValueError: the state is of a buffer of another interface, number of environments or discount.
        """
        theirs, ours = dict(state["meta"]), self._meta()
        room = theirs.pop("steps")
        if theirs != {name: value for name, value in ours.items() if name != "steps"}:
            raise ValueError(f"the saved replay is {state['meta']}, this one is {ours}; use the same world and sizes")
        record, count = state["record"], int(state["count"])
        if room != self.steps:
            record = record.roll(-(count % room), 0) if count > room else record  # oldest first
            record = record[-self.steps :]
            count = len(record)
        self.count = count
        self.record[: len(record)].copy_(record)
        self.generator.set_state(state["generator"].cpu())
        self._tell()

    def save(self, path: str | Path, base: str | Path | None = None) -> None:
        """Write the buffer into the new folder `path`; `base` is not used, the file is written whole."""
        folder = Path(path)
        folder.mkdir(parents=True)
        torch.save(self.state_dict(), folder / "replay.pt")

    def load(self, path: str | Path) -> None:
        """Inverse of `save`.

        Raises:
            ValueError: another interface or size, or no such file.
        """
        file = Path(path) / "replay.pt"
        if not file.exists():
            raise ValueError(f"{path} holds no replay.pt; expected a folder written by DeviceReplay.save")
        self.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))

    def _meta(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "num_envs": self.num_envs,
            "gamma": self.gamma,
            "obs": {key: math.prod(shape) for key, (shape, _) in sorted(self.io.obs.items())},
            "action_dim": self.io.action_dim,
        }


class DeviceBatches(Iterator[Transitions]):
    """Endless batches of a `DeviceReplay`.

    Attributes:
        generators: what the drawing consumes; a CUDA graph has to know them.
    """

    def __init__(self, replay: DeviceReplay, size: int) -> None:
        if size < 1:
            raise ValueError(f"the batch size is {size}, expected at least 1")
        self._replay, self._size = replay, size
        self.generators = (replay.generator,)

    def __next__(self) -> Transitions:
        return self._replay.sample(self._size)
