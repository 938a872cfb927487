"""Goals as pictures: which later moment they show, and that nothing else of a batch changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robot_rl.data.goal_pictures import SENTENCE, GoalPictures, blank_sentences
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import Store, write_store
from robot_rl.types import Episode, IOSpec

IO = IOSpec(
    {
        "state": ((2,), "float32"),
        "image.top": ((2, 2, 3), "uint8"),
        "image.side": ((2, 2, 3), "uint8"),
        "instruction": ((30,), "uint8"),
    },
    ("a",), (-1.0,), (1.0,), ("1",), control_hz=10.0,
)  # fmt: skip
STEPS = 5


def store(folder: Path) -> Store:
    """Three episodes; every pixel of picture t of episode e is 10 e + t, the state is (t, e)."""
    made = []
    for number in range(3):
        count = np.arange(STEPS + 1)
        picture = np.broadcast_to((10 * number + count)[:, None, None, None], (STEPS + 1, 2, 2, 3)).astype(np.uint8)
        obs = {
            "state": np.stack([count, np.full(STEPS + 1, number)], 1).astype(np.float32),
            "image.top": picture,
            "image.side": picture,
            "instruction": np.full((STEPS + 1, 30), 97, np.uint8),
        }
        action = np.zeros((STEPS, 1), np.float32)
        made.append(
            Episode(obs, action, action, np.ones(STEPS, np.float32), False, True, np.zeros(STEPS, bool), count * 0.1)
        )
    return write_store(folder / "log.store", made, io=IO)


def drawn(folder: Path, window: int = 1, **options: float) -> GoalPictures:
    data = LogDataset(store(folder), LogView(window=window, extras=("episode", "step")))
    return GoalPictures(data, camera="side", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [1, 3])
def test_last_pictures_are_goals_and_own_pictures_stay(window: int, tmp_path: Path) -> None:
    batch = next(drawn(tmp_path, window, last=1.0).batches(64))
    step, number = batch.obs["state"].reshape(-1, 2).T.numpy()
    for obs, later in ((batch.obs, 0), (batch.next_obs, 1)):
        goal = obs["image.side"].reshape(len(step), -1)[:, 0].numpy()
        np.testing.assert_array_equal(goal, 10 * number + STEPS)
        own = obs["image.top"].reshape(len(step), -1)[:, 0].numpy()
        np.testing.assert_array_equal(own, 10 * number + step + later)
        assert bytes(obs["instruction"].reshape(-1, 30)[0].tolist()).rstrip(b"\0").decode() == SENTENCE


def test_later_pictures_are_uniform_behind_the_step(tmp_path: Path) -> None:
    batch = next(drawn(tmp_path, last=0.0).batches(6000))
    step, number = batch.obs["state"].T.numpy()
    later = batch.obs["image.side"][:, 0, 0, 0].numpy() - 10 * number
    assert (later > step).all()
    assert (later <= STEPS).all()
    first = later[step == 0]
    share = [(first == moment).mean() for moment in range(1, STEPS + 1)]
    np.testing.assert_allclose(share, 0.2, atol=0.05)  # five later moments of step 0


def test_continues_exactly(tmp_path: Path) -> None:
    one = drawn(tmp_path, last=0.5)
    stream = one.batches(8)
    next(stream)
    kept = one.state_dict()
    wanted = next(stream).obs["image.side"]
    other = GoalPictures(
        LogDataset(one.data.store, LogView(extras=("episode", "step"))), camera="side", last=0.5, seed=9
    )
    other.load_state_dict(kept)
    np.testing.assert_array_equal(next(other.batches(8)).obs["image.side"].numpy(), wanted.numpy())


def test_bad_requests_are_one_clear_line(tmp_path: Path) -> None:
    log = store(tmp_path)
    with pytest.raises(ValueError, match=r"no 'image\.wrist'"):
        GoalPictures(LogDataset(log, LogView(extras=("episode", "step"))), camera="wrist")
    with pytest.raises(ValueError, match="share from 0 to 1"):
        GoalPictures(LogDataset(log, LogView(extras=("episode", "step"))), camera="side", last=2.0)
    with pytest.raises(ValueError, match="'episode' and 'step'"):
        next(GoalPictures(LogDataset(log), camera="side").batches(4))
    with pytest.raises(ValueError, match="needs 25"):
        blank_sentences(np.zeros((2, 10), np.uint8))
