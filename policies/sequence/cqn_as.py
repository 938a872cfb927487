"""Coarse-to-fine Q-network over action sequences: each step and dimension of a chunk has values of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, chunk_rows
from robot_rl.policies.nets.action_codes import ActionCodes
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.imitation import demonstrated
from robot_rl.policies.nets.learner_state import LearnerState
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import beyond_the_end, first_steps, state_size, windowed
from robot_rl.policies.nets.value_heads import build_head
from robot_rl.types import IOSpec, Learner, LogFacts, Metrics, Obs, Transitions
from robot_rl.types.options import Bins, Count, Mixing, NotNegative, Rate, Share, Support, Whole

SEMANTICS = ("chunk", "nstep")
_FLAT = 1e-4  # values closer than this say nothing: a random bin is taken


class SequenceCritic:
    """Values (B, T, D, bins, outputs) of one level: [Linear, LayerNorm, SiLU] x 2, GRU over the T steps, zero head.

    Args:
        state: S.
        actions: D.
        steps: T.
        codes: levels and bins.
        hidden: width.
        outputs: of the value head.
        device: torch device.
        generator: of the initial weights.
    """

    def __init__(
        self, state: int, actions: int, steps: int, codes: ActionCodes, hidden: int, outputs: int, device: str,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        self.steps, self.codes, self.shape = steps, codes, (actions, codes.bins, outputs)
        inputs, last = state + actions + steps + codes.levels, actions * codes.bins * outputs
        weights = {
            "first": (hidden, inputs), "second": (hidden, hidden), "gate_in": (3 * hidden, hidden),
            "gate_hidden": (3 * hidden, hidden), "head": (last, hidden),
        }  # fmt: skip
        vectors = {f"{kind}{i}": (hidden,) for i in (1, 2) for kind in ("scale", "shift")}
        biases = {"in_bias": (3 * hidden,), "hidden_bias": (3 * hidden,), "head_bias": (last,)}
        self.params = FlatParams({**weights, **vectors, **biases}, device=device)
        with torch.no_grad():
            for name in ("first", "second", "gate_in", "gate_hidden"):
                bound = 1.0 / math.sqrt(weights[name][1])
                draw = torch.rand(weights[name], generator=generator, device=device)
                self.params.view[name].copy_(draw * (2 * bound) - bound)
            for i in (1, 2):
                self.params.view[f"scale{i}"].fill_(1.0)
        self.target = self.params.twin()
        self.params.require_grad()

    def compute(self, params: FlatParams, state: Tensor, middle: Tensor, level: int) -> Tensor:
        """(B, T, D, bins, outputs).

        Args:
            params: own or target.
            state: (B, S).
            middle: (B, T, D) midpoints of the level before; zeros at level 0.
            level: l.
        """
        p, (rows, steps) = params.view, middle.shape[:2]
        place = torch.eye(steps, dtype=state.dtype, device=state.device).expand(rows, -1, -1)
        at = functional.one_hot(torch.tensor(level), self.codes.levels).to(state).expand(rows, steps, -1)
        x = torch.cat([state[:, None].expand(-1, steps, -1), middle, place, at], -1)
        for i, name in ((1, "first"), (2, "second")):
            x = functional.linear(x, p[name])
            x = functional.silu(functional.layer_norm(x, x.shape[-1:], p[f"scale{i}"], p[f"shift{i}"]))
        h = torch.zeros_like(x[:, 0])
        found = []
        for t in range(steps):
            h = torch.gru_cell(x[:, t], h, p["gate_in"], p["gate_hidden"], p["in_bias"], p["hidden_bias"])
            found.append(h)
        out = functional.linear(torch.stack(found, 1), p["head"], p["head_bias"])
        return out.view(rows, steps, *self.shape)


class CqnAs(Learner):
    """Q-learning of every (level, step, dimension) slot by itself; T = 1 is CQN.

    The slot of level l, step t and dimension d has B values given the state and the midpoints of the level before. All
    slots of a row learn towards one return plus the own slot of the target network at the successor, at the bin that
    the online network prefers there.

    `value_semantics`: "chunk" (ours) executes all T actions and bootstraps after them, so that the value is that of
    what is done; "nstep" (the source) bootstraps after `n_step` < T steps: the value of starting the chunk and then
    doing the best.

    Near an end: steps behind a true end are given uniform actions, for nothing behind it matters, so that every slot of
    every state is trained; behind a time limit they do not count. The source repeats the last action there.

    Source: Seo and Abbeel, Coarse-to-fine Q-Network with Action Sequence (younggyoseo/CQN-AS). Where we differ: as
    above; states are vectors; Adam without weight decay; Polyak targets.
    """

    consumes = "transitions"
    reads = ("step",)  # a column that only logs have: all their rows are demonstrations
    method = "CQN-AS"

    def __init__(
        self,
        io: IOSpec,
        *,
        seed: int = 0,
        device: str = "cpu",
        gamma: float = 0.99,
        batch_size: Count = 256,
        horizon: Count = 4,
        levels: Count = 3,
        bins: Bins = 5,
        hidden: Count = 512,
        value_semantics: str = "chunk",
        n_step: Count = 3,
        value_head: str = "mse",
        value_range: Support = (-2.0, 2.0),
        atoms: Count = 51,
        demo_weight: NotNegative = 1.0,
        demo_margin: NotNegative = 0.01,
        dominance: bool = True,
        explore: Share = 0.01,
        lr: Rate = 5e-5,
        decay: Whole = 0,
        tau: Mixing = 0.02,
        normalize: bool = True,
        mode: str = "open",
        metrics_every: Whole = 100,
    ) -> None:
        """Build networks for `io`.

        Args:
            io: one vector observation "state".
            seed: of initial weights and exploration.
            device: torch device.
            gamma: discount per control step; the data's `discount` is what is used.
            batch_size: windows per update.
            horizon: T.
            levels: L.
            bins: B.
            hidden: width.
            value_semantics: "chunk" or "nstep".
            n_step: steps before the bootstrap of "nstep", at most T.
            value_head: "mse", "twohot", "hlgauss", "c51" or "quantile".
            value_range: support of the categorical heads, in units of return.
            atoms: outputs of the heads other than mse.
            demo_weight: of the term that holds demonstrated bins above the others; 0 = none.
            demo_margin: by so much.
            dominance: with "c51" the demonstrated distribution shall also dominate the others.
            explore: standard deviation of noise on actions that are not deterministic.
            lr: step size.
            decay: updates over which it falls to 0 as a cosine (ours; the last iterate is a settled one); 0 keeps it.
            tau: Polyak rate of the target.
            normalize: standardise states by the data's moments.
            mode: how chunks are played, see `robot_rl.chunks.Execution`; the source ensembles.
            metrics_every: metrics are computed in every n-th update.

        Raises:
            ValueError: an option outside its range.
        """
        if value_semantics not in SEMANTICS:
            raise ValueError(f"value_semantics is '{value_semantics}', expected one of {', '.join(SEMANTICS)}")
        if value_semantics == "nstep" and not 1 <= n_step <= horizon:
            raise ValueError(f"n_step is {n_step}, expected 1 ... horizon = {horizon}: windows hold no more steps")
        if decay < 0:
            raise ValueError(f"decay is {decay}, expected a number of updates, or 0 for none")
        size, actions = state_size(io, self.method), io.action_dim
        self.io, self.batch_size, self.window = io, batch_size, horizon
        self.codes = ActionCodes(levels, bins)
        self._ahead = horizon if value_semantics == "chunk" else n_step
        self._demo, self._dominance = (demo_weight, demo_margin), dominance and value_head == "c51"
        self._explore, self._lr, self._decay, self._tau = explore, lr, decay, tau
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.norm = FixedNorm(size, device=device) if normalize else None
        low, high = value_range
        self._head = build_head(value_head, low=low, high=high, bins=atoms, device=device)
        outputs = self._head.outputs
        self.critic = SequenceCritic(size, actions, horizon, self.codes, hidden, outputs, device, self._generator)
        play = Execution(Horizons(horizon, horizon, self._ahead), actions, mode=mode)
        self.policy = ChunkedPolicy(io, _Planner(self, seed + 1), play)
        self._state = LearnerState(
            self.method,
            metrics_every=metrics_every,
            parts={
                "critic": self.critic.params,
                "target": self.critic.target,
                "policy": self.policy,
                "generator": self._generator,
                **({} if self.norm is None else {"norm": self.norm}),
            },
        )

    def prepare(self, facts: LogFacts) -> None:
        """Take over the data's moments and bounds; called once, before the first update on a log."""
        if self.norm is not None:
            self.norm.set(facts.state_mean, facts.state_std)
        self._state.bound = facts.return_bound

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step on one batch of windows.

        Returns:
            The latest metrics: train/q, train/target, train/td_loss, train/demo_loss.

        Raises:
            ValueError: windows of another length.
            FloatingPointError: a metric is not finite or the values diverge.
        """
        wanted = self._state.tick()
        batch = windowed(next(batches), self.window)
        demo = demonstrated(batch)
        whole = chunk_rows(batch)
        rows = whole if self._ahead == self.window else chunk_rows(first_steps(batch, self._ahead))
        state, after = self.seen(whole.obs["state"]), self.seen(rows.next_obs["state"])
        action, mask = beyond_the_end(whole, self._generator)
        target = self._targets(after, rows.reward, rows.discount)
        code = self.codes.encode(action).transpose(1, 2)  # (B, L, T, D)
        out = torch.stack(
            [
                self.critic.compute(self.critic.params, state, self._middle(code[:, :level]), level)
                for level in range(self.codes.levels)
            ],
            1,
        )  # (B, L, T, D, bins, O)
        index = code[..., None, None].expand(*code.shape, 1, out.shape[-1])
        chosen = out.gather(-2, index).squeeze(-2)
        valid = mask[:, None, :, None].expand(code.shape).to(out.dtype)
        flat = chosen.reshape(1, -1, out.shape[-1])
        with torch.no_grad():
            share = valid.reshape(-1) * (valid.numel() / valid.sum().clamp_min(1.0))
            slope = self._head.loss_grad(flat, target) * share[None, :, None]
        loss = (flat * slope).sum()  # its gradient is that of the head's loss
        imitation = self._demo_loss(out, code, valid * demo[:, None, None, None])
        rate = self._state.falling(self._lr, self._decay)
        _step(self.critic.params, loss + self._demo[0] * imitation, rate)
        self.critic.target.blend(self.critic.params, self._tau)
        if not wanted:
            return self._state.report(None)
        with torch.no_grad():
            return self._state.report(
                {
                    "q": (self._head.value(flat)[0] * share).mean(),
                    "target": self._head.scalar(target).mean(),
                    "td_loss": self._head.loss(flat, target),
                    "demo_loss": imitation,
                }
            )

    def _middle(self, code: Tensor) -> Tensor:
        """(B, T, D) midpoints after the levels of (B, l, T, D); zeros for none."""
        return self.codes.decode(code.transpose(1, 2))

    @torch.no_grad()
    def _targets(self, after: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Targets of all B L T D slots, in that order."""
        code = self.greedy(after, None)
        slots = []
        for level in range(self.codes.levels):
            out = self.critic.compute(self.critic.target, after, self._middle(code[:, :level]), level)
            index = code[:, level, ..., None, None].expand(*code[:, level].shape, 1, out.shape[-1])
            slots.append(out.gather(-2, index).squeeze(-2))
        ahead = torch.stack(slots, 1)
        each = ahead[0].numel() // ahead.shape[-1]
        flat = ahead.reshape(1, -1, ahead.shape[-1])
        return self._head.backup(flat, reward.repeat_interleave(each), discount.repeat_interleave(each))

    def _demo_loss(self, out: Tensor, code: Tensor, weight: Tensor) -> Tensor:
        """Mean over demonstrated slots of how far other bins come within the margin of the demonstrated one."""
        if not self._demo[0] or not bool((weight > 0).any()):
            return out.new_zeros(())
        value = self._head.value(out)
        lead = self._demo[1] - value.gather(-1, code[..., None]) + value
        others = torch.ones_like(value).scatter(-1, code[..., None], 0.0)
        per_slot = (lead.clamp_min(0.0) * others).sum(-1) / (self.codes.bins - 1)
        if self._dominance:  # the demonstrated return is above any threshold at least as often
            below = out.softmax(-1).cumsum(-1)
            index = code[..., None, None].expand(*code.shape, 1, out.shape[-1])
            above = (below.gather(-2, index) - below).clamp_min(0.0).sum(-1)
            per_slot = per_slot + (above * others).sum(-1) / (self.codes.bins - 1)
        return (per_slot * weight).sum() / weight.sum()

    @torch.no_grad()
    def greedy(self, state: Tensor, generator: torch.Generator | None) -> Tensor:
        """(B, L, T, D) best bins, level by level; where all bins are alike a random one, given a generator."""
        rows, steps, dims = len(state), self.window, self.io.action_dim
        code = torch.zeros(rows, 0, steps, dims, dtype=torch.int64, device=state.device)
        for level in range(self.codes.levels):
            value = self._head.value(self.critic.compute(self.critic.params, state, self._middle(code), level))
            best = value.argmax(-1)
            if generator is not None:
                any_ = torch.randint(0, self.codes.bins, best.shape, generator=generator, device=state.device)
                best = torch.where(value.amax(-1) - value.amin(-1) < _FLAT, any_, best)
            code = torch.cat([code, best[:, None]], 1)
        return code

    def choose(self, state: Tensor, generator: torch.Generator, *, explore: bool) -> Tensor:
        """(B, T, D) actions."""
        action = self._middle(self.greedy(state, generator))
        if explore and self._explore:
            noise = torch.randn(action.shape, generator=generator, device=action.device)
            action = (action + self._explore * noise).clamp(-1.0, 1.0)
        return action

    def seen(self, state: Tensor) -> Tensor:
        """Normalised state."""
        return state if self.norm is None else self.norm(state)

    def state_dict(self) -> dict[str, Any]:
        """Weights, target, optimiser, generators and counters: tensors and numbers."""
        return self._state.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a learner of other sizes.
        """
        with torch.no_grad():
            self._state.load_state_dict(state)


class _Planner:
    """The acting half; shares the learner's parameters."""

    def __init__(self, learner: CqnAs, seed: int) -> None:
        self._learner = learner
        device = learner._generator.device
        self._noise = [torch.Generator(device=device).manual_seed(seed + i) for i in range(2)]

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """The bins with the highest values."""
        own, generator = self._learner, self._noise[int(deterministic)]
        state = own.seen(torch.as_tensor(obs["state"]).to(generator.device, torch.float32))
        return Plan(own.choose(state, generator, explore=not deterministic))

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments and noise."""
        own = self._learner
        state: dict[str, Any] = {"critic": own.critic.params.flat.detach().clone()}
        state |= {f"noise{i}": g.get_state() for i, g in enumerate(self._noise)}
        return state if own.norm is None else {**state, "norm": own.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Copy in place.

        Raises:
            ValueError: the state belongs to a policy of other sizes.
        """
        params = self._learner.critic.params
        if "critic" not in state or state["critic"].shape != params.flat.shape:
            raise ValueError(f"the saved policy is not one of {params.flat.numel()} parameters; build it alike")
        with torch.no_grad():
            params.flat.copy_(state["critic"])
        for i, generator in enumerate(self._noise):
            generator.set_state(state[f"noise{i}"].cpu())
        if self._learner.norm is not None:
            self._learner.norm.load_state_dict(state["norm"])


def _step(params: FlatParams, loss: Tensor, lr: float) -> None:
    """One step of Adam down `loss`, on these parameters alone."""
    for name, grad in zip(params.view, torch.autograd.grad(loss, list(params.view.values()))):
        params.grad_view[name].copy_(grad)
    params.adam(lr)
