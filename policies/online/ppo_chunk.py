"""PPO whose decision is a chunk of control ticks: one turn, one probability ratio, one advantage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from robot_rl.advantage import (
    OptionRows,
    RolloutRows,
    gigpo,
    grpo,
    hae,
    rloo,
    rollout_gae,
    state_anchor,
    to_turns,
    turn_gae,
)
from robot_rl.chunks import ChunkedPolicy, Execution, Horizons, Plan
from robot_rl.policies.online.ppo import PpoLearner, PpoPolicy, VectorPpoOptions
from robot_rl.types import IOSpec, Metrics, Needs, Obs, Rollout, StateDict
from robot_rl.types.options import Count, Positive, Share

CRITIC_FREE = ("grpo", "rloo", "gigpo")


class PpoChunkOptions(VectorPpoOptions):
    """Of PPO on chunks: rollout_steps counts ticks, minibatch decisions; gae_lambda is per decision, per tick for
    step_gae and hae."""

    chunk: Count = 4
    """Ticks k of a decision."""
    estimator: Literal["smdp_gae", "step_gae", "turn_gae", "hae", "grpo", "rloo", "gigpo"] = "smdp_gae"
    """Where the advantage of a chunk comes from, see `PpoChunk`."""
    turn_gamma: Share | None = None
    """Discount per decision of turn_gae and of the returns in gigpo; null = gamma to the power chunk."""
    option: Count = 4
    """Decisions of an option of hae."""
    anchor_obs: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Components of the observation that name the state for gigpo; empty = all."""
    anchor_tolerance: Positive = 0.5
    """States whose components fall into the same cells of this width share an anchor."""


class PpoChunk(PpoLearner[PpoChunkOptions]):
    """PPO on action chunks: every `chunk` control ticks the policy draws the actions of the next `chunk` ticks.

    The environment is stepped tick by tick. A chunk ends early with its episode and with the rollout; its duration is
    the number of ticks that were executed, its reward is that of these ticks, and what followed a cut is bootstrapped
    with the value of the true successor.

    Estimators: "smdp_gae", GAE over decisions with the reward sum gamma^i r_i and the discount gamma^k; "turn_gae", the
    turn-level form of language agents (reward sum r_i, discount `turn_gamma` per decision); "step_gae", GAE over ticks,
    averaged over the ticks of the chunk; "hae", the low level of HAE over ticks with options of `option` decisions,
    averaged likewise; "grpo", "rloo", the outcome of the episode against the other episodes of the rollout; "gigpo",
    grpo (without deviation) plus the return of the decision against decisions in a similar state. The last three need
    no critic; episodes that the rollout cuts are left out of them.

    Source: Sutton, Precup and Singh, Between MDPs and semi-MDPs (durations); `robot_rl.advantage` for the estimators.
    """

    privileged = False

    def __init__(
        self, options: PpoChunkOptions, io: IOSpec, *, seed: int = 0, device: str = "cpu", gamma: float = 0.99
    ) -> None:
        super().__init__(options, wide_io(io, options.chunk), seed=seed, device=device, gamma=gamma)
        self._turn_gamma = gamma**options.chunk if options.turn_gamma is None else options.turn_gamma
        self._open: Tensor | None = None
        self.policy = PpoChunkPolicy(io, self._actor, options.chunk)

    @classmethod
    def needs(cls, options: PpoChunkOptions, io: IOSpec) -> Needs:
        """Rollouts that say where a chunk begins."""
        return replace(super().needs(options, io), record=("chunk_start",))

    def update(self, batches: Iterator[Rollout], /) -> Metrics:
        """As `Ppo`; the next rollout begins with fresh chunks."""
        metrics = super().update(batches)
        self.policy.reset()
        return metrics

    def state_dict(self) -> StateDict:
        """As `Ppo`'s, and which environments are in the middle of an episode."""
        return {**super().state_dict(), "open": self._open}

    def load_state_dict(self, state: StateDict, /) -> None:
        """As `Ppo`'s."""
        super().load_state_dict(state)
        self._open = None if state["open"] is None else torch.as_tensor(state["open"])
        self.policy.reset()

    def _rows(self, rollout: Rollout) -> dict[str, Tensor]:
        """The decisions of a rollout."""
        if not bool(rollout.valid.all()):
            raise ValueError("chunks need an environment with same-step or disabled autoreset, got next-step autoreset")
        ticks = Ticks.of(rollout, self._open)
        self._open = ~(rollout.terminated[-1] | rollout.truncated[-1])
        advantage, target, known = self._credit(ticks, rollout)
        start = ticks.start[known]

        def rows(x: Tensor) -> Tensor:
            return x.transpose(0, 1).reshape(-1, *x.shape[2:])[start]

        obs = {key: rows(value) for key, value in rollout.obs.items()}
        columns = {"action": rows(rollout.action), "logp": rows(rollout.logp), "value": ticks.value[start]}
        columns |= {"advantage": advantage[known], "target": target[known]}
        data = {name: x.float().to(self._params.device) for name, x in columns.items()}
        return {"obs": self._actor.normalized_on_device(obs), **data}

    def _credit(self, ticks: Ticks, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """(U,) advantage and value target of every decision, and whether it may be learned from."""
        if self.o.estimator in CRITIC_FREE:
            anchor = self._anchors(ticks, rollout) if self.o.estimator == "gigpo" else None
            advantage, known = group_credit(ticks, self.o.estimator, anchor, self._turn_gamma)
            if not bool(known.any()):
                raise ValueError(
                    f"no episode ended inside the rollout, and '{self.o.estimator}' compares whole episodes; "
                    "make rollout_steps a multiple of the episode length"
                )
            return advantage, ticks.value[ticks.start], known
        advantage, target = temporal_credit(
            ticks,
            self.o.estimator,
            gamma=self.gamma,
            gae_lambda=self.o.gae_lambda,
            turn_gamma=self._turn_gamma,
            option=self.o.option,
        )
        return advantage, target, torch.ones_like(ticks.start, dtype=torch.bool)

    def _anchors(self, ticks: Ticks, rollout: Rollout) -> Tensor:
        parts = [rollout.obs[key] for key in sorted(rollout.obs)]
        state = torch.cat([x.transpose(0, 1).reshape(-1, x.shape[-1]) for x in parts], -1)[ticks.start]
        chosen = list(self.o.anchor_obs)
        return torch.as_tensor(state_anchor(state[:, chosen] if chosen else state, tolerance=self.o.anchor_tolerance))


@dataclass(frozen=True)
class Ticks:
    """A rollout as flat ticks, environment after environment, with the decisions that they belong to.

    Attributes:
        reward, value, next_value: (M,) per tick; next_value is read at boundaries.
        terminated, boundary: (M,) bool.
        turn: (M,) decision of each tick, 0 .. U - 1.
        start, end: (U,) first and last executed tick of each decision.
        episode: (U,) episode or part of one, 0 .. E - 1.
        whole: (E,) bool, the episode began and ended inside the rollout.
    """

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    boundary: Tensor
    turn: Tensor
    start: Tensor
    end: Tensor
    episode: Tensor
    whole: Tensor

    @classmethod
    def of(cls, rollout: Rollout, running: Tensor | None = None) -> Ticks:
        """Flat ticks of a rollout whose extras hold "chunk_start".

        Args:
            rollout: (T, N), every row valid.
            running: (N,) bool, environments whose first episode began before the rollout; None = none.
        """

        def flat(x: Tensor) -> Tensor:
            return x.transpose(0, 1).reshape(-1)

        boundary = flat(rollout.boundary)
        begins = flat(rollout.extras["chunk_start"]).bool()
        begins = begins | torch.cat((torch.ones_like(boundary[:1]), boundary[:-1]))
        start = torch.nonzero(begins)[:, 0]
        end = torch.cat((start[1:], torch.tensor([len(begins)], device=start.device))) - 1
        columns = [flat(x) for x in (rollout.reward, rollout.value, rollout.next_value, rollout.terminated)]
        over = boundary[end]
        episode = torch.cat((torch.zeros_like(over[:1]), over[:-1])).long().cumsum(0)
        whole = flat(rollout.terminated | rollout.truncated)[boundary]
        if running is not None:
            steps = len(rollout.reward)
            first = torch.arange(len(running), device=start.device)[running.to(start.device)] * steps
            whole[episode[torch.searchsorted(start, first)]] = False
        reward, value, next_value, terminated = columns
        return cls(
            reward, value, next_value, terminated, boundary, begins.long().cumsum(0) - 1, start, end, episode, whole
        )

    @property
    def duration(self) -> Tensor:
        """(U,) executed ticks of each decision."""
        return self.end - self.start + 1

    def discount(self, gamma: float) -> Tensor:
        """(U,) sum of gamma^i r_i over the executed ticks of each decision."""
        position = torch.arange(len(self.turn), device=self.turn.device) - self.start[self.turn]
        return to_turns(self.reward.double() * gamma**position, self.turn, turns=len(self.start)).to(self.reward.dtype)


def temporal_credit(
    ticks: Ticks, estimator: str, *, gamma: float, gae_lambda: float, turn_gamma: float, option: int
) -> tuple[Tensor, Tensor]:
    """Advantage and value target of every decision from a critic.

    Args:
        ticks: U decisions.
        estimator: "smdp_gae", "turn_gae", "step_gae" or "hae"; see `PpoChunk`.
        gamma: discount per tick.
        gae_lambda: per decision; per tick for "step_gae" and "hae".
        turn_gamma: discount per decision of "turn_gae".
        option: decisions per option of "hae".

    Returns:
        (U,) advantage, (U,) target.
    """
    t, count = ticks, len(ticks.start)
    if estimator == "smdp_gae":
        columns = (t.value[t.start], t.next_value[t.end], t.terminated[t.end], t.boundary[t.end])
        return rollout_gae(
            RolloutRows(t.discount(gamma), *columns, duration=t.duration.to(torch.int32)),
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
    flags = (t.terminated, t.boundary)
    if estimator == "turn_gae":
        credit = turn_gae(
            RolloutRows(t.reward, t.value, t.next_value, *flags),
            t.turn.to(torch.int32),
            gamma=turn_gamma,
            gae_lambda=gae_lambda,
        )
        return credit.advantage[t.start], credit.target[t.start]
    if estimator == "step_gae":
        advantage, target = rollout_gae(
            RolloutRows(t.reward, t.value, t.next_value, *flags), gamma=gamma, gae_lambda=gae_lambda
        )
    else:
        # One critic for both levels: an option differs from the next one only by where traces stop.
        options = option_of(t, option)
        found = hae(
            OptionRows(t.reward, t.value, t.value, t.value, t.next_value, t.next_value, *flags, options),
            gamma=gamma,
            lambda_low=gae_lambda,
            lambda_high=gae_lambda,
        )
        advantage, target = found.low, found.low_target
    return to_turns(advantage, t.turn, "mean", turns=count), target[t.start]


def option_of(ticks: Ticks, option: int) -> Tensor:
    """(M,) int32 option of each tick: `option` consecutive decisions of one episode."""
    turns = torch.arange(len(ticks.start), device=ticks.start.device)
    new = torch.cat((torch.ones_like(turns[:1]), ticks.episode.diff()))
    position = turns - torch.nonzero(new)[:, 0][ticks.episode]
    return ((position % option == 0).long().cumsum(0) - 1)[ticks.turn].to(torch.int32)


def group_credit(ticks: Ticks, estimator: str, anchor: Tensor | None, gamma: float) -> tuple[Tensor, Tensor]:
    """Advantage of every decision from the other whole episodes of the rollout.

    Args:
        ticks: U decisions.
        estimator: "grpo", "rloo" or "gigpo".
        anchor: (U,) key of the state of each decision ("gigpo").
        gamma: discount per decision of the returns in "gigpo".

    Returns:
        (U,) advantage, (U,) bool: the episode was whole; others stay out of the statistics and have advantage 0.
    """
    reward = ticks.discount(1.0)
    score = torch.zeros(len(ticks.whole), device=reward.device).index_add(0, ticks.episode, reward)
    group = ticks.whole.to(torch.int32) - 1
    known = ticks.whole[ticks.episode]
    if estimator == "gigpo":
        assert anchor is not None
        return gigpo(reward, ticks.episode.to(torch.int32), group, anchor, gamma=gamma), known
    return (grpo if estimator == "grpo" else rloo)(score, group)[ticks.episode], known


class _Inner:
    """A policy over `wide_io(io, chunk)` as a planner: its action is the chunk."""

    def __init__(self, inner: PpoPolicy, chunk: int, action_dim: int) -> None:
        self.inner, self._shape = inner, (chunk, action_dim)

    def plan(self, obs: Obs, *, deterministic: bool, context: dict[str, np.ndarray]) -> Plan:
        """A chunk, its log-probability, and "raw" (n, chunk A), the chunk before clipping."""
        drawn = self.inner.act(obs, deterministic=deterministic)
        logp = np.zeros(len(drawn.value), np.float32) if drawn.logp is None else drawn.logp
        chunk = drawn.value.reshape(len(drawn.value), *self._shape)
        return Plan(chunk, logp, extras={"raw": drawn.extras["raw"]})

    def mean(self, obs: Obs, last: Tensor) -> Tensor:
        """The chunk (B, H, A) without noise, in torch."""
        value = torch.as_tensor(self.inner.act(obs, deterministic=True).value)
        return value.reshape(len(value), *self._shape)

    def state_dict(self) -> StateDict:
        """The policy's weights and moments."""
        return self.inner.state_dict()

    def load_state_dict(self, state: StateDict, /) -> None:
        """Inverse of `state_dict`."""
        self.inner.load_state_dict(state)


class PpoChunkPolicy(ChunkedPolicy):
    """Acts tick by tick from chunks of an inner policy; a row draws a new chunk when its old one is used up.

    `act` answers with logp (B,) of the whole chunk (None when deterministic) and extras "raw" (B, chunk A), the chunk
    before clipping, and "chunk_start" (B,) bool, a new chunk was drawn.

    Args:
        io: interface of one tick.
        inner: policy over `wide_io(io, chunk)`.
        chunk: ticks of a decision.
    """

    def __init__(self, io: IOSpec, inner: PpoPolicy, chunk: int) -> None:
        play = Execution(Horizons(chunk, chunk, chunk), io.action_dim)
        planner = _Inner(inner, chunk, io.action_dim)
        super().__init__(io, planner, play, mean=planner.mean)
        self.inner = inner


def wide_io(io: IOSpec, chunk: int) -> IOSpec:
    """The interface whose action is `chunk` actions one behind the other."""
    names = tuple(f"{name}_{tick}" for tick in range(chunk) for name in io.action_names)
    return replace(
        io,
        action_names=names,
        control_hz=io.control_hz / chunk,
        action_low=io.action_low * chunk,
        action_high=io.action_high * chunk,
        action_units=io.action_units * chunk,
        action_choices=io.action_choices * chunk,
    )
