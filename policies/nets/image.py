"""Image observations: random-shift augmentation and a small convolutional encoder on flat parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, layer_norm, linear

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.net import Leaves, Rate


def random_shift(image: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Shift every image by its own random offset of up to `pad` pixels, edges repeated.

    Args:
        image: (B, H, W, C), any type; nothing is converted.
        pad: largest shift in pixels; 0 returns the input.
        generator: source of the offsets.

    Returns:
        (B, H, W, C).

    Source: Kostrikov et al., Image Augmentation Is All You Need (DrQ), pad by repetition and crop at random.
    """
    if pad == 0:
        return image
    batch, height, width = image.shape[:3]
    offset = torch.randint(-pad, pad + 1, (2, batch, 1), generator=generator, device=generator.device)
    if image.dtype == torch.uint8 and image.device.type == "cpu" and pad < min(height, width):
        return _shift_bytes(image, offset[:, :, 0].tolist())
    offset = offset.to(image.device)
    rows = (torch.arange(height, device=image.device) + offset[0]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=image.device) + offset[1]).clamp_(0, width - 1)
    item = torch.arange(batch, device=image.device)[:, None, None]
    return image[item, rows[:, :, None], columns[:, None, :]]


def _shift_bytes(image: Tensor, offset: list[list[int]]) -> Tensor:
    """`random_shift` on the CPU by copies of blocks: gathering single pixels of three bytes takes ten times as long."""
    source = image.numpy()
    out = np.empty_like(source)
    height, width = source.shape[1:3]
    for picture, target, down, right in zip(source, out, *offset):
        top, bottom = max(0, -down), min(height, height - down)  # rows of the target that the source has
        left, end = max(0, -right), min(width, width - right)
        inside = target[top:bottom]
        inside[:, left:end] = picture[top + down : bottom + down, left + right : end + right]
        if left:
            inside[:, :left] = inside[:, left : left + 1]
        if end < width:
            inside[:, end:] = inside[:, end - 1 : end]
        if top:
            target[:top] = target[top]
        if bottom < height:
            target[bottom:] = target[bottom - 1]
    return torch.from_numpy(out)


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of one encoder per camera: 3x3 convolutions with ReLU, then a linear layer, LayerNorm and tanh.

    Attributes:
        cameras: observation key -> (H, W, C).
        channels: of each convolution.
        strides: of each convolution.
        latent: features per camera.
        prefix: of the parameter names.
    """

    cameras: Mapping[str, tuple[int, ...]]
    channels: tuple[int, ...] = (32, 32, 32, 32)
    strides: tuple[int, ...] = (2, 2, 1, 1)
    latent: int = 50
    prefix: str = "encoder."

    def __post_init__(self) -> None:
        if len(self.channels) != len(self.strides):
            raise ValueError(
                f"encoder has {len(self.channels)} channel counts and {len(self.strides)} strides; "
                "expected one stride per convolution"
            )
        for key, shape in self.cameras.items():
            if min(self._out_size(shape)) < 1:
                raise ValueError(
                    f"images '{key}' of {shape[0]}x{shape[1]} pixels vanish in {len(self.channels)} convolutions with "
                    f"strides {self.strides}; use larger images or fewer layers"
                )

    @property
    def outputs(self) -> int:
        """Width of the features of all cameras together."""
        return self.latent * len(self.cameras)

    def _out_size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        height, width = shape[:2]
        for stride in self.strides:
            height, width = (height - 3) // stride + 1, (width - 3) // stride + 1
        return height, width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name -> shape."""
        result: dict[str, tuple[int, ...]] = {}
        for key, shape in self.cameras.items():
            name, fan_in = f"{self.prefix}{key}.", shape[2]
            for i, channel in enumerate(self.channels):
                result[f"{name}conv{i}"] = (channel, fan_in, 3, 3)
                result[f"{name}conv_bias{i}"] = (channel,)
                fan_in = channel
            height, width = self._out_size(shape)
            result[f"{name}project"] = (self.latent, fan_in * height * width)
            result[f"{name}project_bias"] = (self.latent,)
            result[f"{name}scale"] = (self.latent,)
            result[f"{name}shift"] = (self.latent,)
        return result

    def initialise(self, params: FlatParams, generator: torch.Generator) -> None:
        """Fill the parameters of these names."""
        self.fill(params.view, generator)

    @torch.no_grad()
    def fill(self, views: Mapping[str, Tensor], generator: torch.Generator) -> None:
        """Uniform with torch's default bounds; biases zero, LayerNorm 1 and 0."""
        for name, shape in self.shapes().items():
            view = views[name]
            if name.endswith("scale"):
                view.fill_(1.0)
            elif len(shape) == 1:
                view.zero_()
            else:
                bound = 1.0 / math.sqrt(math.prod(shape[1:]))
                draw = torch.rand(shape, generator=generator, device=generator.device)
                view.copy_(draw.mul_(2 * bound).sub_(bound))


class ImageEncoder(Leaves):
    """The function of an `EncoderShape` on parameters in a `FlatParams`; a loss that reads its features may step it."""

    def __init__(self, shape: EncoderShape, params: FlatParams, *, lr: Rate = 0.0) -> None:
        """Bind to parameters; `lr` is the step size, or what gives it at each step."""
        self.shape, self.names = shape, list(shape.shapes())
        super().__init__("encoder", params, lr=lr, free=self.names)
        self._view = {name: self[name] if params.trainable else params.view[name] for name in self.names}

    def __call__(self, images: Mapping[str, Tensor]) -> Tensor:
        """Features of a batch.

        Args:
            images: camera key -> (B, H, W, C) uint8.

        Returns:
            (B, latent * cameras) in (-1, 1).
        """
        return features_of(self.shape, self._view, images)


def features_of(shape: EncoderShape, view: Mapping[str, Tensor], images: Mapping[str, Tensor]) -> Tensor:
    """The function of an `EncoderShape` on parameters by their names; arguments and result as of `ImageEncoder`."""
    features = []
    for key in shape.cameras:
        name = f"{shape.prefix}{key}."
        x = images[key].permute(0, 3, 1, 2).to(view[f"{name}project"].dtype).mul(1.0 / 255.0).sub(0.5)
        for i, stride in enumerate(shape.strides):
            x = conv2d(x, view[f"{name}conv{i}"], view[f"{name}conv_bias{i}"], stride=stride).relu()
        x = linear(x.flatten(1), view[f"{name}project"], view[f"{name}project_bias"])
        features.append(layer_norm(x, (shape.latent,), view[f"{name}scale"], view[f"{name}shift"]).tanh())
    return features[0] if len(features) == 1 else torch.cat(features, dim=1)
