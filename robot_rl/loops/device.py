"""Training in which nothing leaves the device between two looks at the metrics."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, TypeVar

import torch

from robot_rl import parallel
from robot_rl.data.device_replay import DeviceReplay
from robot_rl.loops.contract import Due, Tick, every
from robot_rl.loops.device_world import DeviceEpisodeStats, DeviceWorld, open_world
from robot_rl.state import Saved
from robot_rl.types import DeviceResident, Metrics, OffPolicyDeviceLearner, StepEnv

L = TypeVar("L", bound=DeviceResident)


class DeviceLoop(Saved, ABC, Generic[L]):
    """Act, keep, update, all on one device; with several processes every one has its own environments.

    The host enqueues work and counts; it waits only where something is due. A NumPy environment is bridged: then
    every step waits for its actions and copies its observations, and only the updates stay on the device.

    Args:
        env: vector environment, tensors on the learner's device or NumPy arrays.
        learner: improves its `policy`.
        seed: of the environments and of what the loop draws.
        save_to: folder for a bridged environment's state if it returns NaN.

    Raises:
        ValueError: the learner was made for another interface than the environment's.
    """

    saved = ("env_steps", "iterations", "stats")
    period: int
    """Transitions between two looks where nothing else is said."""

    def __init__(self, env: StepEnv, learner: L, *, seed: int = 0, save_to: str | Path | None = None) -> None:
        learner.policy.io.check(env.io)
        self.env, self.learner, self.device = env, learner, learner.device
        self.env_steps, self.iterations = 0, 0
        self.stats = DeviceEpisodeStats(env.num_envs, self.device)
        self._world: DeviceWorld = open_world(env, self.device, save_to)
        self._seed = seed + 100_003 * parallel.rank()

    def run(self, total_steps: int, tick: Tick | None = None, *, due: Due | None = None) -> None:
        """Train until `total_steps` transitions of all processes together, or until `tick` says stop.

        Args:
            total_steps: transitions in all, those before a resume included; a rollout that began is completed.
            tick: called with (transitions so far, metrics) when it is due and at the end; True stops. With several
                processes all call it, at the same steps, and get the same answer.
            due: asked after every iteration; None: every `period` transitions. Until then the host waits for nothing.
        """
        due = every(self.period) if due is None else due
        if not self._world.obs:
            self._world.reset(self._seed + self.env_steps)
            self.begin()
        mark, mark_steps = time.perf_counter(), self.env_steps
        while self.env_steps < total_steps:
            before = self.env_steps
            self.iterate()
            self.iterations += 1
            if self.env_steps >= total_steps or due(before, self.env_steps):
                metrics = self.read()
                speed = (self.env_steps - mark_steps) / max(time.perf_counter() - mark, 1e-9)
                stop = tick is not None and tick(self.env_steps, {**metrics, "time/sps": speed})
                mark, mark_steps = time.perf_counter(), self.env_steps
                if stop:
                    return

    def begin(self) -> None:
        """New episodes have begun: of a run, or of one that goes on where its environment could not be saved."""
        self.stats.begin()

    @abstractmethod
    def iterate(self) -> None:
        """Step the environments and make the updates that belong to it."""

    def read(self) -> Metrics:
        """Metrics of learner and episodes; the one place that waits for the device.

        Raises:
            NonFiniteError: an environment returned NaN or infinity since the last reading.
            FloatingPointError: the learner diverged.
        """
        self._world.check()
        own = {"train/updates": float(self.learner.updates)}
        return {**self.learner.read_metrics(), **self.stats.metrics(), **own}

    def saved_parts(self) -> dict[str, object]:
        """All that continuation needs besides learner and replay."""
        return {**super().saved_parts(), "world": self._world}


class DeviceOffPolicy(DeviceLoop[OffPolicyDeviceLearner]):
    """One step of all environments, then the updates that belong to it; every process has its own replay.

    Args:
        env: see `DeviceLoop`.
        learner: improves its `policy`.
        buffer_size: transitions kept, over all environments of all processes.
        n_step: steps summed into one reward.
        gamma: discount per step.
        learning_starts: transitions with uniform random actions before the first update.
        seed: of the environments, the random actions and the sampling.
        save_to: folder for a bridged environment's state if it returns NaN.

    Raises:
        ValueError: environment and learner do not fit, or a number is out of range.
    """

    kind, period = "device_off_policy", 1000
    saved = (*DeviceLoop.saved, "_random", "_ended")

    def __init__(
        self,
        env: StepEnv,
        learner: OffPolicyDeviceLearner,
        *,
        buffer_size: int = 1_000_000,
        n_step: int = 1,
        gamma: float = 0.99,
        learning_starts: int = 100,
        seed: int = 0,
        save_to: str | Path | None = None,
    ) -> None:
        super().__init__(env, learner, seed=seed, save_to=save_to)
        self.learning_starts, self._ranks = learning_starts, parallel.size()
        self.replay = DeviceReplay(
            env.io,
            max(buffer_size // (env.num_envs * self._ranks), n_step),
            num_envs=env.num_envs,
            n_step=n_step,
            gamma=gamma,
            device=str(self.device),
            seed=self._seed,
        )
        self.sampler = self.replay
        self._random = torch.Generator(self.device).manual_seed(self._seed + 1)
        self._ended = torch.ones(env.num_envs, dtype=torch.bool, device=self.device)
        self._batches = self.replay.batches(parallel.shard(learner.need.rows, "policy.batch_size"))

    def begin(self) -> None:
        """See `DeviceLoop.begin`; what is replayed ends with the episodes before."""
        super().begin()
        self._ended.fill_(True)
        self.replay.cut()

    @torch.no_grad()
    def iterate(self) -> None:
        """One step of all environments and the updates that belong to it."""
        world = self._world
        action = self.learner.explore(world.obs, self._ended)
        if self.env_steps < self.learning_starts:
            action = torch.rand(action.shape, generator=self._random, device=self.device) * 2.0 - 1.0
        step = world.step(action)
        self.replay.add(step)
        self.stats.add(step)
        self._ended = torch.as_tensor(step.terminated) | torch.as_tensor(step.truncated)
        self.env_steps += self.env.num_envs * self._ranks
        if self.env_steps >= self.learning_starts:
            with torch.enable_grad():
                self.learner.update(self._batches)
