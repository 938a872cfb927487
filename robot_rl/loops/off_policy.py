"""Off-policy training: act, store, update, for any environment, learner and buffer."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.loops.contract import Due, Tick, choose, every, memory_of, update_learner
from robot_rl.loops.episodes import EpisodeStats
from robot_rl.loops.stepping import Stepper
from robot_rl.state import Saved
from robot_rl.types import AnyLearner, Array, Metrics, Sampler, StepEnv


class OffPolicy(Saved):
    """The off-policy loop as an object, so that its exact state can be saved and continued.

    Deterministic from its seed; wall clock decides nothing.
    """

    kind = "off_policy"
    saved = ("env_steps", "updates", "_update_credit", "_rng", "stats")

    def __init__(
        self,
        env: StepEnv,
        learner: AnyLearner,
        buffer: ReplayBuffer,
        *,
        sampler: Sampler | None = None,
        batch_size: int = 256,
        learning_starts: int = 100,
        random_steps: int | None = None,
        updates_per_step: float = 1.0,
        seed: int = 0,
        failure_folder: Path | None = None,
    ) -> None:
        """Join what the loop moves data between.

        Args:
            env: vector environment of N copies with `.io`.
            learner: improves its `policy` from transition batches.
            buffer: where new steps go.
            sampler: where batches come from; default the buffer, a `Mix` for demonstrations beside it.
            batch_size: rows per batch.
            learning_starts: transitions before the first update.
            random_steps: transitions with uniform random actions; default `learning_starts`.
            updates_per_step: `learner.update` calls per transition; below 1 updates are spread out.
            seed: of the random actions and of the environment's first reset.
            failure_folder: where the state is saved when the environment reports NaN.

        Raises:
            ValueError: a number is out of range, or environment and learner do not fit.
        """
        if updates_per_step < 0:
            raise ValueError(f"updates_per_step is {updates_per_step}, expected 0 or more")
        learner.policy.io.check(env.io)
        self.env, self.learner, self.buffer = env, learner, buffer
        self.sampler = buffer if sampler is None else sampler
        self.batch_size = batch_size
        self.learning_starts = learning_starts
        self.random_steps = learning_starts if random_steps is None else random_steps
        self.updates_per_step = updates_per_step
        self.seed = seed
        self.env_steps = 0
        self.updates = 0
        self._update_credit = 0.0
        self._rng = np.random.default_rng(seed)
        rewardless = learner.need.rewardless
        self.stats = EpisodeStats(env.num_envs, choices=bool(env.io.action_choices), rewardless=rewardless)
        self._stepper = Stepper(env, save_to=failure_folder)
        self._previous: np.ndarray | None = None
        if "previous_action" in learner.need.columns:  # executed before, zeros after a reset
            self._previous = np.zeros((env.num_envs, env.io.action_dim), np.float32)
        self._hold: _Hold | None = None
        if "decision_start" in learner.need.columns:  # 1 on the first tick of every decision
            self._hold = _Hold(env.num_envs, env.io.action_dim, learner.need.decision_interval)

    def run(self, total_steps: int, tick: Tick, *, due: Due | None = None) -> None:
        """Train until `total_steps` transitions or until `tick` says stop.

        Args:
            total_steps: transitions in all, those before a resume included.
            tick: called with (transitions so far, metrics) when it is due and at the end; True stops.
            due: asked after every step of all copies; None: every 1000 transitions.
        """
        due = every(1000) if due is None else due
        stepper = self._stepper
        if not stepper.obs:
            self._begin()
        num_envs, action_dim = self.env.num_envs, self.env.io.action_dim
        batches = self.sampler.batches(self.batch_size)
        told = self.learner.policy.parts.executed
        metrics: Metrics = {}
        mark, mark_steps = time.perf_counter(), self.env_steps
        while self.env_steps < total_steps:
            if self.env_steps < self.random_steps:
                action = self._rng.uniform(-1.0, 1.0, (num_envs, action_dim)).astype(np.float32)
                if self._hold is not None:
                    action = self._hold.draw(action)
            else:
                answer = choose(self.learner.policy, stepper.obs)
                action = answer.value
                if self._hold is not None:
                    self._hold.note_decision(host(answer.extras["chunk_start"]))
            row = stepper.step(action)
            if self._hold is not None:
                row.info["decision_start"] = self._hold.start.astype(np.float32)[:, None]
            if self._previous is not None:
                row.info["previous_action"] = self._previous
            self.buffer.add(row)
            self.stats.add(row)
            over = host(row.terminated) | host(row.truncated) | ~host(row.valid)
            if self._previous is not None:
                self._previous = np.where(over[:, None], 0.0, host(row.action)).astype(np.float32)
            if self._hold is not None:
                self._hold.tick(over)
            if told is not None:
                told(host(row.action))
            if over.any():  # a chunk never goes on behind a reset
                self.learner.policy.reset(over)
            self.env_steps += num_envs
            if len(self.buffer) >= min(self.learning_starts, self.buffer.capacity) and len(self.buffer) > 0:
                self._update_credit += num_envs * self.updates_per_step
                while self._update_credit >= 1.0:
                    self._update_credit -= 1.0
                    metrics.update(update_learner(self.learner, batches, progress=self.env_steps / total_steps))
                    self.updates += 1
            if self.env_steps >= total_steps or due(self.env_steps - num_envs, self.env_steps):
                now = time.perf_counter()
                speed = (self.env_steps - mark_steps) / max(now - mark, 1e-9)
                stop = tick(
                    self.env_steps,
                    {**metrics, **self.stats.metrics(), "time/sps": speed, "train/updates": float(self.updates)},
                )
                mark, mark_steps = time.perf_counter(), self.env_steps
                if stop:
                    return

    def _begin(self) -> None:
        """Begin new episodes: of a run, and of one that goes on where its environment could not be saved."""
        self._stepper.reset(seed=self.seed + self.env_steps)
        self.learner.policy.reset()
        self.stats.begin()
        if self._previous is not None:
            self._previous = np.zeros_like(self._previous)
        if self._hold is not None:
            self._hold.tick(np.ones(self.env.num_envs, bool))

    def saved_parts(self) -> dict[str, object]:
        """All that continuation needs besides learner and buffer; chunks under way are part of it."""
        return {
            **super().saved_parts(),
            "policy_memory": memory_of(self.learner.policy),
            "previous_action": self._previous,
            "hold": self._hold,
            "stepper": self._stepper if self.env.parts.saves else None,  # else a new episode begins
        }


class _Hold(Saved):
    """Where decisions of several ticks begin, in N environments; random ones are held as long as the policy's.

    Attributes:
        start: (N,) bool, a decision began in this tick.
    """

    saved = ("_age", "_action")

    def __init__(self, num_envs: int, action_dim: int, interval: int) -> None:
        self._interval = interval
        self._age = np.zeros(num_envs, np.int64)
        self._action = np.zeros((num_envs, action_dim), np.float32)
        self.start = np.zeros(num_envs, bool)

    def draw(self, action: np.ndarray) -> np.ndarray:
        """Random actions (N, A), or those that are still held."""
        self.start = self._age % self._interval == 0
        self._action = np.where(self.start[:, None], action, self._action)
        return self._action

    def note_decision(self, start: np.ndarray) -> None:
        """The policy says where it decided, (N,) bool."""
        self.start = start.astype(bool)

    def tick(self, over: np.ndarray) -> None:
        """A step was made; an episode ended in the rows `over` (N,)."""
        self._age = np.where(over, 0, np.where(self.start, 1, self._age + 1))


def host(x: Array) -> np.ndarray:
    """An array or tensor in main memory."""
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()
