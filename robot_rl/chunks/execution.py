"""Which action of which chunk is executed now: open loop, receding horizon, hold, ensemble, real-time, learned stop."""

from __future__ import annotations

import numpy as np

from robot_rl.chunks.horizons import Horizons

MODES = ("open", "receding", "hold", "ensemble", "realtime", "stop")
_NEVER = -(1 << 40)


def ensemble_weights(n: int, decay: float = 0.01, *, oldest_first: bool = True) -> np.ndarray:
    """(n,) weights exp(-decay i), normalised; i counts predictions from the oldest, or from the newest.

    Source: Zhao et al., ACT (temporal ensembling, oldest first, decay 0.01).
    """
    weight = np.exp(-decay * np.arange(n))
    weight = weight if oldest_first else weight[::-1]
    return weight / weight.sum()


class Execution:
    """Plays the chunks of N rows, one action per tick.

    Each tick: `due` says which rows want a new chunk, `offer` brings chunks (whenever they come: a chunk knows the tick
    of the observation that it was made from, so that a late one is joined where time has got to), `take` answers with
    the actions of the tick and advances time. Whether an entry of a chunk counts is kept in a mask of its own: an
    action of exactly zero is an action.

    Modes:
        "open": all H actions, then the next call (exec must be pred).
        "receding": exec < H actions, then the next call.
        "hold": the first action, exec times.
        "ensemble": a call every tick; the action is the weighted mean of all predictions for this tick.
        "realtime": a call every exec ticks; its chunk takes over `delay` ticks later, until then the running one goes
            on.
        "stop": as "receding", but a call may ask for fewer steps (`length` of `offer`).

    Where no chunk covers a tick, the last action is repeated (or that of `idle`), and counted in `underruns`.

    Args:
        horizons: lengths.
        action_dim: A.
        mode: one of the above.
        decay: of the ensemble's weights.
        oldest_first: whether the oldest prediction weighs most (ACT) or the newest.
        delay: ticks until a chunk takes over, in "realtime"; delay <= exec.
        blend: ticks over which a new chunk fades in over the running one (or over the last action, where that ran
            out): the border is no jump even when a chunk comes late. 0 switches at once.

    Raises:
        ValueError: an option out of range or not of this mode.
    """

    def __init__(
        self,
        horizons: Horizons,
        action_dim: int,
        *,
        mode: str = "open",
        decay: float = 0.01,
        oldest_first: bool = True,
        delay: int = 0,
        blend: int = 0,
        idle: np.ndarray | None = None,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"execution mode is '{mode}', expected one of {', '.join(MODES)}")
        if mode == "open" and horizons.exec != horizons.pred:
            raise ValueError(
                f"mode 'open' executes the whole chunk, but horizon_exec is {horizons.exec} of {horizons.pred}; "
                "use mode 'receding'"
            )
        if not 0 <= delay <= horizons.exec:
            raise ValueError(f"delay is {delay}, expected 0 ... horizon_exec = {horizons.exec}")
        if delay and mode != "realtime":
            raise ValueError(f"delay is {delay} in mode '{mode}'; only 'realtime' computes while a chunk runs")
        if mode == "realtime" and horizons.exec + delay > horizons.pred:
            raise ValueError(
                f"horizon_exec + delay is {horizons.exec} + {delay}, beyond the {horizons.pred} predicted actions: "
                "the running chunk would end before its successor takes over"
            )
        if blend < 0:
            raise ValueError(f"blend is {blend}, expected 0 or more ticks")
        self.horizons, self.mode, self.decay, self.oldest_first = horizons, mode, decay, oldest_first
        self.delay, self.blend, self._dim = delay, blend, action_dim
        self._idle = np.full(action_dim, np.nan, np.float32) if idle is None else np.asarray(idle, np.float32)
        if self._idle.shape != (action_dim,):
            raise ValueError(f"idle has shape {self._idle.shape}, expected ({action_dim},): one number for each action")
        self._slots = horizons.pred if mode == "ensemble" else 2
        self.underruns = 0
        self.reset_all(0)

    def reset_all(self, count: int) -> None:
        """Begin anew with `count` rows."""
        h, m = self.horizons.pred, self._slots
        self._tick = np.zeros(count, np.int64)
        self._plan = np.zeros((count, m, h, self._dim), np.float32)
        self._valid = np.zeros((count, m, h), bool)
        self._begin = np.full((count, m), _NEVER, np.int64)  # tick of a plan's entry 0
        self._next = np.zeros(count, np.int64)  # tick of the next call
        self._last = np.zeros((count, self._dim), np.float32)
        self._moved = np.zeros(count, bool)
        self._offset = np.zeros((count, self._dim))  # from the newest plan to what ran before it
        self._origin = np.full(count, _NEVER, np.int64)  # tick at which that began
        self._fade = np.full(count, _NEVER, np.int64)  # tick at which the newest plan takes over

    def reset(self, rows: np.ndarray) -> None:
        """Forget chunks and time of these rows ((N,) bool): an episode ended."""
        self._tick[rows] = self._next[rows] = 0
        self._valid[rows], self._begin[rows] = False, _NEVER
        self._last[rows], self._moved[rows] = 0.0, False
        self._fade[rows] = self._origin[rows] = _NEVER
        self._offset[rows] = 0.0

    def state_dict(self) -> dict[str, np.ndarray]:
        """Chunks under way and time, for an exact continuation."""
        return {name: value.copy() for name, value in self._state().items()}

    def _state(self) -> dict[str, np.ndarray]:
        return {
            "tick": self._tick, "plan": self._plan, "valid": self._valid, "begin": self._begin, "next": self._next,
            "last": self._last, "moved": self._moved, "fade": self._fade, "offset": self._offset,
            "origin": self._origin,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Continue where `state_dict` was taken."""
        self.reset_all(len(state["tick"]))
        for name, value in self._state().items():
            value[:] = state[name]

    @property
    def idle(self) -> np.ndarray:
        """(A,) action where nothing is queued, NaN = the last one."""
        return self._idle.copy()

    @property
    def count(self) -> int:
        """N."""
        return len(self._tick)

    @property
    def tick(self) -> np.ndarray:
        """(N,) ticks since the reset."""
        return self._tick.copy()

    @property
    def last(self) -> np.ndarray:
        """(N, A) action executed last, zeros after a reset."""
        return self._last.copy()

    def correct(self, action: np.ndarray) -> None:
        """The actions (N, A) that were executed in the last tick instead of those of `take`."""
        self._last = np.array(action, np.float32)

    def due(self) -> np.ndarray:
        """(N,) bool: rows that want a chunk made from the present observation."""
        return self._tick >= self._next

    def mark_pending(self, rows: np.ndarray) -> None:
        """The chunks of these rows ((N,) bool) are being computed: do not ask again before the next decision."""
        self._next[rows] = self._tick[rows] + (1 if self.mode == "ensemble" else self.horizons.exec)

    def remaining(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The running chunk seen from now: (n, H, A) with entry 0 for this tick, (n, H) bool which exist."""
        index = np.flatnonzero(rows)
        h = self.horizons.pred
        newest = self._begin[index].argmax(1)
        shift = (self._tick[index] - self._begin[index, newest])[:, None] + np.arange(h)
        inside = (shift >= 0) & (shift < h)
        shift = np.where(inside, shift, 0)
        value = self._plan[index[:, None], newest[:, None], shift]
        exists = inside & self._valid[index[:, None], newest[:, None], shift]
        return np.where(exists[..., None], value, 0.0), exists

    def offer(
        self,
        rows: np.ndarray,
        chunk: np.ndarray,
        *,
        age: int | np.ndarray = 0,
        valid: np.ndarray | None = None,
        length: np.ndarray | None = None,
    ) -> None:
        """Take over chunks.

        Args:
            rows: (N,) bool, n of them.
            chunk: (n, H, A), entry 0 for the tick of the observation that it was made from.
            age: ticks since that observation, one number or (n,).
            valid: (n, H) bool entries that count; None = all.
            length: (n,) steps to execute, in mode "stop".

        Raises:
            ValueError: wrong shape, or a length outside 1 ... horizon_exec.
        """
        index = np.flatnonzero(rows)
        n, h, k = len(index), self.horizons.pred, self.horizons.exec
        chunk = np.asarray(chunk, np.float32)
        if chunk.shape != (n, h, self._dim):
            raise ValueError(f"chunk has shape {chunk.shape}, expected ({n}, {h}, {self._dim}): rows, horizon, actions")
        if self.mode == "hold":
            chunk = np.repeat(chunk[:, :1], h, axis=1)
        exists = np.ones((n, h), bool) if valid is None else np.array(valid, bool)
        late = np.broadcast_to(np.asarray(age, np.int64), (n,))
        now, begin = self._tick[index], self._tick[index] - late
        useful = (np.arange(h) >= late[:, None]) & exists
        if self.mode == "realtime":  # until the delay is over, what runs goes on; a first chunk starts at once
            running = self.remaining(rows)[1]
            ahead = np.take_along_axis(running, np.clip(np.arange(h) - late[:, None], 0, h - 1), 1)
            frozen = (np.arange(h) < self.delay) & ahead
            exists, useful = exists & ~frozen, useful & ~frozen
        keep = useful.any(1)  # a chunk that is over before it came is no chunk
        index, begin, chunk, exists, now, late = (x[keep] for x in (index, begin, chunk, exists, now, late))
        over = begin + useful[keep].argmax(1)  # the tick at which the chunk takes over
        slot = self._begin[index].argmin(1)
        self._plan[index, slot], self._valid[index, slot], self._begin[index, slot] = chunk, exists, begin
        self._fade[index] = over
        if self.mode == "ensemble":
            self._next[index] = now + 1
            return
        steps = np.full(len(index), k)
        if length is not None:
            if self.mode != "stop":
                raise ValueError(f"a chunk came with its own length in mode '{self.mode}'; only 'stop' reads it")
            steps = np.asarray(length, np.int64)[keep]
            if ((steps < 1) | (steps > k)).any():
                raise ValueError(f"length is {steps.tolist()}, expected 1 ... horizon_exec = {k}")
        self._next[index] = np.maximum(begin + steps, now + 1)

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """(N, A) actions of this tick, and (N,) bool where a new chunk took part; time advances."""
        shift = self._tick[:, None] - self._begin
        inside = (shift >= 0) & (shift < self.horizons.pred)
        shift = np.where(inside, shift, 0)
        row, slot = np.arange(self.count)[:, None], np.arange(self._slots)[None]
        value = self._plan[row, slot, shift]
        exists = inside & self._valid[row, slot, shift]
        covered: np.ndarray = np.asarray(exists.any(1))
        if self.mode == "ensemble":
            action = self._ensemble(value, exists)
        else:
            action = self._newest(value, exists)
        self.underruns += int((~covered).sum())
        action = np.where(covered[:, None], action, np.where(np.isnan(self._idle), self._last, self._idle))
        start = np.equal(self._fade, self._tick)
        self._last, self._moved = action.astype(np.float32), np.ones(self.count, bool)
        self._tick += 1
        return self._last.copy(), start

    def _ensemble(self, value: np.ndarray, exists: np.ndarray) -> np.ndarray:
        order = np.where(exists, self._begin, np.iinfo(np.int64).max).argsort(1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(self._slots)[None].repeat(self.count, 0), 1)  # 0 = oldest that counts
        if not self.oldest_first:
            rank = exists.sum(1, keepdims=True) - 1 - rank
        weight = np.where(exists, np.exp(-self.decay * np.maximum(rank, 0)), 0.0)
        return (weight[..., None] * value).sum(1) / np.maximum(weight.sum(1), 1e-12)[:, None]

    def _newest(self, value: np.ndarray, exists: np.ndarray) -> np.ndarray:
        begin = np.where(exists, self._begin, _NEVER)
        newest = begin.argmax(1)
        row = np.arange(self.count)
        action = value[row, newest]
        if not self.blend or self.count == 0:
            return action
        # What ran before, its own fade included, goes on as an offset that decays: a chunk that comes in the middle of
        # a fade must not jump either.
        other = begin.copy()
        other[row, newest] = _NEVER
        second = other.argmax(1)
        left = self._offset * (1.0 - self._share())[:, None]
        takes_over = np.equal(self._fade, self._tick) & self._moved
        before = np.where((other.max(1) > _NEVER)[:, None], value[row, second] + left, self._last)
        self._offset = np.where(takes_over[:, None], before - action, self._offset)
        self._origin = np.where(takes_over, self._tick, self._origin)
        return action + self._offset * (1.0 - self._share())[:, None]

    def _share(self) -> np.ndarray:
        """(N,) how far the newest chunk has faded in."""
        return np.clip((self._tick - self._origin + 1) / (self.blend + 1), 0.0, 1.0)
