"""numba's decorator for functions that are compiled once and kept on disk, where a disk can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from robot_rl.advantage.kinds import Array


def njit(**options: Any) -> Callable[[Callable[..., object]], Any]:
    """`numba.njit(cache=True, **options)`, or without the cache where neither this package nor the home can be written.

    Such a process compiles anew, some seconds; numba itself would refuse to define the function.

    Args:
        options: of numba.njit.
    """

    def compiled(function: Callable[..., object]) -> Array:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            return numba.njit(**options)(function)

    return compiled
