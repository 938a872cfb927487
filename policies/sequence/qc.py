"""Q-chunking: the critic values a chunk of actions, the policy is the best of several samples of a cloned flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, chunk_rows, critic_action, critic_width
from robot_rl.policies.nets.chunk_planner import ChunkPlanner
from robot_rl.policies.nets.flow import ChunkFlow
from robot_rl.policies.nets.learner import NetLearner, NetOptions, Standardised
from robot_rl.policies.nets.net import Net
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import as_windows, beyond_the_end, state_size
from robot_rl.policies.nets.value_heads import build_head
from robot_rl.types import IOSpec, Metrics, Needs, Obs, Transitions
from robot_rl.types.options import Count, Mixing, Positive, Support


class QcOptions(NetOptions):
    """Of Q-chunking."""

    horizon: Count = 5
    """h actions that a decision predicts, executes and is valued by; 1 is the one-step method."""
    hidden: tuple[Count, ...] = (512, 512, 512, 512)
    """Widths of all networks."""
    critics: Count = 2
    """Ensemble size."""
    layer_norm: bool = True
    """In the critics."""
    samples: Count = 32
    """n of the best of n, for acting and in targets."""
    flow_steps: Count = 10
    """Euler steps of a sample."""
    q_reduce: Literal["mean", "min"] = "mean"
    """Over the ensemble."""
    tau: Mixing = 0.005
    """Polyak rate of the target critics."""
    value_head: Literal["mse", "twohot", "hlgauss", "c51", "quantile"] = "mse"
    """How a critic says a value."""
    value_range: Support = (0.0, 1.0)
    """Support of the categorical heads, in units of return."""
    bins: Annotated[int, Field(ge=2)] = 101
    """Outputs of the heads other than mse."""
    sigma_ratio: Positive = 0.75
    """HL-Gauss blur in bin widths."""
    normalize: bool = True
    """Standardise states by the data's moments."""
    mode: str = "open"
    """How chunks are played, see `robot_rl.chunks.Execution`; values are exact for open."""


Q = TypeVar("Q", bound=QcOptions)


class ChunkValues(Standardised, NetLearner[Q]):
    """Base of Q-chunking: a cloned flow, critics of chunks, and what acts."""

    def __init__(self, options: Q, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights, noise and times.
            device: torch device.

        Raises:
            ValueError: images, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        o, self.size = options, state_size(io, self.method)
        self.flat = o.horizon * self.actions
        self.norm = FixedNorm(self.size, device=device) if o.normalize else None
        low, high = o.value_range
        self.head = build_head(o.value_head, low=low, high=high, bins=o.bins, sigma_ratio=o.sigma_ratio, device=device)
        wide = self.size + critic_width(o.horizon, self.actions)
        self.critic = self.net("critic", wide, self.head.outputs, members=o.critics, layer_norm=o.layer_norm)
        self.target = self.target_copy("target", self.critic)
        self.flow_net = self.net("flow", self.size + self.flat + 1, self.flat)
        self.flow = ChunkFlow(self.flow_net, o.horizon, self.actions, steps=o.flow_steps)
        self.build()
        horizons = Horizons(o.horizon, o.horizon, o.horizon)
        self.policy = ChunkedPolicy(io, _Planner(self, seed + 1), Execution(horizons, self.actions, mode=o.mode))
        self.state.include({"policy": self.policy, "norm": self.norm})

    @classmethod
    def needs(cls, options: Q, io: IOSpec) -> Needs:
        """Windows of one decision."""
        return Needs(rows=options.batch_size, window=options.horizon)

    def build(self) -> None:
        """What a method has besides."""

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of flow, critics and actor (where a method has one) on one batch of windows.

        Returns:
            The latest metrics: train/q, train/target, train/critic_loss, train/clone_loss, train/partial (share of
            chunks that an end cut short), and those of the value head.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        o, rows = self.o, chunk_rows(as_windows(next(batches), self.o.horizon))
        state, next_state = self.see(rows.obs["state"]), self.see(rows.next_obs["state"])
        with torch.no_grad():
            next_out = self.outputs(self.target, next_state, self.choose(next_state, self.generator))
            target = self.head.backup(next_out, rows.reward, rows.discount, reduce=o.q_reduce)
        clone_loss = self.flow.clone_loss(state, rows.action, rows.mask, self.generator)
        self.flow_net.step(clone_loss)
        out = self.critic(state, critic_action(*beyond_the_end(rows, self.generator)))
        critic_loss = self.head.loss(out, target)
        self.critic.step(critic_loss)
        more = self.actor_step(state)
        self.target.soft_update(self.critic, o.tau)
        out = out.detach()
        return self.metrics(
            q=self.head.value(out),
            target=self.head.scalar(target),
            critic_loss=critic_loss,
            clone_loss=clone_loss,
            partial=(~rows.mask[:, -1]).float(),
            **(self.head.diagnostics(out, target) if self.due else {}),
            **more,
        )

    def outputs(self, net: Net, state: Tensor, chunk: Tensor) -> Tensor:
        """(E, B, O) for whole chunks (B, H A)."""
        return net(state, critic_action(chunk.view(len(chunk), self.o.horizon, -1)))

    def choose(self, state: Tensor, generator: torch.Generator) -> Tensor:
        """(B, H A) what the policy does."""
        raise NotImplementedError(f"{type(self).__name__}.choose is missing")

    def actor_step(self, state: Tensor) -> dict[str, Tensor]:
        """Methods with an actor train it here."""
        return {}

    def acting_nets(self) -> dict[str, Net]:
        """What acting needs."""
        return {"flow": self.flow_net, "critic": self.critic}


class Qc(ChunkValues[QcOptions]):
    """Q-chunking with best-of-n flow samples.

    Q(s, a_1 ... a_k) regresses on sum_{i<k} gamma^i r_i + gamma^k (1 - terminated) Q'(s', a'), k <= h the steps to the
    end of the episode, a' the best of n samples at s'. Every start is trained: a chunk cut by a time limit is padded
    with zeros and carries its length, one cut by a true end is a whole chunk whose rest does not matter. The source
    multiplies the loss by a mask that drops chunks with an end inside, and so bootstraps from states that it never
    trains.

    Source: Li et al., Reinforcement Learning with Action Chunking (ColinQiyangLi/qc, agents/acfql.py). Where we differ:
    partial chunks as above; truncation bootstraps; ReLU in place of GELU.
    """

    method = "QC"

    def choose(self, state: Tensor, generator: torch.Generator) -> Tensor:
        """(B, H A) the best of n samples by the online critics."""
        o = self.o
        many = state.repeat_interleave(o.samples, dim=0)
        chunk = self.flow.sample(many, self.flow.noise(len(many), generator))
        if o.samples == 1:
            return chunk
        value = self.head.value(self.outputs(self.critic, many, chunk))
        best = (value.mean(0) if o.q_reduce == "mean" else value.amin(0)).view(-1, o.samples).argmax(1)
        return chunk.view(-1, o.samples, self.flat)[torch.arange(len(best), device=best.device), best]


class _Planner(ChunkPlanner):
    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """The learner's choice."""
        learner = self._learner
        with torch.no_grad():
            chunk = learner.choose(self.state(obs), self._noise[int(deterministic)])
        return Plan(chunk.view(len(chunk), learner.o.horizon, -1))
