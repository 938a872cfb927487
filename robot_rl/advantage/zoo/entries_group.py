"""Registered group estimators that no learner uses yet: outcomes and turn rewards of a compacted batch."""

from __future__ import annotations

from typing import Any

from robot_rl.advantage import groups, turn_groups
from robot_rl.advantage.batch import TurnBatch
from robot_rl.advantage.entries_group import by_episode, by_turn, episode_estimator, turn_estimator, turn_reward
from robot_rl.advantage.entries_temporal import row_reward
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.registry import RowEstimate, register
from robot_rl.advantage.segments import combine_ids, seg_count, seg_first, seg_sum
from robot_rl.advantage.zoo import actors
from robot_rl.advantage.zoo import groups as zoo_groups
from robot_rl.advantage.zoo import turn_groups as zoo_turn_groups
from robot_rl.advantage.zoo.redistribute import igpo, infopo
from robot_rl.advantage.zoo.state import EmaScale, ExperimentalDifficulty, RoleBaseline


def loss_length(batch: TurnBatch) -> Array:
    """(E,) loss rows of each episode."""
    s = batch.steps
    return seg_count(s.episode_id.long(), len(batch.episodes.start), mask=s.loss_mask)


episode_estimator("loop", zoo_groups.loop, "Chen et al. 2025, LOOP")


episode_estimator("m_grpo", zoo_groups.m_grpo, "WebAgent-R1", eps=zoo_groups.M_GRPO_EPS)


episode_estimator("gpg", zoo_groups.gpg, "Chu et al. 2025, GPG", ("release",))


episode_estimator("pass_k", zoo_groups.pass_k, "Chen et al. 2025, Pass@k")


episode_estimator("experimental_flow_grpo", zoo_groups.experimental_flow_grpo, "Li et al. 2025, AgentFlow")


@register("group", "opo", needs=("group",), paper="Hao et al. 2025, OPO")
def _opo(batch: TurnBatch, **options: object) -> RowEstimate:
    e = batch.episodes
    return by_episode(batch, zoo_groups.opo(e.outcome, e.group_id.long(), loss_length(batch), **options))


@register("group", "spo", needs=("group",), paper="Swamy et al. 2024")
def _spo(batch: TurnBatch, **options: object) -> RowEstimate:
    e = batch.episodes
    score = zoo_groups.spo_from_score(e.outcome, e.group_id.long())
    return by_episode(batch, groups.rloo(score, e.group_id.long(), **options))


@register("group", "remax", needs=("group", "extras.greedy"), paper="Li et al. 2024, ReMax")
def _remax(batch: TurnBatch) -> RowEstimate:
    e, s = batch.episodes, batch.steps
    greedy = s.extras["greedy"][e.start.long()]
    return by_episode(batch, zoo_groups.remax(e.outcome, e.group_id.long(), greedy))


def _scorable_reward(batch: TurnBatch) -> Array:
    """(N,) rewards of rows and turns; NaN in episodes whose outcome is."""
    return row_reward(batch) + 0 * batch.episodes.outcome[batch.steps.episode_id.long()]


@register("group", "reinforce_pp", paper="Hu et al. 2025, REINFORCE++")
def _reinforce_pp(batch: TurnBatch, **options: Any) -> RowEstimate:
    s = batch.steps
    reward = _scorable_reward(batch)
    return RowEstimate(zoo_turn_groups.reinforce_pp(reward, s.episode_id.long(), mask=s.loss_mask, **options))


@register("group", "reinforce_pp_baseline", needs=("group",), paper="Hu et al. 2025, REINFORCE++")
def _reinforce_pp_baseline(batch: TurnBatch, **options: Any) -> RowEstimate:
    e, s = batch.episodes, batch.steps
    return RowEstimate(
        zoo_groups.reinforce_pp_baseline(e.outcome, e.group_id.long(), s.episode_id.long(), s.loss_mask, **options)
    )


@register(
    "group", "otb", needs=("group", "extras.prob", "extras.prob_square_sum"), paper="optimal token baseline, verl"
)
def _otb(batch: TurnBatch, *, gamma: float = 1.0, tool_aware: bool = False) -> RowEstimate:
    s, episode = batch.steps, batch.steps.episode_id.long()
    turn = s.turn_id.long() if tool_aware else None
    weight = zoo_turn_groups.otb_weight(s.extras["prob"], s.extras["prob_square_sum"], episode, turn=turn)
    reward = _scorable_reward(batch)
    value = turn_groups.discounted_return(reward, episode, gamma)
    return RowEstimate(zoo_turn_groups.otb(value, weight, episode, batch.episodes.group_id.long()))


turn_estimator("cm2_turn", zoo_turn_groups.cm2_turn, "CM2")


turn_estimator("igpo", igpo, "IGPO", ("release",), index=False)


@register("group", "ui_s1", needs=("group", "turns", "extras.match"), paper="UI-S1", modes=("default", "release"))
def _ui_s1(batch: TurnBatch, **options: Any) -> RowEstimate:
    turns = batch.turns
    match = batch.steps.extras["match"][turns.start.long()]
    columns = (turn_reward(batch), match, turns.episode_id.long(), batch.episodes.group_id.long())
    return by_turn(batch, zoo_turn_groups.ui_s1(*columns, **options))


@register("group", "infopo", needs=("group", "turns", "extras.gain"), paper="InfoPO")
def _infopo(batch: TurnBatch, **options: Any) -> RowEstimate:
    e, turns, s = batch.episodes, batch.turns, batch.steps
    gain = s.extras["gain"][turns.start.long()]
    length = seg_count(s.turn_id.long(), len(turns.start))
    columns = (gain, length, turns.episode_id.long(), e.group_id.long(), e.outcome)
    return by_turn(batch, infopo(*columns, **options))


@register("group", "agent_wise", needs=("group", "turns"), paper="Dr. MAS", modes=("default", "release"))
def _agent_wise(batch: TurnBatch, **options: Any) -> RowEstimate:
    e, turns = batch.episodes, batch.turns
    columns = (e.outcome, e.group_id.long(), turns.episode_id.long(), turns.actor_id.long())
    return by_turn(batch, actors.agent_wise(*columns, **options))


@register("group", "mars", needs=("turns",), paper="MARS")
def _mars(batch: TurnBatch, **options: Any) -> RowEstimate:
    turns = batch.turns
    columns = (turn_reward(batch), turns.episode_id.long(), turns.actor_id.long())
    return by_turn(batch, actors.mars(*columns, **options))


@register(
    "group",
    "ema_grpo",
    needs=("group",),
    paper="OneThinker, EMA-GRPO",
    modes=("default", "release"),
    state=lambda decay=0.99, **options: EmaScale(decay, **options),
)
def _ema_grpo(batch: TurnBatch, state: EmaScale, **_: object) -> RowEstimate:
    e = batch.episodes
    return by_episode(batch, state.advantage(e.outcome, e.group_id.long(), e.task_id.long()))


@register(
    "group",
    "experimental_dgrpo",
    needs=("group",),
    paper="DGRPO (reconstruction)",
    state=lambda decay=0.99, **options: ExperimentalDifficulty(decay, **options),
)
def _dgrpo(batch: TurnBatch, state: ExperimentalDifficulty, **_: object) -> RowEstimate:
    e = batch.episodes
    weight = state.weight(e.outcome, e.task_id.long())
    return by_episode(batch, groups.grpo(e.outcome, e.group_id.long()) * weight)


@register(
    "group",
    "rae",
    needs=("turns",),
    paper="Liu et al. 2025, SPIRAL",
    modes=("default", "release"),
    state=lambda decay=0.95, key="game_role", **_: RoleBaseline(decay, key=key),
)
def _rae(
    batch: TurnBatch, state: RoleBaseline, *, gamma: float = 1.0, player: int | None = None, **_: object
) -> RowEstimate:
    e, turns = batch.episodes, batch.turns
    episode, actor, role = turns.episode_id.long(), turns.actor_id.long(), turns.role_id.long()
    score = e.outcome[episode] if player is None else actors.zero_sum_outcome(e.outcome, episode, actor, player)
    cell, count = combine_ids(episode, actor)
    first = [seg_first(x, cell, count).long() for x in (role, e.game_id.long()[episode])]
    outcome = seg_sum(score, cell, count) / seg_count(cell, count)
    process = first[1] if state.key == "player_process" else None
    game = first[1] if state.key == "game_role" else None
    advantage = state.advantage(outcome, role=first[0], game=game, process=process)
    weight = actors.own_turn_weight(episode, actor, gamma)
    return by_turn(batch, advantage[cell] * weight)
