"""Imitation, offline improvement behind a gate, and online PPO: one diffusion policy through three stages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from robot_rl.advantage import rollout_gae, to_turns
from robot_rl.advantage.rows import RolloutRows
from robot_rl.chunks import Execution, Plan, chunk_rows
from robot_rl.policies.nets.diffusion import denoise_clip, time_features
from robot_rl.policies.nets.net import Net
from robot_rl.policies.nets.rows import as_windows, beyond_the_end, first_steps
from robot_rl.policies.sequence.diffusion import (
    TIME,
    ChunkDiffusion,
    ChunkDiffusionOptions,
    DiffusionPlanner,
    DiffusionPolicy,
)
from robot_rl.policies.sequence.rl100_chain import DenoisingChain, chain_loss
from robot_rl.policies.sequence.rl100_judge import ChunkJudge, JudgeOptions
from robot_rl.state import Saved
from robot_rl.types import IOSpec, Metrics, Needs, Obs, Options, Rollout, Transitions
from robot_rl.types.options import Count, NotNegative, Positive, Rate, Share, Whole


class ChainPpoOptions(Options):
    """Of PPO over the denoising chain of rollouts: stage 3."""

    rollout_steps: Count = 128
    """Control steps of every environment between online updates."""
    epochs: Count = 5
    """Passes over a rollout."""
    minibatch: Count = 256
    """Decisions per step."""
    gae_lambda: Share = 0.95
    """Trace decay per decision."""
    clip_low: Positive = 0.001
    """Online clip range of the noisiest step."""
    clip_high: Positive = 0.01
    """Of the cleanest."""
    chain_discount: Share = 0.99
    """Weight of a step's advantage per step before the last."""
    online_lr: Rate = 1e-4
    """Step size of the policy online."""
    critic_warmup: Whole = 2
    """Rollouts that only V learns from."""


class Rl100Options(ChainPpoOptions, JudgeOptions, ChunkDiffusionOptions):
    """Of RL-100."""

    horizon_pred: Count = 8
    """H actions predicted."""
    horizon_exec: Count = 4
    """k actions executed before the next call."""
    clone_updates: Whole = 20_000
    """Updates of stage 1."""
    judge_updates: Whole = 10_000
    """Updates of Q, V and models before the policy is improved."""
    improve_updates: Annotated[int, Field(ge=0)] = 0
    """Of the policy in stage 2; what is left of the run teaches the student, which lags behind a teacher that was let
    through late. 0: to the end of the run."""
    improve_lr: Rate = 1e-5
    """Step size of the policy in stage 2."""
    offline_clip: Positive = 0.25
    """Clip range of stage 2, for every step of the chain."""
    gate_every: Count = 50
    """Updates between scores."""
    gate_decisions: Count = 5
    """Decisions of a model rollout of the score."""
    gate_states: Count = 1024
    """Logged states that it begins in."""
    tuned_steps: Count = 10
    """K', last denoising steps that learn."""
    eta: NotNegative = 1.0
    """Variance of the denoising steps while learning; evaluations have none."""
    floor: Positive = 0.1
    """Smallest deviation of a step, in samples and densities."""
    reduce: Literal["mean", "sum"] = "mean"
    """Of log-densities, over the executed entries."""
    max_grad_norm: NotNegative = 0.5
    """Of the policy's gradient in stages 2 and 3; 0 for no limit."""

    @field_validator("improve_updates")
    @classmethod
    def check_student_follows(cls, value: int, info: ValidationInfo) -> int:
        """Refuse an end of stage 2 behind which nobody learns."""
        if value and not info.data.get("distill_from", 1):
            raise ValueError("expected 0, or a student to teach behind them (distill_from above 0)")
        return value


class Rl100(ChunkDiffusion[Rl100Options]):
    """A diffusion policy in three stages.

    1. Imitation, `clone_updates` updates: as `Diffusion`.
    2. From the same log: `judge_updates` updates of Q, V and models (`ChunkJudge`), then PPO over the denoising chain
       of chunks that the policy itself proposes at logged states, A = min Q - V, the same for all steps of the chain.
       Every `gate_every` updates the candidate is scored in the models; only if it scores higher than the policy that
       acts, it becomes that policy, else it is thrown away.
    3. Online (`robot-rl train init=<run>`): PPO over the chain with GAE over decisions (reward sum gamma^i r_i,
       discount gamma^k, bootstrap at time limits), V of stage 2 going on as critic.

    Source: RL-100 (hesic73/RL-100); Ren et al., Diffusion Policy Policy Optimization. Where we differ: what `Diffusion`
    differs in; proposals in place of logged actions; a refused candidate is thrown away; the gate takes the smaller
    critic and stops rollouts where models disagree; models of decisions in place of steps; one optimiser step for the
    whole chain; no entropy bonus, no adaptive KL.
    """

    method = "RL-100"

    def __init__(
        self, options: Rl100Options, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        """Build networks for `io`.

        Args:
            options: of the three stages.
            io: one vector observation "state".
            seed: of initial weights, noise and times.
            device: torch device.
            gamma: discount per control step.

        Raises:
            ValueError: images, no "state", or lengths that do not fit each other.
        """
        super().__init__(options, io, seed=seed, device=device)
        o, self.gamma, size = options, gamma, io.obs["state"][0][0]
        self.judge_from, self.improve_from = o.clone_updates, o.clone_updates + o.judge_updates
        self.improve_until = self.improve_from + (o.improve_updates or math.inf)
        self.chain = DenoisingChain(self.noise_schedule, o.sample_steps, o.tuned_steps, o.eta, o.floor, o.reduce)
        self._offline_clip = torch.full((o.tuned_steps,), o.offline_clip, device=device)
        self._online_clip = denoise_clip(o.tuned_steps, smallest=o.clip_low, largest=o.clip_high).float().to(device)
        self.judge = ChunkJudge(o, size, self.actions, o.horizon_exec, generator=self.generator)
        self.memory = _Memory(torch.zeros(0, size, device=device))
        self.state.include({"memory": self.memory, **self.judge.parts()})

    @classmethod
    def needs(cls, options: Rl100Options, io: IOSpec) -> Needs:
        """Windows of a log at first, then rollouts with the chains of their chunks."""
        return Needs(
            rows=options.batch_size,
            window=options.horizon_pred,
            then="rollout",
            rollout_steps=options.rollout_steps,
            record=("chunk_start", "chain"),
        )

    def make_policy(self, seed: int) -> DiffusionPolicy:
        """What plays chunks drawn along the chain, or the student's."""
        play = Execution(self.horizons, self.actions, mode="receding")
        return DiffusionPolicy(self.io, _ChainPlanner(self, seed), play, student=self.o.student_acts)

    def update(self, batches: Iterator[Any], /) -> Metrics:
        """One update of the stage that is due: a batch of windows from a log, or a rollout.

        Returns:
            The latest metrics: those of `Diffusion`; train/q, train/value, train/q_loss, train/model_error;
            train/score, train/accepted, train/refused of the gate; train/kl, train/clipped of PPO; train/value_loss.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        item = next(batches)
        if isinstance(item, Rollout):
            return self._online(item)
        o, number = self.o, self.next_update
        if number <= self.judge_from:
            return super().update(iter([item]))
        item = as_windows(item, o.horizon_pred)
        state, found = self.see(chunk_rows(item).obs["state"]), dict[str, Tensor]()
        if number == self.judge_from + 1:
            self.restart()
        if number <= self.improve_from:
            return self.metrics(**self._judge_step(item))
        if number > self.improve_until:
            return self.metrics(distill_loss=self.distill(state))
        if number == self.improve_from + 1:
            self.restart()
        self.memory.states = torch.cat([state, self.memory.states])[: o.gate_states]
        found = self._improve(state)
        if (number - self.improve_from) % o.gate_every == 0:
            found |= self.consider(self.memory.states)
        if o.distill_from:
            found["distill_loss"] = self.distill(state)
        accepted, refused, _ = self.memory.counts
        return self.metrics(**found, accepted=accepted, refused=refused)

    def _judge_step(self, batch: Transitions) -> dict[str, Tensor]:
        rows = chunk_rows(first_steps(batch, self.horizons.exec))
        action, mask = beyond_the_end(rows, self.generator)
        state, after = self.see(rows.obs["state"]), self.see(rows.next_obs["state"])
        return self.judge.fit(state, action, mask, rows.reward, rows.discount, after)

    def restart(self) -> None:
        """The candidate begins at the policy that acts, its optimiser anew."""
        params = self.teacher_net.params
        with torch.no_grad():
            params.flat.copy_(self.acting.params.flat)
        for moment in (params.first, params.second, params.step):
            moment.zero_()
        self.teacher_net.kernel.refresh()

    def accept(self) -> None:
        """The candidate acts from now on."""
        self.acting.soft_update(self.teacher_net, 1.0)

    def _improve(self, state: Tensor) -> dict[str, Tensor]:
        """One step of PPO on chunks that the acting policy proposes at logged states."""
        latents = self.propose(state)
        chunk, executed = latents[:, -1].clamp(-1.0, 1.0), self._mask(latents)
        with torch.no_grad():
            advantage = self.judge.advantage(state, chunk[:, : self.executed])
            old = self.log_density(self.acting, state, latents, executed)
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        chains = Chains(state, latents, executed, old, advantage)
        return self.ppo_step(chains, self._offline_clip, 1.0, self.o.improve_lr)

    def _mask(self, latents: Tensor) -> Tensor:
        """(B, F) 1 for the entries that are executed."""
        executed = torch.zeros_like(latents[:, -1])
        executed[:, : self.executed] = 1.0
        return executed

    def propose(self, state: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, K' + 1, F) latents of chunks that the acting policy draws at normalised states (B, S)."""
        generator = generator or self.generator
        start = torch.randn(len(state), self.flat, generator=generator, device=state.device)
        return self.chain.sample(self.velocity, state, start, generator)

    def log_density(self, net: Net, state: Tensor, latents: Tensor, executed: Tensor) -> Tensor:
        """(B, K') log-density of every tuned step of chains (B, K' + 1, F) under a network."""
        steps = self.chain.tuned
        t = time_features(torch.tensor(self.chain.times, device=state.device, dtype=state.dtype), TIME)
        x = [state[:, None].expand(-1, steps, -1), latents[:, :-1], t.expand(len(state), -1, -1)]
        predicted = net(torch.cat(x, -1).flatten(0, 1)).view(len(state), steps, -1)
        return self.chain.log_density(predicted, latents, executed)

    def ppo_step(self, chains: Chains, clip: Tensor, discount: float, lr: float) -> dict[str, Tensor]:
        """One step of the candidate down the clipped loss of its chains."""
        logp = self.log_density(self.teacher_net, chains.state, chains.latents, chains.executed)
        loss, facts = chain_loss(logp, chains.old, chains.advantage, clip, discount)
        net = self.teacher_net
        net.lr, net.beta1, net.max_norm = lr, 0.9, self.o.max_grad_norm or None
        net.step(loss)
        return facts

    @torch.no_grad()
    def consider(self, state: Tensor) -> dict[str, Tensor]:
        """The gate: score candidate and acting policy in the models; the better one acts, and is the next candidate.

        Args:
            state: (B, S) normalised logged states.
        """
        noise = torch.randn(len(state), self.flat, generator=self.generator, device=state.device)
        scores = []
        for net in (self.teacher_net, self.acting):  # candidate, then the policy that acts
            choose = lambda s, net=net: self.teacher(s, noise, net)[:, : self.executed]  # noqa: E731
            scores.append(self.judge.score(state, choose, self.o.gate_decisions))
        if bool(scores[0] > scores[1]):
            self.accept()
            self.memory.counts[0] += 1
        else:
            self.restart()
            self.memory.counts[1] += 1
        return {"score": scores[1], "candidate_score": scores[0]}

    def value(self, obs: Obs) -> Tensor:
        """(B,) V, for the on-policy loop."""
        state = torch.as_tensor(obs["state"]).to(self.generator.device, torch.float32)
        return self.judge.value(self.see(state))

    def _online(self, rollout: Rollout) -> Metrics:
        """PPO over the chains of one rollout; the next rollout begins with fresh chunks."""
        o, device = self.o, self.generator.device
        rows = decisions(rollout, self.gamma, o.gae_lambda)
        state = self.see(rows["state"].to(device, torch.float32))
        latents, advantage, target = (rows[name].to(device).float() for name in ("chain", "advantage", "target"))
        entries = torch.arange(self.flat, device=device) // self.actions
        executed = (entries < rows["duration"].to(device)[:, None]).float()
        self.memory.counts[2] += 1
        with torch.no_grad():
            old = self.log_density(self.acting, state, latents, executed)
        if int(self.memory.counts[2]) == 1:
            self.restart()
        found: dict[str, Tensor] = {"advantage_std": advantage.std(correction=0)}
        for _ in range(o.epochs):
            for part in torch.randperm(len(state), generator=self.generator, device=device).split(o.minibatch):
                found["value_loss"] = self.judge.fit_value(state[part], target[part])
                if int(self.memory.counts[2]) <= o.critic_warmup:
                    continue
                gain = advantage[part]
                gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
                chains = Chains(state[part], latents[part], executed[part], old[part], gain)
                found |= self.ppo_step(chains, self._online_clip, o.chain_discount, o.online_lr)
        self.accept()
        if o.distill_from:
            self.student_net.lr = o.lr
            for part in torch.randperm(len(state), generator=self.generator, device=device).split(o.minibatch):
                found["distill_loss"] = self.distill(state[part])
        self.policy.reset()
        return self.metrics(**found)


@dataclass(frozen=True)
class Chains:
    """Denoising chains to learn from.

    Attributes:
        state: (B, S) normalised.
        latents: (B, K' + 1, F).
        executed: (B, F) 1 for entries that were executed.
        old: (B, K') log-densities under the policy that acted.
        advantage: (B,) of the decision.
    """

    state: Tensor
    latents: Tensor
    executed: Tensor
    old: Tensor
    advantage: Tensor


class _Memory(Saved):
    """What the gate remembers, as a saved part.

    Attributes:
        counts: (3,) accepted and refused candidates, online rollouts.
        states: (n, S) newest logged states.
    """

    saved = ("counts", "states")

    def __init__(self, states: Tensor) -> None:
        self.counts, self.states = torch.zeros(3, dtype=torch.int64), states


class _ChainPlanner(DiffusionPlanner):
    """Samples along the stochastic chain, and says how, unless deterministic."""

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """A chunk; extras "chain" (n, K' + 1, H A) latents and logp (n,) of the tuned steps when drawn at random."""
        own = self._learner
        if deterministic or self.student:
            return super().plan(obs, deterministic=deterministic, context=context)
        assert isinstance(own, Rl100)
        generator = self._noise[0]
        state = self.state(obs)
        latents = own.propose(state, generator)
        with torch.no_grad():
            logp = own.log_density(own.acting, state, latents, own._mask(latents)).sum(1)
        chunk = latents[:, -1].clamp(-1.0, 1.0).view(len(state), own.o.horizon_pred, -1)
        return Plan(chunk, logp, extras={"chain": latents})


def decisions(rollout: Rollout, gamma: float, gae_lambda: float) -> dict[str, Tensor]:
    """The decisions of a rollout whose extras hold "chunk_start" and "chain", environment after environment.

    A chunk ends early with its episode and with the rollout: its reward is that of the executed steps, its discount
    gamma^k, and what followed a time limit or the cut is bootstrapped from the true successor. Source code of the field
    cuts at true ends only and bootstraps from the observation after the reset.

    Returns:
        (U, ...) "state", "chain", "duration" k, "advantage", "target" (value).
    """

    def flat(x: Tensor) -> Tensor:
        return x.transpose(0, 1).reshape(-1, *x.shape[2:])

    valid = flat(rollout.valid)
    boundary = flat(rollout.boundary) | ~valid  # a row that is no step is a decision of its own, left out below
    begins = flat(rollout.extras["chunk_start"]).bool() | ~valid
    begins = begins | torch.cat([torch.ones_like(boundary[:1]), boundary[:-1]])
    start = torch.nonzero(begins)[:, 0]
    end = torch.cat([start[1:], start.new_full((1,), len(begins))]) - 1
    turn = begins.long().cumsum(0) - 1
    place = torch.arange(len(turn), device=turn.device) - start[turn]
    reward = to_turns(flat(rollout.reward).double() * gamma**place, turn, turns=len(start)).float()
    keep = valid[start]
    advantage, target = rollout_gae(
        RolloutRows(
            reward,
            flat(rollout.value).float()[start],
            flat(rollout.next_value).float()[end],
            flat(rollout.terminated)[end],
            boundary[end],
            duration=(end - start + 1).to(torch.int32),
        ),
        gamma=gamma,
        gae_lambda=gae_lambda,
        cut=torch.cat([~keep[1:], torch.zeros_like(keep[:1])]),
    )
    rows = {
        "state": flat(rollout.obs["state"])[start],
        "chain": flat(rollout.extras["chain"])[start],
        "duration": end - start + 1,
        "advantage": advantage,
        "target": target,
    }
    return {name: x[keep] for name, x in rows.items()}
