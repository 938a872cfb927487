"""Quantiles of what training saw, without a change of the stream of samples."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from broken import episode

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.log_dataset import LogDataset
from robot_rl.data.seen import seen
from robot_rl.data.store import write_store
from robot_rl.types import IOSpec

IO = IOSpec({"state": ((3,), "float32")}, ("a", "b"), (-1.0, -1.0), (1.0, 1.0), ("1", "1"), 20.0)
AT = (0.001, 0.01, 0.5, 0.99, 0.999)


def test_of_a_log_and_of_a_replay_is_that_of_their_rows(tmp_path: Path) -> None:
    episodes = [episode(i, 30) for i in range(4)]
    state = np.concatenate([e.obs["state"][:-1] for e in episodes])
    action = np.concatenate([e.action for e in episodes])
    log = LogDataset(write_store(tmp_path / "x.store", episodes, io=IO))
    buffer, untouched = (ReplayBuffer(IO, 200, seed=0) for _ in range(2))
    for one in episodes:
        buffer.add_episode(one)
        untouched.add_episode(one)
    for source in (log, buffer):
        found = seen(source, IO)
        assert found is not None
        assert (found.count, found.rate) == (120, 20.0)
        np.testing.assert_allclose(found.obs["state"], np.quantile(state, AT, axis=0).T, atol=1e-5)
        np.testing.assert_allclose(found.action, np.quantile(action, AT, axis=0).T, atol=1e-5)
    torch.testing.assert_close(buffer.sample(16).action, untouched.sample(16).action)


def test_of_a_ring_that_went_round_is_that_of_the_rows_that_are_left() -> None:
    buffer = ReplayBuffer(IO, 50, seed=0)
    episodes = [episode(i, 30) for i in range(3)]
    for one in episodes:
        buffer.add_episode(one)
    kept = np.concatenate([e.action for e in episodes])[-50:]
    found = seen(buffer, IO)
    assert found is not None
    assert found.count == 90
    np.testing.assert_allclose(found.action, np.quantile(kept, AT, axis=0).T, atol=1e-5)


def test_of_nothing_is_none() -> None:
    assert seen(None, IO) is None
    assert seen(ReplayBuffer(IO, 50), IO) is None
