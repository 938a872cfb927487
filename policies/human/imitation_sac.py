"""RLPD with imitation: behaviour-cloned start, imitation beside the RL loss, and a leash to the demonstrations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import SquashedSample, squash_grad
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.imitation import (
    CLONE_EDGE,
    SWITCH_WEIGHT,
    check_cloning,
    human_rows,
    imitation_grad,
    log_density,
)
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.squashed_policy import SquashedGaussianPolicy
from robot_rl.policies.online.sac import Sac
from robot_rl.types import IOSpec, Metrics, Obs, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Positive, Rate, Whole


class ImitationSac(Sac):
    """Soft actor-critic on half demonstrations, with three uses of them in the loss; each can be switched off.

    - `bc_steps` of behaviour cloning before the first own step, then `warmup_steps` critic steps with a fixed actor;
    - `il_weight` times the negative log-likelihood of human actions beside the RL loss, fading over `il_fade` updates;
      the policy's own steps never count, a span's first two steps count less (`Transitions.extras["imitate"]`), steps
      that open or close a gripper count more;
    - `kl_weight` lambda: maximise the return minus lambda KL(pi || pi_BC), where pi_BC is the frozen result of the
      cloning.

    With bc_steps, il_weight and kl_weight all 0 every update equals `Sac` bit for bit. What acts is a running mean of
    the actor's weights: the newest ones shake, and one block of trials may catch them at their worst.

    Source: Ball et al., Efficient Online RL with Offline Data (RLPD); Tiapkin et al., Demonstration-Regularized RL (the
    KL term); Rajeswaran et al., DAPG (fading imitation term; where we differ: the log-likelihood is weighted per row,
    not by the advantage); Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging (the mean of the
    weights).
    """

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.97,
        batch_size: Count = 256,
        hidden: tuple[Count, ...] = (256, 256),
        critics: Count = 4,
        subset: Count | None = 2,
        utd: Count = 2,
        lr: Rate = 3e-4,
        tau: Mixing = 0.005,
        init_alpha: Positive = 0.01,
        target_entropy: float | str = "half",
        backup_entropy: bool = False,
        normalize_obs: bool = True,
        bc_steps: Whole = 1000,
        warmup_steps: Whole = 0,
        il_weight: NotNegative = 0.3,
        il_fade: Whole = 20_000,
        il_min_std: NotNegative = 0.1,
        il_edge: NotNegative = CLONE_EDGE,
        il_switch_weight: NotNegative = SWITCH_WEIGHT,
        q_filter: bool = False,
        kl_weight: NotNegative = 0.0,
        kl_floor: NotNegative = 20.0,
        acting_rate: float = 0.01,
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`; options that are not listed are those of `Sac`.

        Args:
            io: observation "state"; images go through `Sac`'s encoder.
            seed: of weights and noise.
            device: torch device.
            gamma: discount per step, part of every learner's signature.
            batch_size: rows per critic step.
            hidden: widths of actor and critics.
            critics: E, with LayerNorm.
            subset: critics in the target's minimum.
            utd: critic steps per update.
            lr: of everything.
            tau: of the targets.
            init_alpha: first temperature.
            target_entropy: "half" is -A / 2.
            backup_entropy: whether the target contains the entropy.
            normalize_obs: standardise the state.
            bc_steps: updates of behaviour cloning before the first own step.
            warmup_steps: critic steps after that with the actor fixed.
            il_weight: of the imitation term beside the RL loss.
            il_fade: updates over which it falls linearly to 0; 0 = never.
            il_min_std: floor of the standard deviation inside imitation losses.
            il_edge: cloned actions are clipped to 1 - il_edge.
            il_switch_weight: of rows that open or close a gripper in imitation losses; all others weigh at most 1.
            q_filter: imitate only where the critics prefer the human's action to the policy's.
            kl_weight: lambda of the leash to pi_BC.
            kl_floor: log pi_BC is cut below at minus this times A.
            acting_rate: the policy that acts is a running mean of the actor's weights, which takes in the newest at
                this rate per update; 1 acts with the newest.
            metrics_every: as in `Sac`.

        Raises:
            ValueError: an option outside its range.
        """
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            hidden=hidden,
            critics=critics,
            subset=subset,
            layer_norm=True,
            utd=utd,
            actor_reduce="mean",
            lr=lr,
            tau=tau,
            init_alpha=init_alpha,
            target_entropy=target_entropy,
            backup_entropy=backup_entropy,
            normalize_obs=normalize_obs,
            metrics_every=metrics_every,
        )
        if min(bc_steps, warmup_steps, il_fade) < 0 or min(il_weight, kl_weight) < 0.0:
            raise ValueError("bc_steps, warmup_steps, il_fade, il_weight and kl_weight must not be negative")
        if not kl_floor > 0.0:
            raise ValueError(f"kl_floor is {kl_floor}, it must be above 0")
        if not 0.0 < acting_rate <= 1.0:
            raise ValueError(f"acting_rate is {acting_rate}, it must be above 0 and at most 1 (no averaging)")
        check_cloning(il_min_std, il_edge, il_switch_weight)
        if kl_weight > 0.0 and not bc_steps:
            raise ValueError("kl_weight needs a cloned policy to stay near; set bc_steps above 0")
        self._bc_steps, self._warmup = bc_steps, warmup_steps
        self._il_weight, self._il_fade, self._q_filter = il_weight, il_fade, q_filter
        self._min_std, self._edge, self._switch_weight = il_min_std, il_edge, il_switch_weight
        self._kl_weight, self._kl_floor = kl_weight, kl_floor * io.action_dim
        self._shape = MlpShape(1, self._features, tuple(hidden), 2 * io.action_dim, False, "actor.")
        self._clone_params = FlatParams(self._shape.shapes(), device=self._device, trainable=False)
        self._clone = build_mlp(self._shape, self._clone_params)
        self._cloned = False
        self._acting, self._acting_rate = self._actor_params.twin(), acting_rate
        self.policy = SquashedGaussianPolicy(
            io,
            self._shape,
            self._acting,
            seed=seed + 1,
            normalizer=self._norm,
            encoder_shape=None if self._encoder is None else self._encoder.shape,
        )
        self.policy.follow_encoder(self._critic_params)
        self._extra: Metrics = {}

    def pretrain(self, batches: Iterator[Transitions], /) -> Metrics:
        """Behaviour cloning on demonstrations, then critic steps with the actor fixed.

        Args:
            batches: demonstrations and human steps.

        Returns:
            pretrain/nll of the last batch before and after.
        """
        first = last = math.nan
        for _ in range(self._bc_steps):
            batch = next(batches)
            raw = self._actor.forward(self._bc_feature(batch))[0]
            grad, loss = self._imitation(raw, batch)
            self._actor.backward(grad[None])
            self._actor_params.adam(self._actor_lr)
            self._actor.refresh()
            last = float(loss)
            first = last if math.isnan(first) else first
        if self._bc_steps:
            for params in (self._clone_params, self._acting):
                params.flat.copy_(self._actor_params.flat)
            self._clone.refresh()
            self._cloned = True
        for _ in range(self._warmup):
            self._critic_step(next(batches), False, None)
        self.policy.follow_encoder(self._critic_params)
        return {"pretrain/nll_first": first, "pretrain/nll": last} if self._bc_steps else {}

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """As `Sac.update`; adds train/il_loss, train/il_weight and train/kl."""
        metrics = super().update(batches)
        self._acting.blend(self._actor_params, self._acting_rate)
        return {**metrics, **self._extra}

    @torch.no_grad()
    def values(self, obs: Obs, action: np.ndarray) -> np.ndarray:
        """(E, B) values of the target critics at observations (B, ...) and actions (B, A); for advice, not learning."""
        tensors = {key: torch.as_tensor(np.asarray(value)).to(self._device) for key, value in obs.items()}
        parts: list[Tensor] = []
        if self._encoder is not None:
            parts.append(self._encoder({key: tensors[key] for key in self._encoder.shape.cameras}))
        if "state" in tensors:
            parts.append(tensors["state"] if self._norm is None else self._norm(tensors["state"]))
        rows = torch.cat([*parts, torch.as_tensor(action).to(self._device, torch.float32)], dim=1)
        return self._head.value(self._target.forward(rows)).cpu().numpy()

    @property
    def il_weight(self) -> float:
        """Weight of the imitation term in this update."""
        left = 1.0 if not self._il_fade else max(0.0, 1.0 - self.updates / self._il_fade)
        return self._il_weight * left

    def _bc_feature(self, batch: Transitions) -> Tensor:
        state, _ = self._state(batch)
        if self._encoder is None:
            assert state is not None
            return state
        with torch.no_grad():
            seen = self._encoder(self._images(batch.obs))
        return seen if state is None else torch.cat([seen, state], dim=1)

    def _entropy_cost(self, feature: Tensor, action: Tensor, logp: Tensor, alpha: float) -> Tensor:
        cost = super()._entropy_cost(feature, action, logp, alpha)
        if self._kl_weight > 0.0 and self._cloned:
            known = log_density(self._clone.forward(feature)[0], action, min_std=0.1).clamp_min(-self._kl_floor)
            cost = cost + self._kl_weight * (logp - known)
        return cost

    def _actor_grad(self, feature: Tensor, sample: SquashedSample, d_action: Tensor, alpha: float) -> Tensor:
        size, weight = len(feature), self.il_weight
        leash = self._kl_weight if self._cloned else 0.0
        if leash > 0.0:
            with torch.enable_grad():
                action = sample.action.detach().requires_grad_(True)
                with torch.no_grad():
                    clone = self._clone.forward(feature)[0]
                known = log_density(clone, action, min_std=0.1).clamp_min(-self._kl_floor)
                (d_known,) = torch.autograd.grad(known.sum(), action)
            d_action = d_action - d_known * (leash / size)
            self._extra["train/kl"] = float((sample.logp - known.detach()).mean())
        d_raw = squash_grad(sample, d_action, (alpha + leash) / size)
        if weight > 0.0 and self._seen is not None:
            raw, batch = self._seen
            preferred = self._better(feature, batch.action, sample.action) if self._q_filter else None
            grad, loss = self._imitation(raw, batch, preferred)
            d_raw = d_raw + weight * grad
            self._extra |= {"train/il_loss": float(loss), "train/il_weight": weight}
        return d_raw

    def _imitation(self, raw: Tensor, batch: Transitions, preferred: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gradient of the imitation loss by `raw`, and the loss; with `preferred` (B,) of these rows only."""
        rows = human_rows(batch, switch_weight=self._switch_weight)
        if preferred is not None:
            rows = rows * preferred
        return imitation_grad(raw, batch.action, rows, min_std=self._min_std, edge=self._edge)

    def _better(self, feature: Tensor, human: Tensor, own: Tensor) -> Tensor:
        """(B,) 1 where the mean critic prefers the recorded action."""
        # the target network: a forward pass of the critics would overwrite what their backward pass needs
        values = [self._head.value(self._target.forward(torch.cat([feature, a], dim=1))).mean(0) for a in (human, own)]
        return (values[0] > values[1]).to(feature.dtype)

    def state_dict(self) -> dict[str, Any]:
        """As `Sac`, with the cloned policy."""
        return {**super().state_dict(), "clone": self._clone_params.state_dict(), "cloned": self._cloned}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        super().load_state_dict(state)
        self._clone_params.load_state_dict(state["clone"])
        self._clone.refresh()
        self._cloned = bool(state["cloned"])
