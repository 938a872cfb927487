"""One torch thread per process; for tests about time a witness that tells whether the machine itself stood still."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)  # fastest for small networks, and waiting threads stall busy machines

STALL = 0.05
"""A plain thread that wakes up later than this [s] shows that the machine stood still."""
PROBE = """
import os, sys, time
while os.getppid() == int(sys.argv[1]):
    due = time.monotonic() + 0.005
    time.sleep(0.005)
    late = time.monotonic() - due
    if late > float(sys.argv[2]):
        print(due, late, flush=True)
"""


class Witness:
    """A process of one plain thread that sleeps 5 ms at a time and notes when it is woken up late."""

    def __init__(self):
        self._out = tempfile.NamedTemporaryFile(prefix="stalls_", suffix=".txt")  # noqa: SIM115
        command = [sys.executable, "-S", "-E", "-c", PROBE, str(os.getpid()), str(STALL)]
        self._process = subprocess.Popen(command, stdout=self._out)
        self.told = []

    def worst(self, since):
        """Latest wake-up [s] that was due after `since` [monotonic]; 0 without one."""
        rows = [line.split() for line in Path(self._out.name).read_text().splitlines()]
        return max((float(late) for due, late in rows if float(due) + float(late) > since), default=0.0)

    def close(self):
        self._process.kill()
        self._process.wait()
        self._out.close()


WITNESS = pytest.StashKey[Witness]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """A test about time that fails while the machine stood still proves nothing and is tried once more, aloud."""
    if item.get_closest_marker("timing") is None:
        return None
    witness = item.config.stash.setdefault(WITNESS, None) or Witness()
    item.config.stash[WITNESS] = witness
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    since = time.monotonic()
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    late = witness.worst(since)
    if late and any(report.failed for report in reports):
        why = next(str(report.longrepr).strip().splitlines()[-1] for report in reports if report.failed)
        witness.told.append(f"{item.nodeid}: a plain thread woke up {1e3 * late:.0f} ms late; tried once more. {why}")
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for fixture in definitions:
                if fixture.cached_result is not None and fixture.cached_result[2] is not None:
                    fixture.cached_result = None  # a fixture that failed is made anew
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter, config):
    witness = config.stash.get(WITNESS, None)
    if witness is not None and witness.told:
        terminalreporter.section(f"machine stalls: {len(witness.told)}")
        for line in witness.told:
            terminalreporter.line(line)


def pytest_unconfigure(config):
    witness = config.stash.get(WITNESS, None)
    if witness is not None:
        witness.close()
