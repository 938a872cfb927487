"""Mechanics of a planar chain of hinges whose few constants are learnt: accelerations, steps, energy, balance.

Link i hangs from link i - 1; its angle against the vertical is theta_i = q_1 + ... + q_i (0 hanging down), its turning
speed omega_i. With constants in units of the action (1 = full torque),

    sum_j a_ij cos(theta_i - theta_j) omega_j' + sum_j a_ij sin(theta_i - theta_j) omega_j^2 + g_i sin theta_i
        = f_i - f_i+1
    f_i = torque_i - rotor_i q_i'' - damping_i q_i' - friction_i q_i' / (|q_i'| + 0.1)

Source: Lagrange's equations of the chain; a_ij joins masses, lengths and centres of mass, of which no more can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

Columns = list[Tensor]
"""One tensor per joint, all of one shape."""
STICTION_SPEED = 0.1
"""Speed [rad/s] at which dry friction is half of what it is in fast motion."""


@dataclass(frozen=True)
class HingeChain:
    """Constants of one chain, or of many: every entry broadcasts against the states.

    Attributes:
        inertia: (n)(n) a_ij, symmetric.
        rotor: (n) of the motors, 0 for the first joint (it cannot be told from a_11).
        gravity: (n) g_i.
        damping: (n).
        friction: (n) dry.
    """

    inertia: list[Columns]
    rotor: Columns
    gravity: Columns
    damping: Columns
    friction: Columns

    @property
    def joints(self) -> int:
        """How many joints."""
        return len(self.gravity)

    @staticmethod
    def sizes(joints: int) -> int:
        """How many numbers `unpack` reads."""
        return joints * (joints + 1) // 2 + 3 * joints - 1

    @staticmethod
    def unpack(numbers: Tensor, friction: Columns) -> HingeChain:
        """From (D, ...) numbers that may take any value, and (n) friction.

        The inertia is L L^T with a positive diagonal of L; rotor and damping are exponentials.
        """
        joints, at = len(friction), 0
        lower: list[Columns] = []
        for i in range(joints):
            lower.append([numbers[at + j] for j in range(i)] + [numbers[at + i].exp()])
            at += i + 1
        zero = torch.zeros_like(numbers[0])
        inertia: list[Columns] = [
            [sum((lower[i][k] * lower[j][k] for k in range(min(i, j) + 1)), zero) for j in range(joints)]
            for i in range(joints)
        ]
        rotor = [zero, *(numbers[at + i].exp() for i in range(joints - 1))]
        at += joints - 1
        gravity = [numbers[at + i] for i in range(joints)]
        damping = [numbers[at + joints + i].exp() for i in range(joints)]
        return HingeChain(inertia, rotor, gravity, damping, friction)

    def acceleration(
        self, q: Columns, v: Columns, torque: Columns, ahead: float = 0.0, of: Columns | None = None
    ) -> Columns:
        """Joint accelerations [rad/s^2] at joint angles q, speeds v and joint torques.

        Dry friction is that at the end of a step of `ahead` [s] which begins with the speeds `of` (v when None): near
        rest it is far too stiff to be taken from its beginning.
        """
        n = self.joints
        theta, omega = running(q), running(v)
        grip = [c / (x.abs() + STICTION_SPEED) for c, x in zip(self.friction, v)]
        force = [t - b * x for t, b, x in zip(torque, self.damping, v)]
        force = [f - k * x for f, k, x in zip(force, grip, v if of is None else of)]
        rotor = [j + ahead * k for j, k in zip(self.rotor, grip)]
        right = [force[i] - force[i + 1] if i + 1 < n else force[i] for i in range(n)]
        right = [r - g * torch.sin(t) for r, g, t in zip(right, self.gravity, theta)]
        rows: list[list[Any]] = [[None] * n for _ in range(n)]
        for i in range(n):
            rows[i][i] = self.inertia[i][i] + rotor[i] + (rotor[i + 1] if i + 1 < n else 0.0)
            for j in range(i):
                a, apart = self.inertia[i][j], theta[i] - theta[j]
                sine = a * torch.sin(apart)
                right[i] = right[i] - sine * omega[j] ** 2
                right[j] = right[j] + sine * omega[i] ** 2
                rows[i][j] = a * torch.cos(apart) - (rotor[i] if j + 1 == i else 0.0)
                rows[j][i] = rows[i][j]
        turning = _solve(rows, right)
        return [turning[0], *(turning[i] - turning[i - 1] for i in range(1, n))]

    def step(self, q: Columns, v: Columns, torque: Columns, period: float, parts: int = 1) -> tuple[Columns, Columns]:
        """State one period [s] later, the torque held: `parts` midpoint steps, dry friction implicit."""
        h = period / parts

        def on(x: Columns, slope: Columns, by: float) -> Columns:
            return [torch.add(a, s, alpha=by) for a, s in zip(x, slope)]

        for _ in range(parts):
            first = self.acceleration(q, v, torque, 0.5 * h)
            middle = on(v, first, 0.5 * h)
            second = self.acceleration(on(q, v, 0.5 * h), middle, torque, h, of=v)
            q, v = on(q, middle, h), on(v, second, h)
        return q, v

    def energy(self, q: Columns, v: Columns) -> Tensor:
        """Kinetic and potential energy; 0 where all links are level and at rest."""
        theta, omega = running(q), running(v)
        total = sum(-g * torch.cos(t) for g, t in zip(self.gravity, theta))
        for i in range(self.joints):
            total = total + 0.5 * self.inertia[i][i] * omega[i] ** 2 + 0.5 * self.rotor[i] * v[i] ** 2
            for j in range(i):
                total = total + self.inertia[i][j] * torch.cos(theta[i] - theta[j]) * omega[i] * omega[j]
        assert isinstance(total, Tensor)
        return total

    @staticmethod
    def vary(numbers: Tensor, spread: float, generator: torch.Generator) -> Tensor:
        """Numbers (D, K), each column a little off: inertia and gravity by a relative `spread` (one deviation).

        Rotors, which logs tell less of, are off by four times as much, damping by a factor of about e^(20 spread).
        """
        size = len(numbers)
        joints = next(n for n in range(1, size + 1) if HingeChain.sizes(n) == size)
        draw = torch.randn(numbers.shape, generator=generator, dtype=numbers.dtype) * spread
        out, at = numbers.clone(), 0
        for i in range(joints):
            for j in range(i + 1):
                out[at] = out[at] + 0.5 * draw[at] if j == i else out[at] * (1.0 + 0.5 * draw[at])
                at += 1
        end = at + joints - 1
        out[at:end] += 4.0 * draw[at:end]
        out[end : end + joints] *= 1.0 + draw[end : end + joints]
        out[end + joints :] += 20.0 * draw[end + joints :]
        return out

    def frictionless(self) -> HingeChain:
        """The same without dry friction."""
        return HingeChain(
            self.inertia, self.rotor, self.gravity, self.damping, [torch.zeros_like(c) for c in self.friction]
        )


def _solve(rows: list[list[Any]], right: Columns) -> Columns:
    """Gaussian elimination without pivots (the matrix is positive definite), element by element over the batch."""
    n, right = len(right), list(right)
    rows = [list(row) for row in rows]
    for k in range(n):
        for i in range(k + 1, n):
            share = rows[i][k] / rows[k][k]
            for j in range(k + 1, n):
                rows[i][j] = rows[i][j] - share * rows[k][j]
            right[i] = right[i] - share * right[k]
    for i in reversed(range(n)):
        for j in range(i + 1, n):
            right[i] = right[i] - rows[i][j] * right[j]
        right[i] = right[i] / rows[i][i]
    return right


def running(x: Sequence[Tensor]) -> Columns:
    """Sums of the first 1, 2, ... n: angles against the vertical from joint angles."""
    out = [x[0]]
    for part in x[1:]:
        out.append(out[-1] + part)
    return out


def rests(joints: int) -> list[tuple[float, ...]]:
    """Joint angles at which every link hangs or stands: all rests of a chain without torque, 2^n."""
    found = []
    for theta in product((0.0, math.pi), repeat=joints):
        before = (0.0, *theta[:-1])
        found.append(tuple(a - b for a, b in zip(theta, before)))
    return found


def linearise(chain: HingeChain, goal: Sequence[float], driven: Sequence[int], period: float) -> tuple[Tensor, Tensor]:
    """Matrices of x' = A x + B a about a rest, x = [q - goal, v], the action held over one period.

    Args:
        chain: one chain, entries of shape ().
        goal: (n) joint angles of the rest.
        driven: joint of every action.
        period: [s].

    Returns:
        (2n, 2n) and (2n, A) float64, by central differences of `step` without dry friction.
    """
    n, actions = chain.joints, len(driven)
    smooth, h = chain.frictionless(), 1e-5
    offsets = torch.cat([torch.eye(2 * n + actions), -torch.eye(2 * n + actions)]).double() * h
    q = [offsets[:, i] + goal[i] for i in range(n)]
    v = [offsets[:, n + i] for i in range(n)]
    torque = [torch.zeros_like(q[0]) for _ in range(n)]
    for k, joint in enumerate(driven):
        torque[joint] = torque[joint] + offsets[:, 2 * n + k]
    after = torch.stack([x for part in smooth.step(q, v, torque, period, 8) for x in part], 1)
    slope = (after[: 2 * n + actions] - after[2 * n + actions :]).T / (2.0 * h)
    return slope[:, : 2 * n], slope[:, 2 * n :]


def regulator(a: Tensor, b: Tensor, state_cost: Tensor, action_cost: Tensor) -> tuple[Tensor, Tensor]:
    """Gain (A, m) and cost-to-go (m, m) of the linear-quadratic regulator, by the discrete Riccati recursion.

    Raises:
        ValueError: it does not settle: the linear model cannot be balanced by these actions.
    """
    cost, gain = state_cost, torch.zeros(b.shape[1], a.shape[0], dtype=a.dtype)
    for _ in range(20_000):
        gain = torch.linalg.solve(action_cost + b.T @ cost @ b, b.T @ cost @ a)
        after = state_cost + a.T @ cost @ (a - b @ gain)
        after = 0.5 * (after + after.T)
        if not torch.isfinite(after).all():
            break
        if float((after - cost).abs().max()) <= 1e-9 * float(after.abs().max()):
            return gain, after
        cost = after
    raise ValueError("the goal cannot be balanced by these actions in the learnt model: the Riccati recursion diverges")
