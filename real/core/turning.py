"""Differences of positions in plain floats, the short way round for joints that turn for ever."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

TURN = 2.0 * pi


def wrap(angle: float) -> float:
    """Angle in [-pi, pi); that of arrays is `limiter.wrap`, equal bit for bit."""
    return (angle + pi) % TURN - pi


def differences(a: Sequence[float], b: Sequence[float], turning: Sequence[bool]) -> list[float]:
    """(J,) a - b [rad].

    Args:
        a: (J,) positions [rad].
        b: (J,) positions [rad].
        turning: (J,) which joints turn for ever.
    """
    return [wrap(p - q) if turns else p - q for p, q, turns in zip(a, b, turning)]
