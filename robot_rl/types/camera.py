"""What is known of a camera: where a point of the world falls in its picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

MOUNTS = ("world", "tool")


@dataclass(frozen=True)
class Calibration:
    """A pinhole camera. Its axes: x to the right of the picture, y down, z into the scene.

    Attributes:
        height: of the picture, pixels.
        width: of the picture, pixels.
        focal: (fx, fy) pixels.
        centre: (cx, cy) pixels: where the axis z meets the picture; the middle of the first pixel is at (0.5, 0.5).
        mount: what carries it: "world", or "tool": the tool's frame, at the tip, z along the tool.
        position: (3,) of the camera in the frame of its mount, m.
        rotation: (9,) rows of the matrix whose columns are the camera's axes in that frame.

    Raises:
        ValueError: an unknown mount, no picture, or a rotation that is none.

    Source: Hartley and Zisserman, Multiple View Geometry, section 6.1 (finite projective camera without skew).
    """

    height: int
    width: int
    focal: tuple[float, float]
    centre: tuple[float, float]
    mount: str
    position: tuple[float, ...]
    rotation: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.mount not in MOUNTS:
            raise ValueError(f"a camera is mounted on '{self.mount}', expected one of {', '.join(MOUNTS)}")
        if min(self.height, self.width, *self.focal) <= 0:
            raise ValueError(
                f"a camera of {self.height} x {self.width} pixels with focal lengths {self.focal}; all must be above 0"
            )
        turn = np.asarray(self.rotation, float)
        if len(self.position) != 3 or turn.shape != (9,):
            raise ValueError("a camera's pose is 3 numbers of position and 9 of rotation")
        square = turn.reshape(3, 3)
        if not np.allclose(square @ square.T, np.eye(3), atol=1e-4) or np.linalg.det(square) < 0.0:
            raise ValueError(f"a camera's rotation {self.rotation} is no rotation; its rows must be orthonormal")

    def to_dict(self) -> dict[str, object]:
        """Plain JSON-ready form."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Calibration:
        """Inverse of `to_dict`."""
        fx, fy = (float(x) for x in raw["focal"])
        cx, cy = (float(x) for x in raw["centre"])
        return cls(
            height=int(raw["height"]),
            width=int(raw["width"]),
            focal=(fx, fy),
            centre=(cx, cy),
            mount=str(raw["mount"]),
            position=tuple(float(x) for x in raw["position"]),
            rotation=tuple(float(x) for x in raw["rotation"]),
        )
