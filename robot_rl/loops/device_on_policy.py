"""On-policy training on a device: rollouts, values and updates are tensors that never leave it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from robot_rl import parallel
from robot_rl.data.seen import RowSample
from robot_rl.loops.device import DeviceLoop
from robot_rl.types import OnPolicyDeviceLearner, Rollout, StepEnv


class DeviceOnPolicy(DeviceLoop[OnPolicyDeviceLearner]):
    """T steps of N environments, one update, again; arguments and errors as in `DeviceLoop`."""

    kind, period = "device_on_policy", 1
    saved = (*DeviceLoop.saved, "rows")

    def __init__(
        self, env: StepEnv, learner: OnPolicyDeviceLearner, *, seed: int = 0, save_to: str | Path | None = None
    ) -> None:
        super().__init__(env, learner, seed=seed, save_to=save_to)
        self.rows = RowSample()
        steps, rows = learner.need.rollout_steps, env.num_envs
        self._vectors = {key: shape[0] for key, (shape, _) in env.io.obs.items()}

        def column(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(steps, rows, *shape, dtype=dtype, device=self.device)

        self._obs = {key: column(size) for key, size in self._vectors.items()}
        self._next = {key: column(size) for key, size in self._vectors.items()}
        self._action = column(env.io.action_dim)
        self._logp, self._value, self._reward = column(), column(), column()
        self._terminated, self._truncated, self._valid = (column(dtype=torch.bool) for _ in range(3))

    def iterate(self) -> None:
        """One rollout and the update of it."""
        self.learner.update(iter((self.collect(),)))

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
