"""Goals by another camera: what is put where, and a policy that learns from a log what the shown picture asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.data.goal_pictures import GoalPictures, blank_sentences
from robot_rl.data.log_dataset import LogDataset, LogView
from robot_rl.data.store import Store, write_store
from robot_rl.policies.vla.cross_view import CrossViewImitation, CrossViewOptions
from robot_rl.types import Episode, IOSpec

IO = IOSpec(
    {
        "state": ((1,), "float32"),
        "image.top": ((16, 16, 3), "uint8"),
        "image.side": ((16, 16, 3), "uint8"),
        "instruction": ((30,), "uint8"),
    },
    ("tip_dx", "tip_dy"), (-0.03, -0.03), (0.03, 0.03), ("m", "m"), 10.0, ("tip_x",),
)  # fmt: skip
SMALL: dict[str, Any] = {
    "goal_camera": "side", "horizon_pred": 4, "horizon_exec": 2, "proprio": ["tip_x"], "batch_size": 32, "lr": 3e-3,
    "trunk": [32], "backbone": {"kind": "tiny", "width": 16, "places": True},
}  # fmt: skip


def side(place: int, rng: np.random.Generator) -> np.ndarray:
    """(16, 16, 3): a bright bar where the hand is, seen from the side: left is at the top."""
    out = rng.integers(0, 60, (16, 16, 3)).astype(np.uint8)
    out[8 + place : 11 + place] = 250
    return out


def log(folder: Path, episodes: int = 40) -> Store:
    """Half of the hands move to the left (-1 at every step), half to the right; every sentence says the opposite or
    the truth by a coin, so that only what happened tells what an episode was for."""
    rng, made = np.random.default_rng(0), []
    for number in range(episodes):
        way = -1 if number % 2 else 1
        steps = np.arange(5)
        obs = {
            "state": (way * steps[:, None]).astype(np.float32) * 0.0,
            "image.top": rng.integers(0, 60, (5, 16, 16, 3)).astype(np.uint8),
            "image.side": np.stack([side(way * t, rng) for t in steps]),
            "instruction": np.full((5, 30), 97 + int(rng.integers(2)), np.uint8),
        }
        action = np.stack([np.full(4, 0.8 * way), np.zeros(4)], 1).astype(np.float32)
        made.append(Episode(obs, action, action, np.zeros(4, np.float32), False, True, np.zeros(4, bool), steps * 0.1))
    return write_store(folder / "log.store", made, io=IO)


def test_policy_does_what_the_picture_of_the_other_camera_shows(tmp_path: Path) -> None:
    made = CrossViewImitation(CrossViewOptions(**SMALL), IO)
    data = LogDataset(log(tmp_path), LogView(window=made.need.window, extras=made.need.extras))
    batches = GoalPictures(data, **(made.need.goal_pictures or {})).batches(made.need.rows)
    for _ in range(150):
        made.update(batches)
    rng = np.random.default_rng(7)
    way = rng.choice([-1, 1], 40)
    obs = {
        "state": np.zeros((40, 1), np.float32),
        "image.top": rng.integers(0, 60, (40, 16, 16, 3)).astype(np.uint8),
        "image.side": np.stack([side(4 * w, rng) for w in way]),
        "instruction": blank_sentences(np.zeros((40, 30), np.uint8)),
    }
    moved = made.policy.act(obs, deterministic=True).value[:, 0]
    np.testing.assert_allclose(moved, 0.8 * way, atol=0.25)
    assert made.policy.planner.recipe.cameras == ("top", "side")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal_camera": "wrist"}, "no pictures of the goal's camera"),
        ({"cameras": ["side"]}, "cannot show the scene"),
    ],
)
def test_bad_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CrossViewImitation(CrossViewOptions(**{**SMALL, **changes}), IO)
