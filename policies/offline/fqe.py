"""Fitted Q evaluation: the value of a given policy, learnt from logs of others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import split, state_size
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Policy, Transitions
from robot_rl.types.options import Count, Mixing, Rate, Whole


class Fqe(Learner):
    """Q of a fixed policy by regression on r + discount mean_k Q'(s', a'_k), a'_k ~ policy.

    Several members learn side by side, each from rows of its own (the caller gives every member its own half of the
    episodes), so that their spread tells how sure the value is.

    Source: Le, Voloshin and Yue, Batch Policy Learning under Constraints (FQE); defaults recalled from Fu et al.,
    Benchmarks for Deep Off-Policy Evaluation. Targets are clipped to what the rewards allow (ours).
    """

    consumes = "transitions"

    def __init__(
        self,
        io: IOSpec,
        policy: Policy,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        members: Count = 5,
        hidden: tuple[Count, ...] = (256, 256),
        samples: Count = 10,
        deterministic: bool = True,
        lr: Rate = 1e-4,
        tau: Mixing = 0.005,
        normalize: bool = True,
        matmul: str = "float32",
        kernel: str = "auto",
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            policy: what is evaluated; answers tensors with tensors.
            seed: of initial weights.
            device: torch device.
            gamma: discount; the data's `discount` is what is used.
            batch_size: rows per update of one member.
            members: value functions side by side.
            hidden: widths of the network.
            samples: actions per next state of a stochastic policy.
            deterministic: evaluate the policy's mode, with one action.
            lr: step size.
            tau: Polyak rate of the target.
            normalize: standardise states by the data's moments.
            matmul: "float32", "bf16" or "auto".
            kernel: "auto", "explicit" or "autograd".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if min(members, batch_size, samples) < 1:
            raise ValueError(
                f"members, batch_size and samples are {members}, {batch_size}, {samples}; expected at least 1"
            )
        size = state_size(io, "FQE")
        self.io, self.target_policy, self.seeds, self.batch_size = io, policy, members, batch_size * members
        self._samples, self._deterministic = 1 if deterministic else samples, deterministic
        self._lr, self._tau = lr, tau
        self._limits = (-math.inf, math.inf)
        generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        shape = MlpShape(members, size + io.action_dim, tuple(hidden), 1, False, "q.")
        self._params = FlatParams(shape.shapes(), device=device)
        shape.initialise(self._params, generator)
        self._target_params = self._params.twin()
        self._q = build_mlp(shape, self._params, kernel=kernel, matmul=matmul)
        self._target = build_mlp(shape, self._target_params, kernel=kernel, matmul=matmul)
        parts: dict[str, Any] = {"q": self._params, "target": self._target_params}
        if self.norm is not None:
            parts["norm"] = self.norm
        self._state = LearnerState("FQE", metrics_every=metrics_every, parts=parts, networks=(self._q, self._target))

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and the limits of all values."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        if facts.gamma < 1.0:
            scale = 1.0 / (1.0 - facts.gamma)
            self._limits = (min(0.0, facts.reward_low) * scale, max(0.0, facts.reward_high) * scale)
        self._state.bound = facts.return_bound

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One regression step.

        Returns:
            The latest metrics: train/q, train/td_error (root mean square).

        Raises:
            FloatingPointError: FQE diverged.
        """
        wanted = self._state.tick()
        batch = next(batches)
        raw = split(batch, self.seeds, None)
        state = raw.state if self.norm is None else self.norm(raw.state)
        next_value = self._values(self._target, raw.next_state).mean(0)
        target = torch.addcmul(raw.reward, raw.discount, next_value.clamp_(*self._limits))
        q = self._q.forward(torch.cat([state, raw.action], dim=-1))[..., 0]
        diff = q - target
        self._q.backward((diff * (2.0 / diff.shape[1]))[..., None])
        self._params.adam(self._lr)
        self._q.refresh()
        self._target_params.blend(self._params, self._tau)
        self._target.refresh()
        if not wanted:
            return self._state.report(None)
        return self._state.report({"q": q.mean(), "td_error": diff.square().mean().sqrt()})

    def _values(self, net: Any, state: Tensor) -> Tensor:
        """(K, M, B) values of K policy actions at raw states (M, B, n)."""
        wide = state if self.norm is None else self.norm(state)
        out = []
        for _ in range(self._samples):
            answer = self.target_policy.act({"state": state.flatten(0, 1)}, deterministic=self._deterministic)
            action = torch.as_tensor(answer.value).to(state).view(*state.shape[:2], -1)
            out.append(net.forward(torch.cat([wide, action], dim=-1))[..., 0])
        return torch.stack(out)

    @torch.no_grad()
    def q_values(self, state: Tensor, action: Tensor) -> Tensor:
        """(M, B) of raw states (B, n) and actions (B, A)."""
        wide = state if self.norm is None else self.norm(state)
        return self._q.forward(torch.cat([wide, action], dim=-1))[..., 0]

    @torch.no_grad()
    def state_values(self, state: Tensor) -> Tensor:
        """(M, B) of raw states (B, n): Q averaged over the policy's actions, every member's on the same ones."""
        out = []
        for _ in range(self._samples):
            action = torch.as_tensor(self.target_policy.act({"state": state}, deterministic=self._deterministic).value)
            out.append(self.q_values(state, action.to(state)))
        return torch.stack(out).mean(0)

    @torch.no_grad()
    def td_error(self, batch: Transitions) -> float:
        """Root mean square of the temporal-difference error on rows that were held out."""
        state, after = batch.obs["state"], batch.next_obs["state"]
        target = batch.reward + batch.discount * self.state_values(after)
        return float((self.q_values(state, batch.action) - target).square().mean().sqrt())

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimiser and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)
