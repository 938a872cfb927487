"""Centre and scale outcomes inside cells, and whiten advantages over an optimiser batch, with every edge rule.

Edge rules, the same for all estimators: an unscorable (NaN) member leaves the statistics and gets 0; a cell with fewer
than `min_count` scorable members gives 0; a cell whose values are equal up to float residue gives exactly 0; a small
but real spread is floored, so that noise is not blown up to unit variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from robot_rl.advantage.kinds import (
    Array,
    as_array,
    boolean,
    double,
    integer,
    library,
    match_dtype,
    readable,
    require_flat,
    require_ids,
    require_option,
    require_rows,
    zeros,
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


def as_cells(cells: Any, like: Array, n_cells: int | None = None) -> Partition:
    """Partition of the rows of `like`.

    Args:
        cells: (N,) integers, -1 = in no cell; "batch", one cell with every row; or a partition, which passes.
        like: (N,) array that decides kind and device.
        n_cells: number of cells if the ids are dense already, None to factorise them.

    Raises:
        ValueError: wrong shape, ids below -1, or no integers.
    """
    xp = library(like)
    if isinstance(cells, Partition):
        return cells
    if isinstance(cells, str):
        require_option("cells", cells, ["batch"])
        ids = zeros(like.shape[0], like, "int64")
        return Partition(ids, 1, ids == 0)
    cells = as_array(cells, like)
    require_rows(like.shape[0], cells=cells)
    require_ids("cells", cells)
    inside = cells >= 0
    if n_cells is not None:
        cells = xp.where(inside, integer(cells), 0)
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
    xp = library(x)
    count = add(None, ids, n)
    mean = add(x, ids, n) / xp.where(count > 0, count, 1.0)
    if centred:
        square = mean[ids]
        square -= x
        square *= square  # in place: a fresh array of this size costs as much as the arithmetic
    else:
        square = x * x
    divisor = count - ddof if centred else count
    spread = xp.sqrt(add(square, ids, n) / xp.where(divisor > 0, divisor, 1.0))
    if isinstance(x, np.ndarray):
        # The largest value of each cell is rarely needed: first try the largest of all, an upper bound. A cell with
        # one member is no matter: its distance from its mean is 0 anyhow.
        bound = max(1.0, float(x.max()), -float(x.min())) if len(x) else 1.0
        if not ((spread <= RESIDUE * bound) & (count > 1)).any():
            return _Moments(count, mean, spread, np.zeros(n, dtype=bool))
    largest = seg_max(xp.abs(x), ids, n)
    return _Moments(count, mean, spread, spread <= RESIDUE * xp.where(largest > 1.0, largest, 1.0))


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
    n = require_flat("x", as_array(x))
    x = as_array(x)
    xp = library(x)
    if (center == "weighted") != (weight is not None):
        raise ValueError(f"center is {center!r} and weight is {'missing' if weight is None else 'given'}; give both")
    if center == "leave_one_out" and scale == "std" and scale_cells is None and not rules.scaled_leave_one_out:
        raise ValueError(
            "leave_one_out with std in the same cells divides by a spread that contains the row left out; use "
            'scale="none", other scale_cells, or EdgeRules(scaled_leave_one_out=True)'
        )
    weight = None if weight is None else as_array(weight, x)
    mask = None if mask is None else boolean(as_array(mask, x))
    require_rows(n, weight=weight, mask=mask)
    base = as_cells(cells, x)
    scale_at = base if scale_cells is None else as_cells(scale_cells, x)

    raw = double(x)
    valid = ~xp.isnan(raw) & base.inside
    if scale_at is not base:
        valid = valid & scale_at.inside
    if mask is not None:
        valid = valid & mask
    shared = scale_at is base
    value, (center_ids, n_center), (scale_ids, n_scale) = raw, base[:2], scale_at[:2]
    if not (isinstance(raw, np.ndarray) and valid.all()):
        # Rows that do not count go, with value 0, to one more cell, so that no statistic needs a mask.
        value = xp.where(valid, raw, 0.0)
        center_ids, n_center = xp.where(valid, center_ids, n_center), n_center + 1
        scale_ids = center_ids if shared else xp.where(valid, scale_ids, n_scale)
        n_scale = n_scale + 1

    # Everything that a cell decides is one number to subtract and one to multiply with.
    mean, factor, other = None, None, None
    small_center, small_scale = None, None
    moments = None
    if center != "none":
        moments = _moments(value, center_ids, n_center, rules.ddof, centred=True)
        small_center = moments.count < rules.min_count
        mean = moments.mean
        if center == "weighted":
            wide = xp.where(valid, double(weight), 0.0)
            total = add(wide, center_ids, n_center)
            mean = add(value * wide, center_ids, n_center) / xp.where(total > 0, total, 1.0)
        factor = xp.ones_like(mean)
        if center == "leave_one_out":
            factor = moments.count / xp.where(moments.count > 1, moments.count - 1.0, 1.0)
        if rules.zero_var == "zero":
            factor = xp.where(moments.flat, 0.0, factor)
    if scale != "none":
        reuse = shared and scale == "std" and moments is not None
        of = moments if reuse else _moments(value, scale_ids, n_scale, rules.ddof, centred=scale == "std")
        assert of is not None
        small_scale = of.count < rules.min_count
        other = 1.0 / (xp.where(of.spread > rules.std_floor, of.spread, rules.std_floor) + rules.eps)
        if rules.zero_var == "zero":
            other = xp.where(of.flat, 0.0, other)
        if shared and factor is not None:
            factor, other = factor * other, None
    if mean is None:
        out = value
    else:
        out = mean[center_ids]
        out -= value
        assert factor is not None
        factor = 0.0 - factor  # the sign of "mean - value" goes into the factor
    if shared and factor is not None:
        small = small_center if small_scale is None or small_center is None else small_center | small_scale
        factor = xp.where(small, 0.0, factor)
    for part, at in ((factor, center_ids), (other, scale_ids)):
        if part is not None:
            scaled = part[at]
            scaled *= out
            out = scaled
    if out is not value:
        out += 0.0  # no negative zeros
    if small_center is None and small_scale is None:
        return match_dtype(xp.where(valid, out, 0.0), x), valid
    few = None
    if rules.singleton != "zero" or not shared:
        for part, at in ((small_center, center_ids), (small_scale, scale_ids)):
            if part is not None:
                few = part[at] if few is None else few | part[at]
        few = few & valid
        if rules.singleton == "error" and bool(few.any()):
            row = int(integer(few).argmax())
            raise ValueError(
                f"row {row} is in a cell with fewer than {rules.min_count} scorable members; collect more rollouts per "
                'group or choose singleton="zero"'
            )
        out = xp.where(few, {"nan": float("nan"), "raw": value}.get(rules.singleton, 0.0), out)
    if value is raw:
        return match_dtype(out, x), valid
    return match_dtype(xp.where(valid, out, 0.0), x), valid


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
    require_flat("x", as_array(x))
    x = as_array(x)
    xp = library(x)
    units, base = as_cells(unit, x), as_cells(cells, x)
    use = units.inside & ~xp.isnan(x)
    use = use if mask is None else use & boolean(as_array(mask, x))
    rules: EdgeRules = options.pop("rules", EDGES)
    weight, scale_cells = options.pop("weight", None), options.pop("scale_cells", None)
    out, valid = normalise(
        seg_mean(x, units.ids, units.n, mask=use),
        _first_cell(xp.where(base.inside, base.ids, -1), units, x),
        weight=None if weight is None else seg_mean(as_array(weight, x), units.ids, units.n, mask=use),
        scale_cells=_first_cell(scale_cells, units, x),
        rules=replace(rules, scaled_leave_one_out=True),
        **options,
    )
    rows = xp.where(use, units.ids, -1)
    return match_dtype(spread(out, rows), x), boolean(spread(double(valid), rows))


def _first_cell(cells: object, units: Partition, x: Array) -> Array:
    """Cell of each unit, that of its first row; None and "batch" pass."""
    if cells is None or isinstance(cells, str):
        return cells
    first = seg_first(as_array(cells, x), units.ids, units.n, mask=units.inside)
    xp = library(x)
    return integer(xp.where(xp.isnan(first), -1.0, first))


class BatchMoments(NamedTuple):
    """Count, mean and summed squared distance from the mean; 0-d float64, what workers exchange for whitening."""

    count: Array
    mean: Array
    square: Array


def batch_moments(x: Array, mask: Array | None = None) -> BatchMoments:
    """Moments of the masked entries of this worker's part of the batch.

    Args:
        x: (...) values.
        mask: (...) entries to use, default all.

    Raises:
        ValueError: shapes differ.
    """
    x = as_array(x)
    xp = library(x)
    use = xp.ones_like(x, dtype=bool) if mask is None else boolean(as_array(mask, x))
    if tuple(use.shape) != tuple(x.shape):
        raise ValueError(f"mask has shape {tuple(use.shape)}, expected that of x, {tuple(x.shape)}")
    value = xp.where(use, double(x), 0.0)
    count = double(use).sum()
    mean = value.sum() / xp.where(count > 0, count, 1.0)
    return BatchMoments(count, mean, (xp.where(use, value - mean, 0.0) ** 2).sum())


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
        xp = library(total.count)
        count = total.count + part.count
        safe = xp.where(count > 0, count, 1.0)
        gap = part.mean - total.mean
        mean = total.mean + gap * part.count / safe
        square = total.square + part.square + gap * gap * total.count * part.count / safe
        total = BatchMoments(count, mean, square)
    return total


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
    x = as_array(x)
    xp = library(x)
    own = batch_moments(x, mask)
    count, mean, square = own if moments is None else moments
    divisor = count - ddof
    std = xp.sqrt(square / xp.where(divisor > 0, divisor, 1.0))
    magnitude = xp.sqrt(square / xp.where(count > 0, count, 1.0) + mean * mean)
    flat = (count < 2) | (std <= RESIDUE * xp.where(magnitude > 1.0, magnitude, 1.0))
    use = xp.ones_like(x, dtype=bool) if mask is None else boolean(as_array(mask, x))
    value = xp.where(use, double(x), 0.0)
    out = (value - mean if center else value) / (std + eps)
    return match_dtype(xp.where(use & ~flat, out, 0.0), x)
