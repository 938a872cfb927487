"""A learner's model-based half: first fit the dynamics, then keep a store of fresh branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.branches import Branches, Model
from robot_rl.policies.nets.dynamics import Dynamics
from robot_rl.types import Obs, Policy, Transitions


class ModelPhase:
    """Dynamics that are learnt in the first updates, and branches that are renewed every so many updates after.

    A row of the log is held out for validation if a hash of its action says so: the split needs no access to the
    data set and is the same in every run.

    Attributes:
        ready: the model is fitted (or given); policy updates may begin.
    """

    def __init__(
        self,
        dynamics: Dynamics | None,
        branches: Branches,
        *,
        model: Model | None,
        horizon: int,
        rollout_batch: int,
        rollout_every: int,
        model_updates: int,
        validate_every: int = 250,
        patience: int = 5,
        penalty: float = 0.0,
        uncertainty: str = "aleatoric",
        drop_top: float = 0.0,
    ) -> None:
        """Join model and store.

        Args:
            dynamics: what is fitted, or None with `model`.
            branches: where rows go.
            model: true dynamics in place of a fitted model.
            horizon: steps per branch.
            rollout_batch: branches begun at once.
            rollout_every: updates between renewals.
            model_updates: most updates of the fit.
            validate_every: updates between validations.
            patience: validations without an improvement that end the fit.
            penalty: of the uncertainty; see `Branches.roll`.
            uncertainty: see `Branches.roll`.
            drop_top: see `Branches.roll`.
        """
        self.dynamics, self.branches, self._given = dynamics, branches, model
        self._roll = {"horizon": horizon, "penalty": penalty, "uncertainty": uncertainty, "drop_top": drop_top}
        self._batch, self._every, self._limit = rollout_batch, rollout_every, model_updates
        self._validate_every, self._patience = validate_every, patience
        self.ready = model is not None
        self._steps, self._stale, self._since, self._terminal = 0, 0, 0, False
        self._held: list[tuple[Tensor, ...]] = []
        self._latest: dict[str, Tensor] = {}

    @classmethod
    def build(
        cls,
        size: int,
        actions: int,
        *,
        generator: torch.Generator,
        gamma: float,
        keep_rollouts: int,
        rollout_batch: int,
        horizon: int,
        termination: str | None,
        model: Model | None,
        members: int,
        elites: int,
        hidden: tuple[int, ...],
        lr: float,
        kernel: str,
        **options: Any,
    ) -> ModelPhase:
        """Dynamics, unless `model` is given, and a store for `keep_rollouts` rollouts, joined.

        Args:
            size: of a state.
            actions: of an action.
            generator: of weights and samples.
            gamma: discount of simulated rows.
            keep_rollouts: how many rollouts the store holds.
            rollout_batch: branches begun at once.
            horizon: steps per branch.
            termination: rule of simulated episodes; None never ends one.
            model: true dynamics in place of learnt ones.
            members: of the ensemble.
            elites: members that predict.
            hidden: widths of a member.
            lr: step size of the models.
            kernel: see `Dynamics`.
            options: further ones of the class.
        """
        dynamics = None
        if model is None:
            dynamics = Dynamics(
                size, actions, generator=generator, members=members, elites=elites, hidden=hidden, lr=lr, kernel=kernel
            )
        rows = keep_rollouts * rollout_batch * horizon
        store = Branches(size, actions, rows, gamma=gamma, generator=generator, termination=termination or "never")
        return cls(dynamics, store, model=model, horizon=horizon, rollout_batch=rollout_batch, **options)

    def fit(self, batches: Iterator[Transitions]) -> dict[str, Tensor]:
        """One update of the dynamics: every member on the training rows of a batch of its own."""
        assert self.dynamics is not None
        model, groups = self.dynamics, []
        for _ in range(model.members):
            batch = next(batches)
            state, action, after = batch.obs["state"], batch.action, batch.next_obs["state"]
            self._terminal |= bool(batch.terminated.any())
            held = _held_out(action)
            columns = (state, action, after, batch.reward)
            if len(self._held) < 64 and bool(held.any()):
                self._held.append(tuple(c[held].clone() for c in columns))
            order = torch.argsort(held, stable=True)  # training rows first, repeated in place of the others
            index = order[torch.arange(len(held), device=held.device) % (~held).sum().clamp_min(1)]
            groups.append(tuple(c[index] for c in columns))
        if self._steps < 50:
            for group in groups:
                model.observe(*group)
        error = model.fit(*(torch.stack(parts) for parts in zip(*groups)))
        self._steps += 1
        if self._steps % self._validate_every == 0 or self._steps >= self._limit:
            held = self._held or groups[:1]  # a log too small to hold anything out
            better = model.validate(*(torch.cat(parts) for parts in zip(*held)))
            self._stale = 0 if better else self._stale + 1
            if self._stale >= self._patience or self._steps >= self._limit:
                model.settle()
                self.ready = True
        about = {"model_error": error}
        if self._steps >= min(self._validate_every, self._limit):
            about["model_best"] = model.best.min()
        return about

    def renew(self, policy: Policy, batches: Iterator[Transitions], known_end: bool) -> dict[str, Tensor]:
        """Add branches when they are due; metrics of the newest.

        Raises:
            ValueError: the log holds terminations and no rule says when the model's episodes end.
        """
        if self._terminal and not known_end:
            raise ValueError(
                "the log holds terminations, so simulated episodes must end too: name the rule, "
                "policy.termination=hopper, walker2d or ant (halfcheetah and never end nothing)"
            )
        if self._since % self._every == 0:
            start = []
            while sum(map(len, start)) < self._batch:
                start.append(next(batches).obs["state"])

            def act(state: Tensor) -> Tensor:
                obs: Obs = {"state": state}
                return torch.as_tensor(policy.act(obs).value)

            model = self._given or (self.dynamics.step if self.dynamics is not None else None)
            assert model is not None
            self._latest = self.branches.roll(torch.cat(start)[: self._batch], act, model, **self._roll)  # type: ignore[arg-type]
        self._since += 1
        return self._latest

    def parts(self) -> dict[str, Any]:
        """What a learner saves of it."""
        own: dict[str, Any] = {"phase": self, "branches": self.branches}
        if self.dynamics is not None:
            own |= {**self.dynamics.parts(), "model_rank": self.dynamics}
        return own

    def refresh(self) -> None:
        """Tell the network that its parameters changed."""
        if self.dynamics is not None:
            self.dynamics.net.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Counters and held-out rows."""
        held = {str(i): {str(j): part for j, part in enumerate(row)} for i, row in enumerate(self._held)}
        return {
            "counts": [self._steps, self._stale, self._since, int(self._terminal), int(self.ready)],
            "held": held,
            "latest": dict(self._latest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the saved phase was."""
        self._steps, self._stale, self._since, terminal, ready = (int(x) for x in state["counts"])
        self._terminal, self.ready = bool(terminal), bool(ready)
        self._held = [
            tuple(row[str(j)] for j in range(len(row))) for _, row in sorted(state["held"].items(), key=_number)
        ]
        self._latest = dict(state["latest"])


def _number(item: tuple[str, Any]) -> int:
    return int(item[0])


def _held_out(action: Tensor) -> Tensor:
    """(B,) bool: one row in twenty, told by its action alone."""
    mixed = (action.double() * torch.arange(1, action.shape[1] + 1, device=action.device)).sum(1) * 7919.0
    return (mixed - mixed.floor()) < 0.05
