"""Statistics over the cells of a partition: sums, moments and extremes of flat rows that share a dense id.

A cell is a group, a turn, an actor, a task. Ids are dense: 0 .. n_cells - 1, where `n_cells` is given by the caller
and never read off a slice of the data. `factorise` makes dense ids out of arbitrary integers in O(N) memory.
All statistics are formed and returned in float64.
"""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    readable,
    require_flat,
    require_ids,
    require_rows,
)


@in_torch
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
        row = int(((ids < 0) | (ids >= n_cells)).long().argmax())
        raise ValueError(
            f"id {int(ids[row])} at row {row} is outside 0 .. {n_cells - 1}; expected dense ids, see factorise()"
        )


def _rows(x: Array, ids: Array, n_cells: int, weight: Array, mask: Array) -> tuple[Array, Array, Array, Array]:
    """Checked (x in float64 with masked rows 0, ids int64, weight float64 or None, mask or None)."""
    n = require_flat("x", x)
    mask = None if mask is None else mask.bool()
    require_rows(n, ids=ids, weight=weight, mask=mask)
    check_ids(ids, n_cells)
    x = x.double()
    if mask is not None:
        x = torch.where(mask, x, 0.0)  # also removes NaN below the mask, which a product with 0 would keep
    return x, ids.long(), None if weight is None else weight.double(), mask


@in_torch
def add(x: Array, ids: Array, n_cells: int) -> Array:
    """`seg_sum` without checks, for ids that are known to be dense int64; x None counts the rows.

    Args:
        x: (N,) float64 values or None.
        ids: (N,) dense cell ids.
        n_cells: number of cells.

    Returns:
        (n_cells,) float64.
    """
    x = torch.ones_like(ids, dtype=torch.float64) if x is None else x
    return ids.new_zeros(n_cells, dtype=torch.float64).index_add(0, ids, x)


@in_torch
def seg_sum(x: Array, ids: Array, n_cells: int, *, weight: Array | None = None, mask: Array | None = None) -> Array:
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


@in_torch
def seg_count(ids: Array, n_cells: int, *, weight: Array | None = None, mask: Array | None = None) -> Array:
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
    ones = ids * 0 + 1
    return seg_sum(ones if weight is None else weight, ids, n_cells, mask=mask)


@in_torch
def seg_mean(x: Array, ids: Array, n_cells: int, *, weight: Array | None = None, mask: Array | None = None) -> Array:
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
    total = seg_sum(x, ids, n_cells, weight=weight, mask=mask)
    count = seg_count(ids, n_cells, weight=weight, mask=mask)
    return torch.where(count > 0, total / torch.where(count > 0, count, 1.0), float("nan"))


@in_torch
def seg_var(
    x: Array, ids: Array, n_cells: int, *, ddof: int = 1, weight: Array | None = None, mask: Array | None = None
) -> Array:
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
    mean = seg_mean(x, ids, n_cells, weight=weight, mask=mask)
    count = seg_count(ids, n_cells, weight=weight, mask=mask)
    square = seg_sum((x.double() - mean[ids.long()]) ** 2, ids, n_cells, weight=weight, mask=mask)
    return torch.where(count > ddof, square / torch.where(count > ddof, count - ddof, 1.0), float("nan"))


@in_torch
def seg_max(x: Array, ids: Array, n_cells: int, *, mask: Array | None = None) -> Array:
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
    values, ids, _, mask = _rows(x, ids, n_cells, None, mask)
    if mask is not None:
        values = torch.where(mask, values, -float("inf"))
    return values.new_full((n_cells,), -float("inf")).scatter_reduce(0, ids, values, "amax")


def _first_row(ids: Array, n_cells: int, mask: Array | None) -> Array:
    """(n_cells,) index of the first row of each cell, -1 if it has none."""
    n = require_flat("ids", ids)
    check_ids(ids, n_cells)
    row = torch.arange(n, device=ids.device)
    if mask is not None:
        row = torch.where(mask.bool(), row, n)
    out = torch.full((n_cells,), n, device=ids.device).scatter_reduce(0, ids.long(), row, "amin")
    return torch.where(out < n, out, -1)


@in_torch
def seg_first(x: Array, ids: Array, n_cells: int, *, mask: Array | None = None) -> Array:
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
    row = _first_row(ids, n_cells, mask)
    if x.shape[0] == 0:
        return row.double() * float("nan")
    return torch.where(row >= 0, x.double()[row.clamp(min=0)], float("nan"))


@in_torch
def seg_argmax(x: Array, ids: Array, n_cells: int, *, mask: Array | None = None) -> Array:
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
    best = x.double() == seg_max(x, ids, n_cells, mask=mask)[ids.long()]
    return _first_row(ids, n_cells, best if mask is None else best & mask.bool())


@in_torch
def spread(cell: Array, ids: Array, *, mask: Array | None = None) -> Array:
    """Hand the value of each cell to its rows.

    Args:
        cell: (n_cells,) values.
        ids: (N,) cell of each row; negative means none.
        mask: (N,) rows that receive the value, default all.

    Returns:
        (N,) dtype of `cell`; 0 where masked or outside any cell.
    """
    inside = ids >= 0
    if mask is not None:
        inside = inside & mask.bool()
    if cell.shape[0] == 0:
        return torch.where(inside, cell.sum(), cell.sum())
    return torch.where(inside, cell[torch.where(inside, ids.long(), 0)], torch.zeros_like(cell[:1]))


@in_torch
def stable_order(ids: Array) -> Array:
    """Permutation that sorts dense ids and keeps the order of equal ones.

    Args:
        ids: (N,) integers >= 0.

    Returns:
        (N,) int64.
    """
    return torch.argsort(ids, stable=True)


@in_torch
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
    n = require_flat("keys", keys[0])
    for i, key in enumerate(keys):
        require_rows(n, **{f"key {i}": key})
        require_ids(f"key {i}", key)
    if not readable(keys[0]):
        return _factorise_by_order(keys), n
    ids, count = _dense(keys[0].long(), n)
    for key in keys[1:]:
        more, width = _dense(key.long(), n)
        ids, count = _dense(ids * width + more, n)
    return ids, count


def _dense(key: Array, n: int) -> tuple[Array, int]:
    """Dense ids of one column: by a table where its range is O(N), else by sorting."""
    if n == 0:
        return key, 0
    low = int(key.min())
    span = int(key.max()) - low + 1
    if span > max(4 * n, 1 << 16):
        values, ids = torch.unique(key, return_inverse=True)
        return ids, len(values)
    seen = torch.zeros(span, dtype=torch.bool)
    seen[key - low] = True
    number = seen.cumsum(0) - 1
    return number[key - low], int(number[-1]) + 1


@in_torch
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


def _factorise_by_order(keys: tuple[Array, ...]) -> Array:
    order = torch.argsort(keys[0], stable=True)
    for key in keys[1:]:
        order = order[torch.argsort(key[order], stable=True)]
    new = torch.zeros_like(order, dtype=torch.bool)
    for key in keys:
        ordered = key[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    return torch.empty_like(order).scatter(0, order, torch.cumsum(new, 0))
