"""A camera's lens and place from pictures: with a printed board, or from the tool's own motion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from robot_rl.extras import require
from robot_rl.real.calibration.board import Board
from robot_rl.real.calibration.fit import Lens, Observed, Solution, hand_eye, pose, refine
from robot_rl.real.calibration.folder import Shot, read_views
from robot_rl.real.calibration.marker import COLOURS, find_markers
from robot_rl.types.card import CalibrationCard

__all__ = ["COLOURS", "Board", "CalibrationError", "Found", "Shot", "by_board", "by_motion", "read_views"]

_BOARD_VIEWS, _MOTION_VIEWS = 8, 12
"""Fewest pictures."""
_TURNS = np.deg2rad(5.0)
"""How much the hand has to turn about a second axis, root mean square over pairs of pictures."""
_RESIDUAL = {"board": 1.5, "motion": 3.0}
"""Largest root mean square residual [pixels of a picture that is 640 wide]."""
_SIGMA = {"board": (0.002, np.deg2rad(0.3)), "motion": (0.004, np.deg2rad(0.5))}
"""Largest standard deviation of place [m] and turn [rad]."""
_ASTRAY, _SHARE = 5.0, 0.2
"""Points are left out that lie so many median distances away (and 2 pixels); at most this share of them."""


class CalibrationError(ValueError):
    """Pictures from which nothing can be told; the message says what was wrong with them and what to do."""


@dataclass(frozen=True)
class Found:
    """A camera that was found.

    Attributes:
        card: for the card of the robot.
        notes: what is worth saying aloud.
    """

    card: CalibrationCard
    notes: tuple[str, ...]


def by_board(views: Sequence[Shot], board: Board, mount: Literal["world", "tool"]) -> Found:
    """Lens and place of a camera that has seen a board.

    The board lies still where the hand carries the camera; the hand carries it where the camera stands still. Where it
    lies, or how it is held, is found too.

    Args:
        views: at least 8 that show it, turned about two axes.
        board: as it was printed.
        mount: what carries the camera.

    Raises:
        CalibrationError: says why these pictures do not do.

    Source: Zhang (2000) for the lens, Park and Martin (1994) for the poses, both refined at once; see `refine`.
    """
    size, shown, looks = views[0].pixels.shape[:2], [], []
    for view in views:
        corners = board.find(view.pixels)
        if corners is not None:
            shown.append(view)
            looks.append(corners)
    seen_in = f"the board ({board.columns} x {board.rows} squares) is seen in {len(shown)} of {len(views)} pictures"
    if len(shown) < _BOARD_VIEWS:
        raise CalibrationError(
            f"{seen_in}, expected at least {_BOARD_VIEWS}. Say how it was printed (columns= rows= square=), bring it "
            "nearer, into the light, and turn it so that the camera does not look along it"
        )
    cv2 = require("cv2")
    points, pixels = ([look[i].astype(np.float32) for look in looks] for i in (0, 1))
    flags = cv2.CALIB_FIX_K3 | cv2.CALIB_ZERO_TANGENT_DIST
    _, matrix, bend, turns, places = cv2.calibrateCamera(points, pixels, size[::-1], None, None, flags=flags)
    lens = Lens(matrix[0, 0], matrix[1, 1] / matrix[0, 0], (matrix[0, 2], matrix[1, 2]), tuple(bend.ravel()[:4]))
    seen = np.array([pose(cv2.Rodrigues(turn)[0], place.ravel()) for turn, place in zip(turns, places)])
    move = _moves(shown, mount)
    camera, body, second = hand_eye(move, seen)
    if second < _TURNS:
        raise CalibrationError(
            f"the hand turns about one axis alone in these pictures (by {np.rad2deg(second):.1f} degrees about a "
            f"second one, expected {np.rad2deg(_TURNS):.0f}), which does not tell where the camera is. Take pictures "
            "with the hand tilted to both sides, forth and back, and turned"
        )
    number = np.repeat(np.arange(len(looks)), [len(look[0]) for look in looks])
    sight = Observed(size, move, number, np.concatenate([x[0] for x in looks]), np.concatenate([x[1] for x in looks]))
    begin = Solution(lens, camera, body, np.zeros(0), (0.0, 0.0))
    found, left = _without_stray(sight, refine(sight, begin, free=("ratio", "bend", "body")), ("ratio", "bend", "body"))
    _check(found, sight, "board", f"{seen_in}. ")
    return _report(found, sight, mount, len(shown), [seen_in, *left])


def by_motion(
    views: Sequence[Shot], *, colour: str = "magenta", marker: tuple[float, float, float] | None = None
) -> Found:
    """Lens and place of a camera that stands still, from where it sees a point of the tool.

    Args:
        views: at least 12, over the whole picture, at several distances; those with a `click` need no marker.
        colour: of the marker, a ball or a piece of tape on the tool.
        marker: its place in the tool's frame [m]; None finds it, where the tool turns.

    Raises:
        CalibrationError: says why these pictures do not do.

    Source: Lepetit et al., EPnP, and its successor SQPnP of Terzakis and Lourakis, through OpenCV's `solvePnPRansac`,
    over focal lengths; refined as in `refine`.
    """
    size = views[0].pixels.shape[:2]
    blobs = [view.click for view in views]
    if None in blobs:
        blobs = [old or new for old, new in zip(blobs, find_markers([view.pixels for view in views], colour))]
    shown = [view for view, blob in zip(views, blobs) if blob is not None]
    seen_in = f"the point on the tool is seen in {len(shown)} of {len(views)} pictures"
    if len(shown) < _MOTION_VIEWS:
        raise CalibrationError(
            f"{seen_in}, expected at least {_MOTION_VIEWS}. It is the largest blob that is {colour} and not always "
            f"there (colour={', '.join(COLOURS)}); or click it: columns u and v in poses.csv"
        )
    pixels = np.array([blob for blob in blobs if blob is not None])
    move = _moves(shown, "world")
    turns = [m[:3, :3] @ move[0, :3, :3].T for m in move]
    if marker is None and _tilt(turns) < _TURNS:
        raise CalibrationError(
            "the tool keeps its direction in these pictures, so that they do not tell where on it the marker is: say "
            "it (marker=[0,0,0.02], metres in the tool's frame), or turn the tool about two axes"
        )
    held = np.array(marker or (0.0, 0.0, 0.0))
    begin = _first(size, move[:, :3, :3] @ held + move[:, :3, 3], pixels, held)
    sight = Observed(size, move, np.arange(len(shown)), np.zeros((len(shown), 3)), pixels)
    free = ("k1", "point") if marker is None else ("k1",)
    found, left = _without_stray(sight, refine(sight, begin, free=free), free)
    _check(found, sight, "motion", f"{seen_in}. ")
    if marker is None:
        left.append("the marker is at " + ", ".join(f"{1e3 * x:.1f}" for x in found.body[:3, 3]) + " mm on the tool")
    return _report(found, sight, "world", len(shown), [seen_in, *left])


def _moves(views: Sequence[Shot], mount: str) -> np.ndarray:
    """(V, 4, 4) from the frame that carries what is seen into that of the camera's mount."""
    tools = np.array([view.tool for view in views])
    return tools if mount == "world" else np.linalg.inv(tools)


def _tilt(turns: Sequence[np.ndarray]) -> float:
    """By how much rotations turn about their second axis [rad, root mean square]."""
    cv2 = require("cv2")
    vectors = np.array([cv2.Rodrigues(turn)[0][:, 0] for turn in turns])
    return float(np.linalg.svd(vectors - vectors.mean(0), compute_uv=False)[1] / np.sqrt(len(vectors)))


def _first(size: tuple[int, int], points: np.ndarray, pixels: np.ndarray, held: np.ndarray) -> Solution:
    """A first pose and focal length: the pair under which most points fall where they were found."""
    cv2 = require("cv2")
    spread = np.linalg.svd(points - points.mean(0), compute_uv=False) / np.sqrt(len(points))
    if spread[2] < 0.01:
        raise CalibrationError(
            f"the tool stays within {2e3 * spread[2]:.0f} mm of one plane in these pictures, which leaves the camera's "
            "distance open. Move it to places at several heights and distances"
        )
    centre = 0.5 * (size[1] - 1), 0.5 * (size[0] - 1)
    best, worth = None, np.inf
    for focal in size[1] * np.geomspace(0.35, 5.0, 24):
        lens = Lens(float(focal), 1.0, centre)
        cv2.setRNGSeed(0)
        done, turn, place, _ = cv2.solvePnPRansac(
            points, pixels, lens.matrix, None, reprojectionError=0.03 * size[1], flags=cv2.SOLVEPNP_SQPNP
        )
        if not done:
            continue
        onto = pose(cv2.Rodrigues(turn)[0], place.ravel())
        far = np.linalg.norm(lens.see(points @ onto[:3, :3].T + onto[:3, 3]) - pixels, axis=1)
        if (middle := float(np.median(far))) < worth:
            best, worth = Solution(lens, np.linalg.inv(onto), pose(np.eye(3), held), far, (0.0, 0.0)), middle
    if best is None:
        raise CalibrationError(
            "no camera sees the tool's places where the marker was found; are the poses those of these pictures, and "
            "is the marker the only thing of its colour that moves?"
        )
    return best


def _without_stray(sight: Observed, found: Solution, free: tuple[str, ...]) -> tuple[Solution, list[str]]:
    """Once more without the points that lie far from where they should be, and what to say about it."""
    good = found.error <= max(_ASTRAY * float(np.median(found.error)), 2.0)
    if good.all() or good.mean() < 1.0 - _SHARE:
        return found, []
    rest = Observed(sight.size, sight.move, sight.view[good], sight.points[good], sight.pixels[good])
    return refine(rest, found, free=free), [f"{int((~good).sum())} of {len(good)} points lie astray and are left out"]


def _check(found: Solution, sight: Observed, kind: str, told: str) -> None:
    """Refuse what is not sure enough."""
    scale = sight.size[1] / 640.0
    residual, most = _rms(found), _RESIDUAL[kind] * scale
    if residual > most:
        raise CalibrationError(
            f"{told}Where it was found and where the best camera sees it differ by {residual:.1f} pixels (root mean "
            f"square), expected at most {most:.1f}. Was the robot at rest in each picture, are the poses those of its "
            "tool in metres, did the board or the marker keep its place, and is mount= right?"
        )
    for value, bound, what, unit, per in zip(
        found.sigma, _SIGMA[kind], ("place", "turn"), ("mm", "degrees"), (1e3, np.rad2deg(1.0))
    ):
        if value > bound:
            raise CalibrationError(
                f"{told}They leave the camera's {what} open: its standard deviation is {per * value:.1f} {unit}, "
                f"expected at most {per * bound:.1f}. Take more pictures, over the whole picture, nearer and further, "
                "and with the hand turned further"
            )


def _rms(found: Solution) -> float:
    return float(np.sqrt((found.error**2).mean()))


def _report(
    found: Solution, sight: Observed, mount: Literal["world", "tool"], views: int, notes: Sequence[str]
) -> Found:
    lens, (height, width) = found.lens, sight.size
    place = tuple(round(float(x), 6) for x in found.camera[:3, 3])
    card = CalibrationCard(
        height=height,
        width=width,
        focal=(round(float(lens.focal), 3), round(float(lens.focal * lens.ratio), 3)),
        centre=(round(float(lens.centre[0]) + 0.5, 3), round(float(lens.centre[1]) + 0.5, 3)),
        distortion=tuple(round(float(x), 6) for x in lens.bend),
        mount=mount,
        position=(place[0], place[1], place[2]),
        rotation=tuple(round(float(x), 8) for x in found.camera[:3, :3].ravel()),
        residual=round(_rms(found), 3),
        views=views,
        sigma=(round(found.sigma[0], 6), round(found.sigma[1], 6)),
    )
    return Found(card, tuple(notes))
