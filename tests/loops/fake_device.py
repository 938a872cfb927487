"""A CUDA device that is not there: shapes, types and devices are followed, nothing is computed.

Tensors are PyTorch's fake tensors on "cuda:0": an operator that mixes them with tensors of the CPU fails, and so does
reading a value. What remains untested is what only a driver can do: kernels, streams, graphs, autograd's threads.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

aten: Any = torch.ops.aten


class _Generator:
    def __init__(self, device: Any = "cpu") -> None:
        self.device = torch.device(device)

    def manual_seed(self, seed: int) -> _Generator:
        return self


def _view(x: Any, key: Any) -> Any:
    """Basic indexing by operators: Python's own asks for the driver."""
    at = 0
    for item in key if isinstance(key, tuple) else (key,):
        if item is None:
            x = aten.unsqueeze(x, at)
            at += 1
        elif isinstance(item, slice):
            stop = x.shape[at] if item.stop is None else item.stop
            x = aten.slice(x, at, item.start or 0, stop)
            at += 1
        elif isinstance(item, int):
            x = aten.select(x, at, item)
        elif isinstance(item, torch.Tensor):
            x = aten.index(x, [None] * at + [item])
            at += 1
        elif item is Ellipsis:
            at = x.dim() - 1
        else:
            raise TypeError(f"index {item!r}")
    return x


class _Indexing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__getitem__":
            return _view(*args)
        if name == "__setitem__":
            x, key, value = args
            there = _view(x, key)
            return self._copy(there, value) if isinstance(value, torch.Tensor) else there.fill_(value)
        if name == "copy_":
            return self._copy(*args)
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _copy(there: Any, value: Any) -> Any:
        assert there.device == value.device, f"{value.device} is copied to {there.device}"
        with torch._C._AutoDispatchBelowAutograd():  # above it, copying asks for the driver
            return aten.copy_(there, value)


def _without_generator(function: Any) -> Any:
    def draw(*args: Any, generator: Any = None, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return draw


@contextlib.contextmanager
def fake_cuda(monkeypatch: Any) -> Any:
    """Inside, device "cuda" is a fake one."""
    monkeypatch.setattr(torch, "Generator", _Generator)
    for name in ("rand", "randn", "randperm"):
        monkeypatch.setattr(torch, name, _without_generator(getattr(torch, name)))
    with torch.no_grad(), FakeTensorMode(), _Indexing():
        yield
