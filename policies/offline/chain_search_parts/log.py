"""Windows of a log as angles, speeds and torques of a chain, each recording with lags and delays of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.types import IOSpec, StateDict, Transitions

MARGIN = 5
"""Steps at both ends of a window that shifted signals may need."""
_MOST_LAG = 4.0


@dataclass(frozen=True)
class StateLayout:
    """Where the state vector holds what.

    Attributes:
        sine: (n) columns of sin q_i.
        cosine: (n) columns of cos q_i.
        speed: (n) columns of the speeds, each in a unit of its own.
    """

    sine: tuple[int, ...]
    cosine: tuple[int, ...]
    speed: tuple[int, ...]

    @staticmethod
    def of(size: int, sine: Any = None, cosine: Any = None, speed: Any = None) -> StateLayout:
        """Given columns, or [sin q_1, cos q_1, ..., sin q_n, cos q_n, v_1 ... v_n].

        Raises:
            ValueError: no such layout fits `size`.
        """
        given = [tuple(int(i) for i in part) if part is not None else None for part in (sine, cosine, speed)]
        n = size // 3
        chosen = [
            a if a is not None else b
            for a, b in zip(given, (tuple(range(0, 2 * n, 2)), tuple(range(1, 2 * n, 2)), tuple(range(2 * n, 3 * n))))
        ]
        flat = [i for part in chosen for i in part]
        fits = len({len(part) for part in chosen}) == 1 and len(set(flat)) == len(flat) and chosen[0]
        if not fits or min(flat) < 0 or max(flat) >= size or (None in given and size != 3 * n):
            raise ValueError(
                f"sine, cosine and speed are {given} of a state of {size} numbers; expected one column of each per "
                "joint, or none of the three for [sin q1, cos q1, ..., sin qn, cos qn, v1 ... vn]"
            )
        return StateLayout(*chosen)

    @property
    def joints(self) -> int:
        """How many."""
        return len(self.sine)

    def angles(self, state: Tensor) -> Tensor:
        """(..., n) joint angles in (-pi, pi]."""
        return torch.atan2(state[..., list(self.sine)], state[..., list(self.cosine)])


class Windows:
    """A pool of windows from a log: what the model is fitted on and judged by.

    Angles are unwrapped along each window. Speeds are those of the log, scaled so that they integrate to the angles.
    """

    def __init__(self, io: IOSpec, layout: StateLayout, assist: tuple[str, ...], count: int, length: int) -> None:
        """Room for `count` windows of `length` steps."""
        self.io, self.layout, self.assist, self.count, self.length = io, layout, assist, count, length
        self.rows: list[dict[str, Tensor]] = []

    @property
    def full(self) -> bool:
        """No more are wanted."""
        return sum(len(part["episode"]) for part in self.rows) >= self.count

    def add(self, batch: Transitions) -> None:
        """Take over windows of at least 3 margins.

        Raises:
            ValueError: windows of another length, or a log without the columns.
        """
        state = batch.obs["state"]
        if state.ndim != 3 or state.shape[1] != self.length:
            raise ValueError(
                f"states have shape {tuple(state.shape)}, expected (B, {self.length}, n): draw windows of that length"
            )
        missing = [name for name in ("episode", *self.assist) if name not in batch.extras]
        if missing:
            raise ValueError(f"the batch lacks the extras {', '.join(missing)}, which this method reads of a log")
        length = batch.mask.sum(1)
        keep = length > 3 * MARGIN
        extra = [batch.extras[name][keep].double() for name in self.assist]
        episode = batch.extras["episode"]
        self.rows.append(
            {
                "state": state[keep].double(),
                "action": batch.action[keep].double().clamp(-1.0, 1.0),
                "reward": batch.reward[keep].double(),
                "length": length[keep],
                "episode": (episode[:, 0] if episode.ndim == 2 else episode)[keep],
                "assist": torch.stack(extra, -1) if extra else state.new_zeros(*state[keep].shape[:2], 0).double(),
            }
        )

    def join_columns(self) -> dict[str, Tensor]:
        """Every column as one tensor."""
        return {name: torch.cat([part[name] for part in self.rows]) for name in self.rows[0]} if self.rows else {}

    def state_dict(self) -> StateDict:
        """The windows so far."""
        return {"rows": self.join_columns()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue with the saved windows."""
        self.rows = [dict(state["rows"])] if state["rows"] else []


@dataclass
class Signals:
    """Windows as signals of the chain.

    Attributes:
        q: (W, L, n) angles [rad], continuous in time.
        v: (W, L, n) speeds [rad/s] as logged, scaled.
        action: (W, L, A).
        assist: (W, L, k) further joint torques, in units of the first action.
        reward: (W, L).
        length: (W,) valid steps.
        recording: (W,) 0 ... E - 1.
        lag: (E, n) steps by which logged speeds lag behind the angles.
        scale: (n) rad/s of one unit of the state's speeds.
        episodes: (E,) the log's own numbers of the recordings.
    """

    q: Tensor
    v: Tensor
    action: Tensor
    assist: Tensor
    reward: Tensor
    length: Tensor
    recording: Tensor
    lag: Tensor
    scale: Tensor
    episodes: Tensor
    period: float
    now: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.now = shift(self.v, self.lag[self.recording])

    def torque(self, driven: Sequence[int], delay: Tensor) -> Tensor:
        """(W, L, n) joint torques in units of the action: step t is what acted between samples t and t + 1.

        Args:
            driven: joint of every action; the assisting torques belong to the other joints, in order.
            delay: (E,) steps from command to torque, of every recording.
        """
        n = self.q.shape[-1]
        out = torch.zeros(*self.q.shape[:2], n, dtype=self.q.dtype)
        rest = [i for i in range(n) if i not in driven]
        for k, joint in enumerate(driven):
            out[..., joint] = self.action[..., k]
        for k in range(self.assist.shape[-1]):
            out[..., rest[k]] = self.assist[..., k]
        by = -delay[self.recording][:, None].expand(-1, n)
        return shift(out, by)


def shift(value: Tensor, by: Tensor) -> Tensor:
    """value(t + by) of (W, L, n) signals, (W, n) steps, linear between samples and constant outside."""
    length = value.shape[1]
    at = (torch.arange(length, dtype=value.dtype)[None, :, None] + by[:, None, :]).clamp(0, length - 1)
    low = at.floor().long().clamp(max=length - 2) if length > 1 else at.long()
    share = at - low
    return (1.0 - share) * value.gather(1, low) + share * value.gather(1, (low + 1).clamp(max=length - 1))


def signals(windows: Windows, known: tuple[Tensor, Tensor] | None = None) -> Signals:
    """Angles, speeds and torques of the pool, with the scale of the speeds and their lag in every recording.

    Over ten steps the angle has to change by the integral of the speed, so that a regression of the one on the other
    and on the change of speed gives scale and lag: q(t + k) - q(t) = scale (int v + lag (v(t + k) - v(t))).

    Args:
        windows: the pool.
        known: scale (n) and lag (E, n) if they were found before.

    Raises:
        ValueError: speeds do not integrate to the angles.
    """
    raw, layout, period = windows.join_columns(), windows.layout, 1.0 / windows.io.control_hz
    q = torch.from_numpy(np.unwrap(layout.angles(raw["state"]).numpy(), axis=1))
    v = raw["state"][..., list(layout.speed)]
    episodes, recording = raw["episode"].unique(return_inverse=True)
    if known is None:
        known = _scale_and_lag(q, v, raw["length"], recording, len(episodes), period, layout)
    scale, lag = known
    return Signals(
        q=q,
        v=v * scale,
        action=raw["action"],
        assist=raw["assist"] / windows.io.bounds[1][0],
        reward=raw["reward"],
        length=raw["length"],
        recording=recording,
        lag=lag,
        scale=scale,
        episodes=episodes,
        period=period,
    )


def _scale_and_lag(
    q: Tensor, v: Tensor, length: Tensor, recording: Tensor, count: int, period: float, layout: StateLayout
) -> tuple[Tensor, Tensor]:
    reach, n = min(10, q.shape[1] - 1), layout.joints
    inside = torch.arange(q.shape[1] - reach)[None] + reach < length[:, None]
    way = q[:, reach:] - q[:, :-reach]
    total = torch.cumsum(0.5 * (v[:, 1:] + v[:, :-1]) * period, 1)
    total = torch.cat([torch.zeros_like(v[:, :1]), total], 1)
    integral, change = total[:, reach:] - total[:, :-reach], v[:, reach:] - v[:, :-reach]
    scale, lag = torch.ones(n, dtype=torch.float64), torch.zeros(count, n, dtype=torch.float64)
    for i in range(n):
        moved, turned = way[..., i][inside], integral[..., i][inside]
        both = torch.stack([turned, change[..., i][inside]], 1)
        scale[i] = torch.linalg.lstsq(both, moved[:, None]).solution[0, 0]
        left = (moved - turned * scale[i]).std()
        if not scale[i].isfinite() or float(left) > 0.5 * float(moved.std()):
            raise ValueError(
                f"the speed of joint {i + 1} (column {layout.speed[i]}) does not integrate to its angle; check sine, "
                "cosine and speed, the columns of the state"
            )
        for e in range(count):
            rows = inside & (recording == e)[:, None]
            a, b = (integral[..., i][rows]) * scale[i], change[..., i][rows] * scale[i]
            lag[e, i] = ((way[..., i][rows] - a) * b).sum() / b.square().sum().clamp(min=1e-9) / period
    return scale, lag.clamp(-1.0, _MOST_LAG)
