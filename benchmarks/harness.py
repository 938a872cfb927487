"""Contestants in turn, round by round, so that other work on the machine disturbs all alike; ratios within rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import torch


def compare(
    cases: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm: int = 0,
    before: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time every case once a round; every other round begins with the last.

    Args:
        cases: name -> does the work of one round.
        rounds: that count.
        warm: rounds before them.
        before: what is done untimed before a round.
        clock: s; `time.process_time` leaves out what other programs do.

    Returns:
        name -> seconds of each round, in the order of `cases`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(-warm, rounds):
        if before is not None:
            before()
        for name, work in cases.items() if number % 2 == 0 else reversed(list(cases.items())):
            begin = clock()
            work()
            if number >= 0:
                seconds[name].append(clock() - begin)
    return seconds


def ratio(ours: Sequence[float], theirs: Sequence[float], *, quartiles: bool = False) -> dict[str, float]:
    """How many times faster: `theirs` over `ours` within rounds, median and range.

    Args:
        ours: seconds.
        theirs: seconds, as many.
        quartiles: instead of the extremes.
    """
    found = [other / own for own, other in zip(ours, theirs, strict=True)]
    low, high = np.quantile(found, (0.25, 0.75)) if quartiles else (min(found), max(found))
    return {"ratio": median(found), "ratio_low": float(low), "ratio_high": float(high)}


def repeat(work: Callable[[], object], times: int) -> Callable[[], Any]:
    """`work`, so many times."""

    def go() -> None:
        for _ in range(times):
            work()

    return go


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes in one thread inside: with more, load elsewhere decides."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def sbx_is_here() -> bool:
    """SBX is a peer where it is installed (`pip install sbx-rl`); JAX computes in one thread then."""
    # read when JAX is first imported
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    return find_spec("sbx") is not None
