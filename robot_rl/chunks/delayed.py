"""Chunks that come late, on a virtual clock: what a slow policy costs, and how an action queue makes up for it."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from robot_rl.chunks.execution import Execution
from robot_rl.chunks.horizons import Horizons
from robot_rl.chunks.latency import DelayEstimate, LatencyModel, ticks_of
from robot_rl.chunks.meter import ChunkMeter
from robot_rl.chunks.policy import Plan, Planner
from robot_rl.types import Action, Array, IOSpec, Obs, Options, PolicyParts, StateDict
from robot_rl.types.options import Count, Whole


class DelayOptions(Options):
    """How a policy of chunks makes up for the time that its answers take."""

    compensation: Literal["queue", "naive", "wait", "rtc"] = "queue"
    """See `DelayedPolicy`."""
    reanchor: bool = True
    """Of "queue": moves are anchored anew."""
    margin: Whole = 1
    """Ticks that a chunk is asked for earlier than the estimate says."""
    blend: Whole = 0
    """Ticks over which a new chunk fades in."""
    max_hold: Count = 10
    """Ticks in a row that the queue may be dry; longer ones are counted in `DelayedPolicy.stops`, and stay idle in
    every action until a chunk arrives: on a robot, the controlled stop."""


class DelayedPolicy:
    """A planner whose answers arrive late, played through an action queue that counts control steps.

    The control step is the only clock: a request made at step n with latency l is answered before step n + ceil(l /
    dt), so that a run is the same bit for bit whatever the machine. One request is in flight per row.

    Compensation:
        "queue": the next chunk is asked for while the present one still runs, so early that it should arrive in time
            (95th percentile of the delays measured so far, and a margin), and joined by control step: entries that were
            meant for steps that are over are dropped by the measured delay, and the rest replaces what is left. Moves
            are anchored anew: a chunk of moves is a path from where the robot was when it was asked for, and what ran
            meanwhile has brought it elsewhere, so that the next moves lead back to that path. A chunk that was asked
            for while nothing ran is played from its first entry: the robot still stands where it was seen.
        "rtc": as "queue", and the planner is told what will run meanwhile and for how long, which a flow continues
            (real-time chunking).
        "naive": asked for as early, but played from its first entry when it arrives, as if no time had passed.
        "wait": asked for when the present one is over, played from its first entry; the robot idles meanwhile.

    Args:
        io: interface of one tick.
        planner: what decides.
        horizons: lengths; exec + the largest delay should not exceed pred, else the queue runs dry.
        latency: of the answers.
        options: how it is made up for.
        idle: (A,) action where nothing is queued, NaN = repeat; see `Execution`. Entries that are 0 are moves.

    Attributes:
        stale: chunks that were over before they came.
        dropped: chunks of an episode that had ended.
        lost: requests that were never answered.
        stops: see `DelayOptions.max_hold`.
    """

    def __init__(
        self,
        io: IOSpec,
        planner: Planner,
        horizons: Horizons,
        latency: LatencyModel,
        options: DelayOptions,
        *,
        idle: np.ndarray | None = None,
    ) -> None:
        self.io, self.planner, self.horizons, self.latency = io, planner, horizons, latency
        self.compensation, self._margin, self._max_hold = options.compensation, options.margin, options.max_hold
        self.execution = Execution(horizons, io.action_dim, mode="receding", blend=options.blend, idle=idle)
        self._moves = np.equal(self.execution.idle, 0.0) & options.reanchor
        self.estimate, self.meter = DelayEstimate(), ChunkMeter()
        self.stale = self.dropped = self.lost = self.stops = 0
        self._start(0)

    @property
    def parts(self) -> PolicyParts:
        """Decisions are counted."""
        return PolicyParts(meter=self.meter)

    def _start(self, count: int) -> None:
        self.execution.reset_all(count)
        self._asked = np.full(count, -1, np.int64)  # tick of the request in flight, -1 = none
        self._arrives = np.full(count, -1, np.int64)
        self._never = np.zeros(count, bool)
        self._dry = np.zeros(count, np.int64)
        self._chunk = np.zeros((count, self.horizons.pred, self.io.action_dim), np.float32)
        self._sum = np.zeros((count, self.io.action_dim))  # of all moves since the request
        self._still = np.zeros(count, bool)  # nothing ran when the request was made

    def reset(self, rows: Array | None = None) -> None:
        """Forget queues and requests in flight of these rows ((N,) bool mask), or all."""
        if rows is None:
            self._start(0)
            return
        mask = np.asarray(rows.cpu() if isinstance(rows, Tensor) else rows, bool)
        if len(mask) != self.execution.count:
            return
        self.dropped += int((self._asked[mask] >= 0).sum())
        self._asked[mask], self._dry[mask] = -1, 0
        self.execution.reset(mask)
        self.meter.end_episodes(mask)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The action of this control step for every row; what has arrived is joined first, then more is asked for."""
        first = next(iter(obs.values()))
        if self.execution.count != len(first):
            self._start(len(first))
            self.meter.end_episodes(np.ones(len(first), bool))
        self._deliver()
        self._request(obs, first, deterministic)
        self._deliver()  # an answer that takes no time
        before = self.execution.remaining(np.ones(len(first), bool))[1][:, 0]
        value, start = self.execution.take()
        self._dry = np.where(before, 0, self._dry + 1)
        self.stops += int((self._dry == self._max_hold + 1).sum())
        value = np.clip(value, -1.0, 1.0)
        self._sum += value
        self.meter.tick(value, start)
        if isinstance(first, Tensor):
            return Action(torch.as_tensor(value, device=first.device))
        return Action(value)

    def _request(self, obs: Obs, first: Array, deterministic: bool) -> None:
        everyone = np.ones(len(first), bool)
        previous, running = self.execution.remaining(everyone)
        left, free = running.sum(1), self._asked < 0
        if self.compensation == "wait":
            wanted = free & (self.execution.due() | (left == 0))
        else:
            ahead = math.ceil(self.estimate.value) + self._margin
            # The first request of an episode has nothing to go on; later ones come so early that none is missing.
            wanted = free & (self.execution.due() | (left <= ahead))
        if not wanted.any():
            return
        mask = torch.as_tensor(wanted, device=first.device) if isinstance(first, Tensor) else wanted
        context: dict[str, np.ndarray] = {
            "last": self.execution.last[wanted], "previous": previous[wanted], "running": running[wanted],
        }  # fmt: skip
        if self.compensation == "rtc":
            context["delay"] = np.full(int(wanted.sum()), math.ceil(self.estimate.value), np.int64)
        plan: Plan = self.planner.plan(
            {key: x[mask] for key, x in obs.items()}, deterministic=deterministic, context=context
        )
        delay = ticks_of(self.latency.draw(int(wanted.sum())), self.io.control_hz)
        tick = self.execution.tick[wanted]
        chunk = plan.chunk.detach().cpu().numpy() if isinstance(plan.chunk, Tensor) else np.asarray(plan.chunk)
        self._chunk[wanted] = chunk
        self._asked[wanted], self._never[wanted] = tick, delay < 0
        self._sum[wanted], self._still[wanted] = 0.0, left[wanted] == 0
        self._arrives[wanted] = tick + np.where(delay < 0, self.horizons.pred, delay)  # when it is given up
        self.execution.mark_pending(wanted)
        self.meter.count_decision(int(wanted.sum()), 0.0)

    def _deliver(self) -> None:
        tick = self.execution.tick
        here = (self._asked >= 0) & (self._arrives <= tick)
        lost = here & self._never
        self.lost += int(lost.sum())
        self._asked[lost] = -1
        here &= ~lost
        if not here.any():
            return
        age = tick[here] - self._asked[here]
        for delay in age.tolist():
            self.estimate.add(delay)
        self.stale += int((age >= self.horizons.pred).sum())
        k, h = self.horizons.exec, self.horizons.pred
        if self.compensation in ("naive", "wait"):
            alone = np.arange(h) < k if self.compensation == "wait" else np.ones(h, bool)
            self.execution.offer(here, self._chunk[here], valid=np.tile(alone, (len(age), 1)))
        else:
            age = np.where(self._still[here], 0, age)
            self.execution.offer(here, self._anchor(self._chunk[here], self._sum[here], age), age=age)
        self._asked[here] = -1

    def _anchor(self, chunk: np.ndarray, done: np.ndarray, age: np.ndarray) -> np.ndarray:
        """Chunks (n, H, A) whose moves from entry `age` (n,) on lead back to their path, from (n, A) moved since."""
        if not self._moves.any():
            return chunk
        path, out = chunk.cumsum(1), chunk.copy()
        at = np.where((age > 0)[:, None], done, 0.0)
        for i in range(self.horizons.pred):
            move = np.clip(path[:, i] - at, -1.0, 1.0)
            live = (i >= age)[:, None] & self._moves
            out[:, i] = np.where(live, move, out[:, i])
            at = np.where(live, at + move, at)
        return out

    def facts(self) -> dict[str, float]:
        """Counters, and the share of control steps at which nothing was queued."""
        return {
            "dry_share": self.execution.underruns / max(self.meter.ticks, 1),
            "stale": float(self.stale),
            "dropped": float(self.dropped),
            "lost": float(self.lost),
            "stops": float(self.stops),
        }

    def state_dict(self) -> StateDict:
        """The planner's; queues are not kept."""
        return self.planner.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """Inverse of `state_dict`."""
        self.planner.load_state_dict(state)
        self.reset()
