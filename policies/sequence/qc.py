"""Q-chunking: the critic values a chunk of actions, the policy is the best of several samples of a cloned flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, chunk_rows, critic_action, critic_width
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.flow import ChunkFlow
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.mlp import MlpShape, build_mlp
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import beyond_the_end, state_size, windowed
from robot_rl.policies.nets.value_heads import build_head
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Obs, Transitions
from robot_rl.types.options import Bins, Count, Mixing, Positive, Rate, Support, Whole


class Qc(Learner):
    """Q-chunking with best-of-n flow samples.

    Q(s, a_1 ... a_k) regresses on sum_{i<k} gamma^i r_i + gamma^k (1 - terminated) Q'(s', a'), k <= h the steps to the
    end of the episode, a' the best of n samples at s'. Every start is trained: a chunk cut by a time limit is padded
    with zeros and carries its length, one cut by a true end is a whole chunk whose rest does not matter. The source
    multiplies the loss by a mask that drops chunks with an end inside, and so bootstraps from states that it never
    trains.

    Source: Li et al., Reinforcement Learning with Action Chunking (ColinQiyangLi/qc, agents/acfql.py). Where we differ:
    partial chunks as above; truncation bootstraps; ReLU in place of GELU.
    """

    consumes = "transitions"
    method = "QC"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        horizon: Count = 5,
        hidden: tuple[Count, ...] = (512, 512, 512, 512),
        critics: Count = 2,
        layer_norm: bool = True,
        samples: Count = 32,
        flow_steps: Count = 10,
        q_reduce: str = "mean",
        lr: Rate = 3e-4,
        tau: Mixing = 0.005,
        value_head: str = "mse",
        value_range: Support = (0.0, 1.0),
        bins: Bins = 101,
        sigma_ratio: Positive = 0.75,
        normalize: bool = True,
        mode: str = "open",
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights, noise and times.
            device: torch device.
            gamma: discount per control step; the data's `discount` is what is used.
            batch_size: windows per update.
            horizon: h actions that a decision predicts, executes and is valued by; 1 is the one-step method.
            hidden: widths of all networks.
            critics: ensemble size.
            layer_norm: in the critics.
            samples: n of the best of n, for acting and in targets.
            flow_steps: Euler steps.
            q_reduce: "mean" or "min" over the ensemble.
            lr: step size of everything.
            tau: Polyak rate of the target critics.
            value_head: "mse", "twohot", "hlgauss", "c51" or "quantile".
            value_range: support of the categorical heads, in units of return.
            bins: outputs of the heads other than mse.
            sigma_ratio: HL-Gauss blur in bin widths.
            normalize: standardise states by the data's moments.
            mode: how chunks are played, see `robot_rl.chunks.Execution`; values are exact for "open".
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if q_reduce not in ("mean", "min"):
            raise ValueError(f"q_reduce is '{q_reduce}', expected 'mean' or 'min'")
        if min(samples, batch_size, critics) < 1:
            raise ValueError(f"samples, batch_size, critics are {samples}, {batch_size}, {critics}; expected >= 1")
        size, actions = state_size(io, self.method), io.action_dim
        self.io, self.batch_size, self.window = io, batch_size, horizon
        self.horizons = Horizons(horizon, horizon, horizon)
        self._lr, self._tau, self._samples, self._reduce = lr, tau, samples, q_reduce
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        self._head = build_head(
            value_head, low=value_range[0], high=value_range[1], bins=bins, sigma_ratio=sigma_ratio, device=device
        )
        flat = horizon * actions
        self._size, self._flat = size, flat
        critic = MlpShape(
            critics, size + critic_width(horizon, actions), tuple(hidden), self._head.outputs, layer_norm, "critic."
        )
        flow = MlpShape(1, size + flat + 1, tuple(hidden), flat, False, "flow.")
        self._critic_params, self._flow_params = (FlatParams(x.shapes(), device=device) for x in (critic, flow))
        critic.initialise(self._critic_params, self._generator)
        flow.initialise(self._flow_params, self._generator)
        self._target_params = self._critic_params.twin()
        self._critic = build_mlp(critic, self._critic_params, matmul="float32")
        self._target = build_mlp(critic, self._target_params, matmul="float32")
        self._flow_net = build_mlp(flow, self._flow_params, matmul="float32")
        self.flow = ChunkFlow(self._flow_net, horizon, actions, steps=flow_steps)
        self.policy = ChunkedPolicy(io, _Planner(self, seed + 1), Execution(self.horizons, actions, mode=mode))
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                "critic": self._critic_params,
                "target": self._target_params,
                "flow": self._flow_params,
                "policy": self.policy,
                "generator": self._generator,
                **({} if self.norm is None else {"norm": self.norm}),
            },
            networks=(self._critic, self._target, self._flow_net),
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self._state.bound = facts.return_bound

    @torch.no_grad()
    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step of flow, actor (methods that extend this) and critics on one batch of windows.

        Returns:
            The latest metrics: train/q, train/target, train/critic_loss, train/clone_loss, train/partial (share of
            chunks that an end cut short), and those of the value head.

        Raises:
            FloatingPointError: a metric is not finite or the values diverge.
        """
        wanted = self._state.tick()
        rows = chunk_rows(windowed(next(batches), self.window))
        state, after = self.seen(rows.obs["state"]), self.seen(rows.next_obs["state"])
        next_chunk = self._choose(after, self._generator)
        target = self._head.backup(
            self._outputs(self._target, after, next_chunk), rows.reward, rows.discount, reduce=self._reduce
        )
        clone = self.flow.clone_grad(state, rows.action, rows.mask, self._generator)
        self._flow_params.adam(self._lr)
        self._flow_net.refresh()
        x = torch.cat([state, critic_action(*beyond_the_end(rows, self._generator))], dim=1)
        out, _ = self._critic.fit(x, lambda out: self._head.loss_grad(out, target))
        self._critic_params.adam(self._lr)
        self._critic.refresh()
        more = self._actor_step(state)
        self._target_params.blend(self._critic_params, self._tau)
        self._target.refresh()
        if not wanted:
            return self._state.report(None)
        return self._state.report(
            {
                "q": self._head.value(out).mean(),
                "target": self._head.scalar(target).mean(),
                "critic_loss": self._head.loss(out, target),
                "clone_loss": clone,
                "partial": (~rows.mask[:, -1]).float().mean(),
                **self._head.diagnostics(out, target),
                **more,
            }
        )

    def seen(self, state: Tensor) -> Tensor:
        """Normalised state."""
        return state if self.norm is None else self.norm(state)

    def _outputs(self, net: Any, state: Tensor, chunk: Tensor) -> Tensor:
        """(E, B, O) for whole chunks (B, H A)."""
        code = critic_action(chunk.view(len(chunk), self.window, -1))
        return net.forward(torch.cat([state, code], dim=1))

    def _q(self, net: Any, state: Tensor, chunk: Tensor) -> Tensor:
        """(B,) values of whole chunks, the ensemble reduced."""
        value = self._head.value(self._outputs(net, state, chunk))
        return value.mean(0) if self._reduce == "mean" else value.amin(0)

    def _choose(self, state: Tensor, generator: torch.Generator) -> Tensor:
        """(B, H A) what the policy does: the best of n samples by the online critics."""
        many = state.repeat_interleave(self._samples, dim=0)
        chunk = self.flow.sample(many, self.flow.noise(len(many), generator))
        if self._samples == 1:
            return chunk
        best = self._q(self._critic, many, chunk).view(-1, self._samples).argmax(1)
        return chunk.view(-1, self._samples, self._flat)[torch.arange(len(best), device=best.device), best]

    def _actor_step(self, state: Tensor) -> dict[str, Tensor]:
        """Methods that extend this train an actor here."""
        return {}

    def acting_parts(self) -> dict[str, FlatParams]:
        """Parameters that acting needs."""
        return {"flow": self._flow_params, "critic": self._critic_params}

    def refresh(self) -> None:
        """Parameters were loaded."""
        for net in (self._critic, self._flow_net):
            net.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimisers, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        self._state.load_state_dict(state)


class _Planner:
    """The acting half; shares the learner's parameters. Samples have no mode: `deterministic` only keeps their noise
    apart, so that an evaluation does not change the training that goes on after it."""

    def __init__(self, learner: Qc, seed: int) -> None:
        self._learner = learner
        device = learner._generator.device
        self._noise = [torch.Generator(device=device).manual_seed(seed + i) for i in range(2)]

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """The learner's choice."""
        learner = self._learner
        state = torch.as_tensor(obs["state"]).to(learner._generator.device, torch.float32)
        with torch.no_grad():
            chunk = learner._choose(learner.seen(state), self._noise[int(deterministic)])
        return Plan(chunk.view(len(chunk), learner.window, -1))

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
        parts = own.acting_parts()
        for name, params in parts.items():
            if name not in state or state[name].shape != params.flat.shape:
                raise ValueError(f"the saved policy lacks '{name}' of {params.flat.numel()} parameters; build it alike")
        with torch.no_grad():
            for name, params in parts.items():
                params.flat.copy_(state[name])
        for i, generator in enumerate(self._noise):
            generator.set_state(state[f"noise{i}"].cpu())
        if own.norm is not None:
            own.norm.load_state_dict(state["norm"])
        own.refresh()
