"""The mathematics of calibration: a lens, poses, hand-eye in closed form, and least squares on what pictures show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from robot_rl.extras import require

_STEPS = 60
_CONVERGED = 1e-9
_FINEST = 0.03  # pixels: no corner is found more exactly than that
_EXPECTED = 0.3  # pixels of a usual residual, by which what is believed beforehand is weighed
_BELIEVED = {"focal": np.inf, "ratio": 0.02, "centre": 0.05, "k": 0.15, "p": 0.02}
"""Standard deviations of what is believed of any lens: square pixels, the axis in the middle (parts of the width), a
distortion that is small."""


@dataclass(frozen=True)
class Lens:
    """A pinhole with distortion as OpenCV writes it.

    Attributes:
        focal: fx [pixels].
        ratio: fy / fx.
        centre: (cx, cy) [pixels]; the middle of the first pixel is at (0, 0), as OpenCV counts.
        bend: (k1, k2, p1, p2).

    Source: Brown, Close-range camera calibration (1971), in the form of OpenCV's calib3d.
    """

    focal: float
    ratio: float
    centre: tuple[float, float]
    bend: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    @property
    def matrix(self) -> np.ndarray:
        """(3, 3) as OpenCV takes it."""
        return np.array([[self.focal, 0, self.centre[0]], [0, self.focal * self.ratio, self.centre[1]], [0, 0, 1.0]])

    def see(self, points: np.ndarray) -> np.ndarray:
        """(N, 3) in the camera's frame [m] -> (N, 2) pixels."""
        depth = np.where(np.abs(points[:, 2]) > 1e-6, points[:, 2], 1e-6)
        x, y = points[:, 0] / depth, points[:, 1] / depth
        k1, k2, p1, p2 = self.bend
        r2 = x * x + y * y
        radial = 1.0 + r2 * (k1 + r2 * k2)
        u = x * radial + 2.0 * p1 * x * y + p2 * (r2 + 2.0 * x * x)
        v = y * radial + p1 * (r2 + 2.0 * y * y) + 2.0 * p2 * x * y
        return np.stack([self.focal * u + self.centre[0], self.focal * self.ratio * v + self.centre[1]], 1)


@dataclass(frozen=True)
class Observed:
    """What pictures show: points of a body that moves with the tool against the camera, found in them.

    Attributes:
        size: (height, width) of the pictures.
        move: (V, 4, 4) of each picture: from the frame that carries the points into that of the camera's mount.
        view: (N,) picture of each point found.
        points: (N, 3) the same points on the body [m]; zeros where the body is a single point.
        pixels: (N, 2) where they were found, as OpenCV counts.
    """

    size: tuple[int, int]
    move: np.ndarray
    view: np.ndarray
    points: np.ndarray
    pixels: np.ndarray


@dataclass(frozen=True)
class Solution:
    """A camera that was found.

    Attributes:
        lens: of it.
        camera: (4, 4) from its frame into that of its mount.
        body: (4, 4) from the body's frame into that which carries it.
        error: (N,) distance of each point found from where it should be [pixels].
        sigma: standard deviations of the camera's place [m] and turn [rad], from the residual.
    """

    lens: Lens
    camera: np.ndarray
    body: np.ndarray
    error: np.ndarray
    sigma: tuple[float, float]


def rotation(vector: np.ndarray) -> np.ndarray:
    """(3, 3) of an axis times an angle (3,) [rad].

    Source: Rodrigues' formula.
    """
    angle = float(np.linalg.norm(vector))
    x, y, z = vector / max(angle, 1e-300)
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * cross @ cross


def axis_angle(turn: np.ndarray) -> np.ndarray:
    """(3,) axis times angle [rad] of a rotation (3, 3)."""
    return require("cv2").Rodrigues(turn)[0][:, 0]


def pose(turn: np.ndarray, place: np.ndarray) -> np.ndarray:
    """(4, 4) of a rotation (3, 3) and a place (3,)."""
    made = np.eye(4)
    made[:3, :3], made[:3, 3] = turn, place
    return made


def hand_eye(move: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Where a camera is in its mount, and a body in what carries it, from the poses in which the camera saw the body.

    Args:
        move: (V, 4, 4) from the frame that carries the body into that of the camera's mount.
        seen: (V, 4, 4) from the body's frame into the camera's.

    Returns:
        (4, 4) camera in mount, (4, 4) body in what carries it, and by how much the motion turned about its second axis
        [rad, root mean square over pairs]: near 0, one axis alone, places nothing.

    Source: Park and Martin, Robot sensor calibration: solving AX = XB on the Euclidean group (1994), rotations by
    Horn's absolute orientation. (OpenCV 5 no longer has calibrateHandEye.)
    """
    pairs = [(i, j) for i in range(len(move)) for j in range(i + 1, len(move))]
    a = np.array([move[j] @ np.linalg.inv(move[i]) for i, j in pairs])
    b = np.array([seen[j] @ np.linalg.inv(seen[i]) for i, j in pairs])
    alpha, beta = (np.array([axis_angle(x[:3, :3]) for x in side]) for side in (a, b))
    left, spread, right = np.linalg.svd(alpha.T @ beta)
    turn = left @ np.diag([1.0, 1.0, np.linalg.det(left @ right)]) @ right
    lines = (a[:, :3, :3] - np.eye(3)).reshape(-1, 3)
    offsets = (np.einsum("ij,nj->ni", turn, b[:, :3, 3]) - a[:, :3, 3]).reshape(-1)
    camera = pose(turn, np.linalg.lstsq(lines, offsets, rcond=None)[0])
    bodies = np.array([np.linalg.inv(m) @ camera @ s for m, s in zip(move, seen)])
    left, _, right = np.linalg.svd(bodies[:, :3, :3].sum(0))
    body = pose(left @ np.diag([1.0, 1.0, np.linalg.det(left @ right)]) @ right, np.median(bodies[:, :3, 3], axis=0))
    return camera, body, float(np.sqrt(spread[1] / len(pairs)))


def refine(sight: Observed, begin: Solution, *, free: tuple[str, ...]) -> Solution:
    """The lens and the poses with the least squares of distances in the pictures.

    Args:
        sight: what the pictures show.
        begin: near the answer.
        free: what is looked for, of "ratio", "bend" (k1, k2, p1, p2), "k1", "body" (six) and "point" (its place); focal
            length, centre and the camera's pose always are.

    Source: Levenberg and Marquardt's least squares; Zhang, A flexible new technique for camera calibration (2000), and
    Tsai and Lenz (1989) for the two that are refined here at once.
    """
    width = sight.size[1]
    names = ["focal", "cx", "cy", *(f"camera{i}" for i in range(6))]
    names += ["ratio"] * ("ratio" in free)
    names += ["k1", "k2", "p1", "p2"] if "bend" in free else ["k1"] * ("k1" in free)
    names += [f"body{i}" for i in range(6)] if "body" in free else []
    names += [f"body{i}" for i in range(3, 6)] if "point" in free else []
    start = dict.fromkeys(("focal", "cx", "cy", "ratio", "k1", "k2", "p1", "p2"), 0.0)
    start |= {f"{kind}{i}": 0.0 for kind in ("camera", "body") for i in range(6)}
    middle = 0.5 * (width - 1), 0.5 * (sight.size[0] - 1)

    def at(x: np.ndarray) -> tuple[Lens, np.ndarray, np.ndarray]:
        d, bent = start | dict(zip(names, x)), begin.lens.bend
        lens = Lens(
            begin.lens.focal * np.exp(d["focal"]),
            begin.lens.ratio + d["ratio"],
            (begin.lens.centre[0] + d["cx"] * width, begin.lens.centre[1] + d["cy"] * width),
            (bent[0] + d["k1"], bent[1] + d["k2"], bent[2] + d["p1"], bent[3] + d["p2"]),
        )
        poses = []
        for kind, old in (("camera", begin.camera), ("body", begin.body)):
            six = np.array([d[f"{kind}{i}"] for i in range(6)])
            poses.append(pose(old[:3, :3] @ rotation(six[:3]), old[:3, 3] + six[3:]))
        return lens, poses[0], poses[1]

    def predict(x: np.ndarray) -> np.ndarray:
        lens, camera, body = at(x)
        onto = np.linalg.inv(camera) @ sight.move @ body
        each = onto[sight.view]
        return lens.see(np.einsum("nij,nj->ni", each[:, :3, :3], sight.points) + each[:, :3, 3])

    def residual(x: np.ndarray) -> np.ndarray:
        lens = at(x)[0]
        believed = [
            (lens.ratio - 1.0) / _BELIEVED["ratio"],
            *((c - m) / (_BELIEVED["centre"] * width) for c, m in zip(lens.centre, middle)),
            *(b / _BELIEVED["k" if i < 2 else "p"] for i, b in enumerate(lens.bend)),
        ]
        return np.concatenate([(predict(x) - sight.pixels).ravel(), _EXPECTED * np.array(believed)])

    x, slope = _least_squares(residual, np.zeros(len(names)))
    lens, camera, body = at(x)
    far = predict(x) - sight.pixels
    noise = max(float((far**2).sum() / max(far.size - len(names), 1)) ** 0.5, _FINEST)
    spread = np.linalg.pinv(slope.T @ slope) * noise**2
    turn, place = (sum(spread[names.index(f"camera{i}")][names.index(f"camera{i}")] for i in axes)
                   for axes in (range(3), range(3, 6)))  # fmt: skip
    return replace(
        begin, lens=lens, camera=camera, body=body, error=np.linalg.norm(far, axis=1),
        sigma=(float(place) ** 0.5, float(turn) ** 0.5),
    )  # fmt: skip


def _least_squares(residual: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the squares of residuals (R,) are least, and their slope (R, X) there."""
    now, damping = residual(x), 1e-3
    slope = _slope(residual, x)
    for _ in range(_STEPS):
        square, down = slope.T @ slope, slope.T @ now
        step = np.linalg.lstsq(square + damping * np.diag(np.diag(square) + 1e-12), -down, rcond=None)[0]
        then = residual(x + step)
        before, after = float(now @ now), float(then @ then)
        if after < before:
            x, now, damping = x + step, then, damping / 5.0
            slope = _slope(residual, x)
            if before - after < _CONVERGED * before:
                break
        elif damping > 1e8:
            break
        else:
            damping *= 5.0
    return x, slope


def _slope(residual: Callable[[np.ndarray], np.ndarray], x: np.ndarray, by: float = 1e-6) -> np.ndarray:
    columns = [(residual(x + by * e) - residual(x - by * e)) / (2.0 * by) for e in np.eye(len(x))]
    return np.stack(columns, 1)
