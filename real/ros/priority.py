"""Real-time priority for threads of this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading

NOT_HERE = "not allowed (Linux alone has it)"


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
    """Give the calling thread SCHED_FIFO, the process's other threads one priority less, and lock the memory.

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
        own = threading.get_native_id()
        for thread in os.listdir("/proc/self/task"):
            if int(thread) != own:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(max(priority - 1, 1)))
    except OSError as error:
        return f"not allowed ({error})"
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mlockall(3)  # MCL_CURRENT | MCL_FUTURE
    return "on"
