"""Cross-entropy search: a Gaussian that moves to the best of its own samples."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.state import Saved


class CrossEntropy(Saved):
    """Maximises a noisy function of D numbers.

    Candidate 0 of every generation is the mean itself, so that its score is known.

    Source: De Boer et al., A Tutorial on the Cross-Entropy Method; smoothing of mean and deviation as there.
    """

    saved = ("mean", "std", "_least")

    def __init__(self, mean: Tensor, std: Tensor, generator: torch.Generator, *, elites: float, smooth: float) -> None:
        """Begin at `mean` with deviations `std`, both (D,).

        Args:
            mean: first guess.
            std: first deviations.
            generator: of the samples.
            elites: share of a generation that the Gaussian moves to.
            smooth: how far it moves in one generation, in (0, 1].
        """
        self.mean, self.std, self._generator = mean.clone(), std.clone(), generator
        self._least, self._elites, self._smooth = 0.02 * std, elites, smooth

    def ask(self, count: int) -> Tensor:
        """(D, P) candidates."""
        draw = torch.randn(len(self.mean), count, generator=self._generator, dtype=self.mean.dtype)
        draw[:, 0] = 0.0
        return self.mean[:, None] + self.std[:, None] * draw

    def tell(self, candidates: Tensor, score: Tensor) -> None:
        """Move towards the best candidates of (D, P) with scores (P,)."""
        best = candidates[:, score.topk(max(2, round(self._elites * len(score)))).indices]
        self.mean += self._smooth * (best.mean(1) - self.mean)
        self.std += self._smooth * (best.std(1) - self.std)
        self.std = torch.maximum(self.std, self._least)

    def restart(self, std: float) -> None:
        """Go on from the present mean with this deviation of every number."""
        self.std.fill_(std)
        self._least = 0.02 * self.std
