"""HAE: separate credit for actions inside an option, for the choice of options, and for switching between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from robot_rl.advantage.arrays import Columns, check_shapes, check_unit, same_kind
from robot_rl.advantage.gae import rollout_gae
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.rows import RolloutRows, check_float, imprecise, shift
from robot_rl.advantage.scan import solve
from robot_rl.advantage.turns import _flat

SWITCH_MODES = ("release", "paper")


class HierarchicalCredit(NamedTuple):
    """Result of `hae`, every array in the layout of the rows that went in.

    Attributes:
        low: advantage of action tokens or low-level actions.
        high: advantage of sub-goal tokens or option choices, in the first row of each segment, 0 elsewhere.
        switch: advantage of the switch decision.
        low_target, high_target, switch_target: value targets of V_lo, V_hi (first rows of segments) and V_term.
        high_weight: 1 in the first row of each segment, else 0: rows in which `high` and `high_target` count.
    """

    low: Array
    high: Array
    switch: Array
    low_target: Array
    high_target: Array
    switch_target: Array
    high_weight: Array


@dataclass(frozen=True)
class OptionRows(Columns):
    """What `hae` reads of a rollout under options: arrays of one shape, (rows,) flat or (T, N) time-major.

    Attributes:
        reward: float32 or float64.
        value_low, value_high, value_switch: V_lo, V_hi, V_term of each row's state; V_hi is read in the first rows of
            segments (in every row with switch_mode "paper").
        next_value_low, next_value_high: of the true successor, read where an episode was cut.
        terminated, boundary: bool, as in `RolloutRows`.
        segment: int; a new segment begins where the id changes or an episode ended; negative = padding.
        running_at_cut: bool, read where an episode was cut: the option goes on, so V_lo continues it; None = False,
            V_hi of the successor is used.
        switched: bool, executed switch q (paper).
        switch_probability: beta (paper).
    """

    reward: Array
    value_low: Array
    value_high: Array
    value_switch: Array
    next_value_low: Array
    next_value_high: Array
    terminated: Array
    boundary: Array
    segment: Array
    running_at_cut: Array | None = None
    switched: Array | None = None
    switch_probability: Array | None = None


@same_kind
def hae(
    rows: OptionRows,
    *,
    gamma: float = 1.0,
    lambda_low: float = 1.0,
    lambda_high: float = 0.95,
    switch_mode: str = "release",
    release_bootstrap: bool = False,
    norm: bool = False,
) -> HierarchicalCredit:
    """Hierarchical advantages over option periods (segments).

    Low: delta_t = r_t + gamma v_t - V_lo(s_t) with v = V_lo(s_{t+1}) inside, V_hi(s_{t+1}) at the end of a segment, 0
    after termination; traces end with the segment. High: GAE over segments with R = sum gamma^j r and discount
    gamma^length. Switch: Y_t - V_term(s_t), Y the reward to the end of the segment plus V_hi there; or, in the paper's
    form, (q_t - beta_t) (V_hi - V_lo).

    Args:
        rows: the rollout.
        gamma: discount per row.
        lambda_low, lambda_high: trace decays of rows and of segments.
        switch_mode: "release" or "paper".
        release_bootstrap: bootstrap a cut episode from the current V_lo(s_t) and V_hi(segment start), as released.
        norm: normalise each of the three over its own rows (biased deviation, eps 1e-8).

    Returns:
        Advantages, targets and weights.

    Raises:
        ValueError: shapes, numbers or options that do not fit.

    Source: HiPER, hierarchical advantage estimation; release: three heads, paper: two and its own switch form.
    """
    check_unit(gamma=gamma, lambda_low=lambda_low, lambda_high=lambda_high)
    if switch_mode not in SWITCH_MODES:
        raise ValueError(f"switch_mode is '{switch_mode}', expected one of {', '.join(SWITCH_MODES)}")
    q, beta = rows.switched, rows.switch_probability
    if switch_mode == "paper" and (q is None or beta is None):
        raise ValueError("switch_mode 'paper' needs switched and switch_probability, got None")
    check_shapes(tuple(rows.reward.shape), switched=q, switch_probability=beta)
    index, columns = _flat(
        RolloutRows(rows.reward, rows.value_low, rows.next_value_low, rows.terminated, rows.boundary),
        rows.segment,
        high=rows.value_high,
        term=rows.value_switch,
        next_high=rows.next_value_high,
        running=rows.running_at_cut,
    )
    kind = check_float(rows.reward)
    end = index.end
    wide = torch.float64 if imprecise(gamma) or imprecise(gamma * lambda_low) else kind
    v_low, v_high, done = columns["value"].to(wide), columns["high"], columns["terminated"].bool()
    # What follows each segment: the next option's value, or that of the successor where the episode was cut.
    start_high = v_high[index.start].to(wide)
    cut = columns["next_high"][end]
    if columns["running"] is not None:
        cut = torch.where(columns["running"].bool()[end], columns["next_value"][end], cut)
    beyond = v_low[end] if release_bootstrap else cut.to(wide)
    beyond = torch.where(done[end], 0.0, beyond)
    beyond = torch.where(index.last, beyond, shift(start_high))
    given = index.rows(rows.reward).to(wide)
    delta = given + gamma * shift(v_low).index_copy(0, end, beyond) - v_low
    nothing = torch.zeros_like(beyond)
    low = solve(delta, torch.full_like(v_low, gamma * lambda_low).index_copy(0, end, nothing))
    gain = given.index_copy(0, end, given[end] + gamma * beyond)
    target = solve(gain, torch.full_like(v_low, gamma).index_copy(0, end, nothing))
    total, length = index.reward(rows.reward, gamma, None, None)
    start_high = v_high[index.start]
    above = RolloutRows(
        total, start_high, start_high if release_bootstrap else cut, done[end], index.last, duration=length
    )
    high, high_target = rollout_gae(above, gamma=gamma, gae_lambda=lambda_high)
    if q is not None and beta is not None and switch_mode == "paper":
        chosen = index.rows(q).to(kind) - index.rows(beta)
        switch = chosen * (v_high - columns["value"])
    else:
        switch = target - columns["term"]
    low_target = low + v_low
    if norm:
        low, high, switch = (_standardise(y) for y in (low, high, switch))
    spread = [
        torch.zeros_like(columns["value"]).index_copy(0, index.start, part.to(kind))
        for part in (high, high_target, torch.ones_like(high))
    ]
    results = (low, spread[0], switch, low_target, spread[1], target, spread[2])
    return HierarchicalCredit(*(index.back(y.to(kind)) for y in results))


def hae_auxiliary(
    keep: Array,
    episode_id: Array,
    *,
    inconsistent: Array | None = None,
    invalid_format: Array | None = None,
    keep_penalty: float = -0.3,
    consistency_penalty: float = -0.3,
    format_penalty: float = -0.1,
) -> np.ndarray:
    """Auxiliary turn rewards of the HiPER release: against keeping a sub-goal for ever, contradictions, bad format.

    An episode of m turns with n kept sub-goals shares keep_penalty n / m among them, so each kept turn gets
    keep_penalty / m.

    Args:
        keep: (U,) bool, the sub-goal was kept at this turn.
        episode_id: (U,) dense int.
        inconsistent: (U,) bool, the turn contradicts its sub-goal, or None.
        invalid_format: (U,) bool, or None.
        keep_penalty, consistency_penalty, format_penalty: rewards, not positive.

    Returns:
        (U,) float64 to add to the turn rewards.

    Source: HiPER release, reward terms.
    """
    keep, episode_id = np.asarray(keep, np.bool_), np.asarray(episode_id)
    turns = np.bincount(episode_id)[episode_id]
    out = np.where(keep, keep_penalty / turns, 0.0)
    if inconsistent is not None:
        out = out + consistency_penalty * np.asarray(inconsistent, np.float64)
    if invalid_format is not None:
        out = out + format_penalty * np.asarray(invalid_format, np.float64)
    return out


def _standardise(x: Array) -> Array:
    centred = x - x.mean()
    return centred / (torch.sqrt((centred * centred).mean()) + 1e-8)
