"""A ChArUco board: drawn in its true size for a printer, and found in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robot_rl.extras import require

_DPI = 300
_MARKER = 0.74  # of a square's side that its marker takes
_MARGIN = 0.012  # m around the board on the page, where the caption stands
_INCH = 0.0254
_FEW = 8
"""Corners that a picture has to show: four would do for a pose, but not for a mistake among them."""


class Board(NamedTuple):
    """Squares like those of a chessboard, every white one with a marker of its own.

    Attributes:
        columns: squares along x.
        rows: squares along y.
        square: side of one [m].

    Source: Garrido-Jurado et al., Automatic generation and detection of highly reliable fiducial markers (2014); the
    pattern is OpenCV's `CharucoBoard` on DICT_4X4_250.
    """

    columns: int = 7
    rows: int = 5
    square: float = 0.035

    def pattern(self) -> Any:
        """OpenCV's board."""
        aruco = require("cv2").aruco
        words = aruco.getPredefinedDictionary(aruco.DICT_4X4_250)
        return aruco.CharucoBoard((self.columns, self.rows), self.square, _MARKER * self.square, words)

    def draw(self, width: int) -> np.ndarray:
        """(height, width) uint8 picture of the board alone."""
        return self.pattern().generateImage((width, round(width * self.rows / self.columns)))

    def print_to(self, path: Path) -> str:
        """Write a page on which the board has its true size.

        Args:
            path: .pdf or .png; either knows its size in print.

        Returns:
            What to say about it.

        Raises:
            ValueError: another ending.
        """
        from PIL import Image, ImageDraw, ImageFont

        if path.suffix.lower() not in (".pdf", ".png"):
            raise ValueError(f"board={path}: a board is written as .pdf or .png, which know how large it is in print")
        each = round(self.square * _DPI / _INCH)  # whole dots, so that all squares are alike
        dots = each / self.square
        margin, picture = round(_MARGIN * dots), self.draw(self.columns * each)
        page = Image.new("L", (picture.shape[1] + 2 * margin, picture.shape[0] + 2 * margin), 255)
        page.paste(Image.fromarray(picture), (margin, margin))
        words = f"columns={self.columns} rows={self.rows} square={self.square:g}   print at 100 %, then measure: " + (
            f"one square is {1e3 * self.square:g} mm"
        )
        ImageDraw.Draw(page).text((margin, page.height - margin + 20), words, 0, ImageFont.load_default(44))
        page.save(path, resolution=dots * _INCH, dpi=(dots * _INCH, dots * _INCH))
        wide, high = (1e3 * side / dots for side in page.size)
        return f"{path}: {wide:.0f} x {high:.0f} mm, squares of {1e3 * self.square:g} mm. Print it at 100 % and measure"

    def find(self, picture: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Corners of the board in a picture (H, W, 3) uint8.

        Returns:
            (n, 3) where they are on the board [m], z 0, and (n, 2) pixels as OpenCV counts them; None where fewer than
            eight are seen, or all on one line.
        """
        cv2, pattern = require("cv2"), self.pattern()
        parameters = cv2.aruco.DetectorParameters()
        parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_SUBPIX
        detector = cv2.aruco.CharucoDetector(pattern, cv2.aruco.CharucoParameters(), parameters)
        pixels, numbers, _, _ = detector.detectBoard(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY))
        if numbers is None or len(numbers) < _FEW:
            return None
        points = np.asarray(pattern.getChessboardCorners(), float)[numbers.ravel()]
        flat = np.linalg.svd(points[:, :2] - points[:, :2].mean(0), compute_uv=False)
        if flat[1] < 1.5 * self.square:
            return None
        return points, pixels.reshape(-1, 2).astype(float)
