"""Offline experience replay: tasks learnt one after another from logs, the earlier ones kept by a few real steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.net import mean_rows
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rows import Rows, split
from robot_rl.policies.offline.td3_bc import NearLog, Td3BcOptions
from robot_rl.types import Action, Array, IOSpec, LogFacts, Metrics, Needs, Obs, PolicyParts, StateDict, Transitions
from robot_rl.types.options import Count, Rate, Share, Whole


class TaskPolicy:
    """The student: a policy of [state, task] that is told which task it does.

    Attributes:
        task: number of the task, from 0; assign another at any time.
    """

    parts = PolicyParts()

    def __init__(self, inner: MeanPolicy, io: IOSpec, norm: RunningNorm, task: int, tasks: int) -> None:
        """Wrap `inner`, which answers [normalised state, one-hot task]."""
        self.io, self._inner, self._norm, self.task, self._tasks = io, inner, norm, task, tasks

    def reset(self, rows: Array | None = None) -> None:
        """No memory."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, n) -> (B, A) in [-1, 1], in the kind of the observation."""
        state = torch.as_tensor(obs["state"]).to(self._norm.scale.device, torch.float32)
        action = self._inner.act({"state": self.join(state, self.task)}, deterministic=deterministic)
        return action if isinstance(obs["state"], Tensor) else Action(torch.as_tensor(action.value).cpu().numpy())

    def join(self, state: Tensor, task: int) -> Tensor:
        """(B, n + tasks)."""
        told = state.new_zeros(len(state), self._tasks)
        told[:, task] = 1.0
        return torch.cat([self._norm(state), told], -1)

    def state_dict(self) -> StateDict:
        """Weights, moments, noise generator and the task."""
        return {**self._inner.state_dict(), "moments": self._norm.state_dict(), "task": self.task}

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place."""
        self._inner.load_state_dict({k: v for k, v in state.items() if k not in ("moments", "task")})
        self._norm.load_state_dict(state["moments"])
        self.task = int(state["task"])


class OerOptions(Td3BcOptions):
    """Of offline experience replay; alpha and what follows it are the teacher's."""

    previous: str | None = None
    """Run folder (or its learner.pt) of the task before; null begins with the first task."""
    tasks: Count = 8
    """Most tasks that the student can be told apart."""
    keep: Count = 10_000
    """Steps kept of every task."""
    pool: Count = 100_000
    """Most logged steps among which those are chosen."""
    horizon: Count = 200
    """Steps of a roll-out."""
    starts: Count = 256
    """Most first states that roll-outs begin at."""
    updates: Count = 1_000_000
    """Of the whole run; the last one chooses what is kept."""
    model_updates: Whole = 20_000
    """Of the dynamics, in the first updates, beside the rest."""
    model_members: Count = 5
    """Models."""
    model_hidden: tuple[Count, ...] = (200, 200, 200, 200)
    """Widths of the models."""
    model_lr: Rate = 1e-3
    """Their step size."""
    explore: Share = 0.0
    """Noise of the student when it acts stochastically."""
    seeds: Annotated[int, Field(ge=1, le=1)] = 1
    """One run per learner."""


class Oer(NearLog[OerOptions]):
    """A teacher (TD3+BC) on the new task's log alone, and a student that copies it and the kept steps of older tasks.

    L_mu = E_new |mu(s) - pi(s)|^2 + sum over j < n of E_{B_j} |mu(s) - a|^2; no replay reaches the teacher's values.
    The last update chooses what is kept of this task: the policy is rolled out in learnt dynamics from the log's first
    states; of the nearest logged step of every state that it visits those within the median distance are kept, until
    there are `keep`; the nearest of the rest fill up. Run task after task, each with `previous` the run before.

    Metrics: those of TD3+BC, train/student_loss (new task), train/replay_loss (older ones), train/model_error.

    Source: Gai et al., Offline Experience Replay for Continual Offline RL (OER): model-based selection and dual
    cloning, recalled from the abstract. Equations, distances in standardised states and the task's number as an input
    are ours.

    Attributes:
        kept: per finished task (N, n + A) states and actions.
    """

    method = "OER"

    @classmethod
    def needs(cls, options: OerOptions, io: IOSpec) -> Needs:
        """Rows that say which step of its episode each is."""
        return Needs(rows=options.batch_size, extras=("episode", "step"))

    def build(self) -> None:
        """The teacher of TD3+BC, the student and the models.

        Raises:
            ValueError: the run before was of another kind or of too many tasks.
            FileNotFoundError: there is no checkpoint of the run before.
        """
        super().build()
        o, device = self.o, self.generator.device
        self.model = Dynamics(
            self.size,
            self.actions,
            generator=self.generator,
            members=o.model_members,
            elites=o.model_members,
            hidden=o.model_hidden,
            lr=o.model_lr,
            kernel=o.kernel,
        )
        self.state.include({"model": self.model, "norm": self.norm})
        self.student = self.net("student", self.size + o.tasks, self.actions)
        # The student's moments are those of the first task's log: another task must not move what it has learnt.
        self.first_norm = RunningNorm(self.size, device=device)
        inner = MeanPolicy(self.io, self.student, seed=self.seed + 1, noise=o.explore)
        self.policy = TaskPolicy(inner, self.io, self.first_norm, 0, o.tasks)
        self._pool = torch.zeros(o.pool, self.size + self.actions, device=device)
        self._begin = torch.zeros(o.starts, self.size, device=device)
        self._filled, self._begun = 0, 0
        self.kept: list[Tensor] = []
        if o.previous is not None:
            self._follow(_checkpoint(Path(o.previous)))

    def _follow(self, path: Path) -> None:
        try:
            state = torch.load(path, map_location=self._pool.device, weights_only=True)
        except Exception as error:  # torch raises many kinds for damaged files
            raise ValueError(
                f"policy.previous: {path} cannot be read as a checkpoint ({type(error).__name__}); name the folder of "
                "the run that learnt the task before"
            ) from error
        if "kept" not in state or "student" not in state:
            raise ValueError(
                f"{path} is not of an OER run; name the run that learnt the task before with policy=offline/oer"
            )
        self.kept = [state["kept"][str(i)] for i in range(len(state["kept"]))]
        if len(self.kept) != int(state["policy"]["task"]) + 1:
            raise ValueError(f"the run of {path} did not finish, so nothing is kept of its task; resume it first")
        if len(self.kept) >= self.o.tasks:
            raise ValueError(
                f"{len(self.kept)} tasks are learnt already, and policy.tasks is {self.o.tasks}; begin with more"
            )
        self.student.load_state_dict(state["student"])
        for moments in (self.student.params.first, self.student.params.second, self.student.params.step):
            moments.zero_()
        self.first_norm.load_state_dict(state["policy"]["moments"])
        self.policy.task = len(self.kept)

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; called once, before the first update."""
        super().prepare(facts)
        if not self.kept:
            place = {"dtype": torch.float32, "device": self.generator.device}
            mean, std = (torch.as_tensor(x, **place) for x in (facts.state_mean, facts.state_std))
            self.first_norm.observe(torch.stack([mean - std, mean + std]))

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of the teacher, the student and, at first, the models; the last one chooses what is kept."""
        batch = next(batches)
        b, raw = self.rows(batch), split(batch, 1, None)
        self._remember(batch)
        found = self.learn(b)
        if self.next_update <= self.o.model_updates:
            found["model_error"] = self._fit(raw)
        with torch.no_grad():
            parts = [(self.policy.join(raw.state[0], self.policy.task), self.actor(b.state)[0].tanh_())]
        for task, old in enumerate(self.kept):
            again = old[torch.randint(len(old), (raw.state.shape[1],), generator=self.generator, device=old.device)]
            parts.append((self.policy.join(again[:, : self.size], task), again[:, self.size :]))
        x, copied = (torch.cat(column)[None] for column in zip(*parts))
        error = (self.student(x).tanh() - copied).square().mean(-1).view(len(parts), -1)
        self.student.step(mean_rows(error))
        if self.next_update == self.o.updates:
            self.kept.append(self._choose())
        return self.metrics(**found, student_loss=error[0], replay_loss=error[1:].mean(-1).sum())

    def _remember(self, batch: Transitions) -> None:
        """Fill the pool and the first states from the batches as they come."""
        state = batch.obs["state"][batch.mask]
        room = len(self._pool) - self._filled
        if room > 0:
            rows = torch.cat([state, batch.action[batch.mask]], -1)[:room]
            self._pool[self._filled : self._filled + len(rows)] = rows
            self._filled += len(rows)
        room = len(self._begin) - self._begun
        if room > 0 and "step" in batch.extras:
            first = state[batch.extras["step"][batch.mask] == 0][:room]
            self._begin[self._begun : self._begun + len(first)] = first
            self._begun += len(first)

    def _fit(self, raw: Rows) -> Tensor:
        columns = [part[0] for part in (raw.state, raw.action, raw.next_state, raw.reward)]
        if self.next_update <= 50:
            self.model.observe(*columns)
        size = len(columns[0])
        index = torch.randint(size, (self.model.members, size), generator=self.generator, device=columns[0].device)
        return self.model.fit(*(part[index] for part in columns))

    @torch.no_grad()
    def _choose(self) -> Tensor:
        """(keep, n + A): logged steps near the states that the policy visits in the models."""
        pool, width = self._pool[: self._filled], self.size
        x = self._begin[: self._begun] if self._begun else pool[: self.o.starts, :width]
        scaled = self.model.input_norm.scale[:width]
        logged = pool[:, :width] * scaled
        best = torch.full((len(pool),), torch.inf, device=pool.device)  # distance at which a logged step was nearest
        rest = best.clone()  # ... and from the nearest state visited
        low, high = pool[:, :width].amin(0), pool[:, :width].amax(0)
        for _ in range(self.o.horizon):
            for part in (x * scaled).split(64):
                apart = torch.cdist(part, logged)
                distance, nearest = apart.min(1)
                best.scatter_reduce_(0, nearest, distance, "amin")
                rest = torch.minimum(rest, apart.amin(0))
            action = self.actor((x if self.norm is None else self.norm(x))[None])[0].tanh_()
            x = torch.minimum(torch.maximum(self.model.step(x, action)[0], low), high)
        found = best.isfinite()
        near = found & (best <= best[found].median())
        # the near ones come first, and once more behind all others, where the cut leaves them out
        order = torch.cat([torch.nonzero(near)[:, 0], rest.masked_fill(near, torch.inf).argsort(stable=True)])
        return pool[order[: min(self.o.keep, len(pool))]].clone()

    def state_dict(self) -> StateDict:
        """Weights, models, optimisers, generator, pool, first states and what is kept: tensors and numbers."""
        return {
            **super().state_dict(),
            "kept": {str(i): rows for i, rows in enumerate(self.kept)},
            "pool": self._pool[: self._filled].clone(),
            "begin": self._begin[: self._begun].clone(),
        }

    def load_state_dict(self, state: StateDict, /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        super().load_state_dict(state)
        self.kept = [state["kept"][str(i)].to(self._pool.device, copy=True) for i in range(len(state["kept"]))]
        self._filled, self._begun = len(state["pool"]), len(state["begin"])
        self._pool[: self._filled], self._begin[: self._begun] = state["pool"], state["begin"]


def _checkpoint(path: Path) -> Path:
    """The newest learner.pt of a run folder, or the file itself.

    Raises:
        FileNotFoundError: there is none.
    """
    found = [path] if path.is_file() else sorted(path.glob("checkpoints/step_*/learner.pt"))
    if not found:
        raise FileNotFoundError(f"{path} holds no checkpoints/step_*/learner.pt; expected the run of the task before")
    return found[-1]
