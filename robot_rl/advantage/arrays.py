"""Torch tensors and NumPy arrays in, the same kind out, without a copy on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound="Columns")
P = ParamSpec("P")
R = TypeVar("R")


class Columns:
    """Base of frozen dataclasses whose fields are arrays of one kind, or None; `same_kind` converts them whole."""

    def mapped(self: C, function: Callable[[Any], Any]) -> C:
        """The record with a function applied to every field."""
        return type(self)(**{name: function(x) for name, x in vars(self).items()})


def needs_torch(*values: object) -> bool:
    """True if one of the values is a tensor that NumPy cannot stand in for: on a device, or recorded by autograd."""
    return any(
        isinstance(x, torch.Tensor) and (x.device.type != "cpu" or (x.requires_grad and torch.is_grad_enabled()))
        for x in values
    )


def to_numpy(value: object) -> Any:
    """A CPU tensor as the NumPy array over the same memory; tuples and records item by item, else unchanged.

    NumPy has no bfloat16: such a tensor becomes a float32 copy.
    """
    if isinstance(value, tuple):
        return tuple(map(to_numpy, value))
    if isinstance(value, Columns):
        return value.mapped(to_numpy)
    return _widen(value).detach().numpy() if isinstance(value, torch.Tensor) else value


def _widen(value: object) -> Any:
    """bfloat16 as float32, in which credit is summed up; anything else unchanged."""
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value


def host(x: object) -> Any:
    """Any array, tensor (of any device) or sequence as a NumPy array; None stays None."""
    return None if x is None else np.asarray(to_numpy(x.detach().cpu()) if isinstance(x, torch.Tensor) else x)


def to_torch(value: object, device: torch.device | None = None) -> Any:
    """A NumPy array as a tensor over the same memory (on the CPU); anything else unchanged."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    return value.to(device) if isinstance(value, torch.Tensor) and device is not None else value


def namespace(*values: object) -> ModuleType:
    """`torch` if one of the values is a tensor, else `numpy`; both share the operations that the estimators use."""
    return torch if any(isinstance(x, torch.Tensor) for x in values) else np


def same_kind(function: F) -> F:
    """Decorator: CPU tensors reach the function as NumPy views and its arrays leave as tensors again.

    The function must accept NumPy arrays, and tensors where autograd records or the data live on a device. Mixed calls
    follow the tensors. bfloat16 goes in as float32, and float32 is what comes out.
    """

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> Any:
        given = [*args, *kwargs.values()]
        for item in tuple(given):
            if isinstance(item, Columns):
                given += vars(item).values()
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        if not tensors:
            return function(*args, **kwargs)
        if needs_torch(*tensors):
            device = next((x.device for x in tensors if x.device.type != "cpu"), None)

            def convert(x: object) -> Any:
                return x.mapped(convert) if isinstance(x, Columns) else _widen(to_torch(x, device))

            return function(*map(convert, args), **{k: convert(x) for k, x in kwargs.items()})
        result = function(*map(to_numpy, args), **{k: to_numpy(x) for k, x in kwargs.items()})
        if not isinstance(result, tuple):
            return to_torch(result)
        tensors = tuple(map(to_torch, result))
        return tensors if type(result) is tuple else type(result)(*tensors)  # a named tuple stays what it is

    return cast(F, wrapper)


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


def to_tensors(value: Any) -> Any:
    """Every array, and every list of numbers, in a record, tuple, list or dictionary as a tensor over its memory."""
    return _each(value, np.ndarray, _to_tensor)


def to_arrays(value: Any) -> Any:
    """Every tensor in a record, tuple, list or dictionary as an array over its memory."""
    return _each(value, torch.Tensor, torch.Tensor.numpy)


def _each(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to every array of a kind in it: records, tuples, lists and dictionaries in turn."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Columns):
        return value.mapped(lambda x: _each(x, kind, change))
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
        raise ValueError(f"got an array of {x.dtype}, expected numbers; factorise names once when data are collected")
    if x.dtype.kind == "u" and x.dtype.itemsize > 1:
        x = x.view(np.int64) if x.dtype == np.uint64 else x.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(x))


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
