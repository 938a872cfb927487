"""A reference: a few frames of a clip in which the task was done once, in whatever scene, to show a goal.

R frames at indices int(i (n - 1) / (R - 1)) of n, each announced with its share of progress by the same indices,
int(100 index / (n - 1)) percent. One frame is a picture of the goal: the last one, at 1.

Source: in-context references of VLAC: Zhai et al., arXiv 2509.15937. A picture of the goal as R = 1: ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FRAMES, MOST = 6, 11
TOLD, SHOWN, BOTH = range(3)
"""How a goal is given: by a sentence, by a reference, by both."""


def reference_indices(count: int, frames: int = FRAMES) -> np.ndarray:
    """(R,) int64: which of `count` frames a reference of R takes; a single one is the last.

    Raises:
        ValueError: R outside 1 to 11, or fewer frames than that.
    """
    if not 1 <= frames <= MOST:
        raise ValueError(f"a reference of {frames} frames, expected 1 (a picture of the goal) to {MOST}")
    if count < frames:
        raise ValueError(f"the reference has {count} frames, expected at least {frames}; take a longer clip or fewer")
    if frames == 1:
        return np.array([count - 1])
    return np.array([i * (count - 1) // (frames - 1) for i in range(frames)])


def announced_progress(index: np.ndarray, count: int) -> np.ndarray:
    """(R,) float32 shares of progress at which the frames of a clip of `count` are announced: whole percents."""
    last = max(count - 1, 1)
    return np.array([100 * int(i) // last if count > 1 else 100 for i in index], np.float32) / np.float32(100)


@dataclass(frozen=True)
class RefClip:
    """What shows a goal.

    Attributes:
        frames: (R, H, W, 3) uint8.
        progress: (R,) float32, rising, within [0, 1].
        source: where it is from, for reports.
    """

    frames: np.ndarray
    progress: np.ndarray
    source: str = ""

    @classmethod
    def of(cls, clip: np.ndarray, frames: int = FRAMES, *, source: str = "") -> RefClip:
        """From all frames (n, H, W, 3) uint8 of a clip that ends with its goal met.

        Raises:
            TypeError: pictures are not uint8.
            ValueError: too short, or an impossible number of frames.
        """
        index = reference_indices(len(clip), frames)
        return cls(np.ascontiguousarray(np.asarray(clip)[index]), announced_progress(index, len(clip)), source)

    def check(self, size: tuple[int, int]) -> RefClip:
        """Itself, if a critic of pictures of `size` (height, width) can use it.

        Raises:
            TypeError: pictures are not uint8.
            ValueError: what is wrong with it: number of frames, size, order of progress, an empty picture.
        """
        name = f"the reference {self.source}".strip()
        count = len(self.frames)
        if not 1 <= count <= MOST:
            raise ValueError(f"{name} has {count} frames, expected 1 (a picture of the goal) to {MOST}")
        if self.frames.dtype != np.uint8:
            raise TypeError(f"frames of {name} have dtype {self.frames.dtype}, expected uint8 RGB (0 to 255)")
        if self.frames.shape[1:] != (*size, 3):
            shape = " x ".join(map(str, self.frames.shape[1:]))
            raise ValueError(f"frames of {name} are {shape}, the critic takes {size[0]} x {size[1]} x 3; resize them")
        progress = np.asarray(self.progress, np.float64)
        if progress.shape != (count,):
            raise ValueError(f"{name} announces progress of shape {progress.shape}, expected ({count},)")
        within = bool(((progress >= 0) & (progress <= 1)).all())  # NaN is not
        if not within or (np.diff(progress) <= 0).any():
            raise ValueError(f"{name} announces progress {progress.tolist()}, expected numbers in [0, 1] that rise")
        empty = np.flatnonzero(self.frames.reshape(count, -1).std(axis=1) < 1.0)  # a covered lens
        if len(empty):
            raise ValueError(f"{name} shows nothing in frames {empty.tolist()} (all pixels alike); take another clip")
        return self
