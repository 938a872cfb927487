"""One object from a batch to a loss: reward stages, one estimator or a mix of several, whitening, loss, aggregation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from robot_rl.advantage import entries_group, entries_temporal, zoo
from robot_rl.advantage.aggregate import row_weight
from robot_rl.advantage.arrays import Columns, to_arrays, to_tensors
from robot_rl.advantage.batch import TurnBatch
from robot_rl.advantage.clock import compact
from robot_rl.advantage.combinations import check_combination
from robot_rl.advantage.groups import actor_means, group_metrics
from robot_rl.advantage.importance import bounded_weight, effective_sample_size
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.kl import kl_metrics
from robot_rl.advantage.layout import RowIds
from robot_rl.advantage.losses import (
    ClipRange,
    decoupled_policy_loss,
    default_aggregation,
    policy_loss,
    policy_metrics,
)
from robot_rl.advantage.normalise import whiten as whiten_rows
from robot_rl.advantage.ratios import log_ratio
from robot_rl.advantage.registry import check_needs, entry
from robot_rl.advantage.value_losses import explained_variance

STAGES = (entries_group, entries_temporal, zoo)
"""Modules whose import registers the stages that a pipeline is built from."""


@dataclass(frozen=True)
class Stage:
    """A registered stage with its options.

    Attributes:
        name: registered name.
        weight: factor of its advantage in a mix.
        options: keyword arguments of the stage.
    """

    name: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Credit(Columns):
    """What a pipeline says about every row of the batch.

    Attributes:
        advantage: (N,), 0 on rows outside the clock and on unscorable episodes.
        returns: (N,) value target, the value itself on rows outside the clock; None without a critic.
        mask: (N,) bool, rows of the policy loss.
        value_weight: (N,) weight of the value loss, 0 outside the clock and on unscorable episodes.
        metrics: numbers and 0-d arrays to log.
    """

    advantage: Array
    returns: Array
    mask: Array
    value_weight: Array
    metrics: dict[str, Array]


class Pipeline:
    """Credit assignment as configured: `credit = pipeline(batch)`, then `pipeline.loss(logp, batch, credit)`."""

    def __init__(
        self,
        estimators: Sequence[Stage],
        *,
        redistribute: Sequence[Stage] = (),
        clock_gap: str = "ignore",
        whiten: bool = False,
        loss: Mapping[str, object] | None = None,
        allow: Collection[str] = (),
    ) -> None:
        """Check the stages and make the state objects of stateful ones.

        Args:
            estimators: one temporal or group estimator, or several whose weighted advantages are added. Value targets
                come from the first that has them.
            redistribute: reward stages, in order.
            clock_gap: what becomes of the durations of observation rows, see `compact`.
            whiten: mean 0 and deviation 1 over the loss rows of the batch, after the mix.
            loss: options of `policy_loss`; with "decoupled": True those of `decoupled_policy_loss`.
            allow: forbidden combinations to permit, see `check_combination`.

        Raises:
            ValueError: unknown stage, no estimator, or a forbidden combination.
        """
        if not estimators:
            raise ValueError("estimators is empty, expected at least one temporal or group estimator")
        self.estimators = [(stage, entry(stage.name, "temporal", "group")) for stage in estimators]
        self.redistribute = [(stage, entry(stage.name, "redistribute")) for stage in redistribute]
        self.clock_gap, self.whiten, self.loss_options = clock_gap, whiten, dict(loss or {})
        for stage in estimators:
            check_combination(estimator=_scaled_name(stage), whiten=whiten, allow=allow)
        self.states = {
            stage.name: found.state(**stage.options) for stage, found in self.estimators if found.state is not None
        }

    def __call__(self, batch: TurnBatch) -> Credit:
        """Advantages, value targets and metrics of a batch; the batch is not changed.

        Raises:
            ValueError: the batch lacks what a stage reads.
        """
        if isinstance(batch.steps.reward, np.ndarray):
            return to_arrays(self(batch.to("cpu")))
        small = compact(batch, self.clock_gap)
        work = small.batch
        for stage, found in self.redistribute:
            check_needs(found, work)
            work = found.function(work, **stage.options)
        total, target, weight, value = torch.zeros_like(work.steps.reward), None, None, work.steps.value
        for stage, found in self.estimators:
            check_needs(found, work)
            state = (self.states[stage.name],) if stage.name in self.states else ()
            estimate = found.function(work, *state, **stage.options)
            total = total + stage.weight * estimate.advantage
            if target is None and work.steps.value is not None:
                target, weight = estimate.target, estimate.weight
                value = work.steps.value if estimate.value is None else estimate.value
        steps = work.steps
        known = ~torch.isnan(work.episodes.outcome)[steps.episode_id.long()]
        advantage = torch.where(known, total, 0.0)
        mask = steps.loss_mask & known
        before = _moments(advantage, mask, "raw_advantage")
        if self.whiten:
            advantage = whiten_rows(advantage, mask)
        metrics = {**_batch_metrics(work, mask), **before, **_moments(advantage, mask, "advantage")}
        metrics.update({f"advantage_actor_{i}": x for i, x in enumerate(_per_actor(work, advantage, mask))})
        value_weight = torch.where(known, 1.0 if weight is None else weight, 0.0).to(steps.reward.dtype)
        if target is not None:
            metrics["explained_variance"] = explained_variance(value, target, mask=value_weight > 0)
        return Credit(
            small.expand(advantage),
            None if target is None else small.expand(target, fill=batch.steps.value),
            small.expand(mask),
            small.expand(value_weight),
            metrics,
        )

    def loss(self, logp: Array, batch: TurnBatch, credit: Credit, **options: object) -> Array:
        """Policy loss of the whole batch.

        Args:
            logp: (N,) current log-probabilities with gradient.
            batch: the batch that `credit` belongs to; its `logp_prox` (or `logp_behaviour`) is the old policy.
            credit: result of the pipeline on the batch.
            **options: further options of `policy_loss`, over the configured ones.

        Returns:
            0-d loss.

        Raises:
            ValueError: the batch has no log-probabilities of the policy that acted.
        """
        chosen = {**self.loss_options, **options}
        decoupled = chosen.pop("decoupled", False)
        s = batch.steps
        if s.logp_behaviour is None:
            raise ValueError("logp_behaviour is None, expected the log-probabilities of the policy that acted")
        proximal = s.logp_behaviour if s.logp_prox is None else s.logp_prox
        shared = loss_arguments(chosen, credit.mask, RowIds(s.turn_id, s.episode_id))
        if decoupled:
            return decoupled_policy_loss(logp, proximal, s.logp_behaviour, credit.advantage, **shared)
        return policy_loss(logp, proximal, credit.advantage, **shared)

    def update_metrics(self, logp: Array, batch: TurnBatch, credit: Credit) -> dict[str, Array]:
        """What to log about an update: ratios, clip fractions, divergences, importance weights; no gradient."""
        if isinstance(batch.steps.reward, np.ndarray):
            return to_arrays(self.update_metrics(torch.as_tensor(logp), batch.to("cpu"), to_tensors(credit)))
        s = batch.steps
        proximal = s.logp_behaviour if s.logp_prox is None else s.logp_prox
        ids = RowIds(s.turn_id, s.episode_id)
        given = loss_arguments(self.loss_options, credit.mask, ids)
        options = {name: given[name] for name in ("clip", "ratio_unit") if name in given}
        out = policy_metrics(logp, proximal, credit.advantage, mask=credit.mask, ids=ids, **options)
        if s.logp_ref is not None:
            out.update(kl_metrics(logp, s.logp_ref, mask=credit.mask))
        if s.logp_prox is not None:
            step = log_ratio(proximal, s.logp_behaviour, mask=credit.mask)
            weight = bounded_weight(torch.exp(step), "none")
            out["is_weight_max"] = torch.where(credit.mask, weight, torch.zeros_like(weight)).max()
            out["effective_sample_size"] = effective_sample_size(weight, credit.mask)
        return out

    def state_dict(self) -> dict[str, Any]:
        """State of the stateful estimators, for the checkpoint."""
        return {name: state.state_dict() for name, state in self.states.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        for name, part in state.items():
            self.states[name].load_state_dict(part)


def loss_arguments(options: Mapping[str, Any], mask: Array, ids: RowIds) -> dict[str, Any]:
    """Loss options as a configuration writes them, as arguments of `policy_loss`.

    Args:
        options: those of `policy_loss`; further dual_clip and delta, which join the clip, and max_length, with which a
            mode of aggregation becomes weights.
        mask: rows of the loss.
        ids: of the rows.
    """
    given = dict(options)
    bounds = {"dual": given.pop("dual_clip", None), "delta": given.pop("delta", None)}
    if any(bound is not None for bound in bounds.values()):
        given["clip"] = ClipRange(given.get("clip", 0.2), **bounds)
    longest = given.pop("max_length", None)
    if longest is not None:
        mode = given.get("aggregation") or default_aggregation(given.get("kind", "ppo"))
        given["aggregation"] = row_weight(mask, mode, ids, max_length=longest)
    return {"mask": mask, "ids": ids, **given}


def _scaled_name(stage: Stage) -> str:
    """Name under which `check_combination` knows a stage that divides by a deviation."""
    if stage.name == "gigpo" and stage.options.get("mode") == "mean_std_norm":
        return "gigpo_std"
    if stage.options.get("scale") == "none":
        return "none"
    return stage.name


def _moments(x: Array, mask: Array, name: str) -> dict[str, Array]:
    wide = torch.where(mask, x.double(), 0.0)
    count = mask.double().sum()
    count = torch.where(count > 0, count, torch.ones_like(count))
    mean = wide.sum() / count
    std = torch.sqrt((torch.where(mask, wide - mean, 0.0) ** 2).sum() / count)
    return {f"{name}_mean": mean, f"{name}_std": std, f"{name}_max": torch.abs(wide).max()}


def _batch_metrics(batch: TurnBatch, mask: Array) -> dict[str, Array]:
    s, e = batch.steps, batch.episodes
    rows, fragments = len(batch), len(e.start)
    return {
        **group_metrics(e.outcome, e.group_id.long()),
        "mask_share": mask.double().sum() / rows,
        "mean_k": s.k.double().mean(),
        "truncated_share": s.truncated.double().sum() / fragments,
        "missing_bootstrap": float(batch.report.missing_bootstrap),
        "both_flags": float(batch.report.both_flags),
    }


def _per_actor(batch: TurnBatch, advantage: Array, mask: Array) -> list[Array]:
    """Mean advantage of each actor; nothing to tell with one actor."""
    turns = batch.turns
    count = int(turns.actor_id.max()) + 1
    if count == 1:
        return []
    actor = turns.actor_id.long()[batch.steps.turn_id.long()]
    return list(actor_means(advantage, actor, count, mask=mask))
