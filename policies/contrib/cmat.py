"""Consensus multi-agent transformer: agents agree on one latent, then all act at once, in no order."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from robot_rl.policies.nets.attention import Transformer
from robot_rl.policies.nets.initial import draw_uniform
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_ppo import ModulePpo, ModulePpoOptions, gaussian_logp, gaussian_sample
from robot_rl.policies.nets.rows import state_size
from robot_rl.types import Action, IOSpec, Needs, Obs, Rollout
from robot_rl.types.options import Count


class CmatOptions(ModulePpoOptions):
    """Of CMAT."""

    agents: Count = 3
    """N."""
    width: Count = 64
    """E of the tokens."""
    blocks: Count = 1
    """Of the encoder."""
    heads: Count = 4
    """Of attention and of the pooling."""
    consensus: Count = 4
    """C tokens that are generated."""
    input_norm: bool = False
    """LayerNorm over each agent's observation, as in the source. It takes away how large the numbers are as a
    whole: leave it out where places and distances are observed in one unit."""
    ratio: Literal["agent", "joint"] = "agent"
    """Clipped per agent, or of the joint action (take a smaller clip)."""
    rollout_steps: Count = 50
    """Steps of every environment per update."""
    minibatch: Count = 400
    """Steps (of all agents) per gradient step."""


class Cmat(ModulePpo[CmatOptions]):
    """PPO on a policy that treats agents alike and in no order.

    The observation is N blocks of O numbers, the action N blocks of A. Exchanging two agents' blocks exchanges their
    actions and leaves the value as it was, exactly: no identity, no order enters. An encoder of unmasked attention
    gives rep_n; pooled (softmax over agents, in heads) it is the first token and the value's input. A decoder appends
    `consensus` tokens, each seeing those before it and all rep_n; a gate's softmax over the tokens gives the consensus
    z. Action n: a Gaussian of (rep_n, z).

    One value and one advantage for all; the ratio is per agent, or of all together with `ratio: joint`. The value is
    learnt in units of the returns' running moments: trunk and gradient bound are shared with the policy.

    Source: CMAT (RS2002/CMAT, cmat.py). Where we differ: a fixed number of consensus tokens (the source has as many as
    agents), keys of the decoder kept between tokens, one learner of our PPO.
    """

    method = "CMAT"
    net: CmatNet

    @classmethod
    def needs(cls, options: CmatOptions, io: IOSpec) -> Needs:
        """Rollouts with the density of each agent's action."""
        return replace(super().needs(options, io), record=("agent_logp",))

    def build(self) -> tuple[CmatNet, CmatPolicy]:
        """A network for N equal blocks of "state" and of actions.

        Raises:
            ValueError: sizes that the agents do not divide.
        """
        o, io, device = self.o, self.io, self.generator.device
        size = state_size(io, self.method)
        if size % o.agents or io.action_dim % o.agents:
            raise ValueError(
                f"agents is {o.agents}, and the world has {size} observations and {io.action_dim} actions; expected "
                "equal blocks for every agent (policy.agents=N, as env.world.agents=N of env=spread)"
            )
        net = CmatNet(
            size // o.agents, io.action_dim // o.agents, width=o.width, blocks=o.blocks, heads=o.heads,
            consensus=o.consensus, input_norm=o.input_norm,
        ).to(device)  # fmt: skip
        _draw(net, self.generator)
        return net, CmatPolicy(io, net, o.agents, self.seed + 1)

    def _cut(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.o.agents, -1)

    def _old_logp(self, rollout: Rollout) -> Tensor:
        return rollout.extras["agent_logp"]

    def _ratio_logp(self, logp: Tensor) -> Tensor:
        return logp.sum(1, keepdim=True) if self.o.ratio == "joint" else logp


class CmatNet(nn.Module):
    """Encoder over agents, pooled prefix, consensus decoder, heads; works for any number of agents."""

    def __init__(
        self, seen: int, actions: int, *, width: int, blocks: int, heads: int, consensus: int, input_norm: bool = True
    ) -> None:
        """Sizes per agent: `seen` O, `actions` A; others as in `Cmat`."""
        super().__init__()
        self.heads, self.consensus, self.width = heads, consensus, width
        self.inputs = nn.Sequential(
            nn.LayerNorm(seen) if input_norm else nn.Identity(), nn.Linear(seen, width), nn.GELU()
        )
        self.encoder = Transformer(width, blocks, heads, causal=False)
        self.pool = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, heads))
        self.pooled = nn.Linear(heads * width, width)
        self.critic = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
        self.before, self.between, self.after = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.own, self.own_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ask, self.tell, self.cross_out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gate = nn.Linear(width, 1)
        self.actor = nn.Sequential(
            nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, actions)
        )
        self.log_std = nn.Parameter(torch.zeros(actions))
        place = torch.arange(consensus + 1)[:, None] / 10000 ** (torch.arange(0, width, 2)[None] / width)
        waves = torch.stack([place.sin(), place.cos()], -1).flatten(1)[:, :width]
        self.register_buffer("place", waves)

    place: Tensor

    def forward(self, seen: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Means (B, N, A), standard deviations (A,), values (B,).

        Args:
            seen: (B, N, O).
            mask: (B, N) bool, agents that exist; None: all. The others are seen by nobody.
        """
        if mask is None:
            rep = self.encoder(self.inputs(seen))
        else:  # rows of one team size at a time: a missing agent must not be attended to
            rep = torch.zeros(*seen.shape[:2], self.width, dtype=seen.dtype, device=seen.device)
            for i, there in enumerate(mask):
                rep[i, there] = self.encoder(self.inputs(seen[i, there][None]))[0]
        score = self.pool(rep)
        if mask is not None:
            score = score.masked_fill(~mask[..., None], -torch.inf)
        prefix = self.pooled(torch.einsum("bnh,bne->bhe", score.softmax(1), rep).flatten(1))
        value = self.critic(prefix)[:, 0]
        z = self._agree(prefix, rep, mask)
        mean = self.actor(torch.cat([rep, z[:, None].expand_as(rep)], -1))
        return mean, self.log_std.sigmoid() * 0.5, value

    def _agree(self, prefix: Tensor, rep: Tensor, mask: Tensor | None) -> Tensor:
        """(B, E) consensus: tokens generated one after another, joined by a gate."""
        keys, values = self.tell(rep).chunk(2, -1)
        tokens, own_keys, own_values = [prefix], [], []
        for i in range(self.consensus):
            x = tokens[-1] + self.place[i]
            query, key, told = self.own(self.before(x)).chunk(3, -1)
            own_keys.append(key)  # a causal token never changes: its key and value are kept
            own_values.append(told)
            x = x + self.own_out(self._attend(query, torch.stack(own_keys, 1), torch.stack(own_values, 1), None))
            x = x + self.cross_out(self._attend(self.ask(self.between(x)), keys, values, mask))
            tokens.append(x + self.down(gelu(self.up(self.after(x)))))
        found = torch.stack(tokens, 1)
        return (self.gate(found).softmax(1) * found).sum(1)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """(B, E) of one query (B, E) over keys and values (B, L, E), in heads."""
        size, length = keys.shape[:2]
        q, k, v = query.view(size, 1, self.heads, -1), *(x.view(size, length, self.heads, -1) for x in (keys, values))
        score = (q * k).sum(-1) / q.shape[-1] ** 0.5
        if mask is not None:
            score = score.masked_fill(~mask[..., None], -torch.inf)
        return (score.softmax(1)[..., None] * v).sum(1).flatten(1)


class CmatPolicy(ModulePolicy[CmatNet]):
    """Samples every agent's Gaussian, or the means when deterministic; shares the learner's network."""

    def __init__(self, io: IOSpec, net: CmatNet, agents: int, seed: int) -> None:
        """`seed` is of the samples."""
        super().__init__(io, net, seed)
        self._agents = agents

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """(B, N A) in [-1, 1]; logp (B,) of all agents; extras "raw" (B, N A) and "agent_logp" (B, N)."""
        state = self.see(obs)
        mean, std, _ = self._net(state.view(len(state), self._agents, -1))
        raw = gaussian_sample(mean, std, self._generator, deterministic)
        logp = gaussian_logp(raw, mean, std)
        flat = raw.flatten(1)
        return self.answer(obs, flat.clamp(-1.0, 1.0), logp.sum(1), raw=flat, agent_logp=logp)


@torch.no_grad()
def _draw(net: CmatNet, generator: torch.Generator) -> None:
    """Uniform within 1 / sqrt(fan-in), biases 0, norms 1, the actor's last layer a hundredth: means begin near 0."""
    for name, value in net.named_parameters():
        if value.dim() > 1:
            bound = value.shape[1] ** -0.5 * (0.01 if name == "actor.3.weight" else 1.0)
            draw_uniform(value, bound, generator)
        elif name != "log_std":
            value.fill_(1.0 if name.endswith("weight") else 0.0)
