"""Gaps of cameras: two that were swapped, one that was nudged."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import model_validator

from robot_rl.gaps.contract import Gap, Measured
from robot_rl.types.options import Number


class CamerasSwapped(Gap):
    """Each of two cameras under the name of the other."""

    of_pictures: ClassVar[bool] = True
    name: Literal["cameras_swapped"] = "cameras_swapped"
    """Of the gap."""
    first: str
    """One camera."""
    second: str
    """The other."""

    @model_validator(mode="after")
    def _two(self) -> CamerasSwapped:
        if self.first == self.second:
            raise ValueError(f"first and second are both {self.first}, expected two cameras")
        return self

    def measure(self, measured: Measured) -> Measured:
        """Their pictures exchanged; a camera that is not there is exchanged with nothing."""
        other = {self.first: self.second, self.second: self.first}
        return replace(measured, pictures={other.get(name, name): shot for name, shot in measured.pictures.items()})

    def inverse(self) -> CamerasSwapped:
        """Itself."""
        return self


class CameraMoved(Gap):
    """A camera that was nudged: its picture is shifted and turned about its middle; what comes into view is black."""

    of_pictures: ClassVar[bool] = True
    name: Literal["camera_moved"] = "camera_moved"
    """Of the gap."""
    camera: str
    """Which."""
    right: Number = 0.0
    """How far what is seen goes to the right [pixels]."""
    down: Number = 0.0
    """How far down."""
    degrees: Number = 0.0
    """By how much it turns clockwise."""

    def measure(self, measured: Measured) -> Measured:
        """Its picture, each pixel the nearest of the picture before."""
        shot = measured.pictures.get(self.camera)
        if shot is None:
            return measured
        return replace(measured, pictures={**measured.pictures, self.camera: self._move(shot)})

    def inverse(self) -> CameraMoved | None:
        """Back, as far as nothing has left the picture; a turned and shifted one has none of this kind."""
        if self.degrees and (self.right or self.down):
            return None
        return CameraMoved(camera=self.camera, right=-self.right, down=-self.down, degrees=-self.degrees)

    def _move(self, shot: np.ndarray) -> np.ndarray:
        height, width = shot.shape[:2]
        rows, columns = np.mgrid[0:height, 0:width].astype(float)
        y, x = rows - self.down - (height - 1) / 2, columns - self.right - (width - 1) / 2
        cos, sin = math.cos(math.radians(self.degrees)), math.sin(math.radians(self.degrees))
        row = np.rint(cos * y - sin * x + (height - 1) / 2).astype(int)
        column = np.rint(sin * y + cos * x + (width - 1) / 2).astype(int)
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        moved = np.zeros_like(shot)
        moved[inside] = shot[row[inside], column[inside]]
        return moved
