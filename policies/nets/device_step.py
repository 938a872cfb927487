"""Running the same step many times on a device: plainly, compiled, or as a CUDA graph; metrics without waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from robot_rl import parallel
from robot_rl.types import Metrics

ACCELERATE = ("auto", "eager", "compile", "graph", "compile_graph")
AMP = ("auto", "float32", "bf16")
_WARM_UP = 3  # steps before the capture: libraries pick their kernels and workspaces in them
F = TypeVar("F", bound=Callable[..., object])


def resolve_accelerate(wanted: str, device: torch.device) -> tuple[bool, bool]:
    """(compile, graph) for an option.

    "auto" is plain on the CPU, where compiling gains little at these sizes and costs 10 to 20 s (measured). On CUDA
    it is "compile_graph", and "compile" with several processes: their reductions stay outside of graphs.

    Raises:
        ValueError: unknown option, or a graph where there can be none.
    """
    if wanted not in ACCELERATE:
        raise ValueError(f"accelerate is '{wanted}', expected one of {', '.join(ACCELERATE)}")
    cuda, several = device.type == "cuda", parallel.size() > 1
    if wanted == "auto":
        return cuda, cuda and not several
    graph = wanted in ("graph", "compile_graph")
    if graph and not cuda:
        raise ValueError(f"accelerate '{wanted}' captures CUDA graphs, got device '{device}'; use 'eager' or 'compile'")
    if graph and several:
        raise ValueError(f"accelerate '{wanted}' with {parallel.size()} processes; use 'compile' or 'eager' there")
    return wanted in ("compile", "compile_graph"), graph


def resolve_amp(wanted: str, device: torch.device) -> bool:
    """Whether matrix products run in bfloat16; "auto" means on CUDA.

    Raises:
        ValueError: unknown option.
    """
    if wanted not in AMP:
        raise ValueError(f"amp is '{wanted}', expected one of {', '.join(AMP)}")
    return wanted == "bf16" or (wanted == "auto" and device.type == "cuda")


def half_products(device: torch.device, wanted: bool) -> torch.autocast:
    """Matrix products in bfloat16 inside, where wanted."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=wanted, cache_enabled=False)


def maybe_compiled(function: F, wanted: bool) -> F:
    """The function, or torch's compiled form of it (fixed shapes)."""
    return torch.compile(function, dynamic=False) if wanted else function  # type: ignore[return-value]


class Repeated:
    """A step without arguments that reads and writes tensors which never move.

    With `graph` the first calls run plainly on a stream of their own, the next is captured, and all later ones replay
    the capture: one launch in place of hundreds. Every call is one step, the warm-up included.

    Args:
        step: the work; must not wait for the device nor depend on host values that change.
        graph: capture it (CUDA only).
        generators: random generators that the step draws from.
    """

    def __init__(self, step: Callable[[], None], *, graph: bool, generators: Sequence[torch.Generator] = ()) -> None:
        self._step, self._wanted, self._generators = step, graph, generators
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """One step."""
        if not self._wanted:
            self._step()
            return
        if self._graph is None and self._calls >= _WARM_UP:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._calls += 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step()
            torch.cuda.current_stream().wait_stream(side)

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):  # records, executes nothing
            self._step()
        self._graph = graph


class DeviceMetrics:
    """Means of named scalars since the last reading, added up on the device and read in one copy.

    Args:
        names: of the scalars.
        device: where they are.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.names = tuple(names)
        self._sum = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self._count = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self._one = torch.ones((), dtype=torch.float64, device=device)
        self._last: dict[str, float] = {}

    def add(self, **values: Tensor) -> None:
        """Count () tensors by name."""
        for name, value in values.items():
            i = self.names.index(name)
            self._sum[i] += value.detach()
            self._count[i] += self._one

    def read(self, method: str, updates: int) -> Metrics:
        """train/<name> means since the last reading; those that nothing was added to keep their last value.

        Raises:
            FloatingPointError: one is not finite.
        """
        total, count = torch.stack([self._sum, self._count]).tolist()
        self._sum.zero_()
        self._count.zero_()
        fresh = {f"train/{name}": s / c for name, s, c in zip(self.names, total, count) if c}
        bad = [name for name, value in fresh.items() if not math.isfinite(value)]
        if bad:
            raise FloatingPointError(
                f"{method} diverged by update {updates}: {', '.join(bad)} not finite; resume from an earlier "
                "checkpoint, look for non-finite rewards or observations, lower lr, or train with amp=float32"
            )
        self._last |= fresh
        return dict(self._last)
