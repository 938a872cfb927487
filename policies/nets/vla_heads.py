"""Action heads on any backbone's reading: normal, tokens, flow. Each draws a chunk and scores it again later.

A head turns a reading (B, W) into chunks (B, H, A) in normalised units. What it drew is kept in a trace from which
`evaluate` computes the same log-probabilities with gradient, which is what policy gradients need: one for each action
of the chunk (`layout` "step", L = H) or for each of its entries ("token", L = H A). `loss` imitates actions (B, H, A)
where mask (B, H).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.chunks import guided_flow

HEADS = ("gaussian", "token", "flow")
NOISES = ("sde", "cps", "learned")
Guide = tuple[Tensor, Tensor]
"""The running chunk seen from now, (B, H, A), and how firmly each entry is held to it, (B, H): real-time chunking."""

_STD = (0.05, 1.0)
_LEARNED = (0.08, 0.16)
_TIME = 16


@dataclass(frozen=True)
class Drawn:
    """What a head drew.

    Attributes:
        actions: (B, H, A) normalised.
        logp: (B, L).
        trace: what `evaluate` reads.
    """

    actions: Tensor
    logp: Tensor
    trace: dict[str, Tensor]


class GaussianHead(nn.Module):
    """A normal distribution over every entry of the chunk, with one learned deviation for each action.

    Args:
        width: of the reading.
        horizon: H.
        actions: A.
        std: initial deviation; it stays in [.05, 1].
    """

    codec, layout = "gaussian", "step"

    def __init__(self, width: int, horizon: int, actions: int, *, std: float = 0.3) -> None:
        super().__init__()
        self._shape = (horizon, actions)
        self.mean = nn.Linear(width, horizon * actions)
        self.log_std = nn.Parameter(torch.full((actions,), math.log(std)))

    @torch.no_grad()
    def sample(
        self, reading: Tensor, generator: torch.Generator | None, *, deterministic: bool, guide: Guide | None = None
    ) -> Drawn:
        """Draw chunks, or their mode; has no guidance."""
        mean, std = self._normal(reading)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        actions = mean if deterministic else mean + std * noise
        return Drawn(actions, normal_logp(actions, mean, std).sum(-1), {"actions": actions})

    def evaluate(self, reading: Tensor, trace: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, L) log-probabilities and entropies of chunks drawn before."""
        mean, std = self._normal(reading)
        entropy = (0.5 * math.log(2 * math.pi * math.e) + std.log()).sum(-1).expand(mean.shape[:2])
        return normal_logp(trace["actions"], mean, std).sum(-1), entropy

    def loss(self, reading: Tensor, actions: Tensor, mask: Tensor, generator: torch.Generator | None) -> Tensor:
        """Minus the mean log-probability of an entry."""
        mean, std = self._normal(reading)
        return -_masked_mean(normal_logp(actions, mean, std), mask)

    def _normal(self, reading: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(reading).view(len(reading), *self._shape), self.log_std.exp().clamp(*_STD)


class TokenHead(nn.Module):
    """Every entry of the chunk as one of `bins` tokens, all decoded in parallel.

    Sampling and log-probabilities use the same temperature, over the action tokens alone.

    Args:
        width: of the reading.
        horizon: H.
        actions: A.
        bins: tokens; OpenVLA has 256.
        temperature: of samples; 1.6 in SimpleVLA-RL.

    Source: Kim et al., OpenVLA (codec); OpenVLA-OFT (parallel decoding); SimpleVLA-RL (restricted log-probabilities).
    """

    codec, layout = "token", "token"
    centres: Tensor

    def __init__(self, width: int, horizon: int, actions: int, *, bins: int = 256, temperature: float = 1.0) -> None:
        super().__init__()
        if bins < 3 or temperature <= 0:
            raise ValueError(f"bins, temperature are {bins}, {temperature}; expected 3 or more, and above 0")
        self._shape, self.bins, self.temperature = (horizon, actions), bins, temperature
        self.logits = nn.Linear(width, horizon * actions * bins)

    @torch.no_grad()
    def sample(
        self, reading: Tensor, generator: torch.Generator | None, *, deterministic: bool, guide: Guide | None = None
    ) -> Drawn:
        """Draw chunks, or their mode; has no guidance."""
        logp = self._logp(reading)
        if deterministic:
            classes = logp.argmax(-1)
        else:
            drawn = torch.multinomial(logp.exp().flatten(0, 1), 1, generator=generator)
            classes = drawn.view(logp.shape[:2])
        chosen = logp.gather(-1, classes[..., None])[..., 0]
        actions = decode_class(classes, self.bins).view(len(reading), *self._shape)
        return Drawn(actions, chosen, {"tokens": classes})

    def evaluate(self, reading: Tensor, trace: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, L) log-probabilities and entropies of chunks drawn before."""
        logp = self._logp(reading)
        return logp.gather(-1, trace["tokens"][..., None])[..., 0], -(logp.exp() * logp).sum(-1)

    def loss(self, reading: Tensor, actions: Tensor, mask: Tensor, generator: torch.Generator | None) -> Tensor:
        """Mean cross-entropy of an entry, at temperature 1."""
        logits = self.logits(reading).view(-1, self.bins)
        goal = encode_class(actions, self.bins).flatten()
        each = F.cross_entropy(logits, goal, reduction="none").view(actions.shape)
        return _masked_mean(each, mask)

    def _logp(self, reading: Tensor) -> Tensor:
        logits = self.logits(reading).view(len(reading), -1, self.bins)
        return (logits / self.temperature).log_softmax(-1)


class FlowHead(nn.Module):
    """A flow from noise (t = 1) to the chunk (t = 0), with stochastic steps for policy gradients.

    x_t = t e + (1 - t) a, the network predicts v = e - a; Euler steps x <- x - v / K. Stochastic steps (`noise`):
    "sde" and "cps" keep the distribution of the flow approximately and have fixed deviations; "learned" has a
    deviation in [.08, .16] for every entry. The last step is deterministic. One log-probability per action of the
    chunk: the sum over its dimensions and the stochastic steps (with "learned" the mean over steps). The mode starts
    from zero noise.

    Args:
        width: of the reading.
        horizon: H.
        actions: A.
        steps: K.
        hidden: width of the velocity network.
        noise: see above.
        level: a, size of that noise ("sde", "cps").
        stochastic: "one" step drawn for each chunk, or "all" but the last ("learned" is always all).

    Raises:
        ValueError: an option out of range.

    Source: Black et al., pi0 (flow, time distribution); Liu et al., Flow-GRPO and RLinf piRL (stochastic steps).
    """

    codec, layout = "flow", "step"

    def __init__(
        self,
        width: int,
        horizon: int,
        actions: int,
        *,
        steps: int = 5,
        hidden: int = 256,
        noise: str = "sde",
        level: float = 0.5,
        stochastic: str = "one",
    ) -> None:
        super().__init__()
        if noise not in NOISES or stochastic not in ("one", "all"):
            raise ValueError(
                f"noise, stochastic are '{noise}', '{stochastic}'; expected one of {', '.join(NOISES)}, and one or all"
            )
        if steps < 2 or level <= 0:
            raise ValueError(f"steps, level are {steps}, {level}; expected 2 or more, and above 0")
        self._shape, self.steps, self.noise, self.level = (horizon, actions), steps, noise, level
        self.stochastic = "all" if noise == "learned" else stochastic
        inside = width + horizon * actions + _TIME
        self.net = nn.Sequential(
            nn.Linear(inside, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, horizon * actions),
        )  # fmt: skip
        self.spread = nn.Linear(width, horizon * actions) if noise == "learned" else None

    @torch.no_grad()
    def sample(
        self, reading: Tensor, generator: torch.Generator | None, *, deterministic: bool, guide: Guide | None = None
    ) -> Drawn:
        """Draw chunks, or their mode; with a guide it goes on from the running chunk, without stochastic steps."""
        count, device = len(reading), reading.device
        start = torch.randn(count, *self._shape, generator=generator, device=device)
        if deterministic:
            start = torch.zeros_like(start)
        if guide is not None:
            return Drawn(self._guide(reading, start, guide), reading.new_full((count, self._shape[0]), math.nan), {})
        inner = self.steps - 1
        chosen = torch.zeros(count, inner, dtype=torch.bool, device=device)
        if not deterministic:
            chosen[:] = self.stochastic == "all"
            if self.stochastic == "one":
                index = torch.randint(inner, (count, 1), generator=generator, device=device)
                chosen.scatter_(1, index, True)
        x, path = start, [start]
        std = self._std(reading)
        for i in range(self.steps):
            t = 1.0 - i / self.steps
            v = self.velocity(reading, x, torch.full((count,), t, device=device))
            following = x - v / self.steps
            if i < inner and not deterministic:
                mean, deviation = self._step(x, v, t, std)
                draw = torch.randn(x.shape, generator=generator, device=device)
                following = torch.where(chosen[:, i, None, None], mean + deviation * draw, following)
            x = following
            path.append(x)
        trace = {"path": torch.stack(path, 1), "chosen": chosen}
        return Drawn(x, self.evaluate(reading, trace)[0], trace)

    def evaluate(self, reading: Tensor, trace: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, L) log-probabilities of chunks drawn before; the entropy is NaN."""
        path, chosen = trace["path"], trace["chosen"]
        row, step = chosen.nonzero(as_tuple=True)
        total = reading.new_zeros(len(reading), self._shape[0])
        if len(row):
            t = 1.0 - step.to(reading.dtype) / self.steps
            before, after = path[row, step], path[row, step + 1]
            v = self.velocity(reading[row], before, t)
            spread = self._std(reading)
            mean, deviation = self._step(before, v, t[:, None, None], None if spread is None else spread[row])
            total = total.index_add(0, row, normal_logp(after, mean, torch.as_tensor(deviation)).sum(-1))
        if self.noise == "learned":
            total = total / (self.steps - 1)
        return total, torch.full_like(total, math.nan)

    def loss(self, reading: Tensor, actions: Tensor, mask: Tensor, generator: torch.Generator | None) -> Tensor:
        """Mean squared error of the velocity, t = .001 + .999 Beta(1.5, 1)."""
        noise = torch.randn(actions.shape, generator=generator, device=actions.device)
        uniform = torch.rand(len(actions), generator=generator, device=actions.device)
        t = 0.001 + 0.999 * uniform ** (1.0 / 1.5)
        x = torch.lerp(actions, noise, t[:, None, None])
        return _masked_mean((self.velocity(reading, x, t) - (noise - actions)).square(), mask)

    def velocity(self, reading: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """(B, H, A) at x (B, H, A) and t (B,)."""
        angle = t[:, None] * (math.pi * 2.0 ** torch.arange(_TIME // 2, device=t.device) / 2.0)
        parts = [reading, x.flatten(1), angle.sin(), angle.cos()]
        return self.net(torch.cat(parts, dim=1)).view_as(x)

    def _guide(self, reading: Tensor, start: Tensor, guide: Guide) -> Tensor:
        previous, weight = guide

        def velocity(x: Tensor, t: Tensor) -> Tensor:  # guided_flow counts t from noise to action
            return -self.velocity(reading, x, 1.0 - t)

        return guided_flow(velocity, start, previous, weight, steps=self.steps, beta=10.0, jacobian="identity")

    def _std(self, reading: Tensor) -> Tensor | None:
        if self.spread is None:
            return None
        low, high = _LEARNED
        return low + (high - low) * self.spread(reading).sigmoid().view(len(reading), *self._shape)

    def _step(self, x: Tensor, v: Tensor, t: float | Tensor, std: Tensor | None) -> tuple[Tensor, Any]:
        delta = 1.0 / self.steps
        if std is not None:
            return x - v * delta, std
        rule = sde_step if self.noise == "sde" else cps_step
        return rule(x, v, t, delta, self.level)


def sde_step(x: Tensor, v: Tensor, t: float | Tensor, delta: float, level: float) -> tuple[Tensor, Tensor]:
    """Mean and deviation of one stochastic step of a flow from t to t - delta.

    sigma = a sqrt(t / (1 - t)), at t = 1 with delta for 1 - t (the first following time); with the ends of the straight
    path, x0 = x - v t and x1 = x + v (1 - t): mean x0 (1 - (t - delta)) + x1 (t - delta - sigma^2 delta / (2 t)),
    deviation sigma sqrt(delta). Level 0 is the Euler step.

    Source: RLinf, piRL (Flow-SDE); Liu et al., Flow-GRPO.
    """
    time = torch.as_tensor(t, dtype=x.dtype, device=x.device)
    sigma = level * (time / (1.0 - time).clamp_min(delta)).sqrt()
    x0, x1 = x - v * time, x + v * (1.0 - time)
    mean = x0 * (1.0 - (time - delta)) + x1 * (time - delta - sigma**2 * delta / (2.0 * time))
    return mean, sigma * math.sqrt(delta)


def cps_step(x: Tensor, v: Tensor, t: float | Tensor, delta: float, level: float) -> tuple[Tensor, Tensor]:
    """As `sde_step`, with coefficients that keep the size of the noise: cos and sin of a pi / 2.

    Source: RLinf, piRL (Flow-CPS).
    """
    time = torch.as_tensor(t, dtype=x.dtype, device=x.device)
    x0, x1 = x - v * time, x + v * (1.0 - time)
    left = time - delta
    mean = x0 * (1.0 - left) + x1 * left * math.cos(0.5 * math.pi * level)
    return mean, left * math.sin(0.5 * math.pi * level)


def normal_logp(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of a normal distribution, elementwise."""
    return -0.5 * ((x - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)


def encode_class(actions: Tensor, bins: int = 256) -> Tensor:
    """(...) in [-1, 1] -> (...) int64 class 0 ... bins - 1; what lies outside is clipped.

    The edges are `bins` equally spaced numbers, so that the last class holds the edge 1 alone.

    Source: openvla/openvla, action_tokenizer.py.
    """
    edges = torch.linspace(-1.0, 1.0, bins, dtype=torch.float64, device=actions.device)
    return torch.bucketize(actions.double().clamp(-1.0, 1.0).contiguous(), edges, right=True) - 1


def decode_class(classes: Tensor, bins: int = 256) -> Tensor:
    """(...) classes -> (...) float32 middles of their intervals; the last two share one."""
    return ((2.0 * classes.clamp(0, bins - 2).double() + 1.0) / (bins - 1) - 1.0).float()


def make_head(kind: str, width: int, horizon: int, actions: int, options: dict[str, object] | None = None) -> Any:
    """A head by name.

    Raises:
        ValueError: an unknown name or option.
    """
    kinds: dict[str, Any] = {"gaussian": GaussianHead, "token": TokenHead, "flow": FlowHead}
    if kind not in kinds:
        raise ValueError(f"head is '{kind}', expected one of {', '.join(HEADS)}")
    try:
        return kinds[kind](width, horizon, actions, **(options or {}))
    except TypeError as error:
        raise ValueError(f"options of the {kind} head: {error}") from error


def _masked_mean(each: Tensor, mask: Tensor) -> Tensor:
    """() mean over (B, H, A) where mask (B, H)."""
    valid = mask.to(each.dtype)[..., None].expand_as(each)
    return (each * valid).sum() / valid.sum().clamp_min(1.0)
