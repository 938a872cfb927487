"""Offline experience replay: tasks learnt one after another from logs, the earlier ones kept by a few real steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import RunningNorm
from robot_rl.policies.nets.rows import Rows, split, state_size
from robot_rl.policies.offline.td3_bc import Td3Bc, Td3BcOptions
from robot_rl.types import Action, IOSpec, Learner, LogFacts, Metrics, Obs, Transitions
from robot_rl.types.options import Count, NotNegative, Rate, Share, Whole


class TaskPolicy:
    """The student: a policy of [state, task] that is told which task it does.

    Attributes:
        task: number of the task, from 0; assign another at any time.
    """

    def __init__(self, inner: MeanPolicy, io: IOSpec, norm: RunningNorm, task: int, tasks: int) -> None:
        """Wrap `inner`, which answers [normalised state, one-hot task]."""
        self.io, self._inner, self._norm, self.task, self._tasks = io, inner, norm, task, tasks

    def reset(self, rows: Any = None) -> None:
        """No memory."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, n) -> (B, A) in [-1, 1], in the kind of the observation."""
        state = torch.as_tensor(obs["state"]).to(self._norm.scale.device, torch.float32)
        action = self._inner.act({"state": self.joined(state, self.task)}, deterministic=deterministic)
        return action if isinstance(obs["state"], Tensor) else Action(torch.as_tensor(action.value).cpu().numpy())

    def joined(self, state: Tensor, task: int) -> Tensor:
        """(B, n + tasks)."""
        told = state.new_zeros(len(state), self._tasks)
        told[:, task] = 1.0
        return torch.cat([self._norm(state), told], -1)

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments, noise generator and the task."""
        return {**self._inner.state_dict(), "moments": self._norm.state_dict(), "task": self.task}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        self._inner.load_state_dict({k: v for k, v in state.items() if k not in ("moments", "task")})
        self._norm.load_state_dict(state["moments"])
        self.task = int(state["task"])


class Oer(Learner):
    """A teacher (TD3+BC) on the new task's log alone, and a student that copies it and the kept steps of older tasks.

    L_mu = E_new |mu(s) - pi(s)|^2 + sum over j < n of E_{B_j} |mu(s) - a|^2; no replay reaches the teacher's values.
    The last update chooses what is kept of this task: the policy is rolled out in learnt dynamics from the log's first
    states; of the nearest logged step of every state that it visits those within the median distance are kept, until
    there are `keep`; the nearest of the rest fill up. Run task after task, each with `previous` the run before.

    Source: Gai et al., Offline Experience Replay for Continual Offline RL (OER): model-based selection and dual
    cloning, recalled from the abstract. Equations, distances in standardised states and the task's number as an input
    are ours.
    """

    consumes = "transitions"
    reads = ("episode", "step")

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        hidden: tuple[Count, ...] = (256, 256),
        previous: str | None = None,
        tasks: Count = 8,
        keep: Whole = 10_000,
        pool: Count = 100_000,
        horizon: Count = 200,
        starts: Count = 256,
        updates: Count = 1_000_000,
        model_updates: Whole = 20_000,
        model_members: Count = 5,
        model_hidden: tuple[Count, ...] = (200, 200, 200, 200),
        model_lr: Rate = 1e-3,
        alpha: NotNegative = 2.5,
        lr: Rate = 3e-4,
        explore: Share = 0.0,
        kernel: str = "auto",
        metrics_every: Whole = 100,
    ) -> None:
        """Build teacher, student and models.

        Args:
            io: one vector observation "state"; the same for all tasks.
            seed: of initial weights, models and choices.
            device: torch device.
            gamma: part of every learner's signature; the data's `discount` is what is used.
            batch_size: rows per update, of the new task and of each older one.
            hidden: widths of teacher and student.
            previous: run folder (or its learner.pt) of the task before; None begins with the first task.
            tasks: most tasks that the student can be told apart.
            keep: steps kept of every task.
            pool: most logged steps among which those are chosen.
            horizon: steps of a roll-out.
            starts: most first states that roll-outs begin at.
            updates: of the whole run; the last one chooses what is kept.
            model_updates: of the dynamics, in the first updates, beside the rest.
            model_members: models.
            model_hidden: widths of the models.
            model_lr: their step size.
            alpha: of TD3+BC.
            lr: step size of teacher and student.
            explore: noise of the student when it acts stochastically.
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range, or the run before was of another kind or of too many tasks.
            FileNotFoundError: there is no checkpoint of the run before.
        """
        if min(batch_size, tasks, keep, pool, horizon, starts, updates) < 1:
            raise ValueError("batch_size, tasks, keep, pool, horizon, starts and updates are expected to be at least 1")
        size, actions = state_size(io, "OER"), io.action_dim
        self.io, self.batch_size = io, batch_size
        self._keep, self._horizon, self._starts, self._updates = keep, horizon, starts, updates
        self._model_updates, self._lr = model_updates, lr
        generator = torch.Generator(device=device).manual_seed(seed)
        self._generator = generator
        taught = Td3BcOptions.model_validate(
            {"batch_size": batch_size, "hidden": tuple(hidden), "alpha": alpha, "lr": lr}
            | {"kernel": kernel, "metrics_every": metrics_every}
        )
        self._teacher = Td3Bc(taught, io, seed=seed, device=device)
        self._model = Dynamics(
            size,
            actions,
            generator=generator,
            members=model_members,
            elites=model_members,
            hidden=model_hidden,
            lr=model_lr,
            kernel=kernel,
        )
        shape = MlpShape(1, size + tasks, tuple(hidden), actions, False, "actor.")
        self._params = FlatParams(shape.shapes(), device=device)
        shape.initialise(self._params, generator)
        self._student = build_mlp(shape, self._params, kernel=kernel, matmul="float32")
        # The student's moments are those of the first task's log: another task must not move what it has learnt.
        self._norm = RunningNorm(size, device=device)
        inner = MeanPolicy(io, shape, self._params, seed=seed + 1, noise=explore)
        self.policy = TaskPolicy(inner, io, self._norm, 0, tasks)
        self._pool = torch.zeros(pool, size + actions, device=device)
        self._begin = torch.zeros(starts, size, device=device)
        self._filled, self._begun = 0, 0
        self.kept: list[Tensor] = []
        """Per finished task (N, n + A) states and actions."""
        if previous is not None:
            self._follow(_checkpoint(Path(previous)), tasks)
        self._state = LearnerState(
            "OER",
            metrics_every=metrics_every,
            parts={
                "teacher": self._teacher,
                "student": self._params,
                "policy": self.policy,
                "generator": generator,
                **self._model.parts(),
            },
            networks=(self._student, self._model.net),
        )

    def _follow(self, path: Path, tasks: int) -> None:
        state = torch.load(path, map_location=self._pool.device, weights_only=True)
        if "kept" not in state or "student" not in state:
            raise ValueError(
                f"{path} is not of an OER run; name the run that learnt the task before with policy=offline/oer"
            )
        self.kept = [state["kept"][str(i)] for i in range(len(state["kept"]))]
        if len(self.kept) != int(state["policy"]["task"]) + 1:
            raise ValueError(f"the run of {path} did not finish, so nothing is kept of its task; resume it first")
        if len(self.kept) >= tasks:
            raise ValueError(f"{len(self.kept)} tasks are learnt already, and policy.tasks is {tasks}; begin with more")
        self._params.load_state_dict(state["student"])
        self._params.first.zero_()
        self._params.second.zero_()
        self._params.step.zero_()
        self._norm.load_state_dict(state["policy"]["moments"])
        self.policy.task = len(self.kept)
        self._student.refresh()

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; called once, before the first update."""
        self._teacher.prepare(facts)
        if not self.kept:
            mean, std = (torch.as_tensor(x, dtype=torch.float32) for x in (facts.state_mean, facts.state_std))
            self._norm.observe(torch.stack([mean - std, mean + std]))

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of the teacher, the student and, at first, the models; the last one chooses what is kept.

        Returns:
            The latest metrics: those of TD3+BC, train/student_loss (new task), train/replay_loss (older ones),
            train/model_error.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        wanted = self._state.tick()
        batch = next(batches)
        with torch.enable_grad():
            taught = self._teacher.update(iter([batch]))
        rows = split(batch, 1, None)
        state = rows.state[0]
        self._remember(batch)
        metrics: dict[str, Tensor] = {}
        if self._state.updates <= self._model_updates:
            metrics["model_error"] = self._fit(rows)
        answer = torch.as_tensor(self._teacher.policy.act({"state": state}, deterministic=True).value)
        parts = [(self.policy.joined(state, self.policy.task), answer)]
        for task, old in enumerate(self.kept):
            index = torch.randint(len(old), (len(state),), generator=self._generator, device=old.device)
            again = old[index]
            parts.append((self.policy.joined(again[:, : state.shape[1]], task), again[:, state.shape[1] :]))
        mean = self._student.forward(torch.cat([x for x, _ in parts])[None])[0].tanh_()
        diff = mean - torch.cat([y for _, y in parts])
        self._student.backward(((diff * (2.0 / (len(state) * diff.shape[1]))) * (1.0 - mean.square()))[None])
        self._params.adam(self._lr)
        self._student.refresh()
        if self._state.updates == self._updates:
            self.kept.append(self._choose(state.shape[1]))
        if not wanted:
            return {**taught, **self._state.report(None)}
        error = diff.square().view(len(parts), len(state), -1).mean((1, 2))
        metrics |= {"student_loss": error[0], "replay_loss": error[1:].sum() if len(error) > 1 else torch.zeros(())}
        return {**taught, **self._state.report(metrics)}

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

    def _fit(self, rows: Rows) -> Tensor:
        model, size = self._model, rows.state.shape[1]
        columns = [part[0] for part in (rows.state, rows.action, rows.next_state, rows.reward)]
        if self._state.updates <= 50:
            model.observe(*columns)
        index = torch.randint(size, (model.members, size), generator=self._generator, device=rows.state.device)
        return model.fit(*(part[index] for part in columns))

    def _choose(self, width: int) -> Tensor:
        """(keep, n + A): logged steps near the states that the policy visits in the models."""
        pool = self._pool[: self._filled]
        x = self._begin[: self._begun] if self._begun else pool[: self._starts, :width]
        scaled = self._model.input_norm.scale[:width]
        logged = pool[:, :width] * scaled
        best = torch.full((len(pool),), torch.inf, device=pool.device)  # distance at which a logged step was nearest
        low, high = pool[:, :width].amin(0), pool[:, :width].amax(0)
        for _ in range(self._horizon):
            for part in (x * scaled).split(64):
                distance, nearest = torch.cdist(part, logged).min(1)
                best.scatter_reduce_(0, nearest, distance, "amin")
            action = torch.as_tensor(self._teacher.policy.act({"state": x}, deterministic=True).value)
            x = torch.minimum(torch.maximum(self._model.step(x, action)[0], low), high)
        found = best.isfinite()
        near = found & (best <= best[found].median())
        order = torch.cat([torch.nonzero(near)[:, 0], best.masked_fill(near, torch.inf).argsort(stable=True)])
        return pool[order[: min(self._keep, len(pool))]].clone()

    def state_dict(self) -> dict[str, Any]:
        """Weights, models, optimisers, generator, pool, first states and what is kept: tensors and numbers."""
        return {
            **self._state.state_dict(),
            "kept": {str(i): rows for i, rows in enumerate(self.kept)},
            "pool": self._pool[: self._filled].clone(),
            "begin": self._begin[: self._begun].clone(),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
        self.kept = [state["kept"][str(i)].clone() for i in range(len(state["kept"]))]
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
