"""Learners fed with noise of any interface on any device: what they answer means nothing, where it lies does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from robot_rl import build
from robot_rl.data.goal_pictures import GoalPictures
from robot_rl.data.goals import GoalDataset
from robot_rl.data.mix import Mix
from robot_rl.data.store import write_store
from robot_rl.loops.contract import batches_for, update_learner
from robot_rl.loops.device import DeviceOffPolicy
from robot_rl.loops.device_on_policy import DeviceOnPolicy
from robot_rl.loops.on_policy import OnPolicy
from robot_rl.loops.on_policy_async import AsyncOnPolicy
from robot_rl.types import EnvParts, Episode, IOSpec, Transitions
from robot_rl.verbs import logs
from robot_rl.verbs.logs import LogSettings

SMALL: dict[str, Any] = {
    "hidden": (16, 16), "critic_hidden": (16, 16), "actor_hidden": (16, 16), "model_hidden": (16,), "batch_size": 8,
    "metrics_every": 1, "rollout_steps": 8, "epochs": 1, "minibatch": 16, "clone_updates": 2, "width": 16, "samples": 2,
    "bins": 11, "memory": 8, "updates": 2, "bc_steps": 2, "rollout_batch": 16, "model_members": 2, "model_elites": 2,
    "model_updates": 2, "set_steps": 3, "horizon_pred": 4, "horizon_exec": 2, "trunk": (16,),
}  # fmt: skip
"""Taken by every method that has such an option."""
IO = IOSpec(
    {"state": ((3,), "float32")}, ("x", "y"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 10.0, ("s0", "s1", "s2")
)  # fmt: skip


def observations(io: IOSpec, rows: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """(rows, ...) of every observation."""
    return {
        key: rng.normal(size=(rows, *shape)).astype(np.float32)
        if kind == "float32"
        else rng.integers(97, 100, (rows, *shape)).astype(kind)
        for key, (shape, kind) in io.obs.items()
    }


class Noise:
    """N environments whose observations, rewards and ends are draws."""

    parts = EnvParts()

    def __init__(self, io: IOSpec = IO, num_envs: int = 3) -> None:
        self.io, self.num_envs, self.metadata = io, num_envs, {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._rng = np.random.default_rng(0)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return observations(self.io, self.num_envs, self._rng), {}

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        assert isinstance(action, np.ndarray), "environments of the host are answered with arrays"
        obs, final = (observations(self.io, self.num_envs, self._rng) for _ in range(2))
        over = self._rng.random(self.num_envs) < 0.2
        reward = self._rng.normal(size=self.num_envs).astype(np.float32)
        return obs, reward, over, np.zeros_like(over), {"final_obs": final}


def log(folder: Path, io: IOSpec, *, count: int = 8, steps: int = 10, seed: int = 0) -> Any:
    """Random episodes; every second one ends by itself."""
    rng, made = np.random.default_rng(seed), []
    for number in range(count):
        action = rng.uniform(-0.9, 0.9, (steps, io.action_dim)).astype(np.float32)
        made.append(
            Episode(
                observations(io, steps + 1, rng), action, action, rng.normal(size=steps).astype(np.float32),
                number % 2 == 0, number % 2 == 1, np.zeros(steps, bool), np.arange(steps + 1.0),
            )
        )  # fmt: skip
    return write_store(folder / f"log{seed}.store", made, io=io)


def make(name: str, io: IOSpec, device: str, seed: int = 0, **options: Any) -> Any:
    """A small learner."""
    fields = build.options_of("policy", build.find("policy", name)).model_fields
    small = {key: value for key, value in SMALL.items() if key in fields}
    return build.make("policy", {"name": name, **small, **options}, io, seed=seed, device=device, gamma=0.9)


def feed(learner: Any, env: Any, folder: Path, *, updates: int = 3, prepare: bool = True) -> None:
    """Some updates in the loop that the method asks for; `prepare` says what is known of a log first."""
    need = learner.need
    if need.feeds == "rollout":
        OnPolicy(env, learner, seed=0).run(updates * need.rollout_steps * env.num_envs)
    elif need.feeds == "stale_rollout":
        AsyncOnPolicy(env, learner, seed=0).run(updates * need.rollout_steps * env.num_envs)
    elif need.feeds == "device_rollout":
        DeviceOnPolicy(env, learner, seed=0).run(updates * need.rollout_steps * env.num_envs)
    elif need.feeds == "device_transitions":
        loop = DeviceOffPolicy(env, learner, buffer_size=64, n_step=2, gamma=0.9, learning_starts=12, seed=0)
        loop.run(40)
    else:
        source, data = from_log(learner, env.io, folder)
        if prepare:
            learner.prepare(logs.facts(data))
        batches = map(recorded, source.batches(need.rows or 8))
        if prepare:
            learner.pretrain(batches_for(learner, batches))
        for _ in range(updates):
            update_learner(learner, batches)


def recorded(batch: Transitions) -> Transitions:
    """A batch that also says what a session with a person or a loop records."""
    zero = torch.zeros(batch.reward.shape)
    some = {"imitate": zero + 1, "reward_task": zero, "reward_rlif": zero, "grip_penalty": zero, "grip_action": zero}
    some["previous_action"] = torch.zeros_like(batch.action)
    some |= {"source": (torch.arange(len(zero)) > 5).long(), "boundary": batch.terminated | batch.truncated}
    return replace(batch, extras={**some, "decision_start": (zero + 1)[..., None], **batch.extras})


def from_log(learner: Any, io: IOSpec, folder: Path) -> tuple[Any, Any]:
    """What a learner draws from a log of noise, as `robot-rl offline` has it, and the log."""
    need, parts = learner.need, []
    for number in range(1 + need.expert):
        store = log(folder, io, seed=number)
        settings = LogSettings(data=str(store.path), gamma=0.9)
        parts.append(logs.sampler(store, settings, seed=number, need=need, reader=learner.reader)[0])
    data = parts[0]
    if need.goals is not None:
        return GoalDataset(data, seed=0, **need.goals), data
    if need.goal_pictures is not None:
        return GoalPictures(data, seed=0, **need.goal_pictures), data
    return (Mix({"expert": (parts[1], 0.5), "other": (data, 0.5)}, seed=0), data) if need.expert else (data, data)
