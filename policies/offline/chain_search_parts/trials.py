"""Trials of many policies in many variants of a learnt chain, and the reward that a log's rewards follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robot_rl.policies.offline.chain_search_parts.log import Signals
from robot_rl.policies.offline.chain_search_parts.mechanics import Columns, HingeChain, rests, running


def reward_terms(q: Columns, v: Columns, action: Columns) -> Columns:
    """What rewards are linear in: 1, cosine and sine of every link's angle, squared speeds and actions."""
    theta = running(q)
    out = [torch.ones_like(q[0])]
    out += [torch.cos(t) for t in theta] + [torch.sin(t) for t in theta]
    return out + [x.square() for x in v] + [a.square() for a in action]


def fit_reward(log: Signals) -> tuple[Tensor, float]:
    """Weights of `reward_terms` and the share of the logged rewards' variance that they explain."""
    inside = torch.arange(log.q.shape[1])[None] < log.length[:, None]
    n, actions = log.q.shape[-1], log.action.shape[-1]
    terms = reward_terms(
        [log.q[..., i][inside] for i in range(n)],
        [log.v[..., i][inside] for i in range(n)],
        [log.action[..., k][inside] for k in range(actions)],
    )
    x, y = torch.stack(terms, 1), log.reward[inside]
    matrix = x.T @ x
    weights = torch.linalg.solve(matrix + 1e-9 * torch.diag(matrix.diagonal() + 1e-9), x.T @ y)
    left = (x @ weights - y).square().mean() / (y - y.mean()).square().mean().clamp(min=1e-12)
    return weights, 1.0 - float(left)


def worth(weights: Tensor, rest: tuple[float, ...], actions: int) -> float:
    """Reward of a step at rest at these joint angles."""
    q = [torch.tensor(x, dtype=torch.float64) for x in rest]
    zero = torch.zeros((), dtype=torch.float64)
    return float(weights @ torch.stack(reward_terms(q, [zero] * len(q), [zero] * actions)))


def best_rest(weights: Tensor, joints: int, actions: int) -> tuple[float, ...]:
    """Joint angles of that rest of the chain which earns most."""
    return max(rests(joints), key=lambda rest: worth(weights, rest, actions))


def lowest_rest(chain: HingeChain) -> tuple[float, ...]:
    """Joint angles of the rest with the least energy: where an idle chain ends."""

    def height(rest: tuple[float, ...]) -> float:
        q = [torch.tensor(x, dtype=torch.float64) for x in rest]
        return float(chain.energy(q, [torch.zeros_like(x) for x in q]))

    return min(rests(chain.joints), key=height)


@dataclass(frozen=True)
class Variants:
    """K ways in which the robot may be, each tried by all policies.

    Attributes:
        numbers: (D, K) constants of the chain.
        friction: (n, K).
        q: (n, K) first angles.
        v: (n, K) first speeds.
        delay: (K,) int64 steps from command to torque.
    """

    numbers: Tensor
    friction: Tensor
    q: Tensor
    v: Tensor
    delay: Tensor

    def to(self, dtype: torch.dtype) -> Variants:
        """The same in another precision."""
        return replace(
            self,
            numbers=self.numbers.to(dtype),
            friction=self.friction.to(dtype),
            q=self.q.to(dtype),
            v=self.v.to(dtype),
        )


@dataclass(frozen=True)
class SwingTrial:
    """What every candidate has to do.

    Attributes:
        reward: weights of `reward_terms`.
        driven: joint of every action.
        steps: control steps.
        period: of one [s].
        fastest: speed [rad/s] beyond which the log says nothing: each such step costs 1.
        level: reward from which a step counts as held.
        noise: standard deviations of measured angles [rad] and speeds [rad/s].
    """

    reward: Tensor
    driven: tuple[int, ...]
    steps: int
    period: float
    fastest: float
    level: float
    noise: tuple[float, float] = (0.0, 0.0)

    @torch.no_grad()
    def run(
        self,
        command: Callable[[Columns, Columns], Columns],
        variants: Variants,
        *,
        policies: int,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run P policies in K variants.

        Args:
            command: (n) angles and speeds of shape (K, P) -> (A) actions of that shape.
            variants: how the robot may be.
            policies: P.
            generator: of the noise.

        Returns:
            (K, P) mean reward per step, and the share of the last tenth of the steps that are held.
        """
        n, shape = len(variants.q), (len(variants.delay), policies)
        chain = HingeChain.unpack(variants.numbers[..., None], [c[:, None] for c in variants.friction])
        q, v = [x[:, None].expand(shape) for x in variants.q], [x[:, None].expand(shape) for x in variants.v]
        zero = torch.zeros(shape, dtype=variants.numbers.dtype)
        most = int(variants.delay.max()) if len(variants.delay) else 0
        past: list[Columns] = [[zero] * len(self.driven) for _ in range(most + 1)]
        total, held, begin = zero, zero, self.steps - max(1, self.steps // 10)
        for t in range(self.steps):
            seen_q, seen_v = q, v
            if max(self.noise) > 0.0:
                draw = torch.randn(2 * n, shape[0], 1, generator=generator, dtype=zero.dtype)
                seen_q = [x + self.noise[0] * draw[i] for i, x in enumerate(q)]
                seen_v = [x + self.noise[1] * draw[n + i] for i, x in enumerate(v)]
            past = [command(seen_q, seen_v), *past[:most]]
            action = past[0]
            for d in range(1, most + 1):
                later = (variants.delay == d)[:, None]
                action = [torch.where(later, old, new) for old, new in zip(past[d], action)]
            torque = [zero] * n
            for k, joint in enumerate(self.driven):
                torque[joint] = action[k]
            earned = sum(w * x for w, x in zip(self.reward, reward_terms(q, v, past[0])))
            if t >= begin:
                held = held + (earned >= self.level)
            q, v = chain.step(q, v, torque, self.period)
            over = torch.stack([x.abs() for x in v]).amax(0) > self.fastest
            v = [x.clamp(-2.0 * self.fastest, 2.0 * self.fastest) for x in v]
            total = total + earned - over.to(zero.dtype)
        return total / self.steps, held / (self.steps - begin)
