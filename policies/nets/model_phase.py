"""A learner's model-based half: first fit the dynamics, then keep a store of fresh branches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, TypeVar

import torch
from torch import Tensor

from robot_rl.policies.nets.branches import Branches, Doubt, Model
from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.policies.nets.learner import LogLearner, LogOptions
from robot_rl.types import IOSpec, LogFacts, Metrics, Obs, Policy, StateDict, Transitions
from robot_rl.types.options import Count, Rate, Share, Whole

_VALIDATE_EVERY, _PATIENCE = 250, 5
"""Updates between validations of the models, and validations without an improvement that end their fit."""


class ModelOptions(LogOptions):
    """Of learners that act in a learnt model."""

    horizon: Count = 5
    """Steps per branch; 5, walker2d medium-replay and medium-expert 1."""
    real_ratio: Share = 0.05
    """Share of logged rows in a batch."""
    rollout_every: Count = 1000
    """Updates between rollouts."""
    rollout_batch: Count = 50_000
    """Branches begun at once."""
    keep_rollouts: Count = 5
    """How many rollouts the store holds."""
    termination: Literal["never", "halfcheetah", "hopper", "walker2d", "ant"] | None = None
    """Rule of simulated episodes; null refuses logs with terminations."""
    model_updates: Whole = 50_000
    """Most updates of the model, before those of the policy."""
    model_members: Count = 7
    """Models."""
    model_elites: Count = 5
    """Those that predict."""
    model_hidden: tuple[Count, ...] = (200, 200, 200, 200)
    """Widths of the models."""
    model_lr: Rate = 1e-3
    """Step size of the models."""


class ModelPhase:
    """Dynamics that are learnt in the first updates, and branches that are renewed every so many updates after.

    A row of the log is held out for validation if a hash of its state and action says so: the split needs no access to
    the data set and is the same in every run.

    Attributes:
        dynamics: what is fitted, or None where the true model was given.
        branches: where simulated rows go.
        steps: updates of the model so far.
        ready: the model is fitted (or given); policy updates may begin.
        latest: metrics of the newest branches.
    """

    def __init__(
        self,
        options: ModelOptions,
        io: IOSpec,
        *,
        generator: torch.Generator,
        gamma: float,
        model: Model | None = None,
        doubt: Doubt | None = None,
    ) -> None:
        """Models, unless `model` is given, and a store for the rollouts.

        Args:
            options: of the learner.
            io: one vector observation "state".
            generator: of weights and samples.
            gamma: discount of simulated rows; logged ones bring their own.
            model: true dynamics in place of the models, to separate model errors from everything else.
            doubt: what lowers simulated rewards; None for nothing.
        """
        o, size, actions = options, io.obs["state"][0][0], io.action_dim
        self.o, self._given, self._doubt = o, model, doubt or Doubt()
        self.dynamics: Dynamics | None = None
        if model is None:
            self.dynamics = Dynamics(
                size,
                actions,
                generator=generator,
                members=o.model_members,
                elites=o.model_elites,
                hidden=o.model_hidden,
                lr=o.model_lr,
                kernel=o.kernel,
            )
        rows, rule = o.keep_rollouts * o.rollout_batch * o.horizon, o.termination or "never"
        self.branches = Branches(size, actions, rows, gamma=gamma, generator=generator, termination=rule)
        self.ready = model is not None
        self.steps, self._stale, self._since, self._terminal = 0, 0, 0, False
        self._held: list[tuple[Tensor, ...]] = []
        self.latest: dict[str, Tensor] = {}

    def fit(self, batches: Iterator[Transitions]) -> dict[str, Tensor]:
        """One update of the dynamics: every member on the training rows of a batch of its own."""
        assert self.dynamics is not None
        model, groups = self.dynamics, []
        for _ in range(model.members):
            batch = next(batches)
            state, action, after = batch.obs["state"], batch.action, batch.next_obs["state"]
            self._terminal |= bool(batch.terminated.any())
            held = _held_out(torch.cat([state, action], 1))
            columns = (state, action, after, batch.reward)
            if len(self._held) < 64 and bool(held.any()):
                self._held.append(tuple(c[held].clone() for c in columns))
            order = torch.argsort(held, stable=True)  # training rows first, repeated in place of the others
            index = order[torch.arange(len(held), device=held.device) % (~held).sum().clamp_min(1)]
            groups.append(tuple(c[index] for c in columns))
        if self.steps < 50:
            for group in groups:
                model.observe(*group)
        error = model.fit(*(torch.stack(parts) for parts in zip(*groups)))
        self.steps += 1
        last = self.steps >= self.o.model_updates
        if last or self.steps % _VALIDATE_EVERY == 0:
            held = self._held or groups[:1]  # a log too small to hold anything out
            better = model.validate(*(torch.cat(parts) for parts in zip(*held)))
            self._stale = 0 if better else self._stale + 1
            if last or self._stale >= _PATIENCE:
                model.settle()
                self.ready = True
        about = {"model_error": error}
        if last or self.steps >= _VALIDATE_EVERY:
            about["model_best"] = model.best.min()
        return about

    def mix(self, policy: Policy, batches: Iterator[Transitions]) -> Iterator[Transitions]:
        """Batches of logged and simulated rows; branches are renewed first when they are due.

        Raises:
            ValueError: the log holds terminations and no rule says when the model's episodes end.
        """
        o = self.o
        if self._terminal and o.termination is None:
            raise ValueError(
                "the log holds terminations, so simulated episodes must end too: name the rule, "
                "policy.termination=hopper, walker2d or ant (halfcheetah and never end nothing)"
            )
        if self._since % o.rollout_every == 0:
            start = []
            while sum(map(len, start)) < o.rollout_batch:
                start.append(next(batches).obs["state"])

            def act(state: Tensor) -> Tensor:
                obs: Obs = {"state": state}
                return torch.as_tensor(policy.act(obs).value)

            model = self._given or (self.dynamics.step if self.dynamics is not None else None)
            assert model is not None
            first = torch.cat(start)[: o.rollout_batch]
            self.latest = self.branches.roll(first, act, model, horizon=o.horizon, doubt=self._doubt)
        self._since += 1
        return self.branches.mix(batches, o.batch_size, o.real_ratio)

    def parts(self) -> dict[str, object]:
        """What a learner saves of it."""
        own: dict[str, object] = {"phase": self, "branches": self.branches}
        return own if self.dynamics is None else {**own, "model": self.dynamics}

    def state_dict(self) -> StateDict:
        """Counters and held-out rows."""
        held = {str(i): {str(j): part for j, part in enumerate(row)} for i, row in enumerate(self._held)}
        return {
            "counts": [self.steps, self._stale, self._since, int(self._terminal), int(self.ready)],
            "held": held,
            "latest": dict(self.latest),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue where the saved phase was."""
        self.steps, self._stale, self._since, terminal, ready = (int(x) for x in state["counts"])
        self._terminal, self.ready = bool(terminal), bool(ready)
        rows, device = [state["held"][str(i)] for i in range(len(state["held"]))], self.branches.rows.device
        self._held = [tuple(row[str(j)].to(device) for j in range(len(row))) for row in rows]
        self.latest = dict(state["latest"])


M = TypeVar("M", bound=ModelOptions)


class ModelBased(LogLearner[M]):
    """What turns a learner from logs into one that also learns from branches of a learnt model.

    The first updates fit the models; every later one is an update of the learner behind it in the order of bases, on
    batches that mix logged and simulated rows.

    Metrics: train/model_error and train/model_best while the models are fitted; then those of the learner behind it and
    train/model_reward, train/model_doubt, train/edge_share.

    Attributes:
        phase: models and branches.
    """

    def __init__(
        self,
        options: M,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        model: Model | None = None,
    ) -> None:
        """Build networks and models for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of weights, noise and branches.
            device: torch device.
            gamma: discount of simulated rows; logged ones bring their own.
            model: true dynamics in place of the models, to separate model errors from everything else.
        """
        super().__init__(options, io, seed=seed, device=device)
        self.phase = ModelPhase(options, io, generator=self.generator, gamma=gamma, model=model, doubt=self.doubt)
        self.state.include(self.phase.parts())

    @property
    def prelude(self) -> int:
        """Those of the models."""
        return self.phase.steps

    @property
    def doubt(self) -> Doubt | None:
        """What lowers simulated rewards; None for nothing."""
        return None

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; the model may promise more than the data, so values are not bounded by it."""
        super().prepare(facts)
        self.state.bound = math.inf

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of the models, or, once they are fitted, one of the learner.

        Raises:
            ValueError: the log holds terminations and no rule was named.
        """
        if not self.phase.ready:
            return self.metrics(**self.phase.fit(batches))
        return super().update(self.phase.mix(self.policy, batches))

    def metrics(self, **values: Tensor) -> Metrics:
        """As `NetLearner`, and of the newest branches."""
        return super().metrics(**values, **self.phase.latest)


def _held_out(row: Tensor) -> Tensor:
    """(B,) bool: about one row in twenty of (B, n + A) states and actions, told by itself alone.

    The factor is irrational: whole numbers, such as actions at their bounds, would all be held out by a whole one.
    """
    mixed = (row.double() * torch.arange(1, row.shape[1] + 1, device=row.device)).sum(1) * (7919.0 * math.sqrt(2.0))
    return (mixed - mixed.floor()) < 0.05
