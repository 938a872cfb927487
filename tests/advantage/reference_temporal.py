"""Float64 twins of the temporal estimators: plain loops over the definitions, one row after the other.

Flat storage only. `ends` of a row are looked up by walking forward, sums are written out as sums.
"""

import numpy as np


def successors(value, next_value, terminated, boundary):
    """(1 - e) V' of every row."""
    out = np.zeros(len(value))
    for t in range(len(value)):
        last = boundary[t] or terminated[t] or t == len(value) - 1
        out[t] = (0.0 if terminated[t] else next_value[t]) if last else value[t + 1]
    return out


def window(t, boundary):
    """Rows from t to the end of its episode, inclusive."""
    last = t
    while not boundary[last] and last < len(boundary) - 1:
        last += 1
    return range(t, last + 1)


def gae(reward, value, next_value, terminated, boundary, g, trace, cut=None):
    """Sum of discounted one-step errors; g and trace (lambda_t) are arrays."""
    ahead = successors(value, next_value, terminated, boundary)
    delta = reward + g * ahead - value
    out = np.zeros(len(reward))
    for t in range(len(reward)):
        weight = 1.0
        for s in window(t, boundary):
            out[t] += weight * delta[s]
            weight *= g[s] * trace[s]
            if cut is not None and cut[s]:
                break
    return out, out + value


def monte_carlo(reward, value, next_value, terminated, boundary, g, bootstrap=True):
    ahead = successors(value, next_value, terminated, boundary)
    out = np.zeros(len(reward))
    for t in range(len(reward)):
        weight, s = 1.0, t
        for s in window(t, boundary):
            out[t] += weight * reward[s]
            weight *= g[s]
        if bootstrap:
            out[t] += weight * ahead[s]
    return out


def n_step(reward, value, next_value, terminated, boundary, g, k, n=None, n_ticks=None):
    ahead = successors(value, next_value, terminated, boundary)
    out = np.zeros(len(reward))
    for t in range(len(reward)):
        weight, ticks, s = 1.0, 0, t
        for count, s in enumerate(window(t, boundary), start=1):
            out[t] += weight * reward[s]
            weight *= g[s]
            ticks += k[s]
            if count == n or (n_ticks is not None and ticks >= n_ticks):
                break
        out[t] += weight * ahead[s]
    return out


def vtrace(reward, value, next_value, terminated, boundary, g, w, trace_decay, rho_max, c_max, rho_policy_max):
    ahead = successors(value, next_value, terminated, boundary)
    delta = np.minimum(rho_max, w) * (reward + g * ahead - value)
    target = np.array(value, float)
    for t in range(len(reward)):
        weight = 1.0
        for s in window(t, boundary):
            target[t] += weight * delta[s]
            weight *= g[s] * trace_decay * min(c_max, w[s])
    advantage = np.zeros(len(reward))
    for t in range(len(reward)):
        inside = len(window(t, boundary)) > 1
        advantage[t] = min(rho_policy_max, w[t]) * (
            reward[t] + g[t] * (target[t + 1] if inside else ahead[t]) - value[t]
        )
    return advantage, target


def upgo(reward, value, next_value, terminated, boundary, g):
    ahead = successors(value, next_value, terminated, boundary)
    better = reward + g * ahead >= value
    out = np.zeros(len(reward))
    for t in range(len(reward)):
        weight, s = 1.0, t
        for s in window(t, boundary):
            out[t] += weight * reward[s]
            weight *= g[s]
            if boundary[s] or s == len(reward) - 1 or not better[s + 1]:
                break
        out[t] += weight * ahead[s]
    return out


def retrace(reward, q, next_expected_q, terminated, boundary, g, c):
    delta = reward + g * np.where(terminated, 0.0, next_expected_q) - q
    out = np.array(q, float)
    for t in range(len(reward)):
        weight = 1.0
        for s in window(t, boundary):
            if s > t:
                weight *= g[s - 1] * c[s]
            out[t] += weight * delta[s]
    return out


def turn_rows(turn, boundary):
    """Lists of rows of each turn in order."""
    turns = []
    for t, i in enumerate(turn):
        if t == 0 or i != turn[t - 1] or boundary[t - 1]:
            turns.append([])
        turns[-1].append(t)
    return turns


def turn_level(reward, value, next_value, terminated, boundary, turn, *, gamma, lam, inner, anchor, k=None, extra=None):
    """Turn-level advantage and target per turn; k given = discount per tick."""
    groups = turn_rows(turn, boundary)
    pick = 0 if anchor == "start" else -1
    ticks = np.ones(len(reward), int) if k is None else k
    total, duration = [], []
    for u, rows in enumerate(groups):
        passed, amount = 0, 0.0
        for t in rows:
            amount += inner**passed * reward[t]
            passed += ticks[t]
        total.append(amount + (0.0 if extra is None else extra[u]))
        duration.append(1 if k is None else passed)
    ends = [rows[-1] for rows in groups]
    g = gamma ** np.array(duration, float)
    return gae(
        np.array(total),
        value[[rows[pick] for rows in groups]],
        next_value[ends],
        terminated[ends],
        boundary[ends],
        g,
        np.full(len(groups), lam),
    )


def bilevel(reward, value, next_value, terminated, boundary, turn, *, gamma, lam, inner, inner_lam, step=None):
    high, _ = turn_level(
        reward, value, next_value, terminated, boundary, turn, gamma=gamma, lam=lam, inner=1.0, anchor="end"
    )
    out = np.zeros(len(reward))
    for u, rows in enumerate(turn_rows(turn, boundary)):
        out[rows[-1]] = high[u]
        for t in reversed(rows[:-1]):
            delta = (0.0 if step is None else step[t]) + inner * value[t + 1] - value[t]
            out[t] = delta + inner * inner_lam * out[t + 1]
    return out


def hierarchical(reward, low, high, term, next_low, next_high, terminated, boundary, segment, running, **numbers):
    gamma, lam_low, lam_high = (numbers[name] for name in ("gamma", "lambda_low", "lambda_high"))
    groups = turn_rows(segment, boundary)
    n = len(reward)
    a_low, a_high, target = np.zeros(n), np.zeros(n), np.zeros(n)
    after_segment = np.zeros(n)
    for rows in groups:
        z = rows[-1]
        if boundary[z] or z == n - 1:
            after_segment[z] = 0.0 if terminated[z] else (next_low[z] if running[z] else next_high[z])
        else:
            after_segment[z] = high[z + 1]
        for t in reversed(rows):
            if t == z:
                a_low[t] = reward[t] + gamma * after_segment[t] - low[t]
                target[t] = reward[t] + gamma * after_segment[t]
            else:
                a_low[t] = reward[t] + gamma * low[t + 1] - low[t] + gamma * lam_low * a_low[t + 1]
                target[t] = reward[t] + gamma * target[t + 1]
    for i in range(len(groups) - 1, -1, -1):
        rows = groups[i]
        length, z = len(rows), rows[-1]
        amount = sum(gamma**j * reward[t] for j, t in enumerate(rows))
        a = amount + gamma**length * after_segment[z] - high[rows[0]]
        if not (boundary[z] or z == n - 1):
            a += gamma**length * lam_high * a_high[groups[i + 1][0]]
        a_high[rows[0]] = a
    return a_low, a_high, target - term, target
