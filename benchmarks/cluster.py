"""Rollout throughput of Ray workers against this process: `robot-rl bench cluster` (needs the extra `cluster`).

All contestants step the quadruped with a SAC policy, four copies and one thread per process; no learning. Workers are
started before the clock; every number of workers runs in alternation with this process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from benchmarks.harness import compare, ratio
from robot_rl.loops.cluster import Cluster, RolloutWorker
from robot_rl.sim.engine_options import EngineOptions
from robot_rl.types import IOSpec

COPIES, FRAGMENT = 4, 32


def make_env(num_envs: int, seed: int, render: bool) -> Any:
    """The quadruped on the CPU engine."""
    engine = importlib.import_module("robot_rl.sim.mujoco_env")
    world = importlib.import_module("robot_rl.sim.worlds.quadruped").Quadruped()
    return engine.make(num_envs, seed, world=world, options=EngineOptions(num_threads=1))


def make_learner(io: IOSpec) -> Any:
    """SAC with its defaults."""
    sac = importlib.import_module("robot_rl.policies.online.sac")
    return sac.Sac(sac.SacOptions(), io)


def run(quick: bool = False, workers: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """Measure transitions per second.

    Args:
        quick: fewer rounds.
        workers: numbers of workers to try.

    Returns:
        {"rows": one per number of workers: median rates and the ratio to this process}.
    """
    steps = 1280 if quick else 5120
    here = RolloutWorker(make_env, make_learner, COPIES, 0)
    weights = make_learner(make_env(1, 0, False).io).policy.state_dict()
    rows: list[dict[str, Any]] = []
    for count in workers:
        cluster = _cluster(count)
        while cluster.workers < count:
            cluster.receive(1.0)
        contestants: dict[str, Callable[[int], None]] = {
            "this process": lambda n: _local(here, weights, n),
            f"{count} workers": lambda n, cluster=cluster: _remote(cluster, weights, n),
        }
        for go in contestants.values():
            go(FRAGMENT * COPIES * 2)
        cases = {name: partial(go, steps) for name, go in contestants.items()}
        local, there = compare(cases, 3 if quick else 7).values()
        cluster.close()
        row = {"contestant": f"{count} workers", "steps_per_s": steps / median(there)}
        rows.append({**row, "this_process": steps / median(local), **ratio(there, local)})
    return {"setting": {"world": "quadruped", "copies": COPIES, "fragment": FRAGMENT}, "rows": rows}


def _cluster(workers: int) -> Cluster:
    return Cluster(make_env, make_learner, workers=workers, num_envs=COPIES, fragment=FRAGMENT, seed=workers)


def _local(worker: RolloutWorker, weights: dict[str, Any], steps: int) -> None:
    for _ in range(steps // (FRAGMENT * COPIES)):
        worker.collect(weights, 0, FRAGMENT)


def _remote(cluster: Cluster, weights: dict[str, Any], steps: int) -> None:
    got = 0
    while got < steps:
        cluster.ask(weights, 0, steps - got - cluster.in_flight)
        got += sum(fragment.steps for fragment in cluster.receive(10.0))
