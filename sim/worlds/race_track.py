"""Geometry of a closed race track: centre line from control points, its tables, and the meshes that draw it."""

from __future__ import annotations

import numpy as np

from robot_rl.sim.world import ASSETS

CURB_WIDTH = 0.09
"""Width [m] of the red and white border drawn outside the driveable part."""


def centre_line(points: np.ndarray, spacing: float) -> dict[str, np.ndarray]:
    """Resample a closed curve at equal arc lengths.

    The curve is the uniform cubic B-spline of the control points: its curvature is continuous, which a car can follow.

    Args:
        points: (P, 2) control points [m], at least 4; the last one joins the first.
        spacing: wanted distance [m] between samples; the true one divides the length into whole samples.

    Returns:
        "xy": (M, 2) [m], "heading": (M,) [rad], "curvature": (M,) [1/m], positive to the left, "length": () [m].

    Raises:
        ValueError: the points have another shape.
    """
    points = np.asarray(points, np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 4:
        raise ValueError(f"control points have shape {points.shape}, expected (P, 2) with P >= 4")
    u = np.linspace(0.0, 1.0, 200, endpoint=False)
    basis = np.stack([(1 - u) ** 3, 3 * u**3 - 6 * u**2 + 4, -3 * u**3 + 3 * u**2 + 3 * u + 1, u**3], axis=1) / 6
    piece = (np.arange(len(points))[:, None] + np.arange(-1, 3)) % len(points)
    dense = np.concatenate(list(basis @ points[piece]))
    closed = np.concatenate([dense, dense[:1]])
    arc = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1))])
    count = round(arc[-1] / spacing)
    at = np.arange(count) * arc[-1] / count
    xy = np.stack([np.interp(at, arc, closed[:, 0]), np.interp(at, arc, closed[:, 1])], axis=1)
    ahead, behind = np.roll(xy, -1, axis=0), np.roll(xy, 1, axis=0)
    heading = np.arctan2(*(ahead - behind).T[::-1])
    turn = np.roll(heading, -1) - np.roll(heading, 1)
    curvature = ((turn + np.pi) % (2 * np.pi) - np.pi) * count / (2 * arc[-1])
    return {"xy": xy, "heading": heading, "curvature": curvature, "length": arc[-1]}


def load_points(name: str) -> np.ndarray:
    """Control points (P, 2) [m] of the track `assets/race/<name>.csv`.

    Raises:
        ValueError: no such track; lists those that there are.
    """
    folder = ASSETS / "race"
    path = folder / f"{name}.csv"
    if not path.is_file():
        raise ValueError(f"track {name!r} is unknown, expected one of {sorted(p.stem for p in folder.glob('*.csv'))}")
    return np.loadtxt(path, delimiter=",", skiprows=1)


def track_meshes(line: dict[str, np.ndarray], half_width: float) -> tuple[str, str]:
    """MJCF of the drawn track: asphalt, red and white borders and a chequered line; nothing of it can be touched.

    Args:
        line: as `centre_line` returns it.
        half_width: half of the driveable width [m].

    Returns:
        Elements for <asset> and for <worldbody>.
    """
    xy, heading = line["xy"], line["heading"]
    normal = np.stack([-np.sin(heading), np.cos(heading)], axis=1)
    count = len(xy)
    everywhere = np.ones(count, bool)
    red = (np.arange(count) // 4) % 2 == 0
    outer = half_width + CURB_WIDTH
    strips = [
        ("asphalt", "asphalt", -half_width, half_width, 0.004, everywhere),
        ("left_red", "red", half_width, outer, 0.018, red),
        ("left_white", "white", half_width, outer, 0.018, ~red),
        ("right_red", "red", -outer, -half_width, 0.018, red),
        ("right_white", "white", -outer, -half_width, 0.018, ~red),
    ]
    assets, geoms = [], []
    following = np.roll(np.arange(count), -1)
    for name, material, low, high, top, where in strips:
        sides = xy + low * normal, xy + high * normal
        corners = np.stack([*sides, *(side[following] for side in sides)], axis=1)  # (M, 4, 2)
        assets.append(_boxes(f"track_{name}", corners[where], top))
        geoms.append(_geom(name, material))
    rows = np.linspace(-half_width, half_width, 9)
    along = np.array([np.cos(heading[0]), np.sin(heading[0])]) * 0.15
    squares = []
    for j in range(2):
        for i in range(j, 8, 2):
            low = xy[0] + rows[i] * normal[0] + j * along
            high = low + (rows[i + 1] - rows[i]) * normal[0]
            squares.append((low, high, low + along, high + along))
    assets.append(_boxes("track_line", np.array(squares), 0.006))
    geoms.append(_geom("line", "white"))
    return "\n".join(assets), "\n".join(geoms)


# Faces of a box whose corners are (low, high) x (near, far), bottom first: 0 low near, 1 high near, 2 low far, 3 high
# far, then the same four on top.
_BOX = (
    *((4, 6, 5), (5, 6, 7), (0, 1, 2), (1, 3, 2), (0, 4, 1), (1, 4, 5)),
    *((2, 3, 6), (3, 7, 6), (0, 2, 4), (2, 6, 4), (1, 5, 3), (3, 5, 7)),
)


def _boxes(name: str, corners: np.ndarray, top: float) -> str:
    """A mesh of boxes between the ground and `top` [m] over (B, 4, 2) corners [m], as `_BOX` counts them."""
    count = len(corners)
    vertices = np.zeros((count, 2, 4, 3))
    vertices[..., :2], vertices[:, 1, :, 2] = corners[:, None], top
    faces = 8 * np.arange(count)[:, None, None] + np.array(_BOX)
    numbers = " ".join(f"{value:.4f}" for value in vertices.ravel())
    return f'<mesh name="{name}" inertia="shell" vertex="{numbers}" face="{" ".join(map(str, faces.ravel()))}"/>'


def _geom(name: str, material: str) -> str:
    return f'<geom name="{name}" type="mesh" mesh="track_{name}" material="{material}" contype="0" conaffinity="0"/>'
