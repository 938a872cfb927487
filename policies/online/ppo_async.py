"""PPO on rollouts of older policies: collection and learning overlap, the loss knows who acted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robot_rl.advantage import whiten
from robot_rl.advantage.importance import bounded_weight, effective_sample_size
from robot_rl.policies.online.ppo import Minibatch, Ppo, PpoPolicy
from robot_rl.types import IOSpec, Metrics, Rollout, StaleLearner

CORRECTIONS = ("decoupled", "naive")


class PpoAsync(Ppo, StaleLearner):
    """PPO whose rollouts may come from a policy that is some updates old.

    "decoupled": L = mean w min(rho A, clip(rho, 1 - c, 1 + c) A) with rho = pi / pi_prox and w = pi_prox / pi_behav,
    pi_prox the policy at the start of the update. The clip limits how far an update goes, the weight says whose data
    they are. "naive" is plain PPO with rho = pi / pi_behav: what is stale lies outside the clip from the start, and a
    part of the data teaches nothing or pulls back to the old policy.

    Args:
        io: interface of the environment; every observation a vector of floats.
        correction: "decoupled" or "naive".
        cap: upper bound of w.
        lag: act with the policy of this many updates ago, in turns with learning and reproducibly; None = collect in a
            thread of its own while learning goes on.
        queue: finished rollouts that may wait for the learner (lag None); a rollout is at most queue + 1 updates old.
        normalize_advantage: mean 0 and deviation 1 over the rollout, before the weights.
        seed, device, gamma, gae_lambda, rollout_steps, minibatch, epochs, clip, value_clip, entropy_coef, value_coef,
            max_grad_norm, lr, target_kl, log_std, log_std_init, hidden, activation, normalize_obs, normalize_reward,
            kernel: as in `Ppo`.

    Raises:
        ValueError: an option is outside its range.

    Source: Hilton et al., Batch size-invariance for policy optimization (decoupled objective); AReaL.
    """

    consumes = "stale_rollout"

    def __init__(
        self,
        io: IOSpec,
        *,
        correction: str = "decoupled",
        cap: float = 5.0,
        lag: int | None = None,
        queue: int = 1,
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
        if correction not in CORRECTIONS:
            raise ValueError(f"correction is {correction!r}, expected one of {CORRECTIONS}")
        if cap <= 0 or queue < 1 or (lag is not None and lag < 0):
            raise ValueError(f"cap is {cap}, queue {queue} and lag {lag}, expected above 0, at least 1 and at least 0")
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            gae_lambda=gae_lambda,
            rollout_steps=rollout_steps,
            minibatch=minibatch,
            epochs=epochs,
            clip=clip,
            value_clip=value_clip,
            entropy_coef=entropy_coef,
            value_coef=value_coef,
            max_grad_norm=max_grad_norm,
            lr=lr,
            target_kl=target_kl,
            log_std=log_std,
            log_std_init=log_std_init,
            hidden=hidden,
            activation=activation,
            normalize_obs=normalize_obs,
            normalize_reward=normalize_reward,
            normalize_advantage=False,
            kernel=kernel,
        )
        self.lag, self.queue = lag, queue
        self._correction, self._cap, self._whiten = correction, cap, normalize_advantage
        self._normalize, self._noise = normalize_obs, int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])
        self._stale: Metrics = {}

    def actor(self) -> PpoPolicy:
        """A policy of the same shape with weights and noise of its own; it acts after `load_state_dict`."""
        return PpoPolicy(
            self._actor.io,
            self._layout,
            self._params.detach().cpu().clone(),
            activation=self._activation,
            seed=self._noise,
            normalize_obs=self._normalize,
        )

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """As `Ppo.update`, and how far the data are from the present policy."""
        metrics = super().update(batches)
        return {**metrics, **self._stale}

    def _rows(self, rollout: Rollout, reward: Tensor) -> tuple[Minibatch, Tensor]:
        data, raw = super()._rows(rollout, reward)
        proximal = self._logp(data)
        weight = (proximal - data.logp).clamp(-20.0, 20.0).exp()
        bounded = bounded_weight(weight, "clamp", cap=self._cap)
        every = torch.ones_like(weight, dtype=torch.bool)
        advantage = whiten(data.advantage, every) if self._whiten else data.advantage
        self._stale = {
            "train/behaviour_kl": float((weight - 1.0 - weight.log()).mean()),
            "train/weight_max": float(weight.max()),
            "train/effective_sample_size": float(effective_sample_size(bounded, every)),
        }
        if self._correction == "decoupled":
            # w > 0, so that it may go inside the minimum.
            return replace(data, logp=proximal, advantage=bounded * advantage), raw
        return replace(data, advantage=advantage), raw
