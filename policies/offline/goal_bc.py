"""Goal-conditioned cloning with temporal goal augmentation: what was never recorded as one can be joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mean_policy import MeanPolicy
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import state_size
from robot_rl.types import Action, IOSpec, Learner, LogFacts, Metrics, Obs, Transitions
from robot_rl.types.options import Count, Number, Rate, Share, Whole


class GoalPolicy:
    """A policy of [state, goal] that acts on the state alone; the goal is set, or read from the observation.

    Attributes:
        goal: (G,) what to reach; assign another at any time. Not used where the observation holds the goal.
    """

    def __init__(self, inner: MeanPolicy, io: IOSpec, goal: Sequence[float] | None, desired: tuple[int, ...]) -> None:
        """Wrap `inner`.

        Args:
            inner: answers [state, goal].
            io: interface without the goal.
            goal: values, or None while not known.
            desired: components of the state that hold the wanted goal; they are hidden from the network.
        """
        self.io, self._inner, self._desired = io, inner, list(desired)
        self.goal = None if goal is None else torch.tensor(goal, dtype=torch.float32)

    def reset(self, rows: Any = None) -> None:
        """No memory."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Choose actions: "state" (B, n) -> (B, A) in [-1, 1].

        Raises:
            ValueError: no goal is set.
        """
        state = obs["state"]
        wide = self.joined(torch.as_tensor(state).float())
        return self._inner.act(
            {"state": wide.numpy() if isinstance(state, np.ndarray) else wide}, deterministic=deterministic
        )

    def joined(self, state: Tensor, goal: Tensor | None = None) -> Tensor:
        """(B, n + G) of states (B, n) and goals (B, G); the policy's own goal when None."""
        if goal is None and self._desired:
            goal = state[:, self._desired]
        if goal is None:
            if self.goal is None:
                raise ValueError(
                    "no goal is set: give policy.goal=[...] (values of the components in policy.achieved), or "
                    "policy.desired=[...] where the observation holds the goal"
                )
            goal = self.goal.to(state).expand(len(state), -1)
        if self._desired:
            state = state.clone()
            state[:, self._desired] = 0.0
        return torch.cat([state, goal], -1)

    def state_dict(self) -> dict[str, Any]:
        """Weights, normaliser and noise generator; the goal is configuration."""
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place."""
        self._inner.load_state_dict(state)


class GoalBc(Learner):
    """Cloning of pi(a | s, g), g reached later in the episode or, with probability `stitch`, beyond another one's
    state in the same cluster.

    Plain goal cloning never sees a start together with a goal of another episode, so it cannot join them; the
    augmentation shows it such pairs. It assumes that states of one cluster can follow one another: coarse clusters join
    what no robot can.

    Source: Ghugare et al., Closing the Gap between TD Learning and Supervised Learning, algorithm 1; defaults of
    RajGhugare19/stitching-is-combinatorial-generalisation.
    """

    consumes = "transitions"
    rewardless = True
    reads = ("episode", "step")

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        hidden: tuple[Count, ...] = (1024, 1024),
        achieved: tuple[Whole, ...] | None = None,
        desired: tuple[Whole, ...] = (),
        goal: tuple[Number, ...] | None = None,
        stitch: Share = 0.5,
        clusters: Count = 40,
        lr: Rate = 1e-3,
        explore: Share = 0.0,
        normalize: bool = True,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: Whole = 100,
    ) -> None:
        """Build the network for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights.
            device: torch device.
            gamma: part of every learner's signature; not used.
            batch_size: rows per update.
            hidden: widths of the hidden layers.
            achieved: components of the state that goals are made of; None for all.
            desired: components of the state that hold the wanted goal, in the order of `achieved`.
            goal: values to reach in evaluation, where the observation does not hold them.
            stitch: probability of a goal beyond another episode; 0 is plain goal cloning.
            clusters: of the states, for the former.
            lr: step size.
            explore: noise of the policy when it acts stochastically.
            normalize: standardise states and goals by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: goal, desired and achieved disagree in number, or there is neither goal nor desired to act on.
        """
        size, actions = state_size(io, "goal cloning"), io.action_dim
        self._achieved = tuple(range(size)) if achieved is None else tuple(achieved)
        for name, given in (("goal", goal), ("desired", desired or None)):
            if given is not None and len(given) != len(self._achieved):
                raise ValueError(
                    f"policy.{name} has {len(given)} entries, expected {len(self._achieved)}, one per goal"
                )
        self.io, self.batch_size, self._lr = io, batch_size, lr
        self.relabel_goals = {"achieved": self._achieved, "stitch": stitch, "clusters": clusters}
        generator = torch.Generator(device=device).manual_seed(seed)
        wide = size + len(self._achieved)
        self.norm = FixedNorm(wide, device=device) if normalize else None
        shape = MlpShape(1, wide, tuple(hidden), actions, False, "actor.")
        self._params = FlatParams(shape.shapes(), device=device)
        shape.initialise(self._params, generator)
        self._actor = build_mlp(shape, self._params, kernel=kernel, matmul=matmul)
        inner = MeanPolicy(io, shape, self._params, seed=seed + 1, normalizer=self.norm, noise=explore)
        self.policy = GoalPolicy(inner, io, goal, tuple(desired))
        self._state = LearnerState(
            "goal cloning",
            metrics_every=metrics_every,
            parts={"actor": self._params, "policy": self.policy},
            networks=(self._actor,),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments; called once, before the first update."""
        if self.norm is not None:
            goals = list(self._achieved)
            mean, std = facts.state_mean, facts.state_std
            self.norm.set(np.concatenate([mean, mean[goals]]), np.concatenate([std, std[goals]]))

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One gradient step on one batch with goals.

        Returns:
            The latest metrics: train/loss, the mean squared error.

        Raises:
            FloatingPointError: a metric is not finite.
            ValueError: the batch has no goals.
        """
        wanted = self._state.tick()
        batch = next(batches)
        if "goal" not in batch.extras:
            raise ValueError("the batch has no extras['goal']: draw it from robot_rl.data.goals.GoalDataset")
        x = self.policy.joined(batch.obs["state"], batch.extras["goal"])
        mean = self._actor.forward((x if self.norm is None else self.norm(x))[None]).tanh_()
        share = batch.mask.to(mean)[:, None] / batch.mask.sum().clamp_min(1)
        diff = mean - torch.where(batch.mask[:, None], batch.action, mean[0])
        self._actor.backward((diff * (2.0 / diff.shape[-1]) * share).mul_(1.0 - mean.square()))
        self._params.adam(self._lr)
        self._actor.refresh()
        loss = (diff.square().mean(-1, keepdim=True) * share).sum()
        return self._state.report({"loss": loss} if wanted else None)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
