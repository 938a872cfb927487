"""What every learner from logs has besides its method: saved parts, counted updates, metrics without waiting."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from robot_rl.state import put_back, take
from robot_rl.types import Metrics, StateDict


class LearnerState:
    """Named parts that are saved and loaded together, the update counter, and metrics read every n-th update.

    Metrics stay on the device until they are due, so that an update does not wait for it. When they are read, a value
    that is not finite, or |Q| far above what the rewards allow, stops the run with its name.

    Attributes:
        updates: so far.
        bound: largest possible |return| of the data, or inf while unknown.
    """

    def __init__(self, method: str, *, metrics_every: int, parts: dict[str, object]) -> None:
        """Join the parts.

        Args:
            method: for messages.
            metrics_every: metrics are computed in every n-th update; 0 for never.
            parts: name -> FlatParams, policy, normaliser or torch.Generator.
        """
        self.method, self.updates, self.bound = method, 0, math.inf
        self._every, self._parts = metrics_every, parts
        self._metrics: Metrics = {}

    def include(self, parts: Mapping[str, object]) -> None:
        """Add the parts that are there: not None."""
        self._parts = {**self._parts, **{name: part for name, part in parts.items() if part is not None}}

    def tick(self) -> bool:
        """Count an update; True when its metrics are wanted."""
        self.updates += 1
        return self._every > 0 and self.updates % self._every == 0

    def falling(self, lr: float, over: int, *, first: int = 1) -> float:
        """Step size of this update: `lr` falling to 0 over `over` updates from `first` on as a cosine; 0 keeps it."""
        if not over:
            return lr
        return lr * 0.5 * (1.0 + math.cos(math.pi * min((self.updates - first) / over, 1.0)))

    def report(self, metrics: dict[str, Tensor] | None) -> Metrics:
        """Read the metrics of this update, or return the latest.

        Args:
            metrics: name -> () tensor, or None when not wanted. "q" is the mean value that is watched for divergence.

        Raises:
            FloatingPointError: a metric is not finite, or |q| exceeds ten times the largest possible return.
        """
        if metrics:
            names = list(metrics)
            device = next(iter(metrics.values())).device  # a step size, say, is a number of the host
            stacked = torch.stack([x.detach().to(device, torch.float32).reshape(()) for x in metrics.values()])
            values = dict(zip(names, stacked.tolist()))  # one copy for all
            bad = [name for name, value in values.items() if not math.isfinite(value)]
            if bad:
                raise FloatingPointError(
                    f"{self.method} diverged at update {self.updates}: {', '.join(bad)} not finite; resume from an "
                    "earlier checkpoint, look for non-finite values in the data (robot-rl data info), or lower lr"
                )
            if abs(values.get("q", 0.0)) > 10.0 * self.bound:
                raise FloatingPointError(
                    f"{self.method} diverged at update {self.updates}: mean Q is {values['q']:.3g}, but no return of "
                    f"this data can exceed {self.bound:.3g} in size; raise the method's pessimism or penalty, or "
                    "check the rewards"
                )
            self._metrics = {f"train/{name}": value for name, value in values.items()}
        return dict(self._metrics)

    def state_dict(self) -> StateDict:
        """All parts, counters and the latest metrics: tensors and numbers."""
        counters = {"updates": self.updates, "bound": self.bound, "metrics": dict(self._metrics)}
        return {**take(self._parts), **counters}

    def load_state_dict(self, state: StateDict) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to another method or to other sizes.
        """
        put_back(self._parts, {name: state[name] for name in self._parts if name in state}, self.method)
        self.updates, self.bound = int(state["updates"]), float(state["bound"])
        self._metrics = {name: float(value) for name, value in state["metrics"].items()}
