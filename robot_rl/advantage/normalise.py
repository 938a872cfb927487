"""Centre and scale outcomes inside cells, and whiten advantages over an optimiser batch, with every edge rule.

Edge rules, the same for all estimators: an unscorable (NaN) member leaves the statistics and gets 0; a cell with fewer
than `min_count` scorable members gives 0; a cell whose values are equal up to float residue gives exactly 0; a small
but real spread is floored, so that noise is not blown up to unit variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    readable,
    require_flat,
    require_ids,
    require_option,
    require_rows,
)
from robot_rl.advantage.segments import add, check_ids, factorise, seg_first, seg_max, seg_mean, spread

RESIDUE = 1e-6
"""Spread, relative to max(1, largest magnitude), below which the values of a cell count as equal."""


@dataclass(frozen=True)
class EdgeRules:
    """What a normalisation does with cells that are small or have no spread.

    Attributes:
        ddof: 1 or 0.
        eps: added to the denominator.
        std_floor: the denominator is max(spread, std_floor) + eps.
        min_count: scorable members below which a cell is small.
        singleton: result in a small cell: "zero", "raw" (x), "nan", "error".
        zero_var: "zero" gives exactly 0 where a cell's spread is at most 1e-6·max(1, largest |x|); "keep" divides by
            the floor as usual.
        scaled_leave_one_out: permit leave_one_out with the std of the same cells.
    """

    ddof: int = 1
    eps: float = 1e-6
    std_floor: float = 1e-3
    min_count: int = 2
    singleton: str = "zero"
    zero_var: str = "zero"
    scaled_leave_one_out: bool = False

    def __post_init__(self) -> None:
        require_option("singleton", self.singleton, ["zero", "raw", "nan", "error"])
        require_option("zero_var", self.zero_var, ["zero", "keep"])
        require_option("ddof", self.ddof, [0, 1])


EDGES = EdgeRules()


class Partition(NamedTuple):
    """Dense ids (rows outside any cell moved to cell 0), their number, and which rows are inside."""

    ids: Array
    n: int
    inside: Array


@in_torch
def as_cells(cells: Any, like: Array, n_cells: int | None = None) -> Partition:
    """Partition of the rows of `like`.

    Args:
        cells: (N,) integers, -1 = in no cell; "batch", one cell with every row; or a partition, which passes.
        like: (N,) array that decides kind and device.
        n_cells: number of cells if the ids are dense already, None to factorise them.

    Raises:
        ValueError: wrong shape, ids below -1, or no integers.
    """
    if isinstance(cells, Partition):
        return cells
    if isinstance(cells, str):
        require_option("cells", cells, ["batch"])
        ids = like.new_zeros(like.shape[0], dtype=torch.int64)
        return Partition(ids, 1, ids == 0)
    require_rows(like.shape[0], cells=cells)
    require_ids("cells", cells)
    inside = cells >= 0
    if n_cells is not None:
        cells = torch.where(inside, cells.long(), 0)
        check_ids(cells, max(n_cells, 1))
        return Partition(cells, n_cells, inside)
    _refuse_negative(cells)
    ids, count = factorise(cells)  # -1 is a cell of its own here; `inside` keeps its rows out
    return Partition(ids, count, inside)


def _refuse_negative(cells: Array) -> None:
    if not readable(cells) or cells.shape[0] == 0 or int(cells.min()) >= -1:
        return
    row = int(cells.argmin())
    raise ValueError(
        f"group id {int(cells[row])} at row {row}, expected ids >= 0, or -1 for a row that belongs to no group; "
        "factorise hashed names first"
    )


class _Moments(NamedTuple):
    count: Array
    mean: Array
    spread: Array
    flat: Array  # cells whose values are equal up to float residue


def _moments(x: Array, ids: Array, n: int, ddof: int, centred: bool) -> _Moments:
    """Two-pass moments per cell; not `centred` gives the root mean square instead of the deviation."""
    count = add(None, ids, n)
    mean = add(x, ids, n) / torch.where(count > 0, count, 1.0)
    if centred:
        square = (mean[ids] - x).square()
    else:
        square = x * x
    divisor = count - ddof if centred else count
    spread = torch.sqrt(add(square, ids, n) / torch.where(divisor > 0, divisor, 1.0))
    largest = seg_max(torch.abs(x), ids, n)
    return _Moments(count, mean, spread, spread <= RESIDUE * torch.where(largest > 1.0, largest, 1.0))


@in_torch
def normalise(
    x: Array,
    cells: object,
    *,
    center: str = "mean",
    scale: str = "std",
    scale_cells: object = None,
    weight: Array | None = None,
    mask: Array | None = None,
    rules: EdgeRules = EDGES,
) -> tuple[Array, Array]:
    """Subtract a baseline and divide by a spread, both formed inside cells.

    Args:
        x: (N,) scores; NaN = unscorable.
        cells: (N,) integer ids, -1 = in no cell (result 0); "batch"; or a `Partition` whose ids are dense already.
        center: "mean", "leave_one_out" (n/(n-1)·(x-mean)), "weighted" (mean with `weight`), "none".
        scale: "std", "rms" (root mean square of x as given), "none".
        scale_cells: cells of the spread, default `cells`; for instance "batch".
        weight: (N,) weights >= 0 of the "weighted" centre.
        mask: (N,) rows that enter the statistics and receive a value, default all.
        rules: for small cells and cells without spread.

    Returns:
        (N,) normalised scores in the dtype of x, and (N,) bool: rows that may enter the loss (scorable, in a cell and
        not masked).

    Raises:
        ValueError: unknown option, wrong shape, forbidden combination, or a small cell with singleton="error".

    Source: GRPO (Shao et al., DeepSeekMath), RLOO (Ahmadian et al.), Dr. GRPO (Liu et al.); edge rules are ours.
    """
    require_option("center", center, ["mean", "leave_one_out", "weighted", "none"])
    require_option("scale", scale, ["std", "rms", "none"])
    n = require_flat("x", x)
    if (center == "weighted") != (weight is not None):
        raise ValueError(f"center is {center!r} and weight is {'missing' if weight is None else 'given'}; give both")
    if center == "leave_one_out" and scale == "std" and scale_cells is None and not rules.scaled_leave_one_out:
        raise ValueError(
            "leave_one_out with std in the same cells divides by a spread that contains the row left out; use "
            'scale="none", other scale_cells, or EdgeRules(scaled_leave_one_out=True)'
        )
    mask = None if mask is None else mask.bool()
    require_rows(n, weight=weight, mask=mask)
    base = as_cells(cells, x)
    scale_at = base if scale_cells is None else as_cells(scale_cells, x)

    raw = x.double()
    shared = scale_at is base
    valid = ~torch.isnan(raw) & base.inside & scale_at.inside
    if mask is not None:
        valid = valid & mask
    # Rows that do not count go, with value 0, to one more cell, so that no statistic needs a mask.
    value = torch.where(valid, raw, 0.0)
    center_ids, n_center = torch.where(valid, base.ids, base.n), base.n + 1
    scale_ids, n_scale = torch.where(valid, scale_at.ids, scale_at.n), scale_at.n + 1

    few = torch.zeros_like(valid)
    out, moments = value, None
    if center != "none":
        moments = _moments(value, center_ids, n_center, rules.ddof, centred=True)
        mean = moments.mean
        if center == "weighted":
            assert weight is not None
            wide = torch.where(valid, weight.double(), 0.0)
            total = add(wide, center_ids, n_center)
            mean = add(value * wide, center_ids, n_center) / torch.where(total > 0, total, 1.0)
        out = value - mean[center_ids]
        if center == "leave_one_out":
            out = out * (moments.count / torch.where(moments.count > 1, moments.count - 1.0, 1.0))[center_ids]
        few, out = _edges(moments, center_ids, few, out, rules)
    if scale != "none":
        reuse = shared and scale == "std" and moments is not None
        of = moments if reuse else _moments(value, scale_ids, n_scale, rules.ddof, centred=scale == "std")
        assert of is not None
        floor = torch.where(of.spread > rules.std_floor, of.spread, rules.std_floor)
        out = out / (floor + rules.eps)[scale_ids]
        few, out = _edges(of, scale_ids, few, out, rules)
    few = few & valid
    if rules.singleton == "error" and bool(few.any()):
        row = int(few.long().argmax())
        raise ValueError(
            f"row {row} is in a cell with fewer than {rules.min_count} scorable members; collect more rollouts per "
            'group or choose singleton="zero"'
        )
    out = torch.where(few, {"nan": float("nan"), "raw": value}.get(rules.singleton, 0.0), out)
    return match_dtype(torch.where(valid, out, 0.0), x), valid


def _edges(moments: _Moments, ids: Array, few: Array, out: Array, rules: EdgeRules) -> tuple[Array, Array]:
    """(rows in cells with too few members so far, result with 0 in cells without spread)."""
    flat = moments.flat[ids] if rules.zero_var == "zero" else torch.zeros_like(few)
    return few | (moments.count < rules.min_count)[ids], torch.where(flat, 0.0, out)


@in_torch
def normalise_units(
    x: Array, cells: object, unit: Array, *, mask: Array | None = None, **options: Any
) -> tuple[Array, Array]:
    """`normalise` where several rows repeat one score: the statistics count every unit once.

    Args:
        x: (N,) scores, equal inside a unit; NaN = unscorable.
        cells: see `normalise`; a unit lies in the cell of its first row.
        unit: (N,) id of the episode or turn whose score the row repeats.
        mask: (N,) rows that enter the statistics and receive a value, default all.
        **options: of `normalise`; `weight` and `scale_cells` are per row.

    Returns:
        As `normalise`, per row.

    Raises:
        ValueError: as `normalise`.
    """
    require_flat("x", x)
    units, base = as_cells(unit, x), as_cells(cells, x)
    use = units.inside & ~torch.isnan(x)
    use = use if mask is None else use & mask.bool()
    rules: EdgeRules = options.pop("rules", EDGES)
    weight, scale_cells = options.pop("weight", None), options.pop("scale_cells", None)
    out, valid = normalise(
        seg_mean(x, units.ids, units.n, mask=use),
        _first_cell(torch.where(base.inside, base.ids, -1), units, x),
        weight=None if weight is None else seg_mean(weight, units.ids, units.n, mask=use),
        scale_cells=_first_cell(scale_cells, units, x),
        rules=replace(rules, scaled_leave_one_out=True),
        **options,
    )
    rows = torch.where(use, units.ids, -1)
    return match_dtype(spread(out, rows), x), spread(valid.double(), rows).bool()


def _first_cell(cells: object, units: Partition, x: Array) -> Array:
    """Cell of each unit, that of its first row; None and "batch" pass."""
    if cells is None or isinstance(cells, str):
        return cells
    first = seg_first(cells, units.ids, units.n, mask=units.inside)
    return torch.where(torch.isnan(first), -1.0, first).long()


class BatchMoments(NamedTuple):
    """Count, mean and summed squared distance from the mean; 0-d float64, what workers exchange for whitening."""

    count: Array
    mean: Array
    square: Array


@in_torch
def batch_moments(x: Array, mask: Array | None = None) -> BatchMoments:
    """Moments of the masked entries of this worker's part of the batch.

    Args:
        x: (...) values.
        mask: (...) entries to use, default all.

    Raises:
        ValueError: shapes differ.
    """
    use = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.bool()
    if tuple(use.shape) != tuple(x.shape):
        raise ValueError(f"mask has shape {tuple(use.shape)}, expected that of x, {tuple(x.shape)}")
    value = torch.where(use, x.double(), 0.0)
    count = use.double().sum()
    mean = value.sum() / torch.where(count > 0, count, 1.0)
    return BatchMoments(count, mean, (torch.where(use, value - mean, 0.0) ** 2).sum())


@in_torch
def merge_moments(parts: list[BatchMoments]) -> BatchMoments:
    """Moments of the union of the parts, in the order of the list, so that every worker gets the same bits.

    Args:
        parts: one entry per worker, in a fixed order.

    Raises:
        ValueError: the list is empty.

    Source: Chan et al., Updating formulae and a pairwise algorithm for computing sample variances.
    """
    if not parts:
        raise ValueError("parts is empty, expected the moments of at least one worker")
    total = parts[0]
    for part in parts[1:]:
        count = total.count + part.count
        safe = torch.where(count > 0, count, 1.0)
        gap = part.mean - total.mean
        mean = total.mean + gap * part.count / safe
        square = total.square + part.square + gap * gap * total.count * part.count / safe
        total = BatchMoments(count, mean, square)
    return total


@in_torch
def whiten(
    x: Array,
    mask: Array | None = None,
    *,
    ddof: int = 1,
    eps: float = 1e-8,
    center: bool = True,
    moments: BatchMoments | None = None,
) -> Array:
    """Zero mean and unit deviation over the masked rows of the whole optimiser batch.

    Args:
        x: (...) advantages.
        mask: (...) rows of the statistics; the others get 0. Default all.
        ddof: 1 or 0.
        eps: added to the deviation.
        center: subtract the mean; False only scales.
        moments: moments of the whole batch when `x` is a part of it (a micro-batch or one worker's rows).

    Returns:
        Array like `x`; exactly 0 if the batch has fewer than two rows or no spread beyond float residue.

    Raises:
        ValueError: shapes differ or ddof is not 0 or 1.
    """
    require_option("ddof", ddof, [0, 1])
    own = batch_moments(x, mask)
    count, mean, square = own if moments is None else moments
    divisor = count - ddof
    std = torch.sqrt(square / torch.where(divisor > 0, divisor, 1.0))
    magnitude = torch.sqrt(square / torch.where(count > 0, count, 1.0) + mean * mean)
    flat = (count < 2) | (std <= RESIDUE * torch.where(magnitude > 1.0, magnitude, 1.0))
    use = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.bool()
    value = torch.where(use, x.double(), 0.0)
    out = (value - mean if center else value) / (std + eps)
    return match_dtype(torch.where(use & ~flat, out, 0.0), x)
