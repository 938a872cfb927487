"""Rollouts in Ray actors, on this machine or on many: the learner stays here and reads the same `Sampler`.

Workers are asked for fragments of a fixed number of steps and send them back as `Episode`s. What counts is what
arrived: a worker that dies takes its fragment with it, a new one is asked for the same steps again, so a run ends with
exactly the transitions that it was asked for.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.episode import EpisodeBuilder
from robot_rl.extras import require
from robot_rl.loops.contract import Due, Tick, every, update_learner
from robot_rl.loops.stepping import Stepper
from robot_rl.state import Saved
from robot_rl.types import OF_ACTING, AnyLearner, Episode, IOSpec, Metrics, Sampler, Step

MakeEnv = Callable[[int, int, bool], Any]
MakeLearner = Callable[[IOSpec], AnyLearner]
_TRIES = 3  # workers that may die one after the other without a single fragment
_WAIT = 1.0  # seconds until the loop looks whether it was interrupted


def _with_own_noise(sent: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Weights that were sent, with what is of a copy's own acting, also in a policy around another one; how often was
    acted is counted of all copies together, by the loop."""
    found = {key: value for key, value in own.items() if key in OF_ACTING and key != "acted"}
    inner = {key: _with_own_noise(value, own.get(key, {})) for key, value in sent.items() if isinstance(value, Mapping)}
    return {**sent, **inner, **found}


@dataclass
class Fragment:
    """What a worker sends: `steps` transitions of its environments.

    Attributes:
        steps: transitions, valid or not.
        episodes: whole episodes or pieces cut by the fragment's ends.
        returns: undiscounted, of episodes that ended in this fragment.
        lengths: of the same.
        successes: of the same, where the world says so.
        version: of the weights that acted.
    """

    steps: int
    episodes: list[Episode]
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    successes: list[float] = field(default_factory=list)
    version: int = 0


class RolloutWorker:
    """Steps N environments with a copy of the policy; lives in an actor, and runs without Ray as well.

    Args:
        make_env: (num_envs, seed, render) -> environment.
        make_learner: (io) -> learner, for its policy.
        num_envs: N.
        seed: of environments and random actions.
    """

    def __init__(self, make_env: MakeEnv, make_learner: MakeLearner, num_envs: int, seed: int) -> None:
        torch.set_num_threads(1)
        env = make_env(num_envs, seed, False)
        self._policy = make_learner(env.io).policy
        # made from the run's seed, as in every other worker
        if self._policy.parts.reseed is not None:
            self._policy.parts.reseed(seed)
        else:
            state = self._policy.state_dict()
            noise = [name for name in ("generator", "noise0", "noise1") if name in state]
            own = {name: torch.Generator().manual_seed(seed + i).get_state() for i, name in enumerate(noise)}
            if own:
                self._policy.load_state_dict({**state, **own})
        self._io, self._num_envs = env.io, num_envs
        self._stepper = Stepper(env)
        self._stepper.reset(seed)
        self._rng = np.random.default_rng(seed)
        self._builder = EpisodeBuilder(num_envs)
        self._return, self._length = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def collect(self, weights: Mapping[str, object] | None, version: int, steps: int) -> Fragment:
        """`steps` steps of every environment; without weights, with uniform random actions."""
        if weights is not None:
            self._policy.load_state_dict(_with_own_noise(weights, self._policy.state_dict()))
        fragment = Fragment(steps * self._num_envs, [], version=version)
        for _ in range(steps):
            if weights is None:
                shape = (self._num_envs, self._io.action_dim)
                action = self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)
            else:
                action = self._policy.act(self._stepper.obs).value
            row = self._stepper.step(action)
            fragment.episodes += self._builder.add(row)
            self._count(row, fragment)
            if (tell := self._policy.parts.executed) is not None:
                tell(np.asarray(row.action))
            over = np.asarray(row.terminated) | np.asarray(row.truncated) | ~np.asarray(row.valid)
            if over.any():  # neither a memory nor a chunk goes on behind a reset
                self._policy.reset(over)
        fragment.episodes += self._builder.flush()
        return fragment

    def _count(self, row: Step, fragment: Fragment) -> None:
        self._return += np.asarray(row.reward) * np.asarray(row.valid)
        self._length += np.asarray(row.valid)
        over = (np.asarray(row.terminated) | np.asarray(row.truncated)) & np.asarray(row.valid)
        for env in np.flatnonzero(over):
            fragment.returns.append(float(self._return[env]))
            fragment.lengths.append(int(self._length[env]))
            if "success" in row.info:
                fragment.successes.append(float(np.asarray(row.info["success"])[env]))
        self._return[over], self._length[over] = 0.0, 0


class Cluster:
    """Actors with rollout workers, asked for fragments and replaced when they die.

    Args:
        make_env: (num_envs, seed, render) -> environment; sent to the actors.
        make_learner: (io) -> learner; sent to the actors.
        workers: how many actors, one CPU each.
        num_envs: environments per actor.
        fragment: steps of every environment per request.
        seed: every actor, also one that replaces another, gets its own.
        depth: requests that an actor may have waiting.

    Raises:
        ImportError: Ray is not installed.
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        make_learner: MakeLearner,
        *,
        workers: int,
        num_envs: int,
        fragment: int = 64,
        seed: int = 0,
        depth: int = 2,
    ) -> None:
        if min(workers, num_envs, fragment, depth) < 1:
            raise ValueError(
                f"workers, num_envs, fragment and depth are {workers}, {num_envs}, {fragment}, {depth}; expected >= 1"
            )
        self._ray = require("ray")
        self._gone = require("ray.exceptions")
        self._own = start(self._ray, workers)
        self._make = self._ray.remote(num_cpus=1, max_restarts=0)(RolloutWorker).remote
        self._recipe = (self._ray.put(make_env), self._ray.put(make_learner))
        self._num_envs, self._fragment, self._seed, self._depth = num_envs, fragment, seed, depth
        self._actors: dict[int, Any] = {}
        self._starting: dict[object, int] = {}  # reference -> worker; on a full cluster it waits until there is room
        self._asked: dict[object, tuple[int, int]] = {}  # reference -> (worker, transitions)
        self._born, self._barren = 0, 0
        self._wanted = workers
        self.lost = 0
        self.resize(workers)

    @property
    def workers(self) -> int:
        """Actors that work now; others may be on their way."""
        return len(self._actors) - len(self._starting)

    @property
    def in_flight(self) -> int:
        """Transitions on their way."""
        return sum(steps for _, steps in self._asked.values())

    def actors(self) -> list[object]:
        """Handles of the actors, for `ray.kill` in tests and by schedulers."""
        return list(self._actors.values())

    def resize(self, workers: int) -> None:
        """Add or remove actors in mid-run; requests of removed ones are given up and asked of others.

        Raises:
            ValueError: fewer than one.
        """
        if workers < 1:
            raise ValueError(f"workers is {workers}, expected at least 1")
        self._wanted = workers
        while len(self._actors) < workers:
            actor = self._make(*self._recipe, self._num_envs, self._seed + 9973 * (self._born + 1))
            self._actors[self._born] = actor
            self._starting[actor.__ray_ready__.remote()] = self._born
            self._born += 1
        for name in list(self._actors)[workers:]:
            self._forget(name)

    def ask(self, weights: Mapping[str, object] | None, version: int, remaining: int) -> None:
        """Keep every actor busy, but ask for no more than `remaining` transitions beyond those on their way.

        Args:
            weights: of the policy; None means uniform random actions.
            version: of the weights.
            remaining: transitions that may be asked for; the last step of all environments is completed.
        """
        reference = None
        waiting = {name: 0 for name in self._actors if name not in self._starting.values()}
        for name, _ in self._asked.values():
            waiting[name] += 1
        for _ in range(self._depth):
            for name in waiting:
                if remaining <= 0 or waiting[name] >= self._depth:
                    continue
                steps = min(self._fragment, -(-remaining // self._num_envs))
                if reference is None:
                    reference = self._ray.put(weights)
                waiting[name] += 1
                request = self._actors[name].collect.remote(reference, version, steps)
                self._asked[request] = (name, steps * self._num_envs)
                remaining -= steps * self._num_envs

    def receive(self, timeout: float) -> list[Fragment]:
        """Fragments that have arrived; waits up to `timeout` seconds for the first.

        Raises:
            RuntimeError: actors die one after the other without delivering anything.
            Whatever an environment or a policy raised inside of an actor.
        """
        open_ends = [*self._asked, *self._starting]
        if not open_ends:
            return []
        ready, _ = self._ray.wait(open_ends, num_returns=1, timeout=timeout)
        more, _ = self._ray.wait(open_ends, num_returns=len(open_ends), timeout=0)
        arrived: list[Fragment] = []
        for reference in dict.fromkeys([*ready, *more]):
            begun = self._starting.pop(reference, None)
            if begun is None and reference not in self._asked:  # of an actor that was just found dead
                continue
            name = self._asked.pop(reference)[0] if begun is None else begun
            try:
                answer = self._ray.get(reference)
                if begun is None:
                    arrived.append(answer)
                    self._barren = 0
            except (self._gone.RayActorError, self._gone.WorkerCrashedError, self._gone.ObjectLostError) as error:
                self._replace(name, error)
        return arrived

    def close(self) -> None:
        """Stop the actors, and Ray where it was started here."""
        for name in list(self._actors):
            self._forget(name)
        if self._own:
            self._ray.shutdown()

    def _replace(self, name: int, error: Exception) -> None:
        self.lost += 1
        self._barren += 1
        self._forget(name)
        if self._barren > _TRIES:
            raise RuntimeError(
                f"{self._barren} rollout workers died one after the other before delivering anything; the last said: "
                f"…{str(error).strip()[-600:]}. Expected workers that can build the environment: install the same "
                "packages on every machine, and try the run with workers=0"
            ) from error
        self.resize(self._wanted)

    def _forget(self, name: int) -> None:
        self._ray.kill(self._actors.pop(name))
        self._asked = {key: value for key, value in self._asked.items() if value[0] != name}
        self._starting = {key: value for key, value in self._starting.items() if value != name}


class ClusterOffPolicy(Saved):
    """Off-policy training whose transitions come from a `Cluster`.

    The learner never waits while it has updates to make, and never runs ahead: `updates_per_step` holds for what has
    arrived. Not reproducible bit for bit, since the order of arrival is not; a resumed run has the same learner,
    memory and counters, and new episodes.

    Args:
        cluster: of workers.
        learner: improves its `policy` from transition batches.
        buffer: where new transitions go.
        sampler: where batches come from; default the buffer.
        batch_size: rows per batch.
        learning_starts: transitions with uniform random actions, and before the first update.
        updates_per_step: `learner.update` calls per transition.
        workers_file: a text file that, where it exists, holds the wanted number of workers: change it in mid-run.
    """

    kind = "cluster_off_policy"
    saved = ("env_steps", "updates", "_credit", "_episodes", "_window")

    def __init__(
        self,
        cluster: Cluster,
        learner: AnyLearner,
        buffer: ReplayBuffer,
        *,
        sampler: Sampler | None = None,
        batch_size: int = 256,
        learning_starts: int = 100,
        updates_per_step: float = 1.0,
        workers_file: Any = None,
    ) -> None:
        self.cluster, self.learner, self.buffer = cluster, learner, buffer
        self.sampler = buffer if sampler is None else sampler
        self._batch_size, self._starts, self._ratio = batch_size, learning_starts, updates_per_step
        self._workers_file = workers_file
        self.env_steps, self.updates = 0, 0
        self._credit = 0.0
        self._episodes = 0
        self._window = {name: deque[float](maxlen=100) for name in ("return", "length", "success")}
        self._staleness = 0.0

    def run(self, total_steps: int, tick: Tick | None = None, *, due: Due | None = None) -> None:
        """Train until `total_steps` transitions have arrived, or until `tick` says stop; see `OffPolicy.run`."""
        due = every(1000) if due is None else due
        batches = self.sampler.batches(self._batch_size)
        metrics: Metrics = {}
        mark, mark_steps = time.perf_counter(), self.env_steps
        while self.env_steps < total_steps:
            self._ask(total_steps)
            before = self.env_steps
            for fragment in self.cluster.receive(0.0 if self._credit >= 1.0 else _WAIT):
                self._take(fragment)
            now = self.env_steps >= total_steps or due(before, self.env_steps)
            enough = self.updates + 16  # then look for arrivals again, so that no worker stands still
            while self._credit >= 1.0 and (now or self.updates < enough):
                self._credit -= 1.0
                metrics.update(update_learner(self.learner, batches, progress=self.env_steps / total_steps))
                self.updates += 1
            if now:
                speed = (self.env_steps - mark_steps) / max(time.perf_counter() - mark, 1e-9)
                self._follow_file()
                if tick is not None and tick(self.env_steps, {**metrics, **self._numbers(), "time/sps": speed}):
                    return
                mark, mark_steps = time.perf_counter(), self.env_steps

    def _ask(self, total_steps: int) -> None:
        if self._credit > 4096 * max(self._ratio, 1e-9):  # the learner is behind: the workers wait for it
            return
        remaining = total_steps - self.env_steps - self.cluster.in_flight
        random = self._starts - self.env_steps - self.cluster.in_flight
        if random > 0:
            self.cluster.ask(None, self.updates, min(remaining, random))
        elif remaining > 0:
            weights = on_host(self.learner.policy.state_dict())
            if "acted" in weights:  # a new worker, or a resumed run, does not explore anew
                weights["acted"] = max(self.env_steps - self._starts, 0)
            self.cluster.ask(weights, self.updates, remaining)

    def _take(self, fragment: Fragment) -> None:
        for episode in fragment.episodes:
            self.buffer.add_episode(episode)
        self.env_steps += fragment.steps
        if self.env_steps >= self._starts:
            self._credit += fragment.steps * self._ratio
        self._episodes += len(fragment.returns)
        self._window["return"].extend(fragment.returns)
        self._window["length"].extend(fragment.lengths)
        self._window["success"].extend(fragment.successes)
        self._staleness = float(self.updates - fragment.version)

    def _numbers(self) -> Metrics:
        row = {f"rollout/{name}": float(np.mean(values)) for name, values in self._window.items() if values}
        return {
            **row,
            "rollout/episodes": float(self._episodes),
            "rollout/workers": float(self.cluster.workers),
            "rollout/workers_lost": float(self.cluster.lost),
            "train/updates": float(self.updates),
            "train/staleness": self._staleness,
        }

    def _follow_file(self) -> None:
        """Adjust the number of workers to the file, where it holds a number."""
        if self._workers_file is None or not self._workers_file.exists():
            return
        text = self._workers_file.read_text().strip()
        if text.isdigit() and int(text) > 0 and int(text) != self.cluster.workers:
            self.cluster.resize(int(text))


def start(ray: ModuleType, processes: int) -> bool:
    """Join the cluster that RAY_ADDRESS names, or start Ray here; whether it was started by this call.

    Args:
        ray: the module.
        processes: that should have room on this machine, whatever the number of its processors.
    """
    if ray.is_initialized():
        return False
    room: dict[str, object] = {}
    if "RAY_ADDRESS" not in os.environ:
        room = {"num_cpus": max(processes, os.cpu_count() or 1), "include_dashboard": False}
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")  # a busy machine takes more than the 30 s
    ray.init(log_to_driver=False, runtime_env={"env_vars": _environment()}, **room)
    return True


def on_host(state: object) -> Any:
    """A state whose tensors are on the CPU, where the workers are."""
    if isinstance(state, dict):
        return {key: on_host(value) for key, value in state.items()}
    return state.cpu() if isinstance(state, torch.Tensor) else state


def _environment() -> dict[str, str]:
    """Variables of local actors: one thread each, and the modules of this process."""
    variables = {"OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if "RAY_ADDRESS" not in os.environ:
        variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return variables
