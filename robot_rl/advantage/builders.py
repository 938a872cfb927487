"""Builders: vector rollouts, action chunks, token streams and logs become one and the same batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.advantage.arrays import check_shapes, in_torch, place_of, tensor
from robot_rl.advantage.batch import TurnBatch, make_batch
from robot_rl.advantage.derive import rows_where
from robot_rl.advantage.kinds import Array

AUTORESET = ("same_step", "next_step")


def from_vector_rollout(
    reward: Array,
    value: Array,
    terminated: Array,
    truncated: Array,
    final_value: Array,
    last_value: Array,
    *,
    valid: Array | None = None,
    autoreset: str = "same_step",
    starts_with_reset: Array | None = None,
    columns: Mapping[str, object] | None = None,
    **options: Any,
) -> TurnBatch:
    """Batch of a rollout of N environments, one fragment per stretch between two ends.

    Args:
        reward: (T, N).
        value: (T, N) V(s_t), or None.
        terminated, truncated: (T, N) bool.
        final_value: (T, N) V of the true last observation, read where an episode ended; None if nothing was truncated.
        last_value: (N,) V of the observation after the rollout, read where its last row ended nothing.
        valid: (T, N) bool, rows to keep; None = all. An end counts where its row is left out, too.
        autoreset: "same_step" (the successor of an end is info["final_obs"]) or "next_step" (the row after an end is
            the reset and no transition: it is dropped).
        starts_with_reset: (N,) bool, with "next_step": the first row of the rollout is such a reset row.
        columns: further (T, N) columns by the argument names of `make_batch`; unknown names become extras.
        **options: per-table columns and options of `make_batch` (turn, episode, missing_bootstrap, ...).

    Returns:
        The batch, rows sorted by (environment, time); `extras["source"]` holds t N + n of each row for `to_rollout`.

    Raises:
        ValueError: shapes that do not fit, an unknown `autoreset`, or a broken rule of the data model.
    """
    if autoreset not in AUTORESET:
        raise ValueError(f"autoreset is '{autoreset}', expected one of {', '.join(AUTORESET)}")
    place = place_of(reward)
    shape = tuple(reward.shape)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"reward has shape {shape}, expected (T, N) with at least one step and one environment")
    check_shapes(shape, value=value, terminated=terminated, truncated=truncated, final_value=final_value, valid=valid)
    rows = tensor(reward, place)
    value, final_value, last_value = (tensor(x, place) for x in (value, final_value, last_value))
    ended = {"terminated": tensor(terminated, place).bool(), "truncated": tensor(truncated, place).bool()}
    done = ended["terminated"] | ended["truncated"]
    keep = torch.ones_like(done) if valid is None else tensor(valid, place).bool()
    if autoreset == "next_step":
        keep = keep.clone()
        keep[1:] &= ~done[:-1]
        if starts_with_reset is not None:
            keep[0] &= ~tensor(starts_with_reset, place).bool()
    next_value = None
    if value is not None:
        next_value = torch.full_like(value, torch.nan)
        next_value[:-1] = value[1:]  # read before a row that is not kept
        next_value = torch.where(done, torch.nan if final_value is None else final_value, next_value).to(value.dtype)
        if last_value is not None:
            next_value[-1] = torch.where(done[-1], next_value[-1], last_value)
    # Time is sorted inside environments: an environment's rows, one behind the other.
    source = torch.arange(keep.numel(), device=place).reshape(shape).T[keep.T]
    before = done.cumsum(0) - done.long()  # ends before each row, those of rows that are not kept too
    environment, ends = source % shape[1], before.reshape(-1)[source]
    new = torch.ones_like(source, dtype=torch.bool)
    new[1:] = (environment[1:] != environment[:-1]) | (ends[1:] != ends[:-1])
    flat = {name: x.reshape(-1)[source] for name, x in ended.items()}
    flat |= {name: x.reshape(-1)[source] for name, x in (("value", value), ("next_value", next_value)) if x is not None}
    extras: dict[str, Array] = {"source": source}
    for name, column in (columns or {}).items():
        column = tensor(column, place)
        check_shapes(shape, **{name: column[:, :, 0] if column.ndim > 2 else column})
        (flat if name in _STEP_COLUMNS else extras)[name] = column.reshape(-1, *column.shape[2:])[source]
    batch = make_batch(rows.reshape(-1)[source], episode_id=new.cumsum(0) - 1, extras=extras, **flat, **options)
    return batch if isinstance(reward, Tensor) else batch.numpy()


def to_rollout(x: Array, batch: TurnBatch, shape: tuple[int, int]) -> Array:
    """Per-row results of a batch from `from_vector_rollout`, back in its (T, N) layout; dropped rows hold 0.

    Args:
        x: (rows,) result.
        batch: the batch.
        shape: (T, N) of the rollout.
    """
    return _scatter(x, batch.steps.extras["source"], shape)


@in_torch
def _scatter(x: Array, source: Array, shape: tuple[int, int]) -> Array:
    return x.new_zeros(shape[0] * shape[1]).index_copy(0, source, x).reshape(shape)


def from_chunks(
    reward: Array,
    k: Array,
    terminated: Array,
    truncated: Array,
    next_value: Array | None = None,
    logp: Array | None = None,
    *,
    episode_id: Array | None = None,
    **options: Any,
) -> TurnBatch:
    """Batch of decisions that each lasted several ticks, one row and one turn per decision.

    Args:
        reward: (U,) sum of gamma^i r_i over the executed ticks (`macro_reward`).
        k: (U,) executed ticks, at least 1.
        terminated, truncated: (U,) bool.
        next_value: (U,) V of the true successor of the decision, read at boundaries.
        logp: (U,) log-probability of the whole chunk under the policy that acted.
        episode_id: (U,) dense ids; None = a new fragment begins after every end.
        **options: further columns and options of `make_batch`: value (V at the decision), discount (in place of
            gamma^k), ...

    Returns:
        The batch.

    Raises:
        ValueError: a broken rule of the data model.
    """
    place = place_of(reward)
    if episode_id is None:
        over = tensor(terminated, place).bool() | tensor(truncated, place).bool()
        episode_id = over.cumsum(0) - over.long()
    return make_batch(
        reward,
        terminated,
        truncated,
        episode_id,
        torch.arange(len(k), device=place),
        k=k,
        next_value=next_value,
        logp_behaviour=logp,
        **options,
    )


def from_tokens(
    reward: Array,
    role_mask: Array,
    turn_spans: Array,
    length: Array,
    *,
    tokens: Array | None = None,
    terminated: Array | None = None,
    truncated: Array | None = None,
    foreign: Array | None = None,
    next_value: Array | None = None,
    **options: Any,
) -> TurnBatch:
    """Batch of dialogues: N tokens of E conversations, one behind the other.

    Args:
        reward: (N,) per token; an outcome belongs on the token that earned it, usually the last one.
        role_mask: (N,) bool, True on tokens that the policy wrote; all others are observation rows (`clock` False).
        turn_spans: (U, 2) first and last token of each turn, inclusive, as indices into the N tokens.
        length: (E,) tokens per conversation, adding up to N.
        tokens: (N,) token ids, kept as extras["tokens"].
        terminated: (E,) bool, default True: a conversation that ended is over.
        truncated: (E,) bool, default False; a cut conversation has terminated False.
        foreign: (N,) bool, tokens written as decisions by another policy or a teacher: on the clock, not in the loss.
        next_value: (E,) V after each conversation, read where it did not terminate.
        **options: further columns and options of `make_batch` (value, logp_behaviour, episode, turn, ...).

    Returns:
        The batch.

    Raises:
        ValueError: spans that overlap or leave the batch, or a broken rule of the data model.
    """
    place = place_of(reward)
    length, spans = tensor(length, place).long(), tensor(turn_spans, place).long().reshape(-1, 2)
    count = len(reward)
    if int(length.sum()) != count or (length < 1).any():
        raise ValueError(f"length adds up to {int(length.sum())}, expected {count} tokens and none empty")
    begin, end = spans.unbind(1)
    bad = rows_where(
        (begin > end) | (begin < 0) | (end >= count) | (begin <= torch.cat([end.new_full((1,), -1), end[:-1]]))
    )
    if len(bad):
        raise ValueError(
            f"turn {int(bad[0])} spans tokens {int(begin[bad[0]])} to {int(end[bad[0]])}, expected spans inside the "
            f"{count} tokens that grow and do not overlap"
        )
    own = tensor(role_mask, place).bool()
    other = torch.zeros_like(own) if foreign is None else tensor(foreign, place).bool()
    own = own & ~other
    clock = own | other
    change = torch.zeros(count + 1, dtype=torch.long, device=place)
    change[begin] += 1
    change[end + 1] -= 1
    inside = change[:-1].cumsum(0) > 0
    turn_id = torch.full((count,), -1, device=place)
    turn_id[inside] = torch.repeat_interleave(torch.arange(len(spans), device=place), end - begin + 1)
    last = length.cumsum(0) - 1
    cut = torch.zeros_like(length, dtype=torch.bool) if truncated is None else tensor(truncated, place).bool()
    over = ~cut if terminated is None else tensor(terminated, place).bool()
    ends = torch.zeros((2, count), dtype=torch.bool, device=place)
    ends[0, last], ends[1, last] = over, cut
    if next_value is not None:
        after = torch.full((count,), torch.nan, dtype=torch.float64, device=place)
        after[last] = tensor(next_value, place).double()
        next_value = after
    extras = dict(options.pop("extras", None) or {})
    if tokens is not None:
        extras["tokens"] = tokens
    return make_batch(
        reward,
        ends[0],
        ends[1],
        torch.repeat_interleave(torch.arange(len(length), device=place), length),
        torch.where(clock, turn_id, -1),
        clock=clock,
        own=own,
        next_value=next_value,
        extras=extras,
        **options,
    )


def from_log(log: Mapping[str, object], **options: Any) -> TurnBatch:
    """Batch of a log with D4RL names: rewards, terminals, timeouts, and observations and actions as extras.

    Args:
        log: anything that maps names to arrays: an open h5py.File, numpy.load of an .npz file, or a dictionary.
        **options: further columns and options of `make_batch` (value, next_value, missing_bootstrap, ...).

    Returns:
        The batch; a row that ends nothing at the end of the log is the last of an unfinished fragment.

    Raises:
        ValueError: a name is missing, or a broken rule of the data model.
    """
    lacking = [name for name in ("rewards", "terminals") if name not in log]
    if lacking:
        raise ValueError(f"log lacks '{lacking[0]}'; expected the D4RL names rewards, terminals and timeouts")
    reward, terminal = np.asarray(log["rewards"]).reshape(-1), np.asarray(log["terminals"]).reshape(-1).astype(np.bool_)
    timeout = np.asarray(log["timeouts"]).reshape(-1).astype(np.bool_) if "timeouts" in log else np.zeros_like(terminal)
    over = terminal | timeout
    extras = {name: np.asarray(log[name]) for name in ("observations", "actions") if name in log}
    extras |= options.pop("extras", None) or {}
    episode_id = np.concatenate(([0], np.cumsum(over[:-1]))).astype(np.int32)
    return make_batch(reward, terminal, timeout, episode_id, extras=extras, **options)


_STEP_COLUMNS = (
    *("own", "k", "policy_version", "loss_mask", "discount", "entropy", "segment_id", "turn_id", "clock"),
    *("logp_behaviour", "logp_prox", "logp_ref", "logp_teacher"),
)
