"""Registered group estimators: outcomes and turn rewards of a compacted batch, spread over its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from robot_rl.advantage import groups, turn_groups
from robot_rl.advantage.batch import TurnBatch
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.normalise import EdgeRules
from robot_rl.advantage.registry import RowEstimate, register
from robot_rl.advantage.segments import spread
from robot_rl.advantage.turns import to_turns


def turn_reward(batch: TurnBatch) -> Array:
    """(U,) summed step rewards plus the turn's own; NaN in unscorable episodes."""
    s, turns = batch.steps, batch.turns
    total = to_turns(s.reward, s.turn_id, turns=len(turns.start))
    if turns.turn_reward is not None:
        total = total + turns.turn_reward
    # Adding 0 * NaN marks exactly the turns of unscorable episodes.
    return total + 0 * batch.episodes.outcome[turns.episode_id.long()]


def by_episode(batch: TurnBatch, advantage: Array) -> RowEstimate:
    """One advantage per episode, on all its rows."""
    return RowEstimate(spread(advantage, batch.steps.episode_id.long()))


def by_turn(batch: TurnBatch, advantage: Array) -> RowEstimate:
    """One advantage per turn, on all its rows."""
    return RowEstimate(spread(advantage, batch.steps.turn_id.long()))


EDGE_NAMES = tuple(field.name for field in fields(EdgeRules))
"""Options of a group estimator that a configuration writes beside the others."""


def episode_estimator(
    name: str, function: Callable[..., object], paper: str, modes: tuple[str, ...] = (), **edges: Any
) -> None:
    """Register a function of (score, group) that gives one advantage per episode, and its own edge rules."""

    @register("group", name, needs=("group",), paper=paper, modes=("default", *modes))
    def _run(batch: TurnBatch, **options: Any) -> RowEstimate:
        given = {name: options.pop(name) for name in EDGE_NAMES if name in options}
        if given:
            options["rules"] = EdgeRules(**{**edges, **given})
        return by_episode(batch, function(batch.episodes.outcome, batch.episodes.group_id.long(), **options))


episode_estimator("grpo", groups.grpo, "Shao et al. 2024, DeepSeekMath")


episode_estimator("dr_grpo", groups.dr_grpo, "Liu et al. 2025, Dr. GRPO")


episode_estimator("rloo", groups.rloo, "Ahmadian et al. 2024")


episode_estimator("lite_ppo", groups.lite_ppo, "Liu et al. 2025, Lite PPO")


def turn_estimator(
    name: str, function: Callable[..., object], paper: str, modes: tuple[str, ...] = (), index: bool = True
) -> None:
    """Register a function of (reward, episode, group) of turns that gives one advantage per turn."""

    @register("group", name, needs=("group", "turns"), paper=paper, modes=("default", *modes))
    def _run(batch: TurnBatch, **options: object) -> RowEstimate:
        turns = batch.turns
        given = {"turn_index": turns.turn_index, **options} if index else options
        advantage = function(turn_reward(batch), turns.episode_id.long(), batch.episodes.group_id.long(), **given)
        return by_turn(batch, advantage)


turn_estimator("trloo", turn_groups.trloo, "KernelGYM, TRLOO", ("release",))


turn_estimator("mapo", turn_groups.mapo, "MAPO")


@register("group", "gigpo", needs=("group", "turns", "anchor"), paper="Feng et al. 2025", modes=("default", "release"))
def _gigpo(batch: TurnBatch, **options: Any) -> RowEstimate:
    e, turns = batch.episodes, batch.turns
    columns = (turn_reward(batch), turns.episode_id.long(), e.group_id.long(), turns.anchor_key)
    return by_turn(batch, turn_groups.gigpo(*columns, score=e.outcome, **options))
