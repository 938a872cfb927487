"""The fault table: what a row is, and how it is proved against a robot of somebody else's.

A row is a generator: it does harm, yields when that began, and looks at what is to hold once the robot has stopped.
"""
# pyright: reportOptionalMemberAccess=false, reportOptionalSubscript=false

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from foreign_cell import START, Cell
from ros_harness import FOREIGN_CLOCK, NAMES, SPEC, wait

VELOCITY, ACCELERATION, TICK = 1.0, 5.0, 0.01
POSITION = SPEC.format(mode="forward_position", timeout=0.0)
TIMED = SPEC.format(mode="forward_velocity", timeout=0.3)
ELSEWHERE = POSITION + FOREIGN_CLOCK
INJECT = ("fault_injection:=true",)
HERE = np.array([START[name] for name in NAMES])


@dataclass(frozen=True)
class Row:
    """One fault.

    Args:
        name: row of the table and what is done.
        cause: (cell) -> generator, see the module.
        stops: timeout after which the robot begins to brake [s]; None: it is not to stop.
        ends: states that may be reached.
        faults: of which one is named; empty: none.
        first: the row that stands for its class.
        cell: arguments of `Cell`.
    """

    name: str
    cause: Callable[[Cell], Iterator[float]]
    stops: float | None
    ends: tuple[str, ...]
    faults: tuple[str, ...]
    first: bool
    cell: dict = field(default_factory=dict)


ROWS: list[Row] = []


def row(name, *, stops=None, ends=("ACTIVE",), faults=(), first=False, **cell):
    def add(cause):
        ROWS.append(Row(name, cause, stops, ends, faults, first, cell))
        return cause

    return add


def now():
    return time.monotonic()


def said(made, fault):
    """A fault that does not move the driver, and stays until a reset."""
    return made.station.state == "FAULT" and made.fault() == fault


class Stub:
    """`command_stub` as a process, on its way to 1.5 rad; ended with the row, also with one that fails."""

    def __init__(self, kind, made):
        command = [sys.executable, str(Path(__file__).parent / "command_stub.py"), kind, *map(str, HERE)]
        root = str(Path(__file__).resolve().parents[3])
        env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{Path(__file__).parent}"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=env, text=True)
        made.others.callback(self.end)

    def drive(self, made):
        made.station.wait_state("ACTIVE", limit=60.0)
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        made.station.until(lambda: np.abs(made.station.last.velocity).min() > 0.5, what="motion")
        return self

    def end(self):
        self.process.kill()
        self.process.wait()


def prove(made, row):
    """Run a row; seconds until the robot stood and how many it had, None where it was not to stop."""
    with contextlib.closing(row.cause(made)) as steps:  # a failure's traceback would keep it from ending what it began
        return _prove(made, row, steps)


def _prove(made, row, steps):
    stood, since = None, next(steps)
    if row.stops is not None:
        # timeout + v / a + 2 ticks, and a period of the driver's each way: what it measured, what it heard
        most = row.stops + VELOCITY / ACCELERATION + 2 * TICK + 2 / made.driver.rate
        took = made.stopped_after(since)
        assert took <= most, f"stood after {took:.3f} s, expected within {most:.3f} s"
        stood = took, most
    made.station.wait_state(*row.ends)
    if row.faults:
        named = wait(made.fault, what="the fault's name")
        assert named in row.faults, f"{named}, of {made.told()}"
    made.check_commands()
    for _ in steps:
        raise AssertionError("a row yields once")
    made.check_commands()
    return stood
