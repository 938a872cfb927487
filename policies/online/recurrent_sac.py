"""SAC with a memory: actor and critics read the last observations and actions through a GRU each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from robot_rl.policies.nets.distributions import LOG_STD_MAX, LOG_STD_MIN, squashed_sample
from robot_rl.policies.nets.history import HistoryEncoder, HistoryPolicy
from robot_rl.policies.nets.learner import NetLearner, NetOptions
from robot_rl.policies.nets.net import step
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rows import as_windows, state_size
from robot_rl.types import Array, IOSpec, Metrics, Needs, PolicyParts, StateDict, Transitions
from robot_rl.types.options import Count, Mixing, Number, Positive


class RecurrentSacOptions(NetOptions):
    """Of SAC with a memory."""

    batch_size: Count = 32
    """Windows per update, of `history` steps each."""
    history: Count = 10
    """Observations that are remembered."""
    width: Count = 64
    """Of each memory."""
    lr: Positive = 1e-3
    """Step size of everything."""
    tau: Mixing = 0.005
    """Polyak rate of the target critics and their memory."""
    init_alpha: Positive = 1.0
    """Temperature at the start."""
    target_entropy: Number | None = None
    """Null: -A."""
    normalize_obs: bool = False
    """Standardise the state with running moments."""


class RecurrentSac(NetLearner[RecurrentSacOptions]):
    """Soft actor-critic for tasks whose observation does not tell all.

    Windows of `history` steps are drawn from the replay and every step of a window is learnt from, with as much past as
    the window holds: z_i = GRU(o_0, (a_0, o_1), .. (a_{i-1}, o_i)). Actor and critics have a memory each, trained by
    their own loss; the target critics read a Polyak copy of the critics'. The policy remembers as many steps as a
    window has.

        y_i = r_i + discount_i (min Q'(z'_{i+1}, a') - alpha log pi(a' | z_{i+1})), a' ~ pi(z_{i+1})

    Metrics: train/critic_loss, train/q, train/target, train/actor_loss, train/entropy, train/alpha.

    Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications; Ni et al., Recurrent Model-Free RL Can Be a
    Strong Baseline for Many POMDPs, for separate memories of actor and critics.
    """

    method = "recurrent SAC"

    def __init__(self, options: RecurrentSacOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of weights and noise.
            device: torch device.

        Raises:
            ValueError: other observations.
        """
        super().__init__(options, io, seed=seed, device=device)
        o, w, a, size = options, options.width, self.actions, state_size(io, self.method)
        self.norm = RunningNorm(size, device=device) if o.normalize_obs else None
        self.sight, self.memory, self.slow = (
            HistoryEncoder(size, a, w, lr=o.lr, generator=self.generator, name=name)
            for name in ("actor_memory", "critic_memory", "target_memory")
        )
        self.keep(self.sight)
        self.keep(self.memory)
        self.slow.params.blend(self.memory.params, 1.0)
        self.critic = self.net("critic", w + a, members=2)
        self.actor = self.net("actor", w, 2 * a)
        self.target = self.target_copy("target", self.critic)
        self.temperature = self.number("log_alpha", math.log(o.init_alpha), lr=o.lr)
        self.target_entropy = -float(a) if o.target_entropy is None else o.target_entropy
        self.policy = GaussianHistoryPolicy(
            io, self.sight, self.actor, history=o.history, norm=self.norm, noise=1.0, seed=seed + 1
        )
        self.state.include({"target_memory": self.slow, "policy": self.policy})

    @classmethod
    def needs(cls, options: RecurrentSacOptions, io: IOSpec) -> Needs:
        """Windows of the replay."""
        return Needs(rows=options.batch_size, window=options.history)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of critics, actor, temperature and their memories on one batch of windows."""
        batch = as_windows(next(batches), self.o.history)
        state, after = batch.obs["state"], batch.next_obs["state"]
        if self.norm is not None:
            self.norm.observe(state[batch.mask])
            state, after = self.norm(state), self.norm(after)
        action, reward, discount, share = (
            x.flatten(0, 1) for x in (batch.action, batch.reward, batch.discount, batch.mask.float())
        )
        share = share / share.sum().clamp_min(1.0)
        # next_obs of a step is the obs of the one behind it, and the true successor where an episode or window ends.
        seen = torch.cat([state[:, :1], after], 1)
        before = torch.cat([torch.zeros_like(batch.action[:, :1]), batch.action], 1)
        alpha = self.temperature["log_alpha"].detach().exp()

        sight = self.sight(seen, before)
        with torch.no_grad():
            next_action, next_logp = self.sample(self.actor(sight[:, 1:].flatten(0, 1)))
            ahead = self.slow(seen, before)[:, 1:].flatten(0, 1)
            value = self.target(ahead, next_action).amin(0) - alpha * next_logp
            target = reward + discount * value
        known = self.memory(seen, before)[:, :-1].flatten(0, 1)
        q = self.critic(known, action)
        critic_loss = (q - target).square().mean(0) @ share
        step(critic_loss, self.critic, self.memory)
        self.target.soft_update(self.critic, self.o.tau)
        self.slow.params.blend(self.memory.params, self.o.tau)

        chosen, logp = self.sample(self.actor(sight[:, :-1].flatten(0, 1)))
        actor_loss = (alpha * logp - self.critic(known.detach(), chosen).amin(0)) @ share
        entropy = -(logp.detach() @ share)
        temperature_loss = self.temperature["log_alpha"] * (entropy - self.target_entropy)
        step(actor_loss + temperature_loss.sum(), self.actor, self.sight, self.temperature)
        found = {"critic_loss": critic_loss, "q": q.detach().mean(0) @ share, "target": target @ share}
        return self.metrics(**found, actor_loss=actor_loss, entropy=entropy, alpha=alpha)

    def sample(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (B, A) of what the actor puts out (B, 2A), and their log-density (B,)."""
        return squashed_sample(raw, self.noise((len(raw), self.actions)))


class GaussianHistoryPolicy(HistoryPolicy):
    """tanh of a Gaussian that a network of the memory describes; hears what was executed, and can be continued."""

    @property
    def parts(self) -> PolicyParts:
        """It remembers, hears what was executed, and can go on with what it remembers."""
        return replace(super().parts, executed=self._take_executed, save=self._save, restore=self._restore)

    def choose(self, out: Tensor, deterministic: bool) -> Tensor:
        """Actions (B, A) of what the actor puts out (B, 2A)."""
        mean, log_std = out.chunk(2, -1)
        if deterministic:
            return mean.tanh()
        noise = torch.randn(mean.shape, generator=self._generator, device=mean.device)
        return torch.addcmul(mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp(), noise).tanh()

    def _take_executed(self, action: Array) -> None:
        self.memory.took(torch.as_tensor(action).to(self._device, torch.float32))

    def _save(self) -> StateDict:
        return self.memory.state_dict()

    def _restore(self, state: StateDict) -> None:
        self.memory.load_state_dict(state)
