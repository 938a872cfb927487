"""Random ragged batches for property tests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass
class Ragged:
    """Turn rows of episodes of different length, with groups that are neither dense nor in order."""

    reward: np.ndarray
    episode: np.ndarray
    turn_index: np.ndarray
    group: np.ndarray
    score: np.ndarray
    anchor: np.ndarray
    actor: np.ndarray
    length: np.ndarray


def ragged(seed, episodes=14, nan=0.15, outside=0.1):
    """A batch; a share `nan` of the scores and some rewards are NaN, a share `outside` of the episodes has no group."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 6, episodes)
    episode = np.repeat(np.arange(episodes), length)
    n = len(episode)
    reward = np.round(rng.normal(size=n), 1)
    score = rng.choice([0.0, 0.5, 1.0, rng.normal()], episodes)
    if nan:
        reward[rng.random(n) < nan / 4] = np.nan
        score[rng.random(episodes) < nan] = np.nan
    group = rng.choice([3, 40, 10**12, 7], episodes)
    group[rng.random(episodes) < outside] = -1
    turn_index = np.concatenate([np.arange(k) for k in length])
    return Ragged(
        reward, episode, turn_index, group, score, rng.integers(0, 4, n), rng.integers(0, 3, n), length.astype(float)
    )


def permute_episodes(batch, seed):
    """The same batch with its episodes in another order, and the row permutation that undoes it for flat results."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(batch.group))
    rows = np.concatenate([np.flatnonzero(batch.episode == e) for e in order])
    new = Ragged(
        batch.reward[rows],
        np.repeat(np.arange(len(order)), batch.length[order].astype(int)),
        batch.turn_index[rows],
        batch.group[order],
        batch.score[order],
        batch.anchor[rows],
        batch.actor[rows],
        batch.length[order],
    )
    return new, rows, order


def grad_of(tensor: Any) -> Any:
    """Gradient of a leaf, which a backward pass has filled."""
    assert tensor.grad is not None
    return tensor.grad


def both(function: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """Result of a function on NumPy arrays, after checking that tensors give the same and that no input changed."""
    before = [x.copy() for x in arrays]
    got = function(*arrays, **options)
    for x, old in zip(arrays, before):
        np.testing.assert_array_equal(x, old)
    tensors = [torch.from_numpy(x.copy()) for x in arrays]
    other = function(*tensors, **options)
    pairs = zip(got, other) if isinstance(got, tuple) else [(got, other)]
    for mine, theirs in pairs:
        assert isinstance(theirs, torch.Tensor)
        np.testing.assert_allclose(np.asarray(mine, float), theirs.double().numpy(), rtol=1e-9, atol=1e-12)
    return got
