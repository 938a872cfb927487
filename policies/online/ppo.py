"""PPO: clipped policy updates over minibatches of a rollout; the advantages and the loss are `robot_rl.advantage`'s."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robot_rl.advantage import (
    FusedOptions,
    Pipeline,
    Stage,
    from_vector_rollout,
    fused_policy_loss,
    reverse_linear_scan,
)
from robot_rl.policies.nets.actor_critic import (
    ActorCriticLayout,
    Adam,
    build_actor_critic,
    gaussian_logp,
    torch_outputs,
)
from robot_rl.policies.nets.image import EncoderShape
from robot_rl.policies.nets.step_size import LrSchedule, StepSize
from robot_rl.policies.nets.surrogate import SurrogateOptions
from robot_rl.policies.online.ppo_choices import ChoicePolicy, choice_loss
from robot_rl.policies.online.ppo_policy import Moments, PpoPolicy, obs_dim
from robot_rl.state import Saved
from robot_rl.types import Array, IOSpec, Metrics, Needs, Obs, OnPolicyLearner, Rollout, StateDict
from robot_rl.types.options import Count, NotNegative, Number, Positive

REWARD_LIMIT = 10.0


class VectorPpoOptions(SurrogateOptions):
    """Of PPO and what changes its rows; numbers from stable-baselines3, except what observations and rewards are
    divided by."""

    rollout_steps: Count = 2048
    """Steps T of each environment between updates."""
    minibatch: Count = 64
    """Rows of one gradient."""
    epochs: Count = 10
    """Passes over a rollout."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """c: the loss of a row with a negative advantage is at most c |A|; null for no bound."""
    value_clip: NotNegative | None = None
    """A value may move this far from its old estimate in one update; null for no limit."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy bonus."""
    value_coef: NotNegative = 0.5
    """Weight of the squared value error."""
    max_grad_norm: Positive = 0.5
    """Largest norm of the gradient of both networks together."""
    lr: NotNegative = 3e-4
    """Step size of Adam, at the start of the run."""
    lr_schedule: LrSchedule = "constant"
    """How it changes: linear or cosine to 0 at the end of the run; adaptive: so that an update moves by `target_kl`."""
    target_kl: Positive | None = None
    """The update ends when the mean KL divergence from the acting policy exceeds 1.5 times this; with
    lr_schedule=adaptive it never ends early, and null means 0.01."""
    log_std: Literal["free", "state"] = "free"
    """One vector of log standard deviations, or a head of the actor."""
    log_std_init: Number = 0.0
    """Initial log standard deviation of the action."""
    hidden: tuple[Count, ...] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Of the hidden layers."""
    normalize_obs: bool = True
    """Move and scale observations by running moments, updated between rollouts."""
    obs_spread: Positive | None = 2.0
    """Components that deviate more than this are shrunk to it, those whose mean is further from 0 are moved to it,
    others stay as they are; null: all get mean 0 and deviation 1."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return; values are in those units."""
    normalize_advantage: bool = True
    """Shift and scale advantages per minibatch."""
    kernel: Literal["auto", "explicit", "autograd"] = "auto"
    """Gradients written out (CPU; compiled parts where numba is installed), or by torch; auto: the faster one."""


class PpoOptions(VectorPpoOptions):
    """Of PPO, with those of what reads pictures: one small encoder per camera, trained by actor and critic alike."""

    pictures_only = frozenset({"encoder_channels", "encoder_strides", "latent"})

    encoder_channels: tuple[Count, ...] = (32, 32, 32, 32)
    """Channels of the image encoder's convolutions."""
    encoder_strides: tuple[Count, ...] = (2, 2, 1, 1)
    """Strides of them."""
    latent: Count = 50
    """Features per camera."""


OptionsT = TypeVar("OptionsT", bound=VectorPpoOptions)
Rows = dict[str, Any]
"""Columns of decisions by the names of `fused_policy_loss`, and "obs" (M, S), normalised: arrays where gradients are
written out, else tensors."""


class PpoLearner(OnPolicyLearner[OptionsT, Rollout]):
    """What PPO shares with the methods that change its rows: networks, the passes over a rollout, saved state.

    The critic reads what is for critics alone ("privileged") beside what the policy sees, where there is any.

    Args:
        options: of the method.
        io: interface of the environment; every observation a vector of floats, or a picture where the method has an
            encoder of it.
        seed: seed of weights, action noise and minibatch order.
        device: "cpu", or a device for large batches and networks.
        gamma: discount per step.

    Raises:
        ValueError: an option does not fit the device or the interface, or an observation cannot be read.
    """

    privileged = True

    def __init__(
        self, options: OptionsT, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        super().__init__(options, io, seed=seed, device=device)
        o, self.gamma, self.updates, self.rollout_steps = options, gamma, 0, options.rollout_steps
        on_cpu = torch.device(device).type == "cpu"
        if o.kernel == "explicit" and not on_cpu:
            raise ValueError(f"kernel=explicit runs on the CPU only, got device {device!r}; use kernel=autograd there")
        init, shuffle, act = np.random.SeedSequence(seed).spawn(3)
        if io.action_choices and (o.log_std != "free" or o.log_std_init):
            raise ValueError("log_std and log_std_init have no effect where an action is a choice; leave them out")
        width = sum(io.action_choices) or io.action_dim
        eye = self._eye(io)
        cameras = () if eye is None else tuple(eye.cameras)
        vectors = obs_dim(io.acting, cameras)
        seen, more = vectors + (0 if eye is None else eye.outputs), obs_dim(io, cameras) - vectors
        self._layout = ActorCriticLayout(seen, width, o.hidden, o.log_std == "state", more, eye)
        if eye is not None and o.kernel == "explicit":
            raise ValueError("kernel=explicit has no gradients of pictures; leave kernel out, or leave cameras out")
        weights = np.empty(self._layout.size, np.float32)
        self._layout.fill(weights, np.random.default_rng(init), o.activation, o.log_std_init)
        self._params = torch.from_numpy(weights).to(device)
        self._explicit = on_cpu and o.kernel != "autograd" and eye is None
        self._shown: dict[str, Tensor] = {}  # camera -> pictures of the rollout that is learnt from, as they came
        if o.kernel == "auto":
            self.notes = (f"kernel=auto: gradients are {'written out' if self._explicit else 'left to torch'}",)
        if eye is not None:
            size = o.rollout_steps * sum(math.prod(shape) for shape in eye.cameras.values())
            self.notes += (f"pictures of one rollout: {size / 1e6:.1f} MB for each copy of the environment",)
        self._net: Any = build_actor_critic(self._layout, self._params, o.activation, explicit=self._explicit)
        self._adam = Adam(self._params, o.lr, o.max_grad_norm)
        self._lr = StepSize(o.lr, o.lr_schedule, o.target_kl or 0.01)
        self._enough = None if o.lr_schedule == "adaptive" or o.target_kl is None else 1.5 * o.target_kl
        self._loss = FusedOptions(o.clip, o.dual_clip, o.value_clip, o.value_coef, o.entropy_coef)
        self._fused = partial(choice_loss, counts=io.action_choices) if io.action_choices else fused_policy_loss
        self._normalize_parts = o.normalize_advantage  # advantages of a minibatch; else a method's rows are as they are
        self._pipeline = Pipeline([Stage("gae", options={"gamma": gamma, "gae_lambda": o.gae_lambda})])
        self._shuffle = np.random.default_rng(shuffle)
        self._scale = ReturnScale(gamma) if o.normalize_reward else None
        self._actor = self._make_policy(self._params, int(act.generate_state(1)[0]))
        self.policy = self._actor

    @classmethod
    def needs(cls, options: OptionsT, io: IOSpec) -> Needs:
        """Fresh rollouts."""
        return replace(super().needs(options, io), rollout_steps=options.rollout_steps)

    def set_progress(self, share: float) -> None:
        """For the step size."""
        self._lr.progress = share

    def value(self, obs: Obs) -> Tensor:
        """(B,) the critic's estimates."""
        return torch.as_tensor(self._actor.value(obs))

    def _eye(self, io: IOSpec) -> EncoderShape | None:
        """What reads pictures; None: pictures are refused."""
        return None

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """Take one rollout and improve actor and critic over `epochs` passes.

        Returns:
            Losses, KL divergence and clip fraction of the last pass, the explained variance of the old values, and the
            share of rows that took part.

        Raises:
            FloatingPointError: no row of the rollout is finite.
        """
        rollout = next(batches)
        scaled = rollout if self._scale is None else replace(rollout, reward=self._scale(rollout))
        rows = self._rows(scaled)
        count = len(rows["logp"])
        if not count:
            raise FloatingPointError(
                f"none of the {int(rollout.valid.sum())} rows of a rollout is finite; look for NaN in the "
                "environment's rewards and observations, and resume from the last checkpoint"
            )
        target, value = torch.as_tensor(rows["target"]), torch.as_tensor(rows["value"])
        left, spread = (float(x.var(correction=0)) for x in (target - value, target))
        found = {
            "train/explained_variance": 1.0 - left / max(spread, 1e-12),
            "train/advantage_std": float(torch.as_tensor(rows["advantage"]).std(correction=0)),
            "train/rows_used": count / max(int(rollout.valid.sum()), 1),
        }
        self._adam.lr = self._lr()
        metrics = self._fit({name: x.numpy() for name, x in rows.items()} if self._explicit else rows)
        self._lr.follow(metrics["train/kl"])
        found["train/lr"] = self._adam.lr
        self._shown = {}
        self._actor.observe({key: x.flatten(0, 1)[rollout.valid.flatten()] for key, x in self._vectors(rollout)})
        self._actor.refresh()
        self.updates += 1
        return metrics | found

    def _rows(self, rollout: Rollout) -> dict[str, Tensor]:
        """Decisions that are learnt from, with their advantages and value targets; none that is not finite."""
        batch = self._batch(rollout)
        credit = self._pipeline(batch)
        rows = torch.as_tensor(batch.steps.extras["source"])[torch.as_tensor(credit.mask)]
        obs = {key: x.flatten(0, 1)[rows] for key, x in self._vectors(rollout)}
        columns = {name: x.flatten(0, 1)[rows] for name, x in (("action", rollout.action), ("logp", rollout.logp))}
        known = torch.as_tensor(credit.mask)
        columns |= {"advantage": torch.as_tensor(credit.advantage)[known], "value": batch.steps.value[known]}
        columns |= {"target": torch.as_tensor(credit.returns)[known]}
        data = {name: torch.as_tensor(x).to(self._params.device) for name, x in columns.items()}
        if self._layout.eye is not None:  # pictures stay where they are, bytes; a minibatch takes its own
            self._shown = {key: rollout.obs[key].flatten(0, 1) for key in self._layout.eye.cameras}
            data["row"] = rows.to(self._params.device)
        if not obs:
            return data
        return {"obs": self._actor.normalized_on_device(obs, critic=True), **data}

    def _vectors(self, rollout: Rollout) -> list[tuple[str, Tensor]]:
        """Observations that are no pictures."""
        cameras = () if self._layout.eye is None else self._layout.eye.cameras
        return [(key, x) for key, x in rollout.obs.items() if key not in cameras]

    def _outputs(self, batch: Rows) -> Any:
        """What the networks say of a minibatch."""
        vectors = batch.get("obs")
        if not self._shown:
            return self._net(vectors)
        device = self._params.device
        images = {key: x[batch["row"].to(x.device)].to(device) for key, x in self._shown.items()}
        return self._net(vectors, images)

    def _batch(self, rollout: Rollout) -> Any:
        """The rollout as the core's table; a fragment with a number that is not finite is left out of the losses."""
        columns = [rollout.logp, rollout.value, rollout.next_value, rollout.reward]
        whole = torch.stack([torch.isfinite(x) for x in columns]).all(0) & torch.isfinite(rollout.action).all(-1)
        for _, x in self._vectors(rollout):
            whole &= torch.isfinite(x).all(-1)
        nothing = torch.zeros((), device=rollout.reward.device)
        return from_vector_rollout(
            torch.where(whole, rollout.reward, math.nan),
            torch.where(torch.isfinite(rollout.value), rollout.value, nothing),
            rollout.terminated,
            rollout.truncated,
            torch.where(torch.isfinite(rollout.next_value), rollout.next_value, nothing),
            torch.where(torch.isfinite(rollout.next_value[-1]), rollout.next_value[-1], nothing),
            valid=None if bool(rollout.valid.all()) else rollout.valid,
        )

    def _fit(self, rows: Rows) -> Metrics:
        """`epochs` passes of minibatches: loss and gradients of what the network puts out, one step of Adam."""
        o, net, count = self.o, self._net, len(rows["logp"])
        log_ratio, value = (rows["logp"] * 0.0 for _ in range(2))  # of the last pass
        norm, steps, seen, shuffled, stop, log_std = 0.0, 0, 0, rows, False, None
        for _ in range(o.epochs):
            order = self._shuffle.permutation(count)
            index = order if self._explicit else torch.from_numpy(order).to(self._params.device)
            shuffled = {name: x[index] for name, x in rows.items()}
            if self._normalize_parts:
                standardize(shuffled["advantage"], o.minibatch)
            for start in range(0, count, o.minibatch):
                part = slice(start, start + o.minibatch)
                batch = {name: x[part] for name, x in shuffled.items()}
                outputs = self._outputs(batch)
                _, gradients, log_ratio[part] = self._fused(outputs, batch, self._loss)
                value[part], seen = outputs["value"], min(start + o.minibatch, count)
                log_std = outputs["log_std"]
                stop = self._enough is not None and _kl(log_ratio[part]) > self._enough
                if stop:
                    break
                net.backward_from(outputs, gradients)
                norm = self._adam.step(net.grad)
                steps += 1
            if stop:
                break
        names = {"advantage": shuffled["advantage"], "target": shuffled["target"], "log_ratio": log_ratio}
        last = {name: torch.as_tensor(x)[:seen].detach() for name, x in {**names, "value": value}.items()}
        ratio = last["log_ratio"].exp()
        bounded = ratio.clamp(1.0 - o.clip, 1.0 + o.clip)
        return {
            "train/policy_loss": float(-torch.minimum(ratio * last["advantage"], bounded * last["advantage"]).mean()),
            "train/value_loss": float((last["value"] - last["target"]).square().mean()),
            "train/kl": _kl(last["log_ratio"]),
            "train/clip_fraction": float((ratio != bounded).float().mean()),
            **({} if log_std is None or self.io.action_choices else {"train/entropy": self._entropy(log_std)}),
            "train/gradient_norm": float(norm),
            "train/gradient_steps": float(steps),
        }

    def _entropy(self, log_std: Array) -> float:
        """Mean entropy [nats] of Gaussians with these log deviations, (A,) or (M, A)."""
        log_std = torch.as_tensor(log_std).detach().clamp(*self._loss.log_std_range)
        return self.io.action_dim * (float(log_std.mean()) + 0.5 * math.log(2.0 * math.pi * math.e))

    @torch.no_grad()
    def _logp(self, rows: dict[str, Tensor]) -> Tensor:
        """(M,) log-probability of the rows' samples under the present policy."""
        views = self._layout.views(self._params)
        outputs = torch_outputs(views, self._layout, rows["obs"], self.o.activation)
        log_std = outputs["log_std"].clamp(*self._loss.log_std_range)
        return gaussian_logp(rows["action"], outputs["mean"], log_std)

    def _make_policy(self, params: Tensor, seed: int, *, fast: bool = True) -> PpoPolicy:
        o = self.o
        options = {"activation": o.activation, "normalize_obs": o.normalize_obs, "obs_spread": o.obs_spread}
        options["fast"] = fast and self._explicit
        kind = ChoicePolicy if self.io.action_choices else PpoPolicy
        return kind(self.io, self._layout, params, seed=seed, **options)

    def state_dict(self) -> StateDict:
        """Weights, moments, Adam, generators, reward scale, counters."""
        return {
            "policy": self._actor.state_dict(),
            "critic": self._actor.critic_state(),
            "noise": self._actor.generator_state(),
            "adam": self._adam.state_dict(),
            "shuffle": self._shuffle.bit_generator.state,
            "scale": None if self._scale is None else self._scale.state_dict(),
            "updates": self.updates,
            "lr": self._lr.state_dict(),
        }

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place: the next update equals that of the saved learner."""
        self._actor.load_state_dict(state["policy"])
        self._actor.load_critic_state(state.get("critic", {}))
        self._actor.load_generator_state(state["noise"])
        self._adam.load_state_dict(state["adam"])
        self._shuffle.bit_generator.state = state["shuffle"]
        if self._scale is not None and state["scale"] is not None:
            self._scale.load_state_dict(state["scale"])
        self._lr.load_state_dict(state["lr"])
        self.updates = int(state["updates"])


class ReturnScale(Saved):
    """Divides rewards by the running standard deviation of the discounted return, clipped to [-10, 10].

    Args:
        gamma: discount of the return.

    Source: Engstrom et al., Implementation Matters in Deep RL, reward scaling.
    """

    saved = ("_moments", "_carry")

    def __init__(self, gamma: float) -> None:
        self._gamma, self._moments = gamma, Moments(1)
        self._carry: Tensor | None = None

    def __call__(self, rollout: Rollout) -> Tensor:
        """(T, N) scaled rewards; the rollout is counted first. What is not finite stays so, and counts as 0."""
        reward = rollout.reward
        over = (rollout.terminated | rollout.truncated) & rollout.valid
        # R_t = r_t + gamma (1 - end_{t-1}) R_{t-1} runs forward: the backward scan on flipped time.
        going = torch.ones_like(reward)
        going[1:] = 1.0 - over[:-1].float()
        sound = torch.isfinite(reward)
        delta = torch.where(rollout.valid & sound, reward, 0.0)
        if self._carry is not None:
            delta[0] += self._gamma * self._carry.to(delta.device)
        total = reverse_linear_scan(delta.flip(0), self._gamma * going.flip(0)).flip(0)
        self._carry = total[-1] * (~over[-1]).float()
        self._moments.add(total[rollout.valid][:, None])
        spread = float(np.sqrt(self._moments.var[0] + 1e-8))
        return torch.where(sound, (reward / spread).clamp(-REWARD_LIMIT, REWARD_LIMIT), reward)


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


def _kl(log_ratio: Array) -> float:
    """Estimate of KL(old, new). Source: Schulman, Approximating KL Divergence (k3)."""
    log_ratio = torch.as_tensor(log_ratio)
    return float((torch.expm1(log_ratio) - log_ratio).mean())


class Ppo(PpoLearner[PpoOptions]):
    """Proximal policy optimisation.

    The policy is a Gaussian, or a softmax over the choices where an action is one of several. Pictures go through one
    encoder per camera that actor and critic share.

    L = -mean min(rho A, clip(rho, 1 - c, 1 + c) A) + value_coef mean (V - target)^2 - entropy_coef mean entropy, with
    rho = pi(a | s) / pi_old(a | s) of the sample before it was clipped to [-1, 1].

    Source: Schulman et al., Proximal Policy Optimization Algorithms; truncated episodes bootstrap from their true
    successor (Pardo et al., Time Limits in Reinforcement Learning).
    """

    chooses = True

    def _eye(self, io: IOSpec) -> EncoderShape | None:
        cameras = {key: shape for key, (shape, _) in io.obs.items() if key.startswith("image.")}
        if not cameras:
            fields = type(self.o).model_fields
            idle = [name for name, x in self.o if name in self.o.pictures_only and x != fields[name].default]
            if idle:
                raise ValueError(
                    f"{', '.join(idle)}: of the encoder of pictures, and here are none ({', '.join(sorted(io.obs))}); "
                    "leave it out, or show pictures (cameras=own in a world of ours)"
                )
            return None
        return EncoderShape(cameras, self.o.encoder_channels, self.o.encoder_strides, self.o.latent)
