"""Do new demonstrations fit those that are there? An ensemble of clones says where they conflict and what is new."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from robot_rl.policies.nets.net import Net, NetShape, mean_rows
from robot_rl.types import Options
from robot_rl.types.options import Count, NotNegative, Part, Rate

KINDS = ("redundant", "conflicting", "extension", "coverage")
"""Quadrants of (novelty, error): low low, low high, high low, high high."""


@dataclass(frozen=True)
class Assessment:
    """One demonstration against the base.

    Attributes:
        score: mean compatibility over its steps, in [0, 1].
        kind: one of KINDS, of the demonstration as a whole.
        compatibility: (T,) per step.
        novelty: (T,) spread of the ensemble, in units of the limit above which a state is new.
        error: (T,) distance to the ensemble, in units of the error that the same person's other demonstrations have.
        worst: the steps that conflict most, worst first.
        windows: (W,) mean compatibility per half second, for a timeline.
    """

    score: float
    kind: str
    compatibility: np.ndarray
    novelty: np.ndarray
    error: np.ndarray
    worst: tuple[int, ...]
    windows: np.ndarray


class CompatibilityOptions(Options):
    """Of an ensemble of clones that judges demonstrations."""

    members: Count = 5
    """Networks; with one novelty is unknown and every state counts as known."""
    hidden: tuple[Count, ...] = (64, 64)
    """Widths."""
    steps: Count = 600
    """Of fitting."""
    batch_size: Count = 128
    """Rows per step and member."""
    lr: Rate = 1e-3
    """Of Adam."""
    held_out: Part = 0.3
    """Share of the demonstrations that the limits are taken from."""
    tolerance: NotNegative = 0.15
    """How far below the base's own mean a demonstration may lie before it conflicts."""


class Compatibility:
    """Compatibility of state-action pairs with a base of demonstrations.

    novelty n(s) = standard deviation of the ensemble's actions, mean over dimensions; error e(s, a) = mean over the
    ensemble of |pi_i(s) - a|^2; M(s, a) = 1 - min(e / lambda, 1) where n < eta, else 1: what is new is welcome.
    eta is the 90th percentile of n and lambda the 95th of e on base demonstrations that were not fitted. Actions are
    standardised per dimension; dimensions that never change are left out.

    A demonstration conflicts when its score lies by more than `tolerance` below the mean over all steps of the base's
    own held-out demonstrations (over steps, so that very short ones count little).

    Source: Gandhi et al., Eliciting Compatible Demonstrations for Multi-Human Imitation Learning (novelty, likelihood,
    filter); limits from percentiles of held-out data are ours, as are standardised actions.
    """

    def __init__(
        self,
        options: CompatibilityOptions,
        states: Sequence[np.ndarray],
        actions: Sequence[np.ndarray],
        *,
        control_hz: float,
        seed: int = 0,
    ) -> None:
        """Fit the ensemble on the base.

        Args:
            options: of the ensemble.
            states: (T, S) of each demonstration.
            actions: (T, A) of each.
            control_hz: decisions per second, for the windows.
            seed: of weights, split and batches.

        Raises:
            ValueError: fewer than four demonstrations.
        """
        if len(states) < 4 or len(states) != len(actions):
            raise ValueError(
                f"{len(states)} demonstrations as a base, expected at least 4: some are fitted, some are held out"
            )
        o = options
        if o.members == 1:
            warnings.warn("one clone has no spread: every state counts as known", stacklevel=2)
        self._hz, self.tolerance = control_hz, o.tolerance
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(states), generator=generator).tolist()
        out = min(max(1, round(o.held_out * len(states))), len(states) - 1)
        kept = order[out:]
        x, a = np.concatenate([states[i] for i in kept]), np.concatenate([actions[i] for i in kept])
        self._shift, scale = x.mean(0), x.std(0)
        self._scale = np.where(scale < 1e-3, 1.0, scale)
        self._centre, spread = a.mean(0), a.std(0)
        self._used = np.flatnonzero(spread > 1e-4)
        if not len(self._used):
            raise ValueError("the demonstrations' actions never change; there is nothing to compare")
        self._spread = spread[self._used]
        sizes = NetShape(x.shape[1], len(self._used), o.hidden, seeds=o.members)  # each has batches of its own
        self._net, self._members = Net("clone", sizes, lr=o.lr, generator=generator), o.members
        seen, shown = self._states(x), self._actions(a)
        for _ in range(o.steps):
            rows = torch.randint(len(x), (o.members, min(o.batch_size, len(x))), generator=generator)
            self._net.step(mean_rows((self._net(seen[rows]) - shown[rows]).square().mean(-1)))
        self.eta = self.limit = 1.0
        self.own: list[float] = []
        """Scores of the base's own held-out demonstrations."""
        pairs = [self._measure(states[i], actions[i]) for i in order[:out]]
        self.eta = max(float(np.quantile(np.concatenate([n for n, _ in pairs]), 0.9)), 1e-9)
        """Novelty above which a state is new."""
        self.limit = max(float(np.quantile(np.concatenate([e for _, e in pairs]), 0.95)), 1e-9)
        """Error at which an action is incompatible: lambda."""
        if o.members == 1:
            self.eta = np.inf
        matches = [self.assess(states[i], actions[i]).compatibility for i in order[:out]]
        self.own = [float(match.mean()) for match in matches]
        self._usual = float(np.concatenate(matches).mean())

    @property
    def threshold(self) -> float:
        """Score below which a demonstration conflicts."""
        return self._usual - self.tolerance

    def assess(self, states: np.ndarray, actions: np.ndarray, show: int = 5) -> Assessment:
        """One demonstration.

        Args:
            states: (T, S).
            actions: (T, A).
            show: how many of the worst steps to name.
        """
        n, e = self._measure(states, actions)
        new = n >= self.eta
        match = np.where(new, 1.0, 1.0 - np.minimum(e / self.limit, 1.0))
        score, fresh = float(match.mean()), float(new.mean()) > 0.5
        wrong = float((e[new] / self.limit).mean()) > 1.0 if fresh else bool(self.own) and score < self.threshold
        order = np.argsort(match, kind="stable")
        width = max(1, round(0.5 * self._hz))
        windows = [match[i : i + width].mean() for i in range(0, len(match), width)]
        return Assessment(
            score,
            KINDS[2 * fresh + wrong],
            match,
            n / self.eta,
            e / self.limit,
            tuple(int(i) for i in order[:show] if match[i] < 1.0),
            np.array(windows),
        )

    def _measure(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(T,) novelty and (T,) error."""
        with torch.no_grad():
            made = self._net(self._states(states).expand(self._members, -1, -1))
        error = (made - self._actions(actions)).square().sum(-1).mean(0)
        novelty = made.std(0, correction=0).mean(-1) if self._members > 1 else torch.zeros(len(states))
        return novelty.double().numpy(), error.double().numpy()

    def _states(self, x: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(np.asarray((x - self._shift) / self._scale, np.float32))

    def _actions(self, a: np.ndarray) -> torch.Tensor:
        centred = (np.asarray(a)[:, self._used] - self._centre[self._used]) / self._spread
        return torch.as_tensor(centred.astype(np.float32))
