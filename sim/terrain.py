"""Ground that is no plane: square tiles that lie on one, easy ones to hard ones, each crossed from side to side.

Tiles are made of boxes and of pyramids without tops. A height field would be simpler, but MuJoCo collides with its
cells one by one, and feet that press into level ground are held by the sides of the next ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import array_api_compat
import numpy as np

from robot_rl.types import Array

LEVELS = 8
"""Rows of the map: level 0 is nearly a plane."""
TILE, EDGE = 4.0, 0.25
"""Side of a tile and width of its level border [m]."""
SLOPE, BLOCKS = 0.45, 32
"""Rise over run of the hardest slope, and how many blocks lie on a tile of rubble: each hundred on the map make a step
of a Go2's physics longer by a fifth of what it takes on a plane."""
DEPTH, STAIRS = (0.26, 0.34), 4
"""Range of the depth of stairs [m], and how many lead up to the middle."""
Kind = Literal["slope", "stairs", "rubble"]
KINDS: tuple[Kind, ...] = ("slope", "stairs", "rubble")
CELL = 0.05
"""Distance of the points at which heights are known [m]."""


class Solid(NamedTuple):
    """A solid on the plane: a box, or with a smaller top a pyramid that ends below its tip.

    Attributes:
        x, y: of its middle [m].
        half: (2,) half its sides along x and y [m].
        height: of its top [m].
        top: half the sides of its square top where that is smaller [m], else None.
    """

    x: float
    y: float
    half: tuple[float, float]
    height: float
    top: float | None = None

    def over(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Height of its surface over places, 0 beside it."""
        right, up = np.abs(x - self.x), np.abs(y - self.y)
        inside = (right <= self.half[0]) & (up <= self.half[1])
        if self.top is None:
            return self.height * inside
        out = np.maximum(right, up)
        return self.height * np.clip((self.half[0] - out) / (self.half[0] - self.top), 0.0, 1.0)


def tile(kind: str, difficulty: float, rng: np.random.Generator, *, step: float) -> list[Solid]:
    """What lies on one tile around the origin.

    Args:
        kind: of `KINDS`.
        difficulty: in [0, 1].
        rng: draws what is random in it.
        step: height of a stair and largest height of rubble at difficulty 1 [m].

    Raises:
        ValueError: no such kind.
    """
    rim, scale = 0.5 * TILE - EDGE, 0.15 + 0.85 * difficulty
    if kind == "slope":
        top = rng.uniform(0.3, 0.7)
        return [Solid(0.0, 0.0, (rim, rim), SLOPE * scale * (rim - top), top)]
    if kind == "stairs":
        sides = rim - rng.uniform(*DEPTH) * np.arange(STAIRS)
        return [Solid(0.0, 0.0, (side, side), (i + 1) * step * scale) for i, side in enumerate(sides.tolist())]
    if kind == "rubble":
        half = rng.uniform(0.1, 0.3, (BLOCKS, 2))
        place = rng.uniform(-1.0, 1.0, (BLOCKS, 2)) * (rim - half)
        heights = step * scale * rng.uniform(0.3, 1.0, BLOCKS)
        return [
            Solid(x, y, (a, b), height)
            for (x, y), (a, b), height in zip(place.tolist(), half.tolist(), heights.tolist())
        ]
    raise ValueError(f"there is no ground '{kind}'; expected {', '.join(KINDS)}")


@dataclass(frozen=True)
class Ground:
    """Tiles on a plane.

    Attributes:
        middles: (LEVELS, kinds, 2) of the tiles [m].
        blocks: all that lies on the plane.
        heights: (rows along y, columns along x) float32 of the surface at points `CELL` apart around the origin [m].
    """

    middles: np.ndarray
    blocks: list[Solid]
    heights: np.ndarray
    _tables: dict[str, Array] = field(default_factory=dict)

    def at(self, xy: Array) -> Array:
        """Heights [m] (...) at places (..., 2) [m]: of the nearest point; outside the tiles 0."""
        xp, device = array_api_compat.array_namespace(xy), array_api_compat.device(xy)
        key = f"{xp.__name__} {device} {xy.dtype}"
        if key not in self._tables:
            self._tables[key] = xp.asarray(self.heights.ravel(), device=device, dtype=xy.dtype)
        rows, columns = self.heights.shape
        column = xp.clip(xp.round(xy[..., 0] / CELL) + columns // 2, 0, columns - 1)
        row = xp.clip(xp.round(xy[..., 1] / CELL) + rows // 2, 0, rows - 1)
        flat = xp.reshape(xp.astype(row * columns + column, xp.int64), (-1,))
        return xp.reshape(xp.take(self._tables[key], flat, axis=0), column.shape)


def lay_tiles(kinds: Sequence[str], seed: int, *, step: float) -> Ground:
    """`LEVELS` rows of tiles along x, one of each kind in each.

    Args:
        kinds: of `KINDS`.
        seed: of what is random in tiles.
        step: see `tile`.

    Raises:
        ValueError: there is no such kind.
    """
    middles = np.empty((LEVELS, len(kinds), 2))
    size = round(TILE / CELL)
    heights = np.zeros((len(kinds) * size + 1, LEVELS * size + 1), np.float32)
    line = np.linspace(-0.5 * TILE, 0.5 * TILE, size + 1)
    x, y = np.meshgrid(line, line)
    blocks = []
    for level in range(LEVELS):
        for i, kind in enumerate(kinds):
            middle = middles[level, i] = [(level - (LEVELS - 1) / 2) * TILE, (i - (len(kinds) - 1) / 2) * TILE]
            found = tile(kind, level / (LEVELS - 1), np.random.default_rng([seed, level, i]), step=step)
            here = heights[i * size : (i + 1) * size + 1, level * size : (level + 1) * size + 1]
            for block in found:
                np.maximum(here, block.over(x, y), out=here)
            blocks += [item._replace(x=item.x + middle[0], y=item.y + middle[1]) for item in found]
    return Ground(middles, blocks, heights)
