"""Constants of a chain from windows of a log: a regression to begin with, then least squares of simulated windows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import permutations

import torch
from torch import Tensor

from robot_rl.policies.offline.chain_search_parts.log import MARGIN, Signals
from robot_rl.policies.offline.chain_search_parts.mechanics import STICTION_SPEED, HingeChain, running
from robot_rl.state import Saved

_DELAYS = torch.arange(0.0, 4.01, 0.5, dtype=torch.float64)
_SPEED_WEIGHT = 0.05
"""Seconds: a speed error of 1 rad/s counts as much as an angle error of this many rad."""
_HUBER = 0.1
_EVERY = 5
"""Every fifth step of a simulated window is compared."""


class ChainFit(Saved):
    """One set of constants, fitted by damped Gauss-Newton steps on simulated windows (output error, multiple shooting).

    All recordings share inertia, rotors, gravity and damping; every recording has dry friction and a command delay of
    its own, which are what drifts and what the recording's software decides. `weight` says how much each recording
    counts: 0 leaves it out, integers make a bootstrap sample.

    Source: Ljung, System Identification (output error); Bock, Multiple shooting; Levenberg-Marquardt. The nuisance
    parameters per recording are ours.
    """

    saved = ("numbers", "friction", "delay", "weight", "damp", "cost", "steps")

    def __init__(self, log: Signals, driven: Sequence[int], weight: Tensor, *, reach: int = 30) -> None:
        """Begin with the regression.

        Args:
            log: the windows.
            driven: joint of every action.
            weight: (E,) of the recordings.
            reach: steps of a simulated window.

        Raises:
            ValueError: the windows are too short.
        """
        self._log, self.driven, self.weight, self._reach = log, tuple(driven), weight.double(), reach
        starts = torch.arange(MARGIN, max(MARGIN + 1, log.q.shape[1] - reach - MARGIN), max(1, reach + MARGIN))
        inside = (starts[None] + reach + MARGIN) < log.length[:, None]
        self._window, index = inside.nonzero(as_tuple=True)
        self._start = starts[index]
        if len(self._window) < 20:
            raise ValueError(
                f"only {len(self._window)} stretches of {reach + 2 * MARGIN} steps in the windows of the log; expected "
                "at least 20: shorten policy.reach or raise policy.windows"
            )
        count, n = len(log.episodes), log.q.shape[-1]
        self.delay = torch.zeros(count, dtype=torch.float64)
        (self.numbers, friction), _ = regress(log, self.driven, self.weight)
        self.friction = friction.expand(count, n).clone()
        self.damp, self.cost, self.steps = 1e-2, float("inf"), 0
        self._cut()

    def again(self, weight: Tensor) -> ChainFit:
        """A fit of the same windows with other weights of the recordings, begun at these constants."""
        other = copy.copy(self)
        other.weight = weight.double()
        other.numbers, other.friction, other.delay = self.numbers.clone(), self.friction.clone(), self.delay.clone()
        other.damp, other.cost, other.steps = 1e-2, float("inf"), 0
        return other

    def _cut(self) -> None:
        """Targets and torques of the stretches under the present delays."""
        log, reach = self._log, self._reach
        at = self._start[:, None] + torch.arange(reach + 1)
        rows = self._window[:, None]
        self._q, self._v = log.q[rows, at], log.now[rows, at]
        self._torque = log.torque(self.driven, self.delay)[rows, at[:, :-1]]
        self._owner = log.recording[self._window]

    def residual(self, numbers: Tensor, friction: Tensor) -> Tensor:
        """(P, R, C) errors of simulated stretches, robustly bounded: C compared steps of n angles and n speeds.

        Args:
            numbers: (D, P, 1) candidates.
            friction: (n, P, R).
        """
        n = self._q.shape[-1]
        chain = HingeChain.unpack(numbers, [friction[i] for i in range(n)])
        shape = friction.shape[1:]
        q = [self._q[:, 0, i].expand(shape) for i in range(n)]
        v = [self._v[:, 0, i].expand(shape) for i in range(n)]
        out = []
        for t in range(self._reach):
            q, v = chain.step(q, v, [self._torque[:, t, i] for i in range(n)], self._log.period, 2)
            if (t + 1) % _EVERY == 0:
                out += [q[i] - self._q[:, t + 1, i] for i in range(n)]
                out += [(v[i] - self._v[:, t + 1, i]) * _SPEED_WEIGHT for i in range(n)]
        return torch.stack(out, -1).nan_to_num(50.0, 50.0, -50.0).clamp(-50.0, 50.0)

    def losses(self, residual: Tensor) -> Tensor:
        """(..., R) Huber loss of every stretch."""
        size = residual.abs()
        return torch.where(size < _HUBER, 0.5 * size.square(), _HUBER * (size - 0.5 * _HUBER)).sum(-1)

    def _own(self, friction: Tensor) -> Tensor:
        """(n, P, R) from (P, E, n)."""
        return friction[:, self._owner].permute(2, 0, 1)

    def choose_delays(self) -> None:
        """For every recording the delay of the grid under which its stretches are simulated best."""
        found = []
        for delay in _DELAYS:
            self.delay = torch.full_like(self.delay, float(delay))
            self._cut()
            loss = self.losses(self.residual(self.numbers[:, None, None], self._own(self.friction[None])))[0]
            found.append(torch.zeros_like(self.delay).index_add(0, self._owner, loss))
        self.delay = _DELAYS[torch.stack(found).argmin(0)]
        self._cut()
        self.cost = float("inf")

    def step(self) -> float:
        """One damped Gauss-Newton step; the weighted mean loss of a stretch afterwards."""
        self.steps += 1
        size, (count, n), h = len(self.numbers), self.friction.shape, 1e-5
        tries = self.numbers[:, None].repeat(1, size + n + 1)
        tries[:, 1 : size + 1] += torch.eye(size, dtype=torch.float64) * h
        friction = self.friction[None].repeat(size + n + 1, 1, 1)
        for i in range(n):
            friction[size + 1 + i, :, i] += h
        residual = self.residual(tries[:, :, None], self._own(friction))
        base = residual[0]
        slope = (residual[1:] - base) / h  # (K, R, C)
        share = self.weight[self._owner]
        if not self.cost < float("inf"):
            self.cost = float((share * self.losses(base)).sum())
        robust = share[:, None] / (base.abs() / _HUBER).clamp(min=1.0)
        total = size + n * count
        matrix, right = torch.zeros(total, total, dtype=torch.float64), torch.zeros(total, dtype=torch.float64)
        for e in range(count):
            rows = self._owner == e
            if not bool(rows.any()):
                continue
            j = slope[:, rows].flatten(1)
            w = robust[rows].flatten()
            index = torch.cat([torch.arange(size), size + n * e + torch.arange(n)])
            matrix[index[:, None], index] += (j * w) @ j.T
            right[index] += (j * w) @ base[rows].flatten()
        matrix += torch.diag(torch.full((total,), 1e-6, dtype=torch.float64))
        for _ in range(8):
            move = -torch.linalg.solve(matrix + self.damp * torch.diag(matrix.diagonal()), right)
            numbers = self.numbers + move[:size].clamp(-0.5, 0.5)
            friction_new = (self.friction + move[size:].view(count, n).clamp(-0.05, 0.05)).clamp(min=0.0)
            loss = self.losses(self.residual(numbers[:, None, None], self._own(friction_new[None])))[0]
            cost = float((share * loss).sum())
            if cost < self.cost:
                self.numbers, self.friction, self.cost = numbers, friction_new, cost
                self.damp = max(self.damp / 5.0, 1e-9)
                break
            self.damp = min(self.damp * 4.0, 1e9)
        return self.cost / float(share.sum())

    def chain(self, friction: Tensor | None = None) -> HingeChain:
        """The fitted chain, entries of shape (), with friction (n) of its own or the median recording's."""
        usual = self.friction[self.weight > 0].median(0).values if friction is None else friction
        return HingeChain.unpack(self.numbers, [usual[i] for i in range(len(usual))])

    def after_load(self) -> None:
        """Cut the stretches anew."""
        self._cut()


def regress(log: Signals, driven: Sequence[int], weight: Tensor) -> tuple[tuple[Tensor, Tensor], float]:
    """First guess: momentum gained over ten steps against the integral of forces, linear in all constants.

    Returns:
        (numbers (D,), friction (n)) as `ChainFit` has them, moved to where they make sense, and the share of the
        torques' impulse that they explain.

    Source: weak-form (integral) identification, which needs no accelerations.
    """
    n, period, reach = log.q.shape[-1], log.period, min(10, log.q.shape[1] - 1)
    pairs = [(i, j) for i in range(n) for j in range(i + 1)]
    size = len(pairs) + (n - 1) + 3 * n
    theta = running([log.q[..., i] for i in range(n)])
    omega = running([log.now[..., i] for i in range(n)])
    momentum = torch.zeros(*log.q.shape[:2], n, size, dtype=torch.float64)  # of joint k, per constant
    force = torch.zeros_like(momentum)
    for c, (i, j) in enumerate(pairs):
        turn, pull = torch.cos(theta[i] - theta[j]), torch.sin(theta[i] - theta[j]) * omega[i] * omega[j]
        momentum[..., : i + 1, c] += (turn * omega[j])[..., None]
        if i != j:
            momentum[..., : j + 1, c] += (turn * omega[i])[..., None]
            force[..., : i + 1, c] -= pull[..., None]
            force[..., : j + 1, c] += pull[..., None]
    at = len(pairs)
    for i in range(1, n):
        momentum[..., i, at + i - 1] = log.now[..., i]
    at += n - 1
    for i in range(n):
        force[..., : i + 1, at + i] -= torch.sin(theta[i])[..., None]
        force[..., i, at + n + i] = -log.now[..., i]
        force[..., i, at + 2 * n + i] = -log.now[..., i] / (log.now[..., i].abs() + STICTION_SPEED)
    area = torch.cumsum(0.5 * (force[:, 1:] + force[:, :-1]) * period, 1)
    area = torch.cat([torch.zeros_like(area[:, :1]), area], 1)
    torque = log.torque(driven, torch.zeros(len(log.episodes), dtype=torch.float64))
    impulse = torch.cat([torch.zeros_like(torque[:, :1]), torch.cumsum(torque * period, 1)], 1)[:, :-1]
    rows = (momentum[:, reach:] - momentum[:, :-reach]) - (area[:, reach:] - area[:, :-reach])
    target = impulse[:, reach:] - impulse[:, :-reach]
    inside = torch.arange(target.shape[1])[None] + reach < log.length[:, None]
    inside = inside & (weight[log.recording] > 0)[:, None]
    rows, target = rows[inside].flatten(0, 1), target[inside].flatten()
    matrix = rows.T @ rows
    found = torch.linalg.solve(matrix + 1e-9 * torch.diag(matrix.diagonal() + 1e-12), rows.T @ target)
    explained = 1.0 - float((rows @ found - target).square().sum() / target.square().sum().clamp(min=1e-12))

    inertia = torch.zeros(n, n, dtype=torch.float64)
    for value, (i, j) in zip(found, pairs):
        inertia[i, j] = inertia[j, i] = value
    values, vectors = torch.linalg.eigh(inertia)
    inertia = vectors @ torch.diag(values.clamp(min=0.1 * float(values.abs().max()))) @ vectors.T
    lower, largest = torch.linalg.cholesky(inertia), float(inertia.diagonal().max())
    at = len(pairs)
    rotor = found[at : at + n - 1].clamp(0.01 * largest, largest)
    gravity = found[at + n - 1 : at + 2 * n - 1]
    damping = found[at + 2 * n - 1 : at + 3 * n - 1].clamp(1e-4, 0.1)
    friction = found[at + 3 * n - 1 :].clamp(0.0, 0.2)
    numbers = [lower[i, j].log() if i == j else lower[i, j] for i, j in pairs]
    return (torch.cat([torch.stack(numbers), rotor.log(), gravity, damping.log()]), friction), explained


def find_driven(log: Signals, actions: int, weight: Tensor) -> tuple[tuple[int, ...], float]:
    """The joint of every action: that assignment which explains the log's motion best, and how well it does."""
    options = permutations(range(log.q.shape[-1]), actions)
    shares = {driven: regress(log, driven, weight)[1] for driven in options}
    best = max(shares, key=lambda driven: shares[driven])
    return best, shares[best]


def open_loop(fit: ChainFit, log: Signals, chosen: Tensor, steps: int) -> tuple[float, float]:
    """Mean error [rad] of the angles after `steps` of simulation with the logged torques, nothing corrected.

    Friction is the median recording's; lag and delay are those of each recording, for its software decides them.

    Args:
        fit: the model.
        log: the windows.
        chosen: (E,) bool, the recordings to judge by.
        steps: of simulation.

    Returns:
        Of the model, and of going on at constant speed; NaN where no window is long enough.
    """
    rows = (chosen[log.recording] & (log.length > steps + 2 * MARGIN)).nonzero()[:, 0]
    if not len(rows):
        return float("nan"), float("nan")
    n, chain = log.q.shape[-1], fit.chain()
    first_q, first_v = log.q[rows, MARGIN], log.now[rows, MARGIN]
    torque = log.torque(fit.driven, fit.delay)[rows]
    q, v = [first_q[:, i] for i in range(n)], [first_v[:, i] for i in range(n)]
    for t in range(steps):
        q, v = chain.step(q, v, [torque[:, MARGIN + t, i] for i in range(n)], log.period, 2)
    truth = log.q[rows, MARGIN + steps]
    still = first_q + first_v * steps * log.period
    return float((torch.stack(q, 1) - truth).abs().mean()), float((still - truth).abs().mean())
