"""What training saw, as quantiles: of a log, a buffer, or all rollouts. No generator is drawn from."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from robot_rl.types import Array, IOSpec, Obs, Seen, StateDict
from robot_rl.types.io import CELLS, mosaic

MOST = 50_000
"""Rows that quantiles are taken of, evenly spaced over those that are there."""
MOST_PICTURES = 256
"""The same of pictures."""


class Looked(Protocol):
    """What can be looked at without being changed."""

    def look(self, most: int) -> tuple[Obs, Any, int]:
        """Observations and actions of evenly spaced rows, at most `most`, and how many steps there are in all.

        Pictures are (n, H, W, 3) of at most MOST_PICTURES rows, or their mosaics (n, 48).
        """
        ...


class RowSample:
    """Rows of rollouts, evenly spread over all that there ever were, in little room.

    Row i is kept where frac(i / golden ratio) is below a share that is halved whenever the room is full: a Weyl
    sequence, which spreads evenly over time and over environments alike, whatever their number.

    Args:
        most: rows; fewer where they are wide, so that all of them take some 8 MB at most.

    Source: Knuth, The Art of Computer Programming 3, section 6.4 (multiplicative hashing).
    """

    def __init__(self, most: int = 16_384) -> None:
        self._most, self._count, self._share = most, 0, 1 << 32
        self._mark = np.zeros(0, np.uint64)
        self._parts: dict[str, list[Tensor]] = {}

    def add(self, obs: Obs, action: Array, valid: Array) -> None:
        """A rollout: columns (T, N, ...) of observations, of actions, and of which rows count.

        Vectors are kept, and the mosaics of pictures.
        """
        size = valid.shape[0] * valid.shape[1]
        mark = (np.arange(self._count, self._count + size, dtype=np.uint64) * 2_654_435_769) & 0xFFFF_FFFF
        self._count += size
        kept = mark < self._share
        where = torch.as_tensor(np.flatnonzero(kept))
        seen = {f"obs.{key}": value for key, value in obs.items() if value.ndim == 3 or _looks(value.shape[2:])}
        for key, value in {**seen, "action": action, "valid": valid}.items():
            rows = torch.as_tensor(value).flatten(0, 1)
            rows = rows[where.to(rows.device)]
            rows = torch.as_tensor(mosaic(rows.cpu().numpy())) if _looks(value.shape[2:]) else rows.float()
            self._parts.setdefault(key, []).append(rows)
        self._mark = np.concatenate([self._mark, mark[kept]])
        width = sum(parts[0].shape[-1] for key, parts in self._parts.items() if key != "valid")
        while len(self._mark) > min(self._most, max(2_000_000 // width, 1024)):
            self._share //= 2
            kept = self._mark < self._share
            self._mark, where = self._mark[kept], torch.as_tensor(np.flatnonzero(kept))
            self._parts = {key: [rows[where.to(rows.device)]] for key, rows in self._join().items()}

    def look(self, most: int) -> tuple[Obs, Any, int]:
        """See `Looked`."""
        if not self._count:
            return {}, None, 0
        columns = self._join()
        valid = columns.pop("valid").bool()
        rows = {key: value[valid].cpu() for key, value in columns.items()}
        action = rows.pop("action").clamp(-1.0, 1.0)
        return {key.removeprefix("obs."): value for key, value in rows.items()}, action, self._count

    def state_dict(self) -> StateDict:
        """The rows and where it stands."""
        rows = {key: value.cpu() for key, value in self._join().items()}
        return {"count": self._count, "share": self._share, "mark": self._mark.astype(np.int64), "rows": rows}

    def load_state_dict(self, state: StateDict) -> None:
        """Go on as the one that `state_dict` was taken of."""
        self._count, self._share = int(state["count"]), int(state["share"])
        self._mark = np.asarray(state["mark"]).astype(np.uint64)
        self._parts = {key: [torch.as_tensor(value)] for key, value in state["rows"].items()}

    def _join(self) -> dict[str, Tensor]:
        return {key: torch.cat([part.to(parts[-1].device) for part in parts]) for key, parts in self._parts.items()}


class StepSample(RowSample):
    """The same of a loop that hands over steps, which are joined to rollouts of `BLOCK` steps."""

    BLOCK = 256

    def __init__(self, most: int = 16_384) -> None:
        super().__init__(most)
        self._steps: list[tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]] = []

    def step(self, obs: Obs, action: np.ndarray, valid: np.ndarray | None = None) -> None:
        """A step of all copies: what was acted on (N, ...), the action (N, A), and which rows count (N,), or all."""
        vectors = {key: np.array(value) for key, value in obs.items() if np.ndim(value) == 2}
        vectors |= {key: mosaic(value) for key, value in obs.items() if _looks(np.shape(value)[1:])}
        mask = np.ones(len(action), bool) if valid is None else np.array(valid, bool)
        self._steps.append((vectors, np.array(action), mask))
        if len(self._steps) == self.BLOCK:
            self._flush()

    def look(self, most: int) -> tuple[Obs, Any, int]:
        """See `Looked`."""
        self._flush()
        return super().look(most)

    def state_dict(self) -> StateDict:
        """The rows and where it stands."""
        self._flush()
        return super().state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Go on as the one that `state_dict` was taken of."""
        self._steps.clear()
        super().load_state_dict(state)

    def _flush(self) -> None:
        if not self._steps:
            return
        obs, actions, valid = zip(*self._steps, strict=True)
        self._steps.clear()
        self.add({key: np.stack([step[key] for step in obs]) for key in obs[0]}, np.stack(actions), np.stack(valid))


def measure_seen(source: Looked | None, io: IOSpec, *, count: int | None = None) -> Seen | None:
    """Quantiles of every component of vector observations and actions; None where there is nothing yet.

    Args:
        source: what the learner draws from.
        io: names the observations and the rate.
        count: steps that training saw where the source kept the newest alone.
    """
    if source is None:
        return None
    obs, action, held = source.look(MOST)
    if not held:
        return None
    vectors = [key for key, (shape, dtype) in io.acting.obs.items() if dtype.startswith("float") and len(shape) == 1]
    rows = {key: _flat(obs[key]) for key in vectors if key in obs}
    views = {key: _mosaics(obs[key]) for key, (shape, _) in io.obs.items() if _looks(shape) and key in obs}
    return Seen.of(rows, _flat(action), count=held if count is None else count, rate=io.control_hz, pictures=views)


def space_rows(count: int, most: int) -> np.ndarray:
    """(n,) int64 numbers below `count`, evenly spaced, n at most `most`."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64) if count else np.zeros(0, np.int64)


def _host(value: object) -> np.ndarray:
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)


def _flat(value: object) -> np.ndarray:
    rows = _host(value)
    return rows.reshape(-1, rows.shape[-1])


def _looks(shape: tuple[int, ...]) -> bool:
    """Whether an observation of this shape is a picture in colours of which a mosaic can be made."""
    return len(shape) == 3 and shape[2] == 3 and min(shape[:2]) >= CELLS


def _mosaics(value: object) -> np.ndarray:
    rows = _host(value)
    return rows if rows.ndim == 2 else mosaic(rows)
