"""Padded token batches of the common LLM trainers, as tables of the advantage core and back.

Names follow that layout: `prompts` (B, P) padded on the left, `responses` (B, R) padded on the right, with all turns of
a dialogue in one response and the tool output between them; `response_mask` (B, R), 1 on tokens that the model wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from robot_rl.advantage import Pipeline, TurnBatch, dense_ids, from_tokens, text_anchor
from robot_rl.advantage.arrays import host

REQUIRED = ("responses", "response_mask", "token_level_rewards", "uid")


@dataclass(frozen=True)
class Tables:
    """A padded batch as tables.

    Attributes:
        batch: the core's tables; one row per real response token.
        index: (N,) position of each row in the flattened (B, R) layout.
        shape: (B, R).
        device: where the padded tensors were, or None for NumPy.
    """

    batch: TurnBatch
    index: np.ndarray
    shape: tuple[int, int]
    device: torch.device | None


def to_tables(data: Mapping[str, Any], *, anchors: Sequence[Sequence[str]] | None = None) -> Tables:
    """Tables of a padded batch.

    Args:
        data: NumPy arrays or tensors by name.
            responses: (B, R) token ids.
            response_mask: (B, R), 1 on tokens that the model wrote, 0 on tool output and padding.
            token_level_rewards: (B, R).
            uid: (B,) anything that is equal for rollouts of one prompt, strings for instance.
            prompts (optional): (B, P); only its width is read, to cut it off `attention_mask`.
            attention_mask (optional): (B, P + R) or (B, R), 1 on real tokens; without it a response ends at its last
                written token or reward.
            turn_ids (optional): (B, R), growing inside each row, read where `response_mask` is 1; without it every
                uninterrupted run of written tokens is a turn.
            old_log_probs, values (optional): (B, R).
            truncated (optional): (B,) bool, cut by a limit; next_values (optional): (B,) V after the cut.
        anchors: per dialogue one text per turn, the state in which the turn began, for estimators with anchors.

    Returns:
        The tables, in NumPy.

    Raises:
        ValueError: a name is missing, a shape does not fit, a dialogue has no written token, or padding holds rewards
            or written tokens.
    """
    lacking = [name for name in REQUIRED if name not in data]
    if lacking:
        raise ValueError(f"the batch lacks '{lacking[0]}'; expected {', '.join(REQUIRED)}")
    first = data["responses"]
    device = first.device if isinstance(first, torch.Tensor) else None
    get = {name: host(value) for name, value in data.items() if name != "uid"}
    shape = get["responses"].shape
    for name in ("response_mask", "token_level_rewards", "turn_ids", "old_log_probs", "values"):
        if name in get and get[name].shape != shape:
            raise ValueError(f"{name} has shape {get[name].shape}, expected that of responses, {shape}")
    written = get["response_mask"].astype(bool)
    reward = get["token_level_rewards"].astype(np.float32)
    real = _real(get, written, reward, shape)
    empty = np.flatnonzero(~written.any(1))
    if empty.size:
        raise ValueError(f"dialogue {empty[0]} has no written token in response_mask; drop it from the batch first")
    outside = np.argwhere(~real & (written | (reward != 0)))
    if outside.size:
        raise ValueError(f"padding of dialogue {outside[0][0]} holds a reward or written token at {outside[0][1]}")
    index = np.flatnonzero(real)
    spans, owner = _spans(written, get.get("turn_ids"), real)
    turn: dict[str, object] = {}
    if anchors is not None:
        counts = np.bincount(owner, minlength=shape[0])
        bad = [i for i, texts in enumerate(anchors) if len(texts) != counts[i]]
        if len(anchors) != shape[0] or bad:
            raise ValueError(f"anchors do not fit: expected for each dialogue one text per turn, {counts.tolist()}")
        turn["anchor_key"] = text_anchor([text for texts in anchors for text in texts])
    columns: dict[str, object] = {}
    for name, own in (("old_log_probs", "logp_behaviour"), ("values", "value")):
        if name in get:
            columns[own] = get[name].reshape(-1)[index].astype(np.float32)
    if "next_values" in get:
        columns["next_value"] = get["next_values"].astype(np.float32)
    batch = from_tokens(
        reward.reshape(-1)[index],
        written.reshape(-1)[index],
        spans,
        real.sum(1),
        tokens=get["responses"].reshape(-1)[index],
        truncated=get["truncated"].astype(bool) if "truncated" in get else None,
        turn=turn,
        episode={"group_id": dense_ids([str(uid) for uid in data["uid"]])},
        **columns,
    )
    return Tables(batch, index, (int(shape[0]), int(shape[1])), device)


def to_padded(x: object, tables: Tables) -> Any:
    """A per-row result in the padded (B, R) layout, 0 on padding, in the kind of the padded batch.

    Args:
        x: (N,) result for `tables.batch`.
        tables: from `to_tables`.
    """
    rows: np.ndarray = host(x)
    out = np.zeros(tables.shape[0] * tables.shape[1], rows.dtype)
    out[tables.index] = rows
    out = out.reshape(tables.shape)
    return out if tables.device is None else torch.from_numpy(out).to(tables.device)


def add_advantages(
    data: Mapping[str, Any], pipeline: Pipeline, *, anchors: Sequence[Sequence[str]] | None = None
) -> dict[str, Any]:
    """The batch with `advantages` (B, R), `returns` (B, R) and the `response_mask` of the policy loss.

    `returns` holds value targets where the batch has values, else the advantages, as critic-free trainers expect. The
    mask is that of the input without dialogues that cannot be scored.

    Args:
        data: see `to_tables`.
        pipeline: estimator with its options.
        anchors: see `to_tables`.

    Raises:
        ValueError: see `to_tables`, or the estimator needs what the batch lacks.
    """
    tables = to_tables(data, anchors=anchors)
    credit = pipeline(tables.batch)
    returns = credit.advantage if credit.returns is None else credit.returns
    mask = to_padded(credit.mask, tables)
    like = data["response_mask"]
    return {
        **data,
        "advantages": to_padded(credit.advantage, tables),
        "returns": to_padded(returns, tables),
        "response_mask": mask.to(like.dtype) if isinstance(like, torch.Tensor) else mask.astype(like.dtype),
    }


def _real(get: Mapping[str, np.ndarray], written: np.ndarray, reward: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """(B, R) bool, response tokens that are no padding."""
    if "attention_mask" not in get:
        used = written | (reward != 0)
        length = np.where(used.any(1), shape[1] - used[:, ::-1].argmax(1), 0)
        return np.arange(shape[1]) < length[:, None]
    mask = get["attention_mask"].astype(bool)
    prompt = get["prompts"].shape[1] if "prompts" in get else 0
    if mask.shape[1] == prompt + shape[1]:
        mask = mask[:, prompt:]
    if mask.shape != shape:
        raise ValueError(f"attention_mask covers {mask.shape[1]} tokens, expected {shape[1]} or {prompt + shape[1]}")
    return mask


def _spans(written: np.ndarray, turn_ids: np.ndarray | None, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(U, 2) first and last row of each turn among the real tokens, and (U,) its dialogue."""
    row_of = np.cumsum(real.reshape(-1)).reshape(real.shape) - 1
    change = np.ones_like(written)
    change[:, 1:] = ~written[:, :-1]
    if turn_ids is not None:
        # Tool output inside a turn keeps its id: the turn goes on behind it.
        known = np.where(written, turn_ids, np.iinfo(np.int64).min)
        before = np.maximum.accumulate(known, axis=1)
        falling = np.argwhere(written[:, 1:] & (turn_ids[:, 1:] < before[:, :-1]))
        if falling.size:
            raise ValueError(f"turn_ids of dialogue {falling[0][0]} fall at token {falling[0][1] + 1}; expected growth")
        change[:, 1:] = before[:, 1:] != before[:, :-1]
    owner, column = np.nonzero(written & change)
    start = row_of[owner, column]
    turn_of = np.cumsum((written & change).reshape(-1)).reshape(written.shape) - 1
    last = np.zeros(len(start), np.int64)
    rows, columns = np.nonzero(written)
    last[turn_of[rows, columns]] = row_of[rows, columns]  # rows are in order, so the last write stays
    return np.stack((start, last), 1), owner
