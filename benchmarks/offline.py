"""Speed of learning from logs: our IQL, TD3+BC and CQL against d3rlpy and a plain single file; loading of a log.

All contestants run in this process with one thread, in alternation, on the same synthetic data of HalfCheetah's sizes;
every figure includes drawing the batch. Rates are per second of processor time: with one thread that is wall time on a
quiet machine, and other jobs disturb it less. d3rlpy is measured where it can be imported.

All have the same hidden layers: two of 256 for IQL and TD3+BC, three of 256 for CQL (in place of d3rlpy's default of
two). Our IQL is shown in both orders of its steps: that of the plain file (one value pass, before its own step, serves
all) and the default, which makes a further value pass.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks import offline_reference as reference
from benchmarks.d3rlpy_peer import peer
from benchmarks.d4rl_pairs import qlearning_dataset
from benchmarks.harness import compare, one_thread
from robot_rl.data import d4rl
from robot_rl.data.convert import convert_once
from robot_rl.data.log_dataset import LogDataset
from robot_rl.data.store import open_store
from robot_rl.types import Episode

STATE, ACTION, BATCH, LENGTH = 17, 6, 256, 1000
OURS = {"iql": "Iql", "td3_bc": "Td3Bc", "cql": "Cql"}
PEER = {"iql": "IQLConfig", "td3_bc": "TD3PlusBCConfig", "cql": "CQLConfig"}
PLAIN = {"iql": reference.IqlReference, "td3_bc": reference.Td3BcReference, "cql": reference.CqlReference}
ITEMS = {"iql": 60, "td3_bc": 80, "cql": 4}


def run(
    quick: bool = False,
    algorithms: tuple[str, ...] = ("iql", "td3_bc", "cql"),
    rows: int = 1_000_000,
    load: bool = True,
    seeds: int = 8,
) -> dict[str, Any]:
    """Measure updates per second and loading.

    Args:
        quick: fewer and shorter rounds, a tenth of the rows.
        algorithms: which of iql, td3_bc and cql.
        rows: transitions of the synthetic log.
        load: measure loading as well.
        seeds: runs side by side in the batched-seeds figure; 0 leaves it out.

    Returns:
        {"rows": one per algorithm and contestant: updates per second (median of rounds) and the ratio to the plain
        file and to d3rlpy within rounds (median, lowest, highest)}, and "loading" rows in seconds.
    """
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        path = _write(Path(folder) / "synthetic.hdf5", rows // 10 if quick else rows)
        table: list[dict[str, Any]] = []
        loading = _loading(path, 1 if quick else 3) if load else []
        store = convert_once(path)
        columns = qlearning_dataset(path)
        for name in algorithms:
            table += _compare(name, store, columns, 3 if quick else 7, 0.3 if quick else 1.0, seeds)
        return {"rows": [*table, *loading]}


def _write(path: Path, rows: int) -> Path:
    """Random episodes of 1000 steps that end by time."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(max(rows // LENGTH, 1)):
        action = rng.uniform(-1, 1, (LENGTH, ACTION)).astype(np.float32)
        episodes.append(
            Episode(
                obs={"state": rng.normal(size=(LENGTH + 1, STATE)).astype(np.float32)},
                action=action,
                proposed=action,
                reward=rng.normal(size=LENGTH).astype(np.float32),
                terminated=False,
                truncated=True,
                intervened=np.zeros(LENGTH, bool),
                stamp=np.arange(LENGTH + 1.0),
            )
        )
    d4rl.write(path, episodes, compress=False)
    return path


def _ours(name: str, store: Any, **options: Any) -> Callable[[int], None]:
    module = importlib.import_module(f"robot_rl.policies.offline.{name}")
    kind, stated = getattr(module, OURS[name]), vars(module).get(f"{OURS[name]}Options")
    learner = kind(stated(**options), store.io) if stated else kind(store.io, **options)
    batches = LogDataset(store, seeds=learner.need.seeds).batches(learner.need.rows)

    def go(items: int) -> None:
        for _ in range(max(items // learner.need.seeds, 1)):
            learner.update(batches)

    return go


def _plain(name: str, columns: dict[str, np.ndarray]) -> Callable[[int], None]:
    learner, table = PLAIN[name](STATE, ACTION), reference.Table(columns)

    def go(items: int) -> None:
        for _ in range(items):
            learner.update(table.sample(BATCH))

    return go


def _peer(name: str, columns: dict[str, np.ndarray]) -> Callable[[int], None] | None:
    library = peer()
    if library is None:
        return None
    options: dict[str, Any] = {}
    if name == "cql":
        layers = library.models.VectorEncoderFactory([256, 256, 256])
        options = {"actor_encoder_factory": layers, "critic_encoder_factory": layers}
    config = getattr(library.algos, PEER[name])(batch_size=BATCH, **options)
    size = min(len(columns["actions"]), 100_000) // (LENGTH - 1) * (LENGTH - 1)
    dataset = _peer_dataset(library, {key: value[:size] for key, value in columns.items()})
    learner = config.create(device="cpu:0")
    learner.build_with_dataset(dataset)

    def go(items: int) -> None:
        for _ in range(items):
            learner.update(dataset.sample_transition_batch(BATCH))

    return go


def _peer_dataset(library: Any, columns: dict[str, np.ndarray]) -> Any:
    ends = np.zeros(len(columns["actions"]), np.float32)
    ends[LENGTH - 2 :: LENGTH - 1] = 1.0
    ends[-1] = 1.0
    return library.dataset.MDPDataset(
        observations=columns["observations"],
        actions=columns["actions"],
        rewards=columns["rewards"],
        terminals=columns["terminals"].astype(np.float32),
        timeouts=ends,
    )


def _compare(
    name: str, store: Any, columns: dict[str, np.ndarray], rounds: int, share: float, seeds: int
) -> list[dict[str, Any]]:
    contestants: dict[str, Callable[[int], None]] = {"plain": _plain(name, columns)}
    other = _peer(name, columns)
    if other is not None:
        contestants["d3rlpy"] = other
    same: dict[str, Any] = {"order": "corl"} if name == "iql" else {}
    contestants["ours float32"] = _ours(name, store, **same)
    contestants["ours bf16"] = _ours(name, store, matmul="bf16", **same)
    if name == "iql":
        contestants["ours bf16 order=jax"] = _ours(name, store, matmul="bf16")
    if name != "cql" and seeds:
        contestants[f"ours float32, {seeds} seeds"] = _ours(name, store, seeds=seeds, **same)
        contestants[f"ours bf16, {seeds} seeds"] = _ours(name, store, seeds=seeds, matmul="bf16", **same)
    items = max(int(ITEMS[name] * share), 2)
    for go in contestants.values():
        go(max(items // 4, 2))
    counts = {who: items if "seeds" not in who else max(items // seeds, 1) * seeds for who in contestants}
    cases = {who: partial(go, counts[who]) for who, go in contestants.items()}
    seconds = compare(cases, rounds, clock=time.process_time)
    rates = {who: [counts[who] / value for value in values] for who, values in seconds.items()}
    table = []
    for who, values in rates.items():
        row: dict[str, Any] = {"algorithm": name, "contestant": who, "updates/s": median(values)}
        for base in ("plain", "d3rlpy"):
            if base in rates and who != base:
                ratios = sorted(a / b for a, b in zip(values, rates[base]))
                row[f"x {base}"] = f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        single = who.split(",")[0]
        if "seeds" in who:
            row["x one seed"] = f"{median([a / b for a, b in zip(values, rates[single])]):.2f}"
        table.append(row)
    return table


def _d4rl(path: Path) -> Callable[[], None] | None:
    """D4RL's own loader of this file, where the package can be imported."""
    os.environ.setdefault("D4RL_SUPPRESS_IMPORT_ERROR", "1")  # of its environments, which are not used
    try:
        library, reader = importlib.import_module("d4rl"), importlib.import_module("d4rl.offline_env").OfflineEnv
    except Exception:
        return None
    sizes = SimpleNamespace(
        observation_space=SimpleNamespace(shape=(STATE,)), action_space=SimpleNamespace(shape=(ACTION,))
    )

    def load() -> None:
        library.qlearning_dataset(None, reader.get_dataset(sizes, str(path)))

    return load


def _loading(path: Path, rounds: int) -> list[dict[str, Any]]:
    """Seconds from a file on disk to the first batch (D4RL: to its arrays)."""

    def row_loop() -> None:
        """D4RL's own way: one Python step per row."""
        columns = qlearning_dataset(path)
        kept: list[list[Any]] = [[] for _ in range(5)]
        names = ("observations", "next_observations", "actions", "rewards", "terminals")
        for i in range(len(columns["actions"])):
            for place, name in enumerate(names):
                kept[place].append(columns[name][i])
        for part in kept:
            np.array(part)

    def convert() -> None:
        store = convert_once(path, path.with_name("fresh.store"))
        LogDataset(store).sample(BATCH)
        for file in store.path.iterdir():
            file.unlink()
        store.path.rmdir()

    kept_store = convert_once(path)

    def again() -> None:
        LogDataset(open_store(kept_store.path)).sample(BATCH)

    own = _d4rl(path)
    contestants: dict[str, Callable[[], None]] = {"row loop (D4RL's way)": row_loop} if own is None else {"D4RL": own}
    library = peer()
    if library is not None:
        contestants["d3rlpy"] = lambda: _peer_dataset(library, qlearning_dataset(path)).sample_transition_batch(BATCH)
    contestants |= {"ours, first time (reads, writes the store)": convert, "ours, from the store": again}
    seconds = compare(contestants, rounds)
    return [{"algorithm": "loading", "contestant": who, "seconds": median(t)} for who, t in seconds.items()]
