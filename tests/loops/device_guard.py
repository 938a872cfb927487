"""Finds waits for the device, on a machine without one: whatever would copy a value to the host fails."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

METHODS = ("item", "cpu", "numpy", "tolist", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero")
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero", "repeat_interleave")


class HostSyncError(AssertionError):
    """Something waited for the device."""


class _Functions(TorchFunctionMode):
    """Calls that are no operators on the CPU, such as `.cpu()` of a CPU tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in METHODS:
            raise HostSyncError(f"Tensor.{name} waits for the device")
        if name == "to" and any(str(value) == "cpu" for value in args[1:]) and args[0].device.type != "cpu":
            raise HostSyncError("Tensor.to('cpu') waits for the device")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):
    """Operators whose result's shape or control flow depends on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if name in WAITING:
            raise HostSyncError(f"aten.{name} waits for the device")
        if name in ("index", "index_put", "index_put_"):
            masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
            if masks:
                raise HostSyncError(f"aten.{name} with a mask waits for the device: its size depends on values")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_host_sync() -> Any:
    """Everything inside that would wait for a device raises `HostSyncError`."""
    with _Functions(), _Operators():
        yield
