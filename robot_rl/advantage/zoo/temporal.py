"""Temporal estimators beside GAE: Monte Carlo, n-step, V-trace, UPGO, Retrace and their relatives.

Every function takes rows with time on axis 0, flat (rows,) or time-major (T, N), NumPy arrays or torch tensors, and
returns (advantage, return) of the same kind, the return being the target of the value function. Arguments with the same
name mean the same everywhere:

    reward: r_t; with durations the discounted sum over the ticks of the row (`macro_reward`).
    value: V(s_t) before the step.
    next_value: V of the true successor before any reset; read only at boundaries.
    terminated: bool, true end.
    boundary: bool, terminated, truncated or last row of a fragment.
    gamma: discount per tick; duration: ticks k per row; discount: used in place of gamma^k.
    valid: bool, False on padding, whose outputs are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from robot_rl.advantage.arrays import check_shapes, check_unit, same_kind
from robot_rl.advantage.rows import PreparedRows, cast, check_float, rows, shift, zero
from robot_rl.advantage.scan import solve

LOG_RATIO_LIMIT = 20.0  # |log pi - log mu| beyond this is cut before exp


@same_kind
def monte_carlo(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    boundary: Any,
    *,
    gamma: float = 0.99,
    duration: Any = None,
    discount: Any = None,
    bootstrap: bool = True,
    valid: Any = None,
) -> tuple[Any, Any]:
    """Return to the end of the episode, bootstrapped where the episode was only cut.

    G_t = r_t + g_t [(1 - b_t) G_{t+1} + b_t (1 - e_t) V'_t]; A = G - V, or G without a critic (`value` None).

    Args:
        bootstrap: False drops the value at the cut (REINFORCE convention, biased at truncation).
        reward, value, next_value, terminated, boundary, gamma, duration, discount, valid: see the module.

    Returns:
        (advantage, return).

    Raises:
        ValueError: shapes, dtype or numbers outside their range.
    """
    ready = rows(
        reward, value, next_value, terminated, boundary, gamma=gamma, duration=duration, discount=discount, valid=valid
    )
    x = ready.reward * 1  # the scan uses up its arguments
    if bootstrap:
        x = x + ready.xp.where(ready.boundary, ready.g * ready.ahead, zero(x))
    target = solve(x, ready.inside(_like(ready)))
    return _pair(ready, target - ready.value, target)


@same_kind
def n_step(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    boundary: Any,
    *,
    n: int | None = None,
    n_ticks: int | None = None,
    gamma: float = 0.99,
    duration: Any = None,
    discount: Any = None,
    valid: Any = None,
) -> tuple[Any, Any]:
    """n rewards, then the value: a window of n decisions, or of as many decisions as make up n ticks.

    G_t = sum_{i<m} (prod_{j<i} g_{t+j}) r_{t+i} + (prod_{j<m} g_{t+j}) (1 - e) V' of row t+m-1, m being the window cut
    at the boundary; A = G - V.

    Args:
        n: decisions per window, at least 1.
        n_ticks: alternative: the window ends with the first decision at which the durations add up to this.
        reward, value, next_value, terminated, boundary, gamma, duration, discount, valid: see the module.

    Returns:
        (advantage, return).

    Raises:
        ValueError: not exactly one of `n` and `n_ticks`, or one below 1.

    Source: Sutton and Barto, Reinforcement Learning, eq. 7.1.
    """
    window = n if n is not None else n_ticks
    if (n is None) == (n_ticks is None) or window is None or window < 1:
        raise ValueError(f"n is {n} and n_ticks is {n_ticks}, expected exactly one of them, at least 1")
    ready = rows(
        reward, value, next_value, terminated, boundary, gamma=gamma, duration=duration, discount=discount, valid=valid
    )
    one = ready.reward + ready.g * ready.ahead
    if n_ticks is not None:
        target = _tick_window(ready, one, n_ticks, duration)
    elif window >= reward.shape[0]:
        x = ready.xp.where(ready.boundary, one, ready.reward)
        target = solve(x, ready.inside(_like(ready)))
    else:
        target = one
        for _ in range(window - 1):
            target = ready.xp.where(ready.boundary, one, ready.reward + ready.g * ready.following(target))
    return _pair(ready, target - ready.value, target)


def _tick_window(ready: PreparedRows, one: Any, n_ticks: int, duration: Any) -> Any:
    """Windows of a given number of ticks: row by row, until every window is full (at most n_ticks passes)."""
    xp = ready.xp
    ticks = xp.ones_like(ready.reward) if duration is None else cast(duration, ready.reward.dtype)
    g = _like(ready)
    # The row that is i ahead, brought here by i shifts; behind a boundary nothing is read any more.
    ahead_one, ahead_reward, ahead_g, ahead_ticks, ahead_end = one, ready.reward, g, ticks, ready.boundary
    total, weight, passed = xp.zeros_like(one), xp.ones_like(one), xp.zeros_like(one)
    open_ = xp.ones_like(ready.boundary)
    for _ in range(min(n_ticks, one.shape[0])):
        passed = passed + ahead_ticks
        stops = open_ & (ahead_end | (passed >= n_ticks))
        total = xp.where(open_, total + weight * xp.where(stops, ahead_one, ahead_reward), total)
        open_ = open_ & ~stops
        weight = weight * ahead_g
        ahead_one, ahead_reward, ahead_g, ahead_ticks = (
            shift(xp, y) for y in (ahead_one, ahead_reward, ahead_g, ahead_ticks)
        )
        ahead_end = shift(xp, ahead_end)
    return total


@same_kind
def vtrace(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    boundary: Any,
    log_ratio: Any,
    *,
    gamma: float = 0.99,
    trace_decay: float = 1.0,
    rho_max: float = 1.0,
    c_max: float = 1.0,
    rho_policy_max: float = 1.0,
    duration: Any = None,
    discount: Any = None,
    valid: Any = None,
) -> tuple[Any, Any]:
    """V-trace: off-policy value targets with clipped importance weights, and the policy's advantage.

    w = pi/mu of the decision; rho = min(rho_max, w), c = trace_decay min(c_max, w);
    v_t = V_t + rho_t delta_t + g_t c_t (1 - b_t) (v_{t+1} - V_{t+1}); the advantage is
    min(rho_policy_max, w_t) (r_t + g_t v'_t - V_t), with v' = v_{t+1} inside and (1 - e) V' of the same
    episode at its end.

    Args:
        log_ratio: log pi - log mu of each row, summed over the steps of a decision; cut at +-20.
        trace_decay: lambda.
        rho_max, c_max, rho_policy_max: caps of the weights.
        reward, value, next_value, terminated, boundary, gamma, duration, discount, valid: see the module.

    Returns:
        (advantage, return), the return being v.

    Raises:
        ValueError: shapes, dtype or numbers outside their range.

    Source: Espeholt et al., IMPALA, eq. 1 and section 4.2.
    """
    check_unit(trace_decay=trace_decay)
    ready = rows(
        reward,
        value,
        next_value,
        terminated,
        boundary,
        gamma=gamma,
        trace=trace_decay,
        duration=duration,
        discount=discount,
        valid=valid,
    )
    weight = _weight(ready, log_ratio)
    delta = ready.reward + ready.g * ready.ahead - ready.value
    trace = ready.inside(ready.g * trace_decay * weight.clip(max=c_max))
    target = ready.value + solve(weight.clip(max=rho_max) * delta, trace)
    ahead = ready.xp.where(ready.boundary, ready.ahead, ready.following(target))
    advantage = weight.clip(max=rho_policy_max) * (ready.reward + ready.g * ahead - ready.value)
    return _pair(ready, advantage, target)


@same_kind
def upgo(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    boundary: Any,
    log_ratio: Any = None,
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    rho_max: float = 1.0,
    duration: Any = None,
    discount: Any = None,
    valid: Any = None,
) -> tuple[Any, Any]:
    """UPGO: follow the trajectory as long as it does better than the critic expected, then bootstrap.

    u_t = [r_t + g_t (1 - e_t) V'_t >= V_t]; G_t = r_t + g_t G_{t+1} if row t+1 exists and u_{t+1}, else
    r_t + g_t (1 - e_t) V'_t. The advantage is min(rho_max, w) (G - V); the value target stays the TD(lambda) return.

    Args:
        log_ratio: log pi - log mu, or None for on-policy data.
        gae_lambda: trace decay of the value target.
        rho_max: cap of the weight.
        reward, value, next_value, terminated, boundary, gamma, duration, discount, valid: see the module.

    Returns:
        (advantage, return).

    Raises:
        ValueError: shapes, dtype or numbers outside their range.

    Source: Vinyals et al., Grandmaster level in StarCraft II, supplementary, upgoing policy update.
    """
    check_unit(gae_lambda=gae_lambda)
    ready = rows(
        reward, value, next_value, terminated, boundary, gamma=gamma, duration=duration, discount=discount, valid=valid
    )
    one = ready.reward + ready.g * ready.ahead
    follows = shift(ready.xp, one >= ready.value) & ~ready.boundary
    trace = ready.xp.where(follows, _like(ready), zero(one))
    gain = solve(ready.xp.where(follows, ready.reward, one), trace) - ready.value
    if log_ratio is not None:
        gain = gain * _weight(ready, log_ratio).clip(max=rho_max)
    errors = solve(one - ready.value, ready.inside(ready.g * gae_lambda))
    return _pair(ready, gain, ready.value + errors)


@same_kind
def retrace(
    reward: Any,
    q: Any,
    next_expected_q: Any,
    terminated: Any,
    boundary: Any,
    log_ratio: Any = None,
    *,
    probability: Any = None,
    expected_q: Any = None,
    trace_decay: float = 1.0,
    gamma: float = 0.99,
    duration: Any = None,
    discount: Any = None,
    valid: Any = None,
) -> tuple[Any, Any]:
    """Off-policy targets of Q: Retrace, tree backup or Peng's Q(lambda), depending on the trace given.

    Q_ret_t = r_t + g_t (1 - e_t) E_pi Q(s'_t) + g_t (1 - b_t) c_{t+1} (Q_ret_{t+1} - Q(s_{t+1}, a_{t+1})), with
    c = trace_decay min(1, w) (Retrace, `log_ratio` given), trace_decay pi(a|s) (tree backup, `probability` given), or
    trace_decay (Peng, neither given).

    Args:
        q: Q(s_t, a_t) of the taken action.
        next_expected_q: E_pi Q(s'_t, .) of the true successor, read in every row.
        log_ratio: log pi - log mu of the taken action.
        probability: pi(a_t | s_t) of the taken action.
        expected_q: E_pi Q(s_t, .), the baseline of the advantage; None = q.
        trace_decay: lambda.
        reward, terminated, boundary, gamma, duration, discount, valid: see the module.

    Returns:
        (advantage, return): Q_ret - E_pi Q (or Q_ret - Q), and Q_ret.

    Raises:
        ValueError: both traces given; shapes, dtype or numbers outside their range.

    Source: Munos et al., Safe and Efficient Off-Policy Reinforcement Learning, eq. 4 and table 1.
    """
    if log_ratio is not None and probability is not None:
        raise ValueError("log_ratio (Retrace) and probability (tree backup) are both given, expected at most one")
    check_shapes(tuple(reward.shape), q=q, next_expected_q=next_expected_q, expected_q=expected_q)
    ready = rows(
        reward,
        q,
        next_expected_q,
        terminated,
        boundary,
        gamma=gamma,
        trace=trace_decay,
        duration=duration,
        discount=discount,
        valid=valid,
    )
    xp = ready.xp
    ended = flags_or(xp, terminated, valid)
    ahead = xp.where(ended, zero(ready.reward), cast(next_expected_q, ready.reward.dtype))
    if log_ratio is not None:
        c = trace_decay * _weight(ready, log_ratio).clip(max=1.0)
    elif probability is not None:
        c = trace_decay * cast(probability, ready.reward.dtype)
    else:
        c = xp.full_like(ready.reward, trace_decay)
    trace = ready.inside(ready.g * ready.following(c))
    target = ready.value + solve(ready.reward + ready.g * ahead - ready.value, trace)
    baseline = ready.value if expected_q is None else cast(expected_q, target.dtype)
    return _pair(ready, target - baseline, target)


def flags_or(xp: Any, terminated: Any, valid: Any) -> Any:
    """PreparedRows without a successor: terminated ones and padding."""
    ended = cast(terminated, xp.bool if xp is torch else np.bool_)
    return ended if valid is None else ended | ~cast(valid, ended.dtype)


def _like(ready: PreparedRows) -> Any:
    """The discounts as an array."""
    return ready.xp.full_like(ready.reward, ready.g) if isinstance(ready.g, float) else ready.g


def _weight(ready: PreparedRows, log_ratio: Any) -> Any:
    check_float(log_ratio, "log_ratio")
    check_shapes(tuple(ready.reward.shape), log_ratio=log_ratio)
    if ready.valid is not None:
        log_ratio = ready.xp.where(ready.valid, log_ratio, zero(log_ratio))
    bounded = log_ratio.clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return cast(ready.xp.exp(bounded), ready.reward.dtype)


def _pair(ready: PreparedRows, advantage: Any, target: Any) -> tuple[Any, Any]:
    advantage, target = ready.finish(advantage, target)
    return advantage, target
