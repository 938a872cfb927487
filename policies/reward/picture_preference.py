"""Reward of a picture under a goal, learnt from pairs of which one is nearer to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import model_validator
from torch import Tensor, nn

from robot_rl.policies.nets.cautious import Combination, combine
from robot_rl.policies.nets.image import random_shift
from robot_rl.policies.nets.module_step import ModuleStep
from robot_rl.state import Saved
from robot_rl.types import Options
from robot_rl.types.options import Count, NotNegative, Rate, Whole

_CHUNK = 512


@dataclass(frozen=True)
class PicturePairs:
    """P pairs among M pictures.

    Attributes:
        pictures: (M, H, W, 3) uint8.
        first, second: (P,) int64 rows of `pictures`.
        goal: (P,) int64 which goal.
        preferred: (P,) probability that the second is nearer to it: 0, 1, or 0.5 for a tie.
    """

    pictures: Tensor
    first: Tensor
    second: Tensor
    goal: Tensor
    preferred: Tensor

    def __len__(self) -> int:
        return len(self.preferred)


class PictureOptions(Options):
    """Of a reward learnt from pairs of pictures."""

    members: Count = 3
    """Networks."""
    channels: tuple[Count, ...] = (16, 32, 64, 128)
    """Of the convolutions."""
    kernels: tuple[Count, ...] = (5, 3, 3, 3)
    """Their widths in pixels."""
    strides: tuple[Count, ...] = (3, 2, 2, 2)
    """Their steps in pixels."""
    batch_size: Count = 64
    """Pairs per update and member."""
    lr: Rate = 3e-4
    """Step size."""
    shift_pad: Whole = 1
    """Largest shift of training pictures, pixels."""
    combination: Combination = "mean"
    """Of the members: their mean, their least (wco), or the mean less `caution` times their variance (uwo)."""
    caution: NotNegative = 0.1
    """Of "uwo"."""

    @model_validator(mode="after")
    def check_layers(self) -> PictureOptions:
        """Refuse convolutions that are told in part."""
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            raise ValueError(
                f"channels, kernels and strides have {len(self.channels)}, {len(self.kernels)} and "
                f"{len(self.strides)} entries, expected one each for every convolution"
            )
        return self


class _Net(nn.Module):
    """Convolutions without padding, then one number for each goal."""

    def __init__(self, o: PictureOptions, side: tuple[int, int], goals: int) -> None:
        super().__init__()
        layers, before, height, width = [], 3, *side
        for channel, kernel, stride in zip(o.channels, o.kernels, o.strides):
            layers += [nn.Conv2d(before, channel, kernel, stride), nn.ReLU()]
            before, height, width = channel, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if min(height, width) < 1:
            least = 1
            for kernel, stride in zip(reversed(o.kernels), reversed(o.strides)):
                least = (least - 1) * stride + kernel
            raise ValueError(f"pictures are {side[0]} x {side[1]}, expected {least} or more a side for these kernels")
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Linear(before * height * width, goals)

    def forward(self, pictures: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 -> (B, goals)."""
        return self.head(self.body(pictures.permute(0, 3, 1, 2).float().mul(1.0 / 255.0).sub(0.5)))


class PictureReward(Saved):
    """An ensemble of networks r(picture, goal); P(second nearer) = sigmoid(r(second) - r(first)), cross-entropy.

    One head for each goal on shared convolutions. Every member draws pairs of its own. `calibrate` brings each to
    mean 0 and deviation 1 over a probe set under each goal, which is fixed from then on; members are combined after
    that.

    Source: Wang et al., RL-VLM-F: one frame, kernels 5, 3, 3, 3, channels 16, 32, 64, 128, strides 3, 2, 2, 2, three
    members, Adam 3e-4, batches of 64. Heads per goal, standardised members, wco and uwo, and shifts are ours.
    """

    saved = ("_step", "_mean", "_std", "_generator")

    def __init__(
        self,
        options: PictureOptions,
        goals: Sequence[str],
        image_size: tuple[int, int],
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        """Build the networks.

        Args:
            options: of the reward.
            goals: sentences, one head each.
            image_size: (height, width) of the pictures.
            seed: of weights, batches and shifts.
            device: torch device.

        Raises:
            ValueError: no goals, or pictures too small for the kernels.
        """
        if not goals or len(set(goals)) != len(goals):
            raise ValueError(f"goals are {list(goals)}, expected one or more that differ")
        self.o, self.goals, self.members = options, list(goals), options.members
        self._size, self._device = tuple(image_size), torch.device(device)
        self._generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nets = [_Net(options, (image_size[0], image_size[1]), len(goals)) for _ in range(self.members)]
        self._nets = nn.ModuleList(nets).to(self._device)
        self._step = ModuleStep(self._nets, lr=options.lr)
        self._mean = torch.zeros(self.members, len(goals))
        self._std = torch.ones(self.members, len(goals))

    def update(self, pairs: PicturePairs) -> dict[str, float]:
        """One step of every member.

        Returns:
            loss (mean cross-entropy) and accuracy (share of decided pairs that are ordered as labelled).
        """
        losses, right, decided, size = [], 0.0, 0.0, self.o.batch_size
        for net in self._nets:
            rows = torch.randint(len(pairs), (size,), generator=self._generator)
            label, goal = pairs.preferred[rows].to(self._device), pairs.goal[rows].to(self._device)
            pictures = pairs.pictures[torch.cat([pairs.first[rows], pairs.second[rows]])]
            pictures = random_shift(pictures, self.o.shift_pad, self._generator).to(self._device)
            score = net(pictures).view(2, size, -1).gather(2, goal[None, :, None].expand(2, -1, 1))[..., 0]
            logit = score[1] - score[0]
            losses.append(nn.functional.binary_cross_entropy_with_logits(logit, label))
            clear = label != 0.5
            right += float((((logit > 0) == (label > 0.5)) & clear).sum())
            decided += float(clear.sum())
        loss = torch.stack(losses)
        self._step(loss.sum())
        return {"loss": float(loss.detach().mean()), "accuracy": right / max(decided, 1.0)}

    @torch.no_grad()
    def probabilities(self, pairs: PicturePairs) -> Tensor:
        """(E, P) P(second nearer) of every member."""
        used, place = torch.cat([pairs.first, pairs.second]).unique(return_inverse=True)
        raw = self._raw(pairs.pictures[used])  # (E, U, G): each picture once
        one, two = raw[:, place[: len(pairs)]], raw[:, place[len(pairs) :]]
        goal = pairs.goal[None, :, None].expand(self.members, -1, 1)
        return (two - one).gather(2, goal)[..., 0].sigmoid()

    @torch.no_grad()
    def calibrate(self, pictures: Tensor) -> None:
        """Fix every member's mean and deviation under each goal over a probe set (N, H, W, 3) uint8."""
        raw = self._raw(pictures)
        self._mean, std = raw.mean(1), raw.std(1, correction=0)
        self._std = torch.where(std < 1e-6, torch.ones_like(std), std)

    @torch.no_grad()
    def reward(self, pictures: Tensor, goal: str) -> Tensor:
        """(N,) combined reward of pictures (N, H, W, 3) uint8 under one goal.

        Raises:
            ValueError: a goal that it was not trained for, or pictures of another size.
        """
        if goal not in self.goals:
            raise ValueError(f"the reward knows no goal '{goal}'; it was trained for: {'; '.join(self.goals)}")
        i = self.goals.index(goal)
        every = (self._raw(pictures)[..., i] - self._mean[:, i, None]) / self._std[:, i, None]
        return combine(every, self.o.combination, caution=self.o.caution)

    def _raw(self, pictures: Tensor) -> Tensor:
        """(E, N, G) on the CPU."""
        if pictures.dtype != torch.uint8 or tuple(pictures.shape[1:]) != (*self._size, 3):
            raise ValueError(
                f"pictures are {tuple(pictures.shape)} {pictures.dtype}, expected (N, {self._size[0]}, {self._size[1]},"
                " 3) torch.uint8"
            )
        parts = [
            torch.stack([net(pictures[i : i + _CHUNK].to(self._device)) for net in self._nets]).cpu()
            for i in range(0, len(pictures), _CHUNK)
        ]
        return torch.cat(parts, dim=1) if parts else torch.zeros(self.members, 0, len(self.goals))
