"""What an IMU shows of its own quaternion: gravity and turning have to agree with it."""

from __future__ import annotations

import math

import numpy as np

from robot_rl.gaps.body import TO, conjugate, look_down
from robot_rl.real.core.shadow_joints import DEGREES

CHECKS = ("quaternion order", "gravity frame", "angular velocity")
AGREES = math.radians(12.0)
"""Angle between where the accelerometer and where the quaternion say up is."""
DOUBT = math.radians(3.0)
"""Two explanations that agree about as well are both told."""
TILTED = math.radians(6.0)
"""Tilt from which on the inverse of a rotation is seen to be another."""
TURNS = 0.05
"""Mean turning from which on a gyroscope can be compared [rad/s]."""


def undo(kind: str, quaternion: np.ndarray) -> np.ndarray:
    """(n, 4) quaternions as they would be meant if they had been told as `kind`: wxyz, inverse or down."""
    if kind == "wxyz":
        return quaternion[:, TO["xyzw"]]
    return conjugate(quaternion) if kind == "inverse" else look_down(quaternion)


def up_of(quaternion: np.ndarray) -> np.ndarray:
    """(n, 3) unit vectors that point up, in the trunk's frame: the third row of the rotation matrix."""
    x, y, z, w = (quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)).T
    return np.stack([2.0 * (x * z - w * y), 2.0 * (y * z + w * x), w * w + z * z - x * x - y * y], axis=1)


def turning(times: np.ndarray, quaternion: np.ndarray, step: int = 3) -> np.ndarray:
    """(n - step, 3) angular velocity in the trunk's frame [rad/s], of how the orientation changes over `step` rows."""
    a, b = conjugate(quaternion[:-step]), quaternion[step:]
    w = a[:, 3] * b[:, 3] - (a[:, :3] * b[:, :3]).sum(1)
    v = a[:, 3:] * b[:, :3] + b[:, 3:] * a[:, :3] + np.cross(a[:, :3], b[:, :3])
    v = np.where(w[:, None] < 0.0, -v, v)
    sine = np.linalg.norm(v, axis=1)
    angle = 2.0 * np.arctan2(sine, np.abs(w))
    scale = np.where(sine > 1e-9, angle / np.maximum(sine, 1e-9), 2.0)
    return v * (scale / np.maximum(times[step:] - times[:-step], 1e-6))[:, None]


def judge_body(times: np.ndarray, imu: np.ndarray) -> dict[str, tuple[str, str]]:
    """Order of the quaternion, frame of gravity, and angular velocity.

    Args:
        times: (n,) [s].
        imu: (n, 10) as `real.core.messages.imu_array`.

    Returns:
        `quaternion order`, `gravity frame` and `angular velocity` -> (`fine`, `wrong`, `open` or `unknown`, why).
    """
    good = np.isfinite(imu).all(1) & (np.linalg.norm(imu[:, :4], axis=1) > 0.5)
    if good.mean() < 0.9:
        text = "the IMU tells no orientation (not finite, or of no length): let its driver publish one, or a filter"
        later = "needs an orientation"
        return dict.fromkeys(CHECKS, ("open", later)) | {CHECKS[0]: ("wrong", text)}
    times, imu = times[good], imu[good]
    q, gyro, force = imu[:, :4], imu[:, 4:7], imu[:, 7:]
    spin = _judge_spin(times, q, gyro)
    if np.linalg.norm(force.mean(0)) < 1e-3:
        why = "the IMU tells no acceleration, so that nothing says independently where up is; tilt the robot and look"
        return {"quaternion order": ("unknown", why), "gravity frame": ("unknown", why), "angular velocity": spin[:2]}
    return {**_judge_gravity(q, force, spin[2]), "angular velocity": spin[:2]}


def _judge_gravity(q: np.ndarray, force: np.ndarray, turns_as: str) -> dict[str, tuple[str, str]]:
    felt = _means(force)
    lean = int(np.argmin(felt[:, 2]))  # when it was tilted most; a wrong frame shows then
    tilt = math.acos(float(np.clip(felt[lean, 2], -1.0, 1.0)))

    def off(rotations: np.ndarray, sign: float = 1.0) -> float:
        """Largest angle between where up is told to be and felt, in the middle of all and when tilted most."""
        told = _means(up_of(rotations))
        angles = np.arccos(np.clip(sign * (told * felt).sum(1), -1.0, 1.0))
        return float(max(np.median(angles), angles[lean]))

    fine: dict[str, tuple[str, str]] = {"quaternion order": ("fine", ""), "gravity frame": ("fine", "")}
    seen = f"by its quaternion up is {math.degrees(off(q)):.0f}° from where its accelerometer says"
    if off(q) < AGREES and turns_as not in ("wxyz", "inverse"):
        if turns_as != "as told" and tilt < TILTED:
            return fine | {
                "gravity frame": ("open", "stands level: tilt the trunk by 10° or turn it, so that a wrong frame shows")
            }
        return fine
    if up_of(q).mean(0)[2] > 0.5 and off(q, -1.0) < AGREES:
        text = (
            "its quaternion says that it stands upright and its accelerometer reads minus 9.8 m/s2 upwards: the IMU's "
            "z axis points down, or the driver tells gravity in place of what holds the robot up; mount or turn it so "
            "that z reads +9.8 at rest"
        )
        return fine | {"gravity frame": ("wrong", text)}
    words = {
        "wxyz": "read as w, x, y, z the two agree: the driver fills the scalar in first, ROS has it last",
        "down": "its world's z axis points down, and ROS's points up: let the driver turn it",
        "inverse": "its inverse agrees: the driver tells the world's orientation in the trunk's frame; let it tell "
        "that of the trunk in the world",
    }
    turns = {"wxyz": ("wxyz",), "inverse": ("inverse",), "as told": ("down",)}  # what the gyroscope leaves possible
    likely = {kind: off(undo(kind, q)) for kind in turns.get(turns_as, tuple(words))}
    likely = {kind: angle for kind, angle in likely.items() if angle < min(AGREES, min(likely.values()) + DOUBT)}
    if not likely:
        return fine | {"gravity frame": ("wrong", f"{seen}; neither another order nor another frame explains it")}
    text = f"{seen}; {', or '.join(words[kind] for kind in likely)}"
    if len(likely) > 1:
        text += " (they are told apart once the trunk turns)"
    checks = ["quaternion order" if kind == "wxyz" else "gravity frame" for kind in likely]
    return fine | dict.fromkeys(checks, ("wrong", text))


def _means(rows: np.ndarray, size: int = 50) -> np.ndarray:
    """(b, 3) directions of the means of blocks of a second of (n, 3)."""
    count = max(len(rows) // size, 1)
    means = np.array([part.mean(0) for part in np.array_split(rows, count)])
    return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)


def _judge_spin(times: np.ndarray, q: np.ndarray, gyro: np.ndarray) -> tuple[str, str, str]:
    """Kind and text of the angular velocity, and which quaternion it agrees with: `as told`, wxyz, inverse or ""."""
    step = 3
    if len(times) <= 4 * step:
        return "open", "has not turned", ""
    window = np.ones(step) / step
    mean = np.stack([np.convolve(0.5 * (g[1:] + g[:-1]), window, "valid") for g in gyro.T], axis=1)
    slopes = {"as told": turning(times, q, step)}
    slopes |= {kind: turning(times, undo(kind, q), step) for kind in ("wxyz", "inverse")}
    rates = [np.linalg.norm(one, axis=1) for one in (slopes["as told"], mean)]
    turns = np.maximum(*rates) > TURNS
    if turns.sum() < 25:
        return "open", "the trunk has not turned: turn or tilt it by hand", ""
    moved, felt = (float(np.sqrt(np.square(one[turns]).mean())) for one in rates)
    mean, slopes = mean[turns], {kind: slope[turns] for kind, slope in slopes.items()}
    if felt < 0.1 * moved:
        return "wrong", "is zero while the trunk turns; let its driver fill it in", ""

    def unexplained(kind: str, factor: float) -> float:
        slope = slopes[kind]
        return float(np.square(mean - factor * slope).sum() / (factor * factor * np.square(slope).sum() + 1e-12))

    for factor, text in ((1.0, ""), (DEGREES, "is 57 times what the orientation says: degrees per second")):
        for kind in slopes:
            if unexplained(kind, factor) < 0.4:
                return ("wrong", text, kind) if text else ("fine", "", kind)
    if moved < TURNS:
        return "wrong", f"reads {felt:.2g} rad/s while the orientation stands still", ""
    return "wrong", "is not how the orientation changes, in no order or frame that was tried", ""
