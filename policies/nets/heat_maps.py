"""Heat maps of named points: a small net per camera says where in its picture each of them is, and how surely."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

STRIDE = 4
"""Pixels per cell of a heat map."""
REACH = 2
"""Cells round the peak, on every side, over which a point's place is averaged."""
UNSEEN = 0.1
"""Weight of pictures that do not show a point, whose heat map is to be flat."""


FURTHER = 4, 2
"""Dilations of further layers: with both of them a cell looks at 81 pixels, without them at 33."""


class HeatMaps(nn.Module):
    """Pictures (B, H, W, 3) uint8 -> heat maps (B, P, H / 4, W / 4), logits. 24,000 weights with the width of 16.

    Args:
        points: P.
        generator: of the first weights.
        width: channels of the first layer; the others have twice as many.
        further: how many of the layers `FURTHER` there are.

    Source: Tompson et al., Joint Training of a Convolutional Network and a Graphical Model for Human Pose Estimation
    (heat maps in place of coordinates).
    """

    def __init__(self, points: int, generator: torch.Generator, width: int = 16, further: int = 0) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 5, stride=2, padding=2)
        self.second = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.third = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.wide = nn.Conv2d(2 * width, 2 * width, 3, padding=2, dilation=2)
        self.further = nn.ModuleList(
            nn.Conv2d(2 * width, 2 * width, 3, padding=step, dilation=step) for step in FURTHER[:further]
        )
        self.out = nn.Conv2d(2 * width, points, 1)
        with torch.no_grad():
            for layer in (self.first, self.second, self.third, self.wide, *self.further, self.out):
                assert isinstance(layer, nn.Conv2d)
                bound = math.sqrt(6.0 / math.prod(layer.weight.shape[1:]))
                layer.weight.uniform_(-bound, bound, generator=generator)
                assert layer.bias is not None
                layer.bias.zero_()
            self.out.weight.mul_(0.1)

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits of pictures; floats are taken as they are, in [-0.5, 0.5]."""
        x = scale(pictures) if pictures.dtype == torch.uint8 else pictures
        x = self.first(x.permute(0, 3, 1, 2)).relu_()
        x = self.second(x).relu_()
        x = self.third(x).relu_()
        x = x + self.wide(x).relu_()
        for layer in self.further:
            x = x + layer(x).relu_()
        return self.out(x)


def scale(pictures: Tensor) -> Tensor:
    """uint8 pictures as floats in [-0.5, 0.5]."""
    return pictures.float().mul_(1.0 / 255.0).sub_(0.5)


def find_points(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Where each point is, and how surely.

    Args:
        logits: (B, P, h, w) heat maps.

    Returns:
        (B, P, 2) pixels (x, y): the mean place in a window of 5 x 5 cells round the peak; (B, P) the share of the heat
        in that window, which is the confidence.
    """
    height, width = logits.shape[-2:]
    heat = logits.flatten(-2).softmax(-1)
    peak = heat.argmax(-1, keepdim=True)
    cell = torch.arange(height * width, device=logits.device)
    row, column = cell // width, cell % width
    near = ((row - peak // width).abs() <= REACH) & ((column - peak % width).abs() <= REACH)
    window = heat * near
    mass = window.sum(-1)
    x = (window * ((column + 0.5) * STRIDE)).sum(-1) / mass
    y = (window * ((row + 0.5) * STRIDE)).sum(-1) / mass
    return torch.stack([x, y], -1), mass


def heat_loss(logits: Tensor, pixels: Tensor, inside: Tensor, weight: Tensor) -> Tensor:
    """() cross entropy of heat maps with points, spread over the four cells around each so that their mean is exact.

    Args:
        logits: (B, P, h, w).
        pixels: (B, P, 2) where the points are (x, y).
        inside: (B, P) bool: the picture shows them; elsewhere the heat map is to be flat.
        weight: (B, P) of each, 0 where the label is not known.
    """
    height, width = logits.shape[-2:]
    heat = log_softmax(logits.flatten(-2), -1)
    limit = pixels.new_tensor((width - 1, height - 1))
    place = (pixels / STRIDE - 0.5).clamp_min(0.0).minimum(limit)
    low = place.floor()
    part = place - low
    loss = torch.zeros_like(pixels[..., 0])
    for right in (0, 1):
        for below in (0, 1):
            share = (part[..., 0] if right else 1.0 - part[..., 0]) * (part[..., 1] if below else 1.0 - part[..., 1])
            column = (low[..., 0] + right).clamp_max(width - 1)
            row = (low[..., 1] + below).clamp_max(height - 1)
            cell = (row * width + column).long()
            loss = loss - share * heat.gather(-1, cell[..., None])[..., 0]
    flat = -heat.mean(-1)
    loss = torch.where(inside, loss, UNSEEN * flat)
    return (loss * weight).sum() / weight.sum().clamp_min(1.0)


def disturb(pictures: Tensor, pad: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures moved and in other light, and how far each was moved: labels have to move with them.

    Args:
        pictures: (B, H, W, 3) uint8.
        pad: largest shift, pixels.
        generator: of all draws.

    Returns:
        (B, H, W, 3) float in about [-0.5, 0.5], and (B, 2) pixels to add to places (x, y) in them.
    """
    batch, height, width = pictures.shape[:3]
    shift = torch.randint(-pad, pad + 1, (2, batch, 1), generator=generator)
    rows = (torch.arange(height) + shift[1]).clamp_(0, height - 1)
    columns = (torch.arange(width) + shift[0]).clamp_(0, width - 1)
    item = torch.arange(batch)[:, None, None]
    moved = scale(pictures[item, rows[:, :, None], columns[:, None, :]])
    light = torch.rand((2, batch, 1, 1, 1), generator=generator)
    moved = moved * (0.8 + 0.4 * light[0]) + 0.2 * (light[1] - 0.5)
    return moved, -shift[:, :, 0].T.float()
