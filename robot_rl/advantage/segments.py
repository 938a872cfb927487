"""Statistics over the cells of a partition: sums, moments and extremes of flat rows that share a dense id.

A cell is a group, a turn, an actor, a task. Ids are dense: 0 .. n_cells - 1, where `n_cells` is given by the caller
and never read off a slice of the data. `factorise` makes dense ids out of arbitrary integers in O(N) memory.
All statistics are formed and returned in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from robot_rl.advantage.kinds import (
    Array,
    arange,
    as_array,
    boolean,
    double,
    integer,
    library,
    readable,
    require_flat,
    require_ids,
    require_rows,
    zeros,
)


def check_ids(ids: Array, n_cells: int) -> None:
    """Refuse ids outside 0 .. n_cells - 1; the values of CUDA tensors are not read.

    Args:
        ids: (N,) integers.
        n_cells: number of cells.

    Raises:
        ValueError: naming the first offending row.
    """
    require_ids("ids", ids)
    if readable(ids) and ids.shape[0] and (int(ids.min()) < 0 or int(ids.max()) >= n_cells):
        row = int(integer((ids < 0) | (ids >= n_cells)).argmax())
        raise ValueError(
            f"id {int(ids[row])} at row {row} is outside 0 .. {n_cells - 1}; expected dense ids, see factorise()"
        )


def _rows(x: Array, ids: Array, n_cells: int, weight: Array, mask: Array) -> tuple[Array, Array, Array, Array]:
    """Checked (x in float64 with masked rows 0, ids int64, weight float64 or None, mask or None)."""
    xp = library(x, ids)
    n = require_flat("x", x)
    weight = None if weight is None else as_array(weight, x)
    mask = None if mask is None else boolean(as_array(mask, x))
    require_rows(n, ids=ids, weight=weight, mask=mask)
    check_ids(ids, n_cells)
    x = double(x)
    if mask is not None:
        x = xp.where(mask, x, 0.0)  # also removes NaN below the mask, which a product with 0 would keep
    return x, integer(ids), None if weight is None else double(weight), mask


def add(x: Array, ids: Array, n_cells: int) -> Array:
    """`seg_sum` without checks, for ids that are known to be dense int64; x None counts the rows.

    Args:
        x: (N,) float64 values or None.
        ids: (N,) dense cell ids.
        n_cells: number of cells.

    Returns:
        (n_cells,) float64.
    """
    if isinstance(ids, torch.Tensor):
        if x is None:
            x = torch.ones_like(ids, dtype=torch.float64)
        return zeros(n_cells, ids).index_add(0, ids, x)
    if x is None:
        return np.bincount(ids, minlength=n_cells).astype(np.float64)
    if n_cells == 1:  # the serial chain of additions of bincount is slow and less exact than a pairwise sum
        return np.array([x.sum()])
    return np.bincount(ids, weights=x, minlength=n_cells)


def seg_sum(x: Array, ids: Array, n_cells: int, *, weight: Array = None, mask: Array = None) -> Array:
    """Weighted sum per cell; differentiable for tensors that carry a gradient.

    Args:
        x: (N,) values.
        ids: (N,) dense cell ids.
        n_cells: number of cells.
        weight: (N,) factor per row, default 1.
        mask: (N,) rows to use, default all. Values below the mask may be NaN.

    Returns:
        (n_cells,) float64; 0 for an empty cell.

    Raises:
        ValueError: shapes differ or an id lies outside the range.
    """
    x, ids, weight, _ = _rows(x, ids, n_cells, weight, mask)
    return add(x if weight is None else x * weight, ids, n_cells)


def seg_count(ids: Array, n_cells: int, *, weight: Array = None, mask: Array = None) -> Array:
    """Number of rows per cell, or the sum of their weights.

    Args:
        ids: (N,) dense cell ids.
        n_cells: number of cells.
        weight: (N,) counts of the rows, default 1.
        mask: (N,) rows to use, default all.

    Returns:
        (n_cells,) float64.

    Raises:
        ValueError: shapes differ or an id lies outside the range.
    """
    if weight is None and mask is None and isinstance(ids, np.ndarray):
        check_ids(ids, n_cells)
        return add(None, ids, n_cells)
    ones = ids * 0 + 1
    return seg_sum(ones if weight is None else weight, ids, n_cells, mask=mask)


def seg_mean(x: Array, ids: Array, n_cells: int, *, weight: Array = None, mask: Array = None) -> Array:
    """Weighted mean per cell.

    Args:
        x: (N,) values.
        ids: (N,) dense cell ids.
        n_cells: number of cells.
        weight: (N,) weights >= 0, default 1.
        mask: (N,) rows to use, default all.

    Returns:
        (n_cells,) float64; NaN for a cell without weight.

    Raises:
        ValueError: shapes differ or an id lies outside the range.
    """
    xp = library(x)
    total = seg_sum(x, ids, n_cells, weight=weight, mask=mask)
    count = seg_count(ids, n_cells, weight=weight, mask=mask)
    return xp.where(count > 0, total / xp.where(count > 0, count, 1.0), float("nan"))


def seg_var(x: Array, ids: Array, n_cells: int, *, ddof: int = 1, weight: Array = None, mask: Array = None) -> Array:
    """Variance per cell in two passes: the mean first, then the squared distances from it.

    Args:
        x: (N,) values.
        ids: (N,) dense cell ids.
        n_cells: number of cells.
        ddof: 1 divides by count - 1, 0 by count.
        weight: (N,) counts of the rows, default 1.
        mask: (N,) rows to use, default all.

    Returns:
        (n_cells,) float64; NaN where count <= ddof.

    Raises:
        ValueError: shapes differ or an id lies outside the range.
    """
    xp = library(x)
    mean = seg_mean(x, ids, n_cells, weight=weight, mask=mask)
    count = seg_count(ids, n_cells, weight=weight, mask=mask)
    square = seg_sum((double(x) - mean[integer(ids)]) ** 2, ids, n_cells, weight=weight, mask=mask)
    return xp.where(count > ddof, square / xp.where(count > ddof, count - ddof, 1.0), float("nan"))


def seg_max(x: Array, ids: Array, n_cells: int, *, mask: Array = None) -> Array:
    """Largest value per cell.

    Args:
        x: (N,) values.
        ids: (N,) dense cell ids.
        n_cells: number of cells.
        mask: (N,) rows to use, default all.

    Returns:
        (n_cells,) float64; -inf for an empty cell.

    Raises:
        ValueError: shapes differ or an id lies outside the range.
    """
    xp = library(x, ids)
    values, ids, _, mask = _rows(x, ids, n_cells, None, mask)
    if mask is not None:
        values = xp.where(mask, values, -float("inf"))
    out = zeros(n_cells, values) - float("inf")
    if isinstance(out, torch.Tensor):
        return out.scatter_reduce(0, ids, values, "amax")
    np.maximum.at(out, ids, values)
    return out


def _seg_row(ids: Array, n_cells: int, mask: Array, last: bool) -> Array:
    """(n_cells,) index of the first or last row of each cell, -1 if it has none."""
    n = require_flat("ids", ids)
    check_ids(ids, n_cells)
    xp = library(ids)
    row = arange(n, ids)
    row = row if last else n - 1 - row  # the largest of the reversed rows is the first row
    if mask is not None:
        row = xp.where(boolean(as_array(mask, ids)), row, -1)
    out = zeros(n_cells, ids, "int64") - 1
    if isinstance(out, torch.Tensor):
        out = out.scatter_reduce(0, integer(ids), row, "amax")
    else:
        np.maximum.at(out, integer(ids), row)
    return out if last else xp.where(out >= 0, n - 1 - out, out)


def _pick(x: Array, row: Array) -> Array:
    """Values at these rows in float64, NaN where the row is -1."""
    xp = library(x)
    if x.shape[0] == 0:
        return double(row) * float("nan")
    return xp.where(row >= 0, double(x)[xp.where(row >= 0, row, 0)], float("nan"))


def seg_first(x: Array, ids: Array, n_cells: int, *, mask: Array = None) -> Array:
    """Value of the first row of each cell.

    Args:
        x: (N,) values.
        ids: (N,) dense cell ids.
        n_cells: number of cells.
        mask: (N,) rows to use, default all.

    Returns:
        (n_cells,) float64; NaN for an empty cell.

    Raises:
        ValueError: an id lies outside the range.
    """
    return _pick(x, _seg_row(ids, n_cells, mask, last=False))


def seg_last(x: Array, ids: Array, n_cells: int, *, mask: Array = None) -> Array:
    """Value of the last row of each cell; arguments and result as in `seg_first`."""
    return _pick(x, _seg_row(ids, n_cells, mask, last=True))


def seg_argmax(x: Array, ids: Array, n_cells: int, *, mask: Array = None) -> Array:
    """Row of the largest value of each cell; the earliest row wins a tie.

    Args:
        x: (N,) values.
        ids: (N,) dense cell ids.
        n_cells: number of cells.
        mask: (N,) rows to use, default all.

    Returns:
        (n_cells,) int64 row; -1 for an empty cell.

    Raises:
        ValueError: shapes differ or an id lies outside the range.
    """
    best = double(x) == seg_max(x, ids, n_cells, mask=mask)[integer(ids)]
    return _seg_row(ids, n_cells, best if mask is None else best & boolean(as_array(mask, x)), last=False)


def spread(cell: Array, ids: Array, *, mask: Array = None) -> Array:
    """Hand the value of each cell to its rows.

    Args:
        cell: (n_cells,) values.
        ids: (N,) cell of each row; negative means none.
        mask: (N,) rows that receive the value, default all.

    Returns:
        (N,) dtype of `cell`; 0 where masked or outside any cell.
    """
    xp = library(cell, ids)
    inside = ids >= 0
    if mask is not None:
        inside = inside & boolean(as_array(mask, ids))
    if cell.shape[0] == 0:
        return xp.where(inside, cell.sum(), cell.sum())
    return xp.where(inside, cell[xp.where(inside, integer(ids), 0)], xp.zeros_like(cell[:1]))


def stable_order(ids: Array) -> Array:
    """Permutation that sorts dense ids and keeps the order of equal ones.

    Args:
        ids: (N,) integers >= 0.

    Returns:
        (N,) int64.
    """
    if isinstance(ids, torch.Tensor):
        return torch.argsort(ids, stable=True)
    n = ids.shape[0]
    bits = max(n - 1, 1).bit_length()
    if n == 0 or int(ids.max()).bit_length() + bits > 63:
        return np.argsort(ids, kind="stable")
    # One plain sort of (id, row) packed into a word: several times faster than a stable argsort of int64.
    packed = np.sort((ids.astype(np.int64) << bits) | np.arange(n, dtype=np.int64))
    return packed & ((1 << bits) - 1)


def factorise(*keys: Array) -> tuple[Array, int]:
    """Dense ids of rows with equal keys; any integers may come in: large, sparse, negative, unsigned hashes.

    Args:
        *keys: one or more (N,) integer arrays; rows are equal where all of them are equal.

    Returns:
        ((N,) int64 ids, number of cells). For tensors on a device, and inside `torch.compile`, the number is the bound
        N, so that nothing waits for a value; the cells above the real number are empty.

    Raises:
        ValueError: shapes differ or keys are not integers.
    """
    library(*keys)
    n = require_flat("keys", keys[0])
    for i, key in enumerate(keys):
        require_rows(n, **{f"key {i}": key})
        require_ids(f"key {i}", key)
    if isinstance(keys[0], torch.Tensor):
        if readable(keys[0]):
            ids, count = factorise(*(key.detach().numpy() for key in keys))
            return torch.from_numpy(ids), count
        return _factorise_by_order(keys), n
    if n == 0:
        return np.zeros(0, dtype=np.int64), 0
    packed = _pack(keys, n)
    return _factorise_by_hash(keys, n) if packed is None else _factorise_by_table(*packed)


def combine_ids(a: Array, b: Array) -> tuple[Array, int]:
    """Dense id of the pair (a, b) of each row, for cells such as (group, turn index).

    Args:
        a: (N,) integers.
        b: (N,) integers.

    Returns:
        ((N,) int64 ids, number of cells), as in `factorise`.

    Raises:
        ValueError: shapes differ or ids are not integers.
    """
    return factorise(a, b)


def _pack(keys: tuple[np.ndarray, ...], n: int) -> tuple[np.ndarray, int] | None:
    """All keys in one small integer and its range, or None if a table of that range would not be O(N)."""
    limit = max(4 * n, 1 << 16)
    code, span = None, 1
    for key in keys:
        low, high = int(key.min()), int(key.max())
        width = high - low + 1
        span *= width
        if span > limit:
            return None
        # An unsigned hash may exceed int64 with a small range; a small signed type would overflow.
        unsigned = key.dtype == np.uint64
        part = (key - np.uint64(low)).astype(np.int64) if unsigned else key.astype(np.int64, copy=False) - low
        code = part if code is None else code * width + part
    assert code is not None
    return code, span


def _factorise_by_table(code: np.ndarray, span: int) -> tuple[np.ndarray, int]:
    seen = np.zeros(span, dtype=bool)
    seen[code] = True
    if seen.all():
        return code, span
    number = np.cumsum(seen) - 1
    return number[code], int(number[-1]) + 1


_ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)


def _factorise_by_hash(keys: Sequence[np.ndarray], n: int) -> tuple[np.ndarray, int]:
    """Sort (hash, row) packed into one word; exact, because neighbours are compared by their true keys."""
    # A product with an odd number is a bijection whose high bits depend on all bits of the key; keys of several columns
    # are added. Should two keys share their high bits, the comparison below finds it.
    bits = np.uint64(max(n - 1, 1).bit_length())
    low = int(keys[0].min())
    lead = (int(keys[0].max()) - low).bit_length()
    grouped = len(keys) > 1 and keys[0].dtype != np.uint64 and lead <= 40 - int(bits)
    code = np.zeros(n, dtype=np.uint64)
    hashed = keys[1:] if grouped else keys
    for i, key in enumerate(hashed):
        wide = key if key.dtype == np.uint64 else key.astype(np.int64, copy=False).view(np.uint64)
        code += wide * np.uint64(_ODD[i % len(_ODD)])
    if grouped:
        # A first key of small range, the group, goes on top as it is: rows of a group lie close together in memory, and
        # so do their cells, which makes every later gather and scatter several times faster.
        code >>= np.uint64(lead)
        code |= (keys[0].astype(np.int64) - low).astype(np.uint64) << np.uint64(64 - lead)
    code >>= bits
    code <<= bits
    code |= np.arange(n, dtype=np.uint64)
    code.sort()
    order = (code & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
    code >>= bits
    new_hash = code[1:] != code[:-1]
    new_key = np.zeros(n - 1, dtype=bool)
    for key in keys:
        ordered = key[order]
        new_key |= ordered[1:] != ordered[:-1]
    if bool((new_key & ~new_hash).any()):  # two keys share a hash: they may interleave, so sort by the keys themselves
        order = np.lexsort(keys)
        new_key = np.zeros(n - 1, dtype=bool)
        for key in keys:
            ordered = key[order]
            new_key |= ordered[1:] != ordered[:-1]
    ids, number = np.empty(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    np.cumsum(new_key, out=number[1:])
    ids[order] = number
    return ids, int(number[-1]) + 1


def _factorise_by_order(keys: tuple[Array, ...]) -> Array:
    order = torch.argsort(keys[0], stable=True)
    for key in keys[1:]:
        order = order[torch.argsort(key[order], stable=True)]
    new = torch.zeros_like(order, dtype=torch.bool)
    for key in keys:
        ordered = key[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    return torch.empty_like(order).scatter(0, order, torch.cumsum(new, 0))
