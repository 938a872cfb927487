"""A policy made worse on purpose, with the density of what it does."""

from __future__ import annotations

import math

import numpy as np
import torch

from robot_rl.types import Action, Array, IOSpec, Obs, Options, Policy, PolicyParts
from robot_rl.types.options import NotNegative, Share
from robot_rl.verbs.collect_episodes import WithDensity

_LOG_SQRT_TAU = 0.5 * math.log(2.0 * math.pi)


class Spoiling(Options):
    """How a policy is made worse."""

    noise: NotNegative = 0.0
    """Standard deviation on actions in [-1, 1] before the truncation."""
    random: Share = 0.0
    """Probability of a uniform action, per step and environment."""
    bias: NotNegative = 0.0
    """Amplitude of the fixed function of the state."""
    sample: bool = False
    """The policy draws its actions itself, in place of noise; with a bias they have no density."""


AS_IT_IS = Spoiling()


class Behaviour:
    """A policy's mode or samples, pulled off by a fixed function of the state, with noise, at times uniform instead.

    The mode becomes m(s) = clip(mode(s) + bias sin(W s + b)) with W and b drawn once: a worse policy that cloning can
    learn, unlike noise, whose mean is the policy itself. Actions are drawn from a normal distribution about m(s) that
    is truncated to [-1, 1], so that they have a density at the bounds too: log((1 - random) prod N + random 2^-A).
    """

    def __init__(self, policy: Policy, how: Spoiling = AS_IT_IS, *, seed: int = 0) -> None:
        """Wrap `policy`.

        Args:
            policy: acts deterministically below, unless it is to sample.
            how: it is spoilt.
            seed: of noise and uniform actions; not of the fixed function, which is always the same one.

        Raises:
            ValueError: both kinds of noise, or a policy whose samples cannot be repeated.
        """
        if how.sample and how.noise:
            raise ValueError("sample takes the place of noise; give one of them")
        if how.sample and policy.parts.reseed is None:
            raise ValueError(
                f"{type(policy).__name__} has no reseed(seed), so that what it samples could not be repeated; use noise"
            )
        self.io, self._policy, self.how = policy.io, WithDensity(policy), how
        self._wave: tuple[np.ndarray, np.ndarray] | None = None
        self.reseed(seed)

    @property
    def parts(self) -> PolicyParts:
        """Noise that can be repeated."""
        return PolicyParts(reseed=self.reseed)

    def reseed(self, seed: int) -> None:
        """Begin the noise anew."""
        self._rng = np.random.default_rng(seed)
        again = self._policy.parts.reseed
        if self.how.sample and again is not None:
            again(seed)

    def reset(self, rows: Array | None = None) -> None:
        """Forget memory of these rows."""
        self._policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The policy's mode, spoilt; `logp` (B,) unless the action is a function of the state.

        Args:
            obs: what the policy reads; `bias` needs the vector "state".
            deterministic: not used: the spoiling is the behaviour.
        """
        first = next(iter(obs.values()))
        shape = (len(first), self.io.action_dim)
        # The numbers are drawn whether they are used or not: the stream does not depend on the agent.
        uniform, quantile = self._rng.uniform(-1.0, 1.0, shape), self._rng.random(shape)
        chance = self._rng.random(shape[0]) < self.how.random
        flat = -shape[1] * math.log(2.0)
        if self.how.random >= 1.0:
            return Action(uniform.astype(np.float32), logp=np.full(shape[0], flat, np.float32))
        answer = self._policy.act(obs, deterministic=not self.how.sample)
        mode = np.asarray(answer.value, np.float64)
        if self.how.bias:
            mode = mode + self.how.bias * self._pull(np.asarray(obs["state"], np.float64))
        mode = mode.clip(-1.0, 1.0)
        drawn = _truncated_normal(mode, self.how.noise, quantile) if self.how.noise else mode
        action = np.where(chance[:, None], uniform, drawn).clip(-1.0, 1.0).astype(np.float32)
        if self.how.noise:
            logp = _truncated_logp(action.astype(np.float64), mode, self.how.noise).sum(-1)
        elif self.how.bias or not self.how.sample or answer.logp is None:
            return Action(action)
        elif not self.how.random:
            logp = np.asarray(answer.logp, np.float32)
        else:
            density = self._policy.parts.log_prob
            if density is None:  # of the uniform actions it is not known
                return Action(action)
            logp = density(obs, torch.from_numpy(action)).cpu().numpy()
        if self.how.random:
            logp = np.logaddexp(math.log1p(-self.how.random) + logp, math.log(self.how.random) + flat)
        return Action(action, logp=logp.astype(np.float32))

    def _pull(self, state: np.ndarray) -> np.ndarray:
        if self._wave is None:
            rng = np.random.default_rng(0)
            weight = rng.normal(size=(state.shape[1], self.io.action_dim)) / math.sqrt(state.shape[1])
            self._wave = (weight, rng.uniform(-math.pi, math.pi, self.io.action_dim))
        return np.sin(state @ self._wave[0] + self._wave[1])


class Nobody:
    """Stands where an agent would, in behaviours that never ask one (uniform actions)."""

    parts = PolicyParts()

    def __init__(self, io: IOSpec) -> None:
        self.io = io

    def reset(self, rows: Array | None = None) -> None:
        """Nothing to forget."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Refuse: nobody is there."""
        raise RuntimeError("there is no agent to ask")


def _limits(mode: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of a normal distribution below -1 and below 1."""
    low, high = (torch.special.ndtr(torch.from_numpy((end - mode) / noise)).numpy() for end in (-1.0, 1.0))
    return low, high


def _truncated_normal(mode: np.ndarray, noise: float, quantile: np.ndarray) -> np.ndarray:
    low, high = _limits(mode, noise)
    return mode + noise * torch.special.ndtri(torch.from_numpy(low + quantile * (high - low))).numpy()


def _truncated_logp(action: np.ndarray, mode: np.ndarray, noise: float) -> np.ndarray:
    low, high = _limits(mode, noise)
    return -0.5 * np.square((action - mode) / noise) - math.log(noise) - _LOG_SQRT_TAU - np.log(high - low)
