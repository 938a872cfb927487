"""Registered group estimators: outcomes and turn rewards of a compacted batch, spread over its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from robot_rl.advantage import actors, groups, turn_groups
from robot_rl.advantage.batch import TurnBatch
from robot_rl.advantage.normalise import whiten
from robot_rl.advantage.redistribute import igpo, infopo
from robot_rl.advantage.registry import Estimate, register
from robot_rl.advantage.segments import combine_ids, seg_count, seg_first, seg_sum, spread
from robot_rl.advantage.state import EmaScale, ExperimentalDifficulty, RoleBaseline
from robot_rl.advantage.turns import to_turns


def ids(x: Any) -> Any:
    """Ids as int64, the type that indexes in both libraries."""
    return x.astype(np.int64, copy=False) if isinstance(x, np.ndarray) else x.long()


def turn_reward(batch: TurnBatch) -> Any:
    """(U,) summed step rewards plus the turn's own; NaN in unscorable episodes."""
    s, turns = batch.steps, batch.turns
    total = to_turns(s.reward, s.turn_id, turns=len(turns.start))
    if turns.turn_reward is not None:
        total = total + turns.turn_reward
    # Adding 0 * NaN marks exactly the turns of unscorable episodes.
    return total + 0 * batch.episodes.outcome[ids(turns.episode_id)]


def loss_length(batch: TurnBatch) -> Any:
    """(E,) loss rows of each episode."""
    s = batch.steps
    return seg_count(ids(s.episode_id), len(batch.episodes.start), mask=s.loss_mask)


def _by_episode(batch: TurnBatch, advantage: Any) -> Estimate:
    return Estimate(spread(advantage, ids(batch.steps.episode_id)))


def _by_turn(batch: TurnBatch, advantage: Any) -> Estimate:
    return Estimate(spread(advantage, ids(batch.steps.turn_id)))


def _episode_estimator(name: str, function: Callable[..., Any], paper: str, modes: tuple[str, ...] = ()) -> None:
    @register("group", name, needs=("group",), paper=paper, modes=("default", *modes))
    def _run(batch: TurnBatch, **options: Any) -> Estimate:
        return _by_episode(batch, function(batch.episodes.outcome, ids(batch.episodes.group_id), **options))


_episode_estimator("grpo", groups.grpo, "Shao et al. 2024, DeepSeekMath")
_episode_estimator("dr_grpo", groups.dr_grpo, "Liu et al. 2025, Dr. GRPO")
_episode_estimator("rloo", groups.rloo, "Ahmadian et al. 2024")
_episode_estimator("loop", groups.loop, "Chen et al. 2025, LOOP")
_episode_estimator("m_grpo", groups.m_grpo, "WebAgent-R1")
_episode_estimator("lite_ppo", groups.lite_ppo, "Liu et al. 2025, Lite PPO")
_episode_estimator("gpg", groups.gpg, "Chu et al. 2025, GPG", ("release",))
_episode_estimator("pass_k", groups.pass_k, "Chen et al. 2025, Pass@k")
_episode_estimator("experimental_flow_grpo", groups.experimental_flow_grpo, "Li et al. 2025, AgentFlow")


@register("group", "opo", needs=("group",), paper="Hao et al. 2025, OPO")
def _opo(batch: TurnBatch, **options: Any) -> Estimate:
    e = batch.episodes
    return _by_episode(batch, groups.opo(e.outcome, ids(e.group_id), loss_length(batch), **options))


@register("group", "spo", needs=("group",), paper="Swamy et al. 2024")
def _spo(batch: TurnBatch, **options: Any) -> Estimate:
    e = batch.episodes
    score = groups.spo_from_score(e.outcome, ids(e.group_id))
    return _by_episode(batch, groups.rloo(score, ids(e.group_id), **options))


@register("group", "remax", needs=("group", "extras.greedy"), paper="Li et al. 2024, ReMax")
def _remax(batch: TurnBatch) -> Estimate:
    e, s = batch.episodes, batch.steps
    greedy = s.extras["greedy"][ids(e.start)]
    return _by_episode(batch, groups.remax(e.outcome, ids(e.group_id), greedy))


def _scorable_reward(batch: TurnBatch) -> Any:
    """(N,) step rewards; NaN in episodes whose outcome is."""
    outcome, reward = batch.episodes.outcome, batch.steps.reward
    if isinstance(outcome, np.ndarray) and np.isfinite(outcome).all():
        return reward
    return reward + 0 * outcome[ids(batch.steps.episode_id)]


@register("group", "reinforce_pp", paper="Hu et al. 2025, REINFORCE++")
def _reinforce_pp(batch: TurnBatch, **options: Any) -> Estimate:
    s = batch.steps
    reward = _scorable_reward(batch)
    return Estimate(turn_groups.reinforce_pp(reward, ids(s.episode_id), mask=s.loss_mask, **options))


@register("group", "reinforce_pp_baseline", needs=("group",), paper="Hu et al. 2025, REINFORCE++")
def _reinforce_pp_baseline(batch: TurnBatch, **options: Any) -> Estimate:
    e, s = batch.episodes, batch.steps
    return Estimate(groups.reinforce_pp_baseline(e.outcome, ids(e.group_id), ids(s.episode_id), s.loss_mask, **options))


@register(
    "group", "otb", needs=("group", "extras.prob", "extras.prob_square_sum"), paper="optimal token baseline, verl"
)
def _otb(batch: TurnBatch, *, gamma: float = 1.0, tool_aware: bool = False) -> Estimate:
    s, episode = batch.steps, ids(batch.steps.episode_id)
    turn = ids(s.turn_id) if tool_aware else None
    weight = turn_groups.otb_weight(s.extras["prob"], s.extras["prob_square_sum"], episode, turn=turn)
    reward = _scorable_reward(batch)
    value = turn_groups.discounted_return(reward, episode, gamma)
    return Estimate(turn_groups.otb(value, weight, episode, ids(batch.episodes.group_id)))


def _turn_estimator(
    name: str, function: Callable[..., Any], paper: str, modes: tuple[str, ...] = (), index: bool = True
) -> None:
    @register("group", name, needs=("group", "turns"), paper=paper, modes=("default", *modes))
    def _run(batch: TurnBatch, **options: Any) -> Estimate:
        turns = batch.turns
        given = {"turn_index": turns.turn_index, **options} if index else options
        advantage = function(turn_reward(batch), ids(turns.episode_id), ids(batch.episodes.group_id), **given)
        return _by_turn(batch, advantage)


_turn_estimator("trloo", turn_groups.trloo, "KernelGYM, TRLOO", ("release",))
_turn_estimator("mapo", turn_groups.mapo, "MAPO")
_turn_estimator("cm2_turn", turn_groups.cm2_turn, "CM2")
_turn_estimator("igpo", igpo, "IGPO", ("release",), index=False)


@register("group", "gigpo", needs=("group", "turns", "anchor"), paper="Feng et al. 2025", modes=("default", "release"))
def _gigpo(batch: TurnBatch, **options: Any) -> Estimate:
    e, turns = batch.episodes, batch.turns
    columns = (turn_reward(batch), ids(turns.episode_id), ids(e.group_id), turns.anchor_key)
    return _by_turn(batch, turn_groups.gigpo(*columns, score=e.outcome, **options))


@register("group", "ui_s1", needs=("group", "turns", "extras.match"), paper="UI-S1", modes=("default", "release"))
def _ui_s1(batch: TurnBatch, **options: Any) -> Estimate:
    turns = batch.turns
    match = batch.steps.extras["match"][ids(turns.start)]
    columns = (turn_reward(batch), match, ids(turns.episode_id), ids(batch.episodes.group_id))
    return _by_turn(batch, turn_groups.ui_s1(*columns, **options))


@register("group", "infopo", needs=("group", "turns", "extras.gain"), paper="InfoPO")
def _infopo(batch: TurnBatch, **options: Any) -> Estimate:
    e, turns, s = batch.episodes, batch.turns, batch.steps
    gain = s.extras["gain"][ids(turns.start)]
    length = seg_count(ids(s.turn_id), len(turns.start))
    columns = (gain, length, ids(turns.episode_id), ids(e.group_id), e.outcome)
    return _by_turn(batch, infopo(*columns, **options))


@register("group", "agent_wise", needs=("group", "turns"), paper="Dr. MAS", modes=("default", "release"))
def _agent_wise(batch: TurnBatch, **options: Any) -> Estimate:
    e, turns = batch.episodes, batch.turns
    columns = (e.outcome, ids(e.group_id), ids(turns.episode_id), ids(turns.actor_id))
    return _by_turn(batch, actors.agent_wise(*columns, **options))


@register("group", "mars", needs=("turns",), paper="MARS")
def _mars(batch: TurnBatch, **options: Any) -> Estimate:
    turns = batch.turns
    columns = (turn_reward(batch), ids(turns.episode_id), ids(turns.actor_id))
    return _by_turn(batch, actors.mars(*columns, **options))


@register(
    "group",
    "ema_grpo",
    needs=("group",),
    paper="OneThinker, EMA-GRPO",
    modes=("default", "release"),
    state=lambda decay=0.99, **options: EmaScale(decay, **options),
)
def _ema_grpo(batch: TurnBatch, state: EmaScale, **_: Any) -> Estimate:
    e = batch.episodes
    return _by_episode(batch, state.advantage(e.outcome, ids(e.group_id), ids(e.task_id)))


@register(
    "group",
    "experimental_dgrpo",
    needs=("group",),
    paper="DGRPO (reconstruction)",
    state=lambda decay=0.99: ExperimentalDifficulty(decay),
)
def _dgrpo(batch: TurnBatch, state: ExperimentalDifficulty, **_: Any) -> Estimate:
    e = batch.episodes
    weight = state.weight(e.outcome, ids(e.task_id))
    return _by_episode(batch, groups.grpo(e.outcome, ids(e.group_id)) * weight)


@register(
    "group",
    "rae",
    needs=("turns",),
    paper="Liu et al. 2025, SPIRAL",
    modes=("default", "release"),
    state=lambda decay=0.95, key="game_role", **_: RoleBaseline(decay, key=key),
)
def _rae(batch: TurnBatch, state: RoleBaseline, *, gamma: float = 1.0, player: int | None = None, **_: Any) -> Estimate:
    e, turns = batch.episodes, batch.turns
    episode, actor, role = ids(turns.episode_id), ids(turns.actor_id), ids(turns.role_id)
    score = e.outcome[episode] if player is None else actors.zero_sum_outcome(e.outcome, episode, actor, player)
    cell, count = combine_ids(episode, actor)
    first = [ids(seg_first(x, cell, count)) for x in (role, ids(e.game_id)[episode])]
    outcome = seg_sum(score, cell, count) / seg_count(cell, count)
    process = first[1] if state.key == "player_process" else None
    game = first[1] if state.key == "game_role" else None
    advantage = state.advantage(outcome, role=first[0], game=game, process=process)
    weight = actors.own_turn_weight(episode, actor, gamma)
    return _by_turn(batch, advantage[cell] * weight)


def whitened(advantage: Any, mask: Any) -> Any:
    """Advantage with mean 0 and deviation 1 over the loss rows of the whole batch."""
    return whiten(advantage, mask)
