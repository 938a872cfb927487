"""What the core of the ROS bridge costs and how smoothly it joins chunks; no ROS, no other process.

The robot's classes arrive by name: this room knows none of them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CORE = "robot_rl.real.core"
PRIORITY = 40


def tick_cost(ticks: int = 4_000, *, joints: int = 7, rate: float = 100.0) -> dict[str, float]:
    """Processor time of one whole tick of the supervisor: door, watchdogs, state monitor, limiter, report.

    Every tick takes a new command message, as from a policy at the supervisor's rate, and a state that follows it. It
    runs as in the supervisor's process: a thread of its own under SCHED_FIFO where that is allowed, no garbage
    collector, and a pause between ticks.

    Args:
        ticks: how many are timed, after 500 more.
        joints: of the arm.
        rate: ticks per second of the supervisor's own clock.

    Returns:
        "p50_us", "p99_us", "max_us", "ticks", and "fifo": whether real-time priority was allowed.

    Raises:
        RuntimeError: the supervisor did not follow the commands.
    """
    found: dict[str, float] = {}
    run_alone(_time_ticks, found, ticks, joints, 1.0 / rate)
    if found["followed"] < ticks:
        raise RuntimeError(f"the supervisor followed {found['followed']} of {ticks} commands")
    return found


def run_alone(work: Callable[..., object], *arguments: object) -> None:
    """Call in a thread of its own, which may take real-time priority, without garbage collection."""
    thread = threading.Thread(target=work, args=arguments)
    gc.collect()
    gc.disable()
    try:
        thread.start()
        thread.join()
    finally:
        gc.enable()


def _time_ticks(found: dict[str, float], ticks: int, joints: int, period: float) -> None:
    found["fifo"] = 0
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
        found["fifo"] = 1
    spec, pipeline, state_of, message = _arm(joints)
    place, spent, followed = np.zeros(joints), [], 0
    for k in range(ticks + 500):
        now = 100.0 + k * period
        wave = 0.8 * np.sin(1.5 * (now - 101.0) + 0.1 * np.arange(joints)) if k > 100 else np.zeros(joints)
        target = place + np.clip(wave - place, -0.05, 0.05)
        asked = message("policy", "policy:p", k + 1, spec.names, now, np.array([period]), {"positions": target[None]})
        if k == 80:
            pipeline.enable()
        time.sleep(0.002)
        begin = time.perf_counter()
        pipeline.offer(asked, now)
        sent = pipeline.tick(now, state_of(now, place.copy(), np.zeros(joints)))
        spent.append(time.perf_counter() - begin)
        place = sent.value.copy()
        followed += sent.authority == "policy"
    us = 1e6 * np.array(spent[500:])
    p50, p99 = np.percentile(us, [50, 99])
    found.update(p50_us=float(p50), p99_us=float(p99), max_us=float(us.max()), ticks=ticks, followed=followed)


def border_jerk(seconds: float = 120.0, *, joints: int = 7, seed: int = 0) -> dict[str, dict[str, float]]:
    """Jerk of what the supervisor sends where a chunk takes over from another one, and between such borders.

    Chunks of 10 knots 50 ms apart replace one another every 0.25 s at 100 Hz; each is a sine of 0.3 rad at 1.5 rad/s,
    with noise on its knots. Missing chunks do not come at all; late ones come after the supervisor's
    command timeout and are refused. In both cases the chunk before is played to its end, and then the arm brakes.

    Args:
        seconds: per row.
        joints: J; limits 2 rad/s and 10 rad/s^2, so that no jerk can exceed 2,000 rad/s^3.
        seed: of the noise.

    Returns:
        row -> the largest jerk of any joint per tick [rad/s^3] as "border_p50", "border_p99", "inside_p50",
        "inside_p99"; "borders": chunks that took over; "refused": chunks refused; "stops": times the arm had to brake.
    """
    rows = {
        "on time": {},
        "1 mrad noise": {"noise": 1e-3},
        "5 mrad noise": {"noise": 5e-3},
        "1 of 2 missing": {"odd": 2},
        "2 of 3 missing": {"odd": 3, "lost": 2},
        "1 of 3 late by 150 ms": {"odd": 3, "late": 0.15},
    }
    return {name: _jerk(seconds, joints, seed, **row) for name, row in rows.items()}


def _jerk(
    seconds: float, joints: int, seed: int, *, noise: float = 0.0, odd: int = 0, lost: int = 1, late: float = 0.0
) -> dict[str, float]:
    rng, step, every = np.random.default_rng(seed), 0.01, 25
    spec, pipeline, state_of, message = _arm(joints)
    phase = np.linspace(0.0, 1.0, joints)
    place = 0.3 * np.sin(phase)
    waiting: list[tuple[float, Any]] = []
    velocity, borders, stops, before = [], [], 0, ""
    for k in range(-100, round(seconds / step)):
        now = 100.0 + k * step
        if k == -10:
            pipeline.enable()
        if k >= 0 and k % every == 0:
            times = step * 5 * np.arange(1, 11)
            path = 0.3 * np.sin(1.5 * (now - 100.0 + times)[:, None] + phase)
            path += noise * rng.standard_normal(path.shape)
            chunk = message("policy", "policy:p", k + 1, spec.names, now, times, {"positions": path})
            strange = bool(odd) and (k // every) % odd >= odd - lost
            if late or not strange:
                waiting.append((now + late if strange else now, chunk))
        for _, chunk in [item for item in waiting if item[0] <= now]:
            pipeline.offer(chunk, now)
        waiting = [item for item in waiting if item[0] > now]
        sent = pipeline.tick(now, state_of(now, place.copy(), np.zeros(joints)))
        place = sent.value.copy() if sent.publish else place
        if k >= 0:
            velocity.append(sent.velocity)
            borders += [k] if "r" in sent.flags else []
            stops += before == "ACTIVE" != sent.verdict.state
        before = sent.verdict.state
    jerk = np.abs(np.diff(velocity, n=2, axis=0)).max(axis=1) / step**2
    near = np.zeros(len(jerk), bool)
    for k in borders:
        near[max(k - 1, 0) : k + 2] = True
    begun = np.arange(len(jerk)) >= 100
    found: dict[str, float] = {}
    for name, part in (("border", jerk[near & begun]), ("inside", jerk[~near & begun])):
        for q in (50, 99):
            found[f"{name}_p{q}"] = float(np.percentile(part, q)) if part.size else float("nan")
    dropped = sum(pipeline.door.dropped.values())
    return {**found, "borders": len(borders), "refused": dropped, "stops": stops}


def _arm(joints: int) -> tuple[Any, Any, Any, Any]:
    """RobotSpec, pipeline, and the classes of state and command message."""
    limits = {"lower": -2.0, "upper": 2.0, "velocity": 2.0, "acceleration": 10.0, "effort": 50.0}
    raw = {"name": "bench", "joints": [{"name": f"j{i}", **limits} for i in range(joints)]}
    spec = _core("spec").RobotSpec.from_dict(raw)
    settings = _core("settings").SafetySettings(max_rearm_per_minute=10_000)
    pipeline = _core("pipeline").CommandPipeline(spec, settings)
    pipeline.controller(_core("pipeline").Controller(1))
    return spec, pipeline, importlib.import_module("robot_rl.real.robot").RobotState, _core("intake").CommandMessage


def _core(name: str) -> Any:
    return importlib.import_module(f"{CORE}.{name}")
