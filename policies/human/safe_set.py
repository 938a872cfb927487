"""Any method with critics, exploring inside a safe set that demonstrations span."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from robot_rl.policies.human.safe_set_model import SafeSet, SafeSetOptions, mlp
from robot_rl.policies.nets.imitation import human_rows
from robot_rl.state import put_back, set_generator, take
from robot_rl.types import (
    Action,
    AnyLearner,
    Array,
    IOSpec,
    Metrics,
    Obs,
    OuterLearner,
    PolicyParts,
    StateDict,
    TrainedPolicy,
    Transitions,
)
from robot_rl.types.options import Count, Whole


class SafeExplorationOptions(SafeSetOptions):
    """Of exploration inside a safe set."""

    method: Callable[..., AnyLearner]
    """Whose actions are kept there, with `values`: (io, seed=, device=, gamma=) -> learner."""
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Least P(safe); 0 switches the filter off."""
    horizon: Count = 2
    """Predicted steps."""
    candidates: Count = 16
    """Samples tried in place of an action that does not pass."""
    set_steps: Whole = 500
    """Updates of set, model and clone on the demonstrations before the first own step."""
    metrics_every: Count = 100
    """Updates between measured metrics."""


class SafeExploration(OuterLearner[SafeExplorationOptions, Transitions]):
    """Keeps a method's actions where the predicted next states are probably safe.

    An action passes when min over the next `horizon` predicted states of P(safe) is at least `delta`. Else
    `candidates` further samples of the policy are tried and the one with the largest mean Q among those that pass is
    taken; if none passes, the demonstrator's clone acts. The method learns from what was executed, as ever.

    This bounds exploration in a learnt sense. It is no replacement for the safety supervisor, which stands behind it.

    Source: interface and filter are our design; safe sets as in `SafeSet`; the setting of Safe Reinforcement Learning
    with Minimal Supervision (arXiv 2501.04481, abstract only: its "optimistic forgetting" is not implemented).
    """

    def __init__(
        self, options: SafeExplorationOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.97
    ) -> None:
        """Build method, set, model and clone.

        Args:
            options: of the filter, and the method.
            io: interface of the robot; observation "state" only.
            seed: of everything.
            device: of everything.
            gamma: discount per step, of the method.

        Raises:
            ValueError: pictures, or a method whose critics cannot be asked.
        """
        super().__init__(options, io, seed=seed, device=device)
        o = options
        if set(io.obs) != {"state"}:
            raise ValueError(f"the safe set reads observation 'state' alone, this robot gives {', '.join(io.obs)}")
        self.learner = o.method(io, seed=seed, device=device, gamma=gamma)
        if not self.learner.judges:
            raise ValueError(
                f"{type(self.learner).__name__} has no critics that can be asked; use human/imitation_sac or human/rlif"
            )
        self._generator = torch.Generator(device).manual_seed(seed + 7919)
        states = io.obs["state"][0][0]
        self.safe = SafeSet(o, states, io.action_dim, generator=self._generator)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.clone = nn.Sequential(mlp(states, o.hidden, io.action_dim), nn.Tanh()).to(device)
        self._clone_optimiser = torch.optim.Adam(self.clone.parameters(), o.lr)
        self._updates = 0
        self._metrics: Metrics = {}
        self.policy = SafePolicy(o, io, self.learner.policy, self.safe, self.clone, self.learner.values)

    def pretrain(self, batches: Iterator[Transitions], /) -> Metrics:
        """The method's own where it has one, then set, model and clone on demonstrations."""
        found = self.learner.pretrain(batches)
        for _ in range(self.o.set_steps):
            self._metrics = self._learn(next(batches))
        return {**found, **self._metrics}

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """The method's own; set, model and clone learn from the last batch that it took."""
        last: list[Transitions] = []

        def tap() -> Iterator[Transitions]:
            for batch in batches:
                last[:] = [batch]
                yield batch

        found = self.learner.update(tap())
        self._updates += 1
        metrics = self._learn(last[0])
        if self._updates % self.o.metrics_every == 0:
            self._metrics = metrics
        return {**found, **self._metrics, **self.policy.metrics()}

    def _learn(self, batch: Transitions) -> dict[str, float]:
        metrics = self.safe.learn(batch)
        weight = human_rows(batch)[:, None]
        if float(weight.sum()) > 0.0:
            error = (self.clone(self.policy.standardise(batch.obs["state"])) - batch.action).square() * weight
            loss = error.sum() / (weight.sum() * batch.action.shape[1])
            self._clone_optimiser.zero_grad()
            loss.backward()
            self._clone_optimiser.step()
        return metrics

    def values(self, obs: Obs, action: np.ndarray) -> np.ndarray:
        """(E, B) of the method's critics."""
        return self.learner.values(obs, action)

    def state_dict(self) -> StateDict:
        """The method's, and everything of the set."""
        return {
            "method": self.learner.state_dict(),
            "clone_optimiser": copy.deepcopy(self._clone_optimiser.state_dict()),
            "set": self.policy.set_state(),
            "generator": self._generator.get_state(),
            "updates": self._updates,
            "metrics": dict(self._metrics),
        }

    def load_state_dict(self, state: StateDict, /) -> None:
        """Continue exactly."""
        self.learner.load_state_dict(state["method"])
        self._clone_optimiser.load_state_dict(state["clone_optimiser"])
        self.policy.load_set_state(state["set"])
        set_generator(self._generator, state["generator"])
        self._updates, self._metrics = int(state["updates"]), dict(state["metrics"])


class SafePolicy:
    """A policy behind the filter of a safe set.

    Args:
        options: of the filter.
        io: interface.
        policy: of the method.
        safe: set and model.
        clone: scaled state -> action of the demonstrator.
        values: critics.
    """

    def __init__(
        self,
        options: SafeExplorationOptions,
        io: IOSpec,
        policy: TrainedPolicy,
        safe: SafeSet,
        clone: nn.Module,
        values: Callable[[Obs, np.ndarray], np.ndarray],
    ) -> None:
        self.o = options
        self.io, self._policy, self._safe, self._clone, self._values = io, policy, safe, clone, values
        self._counts = {"asked": 0, "replaced": 0, "fallback": 0}

    @property
    def parts(self) -> PolicyParts:
        """Those of the method's policy that do not ask what it would do by itself."""
        return self._policy.parts.around(self._policy.parts.executed)

    def reset(self, rows: Array | None = None) -> None:
        """The method's policy forgets."""
        self._policy.reset(rows)

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """The policy's action, another of its samples, or the demonstrator's; one decision per row."""
        found = self._policy.act(obs, deterministic=deterministic)
        if self.o.delta == 0.0 or not self._safe.known:
            return found
        state = torch.as_tensor(np.asarray(obs["state"], np.float32), device=self._device)
        value = np.array(found.value, np.float32)
        finite = np.isfinite(value).all(1)  # what is not finite is for the supervisor to see
        passed = self._passes(state, torch.as_tensor(np.nan_to_num(value), device=self._device)).cpu().numpy()
        self._counts["asked"] += len(value)
        for row in np.flatnonzero(~passed & finite):
            value[row] = self._other(obs, state, int(row))
        return replace(found, value=value)

    def _other(self, obs: Obs, state: Tensor, row: int) -> np.ndarray:
        many = {key: np.repeat(np.asarray(item)[row : row + 1], self.o.candidates, 0) for key, item in obs.items()}
        tried = np.asarray(self._policy.act(many).value, np.float32)
        here = state[row : row + 1].expand(self.o.candidates, -1)
        good = self._passes(here, torch.as_tensor(tried, device=self._device)).cpu().numpy()
        if good.any():
            self._counts["replaced"] += 1
            q = self._values(many, tried).mean(0)
            return tried[int(np.argmax(np.where(good, q, -np.inf)))]
        self._counts["fallback"] += 1
        return self._demonstrator(state[row : row + 1]).cpu().numpy()[0]

    def _passes(self, state: Tensor, action: Tensor) -> Tensor:
        return self._safe.ahead(state, action, self._demonstrator, self.o.horizon) >= self.o.delta

    def _demonstrator(self, state: Tensor) -> Tensor:
        with torch.no_grad():
            return self._clone(self.standardise(state))

    @property
    def _device(self) -> torch.device:
        return next(self._clone.parameters()).device

    def standardise(self, state: Tensor) -> Tensor:
        """States as set and clone read them."""
        return self._safe.standardise(state)

    def metrics(self) -> Metrics:
        """Shares of the actions so far that another sample, or the demonstrator, took the place of."""
        asked = max(self._counts["asked"], 1)
        return {f"safe/{name}": self._counts[name] / asked for name in ("replaced", "fallback")}

    def set_state(self) -> StateDict:
        """Set, model, clone and counters."""
        return {
            "safe": self._safe.state_dict(),
            "clone": copy.deepcopy(self._clone.state_dict()),
            "counts": dict(self._counts),
        }

    def load_set_state(self, state: StateDict) -> None:
        """Copy in place."""
        self._safe.load_state_dict(state["safe"])
        self._clone.load_state_dict(state["clone"])
        self._counts = {name: int(count) for name, count in state["counts"].items()}

    def state_dict(self) -> StateDict:
        """The method's policy, and what of set, model and clone acts: tensors only."""
        return {"policy": self._policy.state_dict(), **take(self._acting)}

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place."""
        self._policy.load_state_dict(state["policy"])
        put_back(self._acting, {key: value for key, value in state.items() if key != "policy"}, "SafePolicy")

    @property
    def _acting(self) -> dict[str, object]:
        return {**self._safe.acting, "clone": self._clone}
