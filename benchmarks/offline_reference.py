"""IQL, TD3+BC and CQL as single files usually have them: one module per network, autograd, one Adam each.

The plain contestant of `bench offline`; written for it after the papers, in the manner of CORL's single files.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robot_rl.types import PolicyParts


class Table:
    """Transitions as tensors; a batch is one gather per column."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.rng = np.random.default_rng(0)
        order = ("observations", "actions", "rewards", "next_observations", "terminals")
        self.columns = [torch.tensor(columns[name], dtype=torch.float32) for name in order]
        self.columns[2], self.columns[4] = self.columns[2][:, None], self.columns[4][:, None]

    def sample(self, size: int) -> list[Tensor]:
        """s, a, r, s', d."""
        index = self.rng.integers(0, len(self.columns[0]), size)
        return [column[index] for column in self.columns]


def mlp(sizes: list[int], last: nn.Module | None = None) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(a, b), *([nn.ReLU()] if i < len(sizes) - 2 else [])]
    return nn.Sequential(*layers, *([last] if last else []))


class Twin(nn.Module):
    """Two critics."""

    def __init__(self, state: int, action: int, hidden: list[int]) -> None:
        super().__init__()
        self.q1, self.q2 = (mlp([state + action, *hidden, 1]) for _ in range(2))

    def both(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Values of both."""
        x = torch.cat([s, a], -1)
        return self.q1(x), self.q2(x)


def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging, one parameter at a time."""
    for t, s in zip(target.parameters(), source.parameters()):
        t.data.copy_((1 - tau) * t.data + tau * s.data)


class IqlReference:
    """Implicit Q-learning."""

    def __init__(self, state: int, action: int) -> None:
        self.q, self.v = Twin(state, action, [256, 256]), mlp([state, 256, 256, 1])
        self.target = copy.deepcopy(self.q)
        self.actor = mlp([state, 256, 256, action], nn.Tanh())
        self.log_std = nn.Parameter(torch.zeros(action))
        self.q_adam = torch.optim.Adam(self.q.parameters(), lr=3e-4)
        self.v_adam = torch.optim.Adam(self.v.parameters(), lr=3e-4)
        self.actor_adam = torch.optim.Adam([*self.actor.parameters(), self.log_std], lr=3e-4)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.actor_adam, 1_000_000)

    def update(self, batch: list[Tensor]) -> dict[str, float]:
        """One step of everything."""
        s, a, r, s2, d = batch
        with torch.no_grad():
            next_v = self.v(s2)
            target_q = torch.min(*self.target.both(s, a))
        v = self.v(s)
        adv = target_q - v
        v_loss = (torch.abs(0.7 - (adv < 0).float()) * adv.square()).mean()
        self.v_adam.zero_grad()
        v_loss.backward()
        self.v_adam.step()
        y = r + (1 - d) * 0.99 * next_v
        q_loss = sum(F.mse_loss(q, y) for q in self.q.both(s, a)) / 2
        self.q_adam.zero_grad()
        q_loss.backward()  # type: ignore[union-attr]
        self.q_adam.step()
        follow(self.target, self.q, 0.005)
        weight = torch.exp(3.0 * adv.detach()).clamp(max=100.0)[:, 0]
        dist = torch.distributions.Normal(self.actor(s), self.log_std.clamp(-20, 2).exp())
        pi_loss = (-weight * dist.log_prob(a).sum(-1)).mean()
        self.actor_adam.zero_grad()
        pi_loss.backward()
        self.actor_adam.step()
        self.schedule.step()
        return {"v": v_loss.item(), "q": float(q_loss), "pi": pi_loss.item()}


class Td3BcReference:
    """TD3+BC."""

    def __init__(self, state: int, action: int) -> None:
        self.actor, self.q = mlp([state, 256, 256, action], nn.Tanh()), Twin(state, action, [256, 256])
        self.actor_target, self.q_target = copy.deepcopy(self.actor), copy.deepcopy(self.q)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.q_adam = torch.optim.Adam(self.q.parameters(), lr=3e-4)
        self.count = 0

    def update(self, batch: list[Tensor]) -> dict[str, float]:
        """One critic step, every second time the actor too."""
        self.count += 1
        s, a, r, s2, d = batch
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
            a2 = (self.actor_target(s2) + noise).clamp(-1, 1)
            y = r + (1 - d) * 0.99 * torch.min(*self.q_target.both(s2, a2))
        q1, q2 = self.q.both(s, a)
        loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        self.q_adam.zero_grad()
        loss.backward()
        self.q_adam.step()
        log = {"q": loss.item()}
        if self.count % 2 == 0:
            pi = self.actor(s)
            q = self.q.q1(torch.cat([s, pi], -1))
            actor_loss = -2.5 / q.abs().mean().detach() * q.mean() + F.mse_loss(pi, a)
            self.actor_adam.zero_grad()
            actor_loss.backward()
            self.actor_adam.step()
            follow(self.q_target, self.q, 0.005)
            follow(self.actor_target, self.actor, 0.005)
            log["pi"] = actor_loss.item()
        return log


class CqlReference:
    """CQL(H) with ten samples of each kind."""

    parts = PolicyParts()

    def __init__(self, state: int, action: int) -> None:
        hidden = [256, 256, 256]
        self.actor = mlp([state, *hidden, 2 * action])
        self.q = Twin(state, action, hidden)
        self.target = copy.deepcopy(self.q)
        self.log_alpha = nn.Parameter(torch.zeros(1))
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=3e-5)
        self.q_adam = torch.optim.Adam(self.q.parameters(), lr=3e-4)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=3e-5)
        self.width = action

    def act(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """A sample and its log-density."""
        mean, log_std = self.actor(s).chunk(2, -1)
        base = torch.distributions.Normal(mean, (log_std - 1).clamp(-20, 2).exp())
        u = base.rsample()
        a = torch.tanh(u)
        return a, (base.log_prob(u) - 2 * (math.log(2.0) - u - F.softplus(-2 * u))).sum(-1)

    def update(self, batch: list[Tensor]) -> dict[str, float]:
        """One step of everything."""
        s, a, r, s2, d = batch
        new, logp = self.act(s)
        alpha_loss = -(self.log_alpha * (logp - self.width).detach()).mean()
        alpha = self.log_alpha.exp()
        pi_loss = (alpha.detach() * logp - torch.min(*self.q.both(s, new))[:, 0]).mean()
        with torch.no_grad():
            a2, _ = self.act(s2)
            y = r + (1 - d) * 0.99 * torch.min(*self.target.both(s2, a2))
            wide = s[:, None].expand(-1, 10, -1)
            free = torch.rand(len(s), 10, self.width) * 2 - 1
            here, here_logp = self.act(wide)
            there, there_logp = self.act(s2[:, None].expand(-1, 10, -1))
        loss = torch.zeros(())
        for q in (self.q.q1, self.q.q2):
            data = q(torch.cat([s, a], -1))
            outside = [q(torch.cat([wide, x], -1))[..., 0] for x in (free, there, here)]
            density = [self.width * math.log(0.5), there_logp, here_logp]
            stacked = torch.cat([value - logp for value, logp in zip(outside, density)], 1)
            loss = loss + F.mse_loss(data, y) + 10.0 * (stacked.logsumexp(1) - data[:, 0]).mean()
        self.alpha_adam.zero_grad()
        alpha_loss.backward()
        self.alpha_adam.step()
        self.actor_adam.zero_grad()
        pi_loss.backward()
        self.actor_adam.step()
        self.q_adam.zero_grad()
        loss.backward()
        self.q_adam.step()
        follow(self.target, self.q, 0.005)
        return {"q": loss.item(), "pi": pi_loss.item()}
