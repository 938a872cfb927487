"""Registered temporal estimators: the columns of a compacted batch handed to the functions of this package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from robot_rl.advantage.batch import TurnBatch
from robot_rl.advantage.clock import foreign_cut
from robot_rl.advantage.gae import rollout_gae
from robot_rl.advantage.hierarchy import OptionRows, hae
from robot_rl.advantage.kinds import Array, readable
from robot_rl.advantage.registry import RowEstimate, register
from robot_rl.advantage.rows import RolloutRows
from robot_rl.advantage.turns import bilevel_gae, turn_gae

FOREIGN = ("cut", "keep")


def row_reward(batch: TurnBatch) -> Array:
    """(rows,) reward of each row; a turn's own reward lies on its last one."""
    reward, turns = batch.steps.reward, batch.turns
    return reward if turns.turn_reward is None else reward.index_add(0, turns.end.long(), turns.turn_reward)


def rollout(batch: TurnBatch) -> RolloutRows:
    """What the estimators read; no duration where every row lasts one tick, so that the fused kernels apply."""
    s = batch.steps
    single = readable(s.k) and bool((s.k == 1).all())
    duration = None if single else s.k
    return RolloutRows(row_reward(batch), s.value, s.next_value, s.terminated, s.boundary, duration, s.discount)


def turns(batch: TurnBatch) -> RolloutRows:
    """What the estimators over turns read: ticks per row, rewards of rows alone, and no discount of the rows."""
    return replace(rollout(batch), reward=batch.steps.reward, duration=batch.steps.k, discount=None)


@register("temporal", "gae", needs=("value",), provides=("advantage", "target"), paper="Schulman et al. 2016")
def _gae(
    batch: TurnBatch,
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    lambda_unit: str = "decision",
    foreign_trace: str = "cut",
) -> RowEstimate:
    if foreign_trace not in FOREIGN:
        raise ValueError(f"foreign_trace is '{foreign_trace}', expected one of {', '.join(FOREIGN)}")
    cut = None
    if foreign_trace == "cut" and not bool(batch.steps.own.all()):
        cut = foreign_cut(batch)
    options = {"gamma": gamma, "gae_lambda": gae_lambda, "lambda_unit": lambda_unit, "cut": cut}
    return RowEstimate(*rollout_gae(rollout(batch), **options))


@register(
    "temporal",
    "turn_gae",
    needs=("value", "turns"),
    provides=("advantage", "target", "weight"),
    paper="VAGEN, VL-DAC, RAGEN",
)
def _turn_gae(batch: TurnBatch, **options: Any) -> RowEstimate:
    extra = batch.turns.turn_reward
    return RowEstimate(*turn_gae(turns(batch), batch.steps.turn_id, turn_reward=extra, **options))


@register(
    "temporal",
    "bilevel",
    needs=("value", "turns"),
    provides=("advantage", "target", "weight"),
    paper="RAGEN, VAGEN",
)
def _bilevel(batch: TurnBatch, **options: Any) -> RowEstimate:
    step_reward = batch.steps.extras.get("step_reward")
    extra = batch.turns.turn_reward
    return RowEstimate(
        *bilevel_gae(turns(batch), batch.steps.turn_id, step_reward=step_reward, turn_reward=extra, **options)
    )


@register(
    "temporal",
    "hae",
    needs=("value", "segments", "extras.value_high", "extras.value_switch", "extras.next_value_high"),
    provides=("advantage", "target"),
    modes=("default", "paper", "release"),
    paper="HiPER",
)
def _hae(batch: TurnBatch, *, use: str = "low", **options: Any) -> RowEstimate:
    if use not in ("low", "high", "switch"):
        raise ValueError(f"use is '{use}', expected one of low, high, switch: the head that this advantage trains")
    s, segments = batch.steps, batch.segments
    rows = OptionRows(
        row_reward(batch),
        s.value,
        s.extras["value_high"],
        s.extras["value_switch"],
        s.next_value,
        s.extras["next_value_high"],
        s.terminated,
        s.boundary,
        s.segment_id,
        None if segments is None else segments.running_at_cut[s.segment_id],
        s.extras.get("switched"),
        s.extras.get("switch_probability"),
    )
    credit = hae(rows, **options)._asdict()
    weight = credit["high_weight"] if use == "high" else None
    value = {"low": None, "high": rows.value_high, "switch": rows.value_switch}[use]
    return RowEstimate(credit[use], credit[f"{use}_target"], weight, value)
