"""One float32 record per transition: [s | a | s' | reward | discount | flags | extras].

A batch of state observations is then a single gather, and every field of `Transitions` is a view of it. The flags are
four bytes inside one float32 slot (terminated, truncated, no transition, intervened), so that they leave as booleans
without any arithmetic. Images, tokens and very large vectors do not live in the record: they are frames (`frames.py`),
referred to by number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from robot_rl.data.arrays import Arrays, Store
from robot_rl.types import IOSpec, Obs, Transitions

LARGEST_STATE = 4096
"""Float observations with more components are kept as frames: stored once instead of twice."""


@dataclass(frozen=True)
class StateField:
    """Where one vector observation lies in the record."""

    key: str
    shape: tuple[int, ...]
    here: slice
    successor: slice


class RecordLayout:
    """Offsets of a transition's fields for one interface.

    Args:
        io: the interface; float observations go into the record, all others become frames.
        extras: name -> shape of further float32 columns.
        largest: components of a float observation that goes into the record.

    Raises:
        ValueError: an extra has the name of a field.
    """

    def __init__(self, io: IOSpec, extras: dict[str, tuple[int, ...]], largest: int = LARGEST_STATE) -> None:
        self.io = io
        states, self.frames = {}, {}
        for key, (shape, dtype) in io.obs.items():
            if dtype.startswith("float") and math.prod(shape) <= largest:
                states[key] = tuple(shape)
            else:
                self.frames[key] = (tuple(shape), dtype)
        total = sum(math.prod(shape) for shape in states.values())
        self.action_dim = io.action_dim
        self.action = slice(total, total + io.action_dim)
        self.states: list[StateField] = []
        start = 0
        for key, shape in states.items():
            stop, shift = start + math.prod(shape), self.action.stop
            self.states.append(StateField(key, shape, slice(start, stop), slice(start + shift, stop + shift)))
            start = stop
        self.reward = self.action.stop + total
        self.discount = self.reward + 1
        self.flags = self.reward + 2
        self.tail = slice(self.discount, self.flags + 1)
        """discount and flags side by side: the same two numbers for every row inside an episode."""
        end = self.flags + 1
        self.extras: dict[str, tuple[tuple[int, ...], slice]] = {}
        for name, shape in extras.items():
            if name in Transitions.__dataclass_fields__:
                raise ValueError(f"extra '{name}' has the name of a field of Transitions; choose another")
            self.extras[name] = (tuple(shape), slice(end, end + math.prod(shape)))
            end += math.prod(shape)
        self.width = end

    def facts(self) -> dict[str, object]:
        """What has to be the same where records of another store are taken over; plain values."""
        return {
            "obs": {key: [list(shape), dtype] for key, (shape, dtype) in self.io.obs.items()},
            "action_dim": self.action_dim,
            "extras": {name: list(shape) for name, (shape, _) in self.extras.items()},
        }

    def write(self, rows: Store, obs: Obs, successor: Obs, action: Any, reward: Any) -> None:
        """Observations (n, ...), actions (n, A) and rewards (n,) of records (n, width); in place."""
        for state in self.states:
            rows[:, state.here], rows[:, state.successor] = obs[state.key], successor[state.key]
        rows[:, self.action], rows[:, self.reward] = action, reward

    def write_end(self, arrays: Arrays, rows: Store, discount: Any, *flags: Any) -> None:
        """Discount and the first of the flags, in their order, of records (..., width); in place."""
        rows[..., self.discount] = discount
        view = self.read_flags(arrays, rows)
        for place, flag in enumerate(flags):
            view[..., place] = flag

    def read_flags(self, arrays: Arrays, rows: Store) -> Store:
        """(..., 4) bool view of the flags of records (..., width)."""
        return arrays.view(rows[..., self.flags : self.flags + 1], "bool")

    def unpack(
        self, arrays: Arrays, first: Store, last: Store, reward: Store, discount: Store, mask: Any, frames: tuple
    ) -> Transitions:
        """Cut gathered records into the fields of `Transitions`, as views.

        Args:
            arrays: kind of memory of the records.
            first: (..., width) records that the samples start from.
            last: (..., width) records that the samples end with; `first` itself for single steps.
            reward: (...).
            discount: (...).
            mask: (...) bool tensor.
            frames: observations and successors that do not live in the record.
        """
        tensor = arrays.tensor
        obs: Obs = dict(frames[0])
        successor: Obs = dict(frames[1])
        for state in self.states:
            here, there = first[..., state.here], last[..., state.successor]
            if len(state.shape) != 1:
                here = here.reshape(*here.shape[:-1], *state.shape)
                there = there.reshape(*there.shape[:-1], *state.shape)
            obs[state.key] = tensor(here)
            successor[state.key] = tensor(there)
        flags = self.read_flags(arrays, last)
        started = flags if first is last else self.read_flags(arrays, first)
        return Transitions(
            obs,
            tensor(first[..., self.action]),
            tensor(reward),
            tensor(discount),
            successor,
            tensor(flags[..., 0]),
            tensor(flags[..., 1]),
            tensor(started[..., 3]),
            mask,
            {
                name: tensor(first[..., where].reshape(*first.shape[:-1], *shape))
                for name, (shape, where) in self.extras.items()
            },
        )
