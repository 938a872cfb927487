"""A chunk policy cloned by diffusion or flow matching, with a student that answers in one step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, chunk_rows, guidance_weights, guided_flow
from robot_rl.policies.nets.diffusion import Schedule, ddim_step, time_features
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import AutogradMlp, MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import state_size
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Obs, Transitions
from robot_rl.types.options import Count, NotNegative, Rate, Share, Whole

KINDS = ("diffusion", "flow")
TIME = 16


class Diffusion(Learner):
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

    consumes = "transitions"
    rewardless = True
    method = "Diffusion"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        kind: str = "diffusion",
        horizon_pred: Count = 16,
        horizon_exec: Count = 8,
        hidden: tuple[Count, ...] = (512, 512, 512),
        noise_steps: Count = 20,
        sample_steps: Count = 10,
        lr: Rate = 3e-4,
        warmup: Whole = 500,
        decay_updates: Whole = 0,
        average_power: NotNegative = 0.75,
        average_max: Share = 0.9999,
        clone_updates: Whole = 0,
        distill_from: Whole = 0,
        distill_decay: Whole = 0,
        distill_noise: NotNegative = 0.0,
        student_acts: bool = False,
        normalize: bool = True,
        mode: str = "receding",
        delay: Whole = 0,
        blend: Whole = 0,
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights, noise and times.
            device: torch device.
            gamma: part of every learner's signature; cloning does not discount.
            batch_size: windows per update.
            kind: "diffusion" or "flow".
            horizon_pred: H actions predicted.
            horizon_exec: k actions executed before the next call.
            hidden: widths of teacher and student.
            noise_steps: N of the diffusion schedule.
            sample_steps: DDIM or Euler steps of the teacher.
            lr: step size.
            warmup: updates over which it rises from 0.
            decay_updates: updates at which a cosine brings it to 0; 0 keeps it.
            average_power: the average's decay is min(average_max, 1 - (1 + update)^-average_power).
            average_max: see above.
            clone_updates: of the teacher; behind them it is fixed and the student alone learns. 0: to the end.
            distill_from: update from which the student learns; 0 = never.
            distill_decay: updates of the student over which its step size falls to 0 as a cosine; 0: it has the
                teacher's.
            distill_noise: the student also learns around the log's states: each state is moved by noise whose deviation
                is drawn from 0 to this, in units of the state (standardised where `normalize`). The teacher knows an
                answer anywhere, and small differences from it lead the student there.
            student_acts: the student acts instead of the teacher.
            normalize: standardise states by the data's moments.
            mode: how chunks are played, see `robot_rl.chunks.Execution`.
            delay: ticks of computation in mode "realtime": a flow is guided to go on from the running chunk.
            blend: ticks over which chunks fade into each other.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if kind not in KINDS:
            raise ValueError(f"kind is '{kind}', expected one of {', '.join(KINDS)}")
        if student_acts and not distill_from:
            raise ValueError("student_acts needs distill_from: a student that never learned cannot act")
        if min(clone_updates, distill_decay, distill_noise) < 0:
            raise ValueError(
                f"clone_updates, distill_decay, distill_noise are {clone_updates}, {distill_decay}, {distill_noise}; "
                "expected at least 0"
            )
        if clone_updates and not 0 < distill_from <= clone_updates:
            raise ValueError(
                f"distill_from is {distill_from}: behind clone_updates={clone_updates} nobody would learn, expected "
                f"1 to {clone_updates}"
            )
        size, actions = state_size(io, self.method), io.action_dim
        self.io, self.batch_size, self.window = io, batch_size, horizon_pred
        self.horizons = Horizons(horizon_pred, horizon_exec, horizon_exec)
        self.kind, self.schedule, self.steps = kind, Schedule.cosine(noise_steps), sample_steps
        if kind == "diffusion":
            self.schedule.indices(sample_steps)  # refuse early
        self._lr, self._warmup, self._decay = lr, warmup, decay_updates
        self._average = (average_power, average_max)
        self._distill, self.delay = distill_from, delay
        self._clones, self._distill_decay, self._distill_noise = clone_updates, distill_decay, distill_noise
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        self._flat = horizon_pred * actions
        teacher = MlpShape(1, size + self._flat + TIME, tuple(hidden), self._flat, False, "teacher.")
        student = MlpShape(1, size + self._flat, tuple(hidden), self._flat, False, "student.")
        self._params, self._student_params = (FlatParams(x.shapes(), device=device) for x in (teacher, student))
        teacher.initialise(self._params, self._generator)
        student.initialise(self._student_params, self._generator)
        self._mean_params, self._student_mean = self._params.twin(), self._student_params.twin()
        self._net = build_mlp(teacher, self._params, matmul="float32")
        self._acting = build_mlp(teacher, self._mean_params, matmul="float32")
        self._graph = AutogradMlp(teacher, self._mean_params)  # guidance differentiates by its input
        self._student = build_mlp(student, self._student_params, matmul="float32")
        self._student_acting = build_mlp(student, self._student_mean, matmul="float32")
        view = self._student_mean.view
        arrays = [view[name].detach()[0] for name in student.shapes()]
        self._student_arrays = [
            (w.numpy(), b.numpy()) for w, b in zip(arrays[::2], arrays[1::2]) if w.device.type == "cpu"
        ]
        play = Execution(self.horizons, actions, mode=mode, delay=delay, blend=blend)
        self.policy = DiffusionPolicy(io, DiffusionPlanner(self, seed + 1), play, student=student_acts)
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                "teacher": self._params,
                "teacher_mean": self._mean_params,
                "student": self._student_params,
                "student_mean": self._student_mean,
                "policy": self.policy,
                "generator": self._generator,
                **({} if self.norm is None else {"norm": self.norm}),
            },
            networks=(self._net, self._acting, self._student, self._student_acting),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of the teacher and, once it is its turn, of the student.

        Returns:
            The latest metrics: train/clone_loss, train/distill_loss.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        wanted = self._state.tick()
        rows = chunk_rows(next(batches))
        if rows.mask.shape[1] != self.window:
            raise ValueError(f"the batch holds windows of {rows.mask.shape[1]} steps, expected {self.window}")
        state = self.seen(rows.obs["state"])
        found: dict[str, Tensor] = {}
        if not self._clones or self._state.updates <= self._clones:
            valid = rows.mask.to(state.dtype).repeat_interleave(self.io.action_dim, dim=1)
            found["clone_loss"] = self._clone(state, rows.action.flatten(1), valid)
        if self._distill and self._state.updates >= self._distill:
            found["distill_loss"] = self._teach(state)
        return self._state.report(found if wanted else None)

    def seen(self, state: Tensor) -> Tensor:
        """Normalised state."""
        return state if self.norm is None else self.norm(state)

    def rate(self) -> float:
        """Present step size."""
        n = self._state.updates
        rate = self._lr * min(n / self._warmup, 1.0) if self._warmup else self._lr
        if self._decay:
            rate *= 0.5 * (1.0 + math.cos(math.pi * min(n / self._decay, 1.0)))
        return rate

    def _student_rate(self) -> float:
        if not self._distill_decay:
            return self.rate()
        return self._state.falling(self._lr, self._distill_decay, first=self._distill)

    def _clone(self, state: Tensor, chunk: Tensor, valid: Tensor) -> Tensor:
        noise = torch.randn(chunk.shape, generator=self._generator, device=chunk.device)
        if self.kind == "flow":
            t = torch.rand(len(chunk), generator=self._generator, device=chunk.device)
            x, goal = torch.lerp(noise, chunk, t[:, None]), chunk - noise
        else:
            count = len(self.schedule.beta)
            index = torch.randint(count, (len(chunk),), generator=self._generator, device=chunk.device)
            t, x, goal = index / count, self.schedule.noised(chunk, noise, index), noise
        diff = (self._net.forward(torch.cat([state, x, time_features(t, TIME)], 1))[0] - goal) * valid
        count = valid.sum().clamp_min(1.0)
        self._net.backward((diff * (2.0 / count))[None])
        self._params.adam(self.rate(), beta1=0.95)
        self._net.refresh()
        self._blend(self._mean_params, self._params, self._state.updates)
        self._acting.refresh()
        return diff.square().sum() / count

    def _blend(self, mean: FlatParams, params: FlatParams, update: int) -> None:
        power, largest = self._average
        mean.blend(params, 1.0 - min(largest, 1.0 - (1.0 + update) ** -power))

    def _teach(self, state: Tensor, rate: float | None = None) -> Tensor:
        if self._distill_noise:
            draw = {"generator": self._generator, "device": state.device}
            spread = torch.rand(len(state), 1, **draw) * self._distill_noise
            state = state + spread * torch.randn(state.shape, **draw)
        noise = torch.randn(len(state), self._flat, generator=self._generator, device=state.device)
        goal = self.teacher(state, noise)
        out = self._student.forward(torch.cat([state, noise], 1))[0]
        executed = self.horizons.exec * self.io.action_dim
        diff = torch.zeros_like(out)
        diff[:, :executed] = out[:, :executed] - goal[:, :executed]
        count = len(out) * executed
        self._student.backward((diff * (2.0 / count))[None])
        self._student_params.adam(self._student_rate() if rate is None else rate)
        self._student.refresh()
        self._blend(self._student_mean, self._student_params, self._state.updates - self._distill)
        self._student_acting.refresh()
        return diff.square().sum() / count

    @torch.no_grad()
    def teacher(self, state: Tensor, noise: Tensor) -> Tensor:
        """(B, H A) in [-1, 1]: the deterministic map from noise (B, H A) of the averaged teacher."""
        x = noise
        if self.kind == "flow":
            for i in range(self.steps):
                x = x + self._velocity(state, x, i / self.steps) / self.steps
            return x.clamp(-1.0, 1.0)
        order = self.schedule.indices(self.steps)
        for index, following in zip(order, [*order[1:], -1]):
            noise_found = self._velocity(state, x, index / len(self.schedule.beta))
            x = ddim_step(self.schedule, x, noise_found, index, following).mean
        return x.clamp(-1.0, 1.0)

    def _velocity(self, state: Tensor, x: Tensor, t: float) -> Tensor:
        features = time_features(torch.full((len(x),), t, dtype=x.dtype, device=x.device), TIME)
        return self._acting.forward(torch.cat([state, x, features], 1))[0]

    @torch.no_grad()
    def student(self, state: Tensor, noise: Tensor) -> Tensor:
        """(B, H A) in [-1, 1], one pass; entries behind the executed ones repeat the last executed action."""
        out = self._student_acting.forward(torch.cat([state, noise], 1))[0].clamp(-1.0, 1.0)
        chunk = out.view(len(out), self.window, -1)
        k = self.horizons.exec
        rest = chunk[:, k - 1 : k].expand(-1, self.window - k, -1)
        return torch.cat([chunk[:, :k], rest], 1).flatten(1)

    def student_numpy(self, state: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """As `student` (on a CPU), in plain NumPy: of one row torch's calls cost more than the products."""
        h = np.concatenate([state, noise], 1)
        for i, (weight, bias) in enumerate(self._student_arrays):
            h = h @ weight + bias
            if i + 1 < len(self._student_arrays):
                np.maximum(h, 0.0, out=h)
        chunk = np.clip(h, -1.0, 1.0).reshape(len(h), self.window, -1)
        k = self.horizons.exec
        chunk[:, k:] = chunk[:, k - 1 : k]
        return chunk

    def continued(self, state: Tensor, noise: Tensor, previous: Tensor, running: Tensor) -> Tensor:
        """(B, H A): a flow's sample that goes on from the running chunk (real-time chunking)."""
        h, k = self.window, self.horizons.exec
        weight = guidance_weights(self.delay, h - k, h).to(state) * running.to(state.dtype)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            features = time_features(t, TIME)
            return self._graph.compute(torch.cat([state, x.flatten(1), features], 1))[0].view_as(x)

        chunk = guided_flow(velocity, noise.view(len(noise), h, -1), previous, weight, steps=self.steps)
        return chunk.flatten(1).clamp(-1.0, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Weights, averages, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)

    def acting_parts(self) -> dict[str, FlatParams]:
        """Parameters that acting needs."""
        return {"teacher": self._mean_params, "student": self._student_mean}

    def refresh(self) -> None:
        """Parameters were loaded."""
        self._acting.refresh()
        self._student_acting.refresh()


class DiffusionPolicy(ChunkedPolicy):
    """Plays the teacher's chunks, or the student's.

    Attributes:
        student: who decides.
    """

    def __init__(self, io: IOSpec, planner: DiffusionPlanner, execution: Execution, *, student: bool = False) -> None:
        super().__init__(io, planner, execution)
        self.student = planner.student = student

    def choose(self, *, student: bool) -> None:
        """Let the student decide, or the teacher.

        Raises:
            ValueError: the student never learned.
        """
        if student and not self.planner.has_student:  # type: ignore[attr-defined]
            raise ValueError("this policy's student never learned; train it with policy.distill_from=<update>")
        self.student = self.planner.student = student  # type: ignore[attr-defined]
        self.reset()


class DiffusionPlanner:
    """The acting half; shares the learner's parameters. Samples have no mode: `deterministic` keeps their noise apart
    from that of training."""

    def __init__(self, learner: Diffusion, seed: int) -> None:
        self._learner, self.student = learner, False
        device = learner._generator.device
        self._noise = [torch.Generator(device=device).manual_seed(seed + i) for i in range(2)]

    @property
    def has_student(self) -> bool:
        """Whether the student learns."""
        return self._learner._distill > 0

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """A chunk from new noise."""
        own = self._learner
        generator = self._noise[int(deterministic)]
        state = own.seen(torch.as_tensor(obs["state"]).to(generator.device, torch.float32))
        noise = torch.randn(len(state), own._flat, generator=generator, device=generator.device)
        if self.student and own._student_arrays:
            return Plan(own.student_numpy(state.numpy(), noise.numpy()))
        if self.student:
            chunk = own.student(state, noise)
        elif own.kind == "flow" and own.delay and context["running"].any():
            previous = torch.as_tensor(context["previous"]).to(state)
            chunk = own.continued(state, noise, previous, torch.as_tensor(context["running"]).to(state.device))
        else:
            chunk = own.teacher(state, noise)
        return Plan(chunk.view(len(chunk), own.window, -1))

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments and noise."""
        own = self._learner
        state: dict[str, Any] = {name: p.flat.detach().clone() for name, p in own.acting_parts().items()}
        state |= {f"noise{i}": g.get_state() for i, g in enumerate(self._noise)}
        return state if own.norm is None else {**state, "norm": own.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a policy of other sizes or parts.
        """
        own = self._learner
        for name, params in own.acting_parts().items():
            if name not in state or state[name].shape != params.flat.shape:
                raise ValueError(f"the saved policy lacks '{name}' of {params.flat.numel()} parameters; build it alike")
        with torch.no_grad():
            for name, params in own.acting_parts().items():
                params.flat.copy_(state[name])
        for i, generator in enumerate(self._noise):
            generator.set_state(state[f"noise{i}"].cpu())
        if own.norm is not None:
            own.norm.load_state_dict(state["norm"])
        own.refresh()
