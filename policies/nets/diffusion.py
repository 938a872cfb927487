"""Denoising of chunks: cosine schedule, DDIM steps with log-densities, clip ranges along the chain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class NoiseSchedule:
    """Noise levels of N steps.

    Attributes:
        beta: (N,) float64.
        alpha_bar: (N,) product of 1 - beta; 1 stands for "no noise left" behind the last step.
    """

    beta: Tensor
    alpha_bar: Tensor

    @classmethod
    def cosine(cls, steps: int, *, largest: float = 0.999) -> NoiseSchedule:
        """beta_i = min(1 - f((i + 1) / N) / f(i / N), largest), f(u) = cos^2(((u + 0.008) / 1.008) pi / 2).

        Source: Nichol and Dhariwal, Improved DDPM (squaredcos_cap_v2).
        """
        if steps < 1:
            raise ValueError(f"the schedule has {steps} steps, expected at least 1")
        u = torch.arange(steps + 1, dtype=torch.float64) / steps
        f = ((u + 0.008) / 1.008 * math.pi / 2).cos().square()
        beta = (1.0 - f[1:] / f[:-1]).clamp_max(largest)
        return cls(beta, (1.0 - beta).cumprod(0))

    def level(self, index: int) -> float:
        """alpha_bar of a step; 1 for index -1."""
        return 1.0 if index < 0 else float(self.alpha_bar[index])

    def indices(self, count: int) -> list[int]:
        """`count` evenly spaced steps, noisiest first: of 100 and 10, 90, 80, ..., 0.

        Raises:
            ValueError: more steps than the schedule has.
        """
        total = len(self.beta)
        if not 1 <= count <= total:
            raise ValueError(f"sampling takes {count} steps, expected 1 ... {total}, the steps of the schedule")
        return [i * (total // count) for i in range(count)][::-1]

    def add_noise(self, clean: Tensor, noise: Tensor, index: Tensor) -> Tensor:
        """sqrt(alpha_bar) clean + sqrt(1 - alpha_bar) noise; index (B,)."""
        level = self.alpha_bar.to(clean.device)[index].to(clean.dtype).view(-1, *[1] * (clean.dim() - 1))
        return level.sqrt() * clean + (1.0 - level).sqrt() * noise


@dataclass(frozen=True)
class Denoised:
    """The Gaussian of one step.

    Attributes:
        mean: of the less noisy chunk.
        std: its deviation before any floor; 0 = deterministic.
        clean: estimate of the noiseless chunk, clipped.
    """

    mean: Tensor
    std: float
    clean: Tensor


def ddim_step(
    schedule: NoiseSchedule,
    x: Tensor,
    noise: Tensor,
    index: int,
    following: int,
    *,
    eta: float = 0.0,
    clip: float = 1.0,
) -> Denoised:
    """From step `index` to the less noisy step `following` (-1 = the end).

    clean = (x - sqrt(1 - ab_i) noise) / sqrt(ab_i), clipped; where that changed it, the noise is recomputed, so that
    both belong together. std = eta sqrt((1 - ab_j) / (1 - ab_i)) sqrt(1 - ab_i / ab_j), mean = sqrt(ab_j) clean +
    sqrt(1 - ab_j - std^2) noise.

    Args:
        schedule: noise levels.
        x: (B, ...) noisy chunk.
        noise: (B, ...) predicted noise.
        index: present step.
        following: next step.
        eta: 0 = a function of x, 1 = the variance of DDPM.
        clip: bound of the clean chunk.

    Source: Song et al., Denoising Diffusion Implicit Models, equations 12 and 16; Ren et al., DPPO (clipping).
    """
    here, there = schedule.level(index), schedule.level(following)
    raw = (x - math.sqrt(1.0 - here) * noise) / math.sqrt(here)
    clean = raw.clamp(-clip, clip)
    noise = torch.where(raw == clean, noise, (x - math.sqrt(here) * clean) / math.sqrt(1.0 - here))
    std = eta * math.sqrt((1.0 - there) / (1.0 - here)) * math.sqrt(max(1.0 - here / there, 0.0))
    mean = math.sqrt(there) * clean + math.sqrt(max(1.0 - there - std * std, 0.0)) * noise
    return Denoised(mean, std, clean)


def step_log_density(step: Denoised, x: Tensor, *, floor: float) -> Tensor:
    """log N(x; mean, max(std, floor)) of every element; the floor must be the one that x was drawn with.

    Raises:
        ValueError: the step is deterministic and there is no floor.
    """
    std = max(step.std, floor)
    if std <= 0.0:
        raise ValueError("a deterministic step has no density; sample with eta > 0 or with a floor above 0")
    return -0.5 * ((x - step.mean) / std).square() - math.log(std) - _HALF_LOG_TAU


def denoise_clip(steps: int, *, smallest: float = 0.001, largest: float = 0.01, rate: float = 3.0) -> Tensor:
    """(K',) clip ranges along the fine-tuned chain, noisiest step first.

    smallest + (largest - smallest)(e^(rate i / (K' - 1)) - 1) / (e^rate - 1); a chain of one step has `largest` (the
    source divides by zero there).

    Source: Ren et al., Diffusion Policy Policy Optimization.
    """
    if steps < 1:
        raise ValueError(f"the chain has {steps} steps, expected at least 1")
    if steps == 1:
        return torch.tensor([largest], dtype=torch.float64)
    i = torch.arange(steps, dtype=torch.float64)
    return smallest + (largest - smallest) * torch.expm1(rate * i / (steps - 1)) / math.expm1(rate)


def time_features(t: Tensor, count: int = 16) -> Tensor:
    """(B, count) sines and cosines of t (B,) in [0, 1], frequencies 1 ... 1000."""
    half = count // 2
    frequency = torch.exp(torch.arange(half, dtype=t.dtype, device=t.device) * (math.log(1000.0) / max(half - 1, 1)))
    angle = t[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)
