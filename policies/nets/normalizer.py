"""Running mean and spread of state observations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from robot_rl.state import Saved


class RunningNorm(Saved):
    """(x - mean) / std with moments gathered from the batches that a learner sees.

    Each batch weighs by its size, so the moments settle as data accumulates. Before the first batch it changes
    nothing. The factor 1/std is at most `max_scale`: components that hardly vary are not blown up to noise.
    """

    saved = ("count", "mean", "square", "shift", "scale")

    def __init__(self, size: int, *, max_scale: float = 50.0, device: str | torch.device = "cpu") -> None:
        """Moments of `size` components."""
        self.max_scale = max_scale
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.square = torch.zeros(size, dtype=torch.float64, device=device)  # sum of squared deviations
        self.shift = torch.zeros(size, device=device)
        self.scale = torch.ones(size, device=device)

    @torch.no_grad()
    def observe(self, x: Tensor) -> None:
        """Merge a batch (B, size).

        Source: Chan et al., Algorithms for Computing the Sample Variance (merging of two parts).
        """
        rows = x.double()
        size, mean = rows.shape[0], rows.mean(0)
        delta = mean - self.mean
        total = self.count + size
        self.square += (rows - mean).square().sum(0) + delta.square() * (self.count * size / total)
        self.mean += delta * (size / total)
        self.count.copy_(total)
        self.shift.copy_(self.mean)
        self.scale.copy_((total / self.square.clamp_min(1e-30)).sqrt_().clamp_max_(self.max_scale))

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise (..., size)."""
        return (x - self.shift) * self.scale

    def numpy(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift and scale as arrays that share this object's memory (CPU only)."""
        return self.shift.numpy(), self.scale.numpy()


class FixedNorm(Saved):
    """(x - mean) / (std + eps) with moments of a whole data set, set once before training.

    A component with std below 1e-6 passes with scale 1: with 1 / eps any later change would be blown up a thousand
    times. Until `set` it changes nothing.

    Source: Fujimoto and Gu, A Minimalist Approach to Offline RL (eps 1e-3); the exception for constants is ours.
    """

    saved = ("shift", "scale")

    def __init__(self, size: int, *, eps: float = 1e-3, device: str | torch.device = "cpu") -> None:
        """Identity of `size` components."""
        self.eps = eps
        self.shift = torch.zeros(size, device=device)
        self.scale = torch.ones(size, device=device)

    @torch.no_grad()
    def set(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Take over moments (size,) each."""
        spread = torch.as_tensor(np.asarray(std, np.float32))
        self.shift.copy_(torch.as_tensor(np.asarray(mean, np.float32)))
        self.scale.copy_(torch.where(spread < 1e-6, torch.ones_like(spread), 1.0 / (spread + self.eps)))

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise (..., size)."""
        return (x - self.shift) * self.scale

    def numpy(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift and scale as arrays that share this object's memory (CPU only)."""
        return self.shift.numpy(), self.scale.numpy()
