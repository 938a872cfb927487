"""Generalised advantage estimation, in two forms.

- `rollout_gae(reward, value, next_value, terminated, boundary, *, gamma=0.99, gae_lambda=0.95, ...)` is what on-policy
  learners call: (T, N) rollouts with time first, or flat (rows,) storage, from flags; one fused compiled pass.
- `gae(reward, discount, value, next_value, trace)` is the dense form, time last, from prepared discounts and traces.

Both return (advantage, return), take NumPy arrays or torch tensors and give back the same kind.
"""

from __future__ import annotations

import numpy as np
import torch

from robot_rl.advantage.arrays import check_shapes, check_unit, host, same_kind
from robot_rl.advantage.backends.select import backend, kernels
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.rows import RolloutRows, check_float, check_rows, power, prepare
from robot_rl.advantage.scan import scan, solve


@same_kind
def gae(reward: Array, discount: Array, value: Array, next_value: Array, trace: Array) -> tuple[Array, Array]:
    """GAE of prepared data, time or turns on the last axis.

    delta_t = reward_t + discount_t next_value_t - value_t; A_t = delta_t + trace_t A_{t+1}; return = A + value.

    Args:
        reward: (..., T).
        discount: (..., T) gamma^k (1 - terminated), the only bootstrap multiplier.
        value: (..., T) V(s_t).
        next_value: (..., T) V of the true successor, everywhere.
        trace: (..., T) 0 where an episode ended or the rollout was cut, else discount * lambda, or (gamma lambda)^k.

    Returns:
        (advantage, return), both (..., T).

    Raises:
        ValueError: an array that does not have the shape of `reward`.

    Source: Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation, eq. 11-16.
    """
    check_shapes(tuple(reward.shape), discount=discount, value=value, next_value=next_value, trace=trace)
    # `where`, not a product alone: the successor of a terminal row may be NaN.
    ahead = torch.where(discount == 0, 0.0, discount * next_value)
    advantage = scan(reward + ahead - value, trace)
    return advantage, advantage + value


@same_kind
def rollout_gae(
    rows: RolloutRows,
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
    lambda_unit: str = "decision",
    cut: Array | None = None,
    out: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """GAE and TD(lambda) returns of a rollout, time on the first axis, bootstrapping from true successors.

    delta_t = r_t + g_t (1 - e_t) V'_t - V_t; A_t = delta_t + g_t lambda_t (1 - b_t) A_{t+1}; return = A + V, with
    V'_t = V_{t+1} inside an episode and `next_value` at its boundary.

    Args:
        rows: the rollout, with values.
        gamma: discount per tick, in [0, 1].
        gae_lambda: trace decay, in [0, 1].
        lambda_unit: "decision" (lambda per row) or "tick" (lambda^k).
        cut: like the reward, bool: rows whose trace does not reach the next row although the episode goes on.
        out: (advantage, return) arrays to write to, C-contiguous; a loop that gives the same ones every time saves the
            cost of fresh memory.

    Returns:
        (advantage, return): kind, shape and dtype of the reward.

    Raises:
        ValueError: shapes, dtype or numbers outside their range.

    Source: Schulman et al., eq. 11-16; options form after Sutton, Precup and Singh, Between MDPs and semi-MDPs.
    """
    check_unit(gamma=gamma, gae_lambda=gae_lambda)
    check_rows(rows)
    reward, duration, shape = rows.reward, rows.duration, tuple(rows.reward.shape)
    check_shapes(shape, cut=cut)
    if lambda_unit not in ("decision", "tick"):
        raise ValueError(f"lambda_unit is '{lambda_unit}', expected 'decision' or 'tick'")
    check_float(reward)
    if 0 in shape:
        return reward * 1, reward * 1
    plain = duration is None and rows.discount is None and cut is None and rows.valid is None and len(shape) <= 2
    recorded = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in vars(rows).values())
    if plain and reward.device.type == "cpu" and not recorded and backend("cpu") == "numba":
        kind = reward.dtype
        floats = (np.ascontiguousarray(host(x), host(reward).dtype) for x in (reward, rows.value, rows.next_value))
        ends = (np.ascontiguousarray(host(x), np.bool_) for x in (rows.terminated, rows.boundary))
        fits = out is not None and all(x.is_contiguous() and x.dtype == kind and x.shape == shape for x in out)
        given = (host(out[0]), host(out[1])) if fits and out is not None else None
        results = kernels("numba").gae(*floats, *ends, float(gamma), float(gae_lambda), given)
        results = (torch.from_numpy(results[0]), torch.from_numpy(results[1]))
        return results if out is None or fits else _copy(results, out)
    ready = prepare(rows, gamma=gamma, trace=gae_lambda)
    decay = gae_lambda if lambda_unit == "decision" or duration is None else power(gae_lambda, duration, ready.g.dtype)
    trace = ready.inside(ready.g * decay)
    if cut is not None:
        trace = torch.where(cut.bool(), 0.0, trace)
    advantage = solve(ready.reward + ready.g * ready.ahead - ready.value, trace)
    advantage, target = ready.finish(advantage, advantage + ready.value)
    return (advantage, target) if out is None else _copy((advantage, target), out)


@same_kind
def macro_reward(reward: Array, gamma: float) -> Array:
    """Reward of a decision that lasted several ticks: sum_i gamma^i r_i over the executed ticks.

    Args:
        reward: (..., k) rewards of the executed ticks, not of the planned ones; pad with 0.
        gamma: discount per tick.

    Returns:
        (...) in the dtype of `reward`, summed in double.

    Source: Sutton, Precup and Singh, Between MDPs and semi-MDPs, reward of an option.
    """
    check_unit(gamma=gamma)
    ticks = torch.arange(reward.shape[-1], device=reward.device)
    return (reward.double() * power(gamma, ticks, torch.float64)).sum(-1).to(reward.dtype)


def _copy(results: tuple[Array, Array], out: tuple[Array, Array]) -> tuple[Array, Array]:
    check_shapes(tuple(results[0].shape), **{"out[0]": out[0], "out[1]": out[1]})
    for place, x in zip(out, results):
        place[...] = x
    return out
