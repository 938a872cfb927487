"""Running standardisation of observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.state import Saved


class DataNorm(Saved):
    """Standardises vectors by the mean and variance of all data seen, in NumPy and torch alike.

    Statistics are float64 and are merged batch by batch, so that the result does not depend on how the data was cut
    into batches, and large offsets cost no precision. A component whose standard deviation is below `floor` passes with
    scale 1: dividing by almost nothing would blow up the first value that differs.

    Args:
        shape: of one observation.
        clip: bound of the standardised values, or None.
        floor: smallest standard deviation that is divided by.

    Source: Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances (1979).
    """

    saved = ("_count", "_mean", "square", "frozen")

    def __init__(self, shape: tuple[int, ...] | int, *, clip: float | None = 10.0, floor: float = 1e-6) -> None:
        if clip is not None and not clip > 0:
            raise ValueError(f"clip is {clip}, expected a positive bound or None")
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.clip, self.floor = clip, floor
        self.frozen = False
        """True: `update` does nothing."""
        self._count = 0
        self._mean = np.zeros(self.shape)
        self.square = np.zeros(self.shape)
        """Sum of squared distances from the mean, float64."""
        self._cache: dict[Any, tuple[Any, Any]] = {}

    @property
    def count(self) -> int:
        """Observations seen."""
        return self._count

    @property
    def mean(self) -> np.ndarray:
        """Mean per component, float64."""
        return self._mean.copy()

    @property
    def std(self) -> np.ndarray:
        """What the components are divided by, float64: the standard deviation, or 1 below the floor or without data."""
        if self._count < 2:
            return np.ones(self.shape)
        return np.where(self.deviation < self.floor, 1.0, self.deviation)

    @property
    def deviation(self) -> np.ndarray:
        """Standard deviation per component, float64."""
        return np.sqrt(self.square / max(self._count, 1))

    def update(self, batch: np.ndarray | Tensor) -> None:
        """Merge a batch (..., *shape) into the statistics.

        Raises:
            ValueError: the trailing shape differs, or a value is not finite.
        """
        if self.frozen:
            return
        data = np.asarray(batch) if isinstance(batch, np.ndarray) else batch.detach().cpu().numpy()
        if data.shape[data.ndim - len(self.shape) :] != self.shape:
            raise ValueError(f"batch has shape {data.shape}, expected (..., {', '.join(map(str, self.shape))})")
        data = data.reshape(-1, *self.shape).astype(np.float64)
        n = len(data)
        if n == 0:
            return
        mean = data.mean(0)
        square = np.square(data - mean).sum(0)
        if not np.isfinite(square).all():
            bad = np.argwhere(~np.isfinite(data))[0]
            raise ValueError(
                f"batch has a value that is not finite in row {bad[0]}, component {tuple(bad[1:].tolist())}; "
                "one such value would spoil the statistics for good"
            )
        total = self._count + n
        shift = mean - self._mean
        self._mean = self._mean + shift * (n / total)
        self.square = self.square + square + np.square(shift) * (self._count * n / total)
        self._count = total
        self._cache.clear()

    def normalize(self, value: Any) -> Any:
        """(value - mean) / std in float32, clipped; array in, array out, tensor in, tensor out."""
        mean, scale = self._constants(value)
        value = (value - mean) * scale
        return value if self.clip is None else value.clip(-self.clip, self.clip)

    __call__ = normalize

    def after_load(self) -> None:
        """Forget scales of the older statistics."""
        self._cache.clear()

    def _constants(self, value: object) -> tuple[Any, Any]:
        key = value.device if isinstance(value, Tensor) else None
        if key not in self._cache:
            mean, scale = self._mean.astype(np.float32), (1.0 / self.std).astype(np.float32)
            if key is not None:
                mean, scale = torch.from_numpy(mean).to(key), torch.from_numpy(scale).to(key)
            self._cache[key] = mean, scale
        return self._cache[key]
