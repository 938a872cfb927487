"""The ROS 2 bridge: latency and loop jitter between processes, a policy's success over DDS against simulation, a soak.

Every measurement runs in processes of its own on loopback and in a domain of its own. The robot's classes arrive by
name: this room knows none of them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ros_core import border_jerk, tick_cost
from benchmarks.ros_soak import soak
from robot_rl import child
from robot_rl.loops.evaluate import evaluate

PRIORITY = 40
LATENCY, TRIAL, GRAPH = "robot_rl.real.ros.latency", "robot_rl.real.ros.trial", "robot_rl.real.processes"
LOADER, SIMULATION = "robot_rl.verbs.build.load_for_robot", "robot_rl.sim.mujoco_env.make"


def run(
    quick: bool = False,
    *,
    rates: tuple[float, ...] = (100.0, 500.0, 1000.0),
    seconds: float = 20.0,
    hold_seconds: float = 60.0,
    path: str = "",
    episodes: int = 50,
    robot_spec: str = "desk_arm",
    world: str = "reach",
    soak_minutes: float = 0.0,
) -> dict[str, Any]:
    """Measure one-way and closed-loop latency, loop jitter, missed periods, and success over DDS.

    Also what one tick of the supervisor costs and the jerk where chunks meet (`ros_core`); with `soak_minutes` it does
    the soak alone (`ros_soak`).

    Args:
        quick: 3 s per row, a hold of 5 s, 5 episodes.
        rates: of the loops [Hz].
        seconds: per row.
        hold_seconds: of the 500 Hz loop that has to hold its rate; 0 leaves it out.
        path: run or checkpoint folder of a policy trained in `world`; without it the success over DDS is left out.
        episodes: on either side of the comparison.
        robot_spec: of the robot in that world.
        world: its name; episode length and options are those of the checkpoint's own configuration.
        soak_minutes: run the whole graph for so long, watch memory and processor time of its processes, end it as
            Ctrl-C does, and measure nothing else; 0 = measure the rest.

    Returns:
        One row per rate, scheduler and answer: percentiles of the wake-up lateness, of the way of a state to the other
        process, of its computation (2 x 256 units) and of the closed loop [ms], missed periods, the rate held. Success
        rates and their difference in percentage points under `success_*`, "supervisor_tick" and "border_jerk". A soak
        gives one row per process instead.

    Raises:
        ImportError: rclpy is not installed.
        ValueError: a soak without the path of a policy.
        RuntimeError: a process did not do its part; says which.
    """
    if quick:
        seconds, hold_seconds, episodes = min(seconds, 3.0), min(hold_seconds, 5.0), min(episodes, 5)
    if soak_minutes:
        if not path:
            raise ValueError("a soak needs a policy; give +path=<run of robot-rl train env=reach>")
        with _domain():
            return {**soak(soak_minutes, path, robot_spec=robot_spec, world=world), **_machine()}
    with _domain():
        rows: dict[str, dict[str, Any]] = {}
        for rate in rates:
            for fifo in (0, PRIORITY):
                name = f"{rate:g} Hz {'FIFO' if fifo else 'ordinary'}"
                rows[name] = _probe(rate, seconds, fifo, policy=True)
        rows["echo only, 500 Hz FIFO"] = _probe(500.0, seconds, PRIORITY, policy=False)
        result: dict[str, Any] = {"rows": rows}
        if hold_seconds:
            held = rows[f"hold, 500 Hz FIFO, {hold_seconds:g} s"] = _probe(500.0, hold_seconds, PRIORITY, policy=True)
            result["hold"] = f"{held['held_hz']:.3f} Hz over {hold_seconds:g} s, {held['missed']} periods missed"
        result |= _machine()
        result["supervisor_tick"] = tick_cost(1_000 if quick else 4_000)
        result["border_jerk"] = border_jerk(20.0 if quick else 120.0)
        if path:
            result |= _success(path, episodes, robot_spec, world)
    return result


def _machine() -> dict[str, Any]:
    return {"load_average": os.getloadavg()[0], "cores": os.cpu_count()}


def _probe(rate: float, seconds: float, fifo: int, *, policy: bool) -> dict[str, Any]:
    arguments = ["probe", "--rate", str(rate), "--seconds", str(seconds), "--fifo", str(fifo)]
    return _json(LATENCY, [*arguments, *(["--policy"] if policy else [])], seconds * 3.0 + 90.0)


def _json(module: str, arguments: list[str], limit: float) -> dict[str, Any]:
    done = subprocess.run(
        child.command(module, *arguments), capture_output=True, text=True, timeout=limit, env=dict(os.environ)
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{module} {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(lines[-1])


def _success(path: str, episodes: int, robot_spec: str, world: str) -> dict[str, Any]:
    """Success rates in simulation and through simulated robot, supervisor and policy node as three processes."""
    policy, io, make_port, identity = _at(LOADER)(path)
    if make_port is None:
        raise RuntimeError(f"{path} was not trained in a world of ours; give a run of robot-rl train env={world}")
    graph = importlib.import_module(GRAPH)
    trained = make_port(()).world
    env = _at(SIMULATION)(10, 0, "cpu", world=trained)
    simulated = evaluate(env, policy, episodes=episodes, seed=50_000).successes
    env.close()
    options = graph.GraphArgs(robot_spec=robot_spec, world=world, policy_path=str(Path(path).resolve()), auto_arm=True)
    launcher = graph.Launcher(graph.graph(options), say=lambda _: None)
    thread = threading.Thread(target=launcher.run, daemon=True)
    thread.start()
    try:
        seconds = trained.episode_steps / trained.control_hz
        there = _json(TRIAL, ["--episodes", str(episodes), "--seconds", str(seconds)], episodes * (seconds + 5.0) + 120)
    finally:
        launcher.stop()
        thread.join(20.0)
    over, inside = float(np.mean(there["successes"])), float(np.mean(simulated))
    return {
        "policy": identity,
        "episodes": episodes,
        "control_hz": io.control_hz,
        "success_simulation": inside,
        "success_dds": over,
        "difference_points": 100.0 * (over - inside),
        "faults": there["faults"],
        "soft_stops": there["soft_stops"],
        "executed_hz": there["executed_hz"],
    }


@contextlib.contextmanager
def _domain() -> Iterator[None]:
    """Loopback and a domain of our own, so that no other robot hears us."""
    before = {key: os.environ.get(key) for key in ("ROS_AUTOMATIC_DISCOVERY_RANGE", "ROS_DOMAIN_ID")}
    os.environ.update(ROS_AUTOMATIC_DISCOVERY_RANGE="LOCALHOST", ROS_DOMAIN_ID=str(1 + os.getpid() % 101))
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _at(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
