"""Figures of matplotlib without a screen and without its global state, and the file that each becomes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robot_rl.atomic import write_bytes
from robot_rl.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(width: float, height: float) -> Figure:
    """An empty figure that arranges its parts by itself.

    Args:
        width, height: in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    require("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def panels(rows: int, columns: int, *, width: float, height: float, **shared: Any) -> tuple[Figure, np.ndarray]:
    """A figure and its axes (rows, columns).

    Args:
        rows, columns: how many.
        width, height: of one panel, in inches.
        shared: further arguments of matplotlib's `Figure.subplots`.
    """
    made = figure(width * columns, height * rows)
    return made, made.subplots(rows, columns, squeeze=False, **shared)


def save(made: Figure, path: Path, *, dpi: int = 110) -> Path:
    """Write a figure in the format of the file's ending; a reader never sees half a picture."""
    content = io.BytesIO()
    made.savefig(content, dpi=dpi, format=path.suffix.removeprefix(".") or "png")
    write_bytes(path, content.getvalue())
    return path


def main_directions(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Rows (N, n), standardised, along their two main directions (N, 2), and the share of the variance there."""
    spread = rows.std(0)
    scaled = (rows - rows.mean(0)) / np.where(spread < 1e-6, 1.0, spread)
    _, value, direction = np.linalg.svd(scaled, full_matrices=False)
    flat = scaled @ direction[:2].T
    share = np.square(value[:2]).sum() / max(np.square(value).sum(), 1e-12)
    return np.column_stack((flat, np.zeros(len(flat))))[:, :2], float(share)
