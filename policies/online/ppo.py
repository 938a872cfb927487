"""PPO: clipped policy updates over minibatches of a rollout, with advantages from `robot_rl.advantage`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.advantage import reverse_linear_scan, rollout_gae
from robot_rl.policies.online.ppo_kernel import (
    ACTIVATIONS,
    Adam,
    Kernel,
    Layout,
    Loss,
    Minibatch,
    autograd_loss,
    gaussian_logp,
    torch_forward,
)
from robot_rl.policies.online.ppo_policy import Moments, PpoPolicy, obs_dim
from robot_rl.types import Array, IOSpec, Metrics, Obs, OnPolicyLearner, Rollout

REWARD_LIMIT = 10.0
KERNELS = ("auto", "numba", "numpy", "torch")


class Ppo(OnPolicyLearner):
    """Proximal policy optimisation.

    Args:
        io: interface of the environment; every observation a vector of floats.
        seed: seed of weights, action noise and minibatch order.
        device: "cpu", or a device for large batches and networks.
        gamma: discount per step.
        gae_lambda: weight of longer returns in the advantage.
        rollout_steps: steps T of each environment between updates, read by the loop.
        minibatch: rows of one gradient.
        epochs: passes over a rollout.
        clip: the probability ratio is clipped to [1 - clip, 1 + clip].
        value_clip: a value may move this far from its old estimate in one update; None means without limit.
        entropy_coef: weight of the entropy bonus.
        value_coef: weight of the squared value error.
        max_grad_norm: largest norm of the gradient of both networks together.
        lr: step size of Adam.
        target_kl: stop the update when the mean KL divergence from the acting policy exceeds 1.5 times this.
        log_std: "free" (one vector) or "state" (a head of the actor).
        log_std_init: initial log standard deviation of the action.
        hidden: widths of the hidden layers of actor and critic.
        activation: "tanh", "relu" or "elu".
        normalize_obs: shift and scale observations by running moments, updated between rollouts.
        normalize_reward: divide rewards by the running standard deviation of the discounted return.
        normalize_advantage: shift and scale advantages per minibatch.
        kernel: "numpy" (written-out gradients, CPU only), "numba" (the same with compiled parts), "torch" (autograd),
            or "auto": the fastest that is installed for the device.

    Raises:
        ValueError: an option is outside its range or an observation is no vector.

    Source: Schulman et al., Proximal Policy Optimization Algorithms; truncated episodes bootstrap from their true
    successor (Pardo et al., Time Limits in Reinforcement Learning).
    """

    consumes = "rollout"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        rollout_steps: int = 2048,
        minibatch: int = 64,
        epochs: int = 10,
        clip: float = 0.2,
        value_clip: float | None = None,
        entropy_coef: float = 0.0,
        value_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        lr: float = 3e-4,
        target_kl: float | None = None,
        log_std: str = "free",
        log_std_init: float = 0.0,
        hidden: tuple[int, ...] = (64, 64),
        activation: str = "tanh",
        normalize_obs: bool = True,
        normalize_reward: bool = False,
        normalize_advantage: bool = True,
        kernel: str = "auto",
    ) -> None:
        for name, value, options in (
            ("log_std", log_std, ("free", "state")),
            ("activation", activation, ACTIVATIONS),
            ("kernel", kernel, KERNELS),
        ):
            if value not in options:
                raise ValueError(f"{name} is {value!r}, expected one of {options}")
        for name, number in (("rollout_steps", rollout_steps), ("minibatch", minibatch), ("epochs", epochs)):
            if number < 1:
                raise ValueError(f"{name} is {number}, expected at least 1")
        on_cpu = torch.device(device).type == "cpu"
        if kernel in ("numpy", "numba") and not on_cpu:
            raise ValueError(f"kernel {kernel!r} runs on the CPU only, got device {device!r}; use kernel 'torch' there")
        self.rollout_steps, self.gamma = rollout_steps, gamma
        self._gae_lambda, self._minibatch, self._epochs = gae_lambda, minibatch, epochs
        self._target_kl, self._normalize_advantage = target_kl, normalize_advantage
        self._loss = Loss(clip, value_clip, value_coef, entropy_coef)
        self._activation, self._layout = (
            activation,
            Layout(obs_dim(io), io.action_dim, tuple(hidden), log_std == "state"),
        )
        init, shuffle, act = np.random.SeedSequence(seed).spawn(3)
        weights = np.empty(self._layout.size, np.float32)
        self._layout.fill(weights, np.random.default_rng(init), activation, log_std_init)
        self._params = torch.from_numpy(weights).to(device)
        self._shuffle = np.random.default_rng(shuffle)
        if kernel == "auto":
            kernel = ("numba" if find_spec("numba") else "numpy") if on_cpu else "torch"
        self._explicit = kernel != "torch"
        compiled: Any = importlib.import_module(f"{__package__}.ppo_numba") if kernel == "numba" else None
        self._adam = Adam(self._params, lr, max_grad_norm, compiled=compiled and compiled.adam)
        if self._explicit:
            rows = compiled and compiled.loss_rows
            self._kernel = Kernel(self._layout, self._params.numpy(), activation, self._loss, rows)
            self._grad = torch.from_numpy(self._kernel.grad)
        else:
            self._grad = torch.zeros_like(self._params)
            self._leaves = self._make_leaves()
        self._actor = PpoPolicy(
            io,
            self._layout,
            self._params,
            activation=activation,
            seed=int(act.generate_state(1)[0]),
            normalize_obs=normalize_obs,
            act_rows=compiled and compiled.act_rows,
        )
        self.policy = self._actor
        self._scale = RewardScale(gamma) if normalize_reward else None
        self.updates = 0

    def value(self, obs: Obs) -> Tensor:
        """(B,) the critic's estimates."""
        return torch.as_tensor(self._actor.value(obs))

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """Take one rollout and improve actor and critic over `epochs` passes.

        Returns:
            Losses, KL divergence and clip fraction of the last pass, and the explained variance of the old values.

        Raises:
            FloatingPointError: the gradient is not finite.
        """
        rollout = next(batches)
        data, raw = self._rows(rollout, rollout.reward if self._scale is None else self._scale(rollout))
        metrics = self._optimize(data)
        if not bool(torch.isfinite(self._params).all()):
            raise FloatingPointError(
                "PPO's weights are no longer finite after an update; lower lr or clip, normalise rewards "
                "(normalize_reward=true), and resume from the last checkpoint"
            )
        self._actor.observe(raw)
        self._actor.refresh()
        self.updates += 1
        spread = float(data.target.var())
        metrics["train/explained_variance"] = 1.0 - float((data.target - data.value).var()) / max(spread, 1e-12)
        metrics["train/advantage_std"] = float(data.advantage.std())
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, Adam, generators, reward scale, counters."""
        return {
            "policy": self._actor.state_dict(),
            "noise": self._actor.generator_state(),
            "adam": self._adam.state_dict(),
            "shuffle": self._shuffle.bit_generator.state,
            "scale": None if self._scale is None else self._scale.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place: the next update equals that of the saved learner."""
        self._actor.load_state_dict(state["policy"])
        self._actor.load_generator_state(state["noise"])
        self._adam.load_state_dict(state["adam"])
        self._shuffle.bit_generator.state = state["shuffle"]
        if self._scale is not None and state["scale"] is not None:
            self._scale.load_state_dict(state["scale"])
        self.updates = int(state["updates"])

    def _rows(self, rollout: Rollout, reward: Tensor) -> tuple[Minibatch, Tensor]:
        """The valid rows of a rollout as one large minibatch, and their observations as they came."""
        advantage, target = self._advantage(rollout, reward)
        keep = rollout.valid.reshape(-1)
        every = bool(keep.all())

        def rows(x: Tensor) -> Tensor:
            flat = x.reshape(len(keep), *x.shape[2:])
            return flat if every else flat[keep]

        obs = {key: rows(value) for key, value in rollout.obs.items()}
        columns = (rollout.action, rollout.logp, advantage, target, rollout.value)
        data = Minibatch(
            self._actor.normalized_on_device(obs),
            *(rows(x).to(self._params.device) for x in columns),
        )
        return data, torch.cat([obs[key] for key in sorted(obs)], dim=-1)

    @torch.no_grad()
    def _logp(self, data: Minibatch) -> Tensor:
        """(M,) log-probability of the rows' samples under the present policy."""
        views = self._layout.views(self._params)
        mean, log_std, _ = torch_forward(views, self._layout, data.obs, self._activation)
        return gaussian_logp(data.action, mean, log_std)

    def _advantage(self, rollout: Rollout, reward: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and value targets (T, N)."""
        return rollout_gae(
            reward,
            rollout.value,
            rollout.next_value,
            rollout.terminated,
            rollout.boundary,
            gamma=self.gamma,
            gae_lambda=self._gae_lambda,
            valid=None if bool(rollout.valid.all()) else rollout.valid,
        )

    def _optimize(self, data: Minibatch) -> Metrics:
        columns = [getattr(data, field.name) for field in fields(Minibatch)]
        log_ratio, value = torch.zeros_like(data.logp), torch.zeros_like(data.logp)
        outs: list[Any] = [log_ratio, value]
        if self._explicit:
            columns, outs = [x.numpy() for x in columns], [x.numpy() for x in outs]
        gradient = self._kernel.gradient if self._explicit else self._autograd
        count, seen, norm, steps, stop = len(data.logp), 0, 0.0, 0, False
        shuffled = Minibatch(*columns)
        for _ in range(self._epochs):
            order = self._shuffle.permutation(count)
            index = order if self._explicit else torch.from_numpy(order).to(data.logp.device)
            shuffled = Minibatch(*(x[index] for x in columns))
            if self._normalize_advantage:
                standardize(shuffled.advantage, self._minibatch)
            for start in range(0, count, self._minibatch):
                rows = slice(start, start + self._minibatch)
                batch = Minibatch(
                    shuffled.obs[rows],
                    shuffled.action[rows],
                    shuffled.logp[rows],
                    shuffled.advantage[rows],
                    shuffled.target[rows],
                    shuffled.value[rows],
                )
                gradient(batch, outs[0][rows], outs[1][rows])
                seen = min(start + self._minibatch, count)
                stop = self._target_kl is not None and _kl(log_ratio[rows]) > 1.5 * self._target_kl
                if stop:
                    break
                norm = self._adam.step(self._grad)
                steps += 1
            if stop:
                break
        advantage, target = (torch.as_tensor(x[:seen]) for x in (shuffled.advantage, shuffled.target))
        ratio = log_ratio[:seen].exp()
        bounded = ratio.clamp(1.0 - self._loss.clip, 1.0 + self._loss.clip)
        return {
            "train/policy_loss": float(-torch.minimum(ratio * advantage, bounded * advantage).mean()),
            "train/value_loss": float((value[:seen] - target).square().mean()),
            "train/kl": _kl(log_ratio[:seen]),
            "train/clip_fraction": float((ratio != bounded).float().mean()),
            "train/gradient_norm": float(norm),
            "train/gradient_steps": float(steps),
        }

    def _autograd(self, batch: Minibatch, log_ratio: Tensor, value: Tensor) -> None:
        self._grad.zero_()
        loss, ratio, estimate = autograd_loss(self._leaves, self._layout, self._activation, self._loss, batch)
        loss.backward()
        log_ratio.copy_(ratio)
        value.copy_(estimate)

    def _make_leaves(self) -> dict[str, Tensor]:
        """Parameters as leaves that share memory with the flat vector, their gradients with the flat gradient."""
        leaves = self._layout.views(self._params)
        for (name, view), grad in zip(leaves.items(), self._layout.views(self._grad).values()):
            leaves[name] = view.detach().requires_grad_()
            leaves[name].grad = grad
        return leaves


class RewardScale:
    """Divides rewards by the running standard deviation of the discounted return, clipped to [-10, 10].

    Args:
        gamma: discount of the return.

    Source: Engstrom et al., Implementation Matters in Deep RL, reward scaling.
    """

    def __init__(self, gamma: float) -> None:
        self._gamma, self._moments = gamma, Moments(1)
        self._carry: Tensor | None = None

    def __call__(self, rollout: Rollout) -> Tensor:
        """(T, N) scaled rewards; the rollout is counted first."""
        reward = rollout.reward
        over = (rollout.terminated | rollout.truncated) & rollout.valid
        # R_t = r_t + gamma (1 - end_{t-1}) R_{t-1} runs forward: the backward scan on flipped time.
        going = torch.ones_like(reward)
        going[1:] = 1.0 - over[:-1].float()
        delta = (reward * rollout.valid).clone()
        if self._carry is not None:
            delta[0] += self._gamma * self._carry.to(delta.device)
        total = reverse_linear_scan(delta.flip(0), self._gamma * going.flip(0)).flip(0)
        self._carry = total[-1] * (~over[-1]).float()
        self._moments.add(total[rollout.valid][:, None])
        spread = float(np.sqrt(self._moments.var[0] + 1e-8))
        return (reward / spread).clamp(-REWARD_LIMIT, REWARD_LIMIT)

    def state_dict(self) -> dict[str, Any]:
        """Moments and running returns."""
        return {**self._moments.state_dict(), "carry": self._carry}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._moments.load_state_dict(state)
        self._carry = None if state["carry"] is None else torch.as_tensor(state["carry"])


def standardize(advantage: Array, size: int) -> None:
    """Shift and scale each run of `size` entries of a (M,) array to mean 0 and deviation 1, in place.

    A run of one entry, or without spread, becomes 0 and not NaN.
    """
    whole = len(advantage) // size * size
    for part in (advantage[:whole].reshape(-1, size), advantage[whole:][None]):
        if part.shape[1] == 0 or part.shape[0] == 0:
            continue
        part -= part.mean(1)[:, None]
        if part.shape[1] > 1:
            square = (part * part).sum(1) / (part.shape[1] - 1)
            part /= (square**0.5)[:, None] + 1e-8


def _kl(log_ratio: Tensor) -> float:
    """Estimate of KL(old, new). Source: Schulman, Approximating KL Divergence (k3)."""
    return float((torch.expm1(log_ratio) - log_ratio).mean())
