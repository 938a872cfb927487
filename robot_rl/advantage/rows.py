"""Rows of transitions ready for a recursion: successors, discounts and cuts, the same for every temporal estimator.

Time is on axis 0. A flat ragged batch (rows,) and a time-major one (T, N) are the same thing here: the row after row t
along axis 0 is its successor unless t is a boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from robot_rl.advantage.arrays import Columns, check_shapes, check_unit
from robot_rl.advantage.kinds import Array

PRECISE = 0.998  # float32 coefficients closer to one lose whole digits of a long return: float64 from here on


@dataclass(frozen=True)
class PreparedRows:
    """Prepared arrays of one shape; `finish` brings results back to the caller's dtype.

    Attributes:
        dtype: dtype of the results.
        reward: r, 0 on invalid rows.
        value: V(s_t), 0 on invalid rows and everywhere if there is no critic.
        ahead: (1 - e) V', the successor's value after termination is accounted for.
        g: gamma^k as an array or a number.
        boundary: terminated, truncated, last row of a fragment, or padding.
        valid: False on padding, or None.
    """

    dtype: Any
    reward: Array
    value: Array
    ahead: Array
    g: Array
    boundary: Array
    valid: Array

    def inside(self, x: Array) -> Array:
        """`x` inside episodes and 0 at boundaries: the coefficient of a recursion."""
        # `where` between two numbers would fall back to torch's default dtype.
        x = torch.full_like(self.reward, x) if isinstance(x, float) else x
        return torch.where(self.boundary, 0.0, x)

    def finish(self, *results: Array) -> tuple[Array, ...]:
        """Results in the caller's dtype, 0 on padding."""
        return tuple((x if self.valid is None else torch.where(self.valid, x, 0.0)).to(self.dtype) for x in results)


@dataclass(frozen=True)
class RolloutRows(Columns):
    """What the temporal estimators read of a rollout: arrays of one shape, time on axis 0.

    Attributes:
        reward: (rows,) flat or (T, N) time-major, float32 or float64; rows of one episode follow one another along axis
            0. With durations it is the discounted sum over the k ticks of the decision (`macro_reward`).
        value: V(s_t) before the step, or None without a critic.
        next_value: V of the true successor before any reset, read only at boundaries that did not terminate; None = 0.
        terminated: bool, true end: no bootstrap.
        boundary: bool, terminated, truncated or last row of a fragment. Terminated rows and the last row count as
            boundaries whatever it says.
        duration: integer k >= 1 ticks per decision, or None for 1 everywhere.
        discount: used in place of gamma^k, or None.
        valid: bool, False on padding, whose content is ignored and whose results are 0; None = all rows count.
    """

    reward: Array
    value: Array | None
    next_value: Array | None
    terminated: Array
    boundary: Array
    duration: Array | None = None
    discount: Array | None = None
    valid: Array | None = None


def prepare(rows: RolloutRows, *, gamma: float, trace: float = 1.0) -> PreparedRows:
    """Check and prepare the rows of an estimator.

    Args:
        rows: the rollout.
        gamma: discount per tick.
        trace: largest trace decay of the recursion; with gamma it decides whether float32 is precise enough.

    Returns:
        The prepared rows, in float64 where float32 would lose digits.

    Raises:
        ValueError: shapes, dtype or numbers outside their range.
    """
    check_unit(gamma=gamma, trace=trace)
    check_rows(rows)
    dtype = check_float(rows.reward)
    wide = torch.float64 if imprecise(gamma * trace) or rows.discount is not None else dtype
    reward, valid = rows.reward.to(wide), rows.valid
    value = torch.zeros_like(reward) if rows.value is None else rows.value.to(wide)
    next_value = torch.zeros_like(reward) if rows.next_value is None else rows.next_value.to(wide)
    terminated = rows.terminated.bool()
    boundary = torch.logical_or(rows.boundary, terminated)
    boundary[-1:] = True
    if valid is not None:
        valid = valid.bool()
        boundary, terminated = boundary | ~valid, terminated | ~valid
        reward, value = torch.where(valid, reward, 0.0), torch.where(valid, value, 0.0)
    # Zero, not a product, at terminal rows: their successor may be NaN.
    ahead = torch.where(boundary, torch.where(terminated, 0.0, next_value), shift(value))
    if rows.discount is not None:
        g = rows.discount.to(wide)
    elif rows.duration is not None:
        g = power(gamma, rows.duration, wide)
    else:
        g = float(gamma)
    return PreparedRows(dtype, reward, value, ahead, g, boundary, valid)


def check_rows(rows: RolloutRows) -> None:
    """Check that every column has the shape of the reward.

    Raises:
        ValueError: naming the first that differs.
    """
    check_shapes(tuple(rows.reward.shape), **vars(rows))


def imprecise(coefficient: float) -> bool:
    """Whether float32 would round a coefficient so close to one that long returns lose digits; 1 itself is exact."""
    return PRECISE < coefficient < 1.0


def power(base: float, exponent: Array, dtype: torch.dtype) -> Array:
    """base^exponent in double, stored as `dtype`; integer exponents, base in [0, 1]."""
    return torch.pow(torch.full((), base, dtype=torch.float64, device=exponent.device), exponent).to(dtype)


def shift(x: Array, last: float = 0.0) -> Array:
    """x_{t+1} at row t along axis 0, `last` in the last row."""
    return torch.cat((x[1:], torch.full_like(x[:1], last)))


def check_float(x: Array, name: str = "reward") -> Array:
    """Check for a dtype that the recursions support.

    Returns:
        The dtype.

    Raises:
        ValueError: anything but float32 and float64.
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} is {x.dtype}, expected float32 or float64; convert it first")
    return x.dtype
