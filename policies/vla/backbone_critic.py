"""A progress critic on any backbone: two pictures and a sentence through the model, one share of remaining work out.

The same labels and read-out as the small critic, for models that look at both pictures at once, such as pretrained
vision-language models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.policies.nets.progress import CLIP, add_up, log_delta, share_of_log
from robot_rl.policies.nets.value_heads import hl_gauss_head
from robot_rl.policies.vla.interface import (
    Backbone,
    CriticMeta,
    CriticOutput,
    MomentCritic,
    Trajectory,
    checked_goal,
    checked_images,
    checked_pair,
    shows_something,
    stride_frames,
)
from robot_rl.types import Array

_BINS = 41
_EDGE = 1.0 + 1.0 / (_BINS - 1)


class BackboneCritic(nn.Module, MomentCritic):
    """Behind the contract `ProgressCritic`; no absolute head, so `value` is NaN.

    Args:
        backbone: reads two pictures and a sentence.
        name: for reports.
    """

    def __init__(self, backbone: Backbone, *, name: str = "backbone_critic") -> None:
        super().__init__()
        self.backbone = backbone
        self.share = nn.Linear(backbone.width, _BINS)
        self.met = nn.Linear(backbone.width, 1)
        self.meta = CriticMeta(name, "pairwise_head", backbone.image_size)
        self._head = hl_gauss_head(-_EDGE, _EDGE, _BINS, sigma_ratio=1.5)

    @torch.no_grad()
    def __call__(self, images_t0: Array, images_t1: Array, goal: Sequence[str]) -> CriticOutput:
        """See `ProgressCritic`; each pair is read in both orders and the difference halved."""
        first, second = checked_pair(images_t0, images_t1, self.meta.image_size)
        texts = checked_goal(goal, len(first))
        if not texts:
            nothing = torch.zeros(0)
            return CriticOutput.of(nothing, nothing, nothing.bool())
        forward, done = self._read(first, second, texts)
        backward, _ = self._read(second, first, texts)
        share = (0.5 * (self._mean(forward) - self._mean(backward))).clamp(-1 + CLIP, 1 - CLIP)
        dlogw = torch.as_tensor(log_delta(share.cpu().numpy()), dtype=torch.float32)
        same = (first == second).flatten(1).all(dim=1)
        dlogw = torch.where(same, torch.zeros_like(dlogw), dlogw)
        valid = shows_something(first) & shows_something(second)
        return CriticOutput.of(dlogw, done.sigmoid().cpu(), valid)

    def trajectory(self, frames: Array, goal: str, *, stride: int = 1) -> Trajectory:
        """See `ProgressCritic`. P(done) of the first frame comes from its pair with itself."""
        index, taken = stride_frames(frames, stride)
        before = torch.cat([taken[:1], taken[:-1]])
        out = self(before, taken, [goal] * len(taken))
        steps = torch.nan_to_num(out.dlogw[1:]).numpy().astype(np.float64)
        u, values = add_up(steps)
        absent = np.full(len(values), np.nan)
        return Trajectory(share_of_log(steps), u, values, out.done.numpy(), index, absent, out.valid[1:].numpy())

    def loss(self, first: Tensor, second: Tensor, goal: Sequence[str], share: Tensor, done: Tensor) -> Tensor:
        """() of B pairs: cross-entropy of the share (B,) in both orders, and of done (B,) in {0, 1}."""
        a = checked_images(first, self.meta.image_size)
        b = checked_images(second, self.meta.image_size)
        forward, met = self._read(a, b, list(goal))
        backward, _ = self._read(b, a, list(goal))
        pair = 0.5 * (self._head.loss(forward, share) + self._head.loss(backward, -share))
        return pair + 0.5 * F.binary_cross_entropy_with_logits(met, done)

    def _read(self, first: Tensor, second: Tensor, texts: list[str]) -> tuple[Tensor, Tensor]:
        hidden = self.backbone(torch.cat([first, second], dim=1), texts)
        return self.share(hidden), self.met(hidden)[:, 0]

    def _mean(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) @ self._head.centres.to(logits.device)
