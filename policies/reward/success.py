"""A success classifier: does this observation show the task done? Learned from a person's labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.image import EncoderShape, ImageEncoder, random_shift
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.types import IOSpec, Obs
from robot_rl.types.options import Count, NotNegative, Rate, Whole

SEES = ("all", "state", "images")


class SuccessClassifier:
    """Binary classifier of single observations: an ensemble's mean logit, divided by a temperature.

    Every batch is half positive, half negative; negatives that fooled an earlier classifier count more. The logit of
    such balanced training is corrected by the share of positives in the data, so that probabilities mean what they say,
    and `calibrate` fits the temperature on episodes that were not trained on.

    Source: Luo et al., HIL-SERL (binary classifier, balanced batches, random shift); Guo et al., On Calibration of
    Modern Neural Networks (temperature). Where we differ: a small encoder of our own in place of a frozen ResNet-10;
    an ensemble; prior correction.
    """

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        sees: str = "all",
        members: Count = 3,
        hidden: tuple[Count, ...] = (64, 64),
        batch_size: Count = 256,
        steps: Count = 500,
        lr: Rate = 1e-3,
        noise: NotNegative = 0.02,
        shift_pad: Whole = 4,
        hard_weight: NotNegative = 4.0,
    ) -> None:
        """Build the networks.

        Args:
            io: interface of the robot: "state" and or "image.<camera>".
            seed: of weights, batches and augmentation.
            device: torch device.
            sees: "all", "state" or "images".
            members: networks of the ensemble; they share the image encoder.
            hidden: widths.
            batch_size: half of it positive.
            steps: of training.
            lr: of Adam.
            noise: standard deviation of noise on the standardised state while training.
            shift_pad: random shift of images while training, in pixels.
            hard_weight: weight of negatives that a person corrected.

        Raises:
            ValueError: an option outside its range, or nothing to look at.
        """
        if sees not in SEES:
            raise ValueError(f"sees is '{sees}', expected one of {', '.join(SEES)}")
        if min(members, batch_size // 2) < 1 or steps < 1 or min(noise, shift_pad) < 0 or hard_weight < 1:
            raise ValueError("members, batch_size / 2, steps and hard_weight must be at least 1, noise, shift_pad >= 0")
        self.io, self.steps, self._batch, self._lr = io, steps, batch_size, lr
        self._noise, self._pad, self._hard = noise, shift_pad, hard_weight
        self._device = torch.device(device)
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        cameras = {key: shape for key, (shape, _) in io.obs.items() if key.startswith("image.") and sees != "state"}
        state = io.obs["state"][0][0] if "state" in io.obs and sees != "images" else 0
        if not cameras and not state:
            raise ValueError(f"nothing to look at: sees={sees}, and the observations are {sorted(io.obs)}")
        self.keys = (*cameras, *(("state",) if state else ()))
        """Observations that are read."""
        encoder = EncoderShape(cameras) if cameras else None
        self._width = encoder.outputs if encoder else 0
        shape = MlpShape(members, self._width + state, tuple(hidden), 1, True, "success.")
        self._params = FlatParams({**(encoder.shapes() if encoder else {}), **shape.shapes()}, device=self._device)
        if encoder:
            encoder.initialise(self._params, self._generator)
        shape.initialise(self._params, self._generator)
        self._encoder = ImageEncoder(encoder, self._params) if encoder else None
        self._net = build_mlp(shape, self._params, kernel="auto", matmul="float32")
        self._norm = FixedNorm(state, device=self._device) if state else None
        self._prior = torch.zeros((), device=self._device)  # log-odds of the data less those of the batches
        self._temperature = torch.ones((), device=self._device)

    def fit(self, obs: Obs, label: np.ndarray, hard: np.ndarray | None = None) -> Iterator[float]:
        """Train; yields the loss of every step, so that a caller can show progress or stop.

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
            weight[np.asarray(hard, bool) & ~label] = self._hard
        chance = torch.from_numpy(weight[negative])
        half = self._batch // 2
        for _ in range(self.steps):
            one = positive[torch.randint(len(positive), (half,), generator=self._generator).numpy()]
            zero = negative[torch.multinomial(chance, half, True, generator=self._generator).numpy()]
            rows = np.concatenate([one, zero])
            target = torch.cat([torch.ones(half), torch.zeros(half)]).to(self._device)
            yield self._step({key: torch.as_tensor(np.asarray(obs[key][rows])) for key in self.keys}, target)

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
        loss = [float(torch.nn.functional.binary_cross_entropy_with_logits(logit / t, target)) for t in grid]
        self._temperature.fill_(float(grid[int(np.argmin(loss))]))
        return float(self._temperature)

    @torch.no_grad()
    def logits(self, obs: Obs, chunk: int = 512) -> Tensor:
        """(N,) log-odds of success, before the sigmoid; on the CPU."""
        out = []
        count = len(obs[self.keys[0]])
        for begin in range(0, count, chunk):
            part = {key: torch.as_tensor(np.asarray(obs[key][begin : begin + chunk])) for key in self.keys}
            z = self._net.forward(self._look(part)[0])[..., 0].mean(0)
            out.append(((z + self._prior) / self._temperature).cpu())
        return torch.cat(out) if out else torch.zeros(0)

    def probability(self, obs: Obs) -> np.ndarray:
        """(N,) probability of success."""
        return self.logits(obs).double().sigmoid().numpy()

    def _look(self, obs: Obs, train: bool = False) -> tuple[Tensor, Tensor | None]:
        parts, encoded = [], None
        if self._encoder is not None:
            images = {key: torch.as_tensor(obs[key]).to(self._device) for key in self._encoder.shape.cameras}
            if train:
                images = {key: random_shift(image, self._pad, self._generator) for key, image in images.items()}
            with torch.set_grad_enabled(train):
                encoded = self._encoder(images)
            parts.append(encoded.detach())
        if self._norm is not None:
            state = self._norm(torch.as_tensor(obs["state"]).to(self._device, torch.float32))
            if train and self._noise:
                state = state + self._noise * torch.randn(state.shape, generator=self._generator, device=self._device)
            parts.append(state)
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)), encoded

    def _step(self, obs: Obs, target: Tensor) -> float:
        feature, encoded = self._look(obs, train=True)
        with torch.no_grad():
            logit = self._net.forward(feature)[..., 0]
            error = logit.sigmoid() - target
            columns = slice(0, self._width) if encoded is not None else None
            d_feature = self._net.backward((error / error.numel())[..., None], inputs=columns)
        if encoded is not None and self._encoder is not None and d_feature is not None:
            self._encoder.backward(encoded, d_feature)
        with torch.no_grad():
            self._params.adam(self._lr)
            self._net.refresh()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, target.expand_as(logit))
        return float(loss)

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, temperature: tensors only."""
        state: dict[str, Any] = {
            "params": self._params.state_dict(),
            "prior": self._prior.clone(),
            "temperature": self._temperature.clone(),
            "generator": self._generator.get_state(),
        }
        if self._norm is not None:
            state["norm"] = self._norm.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy in place."""
        self._params.load_state_dict(state["params"])
        self._prior.copy_(state["prior"])
        self._temperature.copy_(state["temperature"])
        self._generator.set_state(state["generator"].cpu())
        if self._norm is not None:
            self._norm.load_state_dict(state["norm"])
        self._net.refresh()
