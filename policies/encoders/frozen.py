"""An encoder that others trained: maps of an early stage, along the directions in which the robot's pictures differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.encoders.frozen_nets import EfficientNetLite0, Maps, open_folder
from robot_rl.types import IOSpec, Metrics, Options, StateDict
from robot_rl.types.frames import Frames
from robot_rl.types.options import Count, Whole

_MOST = 1000  # frames that the directions are found from
_CHUNK = 32  # frames that are looked at a time
_TAIL = 5.0  # standard deviations at which a feature is cut


class FrozenOptions(Options):
    """Of the encoder."""

    path: str = ""
    """Folder of a vision model of transformers with safetensors; left out = EfficientNet-Lite0 from its package."""
    stage: Annotated[int, Field(ge=1, le=7)] = 3
    """Of EfficientNet-Lite0: how far pictures go through it; early stages keep places."""
    layer: Whole | None = None
    """Of a model in a folder: its hidden layer; null: the one in the middle."""
    size: Annotated[int, Field(ge=32, le=512)] = 128
    """Side to which pictures are scaled before [pixels]."""
    components: Count = 64
    """Features of each camera."""


class Frozen:
    """Sees with a network that others trained; only the directions that are kept of its maps are the robot's own.

    The maps of one picture are tens of thousands of numbers. Of each camera those directions are kept along which the
    frames of the demonstrations differ most, scaled to a variance of 1 (principal components, whitened); they are found
    once, after the demonstrations, without labels, and stay. No calibration is needed.

    Args:
        options: of the encoder.
        io: interface with pictures.
        seed: not used; nothing is drawn.
        device: of the network.

    Attributes:
        io: what a method sees: "state" alone, the state and the features.
        width: numbers of a frame.
        keys: what of a batch `read` needs.
        settle: updates of the method after a fit.
        remembers: it does not.

    Raises:
        ValueError: no pictures, no state, or a folder that cannot be used.
        ImportError: a package is absent; says how to get it.

    Source: Parisi et al., The Unsurprising Effectiveness of Pre-Trained Vision Models for Control (early layers keep
    what control needs); Hotelling's principal components. Their use in this place is ours.
    """

    settle = 0
    remembers = False
    keys = ("state", "sight")

    def __init__(self, options: FrozenOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        self._pictures = [key for key in io.obs if key.startswith("image.")]
        if not self._pictures or "state" not in io.obs:
            raise ValueError(
                "encoder=frozen looks at pictures beside a state: add cameras=own, or cameras=[front,side]"
            )
        self.o, self._device = options, torch.device(device)
        self._maps: Maps = (
            open_folder(options.path, options.layer, options.size, self._device)
            if options.path
            else EfficientNetLite0(options.stage, options.size, self._device)
        )
        shape = io.obs[self._pictures[0]][0]
        large = self._maps(torch.zeros(1, *shape, dtype=torch.uint8, device=self._device)).numel()
        count = len(self._pictures)
        self._mean = torch.zeros(count, large, device=self._device)
        self._basis = torch.zeros(count, large, options.components, device=self._device)
        self.width = count * options.components
        self.fits = 0
        names = [f"{key.removeprefix('image.')}_{i}" for key in self._pictures for i in range(options.components)]
        self.io = replace(
            io,
            obs={"state": ((io.obs["state"][0][0] + self.width,), "float32")},
            obs_names=(*io.obs_names, *names),
            obs_units={},
            calibration={},
            seen=None,
        )

    def due(self, updates: int) -> bool:
        """Whether a fit is due after so many updates: the first one, where there were no demonstrations."""
        return self.fits == 0 and updates > 0

    # ------------------------------------------------------------ seeing

    def look(self, obs: Mapping[str, object], trail: None) -> tuple[Tensor, None]:
        """(B, W) features of pictures, camera key -> (B, H, W, 3) uint8; it has no trail."""
        rows = [self._directions(i, self._flat(obs[key])) for i, key in enumerate(self._pictures)]
        return torch.cat(rows, 1), None

    def forget(self, trail: None, rows: Tensor) -> None:
        """Nothing to forget."""

    def read(self, sight: Tensor, state: Tensor, tool: Tensor | None = None) -> Tensor:
        """What a method learns from: (B, S) state and (B, W) features; the tool is part of the state."""
        return torch.cat([state, sight], 1)

    def _flat(self, pictures: object) -> Tensor:
        return self._maps(torch.as_tensor(pictures).to(self._device)).flatten(1)

    def _directions(self, camera: int, flat: Tensor) -> Tensor:
        return ((flat - self._mean[camera]) @ self._basis[camera]).clamp(-_TAIL, _TAIL)

    # ------------------------------------------------------------ learning

    def fit(self, frames: Frames) -> Metrics:
        """Find the directions, once; later calls change nothing.

        Returns:
            encoder/frames, and encoder/kept: share of the maps' variance that the features hold.
        """
        runs = frames.runs()
        if self.fits or not runs:
            return {}
        numbers = np.concatenate([np.arange(run.first, run.last + 1) for run in runs])
        numbers = numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), _MOST)).astype(np.int64)]
        kept = []
        for i, key in enumerate(self._pictures):
            flat = torch.cat([self._flat(frames.read(key, some)) for some in _chunks(numbers)])
            self._mean[i] = flat.mean(0)
            flat -= self._mean[i]
            power, rows = torch.linalg.eigh((flat @ flat.T).double())  # of frames: there are fewer than numbers
            count = min(self.o.components, len(numbers) - 1)
            power, rows = power.flip(0).clamp_min(1e-9), rows.flip(1)
            # where frames repeat each other there are fewer directions than that: the rest is rounding, and stays 0
            scale = torch.where(power > 1e-6 * power[0], len(numbers) ** 0.5 / power, 0.0)[:count]
            self._basis[i].zero_()
            self._basis[i, :, :count] = flat.T @ (rows[:, :count] * scale).float()
            kept.append(float(power[:count].sum() / power.sum()))
        self.fits = 1
        return {"encoder/frames": float(len(numbers)), "encoder/kept": float(np.mean(kept))}

    def encode(self, frames: Frames) -> None:
        """Look at the frames that are kept and write what was seen beside them; those that have it stay."""
        known = frames.encoded == self.fits
        for run in frames.runs():
            numbers = np.arange(run.first, run.last + 1)
            if known and not np.isnan(frames.read("sight", numbers)).any():
                continue
            rows = [
                self.look({key: frames.read(key, some) for key in self._pictures}, None)[0] for some in _chunks(numbers)
            ]
            frames.write(run.first, torch.cat(rows).cpu().numpy())
        frames.encoded, frames.unseen = self.fits, False

    def state_dict(self) -> StateDict:
        """Directions and count; the network is that of its package or folder."""
        return {
            "nets": {"mean": self._mean.clone(), "basis": self._basis.clone(), "mark": self._mark()},
            "fits": self.fits,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place."""
        self.load_weights(state["nets"])
        self.fits = int(state["fits"])

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take the directions.

        Raises:
            ValueError: they are those of another network.
        """
        if not torch.allclose(weights["mark"].to(self._device), self._mark(), rtol=1e-3, atol=1e-3):
            raise ValueError(
                "the network before this policy is another one than it was trained with: encoder.path, stage, layer "
                "and size have to be the same, and the files in the folder too"
            )
        self._mean.copy_(weights["mean"])
        self._basis.copy_(weights["basis"])

    def _mark(self) -> Tensor:
        """What the network makes of a picture that everybody has: tells one network from another."""
        ramp = torch.arange(64, device=self._device, dtype=torch.uint8) * 4
        picture = torch.stack([ramp.expand(64, 64), ramp[:, None].expand(64, 64), ramp.flip(0).expand(64, 64)], -1)
        return self._maps(picture[None]).flatten()[:256].clone()


def _chunks(numbers: np.ndarray) -> list[np.ndarray]:
    return [numbers[at : at + _CHUNK] for at in range(0, len(numbers), _CHUNK)]
