"""Dtypes, and the checks at the door.

Every public function of the group, loss and rollout files takes NumPy arrays or torch tensors and returns the same
kind, dtype (float32 for halves) and device (`arrays.in_torch`). CUDA tensors never leave their device: checks that
would need their values are skipped there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

Array = Any
"""np.ndarray or torch.Tensor; a function that gets one kind returns that kind."""
HALVES = (torch.float16, torch.bfloat16)
"""Dtypes in which nothing is summed up or returned."""


def match_dtype(x: Array, like: Array) -> Array:
    """`x` in the dtype that `floating` gives `like`: its own, or float32 for halves and the default for integers."""
    if not like.is_floating_point():
        return x.to(torch.get_default_dtype())
    return x.to(torch.float32 if like.dtype in HALVES else like.dtype)


def floating(x: Array) -> Array:
    """`x` itself when it is float32 or wider, else promoted: bool and integers to the default, halves to float32."""
    if not x.is_floating_point():
        return x.to(torch.get_default_dtype())
    return x.float() if x.dtype in HALVES else x


def readable(x: Array) -> bool:
    """Whether a check may look at the values of `x`: no device queue stalls and no compiled graph breaks on it."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def require_option(name: str, value: object, options: Iterable[object]) -> None:
    """Refuse an unknown option and list the known ones.

    Raises:
        ValueError: `value` is not among `options`.
    """
    known = list(options)
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(repr(option) for option in known)}")


def require_rows(n: int, **arrays: Tensor | None) -> None:
    """Refuse arrays that are not flat with one entry per row.

    Args:
        n: number of rows.
        **arrays: name -> array or None (None is skipped).

    Raises:
        ValueError: naming the argument and its shape.
    """
    for name, x in arrays.items():
        if x is not None and tuple(x.shape) != (n,):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected ({n},): flat, one entry per row")


def require_flat(name: str, x: Array) -> int:
    """Number of rows of a flat array.

    Raises:
        ValueError: `x` has another number of dimensions than one.
    """
    if len(x.shape) != 1:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected one dimension; flatten it and pass ids")
    return int(x.shape[0])


def require_ids(name: str, ids: Array) -> None:
    """Refuse ids that are not integers.

    Raises:
        ValueError: floating or text ids.
    """
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(
            f"{name} has dtype {ids.dtype}, expected integers; factorise names once when data are collected"
        )


def require_sorted(name: str, ids: Array) -> None:
    """Refuse ids that fall from one row to the next; the values of CUDA tensors are not read.

    Raises:
        ValueError: naming the first row where the id falls.
    """
    if not readable(ids) or ids.shape[0] < 2:
        return
    falls = ids[1:] < ids[:-1]
    if bool(falls.any()):
        row = int(falls.long().argmax()) + 1
        raise ValueError(
            f"{name} falls from {int(ids[row - 1])} to {int(ids[row])} at row {row}, expected rows sorted by "
            "episode and time; sort them first"
        )
