"""The limiter under adversarial input: every violation of a limit beyond rounding is counted."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from robot_rl.real.core.limiter import JointLimits

TOLERANCE = 1e-9


def run(
    quick: bool = False,
    joints: int = 20_000,
    steps: int = 1_000,
    seed: int = 0,
    limiter: str = "robot_rl.real.core.limiter.JointLimiter",
) -> dict[str, Any]:
    """Drive random joints with NaN, infinities, jumps, square waves at Nyquist and noise, and check every command.

    Limits, accelerations and periods are drawn per joint over orders of magnitude; half of the joints start at speed.

    Args:
        quick: a twentieth of the steps.
        joints: joints per case, checked at once.
        steps: control periods per joint and case.
        seed: of all draws.
        limiter: class path of the limiter.

    Returns:
        {"rows": case -> {"joint_steps", "violations": steps with any excess above 1e-9 (relative to the limit),
        "position", "velocity", "acceleration": largest excess, relative, "us_per_1000": cost}, "joint_steps",
        "violations", "tolerance"}. Cases: a fixed period, periods that vary from tick to tick by up to 4 times, a jerk
        limit on top, and brakes thrown in at random.
    """
    module, _, name = limiter.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    steps = max(steps // 20, 60) if quick else steps
    cases = {
        "fixed period": {},
        "varying period": {"vary": True},
        "jerk limit": {"vary": True, "jerk": True},
        "random brakes": {"vary": True, "brakes": True},
    }
    rows = {case: _case(kind, joints, steps, seed + i, **flags) for i, (case, flags) in enumerate(cases.items())}
    return {
        "rows": rows,
        "joint_steps": sum(row["joint_steps"] for row in rows.values()),
        "violations": sum(row["violations"] for row in rows.values()),
        "tolerance": TOLERANCE,
    }


def _case(
    kind: Any, joints: int, steps: int, seed: int, *, vary: bool = False, jerk: bool = False, brakes: bool = False
) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    groups = 16  # joints of a group share their period, as the joints of one robot do
    worst, violations, seconds = np.zeros(3), 0, 0.0
    for _ in range(groups):
        count = joints // groups
        shortest = float(10.0 ** rng.uniform(-3.0, -1.3))
        lower = rng.uniform(-3.0, 0.0, count)
        upper = lower + 10.0 ** rng.uniform(-2.0, 0.8, count)
        speed, power = 10.0 ** rng.uniform(-1.5, 1.0, count), 10.0 ** rng.uniform(-1.0, 2.0, count)
        bounds = JointLimits(lower, upper, speed, power, jerk=10.0 ** rng.uniform(0.0, 3.0, count) if jerk else None)
        limits = kind(bounds, period=shortest, min_period=shortest)
        _start(limits, rng, lower, upper, speed, power)
        for k in range(steps):
            period = shortest * float(rng.uniform(1.0, 4.0)) if vary else shortest
            target = _target(rng, k, lower, upper, limits.position)
            position, velocity = limits.position, limits.velocity
            begin = time.perf_counter()
            if brakes and rng.random() < 0.1:
                limits.brake(period)
            else:
                limits.step(target, period)
            seconds += time.perf_counter() - begin
            excess = _excess(limits, position, velocity, period, lower, upper, speed, power)
            worst = np.maximum(worst, excess.max(axis=1))
            violations += int((excess > TOLERANCE).any(axis=0).sum())
    total = groups * (joints // groups) * steps
    return {
        "joint_steps": total,
        "violations": violations,
        "position": float(worst[0]),
        "velocity": float(worst[1]),
        "acceleration": float(worst[2]),
        "us_per_1000": seconds / total * 1e9,
    }


def _start(limits: Any, rng: np.random.Generator, lower: Any, upper: Any, speed: Any, power: Any) -> None:
    """Half of the joints start at a speed that the room ahead allows (v^2 / 2a <= room)."""
    position = rng.uniform(lower, upper)
    velocity = rng.uniform(-1.0, 1.0, len(lower)) * (rng.random(len(lower)) < 0.5)
    room = np.where(velocity > 0.0, upper - position, position - lower)
    limits.reset(position, velocity * np.minimum(speed, np.sqrt(2.0 * power * room)))


def _target(rng: np.random.Generator, k: int, lower: Any, upper: Any, position: Any) -> np.ndarray:
    """Per joint one of: NaN, infinities, 1e300, a square wave at Nyquist, a jump, noise near the command, one end."""
    kind = rng.integers(0, 7, len(lower)) if k % 2 else np.full(len(lower), (k // 60) % 7)
    wide = upper - lower
    choices = [
        np.full(len(lower), np.nan),
        np.where(rng.random(len(lower)) < 0.5, np.inf, -np.inf),
        np.where(rng.random(len(lower)) < 0.5, 1e300, -1e300),
        np.where(k % 4 < 2, upper + wide, lower - wide),
        rng.uniform(lower - wide, upper + wide),
        position + rng.normal(size=len(lower)) * 0.01 * wide,
        upper,
    ]
    return np.choose(kind, choices)


def _excess(
    limits: Any, position: Any, velocity: Any, period: float, lower: Any, upper: Any, speed: Any, power: Any
) -> np.ndarray:
    """(3, J) excess over the position, velocity and acceleration limits, relative; nan counts as infinite."""
    place = np.maximum(limits.position - upper, lower - limits.position) / (upper - lower)
    quick = np.abs(limits.velocity) / speed - 1.0
    hard = np.abs(limits.velocity - velocity) / (power * period) - 1.0
    drift = np.abs(limits.position - position - limits.velocity * period)  # the two numbers tell the same story
    excess = np.stack([np.maximum(place, np.where(drift > TOLERANCE, np.inf, 0.0)), quick, hard])
    return np.maximum(np.where(np.isnan(excess), np.inf, excess), 0.0)
