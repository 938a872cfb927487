"""Rows of transitions ready for a recursion: successors, discounts and cuts, the same for every temporal estimator.

Time is on axis 0. A flat ragged batch (rows,) and a time-major one (T, N) are the same thing here: the row after row t
along axis 0 is its successor unless t is a boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from robot_rl.advantage.arrays import Columns, check_shapes, check_unit, namespace
from robot_rl.advantage.kinds import Array

PRECISE = 0.998  # float32 coefficients closer to one lose whole digits of a long return: float64 from here on
TABLE = 4096  # durations up to this many ticks are looked up instead of raised to a power


@dataclass(frozen=True)
class PreparedRows:
    """Prepared arrays of one shape; `finish` brings results back to the caller's dtype.

    Attributes:
        xp: numpy or torch.
        dtype: dtype of the results.
        reward: r, 0 on invalid rows.
        value: V(s_t), 0 on invalid rows and everywhere if there is no critic.
        ahead: (1 - e) V', the successor's value after termination is accounted for.
        g: gamma^k as an array or a number.
        boundary: terminated, truncated, last row of a fragment, or padding.
        valid: False on padding, or None.
    """

    xp: ModuleType
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
        x = self.xp.full_like(self.reward, x) if isinstance(x, float) else x
        return self.xp.where(self.boundary, zero(self.reward), x)

    def following(self, x: Array, last: float = 0.0) -> Array:
        """x_{t+1} at row t; `last` behind the end. Values across a boundary are not masked."""
        return shift(self.xp, x, last)

    def finish(self, *results: Array) -> tuple[Array, ...]:
        """Results in the caller's dtype, 0 on padding."""
        out = []
        for x in results:
            if self.valid is not None:
                x = self.xp.where(self.valid, x, zero(x))
            out.append(x.to(self.dtype) if self.xp is torch else x.astype(self.dtype, copy=False))
        return tuple(out)


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
    reward, value, valid, next_value = rows.reward, rows.value, rows.valid, rows.next_value
    dtype, shape = check_float(reward), tuple(reward.shape)
    xp = namespace(reward)
    wide = xp.float64 if imprecise(gamma * trace) or rows.discount is not None else dtype
    reward, value, next_value = (None if x is None else to_dtype(x, wide) for x in (reward, value, next_value))
    terminated, boundary = flags(rows.terminated), flags(rows.boundary) | flags(rows.terminated)
    if shape[0]:
        boundary[-1] = True
    if valid is not None:
        used = valid = flags(valid)
        boundary = boundary | ~used
        terminated = terminated | ~used
        reward = xp.where(used, reward, zero(reward))
        value = None if value is None else xp.where(used, value, zero(reward))
    # Zero, not a product, at terminal rows: their successor may be NaN.
    final = xp.zeros_like(reward) if next_value is None else xp.where(terminated, zero(reward), next_value)
    if value is None:
        value = xp.zeros_like(reward)
        ahead = xp.where(boundary, final, value)
    else:
        ahead = xp.where(boundary, final, shift(xp, value))
    if rows.discount is not None:
        g = to_dtype(rows.discount, wide)
    elif rows.duration is not None:
        g = power(gamma, rows.duration, wide)
    else:
        g = float(gamma)
    return PreparedRows(xp, dtype, reward, value, ahead, g, boundary, valid)


def check_rows(rows: RolloutRows) -> None:
    """Check that every column has the shape of the reward.

    Raises:
        ValueError: naming the first that differs.
    """
    check_shapes(tuple(rows.reward.shape), **vars(rows))


def imprecise(coefficient: float) -> bool:
    """Whether float32 would round a coefficient so close to one that long returns lose digits; 1 itself is exact."""
    return PRECISE < coefficient < 1.0


def power(base: float, exponent: Array, dtype: Any) -> Array:
    """base^exponent in double, stored as `dtype`; integer exponents, base in [0, 1]."""
    if isinstance(exponent, torch.Tensor):
        return torch.pow(torch.full((), base, dtype=torch.float64, device=exponent.device), exponent).to(dtype)
    largest = int(exponent.max()) if exponent.size else 0
    if np.issubdtype(exponent.dtype, np.integer) and 0 <= largest <= TABLE:
        return np.power(float(base), np.arange(largest + 1)).astype(dtype)[exponent]
    return np.power(float(base), exponent).astype(dtype)


def shift(xp: ModuleType, x: Array, last: float = 0.0) -> Array:
    """x_{t+1} at row t along axis 0, `last` in the last row."""
    if xp is torch:
        return torch.cat((x[1:], torch.full_like(x[:1], last)))
    out = np.empty_like(x)
    out[:-1] = x[1:]
    out[-1:] = last
    return out


def place(x: Array, rows: Array, values: Array) -> Array:
    """`x` with other values in some rows: in place for arrays, as a differentiable copy for tensors."""
    if isinstance(x, torch.Tensor):
        return x.index_copy(0, rows, values)
    x[rows] = values
    return x


def zero(x: Array) -> Array:
    """Zero that does not widen the dtype of `x`."""
    return 0.0 if isinstance(x, torch.Tensor) else x.dtype.type(0)


def to_dtype(x: Array, dtype: Any) -> Array:
    """`x` in a dtype, no copy if it has it."""
    return x.to(dtype) if isinstance(x, torch.Tensor) else np.asarray(x).astype(dtype, copy=False)


def flags(x: Array) -> Array:
    """`x` as booleans."""
    return x.bool() if isinstance(x, torch.Tensor) else np.asarray(x).astype(np.bool_, copy=False)


_FLOATS = (torch.float32, torch.float64, np.dtype(np.float32), np.dtype(np.float64))


def check_float(x: Array, name: str = "reward") -> Array:
    """Check for a dtype that the recursions support.

    Returns:
        The dtype.

    Raises:
        ValueError: anything but float32 and float64.
    """
    if x.dtype not in _FLOATS:
        raise ValueError(f"{name} is {x.dtype}, expected float32 or float64; convert it first")
    return x.dtype
