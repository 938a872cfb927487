"""Real-time priority for single threads."""

from __future__ import annotations

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
