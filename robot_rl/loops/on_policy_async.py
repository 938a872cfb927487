"""On-policy training without waiting: one thread steps the environments with the newest weights that it could get,
the other one learns from rollouts that are a little old."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from robot_rl.loops.contract import Due, Tick, update_learner
from robot_rl.loops.on_policy import OnPolicy, RolloutStorage, collect
from robot_rl.types import Metrics, StaleLearner, StateDict, StepEnv

WAIT = 0.2
"""Seconds between looks at the other thread while waiting for it."""


class _Weights(NamedTuple):
    version: int
    state: StateDict


class _Finished(NamedTuple):
    storage: RolloutStorage
    version: int
    metrics: dict[str, float]


class AsyncOnPolicy(OnPolicy):
    """Collects and learns at the same time; every rollout carries the version of the weights that acted.

    With a `lag` everything happens in turns in one thread and is deterministic from the seed: for tests and for
    studying staleness. Otherwise the order of rollouts and updates depends on the machine, and a resumed run goes on
    from the same weights and environments but not bit for bit; rollouts that waited in the queue are lost.

    Args:
        env: vector environment; in a run it belongs to the collecting thread.
        learner: what learns.
        seed: seed of the first reset.
        save_to: folder for the environment's state if it returns NaN.

    Raises:
        ValueError: the learner was made for another interface than the environment's.
    """

    saved = (*OnPolicy.saved, "_past")
    _learner: StaleLearner

    def __init__(
        self, env: StepEnv, learner: StaleLearner, *, seed: int = 0, save_to: str | Path | None = None
    ) -> None:
        super().__init__(env, learner, seed=seed, save_to=save_to)
        self._actor: Any = learner.actor()
        self._newest = _Weights(learner.updates, {})
        self._past: deque[_Weights] = deque(maxlen=1 + (learner.lag or 0))
        self._stop, self._collecting = threading.Event(), threading.Lock()
        self._failure: BaseException | None = None

    def run(self, total_steps: int, tick: Tick | None = None, *, due: Due | None = None) -> None:
        """Train until `env_steps` reaches `total_steps`; see `OnPolicy.run`.

        Raises:
            Whatever the collecting thread raised.
        """
        if not self._stepper.obs:
            self._begin()
        self._actor.reset()

        def look(before: int, metrics: Metrics) -> bool:
            now = due is None or self.env_steps >= total_steps or due(before, self.env_steps)
            return now and tick is not None and tick(self.env_steps, metrics)

        if self._learner.lag is not None:
            self._run_in_turns(total_steps, look)
        elif self.env_steps < total_steps:
            self._run_threaded(total_steps, look)

    def state_dict(self) -> StateDict:
        """Environment, statistics, counters, older weights (with a lag) and the actor's noise.

        While a thread collects, this waits until its rollout is complete.
        """
        with self._collecting:
            return super().state_dict()

    def after_load(self) -> None:
        """Weights by name again."""
        self._past = deque((_Weights(*old) for old in self._past), self._past.maxlen)

    def _run_in_turns(self, total_steps: int, look: Tick) -> None:
        storage = RolloutStorage(self._learner.need.rollout_steps)
        while self.env_steps < total_steps:
            begin = time.perf_counter()
            self._past.append(self._weights())
            acting = self._past[0]
            self._actor.load_state_dict(acting.state)
            collect(self._stepper, self._actor, storage, self.stats)
            if self._learn(_Finished(storage, acting.version, self.stats.metrics()), begin, look, total_steps):
                return

    def _run_threaded(self, total_steps: int, look: Tick) -> None:
        finished: queue.Queue[_Finished] = queue.Queue(self._learner.queue)
        # Every storage is with one side at a time; the learner hands them back.
        free: queue.Queue[RolloutStorage] = queue.Queue()
        for _ in range(self._learner.queue + 2):
            free.put(RolloutStorage(self._learner.need.rollout_steps))
        self._newest, self._failure = self._weights(), None
        self._stop.clear()
        thread = threading.Thread(target=self._collect_forever, args=(free, finished), name="rollouts", daemon=True)
        thread.start()
        try:
            while self.env_steps < total_steps:
                begin = time.perf_counter()
                try:
                    item = finished.get(timeout=WAIT)
                except queue.Empty:
                    if self._failure is not None:
                        raise self._failure from None
                    continue
                stop = self._learn(item, begin, look, total_steps)
                self._newest = self._weights()
                free.put(item.storage)
                if stop:
                    return
        finally:
            self._stop.set()
            thread.join()

    def _collect_forever(self, free: queue.Queue[RolloutStorage], finished: queue.Queue[_Finished]) -> None:
        try:
            while not self._stop.is_set():
                try:
                    storage = free.get(timeout=WAIT)
                except queue.Empty:
                    continue
                weights = self._newest  # one reference, so version and state belong together
                with self._collecting:
                    self._actor.load_state_dict(weights.state)
                    collect(self._stepper, self._actor, storage, self.stats)
                    item = _Finished(storage, weights.version, self.stats.metrics())
                while not self._stop.is_set():
                    try:
                        finished.put(item, timeout=WAIT)
                        break
                    except queue.Full:
                        continue
        except BaseException as error:  # the learning thread raises it
            self._failure = error

    def _learn(self, item: _Finished, begin: float, look: Tick, total_steps: int) -> bool:
        learner = self._learner
        got = time.perf_counter()
        item.storage.sample(self.rows)
        rollout = item.storage.rollout(learner)
        staleness = learner.updates - item.version
        metrics = update_learner(learner, iter((rollout,)), progress=self.env_steps / total_steps)
        end = time.perf_counter()
        steps = int(rollout.valid.sum())
        self.env_steps += steps
        self.iterations += 1
        metrics = {
            **item.metrics,
            **metrics,
            "train/staleness": float(staleness),
            "train/action_std": float(rollout.action.std(correction=0)),
            "time/sps": steps / (end - begin),
            "time/wait_fraction": (got - begin) / (end - begin),
        }
        return look(self.env_steps - steps, metrics)

    def _weights(self) -> _Weights:
        """The learner's weights and moments now, as copies."""
        return _Weights(self._learner.updates, dict(self._learner.policy.state_dict()))
