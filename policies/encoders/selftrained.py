"""An encoder that a robot's own successes train: named points in pictures, found by heat maps and triangulation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from robot_rl.policies.encoders.points import (
    PointEncoder,
    PointOptions,
    check_interface,
    picture_keys,
    places_of,
    starting_nets,
)
from robot_rl.policies.nets.heat_maps import HeatMaps, disturb, find_points, heat_loss
from robot_rl.policies.nets.pinhole import project, triangulate
from robot_rl.policies.nets.point_weights import WEIGHTS
from robot_rl.state import set_generator
from robot_rl.types import IOSpec, Metrics, StateDict
from robot_rl.types.frames import Frames
from robot_rl.types.options import Count, NotNegative, Number, Rate, Whole

_SPACE = 0.03  # metres per unit of the loss in space


class SelfTrainedOptions(PointOptions):
    """Of the encoder; null stands for a value that depends on the robot: on whether its tool turns, as for fitting."""

    first_steps: Count = 700
    """Steps of the first fit, after the demonstrations, where the nets begin with nothing."""
    start: str = ""
    """File of weights that the nets begin with, as `encoder=robot` takes them; "robot": those of the package. Then
    every fit is a refit, the first one, too; needs the extra robot."""
    refit_every: Whole = 500
    """Updates between two fits on all successes so far; 0 = never."""
    refit_steps: Count | None = None
    """Steps of each; null: 300 where the tool turns, else 200."""
    freeze_after: Whole = 2500
    """Updates after which it stays as it is: every fit moves the features under the policy."""
    settle: Whole = 200
    """Updates of the method right after a fit, before anything else is driven or tried."""
    batch: Count = 32
    """Frames per step of a fit."""
    lr: Rate = 2e-3
    """Step size at the beginning of a fit; it falls to 0 as a cosine. Later fits take half."""
    shift: Whole = 6
    """Pictures are moved by up to so many pixels while it learns, and labels with them."""
    space_weight: NotNegative | None = None
    """Of the error in space beside that in the pictures; null: 5 where the tool turns, else 0."""
    lift: Number | None = None
    """Metres that the goal lies above the tip at success, such as the mouth of a hole; null: what the world says, or
    0."""


class SelfTrained(PointEncoder):
    """Sees named points where the tool has been in successes; see `PointEncoder`.

    `fit` learns from all successes so far, without a label that a robot does not have: see `Places`.

    Args:
        options: of the encoder.
        io: interface with calibrated cameras, "tool" and "state".
        seed: of weights and draws.
        device: of the nets.

    Raises:
        ValueError: no cameras, no calibration, or no pose of the tool; says what to do.

    Source: our design; labels from the robot's own hand as in Levine et al., End-to-End Training of Deep Visuomotor
    Policies (pose pretraining), but from successes instead of a held object.
    """

    def __init__(self, options: SelfTrainedOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        check_interface(io, "selftrained")
        self.o, places = options, places_of(io, options.lift or 0.0)
        if places.grips and "opening" not in io.obs_names:
            raise ValueError(
                "encoder=selftrained tells by the opening of the fingers where an object was; add opening to proprio"
            )
        self._generator = torch.Generator().manual_seed(seed)
        if options.start:
            nets = starting_nets(WEIGHTS if options.start == "robot" else Path(options.start), io, places)
        else:
            nets = [HeatMaps(len(places.names), self._generator) for _ in picture_keys(io)]
        super().__init__(io, places, options.near, nets, device=device)
        self.settle = options.settle
        self._opening = io.obs_names.index("opening") if places.grips else -1
        self._space = (5.0 if places.turns else 0.0) if options.space_weight is None else options.space_weight
        self._refit = options.refit_steps or (300 if places.turns else 200)

    def due(self, updates: int) -> bool:
        """Whether a fit is due after so many updates."""
        every = self.o.refit_every
        return bool(every) and updates % every == 0 and updates <= self.o.freeze_after

    def fit(self, frames: Frames) -> Metrics:
        """Learn from all successes among the frames; the first time longer. Without any, nothing changes.

        Returns:
            encoder/loss (mean of the last quarter of the steps), encoder/frames, encoder/error_mm: median distance of
            triangulated points from their labels.
        """
        numbers, places, known = self._labels(frames)
        if not len(numbers):
            return {}
        tool = torch.from_numpy(frames.read("tool", numbers)).float()
        marks = [project(camera, tool, places) for camera in self._cameras]
        again = bool(self.fits or self.o.start)
        steps = self._refit if again else self.o.first_steps
        first = self.o.lr * (0.5 if again else 1.0)
        optimiser = torch.optim.Adam(self._nets.parameters(), lr=first, weight_decay=0.0)
        losses = []
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = first * 0.5 * (1.0 + math.cos(math.pi * step / steps))
            pick = torch.randint(len(numbers), (min(self.o.batch, len(numbers)),), generator=self._generator)
            loss, pixels, mass = torch.zeros(()), [], []
            for key, net, (mark, inside) in zip(self._keys, self._nets, marks):
                pictures = torch.from_numpy(frames.read(key, numbers[pick.numpy()]))
                moved, shift = disturb(pictures, self.o.shift, self._generator)
                logits = net(moved.to(self._device)).cpu()  # where labels and geometry are
                loss = loss + heat_loss(logits, mark[pick] + shift[:, None], inside[pick], known[pick])
                if self._space:
                    pixel, share = find_points(logits)
                    pixels.append(pixel - shift[:, None])
                    mass.append(share.detach().square())
            if self._space:
                found = triangulate(self._cameras, tool[pick], pixels, mass)
                far = smooth_l1_loss(found / _SPACE, places[pick] / _SPACE, reduction="none").mean(-1)
                loss = loss + self._space * (far * known[pick]).sum() / known[pick].sum().clamp_min(1.0)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self._nets.parameters(), 5.0)
            optimiser.step()
            losses.append(float(loss.detach()))
        self.fits += 1
        return {
            "encoder/loss": float(np.mean(losses[-max(steps // 4, 1) :])),
            "encoder/frames": float(len(numbers)),
            "encoder/error_mm": self._error(frames, numbers, places, known),
        }

    def _labels(self, frames: Frames) -> tuple[np.ndarray, Tensor, Tensor]:
        """Numbers of the frames of successes (n,), where the points were (n, P, 3), and which are known (n, P)."""
        numbers, places, known = [np.zeros(0, np.int64)], [], []
        for run in frames.runs():
            if not run.success:
                continue
            some = np.arange(run.first, run.last + 1)
            opening = frames.read("state", some)[:, self._opening] if self.places.grips else None
            there, sure = self.places.label(frames.read("tool", some), opening)
            numbers.append(some)
            places.append(torch.from_numpy(there).float())
            known.append(torch.from_numpy(sure).float())
        if not places:
            return numbers[0], torch.zeros(0), torch.zeros(0)
        return np.concatenate(numbers), torch.cat(places), torch.cat(known)

    def _error(self, frames: Frames, numbers: np.ndarray, places: Tensor, known: Tensor) -> float:
        some = np.linspace(0, len(numbers) - 1, min(len(numbers), 200)).astype(np.int64)
        found, _ = self._see_frames(frames, numbers[some])
        far = (found - places[some]).norm(dim=-1)[known[some] > 0.0]
        return float(far.median()) * 1e3

    def state_dict(self) -> StateDict:
        """Weights, generator and count."""
        return {**super().state_dict(), "generator": self._generator.get_state()}

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place."""
        super().load_state_dict(state)
        set_generator(self._generator, state["generator"])
