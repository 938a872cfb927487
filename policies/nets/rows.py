"""A batch as learners from logs read it: normalised states, several seeds side by side, no masked rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from robot_rl.policies.nets.normalizer import FixedNorm
from robot_rl.types import IOSpec, Transitions


@dataclass(frozen=True)
class Rows:
    """Fields of a batch, seeds first.

    Attributes:
        state: (S, B, n) normalised.
        action: (S, B, A).
        reward: (S, B).
        discount: (S, B) gamma^k (1 - terminated): the only bootstrap multiplier.
        next_state: (S, B, n) normalised.
        extras: further columns (S, B, ...).
    """

    state: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_state: Tensor
    extras: dict[str, Tensor]


def state_size(io: IOSpec, method: str) -> int:
    """Width of the observation "state".

    Raises:
        ValueError: there is none, or there are images, which the method would silently ignore.
    """
    if set(io.obs) != {"state"} or len(io.obs["state"][0]) != 1:
        raise ValueError(
            f"{method} reads one vector observation 'state', got {sorted(io.obs)}; encode images first, or choose "
            "the observations to keep"
        )
    return io.obs["state"][0][0]


def split(batch: Transitions, seeds: int, norm: FixedNorm | None) -> Rows:
    """Cut a batch of S * B rows into S parts of B.

    Masked rows are replaced by valid ones of the same batch, so that shapes stay fixed.

    Raises:
        ValueError: the rows do not divide, or windows were drawn instead of single steps.
    """
    if batch.reward.dim() != 1:
        raise ValueError(f"reward has shape {tuple(batch.reward.shape)}, expected (B,): draw single steps, not windows")
    size = len(batch.reward)
    if size % seeds:
        raise ValueError(f"the batch has {size} rows, expected a multiple of {seeds} seeds")
    columns = {
        "state": batch.obs["state"],
        "action": batch.action,
        "reward": batch.reward,
        "discount": batch.discount,
        "next_state": batch.next_obs["state"],
    }
    extras = dict(batch.extras)
    mask = batch.mask
    if mask.device.type != "cpu" or not bool(mask.all()):
        if mask.device.type == "cpu" and not bool(mask.any()):
            raise ValueError("every row of the batch is masked out; expected at least one valid transition")
        order = torch.argsort(~mask, stable=True)  # valid rows first
        index = order[torch.arange(size, device=mask.device) % mask.sum().clamp_min(1)]
        index = torch.where(mask, torch.arange(size, device=mask.device), index)
        columns = {name: value[index] for name, value in columns.items()}
        extras = {name: value[index] for name, value in extras.items()}
    if norm is not None:
        columns["state"], columns["next_state"] = norm(columns["state"]), norm(columns["next_state"])
    cut = {name: value.reshape(seeds, size // seeds, *value.shape[1:]) for name, value in columns.items()}
    more = {name: value.reshape(seeds, size // seeds, *value.shape[1:]) for name, value in extras.items()}
    return Rows(**cut, extras=more)


def map_columns(batch: Transitions, change: Callable[[Tensor], Tensor]) -> Transitions:
    """The batch with `change` applied to every column."""
    columns = {name: change(value) for name, value in batch.columns().items()}
    obs, next_obs, extras = (
        {key: change(value) for key, value in part.items()} for part in (batch.obs, batch.next_obs, batch.extras)
    )
    return Transitions(obs=obs, next_obs=next_obs, extras=extras, **columns)


def valid_rows(batch: Transitions) -> Transitions:
    """Only the rows that the mask admits; almost always the batch itself.

    Raises:
        ValueError: there is none.
    """
    keep = batch.mask
    if bool(keep.all()):
        return batch
    if not bool(keep.any()):
        raise ValueError("every row of the batch is masked out; expected at least one valid transition")
    return map_columns(batch, lambda x: x[keep])


def as_windows(batch: Transitions, window: int) -> Transitions:
    """A batch as windows (B, window): batches of single steps become windows of one.

    Raises:
        ValueError: the windows are of another length.
    """
    if batch.reward.dim() == 1:
        batch = replace(map_columns(batch, lambda x: x[:, None]), extras=batch.extras)
    if batch.reward.shape[1] != window:
        raise ValueError(f"the batch holds windows of {batch.reward.shape[1]} steps, expected {window}")
    return batch


def first_steps(window: Transitions, steps: int) -> Transitions:
    """The first steps of windows (B, H); extras are left behind."""
    return map_columns(replace(window, extras={}), lambda x: x[:, :steps])


def beyond_the_end(rows: Transitions, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Actions (B, H, A) and mask (B, H) that a critic reads: chunks that a true end cut short become whole ones.

    What a policy would have done behind a true end is never executed, so the value is the same whatever it is: uniform
    actions stand there. Without this, whole chunks would never be trained in the last H - 1 states, and whole chunks
    are what a policy proposes there. Behind a time limit the length code stays.
    """
    fill = torch.rand(rows.action.shape, generator=generator, device=rows.action.device) * 2.0 - 1.0
    ended = rows.terminated[:, None]
    return torch.where((ended & ~rows.mask)[..., None], fill, rows.action), rows.mask | ended
