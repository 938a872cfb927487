"""What Python itself costs in a tick after a pause: a chain of small functions, each with code of its own.

    python tests/real/cold_calls.py [functions=60]

Prints microseconds (p50, p99) of the chain under SCHED_FIFO where allowed, without a pause and after 2 and 10 ms: the
processor's caches hold less of it then.
"""

import contextlib
import os
import sys
import time
from types import FunctionType

import numpy as np


def link(following, value, row):
    value = value + 1.0
    if value < 0.0:
        return row
    doubled = [2.0 * number for number in row]
    return following[0](following[1:], value, doubled) if following else row


def main(arguments):
    count = int(dict(item.split("=", 1) for item in arguments).get("functions", 60))
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(40))
    chain = [FunctionType(link.__code__.replace(co_name=f"link_{k}"), globals()) for k in range(count)]
    for pause in (0.0, 0.002, 0.01):
        spent = []
        for _ in range(500):
            if pause:
                time.sleep(pause)
            begin = time.perf_counter()
            chain[0](chain[1:], 0.0, [1.0] * 7)
            spent.append(1e6 * (time.perf_counter() - begin))
        p50, p99 = np.percentile(spent[100:], [50, 99])
        sys.stdout.write(f"{count} functions, {1e3 * pause:g} ms pause: {p50:.0f} / {p99:.0f} us\n")


if __name__ == "__main__":
    main(sys.argv[1:])
