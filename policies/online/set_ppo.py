"""PPO with a subequivariant transformer: what is learnt in one heading holds in every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_ppo import ModulePpo, UpdateOptions, gaussian_logp, gaussian_sample
from robot_rl.policies.nets.rows import state_size
from robot_rl.policies.nets.subequivariant import LimbLayout, SetNet
from robot_rl.types import Action, IOSpec, Obs
from robot_rl.types.options import Count, Discount, NotNegative, Number, Positive, Rate, Whole


class SetPpo(ModulePpo):
    """PPO whose policy and value see limbs as tokens of vectors and numbers.

    Rotating the world about gravity leaves every joint's action and the value as they were, exactly. The policy is a
    Gaussian about the network's means with one spread per joint. Value and policy share the network; the value is
    learnt in units of the returns' running moments. Observations are not normalised: shifting or scaling single
    components of a vector, as usual filters do, would break the symmetry.

    Source: alpc91/SGRL (network; it trains with TD3, batch 100, lr 1e-4, tau 0.046, width 128). PPO, the joint network
    and the sizes are ours.
    """

    method = "subequivariant PPO"
    net: _Actor

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        parents: Sequence[Annotated[int, Field(ge=-1)]] | None = None,
        columns: Count = 8,
        width: Count = 32,
        layers: Count = 1,
        heads: Count = 2,
        log_std_init: Number = -0.5,
        rollout_steps: Count = 40,
        epochs: Count = 5,
        minibatch: Count = 320,
        clip: Positive = 0.2,
        gae_lambda: Discount = 0.95,
        entropy_weight: NotNegative = 0.0,
        value_weight: NotNegative = 0.5,
        lr: Rate = 2e-3,
        grad_clip: NotNegative = 0.5,
        metrics_every: Whole = 1,
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
        if min(columns, width, layers, heads) < 1:
            raise ValueError(
                f"columns, width, layers, heads are {columns}, {width}, {layers}, {heads}; expected at least 1 each"
            )
        options = UpdateOptions(
            gamma, rollout_steps, epochs, minibatch, clip, gae_lambda, entropy_weight, value_weight, lr, grad_clip,
            metrics_every,
        )  # fmt: skip
        generator = torch.Generator(device=device).manual_seed(seed)
        layout = LimbLayout.of(io)
        tree = list(range(-1, len(layout.vectors) - 1)) if parents is None else list(parents)
        net = _Actor(SetNet(layout, tree, columns=columns, width=width, layers=layers, heads=heads), log_std_init)
        net.to(device)
        _draw(net, generator)
        super().__init__(io, net, SetPolicy(io, net, seed + 1, device), options, generator)


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
        raw = gaussian_sample(mean, std, self._generator, deterministic)
        out = (raw.clamp(-1.0, 1.0), gaussian_logp(raw, mean, std), raw)
        if isinstance(given, np.ndarray):
            out = tuple(x.cpu().numpy() for x in out)
        return Action(out[0], out[1], {"raw": out[2]})


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
