"""One formula for two kinds of array: what NumPy and torch spell differently, and the checks at the door.

Every public function of the group, loss and rollout files takes NumPy arrays or torch tensors and returns the same
kind, dtype and device. CUDA tensors never leave their device: checks that would need their values are skipped there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch

Array = Any
"""np.ndarray or torch.Tensor; a function that gets one kind returns that kind."""


def library(*values: object) -> Any:
    """The module, `numpy` or `torch`, whose functions fit these arrays.

    Args:
        *values: arrays of one kind; None and Python numbers are ignored.

    Raises:
        TypeError: NumPy arrays and torch tensors are mixed.
    """
    has_torch = any(isinstance(value, torch.Tensor) for value in values)
    if has_torch and any(isinstance(value, np.ndarray) for value in values):
        raise TypeError(
            "got NumPy arrays and torch tensors in one call, expected one kind; convert with torch.as_tensor"
        )
    return torch if has_torch else np


def as_array(x: object, like: object = None) -> Array:
    """`x` as an array of the kind and device of `like`; arrays pass unchanged, lists and numbers are converted.

    Args:
        x: array, list or number.
        like: array that decides the kind, or None for NumPy.

    Raises:
        TypeError: `x` is an array of the other kind.
    """
    if isinstance(like, torch.Tensor):
        library(x, like)
        return x if isinstance(x, torch.Tensor) else torch.as_tensor(x, device=like.device)
    if like is not None:
        library(x, like)
    return x if isinstance(x, torch.Tensor) else np.asarray(x)


def double(x: Array) -> Array:
    """`x` in float64, where all statistics are formed."""
    return x.to(torch.float64) if isinstance(x, torch.Tensor) else x.astype(np.float64, copy=False)


def integer(x: Array) -> Array:
    """`x` in int64."""
    return x.to(torch.int64) if isinstance(x, torch.Tensor) else x.astype(np.int64, copy=False)


def boolean(x: Array) -> Array:
    """`x` as bool: nonzero is true."""
    return x.to(torch.bool) if isinstance(x, torch.Tensor) else x.astype(bool, copy=False)


def match_dtype(x: Array, like: Array) -> Array:
    """`x` in the floating dtype of `like`; integer and bool `like` mean the default floating dtype."""
    if isinstance(x, torch.Tensor):
        return x.to(like.dtype if like.is_floating_point() else torch.get_default_dtype())
    return x.astype(like.dtype if np.issubdtype(like.dtype, np.floating) else np.float64, copy=False)


def floating(x: Array) -> Array:
    """`x` itself when it is float32 or wider, else promoted: bool and integers to the default, halves to float32."""
    if isinstance(x, torch.Tensor):
        if x.is_floating_point():
            return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return x.to(torch.get_default_dtype())
    return (
        x.astype(np.float32 if x.dtype == np.float16 else np.float64)
        if x.dtype.kind not in "f" or (x.dtype == np.float16)
        else x
    )


def detach(x: Array) -> Array:
    """`x` without gradient: the stop-gradient of the papers."""
    return x.detach() if isinstance(x, torch.Tensor) else x


_DTYPES = {"float64": torch.float64, "int64": torch.int64}


def zeros(n: int, like: Array, dtype: Literal["float64", "int64"] = "float64") -> Array:
    """(n,) zeros of the kind and device of `like`."""
    if isinstance(like, torch.Tensor):
        return torch.zeros(n, dtype=_DTYPES[dtype], device=like.device)
    return np.zeros(n, dtype=dtype)


def arange(n: int, like: Array) -> Array:
    """(n,) int64 0, 1, ... of the kind and device of `like`."""
    return torch.arange(n, device=like.device) if isinstance(like, torch.Tensor) else np.arange(n, dtype=np.int64)


def argsort(x: Array) -> Array:
    """Rows of a flat array in rising order; equal values keep their order, so that results can be repeated."""
    return torch.argsort(x, stable=True) if isinstance(x, torch.Tensor) else np.argsort(x, kind="stable")


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    if isinstance(x, torch.Tensor):
        return torch.sigmoid(x)
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def readable(x: Array) -> bool:
    """Whether a check may look at the values of `x`: no device queue stalls and no compiled graph breaks on it."""
    return not isinstance(x, torch.Tensor) or (x.device.type == "cpu" and not torch.compiler.is_compiling())


def require_option(name: str, value: object, options: Iterable[object]) -> None:
    """Refuse an unknown option and list the known ones.

    Raises:
        ValueError: `value` is not among `options`.
    """
    known = list(options)
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(repr(option) for option in known)}")


def require_rows(n: int, **arrays: Any) -> None:
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
    is_integer = (
        not ids.is_floating_point() and ids.dtype != torch.bool
        if isinstance(ids, torch.Tensor)
        else ids.dtype.kind in "iu"
    )
    if not is_integer:
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
        row = int(integer(falls).argmax()) + 1
        raise ValueError(
            f"{name} falls from {int(ids[row - 1])} to {int(ids[row])} at row {row}, expected rows sorted by "
            "episode and time; sort them first"
        )


def require_unit_interval(**numbers: float) -> None:
    """Refuse discounts, decays and rates outside [0, 1].

    Raises:
        ValueError: naming the argument.
    """
    for name, value in numbers.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} is {value}, expected a number in [0, 1]")
