"""Loading and sampling of logs: the store against D4RL's own way, d3rlpy where it can be imported, and plain arrays.

One gzip-compressed file in D4RL's layout (17 -> 6, episodes of 1000 steps), its pages in the cache; contestants take
turns within every round. The reference loop follows D4RL's `get_dataset` and `qlearning_dataset`: read every key, then
one Python step per row.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
import torch

from benchmarks.d3rlpy_peer import peer
from benchmarks.harness import compare, one_thread, repeat
from robot_rl.data import d4rl
from robot_rl.data.convert import convert_once
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import open_store

BATCH = 256
_STATE, _ACTION, _LENGTH = 17, 6, 1000


def run(quick: bool = False, rows: int | None = None, rounds: int | None = None) -> dict[str, Any]:
    """Measure the time from a file to a first batch, and per batch after that.

    Args:
        quick: a fifth of the rows, one round.
        rows: steps in the file; 1,000,000 when None.
        rounds: repetitions; 3 when None.

    Returns:
        {"rows": [{"case", "seconds" and "cpu_seconds" or "cpu_us", "ours_over": how many times the CPU time of the
        first line of its kind}], ...}. One thread: on a busy machine processor time is what can be compared.
    """
    rows = rows or (200_000 if quick else 1_000_000)
    rounds = rounds or (1 if quick else 3)
    with one_thread():
        with tempfile.TemporaryDirectory() as folder:
            path = _write(Path(folder) / "halfcheetah-bench-v2.hdf5", rows)
            loading = _loading(path, rounds)
            sampling = _sampling(path, max(3, 3 * rounds), 200 if quick else 1000)
        return {"rows": loading + sampling, "transitions": rows, "rounds": rounds}


def _write(path: Path, rows: int) -> Path:
    rng = np.random.default_rng(0)
    state = rng.normal(size=(rows + 1, _STATE)).astype(np.float32)
    last = np.arange(rows) % _LENGTH == _LENGTH - 1
    columns = {
        "observations": state[:-1],
        "next_observations": state[1:],
        "actions": rng.uniform(-1, 1, (rows, _ACTION)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": last,
    }
    with h5py.File(path, "w") as file:
        for key, value in columns.items():
            file.create_dataset(key, data=value, compression="gzip")
    return path


def _loading(path: Path, rounds: int) -> list[dict[str, Any]]:
    store = path.with_suffix(".store")

    def first_time() -> None:
        shutil.rmtree(store, ignore_errors=True)
        LogDataset(convert_once(path)).sample(BATCH)

    contestants: dict[str, Callable[[], Any]] = {
        "ours: file to store to first batch": first_time,
        "ours: file to episodes (arrays only)": lambda: d4rl.read(path),
        "ours: open the store, first batch": lambda: LogDataset(open_store(store)).sample(BATCH),
        "ours: convert_once again": lambda: convert_once(path),
        "D4RL's loader (row loop)": lambda: reference_loop(path),
        "arrays by h5py alone": lambda: _arrays(path),
    }
    library = peer()
    if library is not None:
        contestants["d3rlpy (h5py, MDPDataset, first batch)"] = lambda: _peer_load(library, path)
    cpu: dict[str, list[float]] = {name: [] for name in contestants}

    def clock(name: str) -> None:
        used = time.process_time()
        contestants[name]()
        cpu[name].append(time.process_time() - used)

    wall = compare({name: partial(clock, name) for name in contestants}, rounds)
    ours = median(cpu["ours: file to store to first batch"])
    return [
        {
            "case": f"load, {name}",
            "seconds": median(wall[name]),
            "cpu_seconds": median(values),
            "ours_over": median(values) / ours,
        }
        for name, values in cpu.items()
    ]


def _sampling(path: Path, rounds: int, calls: int) -> list[dict[str, Any]]:
    store = convert_once(path)
    batches = LogDataset(store).batches(BATCH)
    with_more = LogDataset(store, LogView(n_step=3, next_action=True, return_to_go=True)).batches(BATCH)
    columns = {key: torch.from_numpy(value) for key, value in _arrays(path).items()}
    generator = torch.Generator().manual_seed(0)

    def plain() -> None:
        """Five tensors indexed by one draw, as single-file implementations do."""
        index = torch.randint(len(columns["rewards"]), (BATCH,), generator=generator)
        for value in columns.values():
            value[index]

    contestants: dict[str, Callable[[], Any]] = {
        "ours from mapped files": lambda: next(batches),
        "ours, 3 steps, next action, return to go": lambda: next(with_more),
        "plain tensors in memory": plain,
    }
    library = peer()
    if library is not None:
        data = _peer_load(library, path)
        contestants["d3rlpy"] = lambda: data.sample_transition_batch(BATCH)
    counts = {name: max(1, calls // (20 if name == "d3rlpy" else 1)) for name in contestants}
    cases = {name: repeat(call, counts[name]) for name, call in contestants.items()}
    seconds = compare(cases, rounds, clock=time.process_time)
    times = {name: [value / counts[name] * 1e6 for value in values] for name, values in seconds.items()}
    ours = median(times["ours from mapped files"])
    return [
        {"case": f"batch of {BATCH}, {name}", "cpu_us": median(values), "ours_over": median(values) / ours}
        for name, values in times.items()
    ]


def reference_loop(path: Path) -> dict[str, np.ndarray]:
    """Transitions the way D4RL makes them: every key read whole, then a Python loop over rows."""
    data: dict[str, np.ndarray] = {}
    with h5py.File(path, "r") as file:
        items: dict[str, Any] = dict(file.items())
        for key, item in items.items():
            data[key] = item[:]
    lists: dict[str, list[Any]] = {key: [] for key in ("obs", "next_obs", "action", "reward", "done")}
    for i in range(len(data["rewards"]) - 1):
        obs, after = data["observations"][i].astype(np.float32), data["observations"][i + 1].astype(np.float32)
        action, reward = data["actions"][i].astype(np.float32), data["rewards"][i].astype(np.float32)
        done = bool(data["terminals"][i])
        if bool(data["timeouts"][i]):
            continue
        lists["obs"].append(obs)
        lists["next_obs"].append(after)
        lists["action"].append(action)
        lists["reward"].append(reward)
        lists["done"].append(done)
    return {key: np.array(value) for key, value in lists.items()}


def _arrays(path: Path) -> dict[str, np.ndarray]:
    names = ("observations", "actions", "rewards", "terminals", "next_observations")
    with h5py.File(path, "r") as file:
        items: dict[str, Any] = dict(file.items())
        return {key: items[key][()] for key in names}


def _peer_load(library: Any, path: Path) -> Any:
    with h5py.File(path, "r") as file:
        items: dict[str, Any] = dict(file.items())
        data: dict[str, np.ndarray] = {key: item[()] for key, item in items.items()}
    data["timeouts"][-1] = True  # it wants the last row to end an episode
    made = library.dataset.MDPDataset(
        observations=data["observations"],
        actions=data["actions"],
        rewards=data["rewards"],
        terminals=data["terminals"].astype(np.float32),
        timeouts=data["timeouts"].astype(np.float32),
    )
    made.sample_transition_batch(BATCH)
    return made
