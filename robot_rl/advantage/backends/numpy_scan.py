"""NumPy backend: the reverse scan in blocks, and GAE fused around it. Always present; imports no torch.

NumPy has no loop-carried vector operation, so a naive scan pays the interpreter once per time step. Three shapes are
served without that cost:

- wide (T, B): one row is already long, a plain loop over T keeps every operand in the first-level cache;
- narrow (T, B): rows are cut into blocks of consecutive time steps, the blocks are laid side by side and scanned
  together with the products of their coefficients, and one scan over the blocks (the same function, shorter) supplies
  the carries;
- flat (N,): consecutive rows become columns, are transposed, scanned side by side and linked in the same way.

Scratch memory is O(N) everywhere.
"""

from __future__ import annotations

import numpy as np

WIDE = 2000  # columns from which a plain loop over time beats the blocked form
BLOCK = 12  # time steps per block of the narrow form
COLUMN = 64  # consecutive rows per column of the flat form
TILE = 64  # time steps of the wide form that are served at a time, so that they stay in cache
FLAT_LOOP = 96  # below this length a loop over Python floats is the fastest flat scan
DENSE = 16  # more than one boundary in so many rows: masks over everything beat lists of boundaries
PRECISE = 0.998  # float32 coefficients closer to one lose whole digits of a long return: float64 from here on


def scan(x: np.ndarray, a: np.ndarray, *, overwrite: bool = False) -> np.ndarray:
    """Reverse linear scan y_t = x_t + a_t y_{t+1} along axis 0.

    A coefficient of exactly 0 cuts: what lies behind it cannot reach earlier rows, not even as NaN.

    Args:
        x: (N,) or (T, B) float32 or float64.
        a: same shape and dtype; the last row is ignored.
        overwrite: the C-ordered arguments are the caller's scratch, to be used up.

    Returns:
        y, of the shape and dtype of `x`.
    """
    if x.size == 0:
        return x.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        if not np.isfinite(x.sum()):
            return _scan_with_holes(x, a)
        y, coefficient = (x, a) if overwrite else (np.array(x, order="C"), np.array(a, order="C"))
        coefficient[-1] = 0
        _scan_in_place(y, coefficient)
    return y


def gae(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    boundary: np.ndarray,
    gamma: float,
    gae_lambda: float,
    out: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """GAE with one decision per row, deltas and returns included.

    Args:
        reward: (N,) or (T, B) float32 or float64, C-contiguous like all the others, at least one row.
        value: same shape and dtype.
        next_value: same shape and dtype; read only where `boundary`.
        terminated: same shape, bool: no bootstrap.
        boundary: same shape, bool; terminated rows and the last row count as boundaries whatever it says.
        gamma: discount per row.
        gae_lambda: trace decay per row.
        out: C-contiguous arrays for the two results, or None for new ones.

    Returns:
        (advantage, return), same shape and dtype.
    """
    advantage, target = (np.empty_like(reward), np.empty_like(reward)) if out is None else out
    if reward.dtype == np.float32 and PRECISE < gamma * gae_lambda < 1.0:
        wide = [x.astype(np.float64) for x in (reward, value, next_value)]
        advantage[...], target[...] = gae(wide[0], wide[1], wide[2], terminated, boundary, gamma, gae_lambda)
        return advantage, target
    with np.errstate(invalid="ignore", over="ignore"):
        # G_t = r_t + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1}): the scan yields returns, one pass less than deltas.
        if reward.ndim == 2 and reward.shape[1] >= WIDE:
            _gae_wide(reward, value, next_value, terminated, boundary, gamma, gae_lambda, advantage, target)
            if np.isfinite(target[0]).all():
                return advantage, target
        boundary = boundary | terminated
        a = _prepare(reward, value, next_value, terminated, boundary, gamma, gae_lambda, target, advantage)
        _scan_in_place(target, a)
        # NaN times a coefficient of 0 is NaN, so anything that is not finite has travelled to the first row.
        if not np.isfinite(target[0]).all():
            a = _prepare(reward, value, next_value, terminated, boundary, gamma, gae_lambda, target, advantage)
            target[...] = _scan_with_holes(target, a)
        return np.subtract(target, value, out=advantage), target


def _gae_wide(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    boundary: np.ndarray,
    gamma: float,
    gae_lambda: float,
    advantage: np.ndarray,
    target: np.ndarray,
) -> None:
    """The same for long rows: tile after tile of time steps, so that only inputs and outputs leave the cache.

    The few boundaries of a tile are looked up while its flags and rewards are at hand.
    """
    steps, width = reward.shape
    kind = reward.dtype.type
    np.add(reward[-1], _bootstrap(next_value[-1], terminated[-1], gamma), out=target[-1])
    np.subtract(target[-1], value[-1], out=advantage[-1])
    blend, decay, factor = kind(gamma * (1.0 - gae_lambda)), kind(gamma * gae_lambda), kind(gamma)
    size = max(min(TILE, steps - 1), 1)
    a, ends = np.empty((size, width), kind), np.empty((size, width), np.bool_)
    a.fill(decay)
    row, following = np.empty_like(target[0]), target[-1]
    multiply, add = np.multiply, np.add  # looked up, and given their output by place: calls are what a short row costs
    for high in range(steps - 1, 0, -size):
        tile = slice(max(high - size, 0), high)
        y, last = target[tile], high - tile.start
        np.logical_or(boundary[tile], terminated[tile], out=ends[:last])
        cells = np.flatnonzero(ends[:last])
        multiply(value[tile.start + 1 : high + 1], blend, y)
        add(y, reward[tile], y)
        ahead = next_value[tile].ravel()[cells]
        ahead *= factor
        ahead[terminated[tile].ravel()[cells]] = 0  # not a product: the successor of a terminal row may be NaN
        ahead += reward[tile].ravel()[cells]
        y.ravel()[cells] = ahead
        a.ravel()[cells] = 0
        for now, trace in zip(y[::-1], a[last - 1 :: -1]):
            multiply(trace, following, row)
            add(now, row, now)
            following = now
        a.ravel()[cells] = decay
        np.subtract(y, value[tile], out=advantage[tile])


def _prepare(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    boundary: np.ndarray,
    gamma: float,
    gae_lambda: float,
    x: np.ndarray,
    a: np.ndarray,
) -> np.ndarray:
    """Fill x and a (the outputs serve as scratch) with the terms and coefficients of the recursion; returns a."""
    np.multiply(value[1:], gamma * (1.0 - gae_lambda), out=x[:-1])
    a.fill(gamma * gae_lambda)
    ends = np.flatnonzero(boundary[:-1])
    if ends.size * DENSE <= boundary.size:
        x.ravel()[ends] = _bootstrap(next_value.ravel()[ends], terminated.ravel()[ends], gamma)
        a.ravel()[ends] = 0
    else:
        np.copyto(x[:-1], _bootstrap(next_value[:-1], terminated[:-1], gamma), where=boundary[:-1])
        np.copyto(a[:-1], 0, where=boundary[:-1])
    x[-1] = _bootstrap(next_value[-1], terminated[-1], gamma)
    a[-1] = 0
    x += reward
    return a


def _bootstrap(next_value: np.ndarray, terminated: np.ndarray, gamma: float) -> np.ndarray:
    # `where`, not a product: the successor of a terminal row may be NaN.
    return np.where(terminated, next_value.dtype.type(0), next_value * next_value.dtype.type(gamma))


def _scan_with_holes(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Scan with NaN or infinite rows: they spoil what depends on them and nothing behind a cut."""
    a = np.array(a, order="C")
    a[-1] = 0
    hole = ~np.isfinite(x)
    y, spoiled = np.where(hole, x.dtype.type(0), x), hole.astype(x.dtype)
    _scan_in_place(spoiled, (a != 0).astype(x.dtype))
    _scan_in_place(y, a)
    return np.where(spoiled > 0, x.dtype.type(np.nan), y)


def _scan_in_place(y: np.ndarray, a: np.ndarray) -> None:
    """Scan with the last coefficient 0; overwrites `y` with the result and `a` with scratch."""
    if y.ndim == 1:
        _scan_flat(y, a)
    elif y.shape[1] == 1:
        _scan_flat(y[:, 0], a[:, 0])
    elif y.shape[1] >= WIDE or y.shape[0] <= 2 * BLOCK:
        _scan_loop(y, a)
    else:
        _scan_blocks(y, a)


def _scan_loop(y: np.ndarray, a: np.ndarray) -> None:
    row = np.empty_like(y[0])
    following = y[-1]
    for now, factor in zip(y[-2::-1], a[-2::-1]):
        np.multiply(factor, following, out=row)
        np.add(now, row, out=now)
        following = now


def _scan_blocks(y: np.ndarray, a: np.ndarray) -> None:
    steps, width = y.shape
    blocks = steps // BLOCK
    head = steps - blocks * BLOCK
    place = y[head:].reshape(blocks, BLOCK, width).transpose(1, 0, 2)
    # The i-th steps of all blocks side by side: a copy each way is cheaper than many passes over short, scattered rows.
    value = np.ascontiguousarray(place)
    product = np.ascontiguousarray(a[head:].reshape(blocks, BLOCK, width).transpose(1, 0, 2))
    row = np.empty((blocks, width), y.dtype)
    for now, factor, ahead, further in zip(value[-2::-1], product[-2::-1], value[:0:-1], product[:0:-1]):
        np.multiply(factor, ahead, out=row)
        now += row
        factor *= further
    carry, factor = value[0].copy(), product[0].copy()
    _scan_in_place(carry, factor)
    product[:, :-1] *= carry[1:]
    value[:, :-1] += product[:, :-1]
    place[...] = value
    for t in range(head - 1, -1, -1):
        y[t] += a[t] * y[t + 1]


def _scan_flat(y: np.ndarray, a: np.ndarray) -> None:
    count = y.shape[0]
    if count <= FLAT_LOOP:
        values, factors = y.tolist(), a.tolist()
        for t in range(count - 2, -1, -1):
            values[t] += factors[t] * values[t + 1]
        y[:] = values
        return
    columns = count // COLUMN
    head = count - columns * COLUMN
    value = np.ascontiguousarray(y[head:].reshape(columns, COLUMN).T)
    product = np.ascontiguousarray(a[head:].reshape(columns, COLUMN).T)
    row = np.empty_like(value[0])
    for i in range(COLUMN - 2, -1, -1):
        np.multiply(product[i], value[i + 1], out=row)
        value[i] += row
        product[i] *= product[i + 1]
    carry, factor = value[0].copy(), product[0].copy()
    _scan_flat(carry, factor)
    product[:, :-1] *= carry[1:]
    value[:, :-1] += product[:, :-1]
    y[head:].reshape(columns, COLUMN)[:] = value.T
    if head:
        tail = y[: head + 1].tolist()
        factors = a[:head].tolist()
        for t in range(head - 1, -1, -1):
            tail[t] += factors[t] * tail[t + 1]
        y[:head] = tail[:head]
