"""A planner of chunks as a policy of single ticks: what loops, evaluation and the robot's node call."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from robot_rl.chunks.execution import Execution
from robot_rl.chunks.horizons import Horizons
from robot_rl.chunks.meter import ChunkMeter
from robot_rl.types import Action, Array, IOSpec, Obs, Policy, PolicyParts, Recurrence, StateDict


@dataclass(frozen=True)
class Plan:
    """What a planner answers.

    Attributes:
        chunk: (n, H, A) in [-1, 1].
        logp: (n,) of the whole chunk under the policy that acted, or None.
        stop: (n, H) probability of calling again after each step, or None.
        extras: (n, ...) per decision, handed on with every tick of it.
    """

    chunk: Array
    logp: Array | None = None
    stop: Array | None = None
    extras: dict[str, Array] = field(default_factory=dict)


class Planner(Protocol):
    """Answers an observation with a chunk."""

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """Chunks for n rows.

        Args:
            obs: (n, ...).
            deterministic: the mode instead of a sample.
            context: "last" (n, A) action executed last (zeros after a reset); "previous" (n, H, A) the running chunk
                seen from now and "running" (n, H) bool which of it exists.
        """
        ...

    def state_dict(self) -> StateDict:
        """Tensors only."""
        ...

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place."""
        ...


def chunk_recurrence(plan: Callable[[Obs, Tensor], Tensor], horizons: Horizons, actions: int) -> Recurrence:
    """A planner without noise that is played open loop, or a part of each chunk, as a function with its memory.

    Args:
        plan: (observations, action before them (B, A), zeros at first) -> chunks (B, H, A), in torch alone.
        horizons: lengths; a chunk is asked for every `exec` steps, though one is computed in all.
        actions: A.
    """
    steps = horizons.exec

    def step(obs: Obs, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        due = memory["left"] < 0.5
        chunk = torch.where(due[..., None], plan(obs, memory["last"])[:, :steps], memory["chunk"])
        left = torch.where(due, torch.full_like(memory["left"], steps), memory["left"]) - 1.0
        action = chunk[:, 0].clamp(-1.0, 1.0)
        rest = torch.cat([chunk[:, 1:], torch.zeros_like(chunk[:, :1])], 1)
        return action, {"chunk": rest, "left": left, "last": action}

    sizes = {"chunk": (steps, actions), "left": (1,), "last": (actions,)}
    return Recurrence({name: torch.zeros(1, *size) for name, size in sizes.items()}, step)


class ChunkedPolicy:
    """Acts tick by tick from the chunks of a planner, each row at its own pace.

    Args:
        io: interface of one tick.
        planner: what decides.
        execution: how chunks are played.
        seed: of the draws of a learned stop.
        patience: on a robot: seconds that a tick waits for a chunk. A planner that needs longer goes on in a thread
            while the running chunk is played (behind its end the last action), and its chunk is joined where time has
            got to; only the first chunk of an episode is waited for. The wall clock then decides what is executed, so
            never in training: None waits for every chunk.
        mean: of a planner that is deterministic without noise: (observations, action before them (B, A)) -> chunks
            (B, H, A) without noise, in torch alone.
    """

    def __init__(
        self,
        io: IOSpec,
        planner: Planner,
        execution: Execution,
        *,
        seed: int = 0,
        patience: float | None = None,
        mean: Callable[[Obs, Tensor], Tensor] | None = None,
    ) -> None:
        self.io, self.planner, self.execution = io, planner, execution
        self.patience = patience
        self._worker: ThreadPoolExecutor | None = None
        self._pending: tuple[Future[Plan], np.ndarray, np.ndarray] | None = None
        self.meter = ChunkMeter()
        self._rng = np.random.default_rng(seed)
        self._kept: dict[str, np.ndarray] = {}
        plays = execution.mode in ("open", "receding") and not execution.blend
        self._recurrence = chunk_recurrence(mean, execution.horizons, io.action_dim) if mean and plays else None

    @property
    def parts(self) -> PolicyParts:
        """It hears what was done; chunks under way can be continued, decisions are counted."""
        return PolicyParts(
            executed=self.executed,
            save=self.memory,
            restore=self.recall,
            meter=self.meter,
            recurrence=self._recurrence,
        )

    def reset(self, rows: Array | None = None) -> None:
        """Forget the chunks of these rows ((N,) bool mask), or all."""
        if self._pending is not None:  # it was made for what is forgotten now
            self._pending[0].cancel()
            self._pending = None
        if rows is None:
            self.execution.reset_all(0)
            return
        mask = np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows, bool)
        if len(mask) == self.execution.count:
            self.execution.reset(mask)
            self.meter.end_episodes(mask)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The next tick of every row's chunk.

        Returns:
            value (B, A) clipped to [-1, 1]; logp (B,) of the whole chunk where the planner gives one; extras
            "chunk_start" (B,) bool, a new chunk began, and the planner's own.
        """
        first = next(iter(obs.values()))
        count = len(first)
        if self.execution.count != count:
            self.execution.reset_all(count)
            self._kept = {}
            self.meter.end_episodes(np.ones(count, bool))
        if self._pending is not None and self._pending[0].done():
            self._join()
        due = self.execution.due()
        if due.any() and self._pending is None:
            self._decide(obs, due, deterministic)
        value, start = self.execution.take()
        value = np.clip(value, -1.0, 1.0)
        self.meter.tick(value, start)
        out: dict[str, Any] = {"value": value, "chunk_start": start, **self._kept}
        if isinstance(first, Tensor):
            out = {name: torch.as_tensor(x, device=first.device) for name, x in out.items()}
        logp = out.pop("logp", None)
        return Action(out.pop("value"), None if deterministic else logp, out)

    def executed(self, action: np.ndarray) -> None:
        """What was executed in the last tick (N, A), where it is not what `act` answered: noise, limits, a human."""
        if len(action) == self.execution.count:
            self.execution.correct(action)

    def _decide(self, obs: Obs, due: np.ndarray, deterministic: bool) -> None:
        first = next(iter(obs.values()))
        every = bool(due.all())
        mask = torch.as_tensor(due, device=first.device) if isinstance(first, Tensor) else due
        previous, running = self.execution.remaining(due)
        context = {"last": self.execution.last[due], "previous": previous, "running": running}
        seen = obs if every else {key: x[mask] for key, x in obs.items()}
        if self.patience is not None:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="planner")
            kept = {key: x.clone() if isinstance(x, Tensor) else np.array(x) for key, x in seen.items()}
            future = self._worker.submit(self._ask, kept, deterministic, context)
            self._pending = (future, due, self.execution.tick[due])
            first_of_episode = bool((self.execution.tick[due] == 0).any())
            self.execution.mark_pending(due)
            wait([future], None if first_of_episode else self.patience)
            if future.done():
                self._join()
            return
        self._take_over(self._ask(seen, deterministic, context), due, 0, deterministic)

    def _ask(self, obs: Obs, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        begun = time.perf_counter()
        plan = self.planner.plan(obs, deterministic=deterministic, context=context)
        self.meter.count_decision(len(plan.chunk), time.perf_counter() - begun)
        return plan

    def _join(self) -> None:
        """Take over the chunk that the thread has computed."""
        assert self._pending is not None
        future, due, asked = self._pending
        self._pending = None
        self._take_over(future.result(), due, self.execution.tick[due] - asked, True)

    def _take_over(self, plan: Plan, due: np.ndarray, age: int | np.ndarray, deterministic: bool) -> None:
        length = None if plan.stop is None else self._lengths(_numpy(plan.stop), deterministic)
        self.execution.offer(due, _numpy(plan.chunk), age=age, length=length)
        new = {**plan.extras, **({} if plan.logp is None else {"logp": plan.logp})}
        for name, item in new.items():
            x = _numpy(item)
            if name not in self._kept:
                self._kept[name] = np.zeros((len(due), *x.shape[1:]), x.dtype)
            self._kept[name] = self._kept[name].copy()  # callers may keep the last one
            self._kept[name][due] = x

    def _lengths(self, stop: np.ndarray, deterministic: bool) -> np.ndarray:
        """(n,) executed steps: up to the first step after which the head says stop."""
        k = self.execution.horizons.exec
        ask = stop[:, :k] > (0.5 if deterministic else self._rng.random((len(stop), k)))
        ask[:, -1] = True
        return ask.argmax(1) + 1

    def memory(self) -> dict[str, object]:
        """Chunks under way, for an exact continuation of a run; not part of the weights."""
        draws = self._rng.bit_generator.state
        return {"execution": self.execution.state_dict(), "kept": dict(self._kept), "draws": draws}

    def recall(self, memory: dict[str, Any]) -> None:
        """Inverse of `memory`."""
        self.execution.load_state_dict(memory["execution"])
        self._kept = {name: np.array(x) for name, x in memory["kept"].items()}
        self._rng.bit_generator.state = memory.get("draws", self._rng.bit_generator.state)

    def state_dict(self) -> StateDict:
        """The planner's; chunks under way are not kept."""
        return self.planner.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """Inverse of `state_dict`."""
        self.planner.load_state_dict(state)
        self.reset()


class Held:
    """A policy of single ticks as a planner whose chunk repeats its action: the hold baseline.

    Args:
        policy: of single ticks.
        horizon: H.
    """

    def __init__(self, policy: Policy, horizon: int) -> None:
        self.policy, self._horizon = policy, horizon

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """The action, H times."""
        value = _numpy(self.policy.act(obs, deterministic=deterministic).value)
        return Plan(np.repeat(value[:, None], self._horizon, axis=1))

    def mean(self, obs: Obs, last: Tensor) -> Tensor:
        """The same without noise, in torch: (B, H, A)."""
        value = torch.as_tensor(self.policy.act(obs, deterministic=True).value)
        return value[:, None].expand(-1, self._horizon, -1)

    def state_dict(self) -> StateDict:
        """The policy's."""
        return self.policy.state_dict()  # type: ignore[attr-defined]

    def load_state_dict(self, state: StateDict, /) -> None:
        """Inverse of `state_dict`."""
        self.policy.load_state_dict(state)  # type: ignore[attr-defined]


def _numpy(x: Array) -> np.ndarray:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
