"""Coarse-to-fine Q-network over action sequences: each step and dimension of a chunk has values of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor
from torch.nn import functional

from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan, chunk_rows
from robot_rl.policies.nets.action_codes import ActionCodes
from robot_rl.policies.nets.chunk_planner import ChunkPlanner
from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.imitation import demonstration_mask
from robot_rl.policies.nets.initial import draw_uniform
from robot_rl.policies.nets.learner import RowLearner, RowOptions, Standardised
from robot_rl.policies.nets.net import Leaves
from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.policies.nets.rows import as_windows, beyond_the_end, first_steps, state_size
from robot_rl.policies.nets.value_heads import build_head
from robot_rl.types import IOSpec, Metrics, Needs, Obs, Transitions
from robot_rl.types.options import Count, Mixing, NotNegative, Rate, Share, Support, Whole

_FLAT = 1e-4  # values closer than this say nothing: a random bin is taken


class SequenceCritic(Leaves):
    """Values (B, T, D, bins, outputs) of one level: [Linear, LayerNorm, SiLU] x 2, GRU over the T steps, zero head.

    Args:
        options: width and T.
        state: S.
        actions: D.
        codes: levels and bins.
        outputs: of the value head.
        generator: of the initial weights.
    """

    def __init__(
        self,
        options: CqnAsOptions,
        state: int,
        actions: int,
        codes: ActionCodes,
        outputs: int,
        generator: torch.Generator,
    ) -> None:
        hidden, device = options.hidden, generator.device
        self.codes, self.shape = codes, (actions, codes.bins, outputs)
        inputs, last = state + actions + options.horizon + codes.levels, actions * codes.bins * outputs
        weights = {
            "first": (hidden, inputs), "second": (hidden, hidden), "gate_in": (3 * hidden, hidden),
            "gate_hidden": (3 * hidden, hidden), "head": (last, hidden),
        }  # fmt: skip
        vectors = {f"{kind}{i}": (hidden,) for i in (1, 2) for kind in ("scale", "shift")}
        biases = {"in_bias": (3 * hidden,), "hidden_bias": (3 * hidden,), "head_bias": (last,)}
        params = FlatParams({**weights, **vectors, **biases}, device=device)
        for name in ("first", "second", "gate_in", "gate_hidden"):
            draw_uniform(params.view[name], 1.0 / math.sqrt(weights[name][1]), generator)
        for i in (1, 2):
            params.view[f"scale{i}"].fill_(1.0)
        self.target = params.twin()
        super().__init__("critic", params, lr=options.lr, free=list(params.shapes))

    def compute(self, state: Tensor, middle: Tensor, level: int, *, target: bool = False) -> Tensor:
        """(B, T, D, bins, outputs).

        Args:
            state: (B, S).
            middle: (B, T, D) midpoints of the level before; zeros at level 0.
            level: l.
            target: with the weights that follow.
        """
        p, (rows, steps) = self.target.view if target else self._free, middle.shape[:2]
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


class CqnAsOptions(RowOptions):
    """Of CQN-AS."""

    horizon: Count = 4
    """T."""
    levels: Count = 3
    """L."""
    bins: Annotated[int, Field(ge=2)] = 5
    """B."""
    hidden: Count = 512
    """Width."""
    value_semantics: Literal["chunk", "nstep"] = "chunk"
    """Whether a value is that of the whole chunk, or bootstraps after `n_step` steps."""
    n_step: Annotated[int, Field(ge=1, validate_default=True)] = 3
    """Steps before the bootstrap of "nstep", at most T."""
    value_head: Literal["mse", "twohot", "hlgauss", "c51", "quantile"] = "mse"
    """How the critic says a value."""
    value_range: Support = (-2.0, 2.0)
    """Support of the categorical heads, in units of return."""
    atoms: Count = 51
    """Outputs of the heads other than mse."""
    demo_weight: NotNegative = 1.0
    """Of the term that holds demonstrated bins above the others; 0 for none."""
    demo_margin: NotNegative = 0.01
    """By so much."""
    dominance: bool = True
    """With "c51" the demonstrated distribution shall also dominate the others."""
    explore: Share = 0.01
    """Standard deviation of noise on actions that are not deterministic."""
    lr: Rate = 5e-5
    """Step size."""
    decay: Whole = 0
    """Updates over which it falls to 0 as a cosine (ours; the last iterate is a settled one); 0 keeps it."""
    tau: Mixing = 0.02
    """Polyak rate of the target."""
    normalize: bool = True
    """Standardise states by the data's moments."""
    mode: str = "open"
    """How chunks are played, see `robot_rl.chunks.Execution`; the source ensembles."""

    @field_validator("n_step")
    @classmethod
    def check_steps(cls, value: int, info: ValidationInfo) -> int:
        """Refuse more steps than a window holds."""
        if info.data.get("value_semantics") == "nstep" and value > info.data.get("horizon", value):
            raise ValueError(f"expected 1 ... horizon = {info.data['horizon']}: windows hold no more steps")
        return value


class CqnAs(Standardised, RowLearner[CqnAsOptions]):
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

    method = "CQN-AS"

    def __init__(self, options: CqnAsOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu") -> None:
        """Build networks for `io`.

        Args:
            options: of the method.
            io: one vector observation "state".
            seed: of initial weights and exploration.
            device: torch device.

        Raises:
            ValueError: images, or no "state".
        """
        super().__init__(options, io, seed=seed, device=device)
        o, size = options, state_size(io, self.method)
        self.codes = ActionCodes(o.levels, o.bins)
        self._ahead = o.horizon if o.value_semantics == "chunk" else o.n_step
        self.norm = FixedNorm(size, device=device) if o.normalize else None
        low, high = o.value_range
        self.head = build_head(o.value_head, low=low, high=high, bins=o.atoms, device=device)
        self.critic = SequenceCritic(o, size, self.actions, self.codes, self.head.outputs, self.generator)
        self.critic.lr = lambda: self.state.falling(o.lr, o.decay, first=0)
        play = Execution(Horizons(o.horizon, o.horizon, self._ahead), self.actions, mode=o.mode)
        self.policy = ChunkedPolicy(io, _Planner(self, seed + 1), play)
        parts = {"critic": self.critic, "target": self.critic.target, "policy": self.policy}
        self.state.include({**parts, "norm": self.norm})

    @classmethod
    def needs(cls, options: CqnAsOptions, io: IOSpec) -> Needs:
        """Windows, and a column that only logs have: all their rows are demonstrations."""
        return Needs(rows=options.batch_size, window=options.horizon, extras=("step",))

    def update(self, batches: Iterator[Transitions], /) -> Metrics:
        """One step on one batch of windows.

        Returns:
            The latest metrics: train/q, train/target, train/td_loss, train/demo_loss.

        Raises:
            ValueError: windows of another length.
            FloatingPointError: a metric is not finite or the values diverge.
        """
        o, batch = self.o, as_windows(next(batches), self.o.horizon)
        demo = demonstration_mask(batch)
        whole = chunk_rows(batch)
        rows = whole if self._ahead == o.horizon else chunk_rows(first_steps(batch, self._ahead))
        state, after = self.see(whole.obs["state"]), self.see(rows.next_obs["state"])
        action, mask = beyond_the_end(whole, self.generator)
        target = self._targets(after, rows.reward, rows.discount)
        code = self.codes.encode(action).transpose(1, 2)  # (B, L, T, D)
        out = torch.stack(
            [self.critic.compute(state, self._middle(code[:, :level]), level) for level in range(self.codes.levels)],
            1,
        )  # (B, L, T, D, bins, O)
        index = code[..., None, None].expand(*code.shape, 1, out.shape[-1])
        chosen = out.gather(-2, index).squeeze(-2)
        valid = mask[:, None, :, None].expand(code.shape).to(out.dtype)
        flat = chosen.reshape(1, -1, out.shape[-1])
        share = valid.reshape(-1) * (valid.numel() / valid.sum().clamp_min(1.0))
        loss = self.head.loss(flat, target, share)
        imitation = self._demo_loss(out, code, valid * demo[:, None, None, None])
        self.critic.step(loss + o.demo_weight * imitation)
        self.critic.target.blend(self.critic.params, o.tau)
        with torch.no_grad():
            return self.metrics(
                q=self.head.value(flat)[0] * share,
                target=self.head.scalar(target),
                td_loss=loss,
                demo_loss=imitation,
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
            out = self.critic.compute(after, self._middle(code[:, :level]), level, target=True)
            index = code[:, level, ..., None, None].expand(*code[:, level].shape, 1, out.shape[-1])
            slots.append(out.gather(-2, index).squeeze(-2))
        ahead = torch.stack(slots, 1)
        each = ahead[0].numel() // ahead.shape[-1]
        flat = ahead.reshape(1, -1, ahead.shape[-1])
        return self.head.backup(flat, reward.repeat_interleave(each), discount.repeat_interleave(each))

    def _demo_loss(self, out: Tensor, code: Tensor, weight: Tensor) -> Tensor:
        """Mean over demonstrated slots of how far other bins come within the margin of the demonstrated one."""
        if not self.o.demo_weight or not bool((weight > 0).any()):
            return out.new_zeros(())
        value = self.head.value(out)
        lead = self.o.demo_margin - value.gather(-1, code[..., None]) + value
        others = torch.ones_like(value).scatter(-1, code[..., None], 0.0)
        per_slot = (lead.clamp_min(0.0) * others).sum(-1) / (self.codes.bins - 1)
        if (
            self.o.dominance and self.o.value_head == "c51"
        ):  # the demonstrated return is above any threshold at least as often
            below = out.softmax(-1).cumsum(-1)
            index = code[..., None, None].expand(*code.shape, 1, out.shape[-1])
            above = (below.gather(-2, index) - below).clamp_min(0.0).sum(-1)
            per_slot = per_slot + (above * others).sum(-1) / (self.codes.bins - 1)
        return (per_slot * weight).sum() / weight.sum()

    @torch.no_grad()
    def greedy(self, state: Tensor, generator: torch.Generator | None) -> Tensor:
        """(B, L, T, D) best bins, level by level; where all bins are alike a random one, given a generator."""
        rows, steps, dims = len(state), self.o.horizon, self.actions
        code = torch.zeros(rows, 0, steps, dims, dtype=torch.int64, device=state.device)
        for level in range(self.codes.levels):
            value = self.head.value(self.critic.compute(state, self._middle(code), level))
            best = value.argmax(-1)
            if generator is not None:
                any_ = torch.randint(0, self.codes.bins, best.shape, generator=generator, device=state.device)
                best = torch.where(value.amax(-1) - value.amin(-1) < _FLAT, any_, best)
            code = torch.cat([code, best[:, None]], 1)
        return code

    def choose(self, state: Tensor, generator: torch.Generator, *, explore: bool) -> Tensor:
        """(B, T, D) actions."""
        action = self._middle(self.greedy(state, generator))
        if explore and self.o.explore:
            noise = torch.randn(action.shape, generator=generator, device=action.device)
            action = (action + self.o.explore * noise).clamp(-1.0, 1.0)
        return action

    def acting_nets(self) -> dict[str, SequenceCritic]:
        """What acting needs."""
        return {"critic": self.critic}


class _Planner(ChunkPlanner):
    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """The bins with the highest values."""
        generator = self._noise[int(deterministic)]
        return Plan(self._learner.choose(self.state(obs), generator, explore=not deterministic))
