"""Choice of the backend: the fastest one present, unless a program or the environment names one."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

log = logging.getLogger(__name__)

VARIABLE = "ROBOT_RL_ADVANTAGE_BACKEND"
CPU = ("numba", "numpy", "torch")  # in order of speed
CUDA = ("triton", "torch")
_chosen: str | None = None
_logged: set[str] = set()


@functools.cache  # looking for a package costs more than a small batch
def available() -> tuple[str, ...]:
    """Names of the backends whose packages are installed, fastest first."""
    present = {"numpy": True, "torch": True}
    for name in ("numba", "triton"):
        present[name] = importlib.util.find_spec(name) is not None
    return tuple(name for name in dict.fromkeys((*CPU, *CUDA)) if present[name])


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run everything inside the `with` block on one backend, whatever the environment says.

    Args:
        name: "auto", "numba", "numpy", "torch" or "triton".

    Raises:
        ValueError: unknown name.
        ImportError: the package of that backend is not installed.
    """
    global _chosen
    before, _chosen = _chosen, _check(name)
    try:
        yield
    finally:
        _chosen = before


def backend(device: str = "cpu") -> str:
    """Name of the backend that serves arrays of a device now.

    Order of authority: `use_backend`, the variable ROBOT_RL_ADVANTAGE_BACKEND, the fastest one installed. A choice that
    cannot serve the device (numpy for CUDA tensors, triton for the CPU) gives way to the automatic one.

    Args:
        device: "cpu" or "cuda".

    Raises:
        ValueError: the variable holds an unknown name.
        ImportError: the package of the named backend is not installed.
    """
    able = CPU if device == "cpu" else CUDA
    wanted = _chosen or _check(os.environ.get(VARIABLE, "auto"))
    name = wanted if wanted in able else next(x for x in able if x in available())
    if name not in _logged:
        _logged.add(name)
        log.info("advantage core: %s backend for %s arrays", name, device)
    return name


@functools.cache
def kernels(name: str) -> ModuleType:
    """Module of a backend, imported on first use."""
    if name == "numpy":
        from robot_rl.advantage.backends import numpy_scan as scan
    elif name == "numba":
        from robot_rl.advantage.backends import numba_scan as scan
    elif name == "triton":
        from robot_rl.advantage.backends import triton_scan as scan
    else:
        from robot_rl.advantage.backends import torch_scan as scan
    return scan


def _check(name: str) -> str:
    known = ("auto", *dict.fromkeys((*CPU, *CUDA)))
    if name not in known:
        raise ValueError(f"unknown advantage backend '{name}'; expected one of {', '.join(known)} ({VARIABLE})")
    if name != "auto" and name not in available():
        raise ImportError(f"advantage backend '{name}' is not installed; run `pip install {name}` or choose another")
    return name
