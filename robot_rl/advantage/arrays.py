"""Torch tensors and NumPy arrays in, the same kind out, without a copy on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

C = TypeVar("C", bound="Columns")
P = ParamSpec("P")
R = TypeVar("R")


class Columns:
    """Base of frozen dataclasses whose fields are arrays of one kind, or None; `same_kind` converts them whole."""

    def map(self: C, function: Callable[[Any], Any]) -> C:
        """The record with a function applied to every field."""
        return type(self)(**{name: function(x) for name, x in vars(self).items()})


def host(x: object) -> Any:
    """Any array, tensor (of any device) or sequence as a NumPy array; None stays None, bfloat16 becomes float32."""
    return None if x is None else np.asarray(_widen(x.detach().cpu()) if isinstance(x, torch.Tensor) else x)


def _widen(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


def tensor(x: object, device: torch.device) -> Any:
    """Any array, tensor or sequence of numbers as a tensor on a device; None stays None, bfloat16 becomes float32.

    Raises:
        ValueError: an array of something else than numbers.
    """
    if x is None:
        return None
    return _widen(x.detach() if isinstance(x, torch.Tensor) else _to_tensor(np.asarray(x))).to(device)


def place_of(x: object) -> torch.device:
    """The device of a tensor; of anything else the host."""
    return x.device if isinstance(x, torch.Tensor) else torch.device("cpu")


def to_torch(value: object, device: torch.device | None = None) -> Any:
    """A NumPy array as a tensor over the same memory (on the CPU); anything else unchanged."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    return value.to(device) if isinstance(value, torch.Tensor) and device is not None else value


def same_kind(function: Callable[P, R]) -> Callable[P, R]:
    """`in_torch` for what sums credit up: bfloat16 goes in as float32, and float32 is what comes out."""
    inside: Callable[..., R] = function

    @in_torch
    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        given = [*args, *kwargs.values()]
        given += [x for record in given if isinstance(record, Columns) for x in vars(record).values()]
        if not any(isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16 for x in given):
            return inside(*args, **kwargs)
        return inside(*(_each(x, torch.Tensor, _widen) for x in args), **_each(kwargs, torch.Tensor, _widen))

    return wrapper


def in_torch(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: NumPy arrays and lists reach the function as tensors, and its tensors leave as arrays again.

    The memory is shared. Calls with tensors alone pass through; lists beside tensors become tensors. Unsigned 64-bit
    ids keep their bits, as int64.

    Raises:
        TypeError: NumPy arrays and torch tensors are mixed.
        ValueError: an array of something else than numbers.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        given = (*args, *kwargs.values())
        if not any(map(_is_foreign, given)):
            return function(*args, **kwargs)
        tensors = any(isinstance(x, torch.Tensor) for x in given)
        if tensors and any(isinstance(x, np.ndarray) for x in given):
            raise TypeError(
                "got NumPy arrays and torch tensors in one call, expected one kind; convert with torch.as_tensor"
            )
        inside: Callable[..., R] = function
        result = inside(*map(to_tensors, args), **to_tensors(kwargs))
        return result if tensors else to_arrays(result)

    return wrapper


def _is_foreign(value: object) -> bool:
    if isinstance(value, Columns):
        return any(isinstance(x, np.ndarray) for x in vars(value).values())
    return isinstance(value, (np.ndarray, list)) or (isinstance(value, tuple) and any(map(_is_foreign, value)))


def to_tensors(value: object) -> Any:
    """Every array, and every list of numbers, in a record, tuple, list or dictionary as a tensor over its memory."""
    return _each(value, np.ndarray, _to_tensor)


def to_arrays(value: object) -> Any:
    """Every tensor in a record, tuple, list or dictionary as an array over its memory."""
    return _each(value, torch.Tensor, torch.Tensor.numpy)


def _each(value: object, kind: type, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to every array of a kind in it: records, tuples, lists and dictionaries in turn."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Columns):
        return value.map(lambda x: _each(x, kind, change))
    if isinstance(value, dict):
        return {name: _each(x, kind, change) for name, x in value.items()}
    if kind is np.ndarray and isinstance(value, list) and value and isinstance(value[0], (bool, int, float)):
        return torch.as_tensor(np.asarray(value))
    if isinstance(value, (tuple, list)):
        items = [_each(x, kind, change) for x in value]
        return items if isinstance(value, list) else tuple(items) if type(value) is tuple else type(value)(*items)
    return value


def _to_tensor(x: np.ndarray) -> torch.Tensor:
    if x.dtype.kind not in "biuf":
        raise ValueError(
            f"got an array of {x.dtype}, expected numbers; factorise names once when data are collected (dense_ids)"
        )
    if x.dtype.kind == "u" and x.dtype.itemsize > 1:
        x = x.view(np.int64) if x.dtype == np.uint64 else x.astype(np.int64)
    return torch.from_numpy(x if min(x.strides, default=0) >= 0 else np.ascontiguousarray(x))


def check_shapes(shape: tuple[int, ...], **others: np.ndarray | torch.Tensor | None) -> None:
    """Check that arrays have one shape.

    Raises:
        ValueError: naming the first array that differs; `None` entries are passed over.
    """
    for name, value in others.items():
        if value is not None and tuple(value.shape) != tuple(shape):
            raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {tuple(shape)}, the shape of reward")


def check_unit(**numbers: float) -> None:
    """Check that discounts and trace decays lie in [0, 1].

    Raises:
        ValueError: naming the first that does not.
    """
    for name, number in numbers.items():
        if not 0.0 <= number <= 1.0:
            raise ValueError(f"{name} is {number}, expected a number in [0, 1]")
