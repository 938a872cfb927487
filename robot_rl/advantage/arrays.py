"""Torch tensors and NumPy arrays in, the same kind out, without a copy on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
import torch

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound="Columns")


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
    return None if x is None else np.asarray(to_numpy(x.cpu()) if isinstance(x, torch.Tensor) else x)


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


def check_shapes(shape: tuple[int, ...], **others: Any) -> None:
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
