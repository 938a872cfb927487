"""Environment stepping against raw MuJoCo physics and other vector environments, in alternation in one process tree.

Everything is the HalfCheetah model under random actions, `control` steps of five physics steps each. "raw" is
`mujoco.batch` alone on the same number of threads: it repeats, from the very states that our engine has just visited,
the same control steps, and nothing else; so the two do the same physics. Our environments have their episode clocks
spread out, so that their share of resets falls into every round; the peers' first resets come after the bench.

The simulator's classes arrive by name: this room knows none of them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import compare
from robot_rl.sim.engine_options import EngineOptions

ENGINE = "robot_rl.sim.mujoco_env.make"
WORLD = "robot_rl.sim.worlds.halfcheetah.HalfCheetah"
PEER_ID = "HalfCheetah-v5"
MANY = 256
"""Copies up to which Gymnasium's environments are measured."""


def run(
    quick: bool = False, *, engine: str = ENGINE, world: str = WORLD, num_envs: tuple[int, ...] = (4096, 1024, 64, 8)
) -> dict:
    """Measure control steps per second.

    Args:
        quick: fewer and shorter rounds.
        engine: class path of the environment factory.
        world: class path of the world; the peers' task is always HalfCheetah.
        num_envs: numbers of copies to measure; Gymnasium's environments, one object or process each, up to `MANY`.

    Returns:
        {"rows": {"<who> <N>": {"steps_per_s": median, "ratio": median over the rounds of ours / theirs, "ratio_low",
        "ratio_high": its quartiles, "rounds"}}, "threads": of our engine, raw and EnvPool}. For "raw" the ratio is the
        fraction of the physics rate that our engine reaches; "gymnasium best" is the faster of its two in each round;
        peers that are not installed have {"missing": reason}.

    Raises:
        ImportError: the engine, mujoco or gymnasium is not installed.
    """
    rounds, seconds = (7, 0.15) if quick else (21, 0.25)  # many short rounds: other load hits all alike
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rows: dict[str, dict[str, Any]] = {}
    with _silence():
        for count in num_envs:
            rows |= _case(count, threads, rounds, seconds, engine, world)
    return {"rows": rows, "threads": threads}


def _case(count: int, threads: int, rounds: int, seconds: float, engine: str, world: str) -> dict[str, dict[str, Any]]:
    ours = _Ours(count, threads, engine, world)
    peers: dict[str, Callable[[np.ndarray], Any]] = {}
    closers: list[Callable[[], Any]] = [ours.env.close]
    missing: dict[str, str] = {}
    for name, maker in (("gymnasium sync", _sync), ("gymnasium async", _async), ("envpool", _envpool)):
        if count > MANY and maker is not _envpool:
            missing[name] = f"not made {count} times"
            continue
        try:
            env = maker(count, threads)
        except ImportError as error:
            missing[name] = str(error)
            continue
        peers[name] = env.step
        closers.append(env.close)
    rng = np.random.default_rng(0)
    one = rng.uniform(-1, 1, (count, 6)).astype(np.float32)
    steps = _steps_for(ours.env.step, one, seconds)
    lengths = {name: min(steps, _steps_for(step, one, seconds)) for name, step in peers.items()}
    lengths = {"ours": steps, "raw": steps, **lengths}
    actions = np.zeros((steps, count, 6), np.float32)

    def draw() -> None:
        actions[:] = rng.uniform(-1, 1, actions.shape)
        ours.record(actions)  # untimed: the states from which raw repeats

    def play(name: str) -> None:
        for action in actions[: lengths[name]]:
            peers[name](action)

    cases = {"ours": lambda: ours.play(actions), "raw": ours.repeat, **{name: partial(play, name) for name in peers}}
    times = compare(cases, rounds, before=draw)
    rates = {name: [lengths[name] * count / value for value in values] for name, values in times.items()}
    for close in closers:
        close()
    if "gymnasium sync" in rates and "gymnasium async" in rates:
        rates["gymnasium best"] = [max(pair) for pair in zip(rates["gymnasium sync"], rates["gymnasium async"])]
    rows = {f"{name} {count}": _row(rates["ours"], rate) for name, rate in rates.items()}
    return rows | {f"{name} {count}": {"missing": reason} for name, reason in missing.items()}


def _row(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    ratio = [a / b for a, b in zip(ours, theirs)]
    return {
        "steps_per_s": median(theirs),
        "ratio": median(ratio),
        "ratio_low": float(np.quantile(ratio, 0.25)),
        "ratio_high": float(np.quantile(ratio, 0.75)),
        "rounds": len(ratio),
    }


class _Ours:
    """Our environment, and raw physics over the states that it visits."""

    def __init__(self, count: int, threads: int, engine: str, world: str) -> None:
        task = load(world)()
        self.env = load(engine)(count, 0, "cpu", world=task, options=EngineOptions(num_threads=threads))
        self.env.reset()
        self._episode = task.episode_steps
        self._spread()
        physics = self.env.physics
        self.raw = importlib.import_module("mujoco.batch").Batch(physics.model, count, physics.num_threads)
        self._work: list[tuple[np.ndarray, np.ndarray]] = []

    def _spread(self) -> None:
        """Episode clocks at equal distances, so that resets come evenly."""
        state = self.env.state_dict()
        count = self.env.num_envs
        state["step"] = np.arange(count) * self._episode // count
        self.env.load_state_dict(state)

    def record(self, actions: np.ndarray) -> None:
        """Walk through the round once, keeping the states, and come back to its beginning."""
        start = self.env.state_dict()
        self._work = []
        for action in actions:
            self._work.append((self.env.physics.state.copy(), action))
            self.env.step(action)
        self.env.load_state_dict(start)

    def play(self, actions: np.ndarray) -> None:
        """Our environment's round."""
        for action in actions:
            self.env.step(action)

    def repeat(self) -> None:
        """The same physics, raw."""
        ctrl = self.raw.bind("ctrl")
        for state, action in self._work:
            self.raw.state[:] = state
            ctrl[:] = action
            self.raw.step(nstep=self.env.physics.substeps)


def _sync(count: int, threads: int) -> Any:
    return _gymnasium(count, "sync")


def _async(count: int, threads: int) -> Any:
    return _gymnasium(count, "async")


def _gymnasium(count: int, mode: str) -> Any:
    gymnasium = importlib.import_module("gymnasium")
    env = gymnasium.make_vec(PEER_ID, num_envs=count, vectorization_mode=mode)
    env.reset(seed=0)
    return env


def _envpool(count: int, threads: int) -> Any:
    envpool = importlib.import_module("envpool")
    known = envpool.list_all_envs()
    task = PEER_ID if PEER_ID in known else "HalfCheetah-v4"
    env = envpool.make(task, env_type="gymnasium", num_envs=count, num_threads=threads, seed=0)
    env.reset()
    return env


def _steps_for(step: Callable[[np.ndarray], Any], action: np.ndarray, seconds: float) -> int:
    """How many steps take about this long."""
    count = max(3, min(30, 2000 // len(action)))
    for _ in range(count):
        step(action)
    start = time.perf_counter()
    for _ in range(count):
        step(action)
    return max(5, int(count * seconds / (time.perf_counter() - start)))


def load(path: str) -> Any:
    """The object behind a class path.

    Raises:
        ImportError: no such module or name.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise ImportError(f"'{module}' has no '{name}'") from error


@contextlib.contextmanager
def _silence() -> Any:
    """A suite prints nothing; gymnasium and envpool would."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
