"""Replay speed against stable-baselines3, in alternation in one process.

Both buffers are full and every page of them has been written, as after a long run: an untouched buffer is all one
zero page and flatters whoever is measured on it.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import compare, one_thread, ratio, repeat
from robot_rl.data.buffer import ReplayBuffer
from robot_rl.types import IOSpec, Step

BATCH = 256


def run(quick: bool = False) -> dict[str, Any]:
    """Measure sampling of states (17 -> 6) and of 84x84x3 images, and adding of one transition of each.

    Args:
        quick: smaller buffers and fewer repetitions.

    Returns:
        case -> {"ours_us", "sb3_us": median microseconds per call, "ratio": median of sb3/ours over the rounds,
        "ratio_low", "ratio_high": its quartiles, "rounds"}; for sampling also "ours_per_s" samples per second.

    Raises:
        ImportError: stable-baselines3 is not installed.
    """
    rounds = 7 if quick else 21
    states, images = (100_000, 2_000) if quick else (1_000_000, 20_000)
    with one_thread():
        return {
            **_compare("state", (17,), "float32", states, rounds, 400 if quick else 2000),
            **_compare("image84", (84, 84, 3), "uint8", images, rounds, 20 if quick else 60),
        }


def _compare(name: str, shape: tuple[int, ...], dtype: str, capacity: int, rounds: int, calls: int) -> dict[str, Any]:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer as Theirs

    rng = np.random.default_rng(0)
    key = "state" if dtype == "float32" else "image.front"
    one = tuple("1" for _ in range(6))
    io = IOSpec({key: (shape, dtype)}, tuple(f"a{i}" for i in range(6)), (-1.0,) * 6, (1.0,) * 6, one, 20.0)
    low, high = (-np.inf, np.inf) if dtype == "float32" else (0, 255)
    space = spaces.Box(low, high, shape, np.dtype(dtype).type)
    theirs = Theirs(capacity, space, spaces.Box(-1, 1, (6,), np.float32), device="cpu")
    ours = ReplayBuffer(io, capacity)
    looks = (rng.normal(size=(65, 1, *shape)) * 50).astype(dtype)
    action, reward = rng.normal(size=(1, 6)).astype(np.float32), np.ones(1, np.float32)
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    steps = [
        Step(
            {key: looks[i]},
            action,
            reward,
            {key: looks[(i + 1) % 64]},
            no,
            no,
            {key: looks[(i + 1) % 64]},
            yes,
            no,
            action,
        )
        for i in range(64)
    ]
    info: list[dict[str, Any]] = [{}]

    def add_ours() -> None:
        for step in steps:
            ours.add(step)

    def add_theirs() -> None:
        for step in steps:
            theirs.add(step.obs[key], step.next_obs[key], action, reward, no, info)

    for _ in range(-(-capacity * 9 // 8 // 64)):  # beyond the capacity: frames have some room more
        add_ours()
        add_theirs()
    batches = ours.batches(BATCH)
    result = {
        f"{name}_sample": _alternate(lambda: next(batches), lambda: theirs.sample(BATCH), rounds, calls),
        f"{name}_add": _alternate(add_ours, add_theirs, rounds, max(1, calls // 20), per_call=64),
    }
    sample = result[f"{name}_sample"]
    sample["ours_per_s"] = BATCH / (sample["ours_us"] * 1e-6)
    return result


def _alternate(
    ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int, calls: int, per_call: int = 1
) -> dict[str, float]:
    mine, peer = compare({"ours": repeat(ours, calls), "sb3": repeat(theirs, calls)}, rounds).values()
    return {
        "ours_us": median(mine) / calls / per_call * 1e6,
        "sb3_us": median(peer) / calls / per_call * 1e6,
        **ratio(mine, peer, quartiles=True),
        "rounds": float(rounds),
    }
