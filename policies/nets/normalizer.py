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
    active = True

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


FAR = 10.0
"""A component is far where its mean is beyond this, and beyond this many times its deviation."""


class Centre(Saved):
    """x - shift, of components that stay far from 0, such as a height of -300 m that varies by one: what is constant
    there would drown the others in a network's first layer.

    Decided once, from the first batch that is observed, and kept. Where no component is far it changes no bit and has
    no state (`active` is False).

    Args:
        size: of the observation.
        device: torch device.

    Attributes:
        active: whether some component is moved.
        open: whether the next batch decides.
    """

    saved = ("shift",)

    def __init__(self, size: int, *, device: str | torch.device = "cpu") -> None:
        self.shift = torch.zeros(size, device=device)
        self.active, self.open = False, True

    @torch.no_grad()
    def observe(self, x: Tensor) -> None:
        """Decide by a batch (B, size), where nothing is decided yet."""
        if not self.open:
            return
        self.open = False
        mean, spread = x.double().mean(0), x.double().std(0, correction=0)
        far = (mean.abs() > FAR) & (mean.abs() > FAR * spread)
        self.active = bool(far.any())
        self.shift.copy_(torch.where(far, mean, 0.0))

    def __call__(self, x: Tensor) -> Tensor:
        """(..., size) moved, or the very same."""
        return x - self.shift if self.active else x

    def numpy(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift, which shares this object's memory (CPU only), and scale."""
        return self.shift.numpy(), np.ones(len(self.shift), np.float32)


class FixedNorm(Saved):
    """(x - mean) / (std + eps) with moments of a whole data set, set once before training.

    A component with std below 1e-6 passes with scale 1: with 1 / eps any later change would be blown up a thousand
    times. Until `set` it changes nothing.

    Source: Fujimoto and Gu, A Minimalist Approach to Offline RL (eps 1e-3); the exception for constants is ours.
    """

    saved = ("shift", "scale")
    active = True

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
