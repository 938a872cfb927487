"""A whole graph for minutes: memory and processor time of every process, and what is left when Ctrl-C ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from robot_rl import child

TRIAL = "robot_rl.real.ros.trial"
STARTED = re.compile(r"\] (\w+): started, process (\d+)")


def soak(
    minutes: float,
    path: str,
    *,
    robot_spec: str = "desk_arm",
    world: str = "reach",
    task_seconds: float = 4.0,
    settle: float = 120.0,
    record_seconds: float = 60.0,
    options: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Run simulated robot, supervisor, policy, teleoperation and recorder through `robot-rl deploy`, then end them.

    The arm gets a new goal every few seconds, the recorder a new file every minute. Once a second the resident memory
    and the processor time of every process are read. At the end, while the arm moves, the launcher gets a SIGINT as
    from Ctrl-C.

    Args:
        minutes: how long.
        path: run or checkpoint folder of a policy trained in `world`.
        robot_spec: of the robot in that world.
        world: its name.
        task_seconds: between goals.
        settle: seconds after the graph is ready that the slopes leave out, at most a fifth of the time.
        record_seconds: per file of the recorder.
        options: further arguments of `robot-rl deploy`.

    Returns:
        "rows": process -> resident memory after settling, at the end and at most [MB], its slope [MB/h], processor
        use [% of a core], its slope [points per hour]; "end": seconds from SIGINT to the last process, exit status,
        processes left, the largest commanded velocity when the SIGINT came and in the last command [rad/s], the order
        of ending; and successes, faults, soft stops, executed messages per second and supervisor's period p99 [ms] in
        the first and second half.

    Raises:
        RuntimeError: a process did not do its part; says which.
    """
    with tempfile.TemporaryDirectory(prefix="robot_rl_soak_") as folder:
        graph = child.command("robot_rl", "deploy", f"robot_spec={robot_spec}", f"world={world}")
        graph += [f"policy_path={Path(path).resolve()}", "auto_arm=true", "teleop=joy", "record=true"]
        graph += [f"record_folder={folder}/record", *options]
        launcher = subprocess.Popen(graph, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        said: list[str] = []
        reading = threading.Thread(target=_read, args=(launcher, said), daemon=True)
        reading.start()
        trial = child.command(TRIAL, "--episodes", 1000000, "--seconds", task_seconds, "--farewell")
        trial += ["--limit", str(60.0 * minutes), "--record-seconds", str(record_seconds)]
        driver = subprocess.Popen(trial, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        active, moving = threading.Event(), threading.Event()
        words: list[str] = []
        listening = threading.Thread(target=_listen, args=(driver, words, active, moving), daemon=True)
        listening.start()
        try:
            series = _sample(launcher, said, active, moving, driver, limit=120.0 * minutes + 300.0)
            family = psutil.Process(launcher.pid).children(recursive=True)
            begin = time.monotonic()
            launcher.send_signal(signal.SIGINT)
            code = launcher.wait(60.0)
            _, left = psutil.wait_procs(family, timeout=5.0)
            took = time.monotonic() - begin
            listening.join(90.0)
        except psutil.NoSuchProcess as error:
            raise RuntimeError(f"the graph has ended by itself: {' | '.join(said[-5:])}") from error
        finally:
            for process in (driver, launcher):
                if process.poll() is None:
                    process.kill()
                process.wait()
        lines = [line for line in words if line.startswith("{")]
        if not lines:
            raise RuntimeError(f"{TRIAL} ended with {driver.returncode}: {(driver.stderr or sys.stderr).read()[-500:]}")
        there = json.loads(lines[-1])
    successes = there.pop("successes")
    return {
        "rows": {name: _flatness(rows, min(settle, 12.0 * minutes)) for name, rows in series.items()},
        "minutes": minutes,
        "success": float(np.mean(successes)),
        "tasks": len(successes),
        **{name: there[name] for name in ("faults", "soft_stops", "executed_hz", "period_p99_ms")},
        "end": {
            "seconds": took,
            "status": code,
            "left": len(left),
            "velocity_moving": there["velocity_moving"],
            "velocity_last": there["velocity_last"],
            "order": [line.split("] ")[1].split(":")[0] for line in said if ": ended (" in line or "killed" in line],
        },
    }


def _read(process: subprocess.Popen[str], said: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line.rstrip())
        del said[:-500]


def _listen(process: subprocess.Popen[str], words: list[str], active: threading.Event, moving: threading.Event) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        words.append(line.strip())
        if line.strip() in ("active", "moving"):
            (active if line.strip() == "active" else moving).set()


def _sample(
    launcher: subprocess.Popen[str],
    said: list[str],
    active: threading.Event,
    moving: threading.Event,
    driver: subprocess.Popen[str],
    *,
    limit: float,
) -> dict[str, list[tuple[float, float, float]]]:
    """Process -> rows of time [s], resident memory [MB], processor time [s], one a second while it is driven."""
    series: dict[str, list[tuple[float, float, float]]] = {}
    begin = time.monotonic()
    while not moving.wait(1.0):
        if driver.poll() is not None and not moving.wait(1.0):
            raise RuntimeError(f"the trial has failed: {(driver.stderr or sys.stderr).read()[-500:]}")
        if time.monotonic() - begin > limit:
            raise RuntimeError(f"the trial has not ended within {limit:g} s")
        if not active.is_set():
            continue
        known = {match[1]: int(match[2]) for line in list(said) if (match := STARTED.search(line))}
        for name, pid in {"launcher": launcher.pid, **known}.items():
            process = psutil.Process(pid)
            times = process.cpu_times()
            row = (time.monotonic() - begin, process.memory_info().rss / 1e6, times.user + times.system)
            series.setdefault(name, []).append(row)
    return series


def _flatness(rows: list[tuple[float, float, float]], settle: float) -> dict[str, float]:
    """Level and slope of memory and processor use, by least squares over what comes after settling."""
    table = np.array(rows)
    table = table[table[:, 0] - table[0, 0] >= settle] if table[-1, 0] - table[0, 0] > settle else table
    hours, memory = table[:, 0] / 3600.0, table[:, 1]
    width = max(len(table) // 60, 1)  # processor time in a minute's windows, or as many as there are
    marks = table[::width]
    use = 100.0 * np.diff(marks[:, 2]) / np.diff(marks[:, 0])
    middle = 0.5 * (marks[1:, 0] + marks[:-1, 0]) / 3600.0
    return {
        "rss_start_mb": float(memory[0]),
        "rss_end_mb": float(memory[-1]),
        "rss_max_mb": float(memory.max()),
        "rss_mb_per_h": _slope(hours, memory),
        "cpu_percent": float(use.mean()) if len(use) else float("nan"),
        "cpu_points_per_h": _slope(middle, use),
    }


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(x, y, 1)[0]) if len(x) > 2 else float("nan")
