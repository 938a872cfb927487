"""Scores of failed episodes from their distance to successful ones in a latent space (SRPO)."""

from __future__ import annotations

import numpy as np
import torch

from robot_rl.advantage.anchors import components
from robot_rl.advantage.arrays import host, in_torch
from robot_rl.advantage.kinds import Array, match_dtype, require_rows
from robot_rl.advantage.normalise import as_cells
from robot_rl.advantage.segments import seg_max


@in_torch
def distance_reward(distance: Array, task: Array, *, scale: float = 0.6, steepness: float = 10.0) -> Array:
    """Score in (0, scale) that falls with the distance, min-max normalised inside each task.

    Args:
        distance: (F,) distance of each failed episode to the nearest success centre.
        task: (F,) task ids.
        scale: largest score.
        steepness: slope of the sigmoid.

    Returns:
        (F,) scale · sigmoid(steepness · (0.5 - d)), d in [0, 1]; d = 0.5 where all distances of a task are equal.

    Raises:
        ValueError: wrong shapes or ids.

    Source: SRPO (Fei et al., Self-Referential Policy Optimization), sii-research/siiRL.
    """
    cells = as_cells(task, distance)
    d = distance.double()
    low = -seg_max(-d, cells.ids, cells.n)[cells.ids]
    span = seg_max(d, cells.ids, cells.n)[cells.ids] - low
    flat = span < 1e-6
    unit = torch.where(flat, 0.5, (d - low) / torch.where(flat, 1.0, span))
    return match_dtype(scale * torch.sigmoid(steepness * (0.5 - unit)), distance)


def success_centres(embedding: np.ndarray, *, eps: float = 0.5, min_samples: int = 2) -> np.ndarray:
    """Cluster means of successful episodes: DBSCAN on standardised embeddings, the mean of all if none is found.

    Args:
        embedding: (S, D) embeddings of the successes of one task.
        eps: neighbourhood radius in standardised units.
        min_samples: neighbours, the point itself included, that make a core point.

    Returns:
        (C, D) centres in the original space.

    Source: sii-research/siiRL; DBSCAN, Ester et al. 1996. Border points join the cluster of their nearest core point.
    """
    std = embedding.std(axis=0)
    z = (embedding - embedding.mean(axis=0)) / np.where(std > 0, std, 1.0)
    square = (z * z).sum(axis=1)
    gap = np.sqrt(np.maximum(square[:, None] + square[None, :] - 2.0 * z @ z.T, 0.0))
    near = (gap <= eps) | np.eye(len(z), dtype=bool)
    core = near.sum(axis=1) >= min_samples
    if not core.any():
        return embedding.mean(axis=0, keepdims=True)
    label = np.where(core, components(near & core[:, None] & core[None, :]), -1)
    reach = np.where(near & core[None, :], gap, np.inf)
    border = ~core & np.isfinite(reach).any(axis=1)
    label[border] = label[reach[border].argmin(axis=1)]
    return np.stack([embedding[label == one].mean(axis=0) for one in np.unique(label[label >= 0])])


@in_torch
def srpo_reward(
    embedding: Array, success: Array, task: Array, *, eps: float = 0.5, min_samples: int = 2, scale: float = 0.6
) -> Array:
    """1 for a success; for a failure a score by its distance to the successes of the same task; then use `grpo`.

    Args:
        embedding: (E, D) embedding of each episode by a world model; all zeros = invalid, score 0 even for a success.
        success: (E,) bool.
        task: (E,) task ids >= 0.
        eps: radius of the clustering.
        min_samples: core size of the clustering.
        scale: largest score of a failure.

    Returns:
        (E,) scores of the kind of `embedding`; computed on the CPU. Tasks without success or without failure keep
        plain 0 and 1.

    Raises:
        ValueError: wrong shapes.

    Source: Fei et al., SRPO; sii-research/siiRL.
    """
    like = embedding
    if len(like.shape) != 2:
        raise ValueError(f"embedding has shape {tuple(like.shape)}, expected (episodes, dimensions)")
    require_rows(int(like.shape[0]), success=success, task=task)
    x, won, tasks = host(like).astype(np.float64), host(success).astype(bool), host(task)
    valid = (x != 0).any(axis=1)
    reward = (won & valid).astype(np.float64)
    distance = np.full(len(x), np.nan)
    for one in np.unique(tasks):
        good, bad = valid & won & (tasks == one), valid & ~won & (tasks == one)
        if good.any() and bad.any():
            centres = success_centres(x[good], eps=eps, min_samples=min_samples)
            distance[bad] = np.linalg.norm(x[bad][:, None] - centres[None], axis=2).min(axis=1)
    known = ~np.isnan(distance)
    reward[known] = distance_reward(distance[known], tasks[known], scale=scale)
    return match_dtype(torch.from_numpy(reward).to(like.device), like)
