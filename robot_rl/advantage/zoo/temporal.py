"""Temporal estimators beside GAE: Monte Carlo, n-step, V-trace, UPGO, Retrace and their relatives.

Every function takes rows with time on axis 0, flat (rows,) or time-major (T, N), NumPy arrays or torch tensors, and
returns (advantage, return) of the same kind, the return being the target of the value function. In every one of them
`rows` is the rollout (`RolloutRows`) and `gamma` the discount per tick.
"""

from __future__ import annotations

import torch

from robot_rl.advantage.arrays import check_shapes, check_unit, same_kind
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.rows import PreparedRows, RolloutRows, check_float, prepare, shift
from robot_rl.advantage.scan import solve

LOG_RATIO_LIMIT = 20.0  # |log pi - log mu| beyond this is cut before exp


@same_kind
def monte_carlo(
    rows: RolloutRows,
    *,
    gamma: float = 0.99,
    bootstrap: bool = True,
) -> tuple[Array, Array]:
    """Return to the end of the episode, bootstrapped where the episode was only cut.

    G_t = r_t + g_t [(1 - b_t) G_{t+1} + b_t (1 - e_t) V'_t]; A = G - V, or G without a critic (`value` None).

    Args:
        bootstrap: False drops the value at the cut (REINFORCE convention, biased at truncation).
        rows, gamma: see the module.

    Returns:
        (advantage, return).

    Raises:
        ValueError: shapes, dtype or numbers outside their range.
    """
    ready = prepare(rows, gamma=gamma)
    x = ready.reward * 1  # the scan uses up its arguments
    if bootstrap:
        x = x + torch.where(ready.boundary, ready.g * ready.ahead, 0.0)
    target = solve(x, ready.inside(_like(ready)))
    return ready.finish(target - ready.value, target)


@same_kind
def n_step(
    rows: RolloutRows,
    *,
    n: int | None = None,
    n_ticks: int | None = None,
    gamma: float = 0.99,
) -> tuple[Array, Array]:
    """n rewards, then the value: a window of n decisions, or of as many decisions as make up n ticks.

    G_t = sum_{i<m} (prod_{j<i} g_{t+j}) r_{t+i} + (prod_{j<m} g_{t+j}) (1 - e) V' of row t+m-1, m being the window cut
    at the boundary; A = G - V.

    Args:
        n: decisions per window, at least 1.
        n_ticks: alternative: the window ends with the first decision at which the durations add up to this.
        rows, gamma: see the module.

    Returns:
        (advantage, return).

    Raises:
        ValueError: not exactly one of `n` and `n_ticks`, or one below 1.

    Source: Sutton and Barto, Reinforcement Learning, eq. 7.1.
    """
    window = n if n is not None else n_ticks
    if (n is None) == (n_ticks is None) or window is None or window < 1:
        raise ValueError(f"n is {n} and n_ticks is {n_ticks}, expected exactly one of them, at least 1")
    ready = prepare(rows, gamma=gamma)
    one = ready.reward + ready.g * ready.ahead
    if n_ticks is not None:
        target = _tick_window(ready, one, n_ticks, rows.duration)
    elif window >= rows.reward.shape[0]:
        x = torch.where(ready.boundary, one, ready.reward)
        target = solve(x, ready.inside(_like(ready)))
    else:
        target = one
        for _ in range(window - 1):
            target = torch.where(ready.boundary, one, ready.reward + ready.g * shift(target))
    return ready.finish(target - ready.value, target)


def _tick_window(ready: PreparedRows, one: Array, n_ticks: int, duration: Array | None) -> Array:
    """Windows of a given number of ticks: row by row, until every window is full (at most n_ticks passes)."""
    ticks = torch.ones_like(ready.reward) if duration is None else duration.to(ready.reward.dtype)
    g = _like(ready)
    # The row that is i ahead, brought here by i shifts; behind a boundary nothing is read any more.
    ahead_one, ahead_reward, ahead_g, ahead_ticks, ahead_end = one, ready.reward, g, ticks, ready.boundary
    total, weight, passed = torch.zeros_like(one), torch.ones_like(one), torch.zeros_like(one)
    open_ = torch.ones_like(ready.boundary)
    for _ in range(min(n_ticks, one.shape[0])):
        passed = passed + ahead_ticks
        stops = open_ & (ahead_end | (passed >= n_ticks))
        total = torch.where(open_, total + weight * torch.where(stops, ahead_one, ahead_reward), total)
        open_ = open_ & ~stops
        weight = weight * ahead_g
        ahead_one, ahead_reward, ahead_g, ahead_ticks = (
            shift(y) for y in (ahead_one, ahead_reward, ahead_g, ahead_ticks)
        )
        ahead_end = shift(ahead_end)
    return total


@same_kind
def vtrace(
    rows: RolloutRows,
    log_ratio: Array,
    *,
    gamma: float = 0.99,
    trace_decay: float = 1.0,
    rho_max: float = 1.0,
    c_max: float = 1.0,
    rho_policy_max: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace: off-policy value targets with clipped importance weights, and the policy's advantage.

    w = pi/mu of the decision; rho = min(rho_max, w), c = trace_decay min(c_max, w);
    v_t = V_t + rho_t delta_t + g_t c_t (1 - b_t) (v_{t+1} - V_{t+1}); the advantage is
    min(rho_policy_max, w_t) (r_t + g_t v'_t - V_t), with v' = v_{t+1} inside and (1 - e) V' of the same
    episode at its end.

    Args:
        log_ratio: log pi - log mu of each row, summed over the steps of a decision; cut at +-20.
        trace_decay: lambda.
        rho_max, c_max, rho_policy_max: caps of the weights.
        rows, gamma: see the module.

    Returns:
        (advantage, return), the return being v.

    Raises:
        ValueError: shapes, dtype or numbers outside their range.

    Source: Espeholt et al., IMPALA, eq. 1 and section 4.2.
    """
    check_unit(trace_decay=trace_decay)
    ready = prepare(rows, gamma=gamma, trace=trace_decay)
    weight = _weight(ready, log_ratio)
    delta = ready.reward + ready.g * ready.ahead - ready.value
    trace = ready.inside(ready.g * trace_decay * weight.clip(max=c_max))
    target = ready.value + solve(weight.clip(max=rho_max) * delta, trace)
    ahead = torch.where(ready.boundary, ready.ahead, shift(target))
    advantage = weight.clip(max=rho_policy_max) * (ready.reward + ready.g * ahead - ready.value)
    return ready.finish(advantage, target)


@same_kind
def upgo(
    rows: RolloutRows,
    log_ratio: Array | None = None,
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    rho_max: float = 1.0,
) -> tuple[Array, Array]:
    """UPGO: follow the trajectory as long as it does better than the critic expected, then bootstrap.

    u_t = [r_t + g_t (1 - e_t) V'_t >= V_t]; G_t = r_t + g_t G_{t+1} if row t+1 exists and u_{t+1}, else
    r_t + g_t (1 - e_t) V'_t. The advantage is min(rho_max, w) (G - V); the value target stays the TD(lambda) return.

    Args:
        log_ratio: log pi - log mu, or None for on-policy data.
        gae_lambda: trace decay of the value target.
        rho_max: cap of the weight.
        rows, gamma: see the module.

    Returns:
        (advantage, return).

    Raises:
        ValueError: shapes, dtype or numbers outside their range.

    Source: Vinyals et al., Grandmaster level in StarCraft II, supplementary, upgoing policy update.
    """
    check_unit(gae_lambda=gae_lambda)
    ready = prepare(rows, gamma=gamma)
    one = ready.reward + ready.g * ready.ahead
    follows = shift(one >= ready.value) & ~ready.boundary
    trace = torch.where(follows, _like(ready), 0.0)
    gain = solve(torch.where(follows, ready.reward, one), trace) - ready.value
    if log_ratio is not None:
        gain = gain * _weight(ready, log_ratio).clip(max=rho_max)
    errors = solve(one - ready.value, ready.inside(ready.g * gae_lambda))
    return ready.finish(gain, ready.value + errors)


@same_kind
def retrace(
    rows: RolloutRows,
    log_ratio: Array | None = None,
    *,
    probability: Array | None = None,
    expected_q: Array | None = None,
    trace_decay: float = 1.0,
    gamma: float = 0.99,
) -> tuple[Array, Array]:
    """Off-policy targets of Q: Retrace, tree backup or Peng's Q(lambda), depending on the trace given.

    Q_ret_t = r_t + g_t (1 - e_t) E_pi Q(s'_t) + g_t (1 - b_t) c_{t+1} (Q_ret_{t+1} - Q(s_{t+1}, a_{t+1})), with
    c = trace_decay min(1, w) (Retrace, `log_ratio` given), trace_decay pi(a|s) (tree backup, `probability` given), or
    trace_decay (Peng, neither given).

    Args:
        rows: the rollout; `value` is Q(s_t, a_t) of the taken action, `next_value` is E_pi Q(s'_t, .) of the true
            successor, read in every row.
        log_ratio: log pi - log mu of the taken action.
        probability: pi(a_t | s_t) of the taken action.
        expected_q: E_pi Q(s_t, .), the baseline of the advantage; None = Q(s_t, a_t).
        trace_decay: lambda.
        gamma: see the module.

    Returns:
        (advantage, return): Q_ret - E_pi Q (or Q_ret - Q), and Q_ret.

    Raises:
        ValueError: both traces given; shapes, dtype or numbers outside their range.

    Source: Munos et al., Safe and Efficient Off-Policy Reinforcement Learning, eq. 4 and table 1.
    """
    if log_ratio is not None and probability is not None:
        raise ValueError("log_ratio (Retrace) and probability (tree backup) are both given, expected at most one")
    check_shapes(tuple(rows.reward.shape), expected_q=expected_q)
    ready = prepare(rows, gamma=gamma, trace=trace_decay)
    if rows.next_value is None:
        raise ValueError("next_value is None, expected E_pi Q of the true successor in every row")
    ended = rows.terminated if rows.valid is None else torch.logical_or(rows.terminated, ~rows.valid.bool())
    ahead = torch.where(ended.bool(), 0.0, rows.next_value.to(ready.reward.dtype))
    if log_ratio is not None:
        c = trace_decay * _weight(ready, log_ratio).clip(max=1.0)
    elif probability is not None:
        c = trace_decay * probability.to(ready.reward.dtype)
    else:
        c = torch.full_like(ready.reward, trace_decay)
    trace = ready.inside(ready.g * shift(c))
    target = ready.value + solve(ready.reward + ready.g * ahead - ready.value, trace)
    baseline = ready.value if expected_q is None else expected_q.to(target.dtype)
    return ready.finish(target - baseline, target)


def _like(ready: PreparedRows) -> Array:
    """The discounts as an array."""
    return torch.full_like(ready.reward, ready.g) if isinstance(ready.g, float) else ready.g


def _weight(ready: PreparedRows, log_ratio: Array) -> Array:
    check_float(log_ratio, "log_ratio")
    check_shapes(tuple(ready.reward.shape), log_ratio=log_ratio)
    if ready.valid is not None:
        log_ratio = torch.where(ready.valid, log_ratio, 0.0)
    bounded = log_ratio.clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.exp(bounded).to(ready.reward.dtype)
