"""The two kinds of memory a replay buffer may live in: NumPy arrays on the host, tensors on a device.

The sampling code of `buffer.py` is written once against these two small classes. On the CPU it runs on NumPy because
its `take` and its slices cost a third of torch's; the tensors handed out share that memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Store = Any
"""np.ndarray for `HostArrays`, Tensor for `DeviceArrays`."""


class HostArrays:
    """NumPy arrays in main memory."""

    device = torch.device("cpu")

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Store:
        """Zeroed storage; the operating system commits its pages when they are first written."""
        return np.zeros(shape, dtype)

    def put(self, value: object, dtype: str) -> Store:
        """`value` (array or tensor) as an array of `dtype`, copied only where needed."""
        if isinstance(value, Tensor):
            value = value.detach().cpu().numpy()
        return np.asarray(value, dtype)

    def take(self, store: Store, index: Store) -> Store:
        """Rows of `store` at `index` (any shape), always a copy."""
        return store.take(index, 0)

    def tensor(self, store: Store) -> Tensor:
        """A tensor over the same memory."""
        return torch.from_numpy(store)

    def view(self, store: Store, dtype: str) -> Store:
        """The same bytes as another dtype; the last axis grows or shrinks."""
        return store.view(dtype)

    def draw(self, size: int, high: int, generator: torch.Generator) -> Store:
        """(size,) int64 uniform in [0, high)."""
        return torch.randint(high, (size,), generator=generator).numpy()

    def load(self, store: Store, rows: Store, value: np.ndarray) -> None:
        """`store[rows] = value` for host data."""
        store[rows] = value

    def host(self, store: Store) -> np.ndarray:
        """`store` as a NumPy array; no copy here."""
        return store


_DTYPES = {
    "bool": torch.bool, "uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
    "int64": torch.int64, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64,
}  # fmt: skip


class DeviceArrays:
    """Tensors on any torch device."""

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Store:
        """Zeroed storage on the device."""
        return torch.zeros(shape, dtype=_DTYPES[dtype], device=self.device)

    def put(self, value: object, dtype: str) -> Store:
        """`value` (array or tensor) as a tensor of `dtype` on the device."""
        if not isinstance(value, Tensor):
            value = torch.from_numpy(np.ascontiguousarray(value))
        return value.detach().to(self.device, _DTYPES[dtype])

    def take(self, store: Store, index: Store) -> Store:
        """Rows of `store` at `index` (any shape), always a copy."""
        rows = store.index_select(0, index.reshape(-1))
        return rows.view(*index.shape, *store.shape[1:])

    def tensor(self, store: Store) -> Tensor:
        """`store` itself."""
        return store

    def view(self, store: Store, dtype: str) -> Store:
        """The same bytes as another dtype; the last axis grows or shrinks."""
        return store.view(_DTYPES[dtype])

    def draw(self, size: int, high: int, generator: torch.Generator) -> Store:
        """(size,) int64 uniform in [0, high), without a host synchronisation."""
        return torch.randint(high, (size,), generator=generator, device=self.device)

    def load(self, store: Store, rows: object, value: np.ndarray) -> None:
        """`store[rows] = value` for host data."""
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(rows).to(self.device)
        store[rows] = torch.from_numpy(np.ascontiguousarray(value)).to(self.device)

    def host(self, store: Store) -> np.ndarray:
        """`store` copied to main memory, unless it is there."""
        return store if isinstance(store, np.ndarray) else store.cpu().numpy()


Arrays = HostArrays | DeviceArrays


def arrays_for(device: str | torch.device) -> Arrays:
    """The kind of memory of `device`."""
    return HostArrays() if torch.device(device).type == "cpu" else DeviceArrays(device)
