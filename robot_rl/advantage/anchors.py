"""Integer keys that say "this turn started in the same state": the anchors of GiGPO-like estimators.

Keys are int64 and never 0 (0 means no anchor). They are made once when data are collected; estimators see integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from robot_rl.advantage.arrays import host
from robot_rl.advantage.kinds import Array

_ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)


def _back(keys: np.ndarray, like: Array) -> Array:
    keys = np.where(keys == 0, 1, keys)
    return torch.from_numpy(keys).to(like.device) if isinstance(like, torch.Tensor) else keys


def state_anchor(state: Array, *, tolerance: float = 1e-3) -> Array:
    """Key of a state vector rounded to a grid.

    Args:
        state: (U, S) state in which each turn was taken, finite.
        tolerance: width of the grid in the units of the state; states in the same cell of the grid share a key.

    Returns:
        (U,) int64, of the kind of `state`; computed on the CPU.

    Raises:
        ValueError: wrong shape, tolerance not positive, or a state that is not finite.

    Source: Feng et al., Group-in-Group Policy Optimization (anchor states); the grid is ours.
    """
    if len(state.shape) != 2:
        raise ValueError(f"state has shape {tuple(state.shape)}, expected (turns, state dimensions)")
    if tolerance <= 0:
        raise ValueError(f"tolerance is {tolerance}, expected a positive width of the grid")
    plain = host(state).astype(np.float64)
    if not np.isfinite(plain).all():
        row = int((~np.isfinite(plain)).any(axis=1).argmax())
        raise ValueError(f"state at row {row} is not finite; a turn without a state has no anchor, give it key 0")
    cell = np.rint(plain / tolerance).astype(np.int64)
    key = np.full(plain.shape[0], plain.shape[1], dtype=np.uint64)
    for column in cell.T:  # one pass per state dimension, each over all rows
        key ^= column.astype(np.int64).view(np.uint64)
        key *= np.uint64(_ODD[0])
        key ^= key >> np.uint64(29)
        key *= np.uint64(_ODD[1])
        key ^= key >> np.uint64(32)
    return _back(key.view(np.int64), state)


def text_anchor(text: Sequence[str]) -> np.ndarray:
    """Key of an observation in words; case and white space do not count.

    Args:
        text: U observations.

    Returns:
        (U,) int64.
    """
    digests = (hashlib.blake2b(" ".join(line.lower().split()).encode(), digest_size=8).digest() for line in text)
    return _back(np.array([int.from_bytes(digest, "little", signed=True) for digest in digests], dtype=np.int64), None)


def cluster_anchor(embedding: Array, group: Array, *, threshold: float = 0.95, decimals: int = 4) -> Array:
    """Key shared by states whose embeddings are linked by a chain of cosine similarities above a threshold.

    The clusters are the connected components inside each group, so the order of the rows does not matter, as it does
    in the greedy clustering of other projects.

    Args:
        embedding: (U, D) embeddings of the observations.
        group: (U,) group of each turn; different groups never share a key.
        threshold: smallest cosine similarity of a link, in (0, 1].
        decimals: embeddings of unit length are rounded to this many decimals, so that float noise cannot flip a link.

    Returns:
        (U,) int64, of the kind of `embedding`; computed on the CPU, memory O(largest group squared).

    Raises:
        ValueError: wrong shapes or threshold.
    """
    if len(embedding.shape) != 2 or tuple(group.shape) != (embedding.shape[0],):
        raise ValueError(
            f"embedding has shape {tuple(embedding.shape)} and group {tuple(group.shape)}, expected (U, D) and (U,)"
        )
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}, expected a cosine similarity in (0, 1]")
    plain, groups = host(embedding).astype(np.float64), host(group)
    length = np.linalg.norm(plain, axis=1, keepdims=True)
    unit = np.round(plain / np.where(length > 0, length, 1.0), decimals)
    unit = unit / np.where(length > 0, np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12), 1.0)
    key = np.zeros(plain.shape[0], dtype=np.int64)
    for one in np.unique(groups):
        rows = np.flatnonzero(groups == one)
        linked = unit[rows] @ unit[rows].T >= threshold - 1e-9
        key[rows] = rows[components(linked)] + 1
    return _back(key, embedding)


def components(linked: np.ndarray) -> np.ndarray:
    """Smallest member of the connected component of each node.

    Args:
        linked: (n, n) symmetric bool adjacency; every node is linked to itself.

    Returns:
        (n,) int64.
    """
    n = linked.shape[0]
    linked = linked | np.eye(n, dtype=bool)
    label = np.arange(n)
    while True:
        spread = np.where(linked, label[None, :], n).min(axis=1) if n else label
        spread = np.minimum(spread, spread[spread])  # follow the label's own label: long chains close quickly
        if (spread == label).all():
            return label
        label = spread
