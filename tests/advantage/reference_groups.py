"""Slow twins of the group code: plain loops over Python lists, float64, written from the formulas."""

import math

NAN = float("nan")


def mean(values):
    return sum(values) / len(values)


def std(values, ddof=1):
    return math.sqrt(sum((v - mean(values)) ** 2 for v in values) / (len(values) - ddof))


def cell_members(x, cells):
    """cell -> scorable values; cell -1 is no cell."""
    members = {}
    for value, cell in zip(x, cells):
        if cell != -1 and not math.isnan(value):
            members.setdefault(cell, []).append(value)
    return members


def flat(values, spread):
    return spread <= 1e-6 * max(1.0, max(abs(v) for v in values))


def normalise(x, cells, center="mean", scale="std", min_count=2, ddof=1, eps=1e-6, floor=1e-3, batch_scale=False):
    """One value per row; NaN, small cells and cells without spread give 0."""
    members = cell_members(x, cells)
    everyone = [v for values in members.values() for v in values]
    out = []
    for value, cell in zip(x, cells):
        group = members.get(cell, [])
        if cell == -1 or math.isnan(value) or len(group) < min_count or len(group) < 2:
            out.append(0.0)
            continue
        if flat(group, std(group, ddof)) or (batch_scale and flat(everyone, std(everyone, ddof))):
            out.append(0.0)
            continue
        if center == "leave_one_out":
            others = list(group)
            others.remove(value)
            gap = value - mean(others)
        else:
            gap = value - mean(group)
        if scale == "std":
            gap /= max(std(everyone if batch_scale else group, ddof), floor) + eps
        out.append(gap)
    return out


def whiten(x, use):
    values = [v for v, u in zip(x, use) if u]
    if len(values) < 2 or flat([mean([v * v for v in values]) ** 0.5], std(values)):
        return [0.0] * len(x)
    return [(v - mean(values)) / (std(values) + 1e-8) if u else 0.0 for v, u in zip(x, use)]


def returns(reward, episode, gamma):
    """Discounted sum of the later rewards of the same episode, term by term; NaN anywhere makes all of them NaN."""
    out = []
    for t, e in enumerate(episode):
        rows = [s for s in range(len(episode)) if episode[s] == e]
        if any(math.isnan(reward[s]) for s in rows):
            out.append(NAN)
        else:
            later = [s for s in rows if s >= t]
            out.append(sum(gamma**i * reward[s] for i, s in enumerate(later)))
    return out


def position(episode):
    return [sum(1 for s in range(t) if episode[s] == e) for t, e in enumerate(episode)]


def trloo(reward, episode, group, gamma):
    value = returns(reward, episode, gamma)
    cells = [(group[e], p) if group[e] != -1 else -1 for e, p in zip(episode, position(episode))]
    return normalise(value, cells, "leave_one_out", "none")


def trloo_absent(reward, episode, group, gamma):
    """Episodes that ended earlier count with return 0."""
    value, where = returns(reward, episode, gamma), position(episode)
    out = []
    for value_t, e, p in zip(value, episode, where):
        if math.isnan(value_t) or group[e] == -1:
            out.append(0.0)
            continue
        others = []
        for f in sorted(set(episode)):
            if f == e or group[f] != group[e]:
                continue
            rows = [s for s in range(len(episode)) if episode[s] == f]
            if math.isnan(value[rows[0]]):
                continue
            others.append(value[rows[p]] if p < len(rows) else 0.0)
        out.append(value_t - mean(others) if others else 0.0)
    return out


def gigpo(reward, episode, group, anchor, gamma, omega, scale):
    value = returns(reward, episode, gamma)
    episodes = sorted(set(range(len(group))))
    score = [
        NAN
        if any(math.isnan(r) for r, e in zip(reward, episode) if e == i)
        else sum(r for r, e in zip(reward, episode) if e == i)
        for i in episodes
    ]
    outer = normalise(score, group, "mean", scale)
    cells = [(group[e], a) if group[e] != -1 and a != 0 else -1 for e, a in zip(episode, anchor)]
    inner = normalise(value, cells, "mean", scale)
    return [outer[e] + omega * i for e, i in zip(episode, inner)]


def mapo(reward, episode, group, gamma, alpha):
    value = returns(reward, episode, gamma)
    cells = [(group[e], p) if group[e] != -1 else -1 for e, p in zip(episode, position(episode))]
    turn = normalise(value, cells)
    known = [NAN if math.isnan(v) else r for r, v in zip(reward, value)]
    batch = normalise(known, [0 if group[e] != -1 else -1 for e in episode])
    return [alpha * t + (1 - alpha) * b for t, b in zip(turn, batch)]


def cm2(reward, episode, group, min_members):
    bad = {e for r, e in zip(reward, episode) if math.isnan(r)}
    known = [NAN if e in bad else r for r, e in zip(reward, episode)]
    cells = [(group[e], p) if group[e] != -1 else -1 for e, p in zip(episode, position(episode))]
    return normalise(known, cells, "mean", "none", min_count=min_members)


def ui_s1(reward, match, episode, group, gamma, on_scores, keep_std):
    n = len(reward)
    value = [0.0] * n
    for t in reversed(range(n)):
        goes_on = t + 1 < n and episode[t + 1] == episode[t] and match[t] and match[t + 1]
        value[t] = reward[t] + (gamma * value[t + 1] if goes_on else 0.0)
    inner = normalise(value, [(group[e], p) for e, p in zip(episode, position(episode))])
    if on_scores:
        outer = normalise(reward, [group[e] for e in episode])
        members = cell_members(reward, [group[e] for e in episode])
    else:
        total = [sum(r for r, e in zip(reward, episode) if e == i) for i in range(len(group))]
        per_episode = normalise(total, group)
        outer = [per_episode[e] for e in episode]
        members = cell_members(total, group)
    lively = {g: len(v) > 1 and std(v) > keep_std for g, v in members.items()}
    return [(o + i) if lively[group[e]] else 0.0 for o, i, e in zip(outer, inner, episode)]


def agent_wise(score, group, episode, actor, per_episode):
    rows = {}
    for e, a in zip(episode, actor):
        if group[e] == -1 or math.isnan(score[e]):
            continue
        members = rows.setdefault((group[e], a), {})
        members[e] = members.get(e, 0) + 1
    out = []
    for e, a in zip(episode, actor):
        members = rows.get((group[e], a), {})
        values = [score[i] for i, c in members.items() for _ in range(1 if per_episode else c)]
        if group[e] == -1 or math.isnan(score[e]) or len(values) < 2 or flat(values, std(values)):
            out.append(0.0)
        else:
            out.append((score[e] - mean(values)) / (max(std(values), 1e-3) + 1e-6))
    return out


def actor_returns(reward, episode, actor, gamma):
    out = []
    for t in range(len(reward)):
        later = [s for s in range(t, len(reward)) if (episode[s], actor[s]) == (episode[t], actor[t])]
        out.append(sum(gamma**i * reward[s] for i, s in enumerate(later)))
    return out


def igpo(reward, episode, group, gamma, release):
    bad = {e for r, e in zip(reward, episode) if math.isnan(r)}
    known = [NAN if e in bad or group[e] == -1 else r for r, e in zip(reward, episode)]
    if release:
        z = normalise(known, [(group[e], p) for e, p in zip(episode, position(episode))], "mean", "none")
    else:
        z = normalise(known, [group[e] for e in episode])
    out = returns(z, episode, gamma)
    return [0.0 if math.isnan(k) else o for k, o in zip(known, out)]


def role_baseline(score, key, alpha, start):
    """Plain loop over the samples; `start` maps key -> baseline and is updated."""
    out = []
    for value, k in zip(score, key):
        if math.isnan(value):
            out.append(0.0)
            continue
        b = start.get(k, 0.0)
        out.append(value - b)
        start[k] = alpha * b + (1 - alpha) * value
    return out


def row_weights(mask, mode, episode, turn, group, length):
    """Weight of each row by counting; turn -1 is outside any turn."""
    rows = [i for i, m in enumerate(mask) if m]

    def of(ids, i):
        return [j for j in rows if ids[j] == ids[i]]

    out = [0.0] * len(mask)
    in_turn = [j for j in rows if turn[j] != -1]
    for i in rows:
        if mode == "token_mean":
            out[i] = 1 / len(rows)
        elif mode == "seq_mean_token_mean":
            out[i] = 1 / len(of(episode, i)) / len({episode[j] for j in rows})
        elif mode == "seq_mean_token_sum":
            out[i] = 1 / len({episode[j] for j in rows})
        elif mode == "const":
            out[i] = 1 / len({episode[j] for j in rows}) / length
        elif mode == "group_balanced":
            out[i] = 1 / len(of(group, i)) / len({group[j] for j in rows})
        elif turn[i] != -1:
            same = [j for j in in_turn if turn[j] == turn[i]]
            if mode == "turn_mean":
                out[i] = 1 / len(same) / len({turn[j] for j in in_turn})
            else:
                turns = {turn[j] for j in in_turn if episode[j] == episode[i]}
                out[i] = 1 / len(same) / len(turns) / len({episode[j] for j in in_turn})
    return out
