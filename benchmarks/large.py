"""A log that is larger than memory: written, then learnt from by a process that may not allocate more than a limit."""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl import child
from robot_rl.data.store_write import StoreWriter
from robot_rl.types import Episode

_STATE, _ACTION, _LENGTH = 241, 6, 1000  # 1,000 bytes per step with action, reward and stamp


def run(
    quick: bool = False,
    gigabytes: float = 10.0,
    memory_gib: float = 4.0,
    updates: int = 2000,
    policy: str = "offline/iql",
    overrides: tuple[str, ...] = (),
    folder: str | None = None,
) -> dict[str, Any]:
    """Write a random log of `gigabytes`, then run `robot-rl offline` on it under a limit of anonymous memory.

    Args:
        quick: a twentieth of the size and of the memory.
        gigabytes: size of the store.
        memory_gib: RLIMIT_DATA of the learner: heap and private mappings, without the pages of the mapped log, which
            the system may drop at any time.
        updates: of the learner; the estimate at the end is part of the run.
        policy: which learner.
        overrides: further options of `robot-rl offline`.
        folder: where the store goes; a temporary folder when None.

    Returns:
        {"rows": [{"case", "gigabytes", "rows", "write_seconds", "limit_gib", "peak_private_gib", "run_seconds",
        "updates_per_second"}]}.

    Raises:
        RuntimeError: the learner failed, e.g. ran out of memory.
    """
    if quick:
        gigabytes, memory_gib, updates = gigabytes / 20.0, max(memory_gib / 20.0, 1.0), updates // 10
    with tempfile.TemporaryDirectory(dir=folder) as where:
        begin = time.perf_counter()
        rows = _write(Path(where) / "large.store", gigabytes)
        written = time.perf_counter() - begin
        size = sum(path.stat().st_size for path in (Path(where) / "large.store").iterdir()) / 1e9
        limit = int(memory_gib * 2**30)
        command = [
            *child.command("robot_rl", "offline", f"data={where}/large.store", f"policy={policy}"),
            *(f"updates={updates}", f"output={where}/runs", "track.tensorboard=false", *overrides),
        ]
        begin = time.perf_counter()
        with (Path(where) / "log").open("w+") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
            )
            peak = 0.0
            while process.poll() is None:
                peak = max(peak, _private(process.pid))
                time.sleep(0.1)
            took = time.perf_counter() - begin
            log.seek(0)
            said = log.read()
        shutil.rmtree(Path(where) / "runs", ignore_errors=True)
    if process.returncode:
        raise RuntimeError(f"the learner failed under {memory_gib:g} GiB:\n{said[-2000:]}")
    row = {
        "case": policy,
        "gigabytes": size,
        "rows": rows,
        "write_seconds": written,
        "limit_gib": memory_gib,
        "peak_private_gib": peak,
        "run_seconds": took,
        "updates": updates,
    }
    return {"rows": [row]}


def _write(path: Path, gigabytes: float) -> int:
    rng = np.random.default_rng(0)
    count = max(2, round(gigabytes * 1e9 / (1000 * _LENGTH)))
    with StoreWriter(path) as writer:
        for _ in range(count):
            action = rng.uniform(-1, 1, (_LENGTH, _ACTION)).astype(np.float32)
            writer.add(
                Episode(
                    obs={"state": rng.standard_normal((_LENGTH + 1, _STATE), np.float32)},
                    action=action,
                    proposed=action,
                    reward=rng.standard_normal(_LENGTH, np.float32),
                    terminated=False,
                    truncated=True,
                    intervened=np.zeros(_LENGTH, bool),
                    stamp=np.arange(_LENGTH + 1.0),
                )
            )
    return count * _LENGTH


def _private(pid: int) -> float:
    """Resident memory [GiB] of a process that no file backs; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return 0.0
    return int(line.split()[1]) / 2**20
