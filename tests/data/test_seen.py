"""Quantiles of what training saw, without a change of the stream of samples."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from broken import episode

from robot_rl.data.buffer import ReplayBuffer
from robot_rl.data.log_dataset import LogDataset
from robot_rl.data.seen import RowSample, StepSample, measure_seen
from robot_rl.data.store import write_store
from robot_rl.types import IOSpec, Seen
from robot_rl.types.io import mosaic

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
        found = measure_seen(source, IO)
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
    found = measure_seen(buffer, IO)
    assert found is not None
    assert found.count == 90
    np.testing.assert_allclose(found.action, np.quantile(kept, AT, axis=0).T, atol=1e-5)


def test_of_nothing_is_none() -> None:
    assert measure_seen(None, IO) is None
    assert measure_seen(ReplayBuffer(IO, 50), IO) is None


def rollouts(count: int) -> list[tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]]:
    """Of 32 steps in 8 environments; states drift from -1 to 1 over all of them, one row in eight counts not."""
    rng, made = np.random.default_rng(0), []
    for i in range(count):
        state = rng.normal(2.0 * i / count - 1.0, 0.1, (32, 8, 3)).astype(np.float32)
        obs = {"state": state, "image.front": np.zeros((32, 8, 2, 2, 3), np.uint8)}
        made.append((obs, rng.normal(0.0, 0.8, (32, 8, 2)).astype(np.float32), rng.random((32, 8)) < 0.875))
    return made


def test_of_rollouts_is_that_of_all_of_them_and_not_of_the_newest() -> None:
    rows = RowSample()
    made = rollouts(400)  # 102,400 rows
    for obs, action, valid in made:
        rows.add(obs, action, valid)
    found = measure_seen(rows, IO)
    assert found is not None
    assert found.count == 102_400
    state = np.concatenate([obs["state"][valid] for obs, _, valid in made])
    action = np.concatenate([action[valid] for _, action, valid in made]).clip(-1.0, 1.0)
    kept = rows.look(0)[1]
    assert 6_000 < len(kept) < 16_384
    np.testing.assert_allclose(found.obs["state"], np.quantile(state, AT, axis=0).T, atol=0.06)
    np.testing.assert_allclose(found.action, np.quantile(action, AT, axis=0).T, atol=0.04)


def test_rows_of_rollouts_are_of_every_environment_and_go_on_from_a_saved_state() -> None:
    whole, cut = RowSample(most=64), RowSample(most=64)
    column = np.tile(np.arange(8, dtype=np.float32), (32, 1))[..., None]
    for i in range(100):
        for rows in (whole, cut):
            rows.add({"state": column}, column, np.ones((32, 8), bool))
        if i == 50:
            saved, cut = cut.state_dict(), RowSample(most=64)
            cut.load_state_dict(saved)
    kept = whole.look(0)[1]
    assert torch.equal(kept, cut.look(0)[1])
    assert 32 <= len(kept) <= 64
    assert set(whole.look(0)[0]["state"][:, 0].tolist()) == set(range(8))
    wide = RowSample()
    for _ in range(20):
        wide.add({"state": np.zeros((32, 8, 2000), np.float32)}, np.zeros((32, 8, 2), np.float32), np.ones((32, 8)))
    assert len(wide.look(0)[1]) <= 1024  # 8 MB


def test_mosaic_is_the_mean_colour_of_each_part() -> None:
    picture = np.zeros((2, 8, 12, 3), np.uint8)
    picture[1, :2, :3] = (40, 80, 120)  # the first of 4 x 4 parts
    picture[1, 6:, 9:, 0] = np.array([[10, 20, 30], [10, 20, 30]])  # the last; its red is 20 in the middle
    found = mosaic(picture)
    assert found.shape == (2, 48)
    assert not found[0].any()
    np.testing.assert_allclose(found[1, :3], [40, 80, 120])
    np.testing.assert_allclose(found[1, -3:], [20, 0, 0])
    assert not found[1, 3:-3].any()


def test_pictures_of_training_are_kept_as_mosaics_whatever_they_come_from(tmp_path: Path) -> None:
    io = replace(IO, obs={**IO.obs, "image.front": ((8, 8, 3), "uint8")})
    rows, buffer = RowSample(), ReplayBuffer(io, 200, seed=0)
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (32, 8, 8, 8, 3), np.uint8)
    pictures[..., :4, :, 2] = 200  # blue above
    obs = {"state": rng.normal(size=(32, 8, 3)).astype(np.float32), "image.front": pictures}
    rows.add(obs, np.zeros((32, 8, 2), np.float32), np.ones((32, 8), bool))
    one = episode(0, 30)
    shots = {"image.front": pictures[:31, 0], "state": one.obs["state"]}
    buffer.add_episode(replace(one, obs=shots))
    log = LogDataset(write_store(tmp_path / "x.store", [replace(one, obs=shots)], io=io))
    steps = StepSample()
    for state, shown in zip(obs["state"], pictures):
        steps.step({"state": state, "image.front": shown}, np.zeros((8, 2), np.float32))
    every = pictures.reshape(-1, 8, 8, 3)
    for source, of in ((rows, every), (steps, every), (buffer, pictures[:30, 0]), (log, pictures[:30, 0])):
        found = measure_seen(source, io)
        assert found is not None
        np.testing.assert_allclose(found.pictures["image.front"], np.quantile(mosaic(of), AT, axis=0).T, atol=1e-4)
        assert found.pictures["image.front"][2][0] == found.pictures["image.front"][2][-1] == 200.0
        assert Seen.from_dict(json.loads(json.dumps(found.to_dict()))) == found
        assert found.strange({"image.front": pictures[:1, 0], "state": np.zeros((1, 3))}) == []
