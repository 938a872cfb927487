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

from robot_rl.data.arrays import Store, arrays_for
from robot_rl.data.intake import RingWriter
from robot_rl.data.layout import RecordLayout
from robot_rl.data.ring import TransitionRing
from robot_rl.data.seen import space_rows
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
        self._intake = RingWriter(self._arrays, self._layout, self._ring, num_envs, gamma)
        self._powers = self._arrays.put(gamma ** np.arange(n_step), "float32")
        self._whole: dict[int, Tensor] = {}
        self._segments = Segments()

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, step: Step) -> None:
        """Store one row per environment.

        Raises:
            ValueError: an array does not have one row per environment, or an extra is missing.
        """
        self._intake.add(step)

    def add_episode(self, episode: Episode) -> None:
        """Store one whole episode; of one longer than the capacity, its end.

        `episode.meta["columns"]["valid"]` (T,) bool, where present, tells which steps are transitions: the others are
        left out, and nothing is sampled across them. `episode.meta["final_obs_valid"]` False says that the last
        observation was never recorded: unless the episode terminated, its last step is left out.

        Raises:
            ValueError: an extra is missing.
        """
        self._intake.add_episode(episode)

    @property
    def rows_taken(self) -> int:
        """Rows that were ever stored, those included that have been overwritten."""
        return self._ring.count

    def episodes(self, rows: int | None = None) -> list[Episode]:
        """What the buffer holds as episodes, in the order in which they began.

        Args:
            rows: only this many of the oldest rows; None: all.

        Returns:
            Copies. An episode that runs on behind the rows taken is cut (neither terminated nor truncated), one whose
            beginning was overwritten begins later; stamps count steps; `meta["columns"]` holds the extras.
        """
        ring, arrays, layout = self._ring, self._arrays, self._layout
        stop = ring.count if rows is None else min(ring.count, ring.oldest + rows)
        numbers = np.arange(ring.oldest, stop)
        slots = numbers % ring.capacity
        distance = arrays.host(arrays.take(ring.onward, arrays.put(slots, "int64"))).astype(np.int64)
        follower = np.where(distance != 0, numbers + distance % ring.capacity, stop)  # of a row, by number
        chains: list[list[int]] = []
        chain_of: dict[int, int] = {}  # number of the row that continues a chain -> chain
        for number, after in zip(numbers.tolist(), follower.tolist()):
            which = chain_of.pop(number, None)
            if which is None:
                which = len(chains)
                chains.append([])
            chains[which].append(number)
            if after < stop:
                chain_of[after] = which
        return [self._episode(arrays.put(np.array(chain) % ring.capacity, "int64"), layout) for chain in chains]

    def _episode(self, slots: Store, layout: RecordLayout) -> Episode:
        """The rows in `slots` (T,), each the successor of the one before."""
        arrays, ring = self._arrays, self._ring
        frames: tuple[dict, dict] = ({}, {})
        if ring.frames is not None:
            frames = ring.frames.gather(arrays.take(ring.slots, slots))
        record = arrays.take(ring.record, slots)
        mask = self._mask(len(record))
        got = layout.unpack(
            arrays, record, record, record[..., layout.reward], record[..., layout.discount], mask, frames
        )
        obs = {
            key: np.concatenate([value.cpu().numpy(), got.next_obs[key][-1:].cpu().numpy()])
            for key, value in got.obs.items()
        }
        columns = {name: value.cpu().numpy().copy() for name, value in got.extras.items()}
        action = got.action.cpu().numpy().copy()
        terminated, truncated = bool(got.terminated[-1]), bool(got.truncated[-1])
        return Episode(
            obs=obs,
            action=action,
            proposed=columns.get("proposed", action),
            reward=got.reward.cpu().numpy().copy(),
            terminated=terminated,
            truncated=truncated and not terminated,
            intervened=got.intervened.cpu().numpy().copy(),
            stamp=np.arange(len(action) + 1, dtype=np.float64),
            meta={"columns": columns} if columns else {},
        )

    def look(self, most: int) -> tuple[dict[str, Any], Any, int]:
        """Vector observations and actions of evenly spaced rows, and how many steps came in; see `data.seen`."""
        ring, layout = self._ring, self._layout
        slots = (ring.oldest + space_rows(len(ring), most)) % ring.capacity
        rows = self._arrays.host(self._arrays.take(ring.record, self._arrays.put(slots, "int64")))
        obs = {state.key: rows[:, state.here] for state in layout.states}
        return obs, rows[:, layout.action], self.rows_taken

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
            **self._intake.state(),
            "generator": self._generator.get_state().numpy(),
        }

    def _restore(self, small: dict[str, np.ndarray]) -> None:
        self._intake.restore(small)
        self._generator.set_state(torch.from_numpy(small["generator"]))

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
            if final is not index:
                slots[..., 1] = arrays.take(ring.slots, final)[..., 1]
            frames = ring.frames.gather(slots)
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
