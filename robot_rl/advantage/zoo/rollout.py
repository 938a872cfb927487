"""How rollouts are collected: branching where the policy is unsure, refilling, atomic groups, shared prefixes."""

from __future__ import annotations

import math

import numpy as np
import torch

from robot_rl.advantage.arrays import in_torch
from robot_rl.advantage.kinds import (
    Array,
    match_dtype,
    require_flat,
    require_option,
    require_rows,
)
from robot_rl.advantage.normalise import normalise_units
from robot_rl.advantage.segments import seg_mean


@in_torch
def branching_entropy(top_logp: Array, vocabulary: int, *, max_tokens: int = 20) -> Array:
    """Entropy of the first rows after an observation, over the most likely actions, divided by log |vocabulary|.

    Args:
        top_logp: (..., T, K) log-probabilities of the K most likely actions (10 for tokens) at each of T rows; -inf
            where there is none.
        vocabulary: number of actions, at least 2.
        max_tokens: rows that count.

    Returns:
        (...) sum over the first rows of -sum p·log p, divided by log(vocabulary).

    Raises:
        ValueError: vocabulary below 2.

    Source: Dong et al., ARPO; dongguanting/ARPO.
    """
    if vocabulary < 2:
        raise ValueError(f"vocabulary is {vocabulary}, expected at least two actions")
    logp = top_logp
    first = logp[..., :max_tokens, :].double()
    known = torch.where(first > -float("inf"), first, 0.0)
    return match_dtype(
        -(torch.where(first > -float("inf"), torch.exp(first), 0.0) * known).sum(-1).sum(-1) / math.log(vocabulary),
        logp,
    )


@in_torch
def branch_probability(entropy_gain: Array, *, p: float = 0.5, weight: float = 0.5) -> Array:
    """clip(p + weight · (entropy now - entropy after the task), 0, 1).

    Args:
        entropy_gain: (...) entropy after the observation minus that after the task text.
        p: base probability.
        weight: 0.5; the scripts use 0.2.

    Source: Dong et al., ARPO; dongguanting/ARPO.
    """
    gain = entropy_gain
    return torch.clip(p + weight * gain, 0.0, 1.0)


@in_torch
def branches(
    entropy_gain: Array,
    *,
    generator: np.random.Generator | None = None,
    p: float = 0.5,
    weight: float = 0.5,
    deterministic: bool = False,
    threshold: float = 0.5,
) -> Array:
    """Which rollouts branch here.

    Args:
        entropy_gain: (R,) see `branch_probability`.
        generator: seeded np.random.Generator, for the random form (the release).
        p: base probability.
        weight: of the entropy gain.
        deterministic: branch where p + weight · gain > threshold (paper, recalled).
        threshold: of the deterministic form.

    Returns:
        (R,) bool.

    Raises:
        ValueError: the random form without a generator.

    Source: Dong et al., ARPO; dongguanting/ARPO.
    """
    gain = entropy_gain
    if deterministic:
        return p + weight * gain > threshold
    if generator is None:
        raise ValueError("generator is missing: random branching draws from a seeded np.random.Generator")
    draw = generator.random(tuple(gain.shape))
    return torch.from_numpy(draw).to(gain) <= branch_probability(gain, p=p, weight=weight)


@in_torch
def branch_plan(wants: Array, spare: int, *, beam: int = 2) -> tuple[list[int], int]:
    """Copies granted to rollouts that want to branch, in order, and the fresh rollouts that fill the rest.

    Args:
        wants: (R,) bool from `branches`.
        spare: rollouts left in the budget (initially 16 - 8).
        beam: a branching rollout continues in `beam` copies, itself included.

    Returns:
        ((R,) extra copies of each rollout, number of fresh rollouts).

    Raises:
        ValueError: spare is negative or beam below 1.
    """
    if spare < 0 or beam < 1:
        raise ValueError(f"spare is {spare} and beam {beam}, expected spare >= 0 and beam >= 1")
    extra = []
    for want in wants.tolist():
        granted = min(beam - 1, spare) if want else 0
        spare -= granted
        extra.append(granted)
    return extra, spare


@in_torch
def prefix_advantage(advantage: Array, leaf: Array, row: Array, n_rows: int) -> Array:
    """Credit of rows shared by several branches: the mean over the leaves below them, each row once.

    Args:
        advantage: (L,) advantage of each leaf (complete rollout).
        leaf: (P,) leaf of each (row, leaf) pair.
        row: (P,) dense row of each pair.
        n_rows: number of distinct rows.

    Returns:
        (n_rows,) advantages; 0 for a row below no leaf. To duplicate prefixes instead, index `advantage` by leaf.

    Raises:
        ValueError: wrong shapes or ids.
    """
    leaf, row = leaf.long(), row
    require_rows(require_flat("leaf", leaf), row=row)
    mean = seg_mean(advantage[leaf], row, n_rows)
    return match_dtype(torch.where(torch.isnan(mean), 0.0, mean), advantage)


def groups_to_draw(informative: int, drawn: int, batch: int, *, max_factor: float = 3.0) -> int:
    """Groups to sample next so that `batch` informative ones come together (dynamic sampling).

    Args:
        informative: groups with spread so far.
        drawn: groups sampled so far.
        batch: informative groups wanted.
        max_factor: at most max_factor · batch groups are ever drawn.

    Returns:
        Number of groups, 0 when done or when the limit is reached.

    Raises:
        ValueError: max_factor below 1.

    Source: Yu et al., DAPO, dynamic sampling.
    """
    if max_factor < 1:
        raise ValueError(f"max_factor is {max_factor}, expected at least 1")
    return max(0, min(batch - informative, int(max_factor * batch) - drawn))


@in_torch
def experimental_supo_advantage(
    score: Array, trial: Array, group: Array, *, scale: str = "std", **options: object
) -> Array:
    """Group advantage of trials that context summaries cut into fragments: one entry per trial, shared by all of them.

    Args:
        score: (F,) outcome of the trial on each fragment.
        trial: (F,) trial of each fragment.
        group: (F,) group of each fragment, -1 = none.
        scale: "std" or "none".
        **options: of `normalise`.

    Returns:
        (F,) advantages. Fragment ends inside a trial are no terminations.

    Raises:
        ValueError: wrong shapes or ids.

    Source: SUPO, summarisation-augmented policy optimisation (abstract; reconstruction).
    """
    require_option("scale", scale, ["std", "none"])
    return normalise_units(score, group, trial, scale=scale, **options)[0]
