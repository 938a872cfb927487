"""Real-time priority for threads of this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

NOT_HERE = "not allowed (Linux alone has it)"
RESENDS = "dds.asyn"
"""Name of Fast DDS's thread that sends again and to late joiners. It does not sleep while another thread of its process
has the writer (`FlowControllerImpl::run`, seen in 3.2.3): at one priority with that one, and with such a thread on each
processor, nobody else runs until the kernel throttles them after 0.95 s. So it comes behind them."""


def lift(priority: int, names: tuple[str, ...] = ()) -> str:
    """Give this process's threads of these names, or the calling one, SCHED_FIFO; "on", "off" or why not."""
    if priority <= 0:
        return "off"
    if sys.platform != "linux":
        return NOT_HERE
    threads = [t.native_id for t in threading.enumerate() if t.name in names] if names else [0]
    try:
        for thread in threads:
            if thread is not None:
                os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        return f"not allowed ({error})"
    return "on"


def lift_all(priority: int) -> str:
    """`lift_process`, and lock the memory.

    Returns:
        "on", "off" or why not.
    """
    told = lift_process(priority)
    if told == "on":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mlockall(3)  # MCL_CURRENT | MCL_FUTURE
    return told


def lift_process(priority: int) -> str:
    """Give the calling thread SCHED_FIFO, and the process's other threads one priority less (`RESENDS` two).

    The others too: a control thread that waits for the interpreter lock of an ordinary thread is an ordinary thread.

    Returns:
        "on", "off" or why not.
    """
    if priority <= 0:
        return "off"
    if sys.platform != "linux":
        return NOT_HERE
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        _others(os.SCHED_FIFO, max(priority - 1, 1))
    except OSError as error:
        return f"not allowed ({error})"
    return "on"


@contextlib.contextmanager
def lift_priority(priority: int) -> Iterator[str]:
    """`lift_process` for a while; yields what it returns."""
    told = lift_process(priority)
    try:
        yield told
    finally:
        if told == "on":
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            _others(os.SCHED_OTHER, 0)


def _others(policy: int, priority: int) -> None:
    own = threading.get_native_id()
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != own:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                behind = (task / "comm").read_text().startswith(RESENDS)
                os.sched_setscheduler(int(task.name), policy, os.sched_param(max(priority - behind, min(priority, 1))))
