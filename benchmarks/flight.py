"""What the flight recorder costs the supervisor's tick; no ROS, no other process.

The robot's classes arrive by name: this room knows none of them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ros_core import run_alone

CORE = "robot_rl.real.core"
BLOCK = 100
"""Ticks that one of the two pipelines has in turn."""


def run(*, quick: bool = False, ticks: int = 6_000, rounds: int = 5) -> dict[str, Any]:
    """Rounds of `cost`; the median of their ratios is what counts on a machine that others share.

    Args:
        quick: one round of 500 ticks.
        ticks: of each pipeline in a round.
        rounds: that are measured.

    Returns:
        One row per round, and the median ratios "p50" and "p99" of a tick with the recorder to one without.
    """
    ticks, rounds = (500, 1) if quick else (ticks, rounds)
    rows = {f"round {number + 1}": cost(ticks) for number in range(rounds)}
    medians = {name: float(np.median([row[name] for row in rows.values()])) for name in ("p50", "p99")}
    return {"rows": rows, **medians, "load_average": os.getloadavg()[0], "cores": os.cpu_count()}


def cost(ticks: int = 6_000, *, joints: int = 7, rate: float = 100.0) -> dict[str, float]:
    """Whole ticks of two pipelines, one with a recorder and one without, in turn for a second each, in real time.

    Both follow the same commands; only the recorder of the one whose turn it is has anything to write. It runs as in
    the supervisor's process: a thread of its own, under SCHED_FIFO where that is allowed, no garbage collector.

    Args:
        ticks: of each.
        joints: of the arm.
        rate: ticks per second.

    Returns:
        "without_p50_us", "without_p99_us", "with_p50_us", "with_p99_us", their ratios "p50" and "p99", "fifo", and
        "bytes_per_tick".

    Raises:
        RuntimeError: the supervisor did not follow the commands, or the recorder lost something.
    """
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        writer = importlib.import_module("robot_rl.data.flight").FlightWriter(Path(folder) / "flight.mcap")
        try:
            run_alone(_run, found, writer, ticks, joints, 1.0 / rate)
        finally:
            writer.close(60.0)
        found["bytes_per_tick"] = writer.written / (ticks + BLOCK)
        if writer.problem or found["followed"] < 2 * ticks:
            raise RuntimeError(f"followed {found['followed']} of {2 * ticks} commands; {writer.problem}")
    return found


def _run(found: dict[str, float], writer: Any, ticks: int, joints: int, period: float) -> None:
    found["fifo"] = 0
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(40))
        found["fifo"] = 1
    arms = {"without": Arm(joints, period, None), "with": Arm(joints, period, writer)}
    spent: dict[str, list[float]] = {name: [] for name in arms}
    due = time.monotonic()
    for block in range(ticks // BLOCK + 1):
        order = list(arms) if block % 2 else list(reversed(arms))
        for name in order:
            for _ in range(BLOCK):
                due += period
                time.sleep(max(due - time.monotonic(), 0.0))
                spent[name].append(arms[name].tick())
    found["followed"] = sum(arm.followed for arm in arms.values())
    for name, values in spent.items():
        us = 1e6 * np.array(values[BLOCK:])
        for q in (50, 99):
            found[f"{name}_p{q}_us"] = float(np.percentile(us, q))
    for q in (50, 99):
        found[f"p{q}"] = found[f"with_p{q}_us"] / found[f"without_p{q}_us"]


class Arm:
    """A pipeline and a robot that is where it is told to be, on a clock of its own."""

    def __init__(self, joints: int, period: float, flight: Any) -> None:
        core = {name: importlib.import_module(f"{CORE}.{name}") for name in ("spec", "settings", "pipeline", "intake")}
        limits = {"lower": -2.0, "upper": 2.0, "velocity": 2.0, "acceleration": 10.0, "effort": 50.0}
        raw = {"name": "bench", "joints": [{"name": f"j{i}", **limits} for i in range(joints)]}
        self.spec = core["spec"].RobotSpec.from_dict(raw)
        settings = core["settings"].SafetySettings(max_rearm_per_minute=10_000)
        self.pipe = core["pipeline"].CommandPipeline(self.spec, settings, flight=flight)
        self.pipe.controller(core["pipeline"].Controller(1))
        self._message, self._state = (
            core["intake"].CommandMessage,
            importlib.import_module("robot_rl.real.robot").RobotState,
        )
        self.period, self.count, self.followed = period, 0, 0
        self.place, self.rest = np.zeros(joints), np.zeros(joints)

    def tick(self) -> float:
        """One tick; its seconds."""
        self.count += 1
        now = 100.0 + self.count * self.period
        if self.count == 80:
            self.pipe.enable()
        wave = 0.8 * np.sin(1.5 * (now - 101.0) + 0.1 * np.arange(len(self.place))) if self.count > 90 else self.rest
        target = self.place + np.clip(wave - self.place, -0.05, 0.05)
        times = np.array([self.period])
        asked = self._message("policy", "p", self.count, self.spec.names, now, times, {"positions": target[None]})
        state = self._state(now, self.place.copy(), self.rest)
        begin = time.perf_counter()
        self.pipe.offer(asked, now)
        sent = self.pipe.tick(now, state)
        spent = time.perf_counter() - begin
        self.place = sent.value.copy()
        self.followed += sent.authority == "policy"
        return spent
