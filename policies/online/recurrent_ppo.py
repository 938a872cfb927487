"""PPO with a memory: policy and critic read the observations of an episode through a GRU each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from robot_rl.advantage import policy_loss
from robot_rl.policies.nets.module_policy import ModulePolicy
from robot_rl.policies.nets.module_ppo import gaussian_logp, gaussian_sample
from robot_rl.policies.nets.module_step import ModuleStep
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rollout_learner import RolloutLearner, RolloutOptions
from robot_rl.policies.nets.step_size import LrSchedule, StepSize
from robot_rl.policies.nets.surrogate import SurrogateOptions, rollout_credit
from robot_rl.policies.online.ppo import ReturnScale, obs_dim
from robot_rl.state import set_generator
from robot_rl.types import (
    Action,
    Array,
    IOSpec,
    Metrics,
    Needs,
    Obs,
    PolicyParts,
    Recurrence,
    Rollout,
    StateDict,
)
from robot_rl.types.io import PRIVILEGED
from robot_rl.types.options import Count, NotNegative, Number, Positive, Rate


class RecurrentPpoOptions(RolloutOptions, SurrogateOptions):
    """Of PPO with a memory."""

    lr: Rate = 1e-3
    """Step size of Adam, at the start of the run."""
    rollout_steps: Count = 2048
    """Steps T of each environment between updates."""
    sequence: Count = 64
    """Steps through which gradients run back: episodes are cut into pieces of at most this length."""
    minibatch: Count = 512
    """Rows of one gradient, about: it takes whole pieces. Steps of one piece resemble each other, so with a few pieces
    a gradient is mostly noise: at 128 rows, two pieces, the pendulum without its velocity is not learnt."""
    lr_schedule: LrSchedule = "constant"
    """How `lr` changes: linear or cosine to 0 at the end of the run; adaptive: so that an update moves by 0.01 nats."""
    epochs: Count = 10
    """Passes over a rollout."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy bonus."""
    value_coef: NotNegative = 0.5
    """Weight of the squared value error."""
    max_grad_norm: Positive = 0.5
    """Largest norm of the gradient of both networks together."""
    log_std_init: Number = 0.0
    """Initial log standard deviation of the action."""
    memory: Count = 64
    """Width of each GRU."""
    hidden: tuple[Count, ...] = (64,)
    """Widths of the layers behind each GRU."""
    normalize_obs: bool = True
    """Shift observations by their running mean and divide those that deviate by more than 1 by their deviation."""
    normalize_reward: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""


class RecurrentPpo(RolloutLearner[RecurrentPpoOptions]):
    """PPO for tasks whose observations do not tell all: what was seen before is kept in a memory.

    A rollout keeps the memory m_t that each action was chosen with. Its episodes are cut into pieces of at most
    `sequence` steps; an update begins each piece with the memory that is kept of its first step (zeros where an episode
    begins), unrolls the GRUs anew, and lets gradients run back to the piece's first step. Advantages are estimated
    once, with V(s_t, m_t) of the critic that acted.

    Source: Schulman et al., Proximal Policy Optimization Algorithms; Kapturowski et al., Recurrent Experience Replay in
    Distributed Reinforcement Learning, stored state, for memories at the pieces' starts; Cho et al., Learning Phrase
    Representations using RNN Encoder-Decoder, for the GRU. Separate memories of policy and critic as in sb3-contrib.
    """

    method = "recurrent PPO"
    privileged = True

    def __init__(
        self, options: RecurrentPpoOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        """Build for `io`.

        Args:
            options: of the method.
            io: interface of the environment; every observation a vector of floats.
            seed: of weights, action noise and the order of pieces.
            device: torch device.
            gamma: discount per step.

        Raises:
            ValueError: an observation is no vector.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.gamma = gamma
        size = obs_dim(io.acting)
        more = obs_dim(io) - size
        widths = {"memory": options.memory, "hidden": options.hidden, "log_std": options.log_std_init}
        self.net = MemoryNet(size, (io.action_dim, 1), self.generator, more=more, **widths)
        normed = {"max_scale": 1.0, "device": device}
        self.norm = RunningNorm(size, **normed) if options.normalize_obs else None
        self.critic_norm = RunningNorm(more, **normed) if options.normalize_obs and more else None
        self.scale = ReturnScale(gamma) if options.normalize_reward else None
        self.net_step = ModuleStep(self.net, lr=options.lr, clip=options.max_grad_norm)
        self.lr = StepSize(options.lr, options.lr_schedule)
        self.policy = MemoryPolicy(io.acting, self.net, self.norm, seed + 1, critic_norm=self.critic_norm)
        scale = {} if self.scale is None else {"scale": self.scale}
        self.state.include({"net": self.net_step, "policy": self.policy, "lr": self.lr, **scale})
        if self.critic_norm is not None:
            self.state.include({"critic_norm": self.critic_norm})

    def set_progress(self, share: float) -> None:
        """For the step size."""
        self.lr.progress = share

    @classmethod
    def needs(cls, options: RecurrentPpoOptions, io: IOSpec) -> Needs:
        """Fresh rollouts with the memory before and behind each step."""
        record = ("memory", "next_memory")
        return replace(super().needs(options, io), record=record)

    @torch.no_grad()
    def value(self, obs: Obs) -> Tensor:
        """(B,) the critic's estimates, from observations and "memory" (B, 2 M)."""
        x, memory = self.policy.read(obs, critic=True), torch.as_tensor(obs["memory"])
        return self.net(x[:, None], memory.to(x.device))[1][:, 0]

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """`epochs` passes over the pieces of one rollout.

        Returns:
            The latest metrics: train/policy_loss, train/value_loss, train/entropy, train/kl, train/clip_fraction,
            train/gradient_norm, of the last gradient; train/explained_variance of the old values, train/lr.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        o, rollout = self.o, next(batches)
        pieces = self._pieces(rollout if self.scale is None else replace(rollout, reward=self.scale(rollout)))
        mask, target = pieces["mask"], pieces["target"]
        self.net_step.lr = self.lr()
        found: dict[str, Tensor] = {}
        for batch in minibatches(pieces, o.minibatch, o.epochs, self.generator):
            found = self._fit(batch)
        self.lr.follow(float(found["kl"].mean()))
        if self.norm is not None:
            rows = {key: x[rollout.valid].to(self.generator.device) for key, x in rollout.obs.items()}
            self.norm.observe(torch.cat([rows[key] for key in sorted(self.policy.io.obs)], -1))
            if self.critic_norm is not None:
                self.critic_norm.observe(rows[PRIVILEGED])
        rest = (target - pieces["value"])[mask].var() / target[mask].var().clamp_min(1e-12)
        return self.metrics(**found, explained_variance=1.0 - rest, lr=torch.tensor(self.net_step.lr))

    def _pieces(self, rollout: Rollout) -> dict[str, Tensor]:
        """Columns (G, L, ...) of all pieces; rows behind the end of a shorter one do not count."""
        advantage, target = rollout_credit(rollout, gamma=self.gamma, gae_lambda=self.o.gae_lambda)
        used = advantage[rollout.valid]
        advantage = (advantage - used.mean()) / used.std(correction=0).clamp_min(1e-8)
        columns = {
            **{"obs": self.policy.read(rollout.obs, critic=True), "action": rollout.action, "logp": rollout.logp},
            **{"value": rollout.value, "advantage": advantage, "target": target, "mask": rollout.valid},
        }
        pieces = cut(columns, rollout, self.o.sequence)
        return {name: x.to(self.generator.device) for name, x in pieces.items()}

    def _fit(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """One gradient of the clipped surrogate, the squared value error and the entropy."""
        o, mask = self.o, batch["mask"]
        mean, value = self.net(batch["obs"], batch["memory"])
        std = self.net.log_std.exp()
        logp = gaussian_logp(batch["action"], mean, std)
        actor = policy_loss(logp, batch["logp"], batch["advantage"], mask=mask, clip=o.clip)
        error = (value - batch["target"])[mask].square().mean()
        entropy = torch.distributions.Normal(0.0, std).entropy().sum()
        norm = self.net_step(actor + o.value_coef * error - o.entropy_coef * entropy)
        change = (logp - batch["logp"])[mask].detach()
        return {
            **{"policy_loss": actor, "value_loss": error, "entropy": entropy, "gradient_norm": norm},
            "kl": change.exp() - 1.0 - change,
            "clip_fraction": ((change.exp() - 1.0).abs() > o.clip).float(),
        }


def cut(columns: dict[str, Tensor], rollout: Rollout, length: int) -> dict[str, Tensor]:
    """Pieces of at most `length` steps of one episode each.

    Args:
        columns: name -> (T, N, ...), "mask" (T, N) bool, which rows count, among them.
        rollout: where they come from; its extras hold "memory" (T, N, M), unless nothing is remembered.
        length: steps.

    Returns:
        The columns as (G, L, ...); "mask" leaves out what lies behind the end of a shorter piece; "memory" (G, M) is
        what was remembered before a piece's first step.
    """
    over = rollout.terminated | rollout.truncated | ~rollout.valid
    steps = len(over)
    found: list[tuple[int, int, int]] = []  # environment, first step, number of steps
    for i in range(over.shape[1]):
        begin = 0
        for end in (*(torch.nonzero(over[:-1, i])[:, 0] + 1).tolist(), steps):
            found += [(i, at, min(length, end - at)) for at in range(begin, end, length)]
            begin = end
    row, first, count = (x[:, None] for x in torch.tensor(found).to(over.device).T)
    place = torch.arange(int(count.max()), device=over.device)
    inside, at = place < count, (first + place).clamp_max(steps - 1)
    pieces = {name: x.to(over.device)[at, row] for name, x in columns.items()}
    memory = rollout.extras.get("memory", torch.zeros(*over.shape, 0, device=over.device))
    pieces |= {"mask": pieces["mask"] & inside, "memory": memory[first[:, 0], row[:, 0]]}
    some = pieces["mask"].any(1)  # the row of a reset is a piece of its own, and nothing to learn from
    return {name: x[some] for name, x in pieces.items()}


def minibatches(
    pieces: dict[str, Tensor], size: int, epochs: int, generator: torch.Generator
) -> Iterator[dict[str, Tensor]]:
    """Passes over `pieces` of `cut` in random order, in parts of about `size` steps that count."""
    mask = pieces["mask"]
    together = max(round(size * len(mask) / int(mask.sum())), 1)
    for _ in range(epochs):
        for part in torch.randperm(len(mask), generator=generator, device=generator.device).split(together):
            yield {name: x[part] for name, x in pieces.items()}


class NoMemory(nn.Module):
    """What a memory of width 0 is: the input goes on."""

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """As `nn.GRU`."""
        return x, memory


class MemoryNet(nn.Module):
    """Means of actions, and perhaps values of states, behind a memory each: GRU, then a perceptron of tanh layers.

    Args:
        inputs: S, width of an observation.
        outputs: of each part: A of the policy, and 1 where there is a critic.
        generator: draws the weights.
        memory: width M of a GRU; 0 for none.
        hidden: widths of the layers behind it.
        log_std: initial log standard deviation of the action.
        more: P, further inputs behind those S, of all parts but the policy.
    """

    def __init__(
        self,
        inputs: int,
        outputs: tuple[int, ...],
        generator: torch.Generator,
        *,
        memory: int,
        hidden: tuple[int, ...],
        log_std: float,
        more: int = 0,
    ) -> None:
        super().__init__()
        self.width, self.parts, device = memory, len(outputs), generator.device
        self.inputs = (inputs, *(inputs + more for _ in outputs[1:]))
        self.memories = nn.ModuleList(
            nn.GRU(size, memory, batch_first=True, device=device) if memory else NoMemory() for size in self.inputs
        )
        self.heads = nn.ModuleList()
        for inside, size in zip(self.inputs, outputs):
            widths = (memory or inside, *hidden)
            layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b, device=device), nn.Tanh())]
            self.heads.append(nn.Sequential(*layers, nn.Linear(widths[-1], size, device=device)))
        self.log_std = nn.Parameter(torch.full((outputs[0],), float(log_std), device=device))
        for name, weight in self.named_parameters():
            if name == "log_std":
                continue
            if weight.dim() == 1:
                nn.init.zeros_(weight)
            else:  # the policy begins close to 0, whatever it sees
                last = name.startswith(f"heads.0.{2 * len(hidden)}.")
                nn.init.orthogonal_(weight, 0.01 if last else 1.0, generator=generator)

    def step(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One step: (B, S + P) and (B, 2 M) -> means (B, A) and the memory behind it (B, 2 M); (B, M) without a critic.

        From (B, S) alone the critic's memory stays what it was: who only acts does not need it.
        """
        seen, after = [], []
        for size, gru, m in self._each(memory):
            knows = x.shape[-1] >= size
            out, behind = gru(x[:, None, :size], m[None].contiguous()) if knows else (x[:, None], m[None])
            seen.append(out[:, 0])
            after.append(behind[0])
        return self.heads[0](seen[0]), torch.cat(after, -1)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Many steps of one episode each, of policy and critic.

        Args:
            x: (G, L, S + P) observations.
            memory: (G, 2 M) before the first of them.

        Returns:
            Means (G, L, A) and values (G, L).
        """
        mean, value = self.each(x, memory)
        return mean, value[..., 0]

    def each(self, x: Tensor, memory: Tensor) -> list[Tensor]:
        """The same, what every part puts out (G, L, ...)."""
        parts = zip(self.heads, self._each(memory))
        return [head(gru(x[..., :size], m[None].contiguous())[0]) for head, (size, gru, m) in parts]

    def _each(self, memory: Tensor) -> Iterator[tuple[int, nn.Module, Tensor]]:
        return zip(self.inputs, self.memories, memory.tensor_split(self.parts, -1))

    @property
    def acting(self) -> nn.Module:
        """What acts, without the critic; shares its weights."""
        part = nn.ModuleDict({"memory": self.memories[0], "head": self.heads[0]})
        part.register_parameter("log_std", self.log_std)
        return part


class MemoryPolicy(ModulePolicy[nn.Module]):
    """A Gaussian whose mean depends on all that its rows have seen since they were reset; its state holds no critic.

    Args:
        io: interface of what acts.
        net: shared with the learner.
        norm: of observations, shared, or None.
        seed: of the action noise.
        critic_norm: of what the critic alone reads, shared, or None.
    """

    def __init__(
        self,
        io: IOSpec,
        net: MemoryNet,
        norm: RunningNorm | None,
        seed: int,
        *,
        critic_norm: RunningNorm | None = None,
    ) -> None:
        super().__init__(io, net.acting, seed, norm)
        self._whole, self._critic_norm, self._keys = net, critic_norm, sorted(io.obs)
        device = net.log_std.device
        self._memory = torch.zeros(0, net.parts * net.width, device=device)
        self._recurrence = Recurrence({"memory": torch.zeros(1, net.width, device=device)}, self._step)

    @property
    def parts(self) -> PolicyParts:
        """It remembers, and can go on with what it remembers; without a memory it is a graph."""
        graph, recurrence = (None, self._recurrence) if self._whole.width else (self._graph, None)
        return PolicyParts(
            remembers=graph is None, save=self._save, restore=self._restore, graph=graph, recurrence=recurrence
        )

    def _graph(self, obs: Obs) -> Tensor:
        return self._whole.heads[0](self.read(obs)).clamp(-1.0, 1.0)

    def _step(self, obs: Obs, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        out, behind = self._whole.memories[0](self.read(obs)[:, None], memory["memory"][None])
        return self._whole.heads[0](out[:, 0]).clamp(-1.0, 1.0), {"memory": behind[0]}

    def read(self, obs: Obs, *, critic: bool = False) -> Tensor:
        """(..., S) what the network sees of observations; (..., S + P) with what the critic alone reads behind it."""
        device = self._memory.device
        x = torch.cat([torch.as_tensor(obs[key]) for key in self._keys], -1).to(device, torch.float32)
        x = x if self._norm is None else self._norm(x)
        if not critic or self._whole.inputs[-1] == self._whole.inputs[0]:
            return x
        more = torch.as_tensor(obs[PRIVILEGED]).to(device, torch.float32)
        return torch.cat([x, more if self._critic_norm is None else self._critic_norm(more)], -1)

    def reset(self, rows: Array | None = None) -> None:
        """Forget what these rows (B,) bool saw; None: all."""
        if rows is None:
            self._memory = self._memory[:0]
        elif len(rows) == len(self._memory):  # else nothing was seen yet
            self._memory = torch.where(torch.as_tensor(rows).to(self._memory.device)[:, None], 0.0, self._memory)

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Sample actions, or take the mean; another number of rows than before begins anew for all.

        Returns:
            value (B, A) clipped to [-1, 1]; logp (B,) of the sample before clipping (None when deterministic); extras
            "raw" (B, A), that sample, "memory" and "next_memory" (B, 2 M) before and behind this step.
        """
        x = self.read(obs, critic=PRIVILEGED in obs)
        before = self._memory if len(self._memory) == len(x) else x.new_zeros(len(x), self._memory.shape[1])
        mean, self._memory = self._whole.step(x, before)
        std = self._whole.log_std.exp()
        raw = gaussian_sample(mean, std, self._generator, deterministic)
        logp = None if deterministic else gaussian_logp(raw, mean, std)
        given = {"raw": raw, "memory": before, "next_memory": self._memory}
        if isinstance(obs[self._keys[0]], np.ndarray):
            arrays: dict[str, Array] = {name: x.cpu().numpy() for name, x in given.items()}
            return Action(arrays["raw"].clip(-1.0, 1.0), None if logp is None else logp.cpu().numpy(), arrays)
        return Action(raw.clamp(-1.0, 1.0), logp, {**given})

    def _save(self) -> dict[str, object]:
        return {"memory": self._memory.clone(), "noise": self._generator.get_state()}

    def _restore(self, state: StateDict) -> None:
        self._memory = state["memory"].to(self._memory.device)
        set_generator(self._generator, state["noise"])
