"""Which samples count: groups whose outcomes differ.

A filter returns the mask that remains; statistics of a group are formed before the filter. How many rows it removes is
`mask.sum() - new_mask.sum()`, to be logged.
"""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
)
from robot_rl.advantage.normalise import as_cells
from robot_rl.advantage.segments import seg_var


@in_torch
def drop_zero_variance(score: Array, group: Array, *, threshold: float = 1e-3) -> Array:
    """Members of groups whose scores differ: groups without information are dropped.

    Args:
        score: (E,) outcomes, NaN = unscorable.
        group: (E,) group ids, -1 = none.
        threshold: groups with a deviation below it are dropped, as are those with fewer than two scorable members.

    Returns:
        (E,) bool.

    Raises:
        ValueError: wrong shapes or ids.

    Source: DAPO, dynamic sampling; SimpleTIR uses 1e-3.
    """
    std, cells, ok = _group_std(score, group)
    return ok & (std >= threshold)[cells]


def _group_std(score: Array, group: Array) -> tuple[Array, Array, Array]:
    """((groups,) deviation with 0 for small groups, (E,) dense group, (E,) scorable member of a group)."""
    cells = as_cells(group, score)
    ok = cells.inside & ~torch.isnan(score)
    var = seg_var(score, cells.ids, cells.n, mask=ok)
    return torch.sqrt(torch.where(torch.isnan(var), 0.0, var)), cells.ids, ok
