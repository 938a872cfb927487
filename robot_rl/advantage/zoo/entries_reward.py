"""Registered reward stages: batch in, batch with another reward out; the original stays as extras["reward_env"]."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from robot_rl.advantage.batch import TurnBatch
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.registry import register
from robot_rl.advantage.rows import power
from robot_rl.advantage.zoo.kl import kl_reward
from robot_rl.advantage.zoo.redistribute import igpo_reward, spa_reward
from robot_rl.advantage.zoo.shaping import gated_reward, intervention_reward, potential_shaping, progress_delta


def with_reward(
    batch: TurnBatch, reward: Array | None = None, turn_reward: Array | None = None, outcome: Array | None = None
) -> TurnBatch:
    """The batch with new rewards; the first stage keeps the environment's as extras["reward_env"].

    Outcomes change by what the steps of their episode gained, unless new ones are given, or the steps' sum is handed
    out by turns. A reward of NaN becomes 0 and its episode unscorable, as in `make_batch`.
    """
    s, turns, e = batch.steps, batch.turns, batch.episodes
    new = s.reward if reward is None else reward.to(s.reward.dtype)
    steps = replace(s, reward=_zero_unknown(new), extras={"reward_env": s.reward, **s.extras})
    if turn_reward is not None:
        turns = replace(turns, turn_reward=_zero_unknown(turn_reward).to(s.reward.dtype))
        bad = torch.zeros_like(e.outcome).index_add_(0, turns.episode_id.long(), 0 * turn_reward.to(e.outcome.dtype))
        outcome = (e.outcome if outcome is None else outcome) + bad
    if outcome is None and reward is not None and turn_reward is None:
        gain = torch.zeros(len(e.start), dtype=torch.float64, device=new.device)
        gain.index_add_(0, s.episode_id.long(), (new - s.reward).double())
        outcome = (e.outcome.double() + gain).to(e.outcome.dtype)
    episodes = e if outcome is None else replace(e, outcome=outcome)
    return replace(batch, steps=steps, turns=turns, episodes=episodes)


def _zero_unknown(x: Array) -> Array:
    return torch.where(torch.isnan(x), torch.zeros_like(x), x)


@register("redistribute", "potential", needs=("extras.potential", "extras.next_potential"), paper="Ng et al. 1999")
def _potential(batch: TurnBatch, *, gamma: float = 0.99, weight: float = 1.0) -> TurnBatch:
    s = batch.steps
    g = s.discount if s.discount is not None else power(gamma, s.k, s.reward.dtype)
    shaping = potential_shaping(s.extras["potential"], s.extras["next_potential"], g, s.terminated)
    return with_reward(batch, s.reward + weight * shaping)


@register(
    "redistribute", "progress", needs=("extras.progress", "extras.next_progress"), paper="VLAC-like progress critic"
)
def _progress(batch: TurnBatch, *, weight: float = 1.0) -> TurnBatch:
    s = batch.steps
    return with_reward(batch, s.reward + weight * progress_delta(s.extras["progress"], s.extras["next_progress"]))


@register("redistribute", "intervention", paper="Luo et al. 2024, RLIF")
def _intervention(batch: TurnBatch, *, timing: str = "before", reward_weight: float = 0.0) -> TurnBatch:
    s = batch.steps
    # Foreign rows are those under human control; observation rows are not.
    human = ~s.own & s.clock
    after = s.extras.get("human_after_end")
    after = None if after is None else after[batch.episodes.end.long()]
    reward = intervention_reward(
        human,
        s.episode_id.long(),
        timing=timing,
        human_after_end=after,
        reward=s.reward,
        reward_weight=reward_weight,
    )
    return with_reward(batch, reward)


@register("redistribute", "gated", needs=("extras.level_reward",), paper="G-RA")
def _gate(batch: TurnBatch, *, threshold: float = 0.0) -> TurnBatch:
    s = batch.steps
    levels = s.extras["level_reward"].T  # stored (rows, levels), priority rising
    reward = gated_reward(levels, s.episode_id.long(), len(batch.episodes.start), threshold)
    return with_reward(batch, reward)


@register("redistribute", "kl", needs=("logp_behaviour", "logp_ref"), paper="Ouyang et al. 2022, k1 as a reward")
def _kl(batch: TurnBatch, *, beta: float = 0.01) -> TurnBatch:
    s = batch.steps
    return with_reward(batch, kl_reward(s.reward, s.logp_behaviour, s.logp_ref, beta, mask=s.own & s.clock))


@register("redistribute", "spa", needs=("turns", "extras.contribution"), paper="SPA-RL", modes=("default", "release"))
def _spa(batch: TurnBatch, **options: Any) -> TurnBatch:
    s, turns = batch.steps, batch.turns
    start = turns.start.long()
    grounding = s.extras.get("grounding")
    reward = spa_reward(
        s.extras["contribution"][start],
        turns.episode_id.long(),
        grounding=None if grounding is None else grounding[start],
        outcome=batch.episodes.outcome,
        **options,
    )
    # The contributions replace the environment's reward, which they add up to.
    return with_reward(batch, torch.zeros_like(s.reward), reward)


@register("redistribute", "igpo", needs=("turns", "extras.answer_probability"), paper="IGPO")
def _igpo(batch: TurnBatch) -> TurnBatch:
    # Probability of the reference answer given the context before the turn, in the turn's first row.
    s, turns = batch.steps, batch.turns
    before = s.extras["answer_probability"][turns.start.long()]
    reward = igpo_reward(before, turns.episode_id.long(), batch.episodes.outcome)
    return with_reward(batch, torch.zeros_like(s.reward), reward)
