"""Continuous actions as codes from coarse to fine: at every level an interval is cut into bins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EDGE = 0.99999
"""Actions are clipped to this size, so that 1 lies inside the last bin."""


@dataclass(frozen=True)
class ActionCodes:
    """L levels of B bins per action dimension; decoded actions are off by at most B^-L.

    Intervals are kept as integers - at level l the interval [-1, 1] is cut into B^l cells, of which a code names one -
    so that encoding what was decoded gives the same code at every edge. Repeated float arithmetic does not.

    Attributes:
        levels: L.
        bins: B.

    Raises:
        ValueError: fewer than one level or two bins.

    Source: Seo et al., Continuous Control with Coarse-to-Fine RL (CQN); the ARSQ code.
    """

    levels: int
    bins: int

    def __post_init__(self) -> None:
        if self.levels < 1 or self.bins < 2:
            raise ValueError(f"levels, bins are {self.levels}, {self.bins}; expected at least 1 and 2")

    def encode(self, action: Tensor) -> Tensor:
        """(..., D) in [-1, 1] -> (..., L, D) int64 codes."""
        cells = self.bins**self.levels
        place = (action.double().clamp(-EDGE, EDGE) + 1.0) * (0.5 * cells)
        cell = place.floor().long().clamp_(0, cells - 1)
        codes = [(cell // self.bins ** (self.levels - 1 - level)) % self.bins for level in range(self.levels)]
        return torch.stack(codes, dim=-2)

    def decode(self, code: Tensor) -> Tensor:
        """(..., L', D) codes of the first L' <= L levels -> (..., D) float32 midpoints; zeros for no level."""
        cell = torch.zeros_like(code[..., 0, :]) if code.shape[-2] else code.new_zeros(*code.shape[:-2], code.shape[-1])
        for level in range(code.shape[-2]):
            cell = cell * self.bins + code[..., level, :]
        return ((2.0 * cell.double() + 1.0) / self.bins ** code.shape[-2] - 1.0).float()

    def contexts(self, code: Tensor) -> Tensor:
        """What is known of an action before each of its L D codes is chosen, level by level, dimension by dimension.

        Args:
            code: (..., L, D).

        Returns:
            (..., L D, D) midpoints of the present intervals: dimensions before the d-th are one level finer. All 0 at
            the start.
        """
        dims = code.shape[-1]
        mids = torch.stack([self.decode(code[..., :level, :]) for level in range(self.levels + 1)], dim=-2)
        finer = torch.ones(dims, dims, dtype=torch.bool, device=code.device).tril(-1)  # [d, e]: e < d
        rows = [
            torch.where(finer, mids[..., level + 1, None, :], mids[..., level, None, :]) for level in range(self.levels)
        ]
        return torch.cat(rows, dim=-2)
