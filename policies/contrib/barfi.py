"""Behaviour alignment reward: how much of a designer's auxiliary reward to believe, learnt from the primary one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_ppo import gaussian_sample
from robot_rl.policies.nets.module_step import ModuleStep
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rollout_learner import RolloutLearner, RolloutOptions
from robot_rl.policies.nets.rows import state_size
from robot_rl.policies.nets.tanh_net import TanhNet
from robot_rl.state import Saved
from robot_rl.types import Action, IOSpec, Metrics, Obs, Rollout
from robot_rl.types.options import Count, NotNegative, Number, Positive, Rate, Whole

_LOG_TAU = math.log(2 * math.pi)


class BarfiOptions(RolloutOptions):
    """Of BARFI."""

    aux_state: tuple[Number, ...] = ()
    """Weight of every component of the state in r_aux; empty for none."""
    aux_action: tuple[Number, ...] = ()
    """Weight of every component of the action; empty for none."""
    aux_distance: tuple[str | Whole, ...] = ()
    """Components of the state (names or numbers) whose length is subtracted."""
    aux_scale: Number = 1.0
    """Factor on r_aux; -1 turns a helpful one into a misleading one."""
    learn_reward: bool = True
    """False: phi stays (0, 1, 1), the naive sum."""
    learn_gamma: bool = False
    """Whether gamma_phi is learnt."""
    gamma_cost: NotNegative = 0.0
    """Weight of -gamma_phi in the outer objective."""
    rollout_steps: Count = 100
    """Steps of every environment per update."""
    hidden: Count = 32
    """Width of the policy's two tanh layers."""
    epochs: Count = 5
    """Inner steps per rollout."""
    inner: Count = 3
    """Rollouts per outer step."""
    lr: Rate = 3e-3
    """Inner step size (Adam)."""
    reward_lr: Rate = 0.05
    """Outer step size (Adam)."""
    decay: Positive = 1e-2
    """Weight of -|theta|^2 / 2, which keeps H negative definite."""
    ratio_clip: Annotated[float, Field(ge=1)] = 2.0
    """Importance weights above it count as it."""
    solver: Literal["neumann", "cg"] = "neumann"
    """neumann: -step sum_{i<=terms} (I + step H)^i v; cg: conjugate gradients on damped -H."""
    terms: Count = 10
    """Of the series, or iterations."""
    step: Positive = 0.05
    """Eta of the series: below 1 / |H|."""


class Barfi(RolloutLearner[BarfiOptions]):
    """Policy gradient on r = phi_1 + phi_2 r_p + phi_3 r_aux; phi climbs what the policy that it makes earns of r_p.

    Inner: theta follows the policy gradient of J_phi(theta) = E[sum gamma_phi^t r_phi] - decay |theta|^2 / 2. Outer,
    every `inner` rollouts: dJ/dphi = -dJ/dtheta H^-1 d2J_phi/dtheta dphi, H = d2J_phi/dtheta2, J the discounted primary
    return, with H^-1 by a Neumann series or conjugate gradients on Hessian-vector products. phi_2 stays at least 0.
    gamma_phi is a sigmoid that can be learnt too, and pays `gamma_cost` for its size.

    The auxiliary reward is a function of observation and action that the configuration names: weights on components
    of the state and of the action, and minus the length of some components of the state (a distance).

    Source: Gupta et al., Behavior Alignment via Reward Function Optimization (BARFI); the formulas are **recalled**,
    the code was not at hand. Ours: batch baselines in place of a critic, returns that a rollout cuts end there.
    """

    method = "BARFI"

    def __init__(
        self, options: BarfiOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        """Build policy and reward for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of weights and noise.
            device: torch device.
            gamma: discount of the primary return, and of the shaped one at the beginning.

        Raises:
            ValueError: weights or components that the state has not.
        """
        super().__init__(options, io, seed=seed, device=device)
        o, size, actions = options, state_size(io, self.method), io.action_dim
        for name, weights, width in (("aux_state", o.aux_state, size), ("aux_action", o.aux_action, actions)):
            if weights and len(weights) != width:
                raise ValueError(f"{name} has {len(weights)} weights, expected {width} or none")
        self.gamma = gamma
        self._aux = (
            torch.tensor(o.aux_state or [0.0] * size, device=device),
            torch.tensor(o.aux_action or [0.0] * actions, device=device),
            torch.tensor(_places(o.aux_distance, io, size), dtype=torch.int64, device=device),
        )
        self.norm = RunningNorm(size, device=device)
        self.net = _Gaussian((size, o.hidden, o.hidden, actions), self.generator, last=0.1).to(device)
        self.net_step = ModuleStep(self.net, lr=o.lr)
        self.reward = _Blend(gamma, device)
        self.policy = GaussianPolicy(io, self.net, seed + 1, self.norm)
        self.state.include({"net": self.net_step, "reward": self.reward, "policy": self.policy, "norm": self.norm})

    def auxiliary(self, state: Tensor, action: Tensor) -> Tensor:
        """(...) r_aux of raw states (..., S) and actions (..., A)."""
        of_state, of_action, distance = self._aux
        total = state @ of_state + action.clamp(-1.0, 1.0) @ of_action
        if len(distance):
            total = total - state[..., distance].norm(dim=-1)
        return self.o.aux_scale * total

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """Inner steps on one rollout; every `inner`-th time an outer step of phi on it.

        Returns:
            The latest metrics: train/phi_bias, train/phi_primary, train/phi_aux, train/gamma, train/primary (mean
            primary reward), train/outer_gradient (norm), train/entropy.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        o, rollout = self.o, next(batches)
        raw, steps = rollout.obs["state"], rollout.valid
        self.norm.observe(raw[steps])
        state = self.norm(raw)
        primary, aux = rollout.reward, self.auxiliary(raw, rollout.action)
        self.reward.observe(primary[steps], aux[steps])
        size, valid = torch.zeros(()), steps.float()
        go_on = (~(rollout.terminated | rollout.truncated)).float()
        columns = {"primary": primary, "aux": aux, "go_on": go_on, "valid": valid, "logp": rollout.logp}

        def shape() -> Tensor:
            return self._surrogate(state, rollout.action, columns, self.reward.blend(primary, aux), self.reward.gamma)

        for _ in range(o.epochs):
            self.net_step(-(shape() - self._weight_decay()))
        if o.learn_reward and self.next_update % o.inner == 0:
            earned = self._surrogate(
                state, rollout.action, columns, self.reward.primary(primary), torch.tensor(self.gamma)
            )
            knobs = [self.reward.phi, *([self.reward.raw_gamma] if o.learn_gamma else [])]
            grads = implicit_gradient(
                earned, shape() - self._weight_decay(), list(self.net.parameters()), knobs,
                solver=o.solver, terms=o.terms, step=o.step,
            )  # fmt: skip
            if o.learn_gamma:
                slope = torch.autograd.grad(self.reward.gamma, self.reward.raw_gamma)[0]
                grads[1] = grads[1] - o.gamma_cost * slope
            size = self.reward.climb(grads[0], grads[1] if o.learn_gamma else None, o.reward_lr)
        bias, first, second = self.reward.phi.detach().clone()
        return self.metrics(
            phi_bias=bias,
            phi_primary=first,
            phi_aux=second,
            gamma=self.reward.gamma,
            primary=primary[steps],
            outer_gradient=size,
            entropy=(self.net.log_std + 0.5 * (1 + _LOG_TAU)).sum(),
        )

    def _weight_decay(self) -> Tensor:
        return 0.5 * self.o.decay * torch.stack([p.square().sum() for p in self.net.parameters()]).sum()

    def _surrogate(
        self, state: Tensor, action: Tensor, columns: dict[str, Tensor], reward: Tensor, gamma: Tensor
    ) -> Tensor:
        """() mean of importance weight x standardised return: its gradient by theta is the policy gradient."""
        total, returns = torch.zeros_like(reward[0]), []
        for t in range(len(reward) - 1, -1, -1):
            total = reward[t] + gamma * columns["go_on"][t] * total
            returns.append(total)
        value, valid = torch.stack(returns[::-1]), columns["valid"]
        axis = (1,) if value.shape[1] > 1 else (0, 1)
        value = value - (value * valid).sum(axis, True) / valid.sum(axis, True).clamp_min(1.0)
        ratio = (self.net.log_prob(state, action) - columns["logp"]).exp().clamp(max=self.o.ratio_clip)
        share = valid / valid.sum().clamp_min(1.0)
        return (ratio * value * share).sum() / value.detach()[valid > 0].std().clamp_min(1e-6)


def implicit_gradient(
    outer: Tensor, inner: Tensor, theta: Sequence[Tensor], phi: Sequence[Tensor], *, solver: str = "neumann",
    terms: int = 10, step: float = 0.05, damping: float = 1e-4,
) -> list[Tensor]:  # fmt: skip
    """d outer(theta*(phi)) / d phi where theta* maximises `inner`: -d outer/d theta H^-1 d2 inner/d theta d phi.

    Args:
        outer: () function of theta; what it depends on phi directly is not counted.
        inner: () function of theta and phi, its Hessian H by theta negative definite.
        theta: parameters at (or near) the maximum of `inner`.
        phi: parameters of the answer.
        solver: "neumann": H^-1 v = -step sum_{i=0}^{terms} (I + step H)^i v; "cg": conjugate gradients on -H + damping.
        terms: of the series; iterations of the other.
        step: below 1 / |H|, or the series diverges.
        damping: of "cg".

    Source: Gupta et al., BARFI (recalled); the implicit function theorem.
    """
    slopes = torch.autograd.grad(inner, theta, create_graph=True)
    first = [g.detach() for g in torch.autograd.grad(outer, theta, retain_graph=True)]

    def curve(vector: list[Tensor]) -> list[Tensor]:
        """H times a vector."""
        return list(torch.autograd.grad(slopes, theta, vector, retain_graph=True))

    solved = _neumann(curve, first, terms, step) if solver == "neumann" else _cg(curve, first, terms, damping)
    mixed = torch.autograd.grad(slopes, phi, solved, allow_unused=True)
    return [torch.zeros_like(p) if g is None else -g.detach() for p, g in zip(phi, mixed)]


Curve = Callable[[list[Tensor]], list[Tensor]]


def _neumann(curve: Curve, vector: list[Tensor], terms: int, step: float) -> list[Tensor]:
    power, total = list(vector), list(vector)
    for _ in range(terms):
        power = [p + step * h for p, h in zip(power, curve(power))]
        total = [t + p for t, p in zip(total, power)]
    return [-step * t for t in total]


def _cg(curve: Curve, vector: list[Tensor], terms: int, damping: float) -> list[Tensor]:
    """-(-H + damping)^-1 v."""
    x = [torch.zeros_like(v) for v in vector]
    rest = [v.clone() for v in vector]
    way, size = [r.clone() for r in rest], _dot(rest, rest)
    for _ in range(terms):
        if size < 1e-20:
            break
        bent = [damping * p - h for p, h in zip(way, curve(way))]
        curvature = _dot(way, bent)
        if curvature <= 0:  # H is not negative definite along this way
            break
        far = size / curvature
        x = [a + far * p for a, p in zip(x, way)]
        rest = [r - far * b for r, b in zip(rest, bent)]
        new = _dot(rest, rest)
        way, size = [r + new / size * p for r, p in zip(rest, way)], new
    return [-a for a in x]


def _dot(a: list[Tensor], b: list[Tensor]) -> float:
    return float(sum((x * y).sum() for x, y in zip(a, b)))


class _Blend(Saved):
    """phi, gamma_phi, and the running spread of both rewards."""

    saved = ("_params", "_moments")

    def __init__(self, gamma: float, device: str) -> None:
        bound = min(max(gamma, 1e-3), 1.0 - 1e-4)
        self._params = FlatParams({"phi": (3,), "gamma": (1,)}, device=device)
        self.phi, self.raw_gamma = self._params.view["phi"], self._params.view["gamma"]
        self.phi.copy_(torch.tensor([0.0, 1.0, 1.0]))
        self.raw_gamma.fill_(math.log(bound / (1.0 - bound)))
        self._params.require_grad()
        self._moments = RunningNorm(2, max_scale=1e4, device=device)

    @property
    def gamma(self) -> Tensor:
        """() gamma_phi."""
        return self.raw_gamma.sigmoid()[0]

    def observe(self, primary: Tensor, aux: Tensor) -> None:
        self._moments.observe(torch.stack([primary, aux], -1).flatten(0, -2))

    def _scale(self, reward: Tensor, column: int) -> Tensor:
        scale = self._moments.scale[column]
        # nothing was ever earned: a spread of 0 says nothing about the size of what will be
        return reward if float(scale) >= 1e4 else reward * scale

    def primary(self, reward: Tensor) -> Tensor:
        """The primary reward in its own spread."""
        return self._scale(reward, 0)

    def blend(self, primary: Tensor, aux: Tensor) -> Tensor:
        """r_phi, with gradient by phi."""
        return self.phi[0] + self.phi[1] * self._scale(primary, 0) + self.phi[2] * self._scale(aux, 1)

    @torch.no_grad()
    def climb(self, phi: Tensor, gamma: Tensor | None, lr: float) -> Tensor:
        """A step of Adam up along gradients of phi (3,) and of gamma's logit (1,); () norm of the first."""
        grad = self._params.grad_view
        grad["phi"].copy_(-phi)
        grad["gamma"].copy_(torch.zeros(1) if gamma is None else -gamma)
        self._params.adam(lr)
        self.phi[1:2].clamp_(min=0.0)
        return phi.norm()


class _Gaussian(TanhNet):
    """N(f(s), exp(log_std)) with two tanh layers; smooth, since second derivatives are taken."""

    def __init__(self, widths: Sequence[int], generator: torch.Generator, *, last: float) -> None:
        super().__init__(widths, generator, last=last)
        self.log_std = nn.Parameter(torch.full((widths[-1],), -0.5))

    def log_prob(self, state: Tensor, action: Tensor) -> Tensor:
        """(...) log-density of unclipped actions."""
        z = (action - self(state)) * (-self.log_std).exp()
        return -(0.5 * z.square() + self.log_std + 0.5 * _LOG_TAU).sum(-1)


class GaussianPolicy(ModulePolicy[_Gaussian]):
    """Samples, or the mean when deterministic; shares the learner's parameters."""

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, A) in [-1, 1]; extras "raw", the sample before clipping."""
        state = self.see(obs)
        raw = gaussian_sample(self._net(state), self._net.log_std.exp(), self._generator, deterministic)
        return self.answer(obs, raw.clamp(-1.0, 1.0), self._net.log_prob(state, raw), raw=raw)


def _places(names: Sequence[str | int], io: IOSpec, size: int) -> list[int]:
    found = []
    for name in names:
        if isinstance(name, str) and name in io.obs_names:
            found.append(io.obs_names.index(name))
        elif isinstance(name, int) and -size <= name < size:
            found.append(name % size)
        else:
            known = f"{', '.join(io.obs_names)}" if io.obs_names else f"0 ... {size - 1}"
            raise ValueError(f"the state has no component {name!r}; expected names or numbers of {known}")
    return found
