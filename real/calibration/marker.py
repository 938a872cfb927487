"""Where a coloured ball on the tool is in the pictures of a camera that stands still."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robot_rl.extras import require

COLOURS = {"red": 0, "orange": 12, "yellow": 30, "green": 60, "cyan": 90, "blue": 115, "magenta": 150}
"""Name -> hue as OpenCV counts it, 0 to 180."""
_HUES, _SATURATION, _VALUE = 14, 80, 20  # how far from the hue, and least of the others, of 255
_CHANGE = 25  # of 255 from what the camera mostly sees there: what stands still in all pictures is no ball
_LEAST = 4.0  # pixels of its radius: below that its middle is no better than a click
_ROUND = 0.9  # of the circle around it that it fills; less is partly hidden, and its middle is elsewhere


def find_markers(pictures: Sequence[np.ndarray], colour: str) -> list[tuple[float, float] | None]:
    """Middle of the ball in each picture, as OpenCV counts pixels; None where it is not seen as a whole.

    It is the largest blob of its colour. What is there in most of the pictures belongs to the scene: only what differs
    from the median picture counts.

    Args:
        pictures: (H, W, 3) uint8 each, of one camera that stands still.
        colour: one of `COLOURS`.
    """
    cv2 = require("cv2")
    usual = np.median(np.stack(pictures), axis=0).astype(np.int16)
    found: list[tuple[float, float] | None] = []
    for picture in pictures:
        hue, saturation, value = np.moveaxis(cv2.cvtColor(picture, cv2.COLOR_RGB2HSV).astype(np.int16), -1, 0)
        away = np.abs(hue - COLOURS[colour])
        moved = np.abs(picture.astype(np.int16) - usual).max(-1) > _CHANGE
        mask = (np.minimum(away, 180 - away) <= _HUES) & (saturation >= _SATURATION) & (value >= _VALUE) & moved
        count, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
        if count < 2:
            found.append(None)
            continue
        blob = (labels == 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))).astype(np.uint8)
        rows, columns = np.nonzero(blob)
        outer = cv2.minEnclosingCircle(np.stack([columns, rows], 1).astype(np.float32))[1] + 0.3
        whole = outer > _LEAST and len(rows) > _ROUND * np.pi * outer**2
        found.append((float(columns.mean()), float(rows.mean())) if whole else None)
    return found
