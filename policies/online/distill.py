"""Distillation: a student that sees what its robot feels copies a teacher that saw everything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from robot_rl.policies.nets.module_step import ModuleStep
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rollout_learner import RolloutLearner, RolloutOptions
from robot_rl.policies.nets.step_size import StepSize
from robot_rl.policies.online.recurrent_ppo import MemoryNet, MemoryPolicy, cut, minibatches, obs_dim
from robot_rl.types import IOSpec, Metrics, Needs, Obs, Policy, Rollout
from robot_rl.types.io import PRIVILEGED
from robot_rl.types.options import Count, Positive, Rate, Whole

LoadPolicy = Callable[[str], Policy]
"""A run or checkpoint folder -> its policy."""


class DistillOptions(RolloutOptions):
    """Of distillation."""

    teacher: str
    """Run or checkpoint of the teacher."""
    lr: Rate = 2e-3
    """Step size of Adam, at the start of the run."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `lr` changes: kept, or falling to 0 at the end of the run along a line or half a cosine."""
    rollout_steps: Count = 200
    """Steps T of each environment between updates. Where episodes run side by side take whole ones: of halves, each
    update forgets the other half."""
    epochs: Count = 10
    """Passes over a rollout."""
    sequence: Count = 32
    """Steps through which gradients run back: episodes are cut into pieces of at most this length."""
    minibatch: Count = 128
    """Rows of one gradient, about: it takes whole pieces."""
    max_grad_norm: Positive = 1.0
    """Largest norm of the gradient."""
    noise: Positive = 0.1
    """Standard deviation of the student's actions while it learns."""
    memory: Whole = 128
    """Width of the student's GRU; 0: it decides from the present observation alone."""
    hidden: tuple[Count, ...] = (128,)
    """Widths of the layers behind it."""
    normalize_obs: bool = True
    """Shift observations by their running mean and divide those that deviate by more than 1 by their deviation."""


class Distill(RolloutLearner[DistillOptions]):
    """The student drives, the teacher says what it would have done, and the student learns to do that.

    L = mean over rows and actions of (student(o_1 .. o_t) - teacher(s_t))^2, with what the teacher saw in its own
    training, s_t, told by the simulator ("privileged"; `critic_state=true`), or the same observation where both see
    alike. Rollouts are fresh: each is learnt from in `epochs` passes and left. Pieces of episodes begin with the memory
    that was kept of their first step, as in recurrent PPO. No reward is read.

    Metrics: train/imitation_loss before the update of a rollout, train/loss and train/gradient_norm of its last
    gradient, train/lr.

    Source: Ross, Gordon and Bagnell, A Reduction of Imitation Learning to No-Regret Online Learning (DAgger), with the
    student driving from the first step and the newest rollout alone, as in rsl_rl's Distillation (Schwarke et al.,
    RSL-RL); Lee et al., Learning Quadrupedal Locomotion over Challenging Terrain, for teacher and student of legs;
    Kumar et al., RMA, for what a history of proprioception tells.
    """

    method = "distillation"
    privileged = True

    def __init__(
        self,
        options: DistillOptions,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        load: LoadPolicy | None = None,
    ) -> None:
        """Build for `io`.

        Args:
            options: of the method.
            io: interface of the environment; every observation a vector of floats.
            seed: of weights, action noise and the order of pieces.
            device: torch device.
            load: reads the teacher, before the first update: who deploys the student needs none.

        Raises:
            ValueError: an observation is no vector; a teacher that sees, does or remembers something else.
        """
        super().__init__(options, io, seed=seed, device=device)
        self._load, self._teacher = load, None
        acting = io.acting
        widths = {"memory": options.memory, "hidden": options.hidden, "log_std": math.log(options.noise)}
        self.net = MemoryNet(obs_dim(acting), (io.action_dim,), self.generator, **widths)
        self.net.log_std.requires_grad_(False)
        self.norm = RunningNorm(obs_dim(acting), max_scale=1.0, device=device) if options.normalize_obs else None
        self.net_step = ModuleStep(self.net, lr=options.lr, clip=options.max_grad_norm)
        self.lr = StepSize(options.lr, options.lr_schedule)
        self.policy = MemoryPolicy(acting, self.net, self.norm, seed + 1)
        self.state.include({"net": self.net_step, "policy": self.policy, "lr": self.lr})
        if PRIVILEGED in io.obs:
            self._teacher = self._read_teacher()

    @classmethod
    def needs(cls, options: DistillOptions, io: IOSpec) -> Needs:
        """Fresh rollouts of the student, with what it remembered at each step."""
        record = ("memory", "next_memory") if options.memory else ()
        return replace(super().needs(options, io), record=record, rewardless=True)

    def set_progress(self, share: float) -> None:
        """For the step size."""
        self.lr.progress = share

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """`epochs` passes over the pieces of one rollout; metrics as of the class.

        Raises:
            FloatingPointError: a metric is not finite.
        """
        o, rollout = self.o, next(batches)
        columns = {"obs": self.policy.read(rollout.obs), "label": self.labels(rollout.obs), "mask": rollout.valid}
        pieces = {name: x.to(self.generator.device) for name, x in cut(columns, rollout, o.sequence).items()}
        self.net_step.lr = self.lr()
        with torch.no_grad():
            found = {"imitation_loss": self.loss(pieces)}
        for batch in minibatches(pieces, o.minibatch, o.epochs, self.generator):
            loss = self.loss(batch)
            found |= {"loss": loss, "gradient_norm": self.net_step(loss)}
        if self.norm is not None:
            seen = torch.cat([rollout.obs[key][rollout.valid] for key in sorted(self.policy.io.obs)], -1)
            self.norm.observe(seen.to(self.generator.device))
        return self.metrics(**found, lr=torch.tensor(self.net_step.lr))

    def loss(self, pieces: dict[str, Tensor]) -> Tensor:
        """() mean squared distance of the student's means from the teacher's actions.

        Args:
            pieces: "obs" (G, L, S), "memory" (G, M), "label" (G, L, A), "mask" (G, L) bool.
        """
        (mean,) = self.net.each(pieces["obs"], pieces["memory"])
        return (mean - pieces["label"])[pieces["mask"]].square().mean()

    def labels(self, obs: Obs) -> Tensor:
        """(T, N, A) what the teacher does in these observations (T, N, ...)."""
        if self._teacher is None:
            self._teacher = self._read_teacher()
        seen = {"state": obs[PRIVILEGED]} if PRIVILEGED in self.io.obs else {key: obs[key] for key in self.io.obs}
        rows = {key: x.flatten(0, 1).cpu().numpy() for key, x in seen.items()}
        action = torch.as_tensor(self._teacher.act(rows, deterministic=True).value)
        return action.unflatten(0, next(iter(seen.values())).shape[:2])

    def _read_teacher(self) -> Policy:
        path, io = self.o.teacher, self.io
        if self._load is None:
            raise ValueError(f"nobody reads the teacher {path} here; distillation runs by robot-rl train")
        teacher = self._load(path)
        parts = teacher.parts
        if parts.remembers or parts.meter is not None or parts.executed is not None:
            raise ValueError(
                f"the teacher {path} ({type(teacher).__name__}) decides from more than the present observation, and it "
                "is asked about single steps; take one without a memory, which privileged observations make needless"
            )
        shown = io.acting
        if PRIVILEGED in io.obs:
            shown = replace(shown, obs={"state": io.obs[PRIVILEGED]}, obs_names=teacher.io.obs_names)
        lines = teacher.io.differences(shown)
        if lines:
            raise ValueError(
                f"the teacher {path} cannot be asked in this environment; train it with env.teacher_state=true where "
                "the student has critic_state=true, or let both see the same. They differ:\n  - " + "\n  - ".join(lines)
            )
        return teacher
