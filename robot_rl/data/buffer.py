"""Replay of transitions: stored once, sampled as a few gathers, never across a boundary.

Each row holds its own true successor (in its record, or by frame number) and a link to the row that continues its
episode. n-step returns and windows only follow links, so they end at an episode's end, at a gap, at the newest row and
at the ring's seam by construction.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.data.arrays import Store, arrays_for
from robot_rl.data.chains import all_true, check_sizes, sum_ahead
from robot_rl.data.intake import RingWriter
from robot_rl.data.layout import RecordLayout
from robot_rl.data.ring import TransitionRing
from robot_rl.data.seen import MOST_PICTURES, space_rows
from robot_rl.data.segments import Segments
from robot_rl.state import set_generator
from robot_rl.types import Batches, Episode, IOSpec, Obs, StateDict, Step, Transitions
from robot_rl.types.state import OtherSettings


class Replay:
    """What a ring of transitions of N environments gives a learner: uniform samples with replacement, and its state.

    With `window` L > 1 every field of a batch has (B, L) in place of (B,): the sampled step and the L - 1 that follow
    it in its episode; `mask` (B, L) tells which exist. The others repeat the last one with reward and discount 0. A
    chunk of H actions is `action` (B, H, A) with `mask` (B, H).

    Args:
        io: interface of the environments.
        ring: where the rows lie.
        num_envs: rows of every `Step`.
        n_step: primitive steps summed into one reward, fewer at the end of an episode and at the newest row.
        gamma: discount per step.
        window: steps per sample.
        seed: of the sampling.
    """

    def __init__(
        self, io: IOSpec, ring: TransitionRing, *, num_envs: int, n_step: int, gamma: float, window: int, seed: int
    ) -> None:
        self.io, self.capacity, self.num_envs = io, ring.capacity, num_envs
        self.n_step, self.gamma, self.window = n_step, gamma, window
        self._ring, self._arrays, self._layout = ring, ring.arrays, ring.layout
        self._generator = torch.Generator(self._arrays.device).manual_seed(seed)
        self._powers = self._arrays.put(gamma ** np.arange(n_step), "float32")
        self._segments = Segments()

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def rows_taken(self) -> int:
        """Rows that were ever stored, those included that have been overwritten."""
        return self._ring.count

    def episodes(self, rows: int | None = None) -> list[Episode]:
        """What the buffer holds, see `TransitionRing.episodes`."""
        return self._ring.episodes(rows)

    def look(self, most: int) -> tuple[Obs, Any, int]:
        """Observations and actions of evenly spaced rows, and how many steps came in; see `data.seen.Looked`."""
        ring, layout = self._ring, self._layout
        slots = (ring.oldest + space_rows(len(ring), most)) % ring.capacity
        rows = self._arrays.host(self._arrays.take(ring.record, self._arrays.put(slots, "int64")))
        obs = {state.key: rows[:, state.here] for state in layout.states}
        if ring.frames is not None and len(ring):
            few = self._arrays.put(slots[space_rows(len(slots), MOST_PICTURES)], "int64")
            obs |= ring.gather_frames(few, few, [key for key in layout.frames if key.startswith("image.")])[0]
        return obs, rows[:, layout.action], self.rows_taken

    def batches(self, size: int) -> Batches:
        """Endless batches of `size` samples."""
        return Batches(self.sample, size, self._generator)

    def sample(self, size: int) -> Transitions:
        """One batch; its fields are views of memory of its own, except `mask` without windows, which is read-only.

        Raises:
            ValueError: the buffer is empty.
        """
        if not len(self._ring):
            raise ValueError("the replay buffer is empty; add steps or episodes before sampling")
        return self._collect(self._ring.draw(size, self._generator))

    def state_dict(self) -> StateDict:
        """Everything that the next `add` and the next batch depend on.

        The large tensors are views of the buffer's own memory: write them out before adding more, and prefer `save`
        for buffers that are large.
        """
        small = {name: torch.from_numpy(value) for name, value in self._small().items()}
        return {"meta": self._meta(), **self._ring.state_dict(), **small}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue exactly as the saved buffer would have.

        Raises:
            ValueError: the saved buffer had another interface, size or discount.
        """
        frames = state["frames"]["count"] if "frames" in state else 0
        self._check({**state["meta"], "count": state["count"], "frames": frames})
        self._ring.load_state_dict(state)
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
            ValueError: the folder is damaged.
            OtherSettings: it is of a buffer with another interface, size or discount.
        """
        self._restore(self._segments.load(self._ring, Path(path), self._check))

    def _check(self, saved: StateDict) -> None:
        """Refuse the state of another buffer, by its `_meta` and its counts of rows and frames."""
        differing = [
            f"{key}: {saved.get(key)!r} saved, {value!r} here"
            for key, value in self._meta().items()
            if saved.get(key) != value and not (key == "capacity" and self._may_move(saved))
        ]
        if differing:
            raise OtherSettings(
                "the saved replay buffer is another one than this:\n  - "
                + "\n  - ".join(differing)
                + "\nuse the environments and settings that it was saved with"
            )

    def _may_move(self, saved: StateDict) -> bool:
        """Whether rows of a buffer of another capacity are taken over."""
        return self._ring.extends(saved["capacity"], saved["count"], saved["frames"])

    def _meta(self) -> dict[str, object]:
        sizes = {"capacity": self.capacity, "num_envs": self.num_envs, "gamma": self.gamma}
        return {**sizes, **self._layout.facts()}

    def _small(self) -> dict[str, np.ndarray]:
        return {"generator": self._generator.get_state().numpy()}

    def _restore(self, small: dict[str, np.ndarray]) -> None:
        set_generator(self._generator, small["generator"])

    def _collect(self, index: Store) -> Transitions:
        """The samples that start at the slots `index` (B,)."""
        arrays, ring, layout = self._arrays, self._ring, self._layout
        present = None
        if self.window > 1:
            index, present = self._windows(index)
        first = last = arrays.take(ring.record, index)
        final = index
        reward, discount = first[..., layout.reward], first[..., layout.discount]
        if self.n_step > 1:
            rewards = ring.record[:, layout.reward]
            reward, steps, final = sum_ahead(
                reward * 1.0, index, self._powers, lambda row: arrays.take(ring.onward, row), lambda row: rewards[row]
            )
            last = arrays.take(ring.record, final)
            discount = arrays.take(self._powers, steps) * last[..., layout.discount]
        if present is not None:
            reward, discount = reward * present, discount * present
        mask = self._mask(first) if present is None else arrays.tensor(present)
        return layout.unpack(arrays, first, last, reward, discount, mask, ring.gather_frames(index, final))

    def _mask(self, first: Store) -> Tensor:
        """(B,) bool: which records (B, width) are transitions."""
        return all_true(len(first), self._arrays.device)

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


class ReplayBuffer(Replay):
    """Ring of transitions of N environments, of any interface, in either kind of memory; see `Replay` for its batches.

    A row with `valid=False` is not stored; chains (n-step returns, windows) of its environment end before it, and
    nothing is marked as terminated. The same happens where an observation is not the stored successor of the row
    before.

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
        check_sizes(gamma, num_envs=num_envs, n_step=n_step, window=window)
        if capacity < num_envs:
            raise ValueError(f"capacity is {capacity}, expected at least one row per environment ({num_envs})")
        arrays, layout = arrays_for(device), RecordLayout(io, extras or {})
        ring = TransitionRing(arrays, layout, capacity, slack=2 * num_envs)
        super().__init__(io, ring, num_envs=num_envs, n_step=n_step, gamma=gamma, window=window, seed=seed)
        self._intake = RingWriter(arrays, layout, ring, num_envs, gamma)

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

    def _small(self) -> dict[str, np.ndarray]:
        return {**super()._small(), **self._intake.state()}

    def _restore(self, small: dict[str, np.ndarray]) -> None:
        super()._restore(small)
        self._intake.restore(small)
