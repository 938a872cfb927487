"""Value heads: how a critic's outputs mean a value, and what loss moves them, with closed-form gradients.

Every head maps outputs (E, B, O) to values (E, B). The categorical heads spread a scalar target over bins and learn by
cross-entropy. All read and write float32 (or float64): differences of erf vanish in shorter types.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

HEADS = ("mse", "twohot", "hlgauss")


class ValueHead(Protocol):
    """What the learners ask of a head.

    Attributes:
        outputs: width O of the network's output.
        low: smallest value that it can say, -inf if unbounded.
        high: largest value that it can say.
    """

    outputs: int
    low: float
    high: float

    def value(self, out: Tensor) -> Tensor:
        """(E, B, O) outputs -> (E, B) values."""
        ...

    def value_grad(self, out: Tensor, d_value: Tensor) -> Tensor:
        """Gradient by the outputs (E, B, O) of a loss whose gradient by the values is `d_value` (E, B)."""
        ...

    def loss_grad(self, out: Tensor, target: Tensor) -> Tensor:
        """Gradient (E, B, O) of the sum over members of the batch-mean loss towards `target` (B,)."""
        ...

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """() the loss itself: mean over batch, sum over members."""
        ...

    def diagnostics(self, out: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Signs of a badly chosen support; empty for heads without one."""
        ...


class MseHead:
    """One output is the value; half the squared error is the loss."""

    outputs = 1
    low = -math.inf
    high = math.inf

    def value(self, out: Tensor) -> Tensor:
        """(E, B, 1) -> (E, B)."""
        return out[..., 0]

    def value_grad(self, out: Tensor, d_value: Tensor) -> Tensor:
        """(E, B) -> (E, B, 1)."""
        return d_value[..., None]

    def loss_grad(self, out: Tensor, target: Tensor) -> Tensor:
        """(out - target) / B."""
        return (out - target[:, None]).mul_(1.0 / target.shape[0])

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Sum over members of mean over the batch of half the squared error."""
        return (out[..., 0] - target).square().mean(-1).sum() * 0.5

    def diagnostics(self, out: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Nothing to warn of."""
        return {}


class CategoricalHead:
    """Logits over bins with fixed centres; cross-entropy towards a spread of the scalar target."""

    def __init__(self, low: float, high: float, centres: Tensor, spread: Callable[[Tensor], Tensor]) -> None:
        """Use `two_hot_head`, `hl_gauss_head` or `build_head`.

        Args:
            low: targets are clamped up to it.
            high: targets are clamped down to it.
            centres: (O,) value of each bin.
            spread: (B,) targets inside the support -> (B, O) probabilities.
        """
        self.low, self.high, self.outputs = low, high, centres.shape[0]
        self.centres = centres
        self._spread = spread

    def spread(self, target: Tensor) -> Tensor:
        """(B,) scalar targets, clamped to the support first -> (B, O) probabilities."""
        return self._spread(target.clamp(self.low, self.high))

    def value(self, out: Tensor) -> Tensor:
        """Mean of the bin centres under softmax(out)."""
        return out.softmax(-1) @ self.centres

    def value_grad(self, out: Tensor, d_value: Tensor) -> Tensor:
        """p_i (c_i - value) times the incoming gradient."""
        p = out.softmax(-1)
        value = p @ self.centres
        return p * (self.centres - value[..., None]) * d_value[..., None]

    def loss_grad(self, out: Tensor, target: Tensor) -> Tensor:
        """(softmax(out) - spread(target)) / B."""
        return (out.softmax(-1) - self.spread(target)).mul_(1.0 / target.shape[0])

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy: mean over the batch, sum over members."""
        return -(self.spread(target) * out.log_softmax(-1)).sum(-1).mean(-1).sum()

    def diagnostics(self, out: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`head_clamped`: fraction of targets outside the support; `head_edge_mass`: mass in the two end bins.

        More than 0.01 and 0.05 over many updates say that the support is too narrow.
        """
        p = out.softmax(-1)
        outside = (target < self.low) | (target > self.high)
        return {"head_clamped": outside.float().mean(), "head_edge_mass": (p[..., 0] + p[..., -1]).mean()}


def two_hot_head(low: float, high: float, bins: int, *, device: str | torch.device = "cpu") -> CategoricalHead:
    """Target shared linearly by two neighbouring atoms of linspace(low, high, bins): its mean is exact.

    Source: Bellemare et al., A Distributional Perspective on RL (projection); the lower atom is capped at O - 2, so
    that a target on the upper edge needs no special case.
    """
    atoms = torch.linspace(low, high, bins, device=device)

    def spread(target: Tensor) -> Tensor:
        position = (target - low) * ((bins - 1) / (high - low))
        lower = position.floor().clamp_(0, bins - 2)
        share = (position - lower)[:, None]
        index = lower.long()[:, None]
        p = target.new_zeros(target.shape[0], bins)
        return p.scatter_(1, index, 1.0 - share).scatter_(1, index + 1, share)

    return CategoricalHead(low, high, atoms, spread)


def hl_gauss_head(
    low: float, high: float, bins: int, *, sigma_ratio: float = 0.75, device: str | torch.device = "cpu"
) -> CategoricalHead:
    """Target blurred to a Gaussian, its mass per bin of linspace(low, high, bins + 1) being the probabilities.

    p_i = (F_{i+1} - F_i) / (F_m - F_0) with F the normal distribution function at the bin edges, the target clamped to
    the support first (a target far outside would give 0/0). Near an edge the mean is biased inwards: leave a margin of
    three sigma.

    Source: Farebrother et al., Stop Regressing: Training Value Functions via Classification (sigma / width = 0.75).
    """
    edges = torch.linspace(low, high, bins + 1, device=device)
    sharpness = 1.0 / (math.sqrt(2.0) * sigma_ratio * (high - low) / bins)

    def spread(target: Tensor) -> Tensor:
        f = torch.erf((edges - target[:, None]) * sharpness)
        return (f[:, 1:] - f[:, :-1]) / (f[:, -1:] - f[:, :1])

    return CategoricalHead(low, high, (edges[1:] + edges[:-1]) / 2, spread)


def build_head(
    kind: str,
    *,
    low: float,
    high: float,
    bins: int = 101,
    sigma_ratio: float = 0.75,
    device: str | torch.device = "cpu",
) -> ValueHead:
    """A head by name.

    Args:
        kind: "mse" (ignores the rest), "twohot" or "hlgauss".
        low: lower end of the support.
        high: upper end.
        bins: number of outputs of the categorical heads.
        sigma_ratio: HL-Gauss blur in bin widths.
        device: torch device.

    Raises:
        ValueError: unknown name or empty support.
    """
    if kind not in HEADS:
        raise ValueError(f"value_head is '{kind}', expected one of {', '.join(HEADS)}")
    if kind == "mse":
        return MseHead()
    if not low < high or bins < 2 or sigma_ratio <= 0:
        raise ValueError(
            f"value head support [{low}, {high}] with {bins} bins and sigma_ratio {sigma_ratio} is empty; "
            "expected low < high, bins >= 2, sigma_ratio > 0"
        )
    if kind == "twohot":
        return two_hot_head(low, high, bins, device=device)
    return hl_gauss_head(low, high, bins, sigma_ratio=sigma_ratio, device=device)


class RewardScale:
    """Divisor of rewards that keeps values inside [-v_max, v_max] without tuning (automatic support).

    The rule of the source is max(std of returns, max |return| / v_max), over returns of whole trajectories. A learner
    sees single transitions, so returns are estimated by the balance of a stationary stream,
    E|G| = E|r| / (1 - E discount), which honours terminations, and by the largest single reward. `headroom` leaves
    space for the policy to get better. Only rewards enter, never predictions: no feedback from critic to scale.

    Source: Lee et al., Hyperspherical Normalization for Scalable Deep RL (SimbaV2), reward scaling; estimate ours.
    """

    def __init__(self, v_max: float, *, headroom: float = 2.0, device: str | torch.device = "cpu") -> None:
        """Start without data; `scale` is 1 until the first `observe`."""
        self.v_max, self.headroom = v_max, headroom
        # count, sum of |r|, sum of (1 - discount), largest |r|
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
        self.scale = 1.0

    @torch.no_grad()
    def observe(self, reward: Tensor, discount: Tensor) -> None:
        """Take in one batch: reward (B,), discount (B,)."""
        size = reward.abs().double()
        self.sums[:3] += torch.stack([torch.ones_like(size).sum(), size.sum(), (1.0 - discount.double()).sum()])
        self.sums[3] = torch.maximum(self.sums[3], size.max())
        _, total, decay, largest = self.sums.tolist()
        expected = self.headroom * total / max(decay, 1e-6)
        self.scale = max(expected, largest, 1e-8) / self.v_max

    def state_dict(self) -> dict[str, Tensor | float]:
        """Running sums."""
        return {"sums": self.sums.clone(), "scale": self.scale}

    def load_state_dict(self, state: dict[str, Tensor | float]) -> None:
        """Copy in place."""
        self.sums.copy_(torch.as_tensor(state["sums"]))
        self.scale = float(state["scale"])
