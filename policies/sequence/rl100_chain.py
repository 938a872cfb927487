"""The chain of denoising steps as a sequence of Gaussian decisions: samples with latents, and policy gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.policies.nets.diffusion import NoiseSchedule, ddim_step, step_log_density

Noise = Callable[[Tensor, Tensor, float], Tensor]
"""(state (B, S), x (B, F), t in [0, 1]) -> (B, F) predicted noise."""
_CUT = 3.0  # deviations of a draw
_LOG_RANGE = (-5.0, 2.0)


@dataclass(frozen=True)
class DenoisingChain:
    """K DDIM steps, the last K' of them open to learning.

    Attributes:
        schedule: noise levels.
        steps: K.
        tuned: K'.
        eta: 1 = the variance of DDPM.
        floor: smallest standard deviation, in samples and densities alike.
        reduce: "mean" or "sum" of an action's log-densities; with "mean" a clip range of 0.01 allows the density of the
            whole chunk to change by e^(0.01 entries).

    Raises:
        ValueError: lengths out of order, or a step without density.

    Source: Ren et al., Diffusion Policy Policy Optimization (two-layer decision process, floor, cut at 3 deviations,
        log-densities clamped to [-5, 2] per element and averaged).
    """

    schedule: NoiseSchedule
    steps: int
    tuned: int
    eta: float = 1.0
    floor: float = 0.1
    reduce: str = "mean"

    def __post_init__(self) -> None:
        if not 1 <= self.tuned <= self.steps:
            raise ValueError(f"tuned is {self.tuned}, expected 1 ... steps = {self.steps}: the last steps of the chain")
        if self.floor <= 0.0:
            raise ValueError(
                f"floor is {self.floor}, expected above 0: a deterministic step has no density to learn by"
            )
        if self.reduce not in ("mean", "sum"):
            raise ValueError(f"reduce is '{self.reduce}', expected 'mean' or 'sum'")

    @property
    def order(self) -> list[tuple[int, int]]:
        """(step, following step) of all K, noisiest first."""
        indices = self.schedule.indices(self.steps)
        return list(zip(indices, [*indices[1:], -1]))

    @property
    def times(self) -> list[float]:
        """t of the K' tuned steps."""
        return [index / len(self.schedule.beta) for index, _ in self.order[-self.tuned :]]

    @torch.no_grad()
    def sample(self, noise_of: Noise, state: Tensor, start: Tensor, generator: torch.Generator) -> Tensor:
        """(B, K' + 1, F) latents: the one that the first tuned step reads, ..., the sample (not clipped).

        Args:
            noise_of: the policy that acts.
            state: (B, S).
            start: (B, F) standard normal.
            generator: of the draws along the chain.
        """
        x, kept = start, []
        for i, (index, following) in enumerate(self.order):
            if i >= self.steps - self.tuned:
                kept.append(x)
            predicted = noise_of(state, x, index / len(self.schedule.beta))
            step = ddim_step(self.schedule, x, predicted, index, following, eta=self.eta)
            draw = torch.randn(x.shape, generator=generator, device=x.device).clamp_(-_CUT, _CUT)
            x = step.mean + max(step.std, self.floor) * draw
        return torch.stack([*kept, x], 1)

    def log_density(self, predicted: Tensor, latents: Tensor, executed: Tensor) -> Tensor:
        """(B, K') log-density of every tuned step over the executed entries.

        Args:
            predicted: (B, K', F) noise at latents[:, :-1].
            latents: (B, K' + 1, F).
            executed: (B, F) 1 for entries that were executed.
        """
        found = []
        for i, (index, following) in enumerate(self.order[-self.tuned :]):
            step = ddim_step(self.schedule, latents[:, i], predicted[:, i], index, following, eta=self.eta)
            each = step_log_density(step, latents[:, i + 1], floor=self.floor).clamp(*_LOG_RANGE) * executed
            total = each.sum(-1)
            found.append(total / executed.sum(-1).clamp_min(1.0) if self.reduce == "mean" else total)
        return torch.stack(found, 1)


def chain_loss(
    logp: Tensor, old: Tensor, advantage: Tensor, clip: Tensor, discount: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """-mean min(r A, clip(r) A) over rows and steps, r = exp(logp - old).

    Args:
        logp: (B, K') noisiest step first.
        old: (B, K') of the policy that acted.
        advantage: (B,) of the decision.
        clip: (K',) clip range of each step.
        discount: gamma_d: the i-th tuned step's advantage is gamma_d^(K' - 1 - i) A, so that the cleanest has weight 1.

    Returns:
        () loss; "kl" estimate and "clipped" share.
    """
    steps = logp.shape[1]
    weight = discount ** torch.arange(steps - 1, -1, -1, dtype=logp.dtype, device=logp.device)
    gain = advantage[:, None] * weight
    log_ratio = logp - old
    ratio = log_ratio.exp()
    limited = torch.maximum(torch.minimum(ratio, 1.0 + clip), 1.0 - clip)
    loss = -torch.minimum(ratio * gain, limited * gain).mean()
    with torch.no_grad():
        facts = {"kl": (ratio - 1.0 - log_ratio).mean(), "clipped": ((ratio - 1.0).abs() > clip).float().mean()}
    return loss, facts
