"""Pictures for a calibration: a folder of them with `poses.csv`, one line a picture."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robot_rl.extras import require

POSES = "poses.csv"
TOOL = ("x", "y", "z", "qw", "qx", "qy", "qz")
"""Columns of a pose of the tool in the robot's base: metres, and a quaternion."""
PIXEL = ("u", "v")
"""Columns of where the point on the tool is in the picture, where somebody has clicked it."""
_MOST = 500


@dataclass(frozen=True)
class Shot:
    """One picture.

    Attributes:
        name: of its file.
        pixels: (H, W, 3) uint8.
        tool: (4, 4) pose of the tool when it was taken.
        click: (u, v) pixels where the point on the tool is, or None.
    """

    name: str
    pixels: np.ndarray
    tool: np.ndarray
    click: tuple[float, float] | None = None


def read_views(folder: Path, joints: Sequence[str], tool_pose: Callable[[np.ndarray], np.ndarray]) -> list[Shot]:
    """The pictures of a folder and where the tool was in each.

    Args:
        folder: with `poses.csv`: a column `picture`, and one for each joint [rad or m], or the pose of the tool as x,
            y, z, qw, qx, qy, qz; where the point on the tool was clicked, also u and v.
        joints: names of the robot's joints.
        tool_pose: (J,) joint positions -> (4, 4).

    Raises:
        ValueError: no such file, a column or a number that is missing, a picture that cannot be read or is of another
            size than the first.
    """
    file = folder / POSES
    if not file.is_file():
        raise ValueError(
            f"there is no {file}: a folder of pictures has one, with the columns picture and {', '.join(joints)}, or "
            f"picture, {', '.join(TOOL)}"
        )
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines, skipinitialspace=True))
    columns = set(rows[0]) if rows else set()
    by_joints = set(joints) <= columns
    if not rows or "picture" not in columns or not (by_joints or set(TOOL) <= columns):
        missing = [name for name in ("picture", *joints) if name not in columns]
        raise ValueError(
            f"{file} lacks the columns {', '.join(missing)}; expected picture and every joint of the robot, or "
            f"picture, {', '.join(TOOL)}"
        )
    if len(rows) > _MOST:
        raise ValueError(f"{file} has {len(rows)} pictures, expected at most {_MOST}: 20 to 40 are enough")
    views: list[Shot] = []
    for number, row in enumerate(rows, 2):
        where = f"{file}, line {number}"
        if by_joints:
            tool = tool_pose(_numbers(row, joints, where))
        else:
            x, y, z, *quaternion = _numbers(row, TOOL, where)
            tool = np.eye(4)
            tool[:3, :3], tool[:3, 3] = _turn(np.array(quaternion), where), (x, y, z)
        click = tuple(_numbers(row, PIXEL, where)) if row.get("u") else None
        views.append(Shot(row["picture"], _picture(folder / row["picture"], where), tool, click))
        if views[-1].pixels.shape != views[0].pixels.shape:
            sizes = [f"{v.pixels.shape[1]} x {v.pixels.shape[0]}" for v in (views[0], views[-1])]
            raise ValueError(f"{where}: the picture is {sizes[1]}, and the first is {sizes[0]}; one camera, one size")
    return views


def _numbers(row: dict[str, str], names: Sequence[str], where: str) -> np.ndarray:
    found = []
    for name in names:
        try:
            found.append(float(row[name] or "nothing"))
        except (ValueError, KeyError) as error:
            raise ValueError(f"{where}: {name} is '{row.get(name)}', expected a number") from error
    values = np.array(found)
    if not np.isfinite(values).all():
        raise ValueError(f"{where}: {', '.join(names)} are {found}, expected finite numbers")
    return values


def _turn(quaternion: np.ndarray, where: str) -> np.ndarray:
    length = float(np.linalg.norm(quaternion))
    if not 0.9 < length < 1.1:
        raise ValueError(f"{where}: the quaternion's length is {length:.3g}, expected 1 (order qw, qx, qy, qz)")
    w, x, y, z = quaternion / length
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _picture(path: Path, where: str) -> np.ndarray:
    cv2 = require("cv2")
    found = cv2.imread(str(path), cv2.IMREAD_COLOR) if path.is_file() else None
    if found is None:
        raise ValueError(f"{where}: {path} is no picture that can be read; expected PNG or JPEG")
    return np.ascontiguousarray(found[..., ::-1])
