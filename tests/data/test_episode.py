from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.data.episode import EpisodeBuilder, episode_from_columns, split
from robot_rl.types import Episode, Step


def step(t: int, *, ends: str = "..", valid: tuple[bool, bool] = (True, True), tensors: bool = False) -> Step:
    """Two environments; observations are 10 t and 10 t + 1, successors one step on."""
    here = np.array([[10.0 * t], [10.0 * t + 1]], np.float32)
    parts: dict[str, Any] = {
        "obs": {"state": here},
        "action": here / 1000,
        "reward": here[:, 0],
        "next_obs": {"state": here + 10},
        "terminated": np.array([e == "t" for e in ends]),
        "truncated": np.array([e == "c" for e in ends]),
        "current": {"state": here + 10},
        "valid": np.array(valid),
        "intervened": np.array([False, t % 2 == 1]),
        "proposed": -here / 1000,
        "info": {"success": np.array([t > 1, False])},
    }
    if tensors:
        parts = {
            k: {n: torch.from_numpy(x) for n, x in v.items()} if isinstance(v, dict) else torch.from_numpy(v)
            for k, v in parts.items()
        }
    return Step(**parts)


@pytest.mark.parametrize("tensors", [False, True])
def test_builder_hands_out_episodes_when_they_end(tensors: bool) -> None:
    builder = EpisodeBuilder(2, meta={"task": "x"}, columns=["success"])
    assert builder.add(step(0, tensors=tensors)) == []
    (second,) = builder.add(step(1, ends=".c", tensors=tensors))
    assert second.obs["state"][:, 0].tolist() == [1, 11, 21]
    assert (second.terminated, second.truncated) == (False, True)
    assert second.intervened.tolist() == [False, True]
    assert second.reward.tolist() == [1, 11]
    (first,) = builder.add(step(2, ends="t.", tensors=tensors))
    assert first.obs["state"][:, 0].tolist() == [0, 10, 20, 30]
    assert (first.terminated, first.truncated) == (True, False)
    assert first.stamp.tolist() == [0, 1, 2, 3]
    assert first.meta["columns"]["success"].tolist() == [False, False, True]
    assert first.meta["task"] == "x"
    np.testing.assert_array_equal(first.proposed, -first.action)
    (rest,) = builder.flush()
    assert (len(rest), rest.terminated, rest.truncated) == (1, False, False)
    assert builder.flush() == []


def test_builder_invalid_row_cuts_the_episode() -> None:
    builder = EpisodeBuilder(2)
    builder.add(step(0))
    (cut,) = builder.add(step(1, valid=(False, True)))
    assert cut.obs["state"][:, 0].tolist() == [0, 10]
    assert (cut.terminated, cut.truncated) == (False, False)
    assert builder.add(step(2, valid=(False, True))) == []


def test_builder_copies_what_the_environment_reuses() -> None:
    builder = EpisodeBuilder(2)
    one = step(0, ends="t.")
    (episode,) = builder.add(one)
    two = step(1)
    builder.add(two)
    two.obs["state"][:] = -1
    two.action[:] = -1
    assert episode.obs["state"][:, 0].tolist() == [0, 10]
    assert builder.flush()[0].obs["state"][0, 0] == 10


def test_builder_stamps_are_those_of_acquisition() -> None:
    builder = EpisodeBuilder(2)
    builder.add(step(0), np.array([0.5, 0.6]), np.array([0.55, 0.65]))
    episodes = builder.add(step(1, ends="tt"), np.array([0.56, 0.66]), np.array([0.61, 0.71]))
    assert episodes[1].stamp.tolist() == [0.6, 0.66, 0.71]


def whole(steps: int = 6) -> Episode:
    rng = np.random.default_rng(0)
    return episode_from_columns(
        {"state": rng.normal(size=(steps, 2)).astype(np.float32)},
        rng.uniform(-1, 1, (steps, 1)).astype(np.float32),
        np.arange(steps, dtype=np.float32),
        terminated=True,
        truncated=False,
        final_obs={"state": np.zeros(2, np.float32)},
        meta={"columns": {"level": np.arange(steps)}},
    )


def test_split_shares_memory_and_only_the_last_piece_ends() -> None:
    episode = whole()
    pieces = split(episode, [1, 4])
    assert [len(p) for p in pieces] == [1, 3, 2]
    assert [(p.terminated, p.truncated) for p in pieces] == [(False, False), (False, False), (True, False)]
    assert np.shares_memory(pieces[1].obs["state"], episode.obs["state"])
    assert pieces[1].meta["columns"]["level"].tolist() == [1, 2, 3]
    for name in ("action", "proposed", "reward", "intervened"):
        np.testing.assert_array_equal(np.concatenate([vars(p)[name] for p in pieces]), vars(episode)[name])
    np.testing.assert_array_equal(
        pieces[1].obs["state"], episode.obs["state"][1:5]
    )  # with the observation after its last step


@pytest.mark.parametrize("cuts", [[0], [6], [3, 3], [4, 2]])
def test_split_bad_cuts_are_refused(cuts: list[int]) -> None:
    with pytest.raises(ValueError, match="increasing"):
        split(whole(), cuts)


def test_episode_from_columns_without_final_observation_says_so() -> None:
    episode = episode_from_columns(
        {"state": np.ones((2, 1))}, np.zeros((2, 1)), np.zeros(2), terminated=False, truncated=True
    )
    assert episode.meta["final_obs_valid"] is False
    assert episode.obs["state"].shape == (3, 1)


def test_only_the_last_piece_of_a_success_is_one() -> None:
    whole = episode_from_columns(
        {"state": np.zeros((5, 2))}, np.zeros((5, 1)), np.zeros(5), terminated=True, truncated=False,
        final_obs={"state": np.zeros(2)}, meta={"success": True},
    )  # fmt: skip
    assert [piece.meta["success"] for piece in split(whole, [2, 4])] == [False, False, True]
