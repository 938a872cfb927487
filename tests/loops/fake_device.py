"""A CUDA device that is not there: shapes, types and devices are followed, nothing is computed.

Tensors are PyTorch's fake tensors on "cuda:0": an operator that mixes them with tensors of the CPU fails, and so does
reading a value. What remains untested is what only a driver can do: kernels, streams, graphs.
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
        kwargs = {key: value for key, value in (kwargs or {}).items() if key != "generator"}
        if name == "__getitem__":
            return _view(*args)
        if name == "__setitem__":
            x, key, value = args
            there = _view(x, key)
            return there.copy_(value) if isinstance(value, torch.Tensor) else there.fill_(value)
        return func(*args, **kwargs)


@contextlib.contextmanager
def fake_cuda(monkeypatch: Any) -> Any:
    """Inside, device "cuda" is a fake one."""
    monkeypatch.setattr(torch, "Generator", _Generator)
    with FakeTensorMode(), _Indexing():
        yield
