"""PPO with a subequivariant transformer: what is learnt in one heading holds in every other."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.contrib.set_ppo_net import LimbLayout, SetNet
from robot_rl.policies.nets.initial import draw_uniform
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_ppo import ModulePpo, ModulePpoOptions, gaussian_logp, gaussian_sample
from robot_rl.policies.nets.rows import state_size
from robot_rl.types import Action, Obs
from robot_rl.types.options import Count, Number


class SetPpoOptions(ModulePpoOptions):
    """Of subequivariant PPO."""

    parents: tuple[Annotated[int, Field(ge=-1)], ...] | None = None
    """Of every limb, -1 for the first; null: each limb hangs on the one before."""
    columns: Count = 8
    """Vectors per limb inside the network (published: 32)."""
    width: Count = 32
    """Numbers per limb (published: 128)."""
    layers: Count = 1
    """Blocks of attention."""
    heads: Count = 2
    """Of attention; `columns` and `width` are multiples."""
    log_std_init: Number = -0.5
    """Initial log standard deviation of the actions."""


class SetPpo(ModulePpo[SetPpoOptions]):
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

    def build(self) -> tuple[_Actor, SetPolicy]:
        """A transformer over the limbs that `io` names: "limb<i>.<vector>.<x|y|z>", "limb<i>.<number>", actions
        "limb<i>.axis<j>".

        Raises:
            ValueError: the world does not name its limbs.
        """
        state_size(self.io, self.method)
        o, layout, device = self.o, LimbLayout.of(self.io), self.generator.device
        tree = list(range(-1, len(layout.vectors) - 1)) if o.parents is None else list(o.parents)
        trunk = SetNet(layout, tree, columns=o.columns, width=o.width, layers=o.layers, heads=o.heads)
        net = _Actor(trunk, o.log_std_init).to(device)
        _draw(net, self.generator)
        return net, SetPolicy(self.io, net, self.seed + 1)


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


class SetPolicy(ModulePolicy[_Actor]):
    """Samples the Gaussian, or its mean when deterministic; shares the learner's network."""

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, A) in [-1, 1]; logp (B,); extras "raw" (B, A), the sample before clipping."""
        mean, std, _ = self._net(self.see(obs))
        raw = gaussian_sample(mean, std, self._generator, deterministic)
        return self.answer(obs, raw.clamp(-1.0, 1.0), gaussian_logp(raw, mean, std), raw=raw)


@torch.no_grad()
def _draw(net: _Actor, generator: torch.Generator) -> None:
    """Uniform within 1 / sqrt(fan-in), biases 0, norms 1; embeddings of the order N(0, 0.02)."""
    for name, value in net.named_parameters():
        if ".order." in name:
            value.normal_(0.0, 0.02, generator=generator)
        elif value.dim() > 1 and not name.endswith(".bias"):
            draw_uniform(value, value.shape[1] ** -0.5, generator)
        elif name != "log_std":
            value.fill_(1.0 if name.endswith("weight") else 0.0)
