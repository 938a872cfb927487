"""Imitation, offline improvement behind a gate, and online PPO: one diffusion policy through three stages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.advantage import rollout_gae, to_turns
from robot_rl.chunks import Execution, Plan, chunk_rows
from robot_rl.policies.nets.chunk_judge import ChunkJudge
from robot_rl.policies.nets.denoising_chain import Chain, chain_loss
from robot_rl.policies.nets.diffusion import denoise_clip, time_features
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.rows import beyond_the_end, first_steps
from robot_rl.policies.sequence.diffusion import TIME, Diffusion, DiffusionPlanner, DiffusionPolicy
from robot_rl.types import IOSpec, Metrics, Obs, Rollout, Transitions
from robot_rl.types.options import Count, Discount, Mixing, NotNegative, Part, Positive, Rate, Share, Whole


class Rl100(Diffusion):
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

    rewardless = False
    fine_tunes = "rollout"
    rollout_extras = ("chunk_start", "chain")
    method = "RL-100"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        horizon_pred: Count = 8,
        horizon_exec: Count = 4,
        hidden: tuple[Count, ...] = (512, 512, 512),
        noise_steps: Count = 20,
        sample_steps: Count = 10,
        lr: Rate = 3e-4,
        warmup: Whole = 500,
        decay_updates: Whole = 0,
        average_power: NotNegative = 0.75,
        average_max: Share = 0.9999,
        distill_from: Whole = 0,
        distill_decay: Whole = 0,
        distill_noise: NotNegative = 0.0,
        student_acts: bool = False,
        normalize: bool = True,
        clone_updates: Whole = 20_000,
        judge_updates: Whole = 10_000,
        judge_hidden: tuple[Count, ...] = (256, 256),
        members: Count = 7,
        expectile: Part = 0.7,
        judge_lr: Rate = 3e-4,
        tau: Mixing = 0.005,
        improve_updates: Whole = 0,
        improve_lr: Rate = 1e-5,
        offline_clip: Positive = 0.25,
        gate_every: Whole = 50,
        gate_decisions: Count = 5,
        gate_states: Count = 1024,
        tuned_steps: Count = 10,
        eta: NotNegative = 1.0,
        floor: NotNegative = 0.1,
        reduce: str = "mean",
        rollout_steps: Count = 128,
        epochs: Count = 5,
        minibatch: Count = 256,
        gae_lambda: Discount = 0.95,
        clip_low: Positive = 0.001,
        clip_high: Positive = 0.01,
        chain_discount: Discount = 0.99,
        online_lr: Rate = 1e-4,
        critic_warmup: Whole = 2,
        max_grad_norm: NotNegative = 0.5,
        metrics_every: Whole = 100,
    ) -> None:
        """As `Diffusion`, and:

        Args:
            io, seed, device, batch_size, horizon_pred, horizon_exec, hidden, noise_steps, sample_steps, lr, warmup,
                decay_updates, average_power, average_max, distill_from, distill_decay, distill_noise, student_acts,
                normalize, metrics_every: as in `Diffusion`.
            gamma: discount per control step.
            clone_updates: updates of stage 1.
            judge_updates: updates of Q, V and models before the policy is improved.
            judge_hidden: their widths.
            members: models of the ensemble.
            expectile: of V.
            judge_lr: step size of Q, V and models; of V online too.
            tau: Polyak rate of the target of Q.
            improve_updates: of the policy in stage 2; what is left of the run teaches the student, which lags behind a
                teacher that was let through late. 0: to the end of the run.
            improve_lr: step size of the policy in stage 2.
            offline_clip: clip range of stage 2, for every step of the chain.
            gate_every: updates between scores.
            gate_decisions: decisions of a model rollout of the score.
            gate_states: logged states that it begins in.
            tuned_steps: K', last denoising steps that learn.
            eta: variance of the denoising steps while learning; evaluations have none.
            floor: smallest deviation of a step, in samples and densities.
            reduce: "mean" or "sum" of log-densities over the executed entries.
            rollout_steps: control steps of every environment between online updates.
            epochs: passes over a rollout.
            minibatch: decisions per step.
            gae_lambda: trace decay per decision.
            clip_low: online clip range of the noisiest step.
            clip_high: of the cleanest.
            chain_discount: weight of a step's advantage per step before the last.
            online_lr: step size of the policy online.
            critic_warmup: rollouts that only V learns from.
            max_grad_norm: of the policy's gradient in stages 2 and 3; 0 = no limit.

        Raises:
            ValueError: an option outside its range.
        """
        super().__init__(
            io,
            seed=seed,
            device=device,
            gamma=gamma,
            batch_size=batch_size,
            kind="diffusion",
            horizon_pred=horizon_pred,
            horizon_exec=horizon_exec,
            hidden=hidden,
            noise_steps=noise_steps,
            sample_steps=sample_steps,
            lr=lr,
            warmup=warmup,
            decay_updates=decay_updates,
            average_power=average_power,
            average_max=average_max,
            distill_from=distill_from,
            distill_decay=distill_decay,
            distill_noise=distill_noise,
            student_acts=student_acts,
            normalize=normalize,
            metrics_every=metrics_every,
        )
        if min(gate_every, gate_decisions, gate_states, epochs, minibatch, rollout_steps, members) < 1:
            raise ValueError("gate_every, gate_decisions, gate_states, epochs, minibatch, rollout_steps, members: >= 1")
        if improve_updates < 0 or (improve_updates and not distill_from):
            raise ValueError(
                f"improve_updates is {improve_updates}, distill_from {distill_from}; expected 0 or more, and a student "
                "to teach behind them (distill_from above 0)"
            )
        self.gamma, self.rollout_steps = gamma, rollout_steps
        improve_from = clone_updates + judge_updates
        self._until = (clone_updates, improve_from, improve_from + improve_updates if improve_updates else math.inf)
        self._improve_lr, self._online_lr = improve_lr, online_lr
        self._gate = (gate_every, gate_decisions, gate_states)
        self._epochs, self._minibatch, self._lambda = epochs, minibatch, gae_lambda
        self._chain_discount, self._warm, self._norm_limit = chain_discount, critic_warmup, max_grad_norm
        self._executed = horizon_exec * io.action_dim
        self.chain = Chain(self.schedule, sample_steps, tuned_steps, eta, floor, reduce)
        self._offline_clip = torch.full((tuned_steps,), offline_clip, device=device)
        self._online_clip = denoise_clip(tuned_steps, smallest=clip_low, largest=clip_high).float().to(device)
        size = io.obs["state"][0][0]
        self.judge = ChunkJudge(
            size, io.action_dim, horizon_exec, hidden=tuple(judge_hidden), members=members, expectile=expectile,
            lr=judge_lr, tau=tau, generator=self._generator,
        )  # fmt: skip
        self._memory = _Memory(torch.zeros(0, size, device=device))
        play = Execution(self.horizons, io.action_dim, mode="receding")
        self.policy = DiffusionPolicy(io, _ChainPlanner(self, seed + 1), play, student=student_acts)
        parts = {"policy": self.policy, "memory": self._memory, **self.judge.parts()}
        self._state.include(parts, self.judge.networks())

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
        if self._state.updates < self._until[0]:
            return super().update(iter([item]))
        wanted = self._state.tick()
        number = self._state.updates
        if number == self._until[0] + 1:
            self._restart()
        window = chunk_rows(item)
        state = self.seen(window.obs["state"])
        if number <= self._until[1]:
            found = self._judge_step(item)
            return self._state.report(found if wanted else None)
        if number > self._until[2]:
            found = {"distill_loss": self._teach(state)}
            return self._state.report(found if wanted else None)
        if number == self._until[1] + 1:
            self._restart()
        self._memory.states = torch.cat([state, self._memory.states])[: self._gate[2]]
        found = self._improve(state)
        if (number - self._until[1]) % self._gate[0] == 0:
            found |= self.consider(self._memory.states)
        if self._distill:
            found["distill_loss"] = self._teach(state)
        counts = self._memory.counts
        return self._state.report({**found, "accepted": counts[0], "refused": counts[1]} if wanted else None)

    def _judge_step(self, batch: Transitions) -> dict[str, Tensor]:
        rows = chunk_rows(first_steps(batch, self.horizons.exec))
        action, mask = beyond_the_end(rows, self._generator)
        state, after = self.seen(rows.obs["state"]), self.seen(rows.next_obs["state"])
        return self.judge.fit(state, action, mask, rows.reward, rows.discount, after)

    def _restart(self) -> None:
        """The candidate begins at the policy that acts, its optimiser anew."""
        self._params.flat.copy_(self._mean_params.flat)
        for moment in (self._params.first, self._params.second, self._params.step):
            moment.zero_()
        self._net.refresh()

    def _improve(self, state: Tensor) -> dict[str, Tensor]:
        """One step of PPO on chunks that the acting policy proposes at logged states."""
        latents = self.propose(state)
        chunk = latents[:, -1].clamp(-1.0, 1.0)
        executed = torch.zeros_like(chunk)
        executed[:, : self._executed] = 1.0
        advantage = self.judge.advantage(state, chunk[:, : self._executed])
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        old = self._log_density(self._acting, state, latents, executed)
        return self._ppo_step(state, latents, executed, old, advantage, self._offline_clip, 1.0, self._improve_lr)

    def propose(self, state: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(B, K' + 1, F) latents of chunks that the acting policy draws at normalised states (B, S)."""
        generator = generator or self._generator
        start = torch.randn(len(state), self._flat, generator=generator, device=state.device)
        return self.chain.sample(self._velocity, state, start, generator)

    def _noise_rows(self, net: Any, state: Tensor, latents: Tensor) -> Tensor:
        """(B, K', F) predicted noise at every tuned step; the pass is kept for a backward pass."""
        steps = self.chain.tuned
        t = time_features(torch.tensor(self.chain.times, device=state.device, dtype=state.dtype), TIME)
        x = torch.cat(
            [
                state[:, None].expand(-1, steps, -1),
                latents[:, :-1],
                t.expand(len(state), -1, -1),
            ],
            -1,
        )
        return net.forward(x.flatten(0, 1))[0].view(len(state), steps, -1)

    @torch.no_grad()
    def _log_density(self, net: Any, state: Tensor, latents: Tensor, executed: Tensor) -> Tensor:
        return self.chain.log_density(self._noise_rows(net, state, latents), latents, executed)

    def _ppo_step(
        self, state: Tensor, latents: Tensor, executed: Tensor, old: Tensor, advantage: Tensor, clip: Tensor,
        discount: float, lr: float,
    ) -> dict[str, Tensor]:  # fmt: skip
        with torch.no_grad():
            predicted = self._noise_rows(self._net, state, latents)
        with torch.enable_grad():
            predicted.requires_grad_(True)
            logp = self.chain.log_density(predicted, latents, executed)
            loss, facts = chain_loss(logp, old, advantage, clip, discount)
            (d,) = torch.autograd.grad(loss, predicted)
        self._net.backward(d.flatten(0, 1)[None])
        if self._norm_limit:
            size = self._params.grad.norm()
            self._params.grad.mul_((self._norm_limit / (size + 1e-6)).clamp_max(1.0))
        self._params.adam(lr)
        self._net.refresh()
        return facts

    @torch.no_grad()
    def consider(self, state: Tensor) -> dict[str, Tensor]:
        """The gate: score candidate and acting policy in the models; the better one acts, and is the next candidate.

        Args:
            state: (B, S) normalised logged states.
        """
        noise = torch.randn(len(state), self._flat, generator=self._generator, device=state.device)
        scores = []
        for params in (self._params, None):  # candidate, then the policy that acts
            kept = self._mean_params.flat.clone()
            if params is not None:
                self._mean_params.flat.copy_(params.flat)
            self._acting.refresh()
            choose = lambda s: self.teacher(s, noise)[:, : self._executed]  # noqa: E731
            scores.append(self.judge.score(state, choose, self._gate[1]))
            self._mean_params.flat.copy_(kept)
        self._acting.refresh()
        if bool(scores[0] > scores[1]):
            self._mean_params.flat.copy_(self._params.flat)
            self._acting.refresh()
            self._memory.counts[0] += 1
        else:
            self._restart()
            self._memory.counts[1] += 1
        return {"score": scores[1], "candidate_score": scores[0]}

    def value(self, obs: Obs) -> Tensor:
        """(B,) V, for the on-policy loop."""
        state = torch.as_tensor(obs["state"]).to(self._generator.device, torch.float32)
        return self.judge.value(self.seen(state))

    def _online(self, rollout: Rollout) -> Metrics:
        """PPO over the chains of one rollout; the next rollout begins with fresh chunks."""
        self._state.tick()
        rows = decisions(rollout, self.gamma, self._lambda)
        device = self._generator.device
        state = self.seen(rows["state"].to(device, torch.float32))
        latents, advantage, target = (rows[name].to(device).float() for name in ("chain", "advantage", "target"))
        entries = torch.arange(self._flat, device=device) // self.io.action_dim
        executed = (entries < rows["duration"].to(device)[:, None]).float()
        self._memory.counts[2] += 1
        old = self._log_density(self._acting, state, latents, executed)
        if int(self._memory.counts[2]) == 1:
            self._restart()
        found: dict[str, Tensor] = {"advantage_std": advantage.std(correction=0)}
        for _ in range(self._epochs):
            order = torch.randperm(len(state), generator=self._generator, device=device)
            for part in order.split(self._minibatch):
                found["value_loss"] = self.judge.fit_value(state[part], target[part])
                if int(self._memory.counts[2]) <= self._warm:
                    continue
                gain = advantage[part]
                gain = (gain - gain.mean()) / (gain.std(correction=0) + 1e-8)
                found |= self._ppo_step(
                    state[part], latents[part], executed[part], old[part], gain, self._online_clip,
                    self._chain_discount, self._online_lr,
                )  # fmt: skip
        self._mean_params.flat.copy_(self._params.flat)
        self._acting.refresh()
        if self._distill:
            for part in torch.randperm(len(state), generator=self._generator, device=device).split(self._minibatch):
                found["distill_loss"] = self._teach(state[part], self._lr)
        self.policy.reset()
        return self._state.report(found)

    def acting_parts(self) -> dict[str, FlatParams]:
        """Parameters that acting needs."""
        return {"teacher": self._mean_params, "student": self._student_mean}


class _Memory:
    """What the gate remembers, as a saved part.

    Attributes:
        counts: (3,) accepted and refused candidates, online rollouts.
        states: (n, S) newest logged states.
    """

    def __init__(self, states: Tensor) -> None:
        self.counts, self.states = torch.zeros(3, dtype=torch.int64), states

    def state_dict(self) -> dict[str, Tensor]:
        """Copies."""
        return {"counts": self.counts.clone(), "states": self.states.clone()}

    def load_state_dict(self, state: dict[str, Tensor], /) -> None:
        """Take over."""
        self.counts.copy_(state["counts"])
        self.states = state["states"].to(self.states)


class _ChainPlanner(DiffusionPlanner):
    """Samples along the stochastic chain, and says how, unless deterministic."""

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """A chunk; extras "chain" (n, K' + 1, H A) latents and logp (n,) of the tuned steps when drawn at random."""
        own = self._learner
        if deterministic or self.student:
            return super().plan(obs, deterministic=deterministic, context=context)
        assert isinstance(own, Rl100)
        generator = self._noise[0]
        state = own.seen(torch.as_tensor(obs["state"]).to(generator.device, torch.float32))
        latents = own.propose(state, generator)
        executed = torch.zeros_like(latents[:, -1])
        executed[:, : own._executed] = 1.0
        logp = own._log_density(own._acting, state, latents, executed).sum(1)
        chunk = latents[:, -1].clamp(-1.0, 1.0).view(len(state), own.window, -1)
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

    boundary = flat(rollout.boundary)
    begins = flat(rollout.extras["chunk_start"]).bool()
    begins = begins | torch.cat([torch.ones_like(boundary[:1]), boundary[:-1]])
    start = torch.nonzero(begins)[:, 0]
    end = torch.cat([start[1:], torch.tensor([len(begins)])]) - 1
    turn = begins.long().cumsum(0) - 1
    place = torch.arange(len(turn)) - start[turn]
    reward = to_turns(flat(rollout.reward).double() * gamma**place, turn, turns=len(start)).float()
    advantage, target = rollout_gae(
        reward,
        flat(rollout.value).float()[start],
        flat(rollout.next_value).float()[end],
        flat(rollout.terminated)[end],
        boundary[end],
        gamma=gamma,
        gae_lambda=gae_lambda,
        duration=(end - start + 1).to(torch.int32),
    )
    return {
        "state": flat(rollout.obs["state"])[start],
        "chain": flat(rollout.extras["chain"])[start],
        "duration": end - start + 1,
        "advantage": advantage,
        "target": target,
    }
