"""A chunk policy cloned by diffusion or flow matching, with a student that answers in one step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, chunk_rows, guidance_weights, guided_flow
from robot_rl.policies.nets.chunk_planner import ChunkPlanner
from robot_rl.policies.nets.diffusion import NoiseSchedule, ddim_step, time_features
from robot_rl.policies.nets.learner import NetLearner, NetOptions, Standardised
from robot_rl.policies.nets.mlp import AutogradMlp
from robot_rl.policies.nets.net import Net
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import as_windows, state_size
from robot_rl.types import IOSpec, LogFacts, Metrics, Needs, Obs, PolicyParts, Transitions
from robot_rl.types.options import Count, NotNegative, Share, Whole

TIME = 16


class ChunkDiffusionOptions(NetOptions):
    """Of a cloned chunk policy and its student."""

    horizon_pred: Count = 16
    """H actions predicted."""
    horizon_exec: Count = 8
    """k actions executed before the next call."""
    hidden: tuple[Count, ...] = (512, 512, 512)
    """Widths of teacher and student."""
    noise_steps: Count = 20
    """N of the diffusion schedule."""
    sample_steps: Count = 10
    """DDIM or Euler steps of the teacher."""
    warmup: Whole = 500
    """Updates over which the step size rises from 0."""
    decay_updates: Whole = 0
    """Updates at which a cosine brings it to 0; 0 keeps it."""
    average_power: NotNegative = 0.75
    """The average's decay is min(average_max, 1 - (1 + update)^-average_power)."""
    average_max: Share = 0.9999
    """See above."""
    clone_updates: Whole = 0
    """Of the teacher; behind them it is fixed and the student alone learns. 0: to the end."""
    distill_from: Annotated[int, Field(ge=0, validate_default=True)] = 0
    """Update from which the student learns; 0 for never."""
    distill_decay: Whole = 0
    """Updates of the student over which its step size falls to 0 as a cosine; 0: it has the teacher's."""
    distill_noise: NotNegative = 0.0
    """The student also learns around the log's states: each state is moved by noise whose deviation is drawn from 0 to
    this, in units of the state (standardised where `normalize`). The teacher knows an answer anywhere, and small
    differences from it lead the student there."""
    student_acts: bool = False
    """The student acts instead of the teacher."""
    normalize: bool = True
    """Standardise states by the data's moments."""

    @field_validator("student_acts")
    @classmethod
    def check_student(cls, value: bool, info: ValidationInfo) -> bool:
        """Refuse a student that never learns."""
        if value and not info.data.get("distill_from", 1):
            raise ValueError("needs distill_from: a student that never learned cannot act")
        return value


class DiffusionOptions(ChunkDiffusionOptions):
    """Of diffusion and flow policies."""

    kind: Literal["diffusion", "flow"] = "diffusion"
    """What is cloned: the noise, or the way from noise to the chunk."""
    mode: str = "receding"
    """How chunks are played, see `robot_rl.chunks.Execution`."""
    delay: Whole = 0
    """Ticks of computation in mode "realtime": a flow is guided to go on from the running chunk."""
    blend: Whole = 0
    """Ticks over which chunks fade into each other."""

    @field_validator("distill_from")
    @classmethod
    def check_turns(cls, value: int, info: ValidationInfo) -> int:
        """Refuse an end of cloning behind which nobody learns."""
        last = info.data.get("clone_updates", 0)
        if last and not 0 < value <= last:
            raise ValueError(f"behind clone_updates={last} nobody would learn, expected 1 to {last}")
        return value


D = TypeVar("D", bound=ChunkDiffusionOptions)


class ChunkDiffusion(Standardised, NetLearner[D]):
    """A teacher that denoises chunks, the average of its weights, and a student that answers in one pass.

    Attributes:
        teacher_net: the teacher that learns: (state, x, time) -> noise, or velocity.
        acting: its running average, which acts.
        student_net: (state, noise) -> chunk, and `student_acting` its average.
    """

    def __init__(self, options: D, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights, noise and times.
            device: torch device.

        Raises:
            ValueError: images, no "state", or lengths that do not fit each other.
        """
        super().__init__(options, io, seed=seed, device=device)
        o, size = options, state_size(io, self.method)
        self.horizons = Horizons(o.horizon_pred, o.horizon_exec, o.horizon_exec)
        self.noise_schedule, self.flat = NoiseSchedule.cosine(o.noise_steps), o.horizon_pred * self.actions
        self.executed = o.horizon_exec * self.actions
        if self.kind == "diffusion":
            self.noise_schedule.indices(o.sample_steps)  # refuse early
        self.norm = FixedNorm(size, device=device) if o.normalize else None
        self.teacher_net = self.net("teacher", size + self.flat + TIME, self.flat)
        self.student_net = self.net("student", size + self.flat, self.flat)
        self.teacher_net.lr, self.teacher_net.beta1, self.student_net.lr = self.rate, 0.95, self.student_rate
        self.acting = self.target_copy("teacher_mean", self.teacher_net)
        self.student_acting = self.target_copy("student_mean", self.student_net)
        self._graph = AutogradMlp(self.acting.shape, self.acting.params)  # guidance differentiates by its input
        arrays = [view.detach()[0] for view in self.student_acting.params.view.values()]
        self.student_arrays = [
            (w.numpy(), b.numpy()) for w, b in zip(arrays[::2], arrays[1::2]) if w.device.type == "cpu"
        ]
        self.policy = self.make_policy(seed + 1)
        self.state.include({"policy": self.policy, "norm": self.norm})

    @classmethod
    def needs(cls, options: D, io: IOSpec) -> Needs:
        """Windows as long as a prediction, without rewards."""
        return Needs(rows=options.batch_size, window=options.horizon_pred, rewardless=True)

    @property
    def kind(self) -> str:
        """What is cloned: "diffusion" or "flow"."""
        return "diffusion"

    @property
    def delay(self) -> int:
        """Ticks of computation for which a running chunk is gone on with."""
        return 0

    def make_policy(self, seed: int) -> DiffusionPolicy:
        """What acts; `seed` is of its noise."""
        raise NotImplementedError(f"{type(self).__name__}.make_policy is missing")

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of the teacher and, once it is its turn, of the student.

        Returns:
            The latest metrics: train/clone_loss, train/distill_loss.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        o, rows = self.o, chunk_rows(as_windows(next(batches), self.o.horizon_pred))
        state, found = self.see(rows.obs["state"]), dict[str, Tensor]()
        if not o.clone_updates or self.next_update <= o.clone_updates:
            valid = rows.mask.to(state.dtype).repeat_interleave(self.actions, dim=1)
            found["clone_loss"] = self.clone(state, rows.action.flatten(1), valid)
        if o.distill_from and self.next_update >= o.distill_from:
            found["distill_loss"] = self.distill(state)
        return self.metrics(**found)

    def rate(self) -> float:
        """Step size of this update."""
        o, n = self.o, self.next_update
        rate = o.lr * min(n / o.warmup, 1.0) if o.warmup else o.lr
        if o.decay_updates:
            rate *= 0.5 * (1.0 + math.cos(math.pi * min(n / o.decay_updates, 1.0)))
        return rate

    def student_rate(self) -> float:
        """Step size of the student in this update."""
        o = self.o
        return self.state.falling(o.lr, o.distill_decay, first=o.distill_from - 1) if o.distill_decay else self.rate()

    def clone(self, state: Tensor, chunk: Tensor, valid: Tensor) -> Tensor:
        """One step of the teacher; () |goal - net(s, x, t)|^2, mean over the entries that are `valid`."""
        draw = {"generator": self.generator, "device": chunk.device}
        noise = torch.randn(chunk.shape, **draw)
        if self.kind == "flow":
            t = torch.rand(len(chunk), **draw)
            x, goal = torch.lerp(noise, chunk, t[:, None]), chunk - noise
        else:
            count = len(self.noise_schedule.beta)
            index = torch.randint(count, (len(chunk),), **draw)
            t, x, goal = index / count, self.noise_schedule.add_noise(chunk, noise, index), noise
        error = (self.teacher_net(state, x, time_features(t, TIME)) - goal) * valid
        loss = error.square().sum() / valid.sum().clamp_min(1.0)
        self.teacher_net.step(loss)
        self._average(self.acting, self.teacher_net, self.next_update)
        return loss.detach()

    def _average(self, mean: Net, net: Net, update: int) -> None:
        mean.soft_update(net, 1.0 - min(self.o.average_max, 1.0 - (1.0 + update) ** -self.o.average_power))

    def distill(self, state: Tensor) -> Tensor:
        """One step of the student towards the teacher's executed actions from the same noise; () squared error."""
        draw = {"generator": self.generator, "device": state.device}
        if self.o.distill_noise:
            spread = torch.rand(len(state), 1, **draw) * self.o.distill_noise
            state = state + spread * torch.randn(state.shape, **draw)
        noise = torch.randn(len(state), self.flat, **draw)
        goal = self.teacher(state, noise)[:, : self.executed]
        loss = (self.student_net(state, noise)[:, : self.executed] - goal).square().mean()
        self.student_net.step(loss)
        self._average(self.student_acting, self.student_net, self.next_update - self.o.distill_from)
        return loss.detach()

    @torch.no_grad()
    def teacher(self, state: Tensor, noise: Tensor, net: Net | None = None) -> Tensor:
        """(B, H A) in [-1, 1]: the deterministic map from noise (B, H A) of the averaged teacher, or of another one."""
        x = noise
        if self.kind == "flow":
            for i in range(self.o.sample_steps):
                x = x + self.velocity(state, x, i / self.o.sample_steps, net) / self.o.sample_steps
            return x.clamp(-1.0, 1.0)
        order = self.noise_schedule.indices(self.o.sample_steps)
        for index, following in zip(order, [*order[1:], -1]):
            noise_found = self.velocity(state, x, index / len(self.noise_schedule.beta), net)
            x = ddim_step(self.noise_schedule, x, noise_found, index, following).mean
        return x.clamp(-1.0, 1.0)

    def velocity(self, state: Tensor, x: Tensor, t: float, net: Net | None = None) -> Tensor:
        """(B, F) what a teacher, the averaged one, says at time t."""
        features = time_features(torch.full((len(x),), t, dtype=x.dtype, device=x.device), TIME)
        return (net or self.acting)(state, x, features)

    @torch.no_grad()
    def student(self, state: Tensor, noise: Tensor) -> Tensor:
        """(B, H A) in [-1, 1], one pass; entries behind the executed ones repeat the last executed action."""
        out = self.student_acting(state, noise).clamp(-1.0, 1.0)
        chunk = out.view(len(out), self.o.horizon_pred, -1)
        k = self.horizons.exec
        rest = chunk[:, k - 1 : k].expand(-1, self.o.horizon_pred - k, -1)
        return torch.cat([chunk[:, :k], rest], 1).flatten(1)

    def student_numpy(self, state: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """As `student` (on a CPU), in plain NumPy: of one row torch's calls cost more than the products."""
        h = np.concatenate([state, noise], 1)
        for i, (weight, bias) in enumerate(self.student_arrays):
            h = h @ weight + bias
            if i + 1 < len(self.student_arrays):
                np.maximum(h, 0.0, out=h)
        chunk = np.clip(h, -1.0, 1.0).reshape(len(h), self.o.horizon_pred, -1)
        k = self.horizons.exec
        chunk[:, k:] = chunk[:, k - 1 : k]
        return chunk

    def continue_chunk(self, state: Tensor, noise: Tensor, previous: Tensor, running: Tensor) -> Tensor:
        """(B, H A): a flow's sample that goes on from the running chunk (real-time chunking)."""
        h, k = self.o.horizon_pred, self.horizons.exec
        weight = guidance_weights(self.delay, h - k, h).to(state) * running.to(state.dtype)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            features = time_features(t, TIME)
            return self._graph.compute(torch.cat([state, x.flatten(1), features], 1))[0].view_as(x)

        chunk = guided_flow(velocity, noise.view(len(noise), h, -1), previous, weight, steps=self.o.sample_steps)
        return chunk.flatten(1).clamp(-1.0, 1.0)

    def acting_nets(self) -> dict[str, Net]:
        """What acting needs."""
        return {"teacher": self.acting, "student": self.student_acting}


class Diffusion(ChunkDiffusion[DiffusionOptions]):
    """Clones chunks of demonstrations.

    "diffusion": x_i = sqrt(ab_i) chunk + sqrt(1 - ab_i) e, loss mean |e - net(x_i, i, s)|^2 over existing entries,
    sampled by DDIM (eta 0) in `sample_steps`. "flow": x_t = (1 - t) e + t chunk, loss mean |net - (chunk - e)|^2,
    sampled by Euler steps. Acting uses an average of the weights. From update `distill_from` on, a student learns to
    give the teacher's sample from the same noise in one pass, loss over the executed actions only; the teacher is
    deterministic there, else the map from noise would be no function. `policy.student` chooses who acts.

    Source: Chi et al., Diffusion Policy (loss, cosine schedule, averaged weights, horizons); RL-100 (distillation from
    the same noise). Where we differ: a perceptron on the flat chunk instead of a U-Net, one observation, N = 20 (our
    design for a CPU), Adam without weight decay.
    """

    method = "Diffusion"

    @property
    def kind(self) -> str:
        """What is cloned."""
        return self.o.kind

    @property
    def delay(self) -> int:
        """Ticks of computation."""
        return self.o.delay

    def make_policy(self, seed: int) -> DiffusionPolicy:
        """What plays the teacher's chunks, or the student's."""
        o = self.o
        play = Execution(self.horizons, self.actions, mode=o.mode, delay=o.delay, blend=o.blend)
        return DiffusionPolicy(self.io, DiffusionPlanner(self, seed), play, student=o.student_acts)


class DiffusionPolicy(ChunkedPolicy):
    """Plays the teacher's chunks, or the student's.

    Attributes:
        student: who decides.
    """

    def __init__(self, io: IOSpec, planner: DiffusionPlanner, execution: Execution, *, student: bool = False) -> None:
        super().__init__(io, planner, execution)
        self.student = planner.student = student

    @property
    def parts(self) -> PolicyParts:
        """As of every chunk policy, and who decides."""
        return replace(super().parts, use_student=lambda student: self.choose(student=student))

    def choose(self, *, student: bool) -> None:
        """Let the student decide, or the teacher.

        Raises:
            ValueError: the student never learned.
        """
        if student and not self.planner.has_student:  # type: ignore[attr-defined]
            raise ValueError("this policy's student never learned; train it with policy.distill_from=<update>")
        self.student = self.planner.student = student  # type: ignore[attr-defined]
        self.reset()


class DiffusionPlanner(ChunkPlanner):
    """Chunks of the teacher, or of the student."""

    student = False

    @property
    def has_student(self) -> bool:
        """Whether the student learns."""
        return self._learner.o.distill_from > 0

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """A chunk from new noise."""
        own = self._learner
        generator = self._noise[int(deterministic)]
        state = self.state(obs)
        noise = torch.randn(len(state), own.flat, generator=generator, device=generator.device)
        if self.student and own.student_arrays:
            return Plan(own.student_numpy(state.numpy(), noise.numpy()))
        if self.student:
            chunk = own.student(state, noise)
        elif own.kind == "flow" and own.delay and context["running"].any():
            previous = torch.as_tensor(context["previous"]).to(state)
            chunk = own.continue_chunk(state, noise, previous, torch.as_tensor(context["running"]).to(state.device))
        else:
            chunk = own.teacher(state, noise)
        return Plan(chunk.view(len(chunk), own.o.horizon_pred, -1))
