"""Pictures of an episode that was done once, as `<clips or log>:<episode>`, to show a critic its goal."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robot_rl.data import formats
from robot_rl.verbs.critic_clips import FACTS, load_clips

_AFTER = 6
"""Control steps of a log that are kept after its goal was met for the first time."""


def read(text: str, camera: str = "front") -> tuple[np.ndarray, str]:
    """All pictures of a reference, up to where its goal is met, and what to call it.

    Args:
        text: "<folder of clips>:<clip>" or "<log>:<episode>", counted from 0.
        camera: which pictures of a log.

    Returns:
        (n, H, W, 3) uint8, and a name.

    Raises:
        FileNotFoundError: there is no such folder or log.
        ValueError: no number, none of that number, no such pictures, or an episode that failed.
    """
    place, _, number = str(text).rpartition(":")
    if not place or not number.strip().isdigit():
        raise ValueError(f"reference={text}: expected <clips or log>:<episode>, such as clips/train:12")
    path, row = Path(place), int(number)
    if not path.exists():
        raise FileNotFoundError(f"reference={text}: there is no {path}")
    if (path / FACTS).exists():
        return _clip(path, row), f"{path}:{row}"
    return _episode(path, row, camera), f"{path}:{row}"


def _clip(path: Path, row: int) -> np.ndarray:
    arrays, facts = load_clips(path)
    count = len(arrays["goal"])
    if row >= count:
        raise ValueError(f"reference {path}:{row}: there are {count} clips, 0 to {count - 1}")
    kinds = np.array(facts["kinds"])[arrays["kind"]]
    good = np.flatnonzero(np.isin(kinds, facts["successes"]))
    if row not in good:
        raise ValueError(
            f"reference {path}:{row} fails (kind '{kinds[row]}'), and only a success shows its goal; successes are "
            f"{', '.join(map(str, good[:8])) or 'none of these clips'}{', …' if len(good) > 8 else ''}"
        )
    return arrays["frames"][int(arrays["start"][row]) : int(arrays["start"][row + 1])]


def _episode(path: Path, row: int, camera: str) -> np.ndarray:
    episodes = formats.load(path).episodes
    if row >= len(episodes):
        raise ValueError(f"reference {path}:{row}: the log holds {len(episodes)} episodes, 0 to {len(episodes) - 1}")
    episode, key = episodes[row], f"image.{camera}"
    if key not in episode.obs:
        found = [name for name in episode.obs if name.startswith("image.")]
        raise ValueError(f"reference {path}:{row}: the log holds no '{key}'; it holds {found or 'no pictures'}")
    met = episode.meta.get("columns", {}).get("success")
    if not episode.meta.get("success", True):
        good = [i for i, other in enumerate(episodes) if other.meta.get("success")]
        raise ValueError(
            f"reference {path}:{row} fails, and only a success shows its goal; successes are "
            f"{', '.join(map(str, good[:8])) or 'none of this log'}{', …' if len(good) > 8 else ''}"
        )
    frames = np.asarray(episode.obs[key])
    if met is not None and np.asarray(met).any():
        frames = frames[: int(np.argmax(np.asarray(met) > 0)) + 2 + _AFTER]
    return frames
