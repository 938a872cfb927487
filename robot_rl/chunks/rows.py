"""Windows of control steps as rows of decisions, and what a chunk critic reads of them."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.types import Transitions


def chunk_rows(window: Transitions) -> Transitions:
    """One decision per row out of windows of single steps.

    A window that meets the end of its episode (or the newest row, or a gap) becomes a partial chunk of k < H steps: its
    reward and discount are those of the k steps, so that every start is trained, those within H of an end included.

    Args:
        window: fields (B, H), `mask` (B, H) true for existing steps (a run that begins at 0), `discount` per step;
            what `ReplayBuffer(window=H)` and `LogDataset(window=H)` draw with n_step = 1.

    Returns:
        obs (B, ...) of the first step; action (B, H, A) with zeros behind the k-th; reward (B,) the sum of the rewards
        times the discounts before them; discount (B,) the product; next_obs of the k-th step; both end flags of the
        k-th step; intervened (B,) if a human chose any of the k; mask (B, H); extras of the first step, and
        "rewards" (B, H) per step.

    Raises:
        ValueError: the batch holds single steps.

    Source: design of the project (semi-Markov decision process; Sutton, Precup and Singh, 1999).
    """
    if window.reward.dim() != 2:
        raise ValueError(
            f"reward has shape {tuple(window.reward.shape)}, expected (B, H): draw windows, e.g. "
            "ReplayBuffer(window=H); learners announce it as their attribute `window`"
        )
    mask = window.mask
    valid = mask.to(window.reward.dtype)
    step = torch.where(mask, window.discount, torch.ones_like(window.discount))
    through = step.cumprod(1)
    before = torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], dim=1)
    rewards = window.reward * valid
    last = (mask.sum(1) - 1).clamp_min(0)
    row = torch.arange(len(last), device=last.device)
    return Transitions(
        obs={key: value[:, 0] for key, value in window.obs.items()},
        action=window.action * valid[..., None],
        reward=(rewards * before).sum(1),
        discount=through[:, -1],
        next_obs={key: value[row, last] for key, value in window.next_obs.items()},
        terminated=window.terminated[row, last],
        truncated=window.truncated[row, last],
        intervened=(window.intervened & mask).any(1),
        mask=mask,
        extras={
            **{key: value[:, 0] if value.dim() > 1 else value for key, value in window.extras.items()},
            "rewards": rewards,
        },
    )


def critic_action(action: Tensor, mask: Tensor | None = None) -> Tensor:
    """What Q(s, a_1 ... a_k) reads of a chunk: zeros behind the k-th action, and which entries exist.

    Without the mask in the input the critic could not tell standing still from ending; repeating the last action has
    the same flaw.

    Args:
        action: (..., H, A).
        mask: (..., H) bool, a run from 0; None = all H.

    Returns:
        (..., H A + H).
    """
    flags = torch.ones_like(action[..., 0]) if mask is None else mask.to(action.dtype)
    return torch.cat([(action * flags[..., None]).flatten(-2), flags], dim=-1)


def critic_width(horizon: int, action_dim: int) -> int:
    """Columns of `critic_action`."""
    return horizon * (action_dim + 1)
