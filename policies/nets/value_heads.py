"""Value heads: how a critic's outputs mean a value, and what loss moves them, with closed-form gradients.

Every head maps outputs (E, B, O) to values (E, B) and says itself what it learns towards: `backup` turns the target
critics' outputs into a target, (B,) numbers for mse, twohot and hlgauss (minimum of values first, projection after),
(B, O) probabilities for c51, (B, O) quantiles for quantile. All read and write float32 (or float64): differences of erf
vanish in shorter types.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from robot_rl.state import Saved

HEADS = ("mse", "twohot", "hlgauss", "c51", "quantile")


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

    def backup(
        self, out: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None, reduce: str = "min"
    ) -> Tensor:
        """The target r + discount (value of s' - cost), in the form that `loss` reads.

        Args:
            out: (E, B, O) of the target critics at s'.
            reward: (B,).
            discount: (B,).
            cost: (B,) entropy cost taken off the value of s', or None.
            reduce: "min" or "mean" over members.
        """
        ...

    def scalar(self, target: Tensor) -> Tensor:
        """(B,) mean of a target from `backup`."""
        ...

    def loss(self, out: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """() loss of outputs (E, B, O) towards a target of `backup`, or (B,): mean over rows times their weights (B,),
        sum over members."""
        ...

    def diagnostics(self, out: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Signs of a badly chosen support; empty for heads without one."""
        ...


def _scalar_backup(value: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None, reduce: str) -> Tensor:
    value = value.amin(0) if reduce == "min" else value.mean(0)
    if cost is not None:
        value = value.sub_(cost)
    return torch.addcmul(reward, discount, value)


def _total(each: Tensor, weight: Tensor | None) -> Tensor:
    """() mean over rows of losses (E, B), sum over members."""
    return (each if weight is None else each * weight).mean(-1).sum()


class MseHead:
    """One output is the value; half the squared error is the loss."""

    outputs = 1
    low = -math.inf
    high = math.inf

    def value(self, out: Tensor) -> Tensor:
        """(E, B, 1) -> (E, B)."""
        return out[..., 0]

    def backup(
        self, out: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None, reduce: str = "min"
    ) -> Tensor:
        """(B,) target."""
        return _scalar_backup(self.value(out), reward, discount, cost, reduce)

    def scalar(self, target: Tensor) -> Tensor:
        """The target itself."""
        return target

    def loss(self, out: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Sum over members of mean over the batch of half the squared error."""
        return _total(0.5 * (out[..., 0] - target).square(), weight)

    def diagnostics(self, out: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Nothing to warn of."""
        return {}


class CategoricalHead:
    """Logits over bins with fixed centres; cross-entropy towards a spread of the scalar target."""

    def __init__(
        self,
        low: float,
        high: float,
        centres: Tensor,
        spread: Callable[[Tensor], Tensor],
        *,
        symlog: bool = False,
    ) -> None:
        """Use `two_hot_head`, `hl_gauss_head` or `build_head`.

        Args:
            low: targets are clamped up to it.
            high: targets are clamped down to it.
            centres: (O,) value of each bin.
            spread: (B,) targets inside the support -> (B, O) probabilities.
            symlog: low, high and centres are symlog of values. The value is then symexp of a mean, somewhat below the
                mean of symexp where predictions are wide. Source: Hansen et al., TD-MPC2 (range [-10, 10]).
        """
        self.low, self.high, self.outputs = low, high, centres.shape[0]
        self.centres, self.symlog = centres, symlog
        self._spread = spread

    def spread(self, target: Tensor) -> Tensor:
        """(B,) scalar targets, clamped to the support first -> (B, O) probabilities."""
        return self._spread(self._inside(target))

    def _inside(self, target: Tensor) -> Tensor:
        """Targets on the axis of the bins, clamped to the support."""
        return (symlog(target) if self.symlog else target).clamp(self.low, self.high)

    def value(self, out: Tensor) -> Tensor:
        """Mean of the bin centres under softmax(out); back from symlog, where the bins lie there."""
        mean = out.softmax(-1) @ self.centres
        return symexp(mean) if self.symlog else mean

    def backup(
        self, out: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None, reduce: str = "min"
    ) -> Tensor:
        """(B,) target: the minimum of the values, projected later."""
        return _scalar_backup(self.value(out), reward, discount, cost, reduce)

    def scalar(self, target: Tensor) -> Tensor:
        """(B,) mean of a target."""
        return target if target.dim() == 1 else target @ self.centres

    def _probabilities(self, target: Tensor) -> Tensor:
        return self.spread(target) if target.dim() == 1 else target

    def loss(self, out: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Cross-entropy: mean over the batch, sum over members."""
        return _total(-(self._probabilities(target) * out.log_softmax(-1)).sum(-1), weight)

    def diagnostics(self, out: Tensor, target: Tensor) -> dict[str, Tensor]:
        """`head_clamped`: fraction of targets outside the support; `head_edge_mass`: mass in the two end bins.

        More than 0.01 and 0.05 over many updates say that the support is too narrow. A target that is a distribution
        was clamped when it was made; only its edge mass tells.
        """
        p = out.softmax(-1)
        edge = {"head_edge_mass": (p[..., 0] + p[..., -1]).mean()}
        if target.dim() > 1:
            return edge
        target = symlog(target) if self.symlog else target
        outside = (target < self.low) | (target > self.high)
        return {"head_clamped": outside.float().mean(), **edge}


def project(atoms: Tensor, probability: Tensor, low: float, high: float) -> Tensor:
    """Move a distribution from its atoms onto the fixed support linspace(low, high, M).

    Args:
        atoms: (..., M) where the masses lie; clamped to the support.
        probability: (..., M) the masses.
        low: first atom of the support.
        high: last atom.

    Returns:
        (..., M) masses on the support; they sum to what came in, and the mean is kept where nothing was clamped.

    Source: Bellemare et al., A Distributional Perspective on RL, equation 7. The lower neighbour is capped at M - 2,
    so that an atom on a grid point needs no special case.
    """
    count = atoms.shape[-1]
    position = (atoms.clamp(low, high) - low) * ((count - 1) / (high - low))
    lower = position.floor().clamp(max=count - 2)
    share = position - lower
    index = lower.long()
    out = torch.zeros_like(probability)
    return out.scatter_add(-1, index, probability * (1.0 - share)).scatter_add(-1, index + 1, probability * share)


class C51Head(CategoricalHead):
    """Categorical distribution of the return over fixed atoms; the target is the projected distribution of s'.

    Source: Bellemare et al., A Distributional Perspective on RL.
    """

    def project(self, p: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None) -> Tensor:
        """Distribution of r + discount (Z - cost) on the atoms, sums to one.

        Args:
            p: (B, O) probabilities of Z at s'.
            reward: (B,).
            discount: (B,) 0 where terminated.
            cost: (B,) or None.
        """
        atoms = self.centres.expand(len(p), -1) if cost is None else self.centres - cost[:, None]
        return project(torch.addcmul(reward[:, None], discount[:, None], atoms), p, self.low, self.high)

    def backup(
        self, out: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None, reduce: str = "min"
    ) -> Tensor:
        """(B, O): of each row the member with the smaller mean, or the members' average, projected."""
        p = out.softmax(-1)
        if reduce == "min":
            chosen = (p @ self.centres).argmin(0)
            p = p[chosen, torch.arange(p.shape[1], device=p.device)]
        else:
            p = p.mean(0)
        return self.project(p, reward, discount, cost)


class QuantileHead:
    """Quantiles of the return at the midpoints (i + 0.5) / O; quantile Huber loss.

    Source: Dabney et al., Distributional RL with Quantile Regression; Nauman et al., Bigger, Regularized, Optimistic
    (O = 100, kappa = 1, value = mean of the quantiles).
    """

    low = -math.inf
    high = math.inf

    def __init__(self, outputs: int, *, kappa: float = 1.0, device: str | torch.device = "cpu") -> None:
        """Midpoints of `outputs` quantiles; `kappa`: where the loss turns from square to linear."""
        self.outputs, self.kappa = outputs, kappa
        self.midpoint = (torch.arange(outputs, device=device, dtype=torch.float32) + 0.5) / outputs

    def value(self, out: Tensor) -> Tensor:
        """Mean of the quantiles."""
        return out.mean(-1)

    def backup(
        self, out: Tensor, reward: Tensor, discount: Tensor, cost: Tensor | None = None, reduce: str = "min"
    ) -> Tensor:
        """(B, O): quantiles of the member with the smaller mean, or their average, moved."""
        if reduce == "min":
            q = out[out.mean(-1).argmin(0), torch.arange(out.shape[1], device=out.device)]
        else:
            q = out.mean(0)
        if cost is not None:
            q = q - cost[:, None]
        return torch.addcmul(reward[:, None], discount[:, None], q)

    def scalar(self, target: Tensor) -> Tensor:
        """(B,) mean of a target."""
        return target if target.dim() == 1 else target.mean(-1)

    def _weigh(self, out: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Differences target - quantile (E, B, O, O'), and |tau - 1(difference < 0)|."""
        goal = target[:, None] if target.dim() == 1 else target
        diff = goal[:, None, :] - out[..., None]
        return diff, (self.midpoint[:, None] - (diff < 0).to(out.dtype)).abs()

    def loss(self, out: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Sum over quantiles of the mean over targets; mean over the batch, sum over members."""
        diff, slope = self._weigh(out, target)
        size = diff.abs()
        huber = torch.where(size <= self.kappa, 0.5 * diff.square(), self.kappa * (size - 0.5 * self.kappa))
        return _total((slope * huber / self.kappa).mean(-1).sum(-1), weight)

    def diagnostics(self, out: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Nothing to warn of."""
        return {}


def symlog(x: Tensor) -> Tensor:
    """sign(x) ln(1 + |x|)."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """sign(x) (e^|x| - 1), the inverse of `symlog`."""
    return x.sign() * x.abs().expm1()


def two_hot_head(
    low: float,
    high: float,
    bins: int,
    *,
    device: str | torch.device = "cpu",
    symlog: bool = False,
    kind: type[CategoricalHead] = CategoricalHead,
) -> CategoricalHead:
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

    return kind(low, high, atoms, spread, symlog=symlog)


def hl_gauss_head(
    low: float,
    high: float,
    bins: int,
    *,
    sigma_ratio: float = 0.75,
    device: str | torch.device = "cpu",
    symlog: bool = False,
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

    return CategoricalHead(low, high, (edges[1:] + edges[:-1]) / 2, spread, symlog=symlog)


def build_head(
    kind: str,
    *,
    low: float,
    high: float,
    bins: int = 101,
    sigma_ratio: float = 0.75,
    symlog: bool = False,
    device: str | torch.device = "cpu",
) -> ValueHead:
    """A head by name.

    Args:
        kind: "mse" (ignores the rest), "twohot", "hlgauss", "c51" or "quantile" (no support).
        low: lower end of the support.
        high: upper end.
        bins: number of outputs of the categorical heads.
        sigma_ratio: HL-Gauss blur in bin widths.
        symlog: `low` and `high` are symlog of values ("twohot" and "hlgauss").
        device: torch device.

    Raises:
        ValueError: unknown name or empty support.
    """
    if kind not in HEADS:
        raise ValueError(f"value_head is '{kind}', expected one of {', '.join(HEADS)}")
    if kind == "mse":
        return MseHead()
    if symlog and kind not in ("twohot", "hlgauss"):
        raise ValueError(f"symlog bins are for 'twohot' and 'hlgauss', not for '{kind}'")
    if kind == "quantile":
        if bins < 1:
            raise ValueError(f"bins is {bins}, expected at least one quantile")
        return QuantileHead(bins, device=device)
    if not low < high or bins < 2 or sigma_ratio <= 0:
        raise ValueError(
            f"value head support [{low}, {high}] with {bins} bins and sigma_ratio {sigma_ratio} is empty; "
            "expected low < high, bins >= 2, sigma_ratio > 0"
        )
    if kind == "c51":
        return two_hot_head(low, high, bins, device=device, kind=C51Head)
    if kind == "twohot":
        return two_hot_head(low, high, bins, device=device, symlog=symlog)
    return hl_gauss_head(low, high, bins, sigma_ratio=sigma_ratio, device=device, symlog=symlog)


class RewardScale(Saved):
    """Divisor of rewards that keeps values inside [-v_max, v_max] without tuning (automatic support).

    The rule of the source is max(std of returns, max |return| / v_max), over returns of whole trajectories. A learner
    sees single transitions, so returns are estimated by the balance of a stationary stream,
    E|G| = E|r| / (1 - E discount), which honours terminations, and by the largest single reward. `headroom` leaves
    space for the policy to get better. Only rewards enter, never predictions: no feedback from critic to scale.

    Source: Lee et al., Hyperspherical Normalization for Scalable Deep RL (SimbaV2), reward scaling; estimate ours.
    """

    saved = ("sums", "scale")

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
