"""Chunk policies through the jobs: windows out of logs, and who may not judge them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.data.store import write_store
from robot_rl.jobs import logs, ope
from robot_rl.jobs.logs import LogSettings
from robot_rl.policies.sequence.qc_fql import QcFql
from robot_rl.types import Episode, IOSpec

IO = IOSpec({"state": ((2,), "float32")}, ("a0",), (-1.0,), (1.0,), ("1",), 10.0)


def store_of(folder: Path) -> Any:
    def episode(seed: int) -> Episode:
        rng = np.random.default_rng(seed)
        action = rng.uniform(-1, 1, (7, 1)).astype(np.float32)
        return Episode(
            {"state": rng.normal(size=(8, 2)).astype(np.float32)}, action, action, np.eye(7, dtype=np.float32)[-1],
            True, False, np.zeros(7, bool), np.arange(8.0),
        )  # fmt: skip

    return write_store(folder / "log.store", [episode(i) for i in range(5)], io=IO)


def test_log_gives_windows_to_a_learner_of_chunks(tmp_path: Path) -> None:
    learner = QcFql(IO, hidden=(16,), batch_size=16, flow_steps=2, metrics_every=1)
    data, _ = logs.sampler(store_of(tmp_path), LogSettings("x"), seed=0, window=learner.window)
    learner.prepare(logs.facts(data))
    batches = data.batches(16)
    metrics = [learner.update(batches) for _ in range(5)][-1]
    assert np.isfinite(metrics["train/q"])
    shares = [float((~next(batches).mask[:, -1]).float().mean()) for _ in range(40)]
    assert np.mean(shares) == pytest.approx(4 / 7, abs=0.1)  # of 7 starts, 4 have fewer than 5 steps to the end


def test_estimators_from_logs_refuse_a_chunk_policy(tmp_path: Path) -> None:
    learner = QcFql(IO, hidden=(16,), batch_size=16, flow_steps=2)
    none: Any = None
    settings = ope.OpeSettings(data=str(store_of(tmp_path).path))
    with pytest.raises(ValueError, match="plays chunks"):
        ope.run(settings, learner.policy, IO, make_fqe=none, make_behaviour=none)
