"""What the actions of a log mean: its range is read with the data and stored with the data, never guessed.

Actions are kept in [-1, 1]; -1 and +1 stand for a lower and an upper bound in physical units (`IOSpec.action_low`,
`action_high`). A log is of one of three kinds: its range is known (declared by the file, by its map, or by whoever
converts it); its actions are said to be in [-1, 1] already, of whatever range (`NORMALISED`); or nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robot_rl.types import IOSpec

NORMALISED, STATED = "normalised", "stated"
"""What is known of actions beside the interface: -1 and +1 are the bounds of whatever runs them; or a person gave the
range, which is believed even where its units are not named."""

DENSITIES = ("action_log_probs", "infos/action_log_probs")
"""Columns of log-densities, which another scale of actions changes."""

HOW = (
    "add action_low=… action_high=… (a number or a list) where the actions are in the robot's units, or "
    "action=normalised where -1 and +1 are the bounds of the robot itself"
)
"""The two answers to the question what actions mean."""


@dataclass(frozen=True)
class ActionBounds:
    """What a file says of its actions.

    Attributes:
        low: (A,) physical lower bounds; None where only that they are normalised is known.
        high: (A,) upper bounds.
        units: (A,) or None where the log does not tell.
        normalised: the actions are in [-1, 1] already; False: they are in `units`.
        stated: by a person, not by the file.
    """

    low: tuple[float, ...] | None
    high: tuple[float, ...] | None
    units: tuple[str, ...] | None = None
    normalised: bool = False
    stated: bool = False

    @property
    def statement(self) -> str | None:
        """What a store keeps beside the interface: `STATED`, `NORMALISED` or nothing."""
        return STATED if self.stated else NORMALISED if self.low is None else None


@dataclass(frozen=True)
class Scale:
    """Another scale of the same actions: gain * action + shift, by component.

    Attributes:
        gain: (A,) float64, none of them 0.
        shift: (A,) float64.
    """

    gain: np.ndarray
    shift: np.ndarray

    @property
    def changes(self) -> bool:
        """Whether it is more than a copy."""
        return not (np.allclose(self.gain, 1.0, atol=1e-7) and np.allclose(self.shift, 0.0, atol=1e-7))

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """(..., A) of the dtype that it had, computed in float64."""
        return (np.asarray(action, np.float64) * self.gain + self.shift).astype(np.asarray(action).dtype)

    def then(self, other: Scale) -> Scale:
        """First this one, then `other`."""
        return Scale(other.gain * self.gain, other.gain * self.shift + other.shift)

    @property
    def inverse(self) -> Scale:
        """Back again."""
        return Scale(1.0 / self.gain, -self.shift / self.gain)

    @property
    def log_volume(self) -> float:
        """By what a log-density of actions is less on the new scale."""
        return float(np.log(np.abs(self.gain)).sum())


def one_unit(size: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Bounds of actions whose number 1 is one physical unit."""
    return (-1.0,) * size, (1.0,) * size


def identity_scale(size: int) -> Scale:
    """Nothing changes."""
    return Scale(np.ones(size), np.zeros(size))


def from_units(low: Sequence[float], high: Sequence[float]) -> Scale:
    """Physical actions in [low, high] to [-1, 1]."""
    a, b = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return Scale(2.0 / (b - a), -(a + b) / (b - a))


def scale_between(source: IOSpec, target: IOSpec) -> Scale:
    """Actions in [-1, 1] of one interface to those that command the same in another.

    Raises:
        ValueError: the bounds of one of them are unknown.
    """
    mine, theirs = from_units(*source.bounds), from_units(*target.bounds)
    near = np.isclose(source.bounds, target.bounds, rtol=1e-6, atol=1e-9).all(0)  # equal ones are left alone to the bit
    scale = mine.inverse.then(theirs)
    return Scale(np.where(near, 1.0, scale.gain), np.where(near, 0.0, scale.shift))


def read_declared(
    low: object, high: object, size: int, units: Any = None, *, normalised: bool = False
) -> ActionBounds | None:
    """Bounds out of a file: one number for all actions or one for each; None where they are no finite range.

    Args:
        low: number, list or array.
        high: likewise.
        size: A.
        units: a text for all, or a list of A.
        normalised: the actions are in [-1, 1] already.
    """
    if low is None or high is None:
        return None
    try:
        ends = [np.asarray(x, np.float64).reshape(-1) for x in (low, high)]
        ends = [np.broadcast_to(x, (size,)) for x in ends]
    except (TypeError, ValueError):
        return None
    # a map with a negative scale has its upper bound at -1
    if not np.isfinite(ends).all() or not ((ends[0] < ends[1]).all() or (normalised and (ends[0] != ends[1]).all())):
        return None
    units = [units] * size if isinstance(units, (str, bytes)) else units
    named: tuple[str, ...] | None = None
    if units is not None and np.ndim(units) == 1 and len(units) == size:
        named = tuple(x.decode() if isinstance(x, bytes) else str(x) for x in units)
    return ActionBounds(tuple(ends[0].tolist()), tuple(ends[1].tolist()), named, normalised)


def attributes(size: int, *places: Mapping[str, object]) -> ActionBounds | None:
    """Bounds that the attributes of a file state: `action_low`, `action_high`, `action_units`, `action_normalised`.

    Args:
        size: A.
        places: attributes, the most general first; the last are those of the actions themselves, where "low" will do.
    """

    def find(key: str) -> Any:
        named = [place[key] for place in places if key in place]
        short = key.removeprefix("action_")
        return named[0] if named else places[-1].get(short) if places else None

    normalised = np.asarray(find("action_normalised")).tolist() is True
    found = read_declared(find("action_low"), find("action_high"), size, find("action_units"), normalised=normalised)
    return ActionBounds(None, None, None, True) if found is None and normalised else found


def facts(io: IOSpec | None, said: str | None = None) -> dict[str, object]:
    """Attributes that `attributes` reads, of actions that are in [-1, 1]; empty where nothing is known."""
    if io is not None and io.knows_bounds:
        low, high = (list(ends) for ends in io.bounds)
        more = {"action_low": low, "action_high": high, "action_units": list(io.action_units)}
        return {**more, "action_normalised": True}
    return {"action_normalised": True} if said == NORMALISED else {}


def bounds_of_io(io: IOSpec, said: str | None = None) -> ActionBounds | None:
    """What an interface knows of actions that are in [-1, 1]; None: nothing."""
    if io.knows_bounds:
        return ActionBounds(*io.bounds, io.action_units, normalised=True, stated=said == STATED)
    return ActionBounds(None, None, None, normalised=True) if said == NORMALISED else None


def check_ends(low: object, high: object) -> None:
    """Refuse one bound without the other, and a lower one that is not below the upper one.

    Raises:
        ValueError: says both.
    """
    lengths = {len(x) for x in (low, high) if isinstance(x, Sequence)}
    if low is None and high is None:
        return
    if len(lengths) > 1 or read_declared(low, high, max(lengths, default=1)) is None:
        raise ValueError(
            f"action_low is {low} and action_high {high}, expected for both a number or lists of one length, the first "
            "below the second"
        )


def read_stated(
    known: ActionBounds | None, size: int, *, action: str | None = None, low: object = None, high: object = None
) -> ActionBounds | None:
    """What is known once a person has said `action=normalised`, `action_low=` and `action_high=`, or nothing.

    Actions that are normalised stay so and get another range; any others are in physical units of that range.

    Args:
        known: by the log itself.
        size: A.
        action: "normalised", or None.
        low: number, list or None.
        high: likewise.

    Raises:
        ValueError: one of the bounds is missing, or they are no range.
    """
    if action not in (None, NORMALISED):
        raise ValueError(f"action is '{action}', expected {NORMALISED}, or nothing where the log itself tells")
    normalised = action == NORMALISED or (known is not None and known.normalised)
    if low is None and high is None:
        if action is None:
            return known
        return replace(known, normalised=True) if known is not None else ActionBounds(None, None, None, True)
    given = read_declared(low, high, size)
    if given is None:
        raise ValueError(
            f"action_low is {low} and action_high {high}, expected for both a finite number or a list of {size}, the "
            "first below the second"
        )
    return replace(given, units=None if known is None else known.units, normalised=normalised, stated=True)


def meaning(io: IOSpec, bounds: ActionBounds | None) -> tuple[IOSpec, Scale]:
    """The interface of a log once its actions are in [-1, 1], and the scale that makes them so.

    Args:
        io: as the reader made it.
        bounds: what is known; None leaves the actions and the interface's bounds unknown.
    """
    size = io.action_dim
    if bounds is None or bounds.low is None or bounds.high is None:
        return replace(io, action_low=(None,) * size, action_high=(None,) * size), identity_scale(size)
    scale = identity_scale(size) if bounds.normalised else from_units(bounds.low, bounds.high)
    units = io.action_units if bounds.units is None else bounds.units
    return replace(io, action_low=bounds.low, action_high=bounds.high, action_units=units), scale
