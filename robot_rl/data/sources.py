"""What is wrong with a file, said so that its owner can mend it; shared by the readers of foreign formats."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def check_file(path: Path) -> None:
    """Refuse what cannot be data before any library looks at it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is a folder, empty, or a Git LFS pointer.
    """
    if not path.exists():
        near = difflib.get_close_matches(
            path.name, [p.name for p in path.parent.glob("*")] if path.parent.exists() else []
        )
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise FileNotFoundError(f"{path} does not exist{hint}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, expected a file")
    size = path.stat().st_size
    if size == 0:
        raise ValueError(f"{path} is empty; download or copy it again")
    with open(path, "rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            raise ValueError(f"{path} is a Git LFS pointer ({size} bytes), not data; run: git lfs pull")


def explain(path: Path, error: Exception) -> ValueError:
    """The HDF5 library's complaint as a sentence."""
    text = str(error)
    cut = re.search(r"truncated file: eof = (\d+).*stored_eof = (\d+)", text)
    if cut:
        return ValueError(f"{path} is cut short: {int(cut[1]):,} of {int(cut[2]):,} bytes; download or copy it again")
    if "signature not found" in text:
        return ValueError(f"{path} is not an HDF5 file; name a D4RL or Minari file, or a folder of recordings")
    return ValueError(f"{path} cannot be read: {text}")


def unreadable(path: Path, key: str, error: Exception) -> ValueError:
    """A dataset that is listed but does not come out."""
    return ValueError(
        f"{path}: key '{key}' cannot be read ({error}); the file is damaged there, download or copy it again"
    )


def missing_key(path: Path, key: str, present: Iterable[str]) -> ValueError:
    """A required key that is not there."""
    present = sorted(present)
    near = difflib.get_close_matches(key, present, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    shown = ", ".join(present[:20]) + (" ..." if len(present) > 20 else "")
    return ValueError(f"{path}: key '{key}' is missing; the file has: {shown or 'nothing'}{hint}")


def not_finite(path: Path, key: str, value: np.ndarray, starts: np.ndarray) -> str | None:
    """A line about NaN and infinity with the first five places; None when all is finite.

    Args:
        path: the file.
        key: which data.
        value: (N, ...).
        starts: first row of every episode, increasing.
    """
    if value.dtype.kind != "f" or np.isfinite(value).all():
        return None
    bad = np.argwhere(~np.isfinite(value))
    places = []
    for place in bad[:5]:
        episode = int(np.searchsorted(starts, place[0], "right") - 1)
        inside = ", ".join(str(int(i)) for i in place[1:])
        places.append(
            f"episode {episode} step {place[0] - starts[episode]}" + (f" component {inside}" if inside else "")
        )
    return (
        f"{path}: '{key}' has {len(bad)} values that are not finite: {'; '.join(places)}"
        f"{' ...' if len(bad) > 5 else ''}; drop those episodes or repair the source"
    )


def saturation(action: np.ndarray) -> list[str]:
    """Findings about actions (N, A) against [-1, 1]."""
    size = np.abs(np.nan_to_num(action, posinf=0.0, neginf=0.0))
    outside = size > 1.0 + 1e-6
    lines = []
    if outside.any():
        lines.append(
            f"{outside.mean():.1%} of the action components lie outside [-1, 1], worst {size.max():.3g} "
            "(often logged before clipping): clip or rescale them"
        )
    bound = np.abs(size - 1.0) < 1e-3
    if bound.mean() > 0.5:
        lines.append(f"{bound.mean():.0%} of the action components lie at the bounds: possibly saturated or discrete")
    return lines
