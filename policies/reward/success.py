"""A success classifier: does this observation show the task done? Learned from a person's labels."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.image import EncoderShape, ImageEncoder, random_shift
from robot_rl.policies.nets.net import Net, NetShape, step
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.state import Saved
from robot_rl.types import IOSpec, Metrics, Obs, Options
from robot_rl.types.options import Count, NotNegative, Rate, Whole


class SuccessOptions(Options):
    """Of a success classifier."""

    sees: Literal["all", "state", "images"] = "all"
    """Which observations it reads."""
    members: Count = 3
    """Networks of the ensemble; they share the image encoder."""
    hidden: tuple[Count, ...] = (64, 64)
    """Widths of the hidden layers."""
    batch_size: Annotated[int, Field(ge=2)] = 256
    """Observations per step, half of them positive."""
    steps: Count = 500
    """Of training."""
    lr: Rate = 1e-3
    """Step size."""
    noise: NotNegative = 0.02
    """Standard deviation of noise on the standardised state while training."""
    shift_pad: Whole = 4
    """Random shift of images while training, in pixels."""
    hard_weight: Annotated[float, Field(ge=1)] = 4.0
    """Weight of negatives that a person corrected."""


class SuccessClassifier(Saved):
    """Binary classifier of single observations: an ensemble's mean logit, divided by a temperature.

    Every batch is half positive, half negative; negatives that fooled an earlier classifier count more. The logit of
    such balanced training is corrected by the share of positives in the data, so that probabilities mean what they say,
    and `calibrate` fits the temperature on episodes that were not trained on.

    Source: Luo et al., HIL-SERL (binary classifier, balanced batches, random shift); Guo et al., On Calibration of
    Modern Neural Networks (temperature). Where we differ: a small encoder of our own in place of a frozen ResNet-10;
    an ensemble; prior correction.

    Attributes:
        keys: observations that are read.
    """

    def __init__(self, options: SuccessOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build the networks.

        Args:
            options: of the classifier.
            io: interface of the robot: "state" and or "image.<camera>".
            seed: of weights, batches and augmentation.
            device: torch device.

        Raises:
            ValueError: nothing to look at.
        """
        o = options
        self.o, self.io, self.steps, self._device = o, io, o.steps, torch.device(device)
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        cameras = {key: shape for key, (shape, _) in io.obs.items() if key.startswith("image.") and o.sees != "state"}
        state = io.obs["state"][0][0] if "state" in io.obs and o.sees != "images" else 0
        if not cameras and not state:
            raise ValueError(f"nothing to look at: sees={o.sees}, and the observations are {sorted(io.obs)}")
        self.keys = (*cameras, *(("state",) if state else ()))
        self._encoders: list[ImageEncoder] = []  # one, or none without cameras
        if cameras:
            eye = EncoderShape(cameras)
            params = FlatParams(eye.shapes(), device=self._device)
            eye.initialise(params, self._generator)
            self._encoders.append(ImageEncoder(eye, params, lr=o.lr))
        width = sum(encoder.shape.outputs for encoder in self._encoders) + state
        sizes = NetShape(width, hidden=o.hidden, members=o.members, layer_norm=True)
        self._net = Net("success", sizes, lr=o.lr, generator=self._generator)
        self._norm = FixedNorm(state, device=self._device) if state else None
        self._prior = torch.zeros((), device=self._device)  # log-odds of the data less those of the batches
        self._temperature = torch.ones((), device=self._device)
        self._data: tuple[Obs, np.ndarray, np.ndarray, Tensor] | None = None

    def prepare(self, obs: Obs, label: np.ndarray, hard: np.ndarray | None = None) -> None:
        """Take what `update` draws from.

        Args:
            obs: observations (N, ...).
            label: (N,) bool.
            hard: (N,) bool, negatives that a person corrected; None = none.

        Raises:
            ValueError: no positives or no negatives.
        """
        label = np.asarray(label, bool)
        positive, negative = np.flatnonzero(label), np.flatnonzero(~label)
        if not len(positive) or not len(negative):
            raise ValueError(
                f"{len(positive)} positive and {len(negative)} negative observations; both kinds are needed: press 1 "
                "when it is done, and record what failure looks like as well"
            )
        if self._norm is not None:
            state = np.asarray(obs["state"], np.float64)
            self._norm.set(state.mean(0), state.std(0))
        share = np.clip(label.mean(), 1e-6, 1 - 1e-6)
        self._prior.fill_(float(np.log(share / (1 - share))))
        weight = np.ones(len(label), np.float32)
        if hard is not None:
            weight[np.asarray(hard, bool) & ~label] = self.o.hard_weight
        self._data = (obs, positive, negative, torch.from_numpy(weight[negative]))

    def update(self) -> Metrics:
        """One step on a batch of what `prepare` took; its loss."""
        assert self._data is not None, "prepare comes first"
        obs, positive, negative, chance = self._data
        half = self.o.batch_size // 2
        g = self._generator
        one = positive[torch.randint(len(positive), (half,), generator=g, device=g.device).cpu().numpy()]
        zero = negative[torch.multinomial(chance.to(g.device), half, True, generator=g).cpu().numpy()]
        rows = np.concatenate([one, zero])
        target = torch.cat([torch.ones(half), torch.zeros(half)]).to(self._device)
        return {"loss": self._step({key: torch.as_tensor(np.asarray(obs[key][rows])) for key in self.keys}, target)}

    def calibrate(self, obs: Obs, label: np.ndarray) -> float:
        """Fit the temperature on observations that were not trained on; returns it.

        With one kind of label only there is nothing to fit and it stays 1.
        """
        target = torch.as_tensor(np.asarray(label, np.float32))
        self._temperature.fill_(1.0)
        if not 0.0 < float(target.mean()) < 1.0:
            return 1.0
        logit = self.logits(obs)
        grid = torch.logspace(-1.0, 1.3, 93)
        loss = [float(binary_cross_entropy_with_logits(logit / t, target)) for t in grid]
        self._temperature.fill_(float(grid[int(np.argmin(loss))]))
        return float(self._temperature)

    @torch.no_grad()
    def logits(self, obs: Obs, chunk: int = 512) -> Tensor:
        """(N,) log-odds of success, before the sigmoid; on the CPU."""
        out = []
        count = len(obs[self.keys[0]])
        for begin in range(0, count, chunk):
            part = {key: torch.as_tensor(np.asarray(obs[key][begin : begin + chunk])) for key in self.keys}
            z = self._net(self._look(part)).mean(0)
            out.append(((z + self._prior) / self._temperature).cpu())
        return torch.cat(out) if out else torch.zeros(0)

    def probability(self, obs: Obs) -> np.ndarray:
        """(N,) probability of success."""
        return self.logits(obs).double().sigmoid().numpy()

    def _look(self, obs: Obs, train: bool = False) -> Tensor:
        """(B, F) what the networks read; the loss trains the encoder through it."""
        parts = []
        for encoder in self._encoders:
            images = {key: torch.as_tensor(obs[key]).to(self._device) for key in encoder.shape.cameras}
            if train:
                images = {key: random_shift(x, self.o.shift_pad, self._generator) for key, x in images.items()}
            parts.append(encoder(images))
        if self._norm is not None:
            state = self._norm(torch.as_tensor(obs["state"]).to(self._device, torch.float32))
            if train and self.o.noise:
                noise = torch.randn(state.shape, generator=self._generator, device=self._device)
                state = state + self.o.noise * noise
            parts.append(state)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _step(self, obs: Obs, target: Tensor) -> float:
        logit = self._net(self._look(obs, train=True))
        loss = binary_cross_entropy_with_logits(logit, target.expand_as(logit))
        step(loss, self._net, *self._encoders)
        return float(loss.detach())

    def saved_parts(self) -> dict[str, object]:
        """Weights, moments, temperature: tensors only."""
        parts = {part.name: part for part in (self._net, *self._encoders)}
        own = {"prior": self._prior, "temperature": self._temperature, "generator": self._generator}
        return {**parts, **own, "norm": self._norm}
