"""A chunk policy drives through the runner with late and missing decisions: no tick waits, nothing jumps."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions, prove
from robot_rl.real.port import SpecPort

H, K = 8, 4


class Wavering:
    """Chunks along a slow ramp, every other one 0.3 above it; from the third call on, calls of `late` wait."""

    def __init__(self, late: set[int]) -> None:
        self.calls, self.late, self.tick, self.gate = 0, late, 0, threading.Event()

    def plan(self, obs: Any, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        call, self.calls = self.calls, self.calls + 1
        begin = 0.01 * self.tick
        if call in self.late:
            self.gate.wait(5.0)
        ramp = begin + 0.01 * np.arange(H) + 0.3 * (call % 2)
        return Plan(np.repeat(ramp[None, :, None], 3, axis=2))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def drive(make_arm: Any, *, blend: int, late: set[int], decisions: int = 24) -> tuple[np.ndarray, float]:
    """Targets (T,) of the first joint in action units, and the longest tick [s]."""
    port = SpecPort(make_arm(), 10.0)
    planner = Wavering(late)
    play = Execution(Horizons(H, K, K), 3, mode="receding", blend=blend)
    policy = ChunkedPolicy(port.io, planner, play, patience=0.02)
    runner = PolicyRunner(policy, port, RunnerOptions(rate=10.0, interpolate=False), identity="p")
    found, longest = [], 0.0
    for tick in range(decisions):
        planner.tick = tick
        if tick % K == K - 1:  # a late chunk arrives three ticks after it was asked for
            planner.gate.set()
            if policy._pending is not None:
                policy._pending[0].result(5.0)
        begun = time.perf_counter()
        setpoints = runner.tick(np.zeros(3), np.zeros(3), {})
        longest = max(longest, time.perf_counter() - begun)
        planner.gate.clear() if tick % K == K - 1 else None
        assert setpoints is not None
        found.append(setpoints.values[0, 0])
    return np.array(found) / 1.98, longest


def test_late_chunks_delay_no_tick(make_arm: Any) -> None:
    _, longest = drive(make_arm, blend=0, late={2, 3})
    assert longest < 2.0  # a tick that waited for the chunk would have taken 5 s


def test_blend_takes_the_jump_out_of_late_and_missing_decisions(make_arm: Any) -> None:
    late = {2, 3}
    hard, _ = drive(make_arm, blend=0, late=late)
    soft, _ = drive(make_arm, blend=3, late=late)
    assert np.abs(np.diff(hard)).max() > 0.28
    assert np.abs(np.diff(soft)).max() < 0.12
    assert abs(soft[-1] - hard[-1]) < 0.1  # and it follows


def test_chunk_policy_passes_the_proof(make_arm: Any) -> None:
    port = SpecPort(make_arm(), 10.0)
    policy = ChunkedPolicy(port.io, Wavering(set()), Execution(Horizons(H, K, K), 3, mode="receding"))
    prove(policy, port, passes=5)
    assert policy.execution.count == 0  # nothing of the proof is left
    assert policy.planner.calls == pytest.approx(2)  # type: ignore[attr-defined]
