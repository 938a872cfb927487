"""On-policy training: T steps of N environments with the current policy, one update, again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.seen import RowSample
from robot_rl.loops.contract import Due, Tick, memory_of, update_learner
from robot_rl.loops.episodes import EpisodeStats
from robot_rl.loops.stepping import Stepper
from robot_rl.state import Saved
from robot_rl.types import Array, Obs, OnPolicyLearner, Policy, Rollout, StateDict, Step, StepEnv


class OnPolicy(Saved):
    """The on-policy loop; deterministic from its seed and exactly resumable between iterations.

    Args:
        env: vector environment in any autoreset mode.
        learner: what learns.
        seed: seed of the first reset.
        save_to: folder for the environment's state if it returns NaN.

    Raises:
        ValueError: the learner was made for another interface than the environment's.
    """

    saved = ("env_steps", "iterations", "rows")

    def __init__(
        self, env: StepEnv, learner: OnPolicyLearner, *, seed: int = 0, save_to: str | Path | None = None
    ) -> None:
        self.env_steps = 0
        self.iterations = 0
        rewardless = learner.need.rewardless
        self.stats = EpisodeStats(env.num_envs, choices=bool(env.io.action_choices), rewardless=rewardless)
        self.rows = RowSample()
        learner.policy.io.check(env.io)
        self._learner, self._seed = learner, seed
        self._actor: Policy = learner.policy
        self._stepper = Stepper(env, save_to=save_to)
        self._storage: RolloutStorage | None = None

    def run(self, total_steps: int, tick: Tick | None = None, *, due: Due | None = None) -> None:
        """Train until `env_steps` reaches `total_steps`, counting from the run's beginning.

        Args:
            total_steps: transitions of all environments together; the last rollout is completed.
            tick: called after an iteration with the number of transitions and the metrics; True stops the loop.
            due: whether that is to be done after this iteration; None: after every one.
        """
        if not self._stepper.obs:
            self._begin()
        while self.env_steps < total_steps:
            begin = time.perf_counter()
            rollout = self._collect()
            collected = time.perf_counter()
            steps = int(rollout.valid.sum())
            metrics = update_learner(self._learner, iter((rollout,)), progress=self.env_steps / total_steps)
            end = time.perf_counter()
            self.env_steps += steps
            self.iterations += 1
            metrics = {
                **self.stats.metrics(),
                **metrics,
                "train/action_std": float(rollout.action.std(correction=0)),
                "time/sps": steps / (end - begin),
                "time/update_fraction": (end - collected) / (end - begin),
            }
            now = due is None or self.env_steps >= total_steps or due(self.env_steps - steps, self.env_steps)
            if now and tick is not None and tick(self.env_steps, metrics):
                return

    def _begin(self) -> None:
        """Begin new episodes: of a run, and of one that goes on where its environment could not be saved."""
        self._stepper.reset(self._seed + self.env_steps)
        self._actor.reset()
        self.stats.begin()

    def saved_parts(self) -> dict[str, object]:
        """Environment, observation, statistics and counters; the learner saves itself."""
        return {
            **super().saved_parts(),
            "policy_memory": memory_of(self._actor),
            "stepper": self._stepper if self._stepper.env.parts.saves else None,  # else new episodes begin
            "episodes": self.stats,
        }

    def _collect(self) -> Rollout:
        if self._storage is None:
            self._storage = RolloutStorage(self._learner.need.rollout_steps)
        collect(self._stepper, self._actor, self._storage, self.stats, self._learner.need.record)
        self._storage.sample(self.rows)
        return self._storage.rollout(self._learner)


def collect(
    stepper: Stepper, policy: Policy, storage: RolloutStorage, stats: EpisodeStats, extras: tuple[str, ...] = ()
) -> None:
    """Fill a storage with steps of a policy.

    Args:
        stepper: the environment.
        policy: what acts; answers `logp`.
        storage: emptied first.
        stats: episodes are counted here.
        extras: names of further extras of the actions to store.

    Raises:
        ValueError: the policy gave no logp.
    """
    storage.clear()
    for _ in range(storage.length):
        action = policy.act(stepper.obs)
        if action.logp is None:
            raise ValueError(f"{type(policy).__name__}.act gave no logp; the on-policy loop needs it of every sample")
        step = stepper.step(action.value)
        raw = action.extras.get("raw", action.value)
        if storage.add(step, raw, action.logp, {name: action.extras[name] for name in extras}):
            policy.reset(step.terminated | step.truncated | ~step.valid)
        stats.add(step)


class RolloutStorage:
    """Columns of one rollout, made at the first step and used again in every iteration."""

    def __init__(self, length: int) -> None:
        self.length, self._row = length, 0
        self._obs: dict[str, Any] = {}
        self._columns: dict[str, Any] = {}
        self._extras: dict[str, Any] = {}
        self._ends: list[tuple[int, Array, Obs]] = []
        self._last: Step | None = None

    def clear(self) -> None:
        """Begin anew; the columns stay."""
        self._row = 0
        self._ends.clear()

    def add(self, step: Step, raw: Array, logp: Array, extras: dict[str, Array]) -> bool:
        """Store one step; whether an episode ended, or a row was no step but a reset."""
        values = {"action": raw, "logp": logp, "reward": step.reward, "terminated": step.terminated}
        values |= {"truncated": step.truncated, "valid": step.valid}
        if not self._columns:
            self._obs = {key: self._column(value) for key, value in step.obs.items()}
            self._columns = {key: self._column(value) for key, value in values.items()}
            self._extras = {key: self._column(value) for key, value in extras.items()}
        row = self._row
        for columns, given in ((self._obs, step.obs), (self._columns, values), (self._extras, extras)):
            for key, column in columns.items():
                column[row] = given[key]
        self._row, self._last = row + 1, step
        ended = _any(step.terminated) or _any(step.truncated)
        if ended:
            self._ends.append((row, step.terminated | step.truncated, step.next_obs))
        return ended or _any(~step.valid)

    def sample(self, rows: RowSample) -> None:
        """Leave some rows to the quantiles of what training saw."""
        rows.add(self._obs, self._columns["action"], self._columns["valid"])

    def rollout(self, learner: OnPolicyLearner) -> Rollout:
        """The whole rollout as tensors that share these columns; values come in two batches."""
        last = self._last
        assert last is not None
        columns = {key: torch.as_tensor(value) for key, value in self._columns.items()}
        shape = columns["reward"].shape
        with torch.no_grad():
            seen = {**self._obs, **{key: self._extras[key] for key in self._extras if key == "memory"}}
            flat = {key: value.reshape(-1, *value.shape[2:]) for key, value in seen.items()}
            value = learner.value(flat).reshape(shape).to(columns["reward"].device)
            boundary = columns["terminated"] | columns["truncated"]
            boundary[-1] = True
            ends = [end for end in self._ends if end[0] != self.length - 1]
            ends.append((self.length - 1, np.ones(shape[1], bool), last.next_obs))
            keys = list(flat)
            if "memory" in keys:  # a critic with a memory judges the successor with what it knows behind the step
                ends = [(row, rows, {**obs, "memory": self._extras["next_memory"][row]}) for row, rows, obs in ends]
            parts = [[obs[key][_index(rows, obs[key])] for key in keys] for _, rows, obs in ends]
            joined = {key: _cat([part[i] for part in parts]) for i, key in enumerate(keys)}
            estimate = learner.value(joined).to(value.device)
            next_value, start = torch.zeros_like(value), 0
            for row, rows, _ in ends:
                where = torch.as_tensor(rows, device=value.device)
                count = int(where.sum())
                next_value[row, where] = estimate[start : start + count]
                start += count
        return Rollout(
            obs={key: torch.as_tensor(value) for key, value in self._obs.items()},
            action=columns["action"],
            logp=columns["logp"],
            value=value,
            reward=columns["reward"],
            next_value=next_value,
            terminated=columns["terminated"],
            truncated=columns["truncated"],
            boundary=boundary,
            valid=columns["valid"],
            extras={key: torch.as_tensor(value) for key, value in self._extras.items()},
        )

    def _column(self, like: Array) -> Array:
        shape = (self.length, *like.shape)
        if isinstance(like, Tensor):
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        return np.empty(shape, like.dtype)


def train_on_policy(
    env: StepEnv,
    learner: OnPolicyLearner,
    *,
    total_steps: int,
    seed: int = 0,
    tick: Tick | None = None,
    start_state: StateDict | None = None,
    save_to: str | Path | None = None,
) -> OnPolicy:
    """Train with an `OnPolicy` loop and return it; see there.

    Args:
        env: vector environment.
        learner: what learns.
        total_steps: transitions of all environments together.
        seed: seed of the first reset.
        tick: called after every iteration; True stops.
        start_state: `OnPolicy.state_dict` of an earlier run to continue.
        save_to: folder for the environment's state if it returns NaN.
    """
    loop = OnPolicy(env, learner, seed=seed, save_to=save_to)
    if start_state is not None:
        loop.load_state_dict(start_state)
    loop.run(total_steps, tick)
    return loop


def _any(flags: Array) -> bool:
    return bool(np.count_nonzero(flags)) if isinstance(flags, np.ndarray) else bool(flags.any())


def _index(rows: Array, like: Array) -> Array:
    return torch.as_tensor(rows, device=like.device) if isinstance(like, Tensor) else np.asarray(rows)


def _cat(parts: list) -> Array:
    return torch.cat(parts) if isinstance(parts[0], Tensor) else np.concatenate(parts)
