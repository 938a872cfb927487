"""One torch thread per process; the command line in this process; a witness of stalls for tests about time."""

import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from _pytest.runner import runtestprotocol

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Its limit of 200 ms for an example fails on a busy machine; what a test says of time it measures itself.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
torch.set_num_threads(1)  # fastest for small networks, and waiting threads stall busy machines


os.environ.pop("PYTHONSAFEPATH", None)  # of whoever started pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that learns takes minutes of a processor, and longer where others use it: it only has to end."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(7200))


def seed_global_generators(of: str) -> None:
    """The same draws whatever ran before. `TEST_SEED=1 make units` gives others, to find tests that draws decide."""
    seed = zlib.crc32(of.encode()) ^ int(os.environ.get("TEST_SEED", "0"))
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


@pytest.fixture(autouse=True, scope="module")
def draws_of_a_module(request: pytest.FixtureRequest) -> None:
    seed_global_generators(request.node.nodeid)  # before the fixtures of the module


@pytest.fixture(autouse=True)
def draws_of_a_test(request: pytest.FixtureRequest) -> None:
    seed_global_generators(request.node.nodeid)


@pytest.fixture(autouse=True)
def start_of_children() -> Iterator[None]:
    """The command line, run in this process, sets how its children start: not those of this test or the next one."""
    os.environ.pop("PYTHONSAFEPATH", None)  # a fixture of the module may have run it
    yield
    os.environ.pop("PYTHONSAFEPATH", None)


@pytest.fixture(scope="session")
def robot_rl_in() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in this process: to start a new one takes 2.5 s of processor time.

    (folder, *arguments, path=None) -> what a process would have answered; `path` is a folder of modules.
    """

    def run(folder: Path, *arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        from robot_rl import cli, extras
        from robot_rl.verbs import build

        words = ["robot-rl", *(str(item) for item in arguments)]
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        out, error, code = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch:  # all that a process takes with it
            patch.chdir(folder)
            patch.setattr(sys, "argv", words)
            for name, value in (("_allowed", set()), ("_all", False), ("_changed", False)):
                patch.setattr(extras, name, value)
            patch.setattr(build, "_planned", [])
            patch.setenv("HYDRA_FULL_ERROR", os.environ.get("HYDRA_FULL_ERROR", ""))
            if path is not None:
                patch.syspath_prepend(path)
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
                    cli.main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                torch.set_num_threads(1)
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        return subprocess.CompletedProcess(words, code, out.getvalue(), error.getvalue())

    return run


@pytest.fixture
def robot_rl(tmp_path: Path, robot_rl_in: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Any]:
    """`robot_rl_in` the scratch folder: (*arguments, path=None)."""
    return partial(robot_rl_in, tmp_path)


class Fork:
    """A copy of this process that runs a function, without a new start: it can be killed, crash, and set its limits.

    Args:
        work: (say) -> anything; `say` writes words as one line to `stdout`.
    """

    def __init__(self, work: Callable[[Callable[..., Any]], object]):
        into, out = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                work(lambda *words: os.write(out, f"{' '.join(map(str, words))}\n".encode()))
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(out)
        self.stdout = open(into)  # noqa: SIM115

    def wait(self, number: int = 0) -> tuple[int, str]:
        """Send a signal if one is given; exit code as `subprocess` has it, and what is left to read."""
        if number:
            os.kill(self.pid, number)
        with self.stdout:
            said = self.stdout.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), said


@pytest.fixture
def fork() -> type[Fork]:
    return Fork


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
