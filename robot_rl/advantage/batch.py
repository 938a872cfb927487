"""TurnBatch: flat ragged storage of experience, its derived tables and its views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from robot_rl.advantage.arrays import host, place_of, tensor, to_torch
from robot_rl.advantage.derive import episode_table, segment_table, turn_table
from robot_rl.advantage.kinds import Array
from robot_rl.advantage.tables import EpisodeTable, SegmentTable, StepTable, TurnTable, map_table
from robot_rl.advantage.validate import BatchRepairs, check_steps

FLOATS = ("value", "next_value", "discount", "logp_behaviour", "logp_prox", "logp_ref", "logp_teacher", "entropy")


@dataclass(frozen=True)
class TurnBatch:
    """Steps, turns, segments and episodes that belong together.

    Attributes:
        steps: N rows.
        turns: U rows.
        episodes: E rows.
        segments: S rows, or None.
        report: what validation counted on the way.
    """

    steps: StepTable
    turns: TurnTable
    episodes: EpisodeTable
    segments: SegmentTable | None = None
    report: BatchRepairs = field(default_factory=BatchRepairs)

    def __len__(self) -> int:
        return len(self.steps.reward)

    def to(self, device: str | torch.device) -> TurnBatch:
        """The batch as tensors on a device; CPU tensors share memory with the arrays."""
        place = torch.device(device)
        return self._map(lambda x: to_torch(x, place))

    def numpy(self) -> TurnBatch:
        """The batch as NumPy arrays; CPU tensors share their memory."""
        return self._map(host)

    def _map(self, change: Array) -> TurnBatch:
        segments = None if self.segments is None else map_table(self.segments, change)
        return TurnBatch(
            map_table(self.steps, change),
            map_table(self.turns, change),
            map_table(self.episodes, change),
            segments,
            self.report,
        )


def make_batch(
    reward: Array,
    terminated: Array,
    truncated: Array,
    episode_id: Array,
    turn_id: Array | None = None,
    *,
    turn: Mapping[str, object] | None = None,
    segment: Mapping[str, object] | None = None,
    episode: Mapping[str, object] | None = None,
    extras: Mapping[str, object] | None = None,
    gamma: float | None = None,
    missing_bootstrap: str | None = None,
    **columns: object,
) -> TurnBatch:
    """Build and validate a batch from flat columns sorted by (episode, time).

    Args:
        reward: (N,) float; float64 is kept, anything else becomes float32. All other float columns follow it.
        terminated, truncated: (N,) bool.
        episode_id: (N,) dense int, non-decreasing.
        turn_id: (N,) dense int, non-decreasing over clock rows, -1 outside any turn; None = every clock row is a turn.
        turn, segment, episode: further columns of those tables by name, e.g. {"group_id": ids}.
        extras: further per-step columns, of numbers.
        gamma: if given, `discount` must equal gamma^k up to 1e-6.
        missing_bootstrap: None (a missing successor value is an error), "zero" or "last_value" (V(s_t); exists only to
            reproduce other projects).
        **columns: further columns of the steps, each (N,) or None. Floats: value, next_value, discount, logp_behaviour,
            ..., entropy. Bool: clock and own, default True; loss_mask, default clock and own (rows of unscorable
            episodes are cleared in any case). Integers: k (ticks, default 1), segment_id (dense), policy_version.

    Returns:
        The batch: tensors on the device of `reward` if it is a tensor, else NumPy arrays.

    Raises:
        ValueError: a rule of the data model is broken; the message names the first offending index.
    """
    unknown = sorted(set(columns) - {*FLOATS, *_FLAGS, *_INTEGERS})
    if unknown:
        known = ", ".join((*FLOATS, *_FLAGS, *_INTEGERS))
        raise ValueError(f"unknown step column '{unknown[0]}'; expected one of {known}, or use extras")
    arrays, device = not isinstance(reward, Tensor), place_of(reward)
    reward = tensor(reward, device)
    kind = torch.float64 if reward.dtype == torch.float64 else torch.float32
    everywhere = torch.ones_like(reward, dtype=torch.bool)
    clock, own, loss_mask = (_flags(columns.pop(name, None), everywhere) for name in _FLAGS)
    integers = {name: columns.pop(name, None) for name in _INTEGERS}
    integers = {name: _ids(x, device) for name, x in integers.items() if x is not None}
    terminated, truncated = _flags(terminated, ~everywhere), _flags(truncated, ~everywhere)
    turns_given = turn_id is not None
    turn_id = torch.where(clock, clock.cumsum(0) - 1, -1).int() if turn_id is None else _ids(turn_id, device)
    steps = StepTable(
        reward=reward.to(kind),
        terminated=terminated,
        truncated=truncated,
        boundary=terminated | truncated,
        clock=clock,
        own=own,
        loss_mask=clock & own & loss_mask,
        episode_id=_ids(episode_id, device),
        turn_id=turn_id,
        extras={name: tensor(x, device) for name, x in (extras or {}).items()},
        **{"k": everywhere.int(), **integers},
        **{name: tensor(x, device).to(kind) for name, x in columns.items() if x is not None},
    )
    steps, report, unscorable = check_steps(steps, gamma, missing_bootstrap)
    turns = turn_table(steps, turn or {})
    episodes = episode_table(steps, turns, unscorable, episode or {})
    bad = torch.isnan(episodes.outcome)
    if bad.any():
        steps = replace(steps, loss_mask=steps.loss_mask & ~bad[steps.episode_id.long()])
    if turns.turn_reward is not None:
        turns = replace(turns, turn_reward=turns.turn_reward.nan_to_num())
    report = replace(report, unscorable=int(bad.sum()), turns_given=turns_given)
    batch = TurnBatch(steps, turns, episodes, segment_table(steps, segment or {}), report)
    return batch.numpy() if arrays else batch


_FLAGS = ("clock", "own", "loss_mask")
_INTEGERS = ("k", "segment_id", "policy_version")


def _flags(x: Array | None, default: Tensor) -> Tensor:
    return default if x is None else tensor(x, default.device).bool()


def _ids(x: Array, device: torch.device) -> Tensor:
    x = tensor(x, device)
    if x.is_floating_point() or x.dtype == torch.bool:
        raise ValueError(f"ids and durations are {x.dtype}, expected integers; factorise them with dense_ids first")
    return x.int()
