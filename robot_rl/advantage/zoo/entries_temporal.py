"""Registered temporal estimators that no learner uses yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from robot_rl.advantage.batch import TurnBatch
from robot_rl.advantage.entries_temporal import rollout
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.registry import RowEstimate, register
from robot_rl.advantage.zoo.archer import archer_advantage
from robot_rl.advantage.zoo.temporal import monte_carlo, n_step, retrace, upgo, vtrace


def log_ratio(batch: TurnBatch) -> Array:
    """log pi - log mu of the rows: the policy at the start of the update against the one that acted, 0 if unknown."""
    s = batch.steps
    if s.logp_prox is None or s.logp_behaviour is None:
        raise ValueError("the batch lacks logp_prox or logp_behaviour; give both to make_batch")
    difference = s.logp_prox - s.logp_behaviour
    return torch.where(torch.isnan(difference), 0.0, difference)


@register("temporal", "monte_carlo", provides=("advantage", "target"), paper="Williams 1992")
def _monte_carlo(batch: TurnBatch, **options: Any) -> RowEstimate:
    return RowEstimate(*monte_carlo(rollout(batch), **options))


@register("temporal", "n_step", needs=("value",), provides=("advantage", "target"), paper="Sutton and Barto, eq. 7.1")
def _n_step(batch: TurnBatch, **options: Any) -> RowEstimate:
    return RowEstimate(*n_step(rollout(batch), **options))


@register(
    "temporal",
    "vtrace",
    needs=("value", "logp_behaviour", "logp_prox"),
    provides=("advantage", "target"),
    paper="Espeholt et al. 2018",
)
def _vtrace(batch: TurnBatch, **options: Any) -> RowEstimate:
    return RowEstimate(*vtrace(rollout(batch), log_ratio(batch), **options))


@register("temporal", "upgo", needs=("value",), provides=("advantage", "target"), paper="Vinyals et al. 2019")
def _upgo(batch: TurnBatch, **options: Any) -> RowEstimate:
    known = batch.steps.logp_prox is not None and batch.steps.logp_behaviour is not None
    ratio = log_ratio(batch) if known else None
    return RowEstimate(*upgo(rollout(batch), ratio, **options))


@register(
    "temporal",
    "retrace",
    needs=("extras.q", "extras.next_expected_q"),
    provides=("advantage", "target"),
    paper="Munos et al. 2016",
)
def _retrace(batch: TurnBatch, *, trace: str = "retrace", **options: Any) -> RowEstimate:
    if trace not in ("retrace", "tree_backup", "peng"):
        raise ValueError(f"trace is '{trace}', expected one of retrace, tree_backup, peng")
    s = batch.steps
    given: dict[str, Array] = {"expected_q": s.extras.get("expected_q")}
    if trace == "retrace":
        given["log_ratio"] = log_ratio(batch)
    elif trace == "tree_backup":
        given["probability"] = s.extras["probability"]
    rows = replace(rollout(batch), value=s.extras["q"], next_value=s.extras["next_expected_q"])
    return RowEstimate(*retrace(rows, **given, **options))


@register("temporal", "archer", needs=("turns", "extras.q", "extras.v"), paper="Zhou et al. 2024, ArCHer")
def _archer(batch: TurnBatch) -> RowEstimate:
    s = batch.steps
    # Twin heads are columns of two: (rows, 2), read at the first row of each turn.
    start = batch.turns.start.long()
    advantage = archer_advantage(s.extras["q"][start].T, s.extras["v"][start].T)
    advantage = advantage[s.turn_id.long()]
    baseline = s.extras.get("token_baseline")
    return RowEstimate(advantage if baseline is None else advantage - baseline)
