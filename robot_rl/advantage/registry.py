"""Names for configurations: every estimator and reward stage that a pipeline can be built from, and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from robot_rl.advantage.batch import TurnBatch

F = TypeVar("F", bound=Callable[..., object])
KINDS = ("redistribute", "temporal", "group")
MODES = ("default", "paper", "release")


class RowEstimate(NamedTuple):
    """What an estimator returns, per row of the compacted batch.

    Attributes:
        advantage: (rows,).
        target: (rows,) value target, or None without a critic.
        weight: (rows,) weight of the value loss, or None for 1.
        value: (rows,) estimates of the head that the target trains, or None for the batch's "value".
    """

    advantage: Tensor
    target: Tensor | None = None
    weight: Tensor | None = None
    value: Tensor | None = None


@dataclass(frozen=True)
class Entry:
    """One registered stage.

    Attributes:
        kind: "redistribute", "temporal" or "group".
        name: its name in configurations.
        function: (batch, **options) -> RowEstimate, or -> TurnBatch for "redistribute"; with `state`, (batch, state,
            **options).
        needs: columns of the batch that must be there: "value", "turns", "segments", "group", "logp_behaviour", ... or
            "extras.<name>".
        provides: what the result holds.
        paper: where it comes from.
        modes: which of "default", "paper", "release" can be chosen through options.
        state: makes the state object of a stateful estimator from its options, or None.
    """

    kind: str
    name: str
    function: Callable[..., Any]
    needs: tuple[str, ...]
    provides: tuple[str, ...]
    paper: str
    modes: tuple[str, ...]
    state: Callable[..., Any] | None


_entries: dict[tuple[str, str], Entry] = {}


def register(
    kind: str,
    name: str,
    *,
    paper: str,
    needs: Collection[str] = (),
    provides: Collection[str] = ("advantage",),
    modes: Collection[str] = ("default",),
    state: Callable[..., object] | None = None,
) -> Callable[[F], F]:
    """Decorator that enters a stage under a name; see `Entry` for the arguments.

    Raises:
        ValueError: unknown kind or mode, or a name that is taken.
    """
    if kind not in KINDS or not set(modes) <= set(MODES):
        raise ValueError(f"kind '{kind}' and modes {sorted(modes)}: expected one of {KINDS} and some of {MODES}")
    if (kind, name) in _entries:
        raise ValueError(f"{kind} stage '{name}' is registered already, expected a new name")

    def enter(function: F) -> F:
        _entries[kind, name] = Entry(kind, name, function, tuple(needs), tuple(provides), paper, tuple(modes), state)
        return function

    return enter


def entry(name: str, *kinds: str) -> Entry:
    """The stage of a name.

    Args:
        name: registered name.
        *kinds: kinds to look in, default all.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    for kind in kinds or KINDS:
        if (kind, name) in _entries:
            return _entries[kind, name]
    known = ", ".join(sorted(known for kind, known in _entries if not kinds or kind in kinds))
    raise ValueError(f"unknown {' or '.join(kinds or KINDS)} stage '{name}'; expected one of {known}")


def entries(kind: str | None = None) -> list[Entry]:
    """All stages, or those of one kind, by name."""
    return [_entries[key] for key in sorted(_entries) if kind is None or key[0] == kind]


def check_needs(stage: Entry, batch: TurnBatch) -> None:
    """Check that a batch has what a stage reads.

    Raises:
        ValueError: naming the stage and what is missing.
    """
    for need in stage.needs:
        if not _has(batch, need):
            raise ValueError(
                f"{stage.kind} stage '{stage.name}' needs {need}, which the batch lacks; {_REMEDY.get(need, 'add it')}"
            )


def _has(batch: TurnBatch, need: str) -> bool:
    if need == "turns":
        return batch.report.turns_given
    if need == "segments":
        return batch.segments is not None
    if need == "group":
        return bool((batch.episodes.group_id >= 0).any())
    if need == "anchor":
        return bool((batch.turns.anchor_key != 0).any())
    if need.startswith("extras."):
        return need.removeprefix("extras.") in batch.steps.extras
    return vars(batch.steps)[need] is not None


_REMEDY = {
    "turns": "give turn_id to make_batch (turn ends are never inferred from rewards)",
    "group": "give episode={'group_id': ids} to make_batch: one id per start state or task seed",
    "anchor": "give turn={'anchor_key': keys} to make_batch, for instance from state_anchor",
    "segments": "give segment_id to make_batch",
    "value": "give the critic's values to make_batch",
}
