"""How steps and episodes become rows: which row continues which, which frame is stored already."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from robot_rl.data.arrays import Arrays, HostArrays, Store
from robot_rl.data.layout import RecordLayout
from robot_rl.data.ring import TransitionRing
from robot_rl.types import Array, Episode, Step


class RingWriter:
    """Writes the steps of N environments, and whole episodes, into a ring.

    Args:
        arrays: kind of memory of the ring.
        layout: of its records.
        ring: where rows go.
        num_envs: rows of every `Step`.
        gamma: discount per step, kept in every row as gamma (1 - terminated).
    """

    def __init__(self, arrays: Arrays, layout: RecordLayout, ring: TransitionRing, num_envs: int, gamma: float) -> None:
        self._arrays, self._layout, self._ring = arrays, layout, ring
        self._num_envs, self._gamma = num_envs, gamma
        self._last = np.full(num_envs, -1, np.int64)  # row number that each environment may continue
        self._last_frame = np.full(num_envs, -1, np.int64)  # frame number of its successor
        # The successors' bytes of the last add, while every environment just runs on; else None. As long as it is set,
        # the last rows (and frames) of the ring are those of the environments, and the two arrays above lag behind.
        self._tail: list[bytes] | None = None
        flags = ("reward", "terminated", "truncated", "valid", "intervened")
        self._shapes = {"action": (num_envs, layout.action_dim), **dict.fromkeys(flags, (num_envs,))}
        for place in ("obs", "next_obs"):
            self._shapes |= {f"{place}['{key}']": (num_envs, *shape) for key, (shape, _) in layout.io.obs.items()}
        self._keys = [state.key for state in layout.states]
        self._still, self._every = bytes(num_envs), b"\x01" * num_envs
        self._running = np.array([gamma, 0.0], np.float32)
        self._running_bytes = self._running.tobytes()
        self._memory: memoryview | None = None
        if isinstance(arrays, HostArrays) and num_envs == 1 and not layout.extras:
            self._memory = memoryview(ring.record.reshape(-1)).cast("B")

    def add(self, step: Step) -> None:
        """Store one row per environment; see `ReplayBuffer.add`."""
        if self._tail is None or not self._add_running(step, self._tail):
            self._settle()
            self._add_any(step)

    def _add_running(self, step: Step, tail: list[bytes]) -> bool:
        """The cheap common case: NumPy rows, and every environment just runs on. False: not so, nothing was done."""
        ring, n, obs, after = self._ring, self._num_envs, step.obs, step.next_obs
        frames, start = ring.frames, ring.count % ring.capacity
        stop = start + n
        if start < n or stop > ring.capacity:
            return False
        try:
            if (
                step.terminated.tobytes() != self._still  # pyright: ignore[reportAttributeAccessIssue]
                or step.truncated.tobytes() != self._still  # pyright: ignore[reportAttributeAccessIssue]
                or step.intervened.tobytes() != self._still  # pyright: ignore[reportAttributeAccessIssue]
                or step.valid.tobytes() != self._every  # pyright: ignore[reportAttributeAccessIssue]
            ):
                return False
            here = [obs[key].tobytes() for key in self._keys]
            there = [after[key].tobytes() for key in self._keys]
            seen = here
            if frames is not None:
                seen = [*here, frames.fingerprint(obs)]
                new_tail = [*there, frames.fingerprint(after)]
            else:
                new_tail = there
            if seen != tail:
                return False
            if self._memory is not None:
                if step.action.dtype is not _FLOAT32 or step.reward.dtype is not _FLOAT32:
                    return False
                acted, got = step.action.tobytes(), step.reward.tobytes()  # pyright: ignore[reportAttributeAccessIssue]
                row = b"".join((*here, acted, *there, got, self._running_bytes))
                width = 4 * self._layout.width
                if len(row) != width:
                    return False
                self._memory[start * width : stop * width] = row
            else:
                self._write_running(step, slice(start, stop))
        except AttributeError:  # tensors: `_add_any` knows them
            return False
        onward = ring.onward
        if n == 1:  # scalars cost a third of slices
            onward[start - 1], onward[start] = 1, 0
        else:
            onward[start - n : start], onward[start:stop] = n, 0
        ring.count += n
        self._tail = new_tail
        if frames is None:
            if ring.count > ring.capacity:
                ring.oldest = ring.count - ring.capacity
            return True
        count = frames.append(after, n)
        if n == 1:
            ring.born[start] = count
            ring.slots[start, 0], ring.slots[start, 1] = (count - 1) % frames.capacity, count % frames.capacity
        else:
            ring.born[start:stop] = count
            numbers = np.arange(count - n, count + n) % frames.capacity
            ring.slots[start:stop, 0], ring.slots[start:stop, 1] = numbers[:n], numbers[n:]
        if ring.count > ring.capacity or frames.count > frames.capacity:
            ring.retire()
        return True

    def _write_running(self, step: Step, rows: slice) -> None:
        layout, record = self._layout, self._ring.record[rows]
        layout.write(record, step.obs, step.next_obs, step.action, step.reward)
        record[:, layout.tail] = self._running
        if layout.extras:
            self._write_extras(record, {**step.info, "proposed": step.proposed}, "Step.info", slice(None))

    def _settle(self) -> None:
        """Bring `_last` and `_last_frame` up to date."""
        if self._tail is not None:
            n, frames = self._num_envs, self._ring.frames
            self._last = np.arange(self._ring.count - n, self._ring.count)
            if frames is not None:
                self._last_frame = np.arange(frames.count - n, frames.count)
            self._tail = None

    def state(self) -> dict[str, np.ndarray]:
        """What the next add depends on besides the ring."""
        tail = self._tail
        self._settle()
        self._tail = tail
        return {"last": self._last, "last_frame": self._last_frame}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Inverse of `state`."""
        self._last, self._last_frame = state["last"].copy(), state["last_frame"].copy()
        self._tail = None

    def _add_any(self, step: Step) -> None:
        arrays, layout, ring, n_envs = self._arrays, self._layout, self._ring, self._num_envs
        valid = np.asarray(_host(step.valid), bool)
        ended = np.asarray(_host(step.terminated), bool) | np.asarray(_host(step.truncated), bool)
        self._check(step)
        env = np.flatnonzero(valid)
        n = len(env)
        if n == 0:
            self._last[:] = -1
            return
        pick = slice(None) if n == n_envs else arrays.put(env, "int64")
        rows = arrays.zeros((n, layout.width), "float32")
        looks = [{key: self._flat(obs[key], n_envs)[pick] for key in self._keys} for obs in (step.obs, step.next_obs)]
        layout.write(rows, *looks, *(arrays.put(x, "float32")[pick] for x in (step.action, step.reward)))
        end, cut, person = (arrays.put(x, "bool")[pick] for x in (step.terminated, step.truncated, step.intervened))
        layout.write_end(arrays, rows, self._gamma * ~end, end, cut, False, person)
        if layout.extras:
            self._write_extras(rows, {**step.info, "proposed": step.proposed}, "Step.info", pick)
        linked = ring.continues(rows, self._last[env])
        numbers = None
        if ring.frames is not None:
            linked, numbers = self._add_frames(step, env, pick, linked)
        ring.add_rows(rows, np.where(linked, self._last[env], -1), numbers)
        self._last[:] = -1
        self._last[env] = np.where(ended[env], -1, np.arange(ring.count - n, ring.count))
        host = isinstance(arrays, HostArrays) and all(isinstance(x, np.ndarray) for x in step.next_obs.values())
        if host and n == n_envs and not ended.any() and all(len(state.shape) == 1 for state in layout.states):
            self._tail = [step.next_obs[state.key].tobytes() for state in layout.states]
            if ring.frames is not None:
                self._tail.append(ring.frames.fingerprint(step.next_obs))

    def _check(self, step: Step) -> None:
        """Refuse arrays of other shapes than the interface says: NumPy would repeat some of them without a word."""
        given = [step.action, step.reward, step.terminated, step.truncated, step.valid, step.intervened]
        given += [obs[key] for obs in (step.obs, step.next_obs) for key in self._layout.io.obs]
        for value, (name, shape) in zip(given, self._shapes.items()):
            if value.shape != shape:
                raise ValueError(
                    f"Step.{name} has shape {tuple(value.shape)}, expected num_envs={self._num_envs} rows of shape "
                    f"{shape[1:]}; build the buffer with the interface and the number of its environments"
                )

    def _add_frames(self, step: Step, env: np.ndarray, pick: object, linked: np.ndarray) -> tuple[np.ndarray, tuple]:
        """Store the frames of a step, those of running environments once; returns (linked, frame numbers)."""
        arrays, frames = self._arrays, self._ring.frames
        assert frames is not None
        born, n = frames.count, len(env)
        looks = {key: arrays.put(step.obs[key], dtype)[pick] for key, (_, dtype) in frames.kinds.items()}
        own = self._last_frame[env]
        here = own >= frames.oldest
        linked = linked & here
        if linked.any():
            linked &= frames.same(looks, np.where(here, own, frames.oldest))
        # Only a frame that came with the previous step is shared: that bounds how far back a row refers.
        shared = linked & (own >= born - self._ring.slack)
        fresh = np.flatnonzero(~shared)
        if len(fresh):
            some = arrays.put(fresh, "int64")
            own[fresh] = frames.append({key: look[some] for key, look in looks.items()}, len(fresh)) + np.arange(
                len(fresh)
            )
        # The successors come last: `_add_running` counts on it.
        looks = {key: arrays.put(step.next_obs[key], dtype)[pick] for key, (_, dtype) in frames.kinds.items()}
        after = frames.append(looks, n) + np.arange(n)
        self._last_frame[env] = after
        return linked, (own, after, born)

    def add_episode(self, episode: Episode) -> None:
        """Store one whole episode; see `ReplayBuffer.add_episode`."""
        self._settle()
        columns, length = episode.meta.get("columns", {}), len(episode)
        valid = np.array(columns.get("valid", np.ones(length, bool)), bool)
        if length and not episode.meta.get("final_obs_valid", True) and not episode.terminated:
            valid[-1] = False
        edges = np.flatnonzero(np.diff(np.concatenate(([False], valid, [False]))))
        for begin, end in edges.reshape(-1, 2):
            self._add_span(episode, max(begin, end - self._ring.capacity), end, columns)

    def _add_span(self, episode: Episode, begin: int, end: int, columns: dict[str, np.ndarray]) -> None:
        arrays, layout, ring, n = self._arrays, self._layout, self._ring, end - begin
        rows = arrays.zeros((n, layout.width), "float32")
        looks = {key: self._flat(episode.obs[key][begin : end + 1], n + 1) for key in self._keys}
        here, there = ({key: look[part] for key, look in looks.items()} for part in (slice(n), slice(1, None)))
        layout.write(
            rows, here, there, *(arrays.put(x[begin:end], "float32") for x in (episode.action, episode.reward))
        )
        ends = np.zeros((2, n), bool)
        if end == len(episode):
            ends[:, -1] = episode.terminated, episode.truncated
        ended, cut, person = (arrays.put(x, "bool") for x in (*ends, episode.intervened[begin:end]))
        layout.write_end(arrays, rows, self._gamma * ~ended, ended, cut, False, person)
        given = {name: value[begin:end] for name, value in {**columns, "proposed": episode.proposed}.items()}
        self._write_extras(rows, given, "Episode.meta['columns']", slice(None), n)
        previous = np.arange(ring.count - 1, ring.count + n - 1)
        previous[0] = -1
        numbers = None
        if ring.frames is not None:
            looks = {key: episode.obs[key][begin : end + 1] for key in ring.frames.kinds}
            own = ring.frames.append(looks, n + 1) + np.arange(n)
            numbers = (own, own + 1, own)
        ring.add_rows(rows, previous, numbers)

    def _write_extras(
        self, rows: Store, given: Mapping[str, Array], place: str, pick: object, count: int | None = None
    ) -> None:
        """Further columns of rows: what is picked of the `count` rows (one per environment) that a place gives."""
        for name, (shape, where) in self._layout.extras.items():
            if given.get(name) is None:
                raise ValueError(
                    f"the buffer keeps the extra '{name}' {shape}, but {place} has only "
                    f"{sorted(given.keys() - {'proposed'})}; provide it there, or build the buffer without it"
                )
            rows[:, where] = self._flat(given[name], count or self._num_envs)[pick]

    def _flat(self, value: Array, rows: int) -> Store:
        return self._arrays.put(value, "float32").reshape(rows, -1)


_FLOAT32 = np.dtype(np.float32)


def _host(value: Array) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
