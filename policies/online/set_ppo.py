"""PPO with a subequivariant transformer: what is learnt in one heading holds in every other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.advantage import policy_loss, rollout_gae
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_step import ModuleStep
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rows import state_size
from robot_rl.policies.nets.subequivariant import LimbLayout, SetNet
from robot_rl.types import Action, IOSpec, Metrics, Obs, Rollout

_LOG_TAU = math.log(2 * math.pi)


class SetPpo:
    """PPO whose policy and value see limbs as tokens of vectors and numbers.

    Rotating the world about gravity leaves every joint's action and the value as they were, exactly. The policy is a
    Gaussian about the network's means with one spread per joint. Value and policy share the network; the value is
    learnt in units of the returns' running moments. Observations are not normalised: shifting or scaling single
    components of a vector, as usual filters do, would break the symmetry.

    Source: alpc91/SGRL (network; it trains with TD3, batch 100, lr 1e-4, tau 0.046, width 128). PPO, the joint network
    and the sizes are ours.
    """

    consumes = "rollout"
    method = "subequivariant PPO"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        parents: Sequence[int] | None = None,
        columns: int = 8,
        width: int = 32,
        layers: int = 1,
        heads: int = 2,
        log_std_init: float = -0.5,
        rollout_steps: int = 40,
        epochs: int = 5,
        minibatch: int = 320,
        clip: float = 0.2,
        gae_lambda: float = 0.95,
        entropy_weight: float = 0.0,
        value_weight: float = 0.5,
        lr: float = 2e-3,
        grad_clip: float = 0.5,
        metrics_every: int = 1,
    ) -> None:
        """Build the network for `io`.

        Args:
            io: names its limbs: "limb<i>.<vector>.<x|y|z>", "limb<i>.<number>", actions "limb<i>.axis<j>".
            seed: of weights, samples and minibatches.
            device: torch device.
            gamma: discount per step.
            parents: of every limb, -1 for the first; None: each limb hangs on the one before.
            columns: vectors per limb inside the network (published: 32).
            width: numbers per limb (published: 128).
            layers: blocks of attention.
            heads: of attention; `columns` and `width` are multiples.
            log_std_init: initial log standard deviation of the actions.
            rollout_steps: steps of every environment per update.
            epochs: passes over a rollout.
            minibatch: rows of one gradient.
            clip: width of the ratio's clip.
            gae_lambda: of the advantages.
            entropy_weight: of an entropy bonus.
            value_weight: of the value's loss.
            lr: step size (AdamW without decay).
            grad_clip: bound of the gradient's norm.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option out of range, or a world that does not name its limbs.
        """
        state_size(io, self.method)
        if min(rollout_steps, epochs, minibatch, columns, width, layers, heads) < 1:
            raise ValueError(
                f"rollout_steps, epochs, minibatch, columns, width, layers, heads are {rollout_steps}, {epochs}, "
                f"{minibatch}, {columns}, {width}, {layers}, {heads}; expected at least 1 each"
            )
        self.io, self.rollout_steps, self._gamma = io, rollout_steps, gamma
        self._epochs, self._minibatch, self._clip = epochs, minibatch, clip
        self._lambda, self._entropy, self._value = gae_lambda, entropy_weight, value_weight
        self._generator = torch.Generator(device=device).manual_seed(seed)
        layout = LimbLayout.of(io)
        tree = list(range(-1, len(layout.vectors) - 1)) if parents is None else list(parents)
        self.net = _Actor(SetNet(layout, tree, columns=columns, width=width, layers=layers, heads=heads), log_std_init)
        self.net.to(device)
        _draw(self.net, self._generator)
        self._step = ModuleStep(self.net, lr=lr, clip=grad_clip)
        self.policy = SetPolicy(io, self.net, seed + 1, device)
        self.moments = RunningNorm(1, max_scale=1e6, device=device)
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                "net": self._step, "policy": self.policy, "moments": self.moments, "generator": self._generator,
            },
        )  # fmt: skip

    @torch.no_grad()
    def value(self, obs: Obs) -> Tensor:
        """(B,) the value."""
        state = torch.as_tensor(obs["state"]).to(self._generator.device, torch.float32)
        return self.net(state)[2] / self.moments.scale + self.moments.shift

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """`epochs` passes over one rollout.

        Returns:
            The latest metrics: train/policy_loss, train/value_loss, train/entropy, train/ratio_off (share of ratios
            outside the clip), train/value (in units of the returns' moments).

        Raises:
            FloatingPointError: a metric is not finite.
        """
        wanted = self._state.tick()
        rollout = next(batches)
        advantage, target = rollout_gae(
            rollout.reward, rollout.value, rollout.next_value, rollout.terminated, rollout.boundary,
            gamma=self._gamma, gae_lambda=self._lambda, valid=rollout.valid,
        )  # fmt: skip
        keep = rollout.valid.flatten()
        state, action = rollout.obs["state"].flatten(0, 1)[keep], rollout.action.flatten(0, 1)[keep]
        old, advantage, target = (x.flatten()[keep] for x in (rollout.logp, advantage, target))
        self.moments.observe(target[:, None])
        target = self.moments(target[:, None])[:, 0]
        advantage = (advantage - advantage.mean()) / advantage.std(correction=0).clamp_min(1e-8)
        found: dict[str, Tensor] = {}
        for _ in range(self._epochs):
            order = torch.randperm(len(state), generator=self._generator, device=state.device)
            for part in order.split(self._minibatch):
                found = self._fit(state[part], action[part], old[part], advantage[part], target[part])
        return self._state.report(found if wanted else None)

    def _fit(self, state: Tensor, action: Tensor, old: Tensor, advantage: Tensor, target: Tensor) -> dict[str, Tensor]:
        mean, std, value = self.net(state)
        logp = _gaussian_logp(action, mean, std)
        actor = policy_loss(logp, old, advantage, clip=self._clip)
        error = (value - target).square().mean()
        entropy = (std.log() + 0.5 * (1 + _LOG_TAU)).sum()
        self._step(actor + self._value * error - self._entropy * entropy)
        outside = ((logp - old).exp() - 1.0).abs() > self._clip
        return {
            "policy_loss": actor.detach(), "value_loss": error.detach(), "entropy": entropy.detach(),
            "ratio_off": outside.float().mean(), "value": value.detach().mean(),
        }  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)


class _Actor(torch.nn.Module):
    """Means, spreads and values."""

    def __init__(self, trunk: SetNet, log_std: float) -> None:
        super().__init__()
        self.trunk = trunk
        self.log_std = torch.nn.Parameter(torch.full((len(trunk.joints),), log_std))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means (B, A), standard deviations (A,), values (B,)."""
        mean, value = self.trunk(state)
        return mean, self.log_std.exp(), value


class SetPolicy(ModulePolicy):
    """Samples the Gaussian, or its mean when deterministic; shares the learner's network."""

    def __init__(self, io: IOSpec, net: _Actor, seed: int, device: str) -> None:
        """`seed` is of the samples."""
        self.io, self._net, self._device = io, net, torch.device(device)
        super().__init__("net", self._net, torch.Generator(device=device).manual_seed(seed))

    def reset(self, rows: Any = None) -> None:
        """Nothing to forget: the policy has no memory."""

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, A) in [-1, 1]; logp (B,); extras "raw" (B, A), the sample before clipping."""
        given = obs["state"]
        mean, std, _ = self._net(torch.as_tensor(given).to(self._device, torch.float32))
        raw = mean
        if not deterministic:
            raw = mean + std * torch.randn(mean.shape, generator=self._generator, device=self._device)
        out = (raw.clamp(-1.0, 1.0), _gaussian_logp(raw, mean, std), raw)
        if isinstance(given, np.ndarray):
            out = tuple(x.cpu().numpy() for x in out)
        return Action(out[0], out[1], {"raw": out[2]})


def _gaussian_logp(action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(B,) log-density of unclipped actions (B, A)."""
    return -(0.5 * ((action - mean) / std).square() + std.log() + 0.5 * _LOG_TAU).sum(-1)


@torch.no_grad()
def _draw(net: _Actor, generator: torch.Generator) -> None:
    """Uniform within 1 / sqrt(fan-in), biases 0, norms 1; embeddings of the order N(0, 0.02)."""
    for name, value in net.named_parameters():
        if ".order." in name:
            value.normal_(0.0, 0.02, generator=generator)
        elif value.dim() > 1 and not name.endswith(".bias"):
            bound = value.shape[1] ** -0.5
            value.copy_(torch.rand(value.shape, generator=generator, device=generator.device) * (2 * bound) - bound)
        elif name != "log_std":
            value.fill_(1.0 if name.endswith("weight") else 0.0)
