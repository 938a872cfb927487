"""Reward from two sentences, what should be seen and what should not, joined with terms of the state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robot_rl.expression import Expression, observables
from robot_rl.policies.vla.picture_text import PictureTextEncoder, open_encoder
from robot_rl.state import Saved
from robot_rl.types import IOSpec, Options
from robot_rl.types.options import Count, Number, Positive


class ContrastOptions(Options):
    """Of a reward from two sentences."""

    good: str
    """What should be seen."""
    bad: str
    """What should not."""
    camera: str = "front"
    """Which pictures."""
    z_max: Positive | None = None
    """Where r_clg is 0; null: `calibrate` finds it."""
    every: Count = 1
    """Control steps between looks; r_clg is held in between."""
    terms: tuple[str, ...] = ()
    """Programs, see `Expression`."""
    speed: str | None = None
    """Program, or null."""
    v_max: Positive = 1.0
    """Largest wanted speed."""
    keep_below: Number | None = None
    """Reward of the environment at and below which it is kept; null: never."""
    calibration: Count = 200
    """Random steps for `calibrate`."""


class OpenedContrastOptions(ContrastOptions):
    """The same, and what reads pictures and sentences."""

    encoder: str
    """A CLIP model's folder or a file of `TinyEncoder.save`."""


class ContrastReward(Saved):
    """Contrasting goals with state synthesis; for `rewarder=contrast`.

        z = cos(picture, bad) - cos(picture, good), cut to [0, z_max];   r_clg = 1 - z / z_max
        with a speed:   r_speed = max(0, 1 - |v - r_clg v_max| / v_max),  r = r_speed * product of terms
        without:        r = r_clg * product of terms

    Terms and speed are programs over the state, terms cut to [0, 1]; what is no number counts as 0. Where the
    environment pays `keep_below` or less (a collision), that is paid in place of the product.

    Args:
        options: of the reward.
        encoder: see `PictureTextEncoder`.

    Raises:
        ValueError: sentences that the encoder cannot tell apart.

    Source: VLM-RL: contrasting language goal as reward, z_max .03 and 25 km/h there. z_max as the 95th percentile on
    random frames, and the lower bound of r_speed, are ours.
    """

    saved = ("_age", "_held", "z_max")

    def __init__(self, options: ContrastOptions, encoder: PictureTextEncoder) -> None:
        self._encoder, self._every, self._v_max = encoder, options.every, options.v_max
        self._keep, self.cameras, self.image_size = options.keep_below, (options.camera,), encoder.image_size
        self.z_max, self.calibration, good, bad = options.z_max, options.calibration, options.good, options.bad
        self._texts = encoder.texts([good, bad])
        if float(self._texts[0] @ self._texts[1]) > 1 - 1e-6:
            raise ValueError(f"the encoder cannot tell '{good}' from '{bad}'; say it otherwise")
        self._codes, self._speed_code = list(options.terms), options.speed
        self._terms: list[Expression] = []
        self._speed: Expression | None = None
        self._places: dict[str, list[int]] = {}
        self._age, self._held = np.zeros(0, np.int64), np.zeros(0)

    def close(self) -> None:
        """Nothing to stop."""

    def bind(self, io: IOSpec) -> None:
        """Compile the programs.

        Raises:
            ProgramError: a program that is not allowed or does not fit.
        """
        if not self._codes and self._speed_code is None:
            return
        found = observables(io.obs_names, io.obs["state"][0][0], ()) if "state" in io.obs else {}
        self._places = {name: columns for name, (kind, columns) in found.items() if kind == "state"}
        widths = {name: len(columns) for name, columns in self._places.items()}
        self._terms = [Expression(code, widths) for code in self._codes]
        self._speed = None if self._speed_code is None else Expression(self._speed_code, widths)

    def gap(self, pictures: np.ndarray) -> np.ndarray:
        """(N,) cos with the bad minus cos with the good sentence."""
        similar = self._encoder.pictures(pictures) @ self._texts.T
        return (similar[:, 1] - similar[:, 0]).double().numpy()

    def calibrate(self, pictures: np.ndarray) -> float:
        """z_max: the 95th percentile of the gap on pictures of a random policy (N, H, W, 3).

        Raises:
            ValueError: hardly any picture is nearer to the bad sentence.
        """
        self.z_max = float(np.quantile(self.gap(pictures), 0.95))
        if self.z_max <= 1e-4:
            raise ValueError(
                f"the 95th percentile of the gap on {len(pictures)} random pictures is {self.z_max:.4g}: these "
                "sentences and this encoder find hardly any of them bad; say 'bad' otherwise, or set z_max"
            )
        return self.z_max

    def start(self, rows: np.ndarray, seen: Mapping[str, object]) -> None:
        """Episodes of `rows` (N,) bool begin."""
        if len(self._age) != len(rows):
            self._age, self._held = np.zeros(len(rows), np.int64), np.zeros(len(rows))
            rows = np.ones(len(rows), bool)
        self._age[rows] = 0
        which = np.flatnonzero(rows)
        if len(which):
            self._held[which] = self._look(seen, which)

    def step(self, seen: Mapping[str, object], ended: np.ndarray) -> np.ndarray:
        """(N,) reward after a control step."""
        self._age += 1
        due = np.flatnonzero((self._age % self._every == 0) | ended)
        if len(due):
            self._held[due] = self._look(seen, due)
        reward = self._held.copy()
        if self._places:
            state = np.asarray(seen["state"], np.float64)
            columns = {name: state[:, index] for name, index in self._places.items()}
            if self._speed is not None:
                off = np.abs(self._speed(columns) - reward * self._v_max) / self._v_max
                reward = np.nan_to_num(np.maximum(0.0, 1.0 - off))
            for term in self._terms:
                reward = reward * np.clip(np.nan_to_num(term(columns)), 0.0, 1.0)
        own = np.asarray(seen["env_reward"], np.float64)
        return reward if self._keep is None else np.where(own <= self._keep, own, reward)

    def _look(self, seen: Mapping[str, object], rows: np.ndarray) -> np.ndarray:
        if self.z_max is None:
            raise ValueError("z_max is not known; calibrate on pictures of a random policy, or set it")
        z = np.clip(self.gap(np.asarray(seen[f"image.{self.cameras[0]}"])[rows]), 0.0, self.z_max)
        return 1.0 - z / self.z_max


def contrast(options: OpenedContrastOptions) -> ContrastReward:
    """`ContrastReward` from plain values."""
    return ContrastReward(options, open_encoder(options.encoder))
