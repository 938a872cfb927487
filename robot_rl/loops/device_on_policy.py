"""On-policy training on a device: rollouts, values and updates are tensors that never leave it."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from robot_rl import parallel
from robot_rl.data.seen import RowSample
from robot_rl.loops.contract import Due, Tick, every
from robot_rl.loops.device_world import DeviceEpisodeStats, DeviceWorld, open_world
from robot_rl.types import Metrics, OnPolicyDeviceLearner, Rollout, StateDict, StepEnv


class DeviceOnPolicy:
    """T steps of N environments, one update, again; with several processes every one has its own environments.

    Args:
        env: vector environment, tensors on the learner's device or NumPy arrays (bridged).
        learner: what learns.
        seed: of the environments.
        save_to: folder for a bridged environment's state if it returns NaN.

    Raises:
        ValueError: the learner was made for another interface than the environment's.
    """

    def __init__(
        self, env: StepEnv, learner: OnPolicyDeviceLearner, *, seed: int = 0, save_to: str | Path | None = None
    ) -> None:
        learner.policy.io.check(env.io)
        self.env, self.learner, self.device = env, learner, learner.device
        self.env_steps, self.iterations = 0, 0
        self.stats = DeviceEpisodeStats(env.num_envs, self.device)
        self.rows = RowSample()
        self._world: DeviceWorld = open_world(env, self.device, save_to)
        self._seed = seed + 100_003 * parallel.rank()
        steps, rows = learner.need.rollout_steps, env.num_envs
        self._vectors = {key: shape[0] for key, (shape, _) in env.io.obs.items()}

        def column(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(steps, rows, *shape, dtype=dtype, device=self.device)

        self._obs = {key: column(size) for key, size in self._vectors.items()}
        self._next = {key: column(size) for key, size in self._vectors.items()}
        self._action = column(env.io.action_dim)
        self._logp, self._value, self._reward = column(), column(), column()
        self._terminated, self._truncated, self._valid = (column(dtype=torch.bool) for _ in range(3))

    def run(self, total_steps: int, tick: Tick | None = None, *, due: Due | None = None) -> None:
        """Train until `total_steps` transitions of all processes together; the last rollout is completed.

        Args:
            total_steps: transitions in all, those before a resume included.
            tick: called with (transitions so far, metrics) when it is due and at the end; True stops. With several
                processes all call it, at the same steps, and get the same answer.
            due: asked after every rollout; None: after each. Until something is due the host waits for nothing.
        """
        due = every(1) if due is None else due
        if not self._world.obs:
            self._world.reset(self._seed)
        mark, mark_steps = time.perf_counter(), self.env_steps
        while self.env_steps < total_steps:
            before = self.env_steps
            self.learner.update(iter((self.collect(),)))
            self.iterations += 1
            if self.env_steps >= total_steps or due(before, self.env_steps):
                metrics = self.read()
                speed = (self.env_steps - mark_steps) / max(time.perf_counter() - mark, 1e-9)
                stop = tick is not None and tick(self.env_steps, {**metrics, "time/sps": speed})
                mark, mark_steps = time.perf_counter(), self.env_steps
                if stop:
                    return

    @torch.no_grad()
    def collect(self) -> Rollout:
        """One rollout; its tensors are this loop's own and are written again by the next one."""
        world, learner = self._world, self.learner
        for t in range(learner.need.rollout_steps):
            raw, logp, value = learner.explore(world.obs)
            step = world.step(raw)
            for key in self._vectors:
                self._obs[key][t], self._next[key][t] = step.obs[key], step.next_obs[key]
            self._action[t], self._logp[t], self._value[t] = raw, logp, value
            self._reward[t] = torch.as_tensor(step.reward)
            self._terminated[t] = torch.as_tensor(step.terminated)
            self._truncated[t] = torch.as_tensor(step.truncated)
            self._valid[t] = torch.as_tensor(step.valid)
            self.stats.add(step)
        self.rows.add(self._obs, self._action, self._valid)
        self.env_steps += learner.need.rollout_steps * self.env.num_envs * parallel.size()
        # Every row's true successor is valued: nobody has to ask where an episode ended.
        flat = {key: value.flatten(0, 1) for key, value in self._next.items()}
        boundary = self._terminated | self._truncated
        boundary[-1] = True
        return Rollout(
            obs=self._obs,
            action=self._action,
            logp=self._logp,
            value=self._value,
            reward=self._reward,
            next_value=learner.value(flat).view_as(self._reward),
            boundary=boundary,
            terminated=self._terminated,
            truncated=self._truncated,
            valid=self._valid,
        )

    def read(self) -> Metrics:
        """Metrics of learner and episodes; the one place that waits for the device.

        Raises:
            NonFiniteError: an environment returned NaN or infinity since the last reading.
            FloatingPointError: the learner diverged.
        """
        self._world.check()
        return {**self.learner.read_metrics(), **self.stats.metrics()}

    def state_dict(self) -> StateDict:
        """All that continuation needs besides the learner."""
        return {
            "kind": "device_on_policy",
            "env_steps": self.env_steps,
            "iterations": self.iterations,
            "rows": self.rows.state_dict(),
            "stats": self.stats.state_dict(),
            "world": self._world.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            ValueError: the state is of another kind of loop or of other sizes.
        """
        if state.get("kind") != "device_on_policy":
            raise ValueError(f"this state is of a '{state.get('kind')}' loop, expected device_on_policy")
        self.env_steps, self.iterations = int(state["env_steps"]), int(state["iterations"])
        self.stats.load_state_dict(state["stats"])
        self.rows.load_state_dict(state["rows"])
        self._world.load_state_dict(state["world"], self._seed)
