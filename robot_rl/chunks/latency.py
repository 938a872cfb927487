"""How long a policy takes to answer: drawn in simulation, measured on a robot."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

KINDS = ("const", "uniform", "lognormal", "trace")


class LatencyModel:
    """Latencies of requests, from a generator of its own: the same seed gives the same ones.

    Args:
        kind: "const" (base), "uniform" (base to base + jitter), "lognormal" (median base, jitter is the standard
            deviation of the logarithm times base) or "trace" (measured ones, in order, again and again).
        base_ms: see above.
        jitter_ms: see above.
        drop_p: probability that no answer ever comes.
        trace_ms: of kind "trace".
        seed: of the draws.

    Raises:
        ValueError: an option out of range.
    """

    def __init__(
        self,
        kind: str = "const",
        *,
        base_ms: float = 0.0,
        jitter_ms: float = 0.0,
        drop_p: float = 0.0,
        trace_ms: Sequence[float] = (),
        seed: int = 0,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind of latency is '{kind}', expected one of {', '.join(KINDS)}")
        if base_ms < 0 or jitter_ms < 0 or not 0 <= drop_p < 1:
            raise ValueError(
                f"base_ms, jitter_ms, drop_p are {base_ms:g}, {jitter_ms:g}, {drop_p:g}; expected 0 or more, 0 or more "
                "and a probability below 1"
            )
        if kind == "trace" and (len(trace_ms) == 0 or min(trace_ms) < 0):
            raise ValueError("a latency of kind 'trace' needs trace_ms: measured latencies, 0 or more")
        if kind == "lognormal" and base_ms <= 0:
            raise ValueError(f"base_ms is {base_ms:g}, expected above 0: the median of a lognormal latency")
        self.kind, self.base_ms, self.jitter_ms, self.drop_p = kind, base_ms, jitter_ms, drop_p
        self._trace, self._next = np.asarray(trace_ms, np.float64), 0
        self._rng = np.random.default_rng(seed)

    def draw(self, count: int) -> np.ndarray:
        """(count,) milliseconds; infinity where no answer comes."""
        if self.kind == "trace":
            found = self._trace[(self._next + np.arange(count)) % len(self._trace)]
            self._next += count
        elif self.kind == "uniform":
            found = self.base_ms + self.jitter_ms * self._rng.random(count)
        elif self.kind == "lognormal":
            found = self.base_ms * np.exp(self._rng.normal(0.0, self.jitter_ms / self.base_ms, count))
        else:
            found = np.full(count, self.base_ms)
        lost = self._rng.random(count) < self.drop_p if self.drop_p else np.zeros(count, bool)
        return np.where(lost, math.inf, found)


def ticks_of(latency_ms: np.ndarray, control_hz: float) -> np.ndarray:
    """(n,) milliseconds -> (n,) int64 control steps until the answer is there, rounded up; -1 where it never is."""
    found = np.ceil(np.where(np.isfinite(latency_ms), latency_ms, 0.0) * control_hz / 1000.0 - 1e-9)
    return np.where(np.isfinite(latency_ms), found, -1).astype(np.int64)


class DelayEstimate:
    """What delay to reckon with: a high percentile of the newest measured ones.

    Args:
        window: how many count.
        warm_up: first ones that do not (compilation, caches); a maximum of all time would never forget them.
        percentile: which.
    """

    def __init__(self, window: int = 50, warm_up: int = 3, percentile: float = 95.0) -> None:
        self._seen, self._skip, self._percentile = deque[float](maxlen=window), warm_up, percentile

    def add(self, delay: float) -> None:
        """One more measured delay."""
        if self._skip:
            self._skip -= 1
        else:
            self._seen.append(float(delay))

    @property
    def value(self) -> float:
        """The percentile; 0 before there are measurements."""
        return float(np.percentile(self._seen, self._percentile)) if self._seen else 0.0
