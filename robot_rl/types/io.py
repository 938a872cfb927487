"""The passport between environment, buffer, policy, checkpoint and robot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from robot_rl.types.camera import Calibration

if TYPE_CHECKING:  # the safety supervisor reads interfaces and cards, and loads no torch
    from torch import Tensor

ArrayT = TypeVar("ArrayT", np.ndarray, "Tensor")
QUANTILES = (0.001, 0.01, 0.5, 0.99, 0.999)
"""Which ones `Seen` keeps."""
CELLS = 4
"""Of a picture's height and width: `Seen` keeps its colours as a mosaic of so many squared."""
PRIVILEGED = "privileged"
"""Key of an observation that critics alone read, while they learn in simulation: nothing that acts needs it."""


@dataclass(frozen=True)
class Seen:
    """What training saw: a robot or a log of another range is noticed before it moves.

    Attributes:
        obs: key -> (S, 5) quantiles (`QUANTILES`) of every component of a vector observation.
        action: (A, 5) of every component of the actions, in [-1, 1].
        count: steps that they were taken over.
        rate: decisions per second.
        pictures: camera key ("image.front") -> (48, 5) of every component of its `mosaic`, where training looked.
    """

    obs: Mapping[str, tuple[tuple[float, ...], ...]]
    action: tuple[tuple[float, ...], ...]
    count: int
    rate: float
    pictures: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        obs: Mapping[str, np.ndarray],
        action: np.ndarray,
        *,
        count: int,
        rate: float,
        pictures: Mapping[str, np.ndarray] | None = None,
    ) -> Seen:
        """Of rows.

        Args:
            obs: key -> (N, S) float.
            action: (N, A).
            count: steps of which the rows are a sample.
            rate: decisions per second.
            pictures: key -> (N, 48) mosaics.
        """

        def quantiles(rows: np.ndarray) -> tuple[tuple[float, ...], ...]:
            found = np.quantile(np.asarray(rows, np.float64), QUANTILES, axis=0).T
            return tuple(tuple(float(x) for x in row) for row in found)

        views = {key: quantiles(rows) for key, rows in (pictures or {}).items()}
        vectors = {key: quantiles(rows) for key, rows in obs.items()}
        return cls(vectors, quantiles(action), int(count), float(rate), views)

    def strange(self, obs: Mapping[str, np.ndarray], names: tuple[str, ...] = ()) -> list[str]:
        """Components of vector observations that are far from all that training saw, one line each.

        Far is beyond the outermost quantiles by more than they are apart.

        Args:
            obs: key -> (N, S).
            names: of the components of "state", where known.
        """
        lines = []
        for key in self.obs.keys() & obs.keys():
            rows = np.asarray(obs[key], np.float64)
            for i, (ends, column) in enumerate(zip(self.obs[key], rows.T)):
                low, high = ends[0], ends[-1]
                far = (column < low - (high - low)) | (column > high + (high - low))
                if high > low and far.any():
                    name = names[i] if key == "state" and names else f"{key}[{i}]"
                    lines.append(f"{name} is {column[far][0]:.4g}, training saw {low:.4g} to {high:.4g}")
        return lines

    def to_dict(self) -> dict[str, object]:
        """Plain JSON-ready form."""
        return {
            "quantiles": list(QUANTILES),
            "obs": {key: [list(row) for row in rows] for key, rows in self.obs.items()},
            "action": [list(row) for row in self.action],
            "count": self.count,
            "rate": self.rate,
            **({"pictures": {k: [list(row) for row in v] for k, v in self.pictures.items()}} if self.pictures else {}),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Seen:
        """Inverse of `to_dict`."""

        def rows(value: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
            return tuple(tuple(float(x) for x in row) for row in value)

        obs = {str(key): rows(value) for key, value in raw["obs"].items()}
        views = {str(key): rows(value) for key, value in raw.get("pictures", {}).items()}
        return cls(obs, rows(raw["action"]), int(raw["count"]), float(raw["rate"]), views)


def mosaic(pictures: np.ndarray) -> np.ndarray:
    """Mean colours of the 4 x 4 parts of pictures, row by row: enough to tell one camera from another.

    Args:
        pictures: (..., H, W, 3) of 4 pixels or more each way.

    Returns:
        (..., 48) float32, 0 to 255 for uint8.
    """
    pictures = np.asarray(pictures)
    height, width = pictures.shape[-3:-1]
    rows, columns = (np.linspace(0, size, CELLS + 1).astype(int) for size in (height, width))
    parts = [
        pictures[..., top:bottom, left:right, :].mean((-3, -2), dtype=np.float32)
        for top, bottom in pairwise(rows)
        for left, right in pairwise(columns)
    ]
    return np.stack(parts, axis=-2).reshape(*pictures.shape[:-3], CELLS * CELLS * 3)


@dataclass(frozen=True)
class IOSpec:
    """The passport that travels from environment to buffer, policy, checkpoint and robot.

    Attributes:
        obs: key -> (shape without batch, dtype name), e.g. {"state": ((17,), "float32")}.
        action_names: one name per action dimension, length A.
        action_low: (A,) physical lower bounds, in `action_units`; the normalised action -1 maps to it. None: unknown,
            as of a log that does not tell.
        action_high: (A,) physical upper bounds; the normalised action +1 maps to it. None: unknown.
        action_units: (A,) "m", "rad", "rad/s", "N*m" or "1".
        control_hz: decisions per second.
        obs_names: names of the components of "state", or empty when unknown.
        obs_units: key -> units of the components of an observation, where known.
        action_choices: (A,) how many choices each action has, spread evenly from -1 to 1; empty for continuous actions.
        seen: what training saw; no part of the interface, so that neither `check` nor equality looks at it.
        calibration: camera key ("image.front") -> where points fall in its pictures, where that is known; no part of
            the interface either.
        crop: camera key -> left, top, right, bottom of what training saw of a robot's pictures, as shares of width and
            height, where that is a part; whoever shows a policy such pictures cuts them so. Likewise.
    """

    obs: dict[str, tuple[tuple[int, ...], str]]
    action_names: tuple[str, ...]
    action_low: tuple[float | None, ...]
    action_high: tuple[float | None, ...]
    action_units: tuple[str, ...]
    control_hz: float
    obs_names: tuple[str, ...] = ()
    obs_units: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    action_choices: tuple[int, ...] = ()
    seen: Seen | None = field(default=None, compare=False)
    calibration: Mapping[str, Calibration] = field(default_factory=dict, compare=False)
    crop: Mapping[str, tuple[float, float, float, float]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        lengths = {
            "action_names": len(self.action_names),
            "action_low": len(self.action_low),
            "action_high": len(self.action_high),
            "action_units": len(self.action_units),
        }
        if self.action_choices:
            lengths["action_choices"] = len(self.action_choices)
        if len(set(lengths.values())) != 1:
            raise ValueError(f"IOSpec action fields differ in length: {lengths}; expected one entry per action")

    @property
    def action_dim(self) -> int:
        """Number of action dimensions A."""
        return len(self.action_names)

    @property
    def acting(self) -> IOSpec:
        """What a policy needs to act: all but the observation that critics alone read."""
        return replace(self, obs={key: kind for key, kind in self.obs.items() if key != PRIVILEGED})

    @property
    def knows_bounds(self) -> bool:
        """Whether every action has bounds."""
        return None not in (*self.action_low, *self.action_high)

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(A,) lower and (A,) upper bounds.

        Raises:
            ValueError: one of them is unknown.
        """
        low = tuple(x for x in self.action_low if x is not None)
        high = tuple(x for x in self.action_high if x is not None)
        if len(low) != self.action_dim or len(high) != self.action_dim:
            unknown = [n for n, *ends in zip(self.action_names, self.action_low, self.action_high) if None in ends]
            raise ValueError(
                f"nobody knows the physical range of {', '.join(unknown)}, so that [-1, 1] means nothing yet; say "
                "action_low=… action_high=…, or action=normalised where -1 and +1 are the robot's own bounds"
            )
        return low, high

    def differences(self, other: IOSpec) -> list[str]:
        """Every difference that keeps a policy made for `self` from running on `other`, one line each."""
        lines = []
        own, others = self.acting.obs, other.acting.obs
        for key in sorted(own.keys() - others.keys()):
            lines.append(f"observation '{key}' {_spec(own[key])} is missing there")
        for key in sorted(others.keys() - own.keys()):
            lines.append(f"observation '{key}' {_spec(others[key])} is unknown here")
        for key in sorted(own.keys() & others.keys()):
            mine, theirs = _spec(own[key]), _spec(others[key])
            if mine != theirs:
                lines.append(f"observation '{key}' is {mine} here and {theirs} there")
        if self.obs_names and other.obs_names and self.obs_names != other.obs_names:
            pairs = enumerate(zip(self.obs_names, other.obs_names))
            first = next((f"{i}: '{a}' against '{b}'" for i, (a, b) in pairs if a != b), "different lengths")
            lines.append(f"components of 'state' differ, first at {first}")
        for key in sorted(self.obs_units.keys() & other.obs_units.keys()):
            if tuple(self.obs_units[key]) != tuple(other.obs_units[key]):
                mine, theirs = list(self.obs_units[key]), list(other.obs_units[key])
                lines.append(f"observation '{key}' is in {mine} here and in {theirs} there")
        if len(self.action_names) != len(other.action_names):
            lines.append(f"action has {len(self.action_names)} dimensions here and {len(other.action_names)} there")
        else:
            for i, name in enumerate(self.action_names):
                if name != other.action_names[i]:
                    lines.append(f"action {i} is '{name}' here and '{other.action_names[i]}' there")
                if self.action_units[i] != other.action_units[i]:
                    units = f"{self.action_units[i]} here and {other.action_units[i]} there"
                    lines.append(f"action {i} ({name}) is in {units}")
                mine = (self.action_low[i], self.action_high[i])
                theirs = (other.action_low[i], other.action_high[i])
                if None in mine or None in theirs:  # two that are unknown are not the same by that
                    here, there = ("an unknown range" if None in ends else list(ends) for ends in (mine, theirs))
                    lines.append(f"action {i} ({name}) spans {here} here and {there} there")
                elif not np.allclose(_ends(mine), _ends(theirs), rtol=1e-6, atol=1e-9):
                    lines.append(f"action {i} ({name}) spans {list(mine)} here and {list(theirs)} there")
        if self.action_choices != other.action_choices:
            here, there = (list(io.action_choices) or "any number" for io in (self, other))
            lines.append(f"choices of the actions are {here} here and {there} there")
        if not np.isclose(self.control_hz, other.control_hz, rtol=1e-3):
            lines.append(f"control rate is {self.control_hz:g} Hz here and {other.control_hz:g} Hz there")
        return lines

    def check(self, other: IOSpec) -> None:
        """Prove that data or a policy made for `self` fits `other`.

        Raises:
            ValueError: listing every difference.
        """
        lines = self.differences(other)
        if lines:
            raise ValueError("the two interfaces do not fit:\n  - " + "\n  - ".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form, the content of a checkpoint's io.json."""
        return {
            "obs": {key: {"shape": list(shape), "dtype": dtype} for key, (shape, dtype) in self.obs.items()},
            "obs_names": list(self.obs_names),
            "obs_units": {key: list(units) for key, units in self.obs_units.items()},
            "action_names": list(self.action_names),
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
            "action_units": list(self.action_units),
            "control_hz": self.control_hz,
            **({"action_choices": list(self.action_choices)} if self.action_choices else {}),
            **({} if self.seen is None else {"seen": self.seen.to_dict()}),
            **({"calibration": {k: c.to_dict() for k, c in self.calibration.items()}} if self.calibration else {}),
            **({"crop": {key: list(part) for key, part in self.crop.items()}} if self.crop else {}),
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> IOSpec:
        """Inverse of `to_dict`.

        Raises:
            ValueError: a field is missing.
        """
        try:
            return cls(
                obs={key: (tuple(item["shape"]), str(item["dtype"])) for key, item in raw["obs"].items()},
                obs_names=tuple(raw.get("obs_names", ())),
                obs_units={key: tuple(units) for key, units in raw.get("obs_units", {}).items()},
                action_names=tuple(raw["action_names"]),
                action_low=_ends(raw["action_low"]),
                action_high=_ends(raw["action_high"]),
                action_units=tuple(raw["action_units"]),
                control_hz=float(raw["control_hz"]),
                action_choices=tuple(int(count) for count in raw.get("action_choices", ())),
                seen=Seen.from_dict(raw["seen"]) if raw.get("seen") else None,
                calibration={key: Calibration.from_dict(item) for key, item in raw.get("calibration", {}).items()},
                crop={
                    key: (float(a), float(b), float(c), float(d)) for key, (a, b, c, d) in raw.get("crop", {}).items()
                },
            )
        except KeyError as error:
            raise ValueError(f"io.json lacks the field {error}; expected the form written by IOSpec.to_dict") from error


def choice_of(action: ArrayT, count: int) -> ArrayT:
    """Which of `count` choices each action in [-1, 1] is nearest to: 0 to count - 1, whole numbers in its own dtype."""
    index = (action + 1.0) * (0.5 * (count - 1))
    return np.rint(index) if isinstance(index, np.ndarray) else index.round()


def action_of(choice: ArrayT, count: int) -> ArrayT:
    """The action in [-1, 1] that stands for a choice: the inverse of `choice_of`."""
    return choice * (2.0 / max(count - 1, 1)) - 1.0


def _spec(item: tuple[tuple[int, ...], str]) -> str:
    return f"{item[1]}{list(item[0])}"


def _ends(values: Any) -> tuple[Any, ...]:
    """Floats, and None where there is none."""
    return tuple(None if x is None else float(x) for x in values)
