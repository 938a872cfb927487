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

from robot_rl.advantage.arrays import check_shapes, check_unit, namespace

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
    reward: Any
    value: Any
    ahead: Any
    g: Any
    boundary: Any
    valid: Any

    def inside(self, x: Any) -> Any:
        """`x` inside episodes and 0 at boundaries: the coefficient of a recursion."""
        # `where` between two numbers would fall back to torch's default dtype.
        x = self.xp.full_like(self.reward, x) if isinstance(x, float) else x
        return self.xp.where(self.boundary, zero(self.reward), x)

    def following(self, x: Any, last: float = 0.0) -> Any:
        """x_{t+1} at row t; `last` behind the end. Values across a boundary are not masked."""
        return shift(self.xp, x, last)

    def finish(self, *results: Any) -> tuple[Any, ...]:
        """Results in the caller's dtype, 0 on padding."""
        out = []
        for x in results:
            if self.valid is not None:
                x = self.xp.where(self.valid, x, zero(x))
            out.append(x.to(self.dtype) if self.xp is torch else x.astype(self.dtype, copy=False))
        return tuple(out)


def rows(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    boundary: Any,
    *,
    gamma: float,
    trace: float = 1.0,
    duration: Any = None,
    discount: Any = None,
    valid: Any = None,
) -> PreparedRows:
    """Check and prepare the rows of an estimator.

    Args:
        reward: (rows,) or (T, N) float32 or float64.
        value: same shape, or None without a critic.
        next_value: same shape, read only at boundaries that did not terminate; None = 0.
        terminated: same shape, bool.
        boundary: same shape, bool; terminated rows and the last row count as boundaries whatever it says.
        gamma: discount per tick.
        trace: largest trace decay of the recursion; with gamma it decides whether float32 is precise enough.
        duration: same shape, integer ticks per row, or None for 1.
        discount: same shape, used in place of gamma^k.
        valid: same shape, False on padding.

    Returns:
        The prepared rows, in float64 where float32 would lose digits.

    Raises:
        ValueError: shapes, dtype or numbers outside their range.
    """
    check_unit(gamma=gamma, trace=trace)
    shape = tuple(reward.shape)
    check_shapes(shape, value=value, next_value=next_value, terminated=terminated, boundary=boundary)
    check_shapes(shape, duration=duration, discount=discount, valid=valid)
    dtype = check_float(reward)
    xp = namespace(reward)
    wide = xp.float64 if imprecise(gamma * trace) or discount is not None else dtype
    reward, value, next_value = (None if x is None else cast(x, wide) for x in (reward, value, next_value))
    terminated, boundary = flags(terminated), flags(boundary) | flags(terminated)
    if shape[0]:
        boundary[-1] = True
    if valid is not None:
        valid = flags(valid)
        boundary = boundary | ~valid
        terminated = terminated | ~valid
        reward = xp.where(valid, reward, zero(reward))
        value = None if value is None else xp.where(valid, value, zero(reward))
    # Zero, not a product, at terminal rows: their successor may be NaN.
    final = xp.zeros_like(reward) if next_value is None else xp.where(terminated, zero(reward), next_value)
    if value is None:
        value = xp.zeros_like(reward)
        ahead = xp.where(boundary, final, value)
    else:
        ahead = xp.where(boundary, final, shift(xp, value))
    if discount is not None:
        g = cast(discount, wide)
    elif duration is not None:
        g = power(gamma, duration, wide)
    else:
        g = float(gamma)
    return PreparedRows(xp, dtype, reward, value, ahead, g, boundary, valid)


def imprecise(coefficient: float) -> bool:
    """Whether float32 would round a coefficient so close to one that long returns lose digits; 1 itself is exact."""
    return PRECISE < coefficient < 1.0


def power(base: float, exponent: Any, dtype: Any) -> Any:
    """base^exponent in double, stored as `dtype`; integer exponents, base in [0, 1]."""
    if isinstance(exponent, torch.Tensor):
        return torch.pow(torch.full((), base, dtype=torch.float64, device=exponent.device), exponent).to(dtype)
    largest = int(exponent.max()) if exponent.size else 0
    if np.issubdtype(exponent.dtype, np.integer) and 0 <= largest <= TABLE:
        return np.power(float(base), np.arange(largest + 1)).astype(dtype)[exponent]
    return np.power(float(base), exponent).astype(dtype)


def shift(xp: ModuleType, x: Any, last: float = 0.0) -> Any:
    """x_{t+1} at row t along axis 0, `last` in the last row."""
    if xp is torch:
        return torch.cat((x[1:], torch.full_like(x[:1], last)))
    out = np.empty_like(x)
    out[:-1] = x[1:]
    out[-1:] = last
    return out


def place(x: Any, rows: Any, values: Any) -> Any:
    """`x` with other values in some rows: in place for arrays, as a differentiable copy for tensors."""
    if isinstance(x, torch.Tensor):
        return x.index_copy(0, rows, values)
    x[rows] = values
    return x


def zero(x: Any) -> Any:
    """Zero that does not widen the dtype of `x`."""
    return 0.0 if isinstance(x, torch.Tensor) else x.dtype.type(0)


def cast(x: Any, dtype: Any) -> Any:
    """`x` in a dtype, no copy if it has it."""
    return x.to(dtype) if isinstance(x, torch.Tensor) else np.asarray(x).astype(dtype, copy=False)


def flags(x: Any) -> Any:
    """`x` as booleans."""
    return x.bool() if isinstance(x, torch.Tensor) else np.asarray(x).astype(np.bool_, copy=False)


_FLOATS = (torch.float32, torch.float64, np.dtype(np.float32), np.dtype(np.float64))


def check_float(x: Any, name: str = "reward") -> Any:
    """Check for a dtype that the recursions support.

    Returns:
        The dtype.

    Raises:
        ValueError: anything but float32 and float64.
    """
    if x.dtype not in _FLOATS:
        raise ValueError(f"{name} is {x.dtype}, expected float32 or float64; convert it first")
    return x.dtype
