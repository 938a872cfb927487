"""Replay of transitions: stored once, sampled as a few gathers, never across a boundary.

Each row holds its own true successor (in its record, or by frame number) and a link to the row that continues its
episode. n-step returns and windows only follow links, so they end at an episode's end, at a gap, at the newest row and
at the ring's seam by construction.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.arrays import HostArrays, Store, arrays_for
from robot_rl.data.layout import RecordLayout
from robot_rl.data.ring import TransitionRing
from robot_rl.data.segments import Segments
from robot_rl.types import Episode, IOSpec, Step, Transitions


class ReplayBuffer:
    """Ring of transitions of N environments, sampled uniformly with replacement.

    A row with `valid=False` is not stored; chains (n-step returns, windows) of its environment end before it, and
    nothing is marked as terminated. The same happens where an observation is not the stored successor of the row
    before.

    With `window` L > 1 every field of a batch has (B, L) in place of (B,): the sampled step and the L - 1 that follow
    it in its episode; `mask` (B, L) tells which exist. The others repeat the last one with reward and discount 0. A
    chunk of H actions is `action` (B, H, A) with `mask` (B, H).

    Args:
        io: interface of the environments.
        capacity: transitions kept. Frames have room for 1/16 more than that; with episodes shorter than 16 steps a
            buffer with images keeps somewhat fewer transitions.
        num_envs: rows of every `Step`.
        n_step: primitive steps summed into one reward, fewer at the end of an episode and at the newest row.
        gamma: discount per step.
        window: steps per sample.
        device: where the data lives and the batches are made.
        seed: of the sampling.
        extras: name -> shape of further float32 columns that come out in `Transitions.extras`: "proposed" is taken from
            `Step.proposed`, any other from `Step.info[name]`, and of episodes from `Episode.meta["columns"][name]`.

    Raises:
        ValueError: a size is out of range.
    """

    def __init__(
        self,
        io: IOSpec,
        capacity: int,
        *,
        num_envs: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        window: int = 1,
        device: str = "cpu",
        seed: int = 0,
        extras: dict[str, tuple[int, ...]] | None = None,
    ) -> None:
        for name, number in (("num_envs", num_envs), ("n_step", n_step), ("window", window)):
            if number < 1:
                raise ValueError(f"{name} is {number}, expected at least 1")
        if capacity < num_envs:
            raise ValueError(f"capacity is {capacity}, expected at least one row per environment ({num_envs})")
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma is {gamma}, expected a number in [0, 1]")
        self.io, self.capacity, self.num_envs = io, capacity, num_envs
        self.n_step, self.gamma, self.window = n_step, gamma, window
        self._arrays = arrays_for(device)
        self._layout = RecordLayout(io, extras or {})
        self._ring = TransitionRing(self._arrays, self._layout, capacity, num_envs)
        self._generator = torch.Generator(self._arrays.device).manual_seed(seed)
        self._last = np.full(num_envs, -1, np.int64)  # row number that each environment may continue
        self._last_frame = np.full(num_envs, -1, np.int64)  # frame number of its successor
        self._tail: list[bytes] | None = None  # successors of the last add, while every environment just runs on
        self._still, self._every = bytes(num_envs), b"\x01" * num_envs
        self._running = np.array([gamma, 0.0], np.float32)
        self._powers = self._arrays.put(gamma ** np.arange(n_step), "float32")
        self._whole: dict[int, Tensor] = {}
        self._segments = Segments()

    def __len__(self) -> int:
        return len(self._ring)

    # ------------------------------------------------------------------ in

    def add(self, step: Step) -> None:
        """Store one row per environment.

        Raises:
            ValueError: an array does not have one row per environment, or an extra is missing.
        """
        if self._tail is None or not self._add_running(step, self._tail):
            self._add_any(step)

    def _add_running(self, step: Step, tail: list[bytes]) -> bool:
        """The cheap common case: NumPy rows, and every environment just runs on. False: not so, nothing was done."""
        ring, layout, n, obs, after = self._ring, self._layout, self.num_envs, step.obs, step.next_obs
        frames, start = ring.frames, ring.count % self.capacity
        stop = start + n
        if start < n or stop > self.capacity:
            return False
        try:
            if (
                step.terminated.tobytes() != self._still  # type: ignore[union-attr]
                or step.truncated.tobytes() != self._still  # type: ignore[union-attr]
                or step.intervened.tobytes() != self._still  # type: ignore[union-attr]
                or step.valid.tobytes() != self._every  # type: ignore[union-attr]
            ):
                return False
            for i, state in enumerate(layout.states):
                if obs[state.key].tobytes() != tail[i]:
                    return False
            if frames is not None and frames.fingerprint(obs) != tail[-1]:
                return False
            new_tail = [after[state.key].tobytes() for state in layout.states]
            if frames is not None:
                new_tail.append(frames.fingerprint(after))
        except AttributeError:  # tensors: `_add_any` knows them
            return False
        rows = slice(start, stop)
        if frames is not None:
            ring.born[rows] = frames.count
            numbers = np.arange(frames.count - n, frames.count + n) % frames.capacity
            ring.slots[rows, 0], ring.slots[rows, 1] = numbers[:n], numbers[n:]
            frames.append(after, n)
            self._last_frame += n
        record = ring.record
        for state in layout.states:
            record[rows, state.here] = obs[state.key]
            record[rows, state.successor] = after[state.key]
        record[rows, layout.action] = step.action
        record[rows, layout.reward] = step.reward
        record[rows, layout.tail] = self._running
        if layout.extras:
            self._write_extras(record[rows], step, slice(None))
        ring.onward[start - n : start] = n
        ring.onward[rows] = 0
        ring.count += n
        self._last += n
        self._tail = new_tail
        if frames is not None or ring.count > self.capacity:
            ring.retire()
        return True

    def _add_any(self, step: Step) -> None:
        arrays, layout, ring, n_envs = self._arrays, self._layout, self._ring, self.num_envs
        valid = np.asarray(_host(step.valid), bool)
        ended = np.asarray(_host(step.terminated), bool) | np.asarray(_host(step.truncated), bool)
        for name in ("valid", "terminated", "truncated", "intervened", "reward", "action"):
            if len(getattr(step, name)) != n_envs:
                raise ValueError(f"Step.{name} has {len(getattr(step, name))} rows, expected num_envs={n_envs}")
        self._tail = None
        env = np.flatnonzero(valid)
        n = len(env)
        if n == 0:
            self._last[:] = -1
            return
        pick = slice(None) if n == n_envs else arrays.put(env, "int64")
        rows = arrays.zeros((n, layout.width), "float32")
        for state in layout.states:
            rows[:, state.here] = arrays.put(step.obs[state.key], "float32").reshape(n_envs, -1)[pick]
            rows[:, state.successor] = arrays.put(step.next_obs[state.key], "float32").reshape(n_envs, -1)[pick]
        rows[:, layout.action] = arrays.put(step.action, "float32")[pick]
        rows[:, layout.reward] = arrays.put(step.reward, "float32")[pick]
        self._write_flags(rows, *(arrays.put(x, "bool")[pick] for x in (step.terminated, step.truncated)))
        self._write_intervened(rows, arrays.put(step.intervened, "bool")[pick])
        if layout.extras:
            self._write_extras(rows, step, pick)
        linked = ring.continues(rows, self._last[env])
        numbers = None
        if ring.frames is not None:
            linked, numbers = self._add_frames(step, env, pick, linked)
        ring.append(rows, np.where(linked, self._last[env], -1), numbers)
        self._last[:] = -1
        self._last[env] = np.where(ended[env], -1, np.arange(ring.count - n, ring.count))
        host = isinstance(arrays, HostArrays) and all(isinstance(x, np.ndarray) for x in step.next_obs.values())
        if host and n == n_envs and not ended.any() and all(len(state.shape) == 1 for state in layout.states):
            self._tail = [step.next_obs[state.key].tobytes() for state in layout.states]
            if ring.frames is not None:
                self._tail.append(ring.frames.fingerprint(step.next_obs))

    def _add_frames(self, step: Step, env: np.ndarray, pick: Any, linked: np.ndarray) -> tuple[np.ndarray, tuple]:
        """Store the frames of a step, those of running environments once; returns (linked, frame numbers)."""
        arrays, frames = self._arrays, self._ring.frames
        assert frames is not None
        born, n = frames.count, len(env)
        looks = {key: arrays.put(step.obs[key], dtype)[pick] for key, (_, dtype) in frames.keys.items()}
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
        looks = {key: arrays.put(step.next_obs[key], dtype)[pick] for key, (_, dtype) in frames.keys.items()}
        after = frames.append(looks, n) + np.arange(n)
        self._last_frame[env] = after
        return linked, (own, after, born)

    def add_episode(self, episode: Episode) -> None:
        """Store one whole episode; of one longer than the capacity, its end.

        `episode.meta["columns"]["valid"]` (T,) bool, where present, tells which steps are transitions: the others are
        left out, and nothing is sampled across them. `episode.meta["final_obs_valid"]` False says that the last
        observation was never recorded: unless the episode terminated, its last step is left out.

        Raises:
            ValueError: an extra is missing.
        """
        columns, length = episode.meta.get("columns", {}), len(episode)
        valid = np.array(columns.get("valid", np.ones(length, bool)), bool)
        if length and not episode.meta.get("final_obs_valid", True) and not episode.terminated:
            valid[-1] = False
        edges = np.flatnonzero(np.diff(np.concatenate(([False], valid, [False]))))
        for begin, end in edges.reshape(-1, 2):
            self._add_span(episode, max(begin, end - self.capacity), end, columns)

    def _add_span(self, episode: Episode, begin: int, end: int, columns: dict[str, np.ndarray]) -> None:
        arrays, layout, ring, n = self._arrays, self._layout, self._ring, end - begin
        rows = arrays.zeros((n, layout.width), "float32")
        for state in layout.states:
            look = arrays.put(episode.obs[state.key][begin : end + 1], "float32").reshape(n + 1, -1)
            rows[:, state.here], rows[:, state.successor] = look[:-1], look[1:]
        rows[:, layout.action] = arrays.put(episode.action[begin:end], "float32")
        rows[:, layout.reward] = arrays.put(episode.reward[begin:end], "float32")
        ends = np.zeros((2, n), bool)
        if end == len(episode):
            ends[:, -1] = episode.terminated, episode.truncated
        self._write_flags(rows, *(arrays.put(flag, "bool") for flag in ends))
        self._write_intervened(rows, arrays.put(episode.intervened[begin:end], "bool"))
        for name, (shape, where) in layout.extras.items():
            source = episode.proposed if name == "proposed" else columns.get(name)
            if source is None:
                raise ValueError(_no_extra(name, shape, "Episode.meta['columns']", sorted(columns)))
            rows[:, where] = arrays.put(source[begin:end], "float32").reshape(n, -1)
        previous = np.arange(ring.count - 1, ring.count + n - 1)
        previous[0] = -1
        numbers = None
        if ring.frames is not None:
            looks = {key: episode.obs[key][begin : end + 1] for key in ring.frames.keys}
            own = ring.frames.append(looks, n + 1) + np.arange(n)
            numbers = (own, own + 1, own)
        self._tail = None
        ring.append(rows, previous, numbers)

    def _write_flags(self, rows: Store, terminated: Store, truncated: Store) -> None:
        rows[:, self._layout.discount] = self.gamma
        rows[:, self._layout.discount][terminated] = 0.0
        flags = self._arrays.view(rows, "bool")
        flags[:, 4 * self._layout.flags] = terminated
        flags[:, 4 * self._layout.flags + 1] = truncated

    def _write_intervened(self, rows: Store, intervened: Store) -> None:
        self._arrays.view(rows, "bool")[:, 4 * self._layout.flags + 2] = intervened

    def _write_extras(self, rows: Store, step: Step, pick: Any) -> None:
        for name, (shape, where) in self._layout.extras.items():
            source = step.proposed if name == "proposed" else step.info.get(name)
            if source is None:
                raise ValueError(_no_extra(name, shape, "Step.info", sorted(step.info)))
            rows[:, where] = self._arrays.put(source, "float32").reshape(self.num_envs, -1)[pick]

    # ----------------------------------------------------------------- out

    def batches(self, size: int) -> Iterator[Transitions]:
        """Endless batches of `size` samples."""
        while True:
            yield self.sample(size)

    def sample(self, size: int) -> Transitions:
        """One batch; its fields are views of memory of its own, except `mask` without windows, which is read-only.

        Raises:
            ValueError: the buffer is empty.
        """
        if not len(self._ring):
            raise ValueError("the replay buffer is empty; add steps or episodes before sampling")
        return self._collect(self._ring.draw(size, self._generator))

    # ---------------------------------------------------------------- disk

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next `add` and the next batch depend on.

        The large tensors are views of the buffer's own memory: write them out before adding more, and prefer `save`
        for buffers that are large.
        """
        ring, tensor = self._ring, self._arrays.tensor
        filled = min(ring.count, ring.capacity)
        state = {
            "meta": self._meta(),
            "count": ring.count,
            "oldest": ring.oldest,
            "record": tensor(ring.record[:filled]),
            "onward": tensor(ring.onward[:filled]),
            **{name: torch.from_numpy(value) for name, value in self._small().items()},
        }
        if ring.frames is not None:
            held = min(ring.frames.count, ring.frames.capacity)
            state["slots"], state["born"] = tensor(ring.slots[:filled]), torch.from_numpy(ring.born[:filled])
            state["frame_count"] = ring.frames.count
            state["frames"] = {key: tensor(store[:held]) for key, store in ring.frames.store.items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly as the saved buffer would have.

        Raises:
            ValueError: the saved buffer had another interface, size or discount.
        """
        ring = self._ring
        meta = self._meta()
        differing = [
            f"{k}: {state['meta'].get(k)!r} saved, {v!r} here" for k, v in meta.items() if state["meta"].get(k) != v
        ]
        if differing:
            raise ValueError("the state is of another replay buffer:\n  - " + "\n  - ".join(differing))
        filled = min(state["count"], ring.capacity)
        ring.count, ring.oldest = state["count"], state["oldest"]
        columns = [("record", ring.record), ("onward", ring.onward)]
        if ring.frames is not None:
            columns.append(("slots", ring.slots))
            ring.born[:filled] = state["born"].cpu().numpy()
            ring.frames.count = state["frame_count"]
            held = min(ring.frames.count, ring.frames.capacity)
            for key, store in ring.frames.store.items():
                self._arrays.load(store, slice(0, held), state["frames"][key].cpu().numpy())
        for name, store in columns:
            self._arrays.load(store, slice(0, filled), state[name].cpu().numpy())
        self._restore({name: state[name].cpu().numpy() for name in self._small()})
        self._segments = Segments()

    def save(self, path: str | os.PathLike[str], base: str | os.PathLike[str] | None = None) -> None:
        """Write the buffer as a folder of raw columns that appears whole or not at all.

        Args:
            path: the folder; an existing one is replaced.
            base: folder of an earlier save of this buffer, if there still is one. What it holds already is hard-linked
                instead of written again, so that a checkpoint costs only the transitions since the last.
        """
        base = None if base is None else Path(base)
        self._segments.save(self._ring, Path(path), base, self._meta(), self._small())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue exactly as the buffer saved under `path` would have.

        Raises:
            ValueError: the folder is damaged, or of a buffer with another interface, size or discount.
        """
        self._restore(self._segments.load(self._ring, Path(path), self._meta()))

    def _meta(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "gamma": self.gamma,
            "obs": {key: [list(shape), dtype] for key, (shape, dtype) in self.io.obs.items()},
            "action_dim": self.io.action_dim,
            "extras": {name: list(shape) for name, (shape, _) in self._layout.extras.items()},
        }

    def _small(self) -> dict[str, np.ndarray]:
        return {
            "last": self._last,
            "last_frame": self._last_frame,
            "generator": self._generator.get_state().numpy(),
        }

    def _restore(self, small: dict[str, np.ndarray]) -> None:
        self._last[:], self._last_frame[:] = small["last"], small["last_frame"]
        self._generator.set_state(torch.from_numpy(small["generator"]))
        self._tail = None

    # -------------------------------------------------------------- gather

    def _collect(self, index: Store) -> Transitions:
        """The samples that start at the slots `index` (B,)."""
        arrays, ring, layout = self._arrays, self._ring, self._layout
        if self.window > 1:
            index, present = self._windows(index)
            mask = arrays.tensor(present)
        else:
            present, mask = None, self._mask(len(index))
        first = last = arrays.take(ring.record, index)
        final = index
        reward, discount = first[..., layout.reward], first[..., layout.discount]
        if self.n_step > 1:
            reward, discount, final = self._returns(index, reward)
            last = arrays.take(ring.record, final)
            discount = discount * last[..., layout.discount]
        if present is not None:
            reward, discount = reward * present, discount * present
        frames: tuple[dict, dict] = ({}, {})
        if ring.frames is not None:
            slots = arrays.take(ring.slots, index)
            ends = slots if final is index else arrays.take(ring.slots, final)
            frames = ring.frames.gather(slots[..., 0]), ring.frames.gather(ends[..., 1])
        return layout.unpack(arrays, first, last, reward, discount, mask, frames)

    def _windows(self, index: Store) -> tuple[Store, Store]:
        """(B, L) slots from `index` onward, the last existing one repeated, and (B, L) bool which exist."""
        arrays, shape = self._arrays, (len(index), self.window)
        slots, present = arrays.zeros(shape, "int64"), arrays.zeros(shape, "bool")
        slots[:, 0], present[:, 0] = index, True
        for i in range(1, self.window):
            distance = arrays.take(self._ring.onward, slots[:, i - 1])
            slots[:, i] = slots[:, i - 1] + distance
            present[:, i] = distance != 0
        return slots, present

    def _returns(self, index: Store, reward: Store) -> tuple[Store, Store, Store]:
        """n-step sums: reward, gamma^(k - 1), and the slot of the k-th step, all shaped like `index`."""
        arrays, ring = self._arrays, self._ring
        rewards = ring.record[:, self._layout.reward]
        total, steps, slot = reward * 1.0, 0 * index, index
        for i in range(1, self.n_step):
            distance = arrays.take(ring.onward, slot)
            slot = slot + distance
            moved = distance != 0
            total = total + rewards[slot] * moved * self._powers[i]
            steps = steps + moved
        return total, arrays.take(self._powers, steps), slot

    def _mask(self, size: int) -> Tensor:
        if size not in self._whole:
            self._whole[size] = torch.ones(1, dtype=torch.bool, device=self._arrays.device).expand(size)
        return self._whole[size]


def _host(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _no_extra(name: str, shape: tuple[int, ...], place: str, there: list[str]) -> str:
    return (
        f"the buffer keeps the extra '{name}' {shape}, but {place} has only {there}; provide it there, or build the "
        "buffer without it"
    )
