"""Features of a log: read once, kept beside it by content, and lined up with the rows of every batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from robot_rl.data.features import cache_path, features
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import Store, write_store
from robot_rl.types import Episode, IOSpec

IO = IOSpec(
    {"state": ((2,), "float32"), "image.top": ((2, 2, 3), "uint8")}, ("a",), (-1.0,), (1.0,), ("1",), control_hz=10.0
)


def store(folder: Path, episodes: int = 3, held: int = 2, seed: int = 0) -> Store:
    """Episodes of 5 steps whose pictures change at every `held`-th observation; the state counts observations."""
    random, made = np.random.default_rng(seed), []
    for number in range(episodes):
        pictures = random.integers(0, 256, (6, 2, 2, 3)).astype(np.uint8)
        steps = np.arange(6)
        made.append(
            Episode(
                obs={
                    "state": np.stack([steps, np.full(6, number)], 1).astype(np.float32),
                    "image.top": pictures[steps // held * held],
                },
                action=np.zeros((5, 1), np.float32), proposed=np.zeros((5, 1), np.float32),
                reward=np.ones(5, np.float32), terminated=False, truncated=True, intervened=np.zeros(5, bool),
                stamp=steps * 0.1, meta={},
            )
        )  # fmt: skip
    return write_store(folder / "log.store", made, io=IO)


class Mean:
    """The mean brightness and its square; counts what it reads."""

    width = 2

    def __init__(self, digest: str = "a1", bad: bool = False) -> None:
        self.keys: tuple[str, ...] = ("image.top",)
        self.digest, self.read, self.bad = digest, 0, bad

    def __call__(self, obs: Mapping[str, np.ndarray], /) -> np.ndarray:
        pictures = obs["image.top"]
        self.read += len(pictures)
        mean = pictures.reshape(len(pictures), -1).mean(1) / 255.0
        return np.stack([mean, mean**2 if not self.bad else mean * np.nan], 1).astype(np.float32)


def test_rows_are_read_once_and_kept_beside_the_log(tmp_path: Path) -> None:
    log, reader = store(tmp_path), Mean()
    rows = features(log, reader)
    assert reader.read == 9  # three different pictures in each of three episodes, of 18 rows
    direct = Mean()({"image.top": log.obs("image.top")})
    np.testing.assert_allclose(rows, direct, atol=1e-6)
    again = Mean()
    np.testing.assert_array_equal(features(log, again), rows)
    assert again.read == 0
    assert cache_path(log, reader).parent == tmp_path / "log.store.features"


def test_other_readers_and_other_data_do_not_meet_these_rows(tmp_path: Path) -> None:
    log = store(tmp_path)
    features(log, Mean())
    other = Mean("b2")
    features(log, other)
    assert other.read == 9
    (tmp_path / "two").mkdir()
    second = store(tmp_path / "two", seed=1)
    assert cache_path(log, Mean()).name != cache_path(second, Mean()).name


def test_damaged_rows_are_read_again(tmp_path: Path) -> None:
    log, reader = store(tmp_path), Mean()
    rows = np.array(features(log, reader))
    path = cache_path(log, reader)
    path.write_bytes(path.read_bytes()[:-5])
    np.testing.assert_array_equal(features(log, reader), rows)
    assert reader.read == 18


def test_answers_that_are_not_finite_and_pictures_that_are_not_there_are_refused(tmp_path: Path) -> None:
    log = store(tmp_path)
    with pytest.raises(ValueError, match="finite"):
        features(log, Mean(bad=True))
    blind = Mean()
    blind.keys = ("image.wrist",)
    with pytest.raises(ValueError, match=r"reads \['image.wrist'\]"):
        features(log, blind)


@pytest.mark.parametrize("window", [1, 3])
def test_batches_hold_the_features_of_their_own_rows(tmp_path: Path, window: int) -> None:
    log = store(tmp_path, held=1)
    rows = features(log, Mean())
    data = LogDataset(log, LogView(window=window), keys=("state",), derived={"features": rows})
    batch = data.sample(40)
    assert set(batch.obs) == {"state", "features"}
    for obs in (batch.obs, batch.next_obs):
        state = obs["state"].numpy()
        place = (state[..., 1] * 6 + state[..., 0]).astype(int)  # episode, observation -> row of the store
        np.testing.assert_array_equal(obs["features"].numpy(), rows[place])
    assert (batch.next_obs["state"][..., 0] == batch.obs["state"][..., 0] + 1).all()


def test_derived_rows_of_another_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 4 rows, the store 18"):
        LogDataset(store(tmp_path), derived={"features": np.zeros((4, 2), np.float32)})
