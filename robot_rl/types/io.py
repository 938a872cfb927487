"""The passport between environment, buffer, policy, checkpoint and robot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class IOSpec:
    """The passport that travels from environment to buffer, policy, checkpoint and robot.

    Attributes:
        obs: key -> (shape without batch, dtype name), e.g. {"state": ((17,), "float32")}.
        action_names: one name per action dimension, length A.
        action_low: (A,) physical lower bounds, in `action_units`; the normalised action -1 maps to it.
        action_high: (A,) physical upper bounds; the normalised action +1 maps to it.
        action_units: (A,) "m", "rad", "rad/s", "N*m" or "1".
        control_hz: decisions per second.
        obs_names: names of the components of "state", or empty when unknown.
    """

    obs: dict[str, tuple[tuple[int, ...], str]]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    action_units: tuple[str, ...]
    control_hz: float
    obs_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {
            name: len(getattr(self, name)) for name in ("action_names", "action_low", "action_high", "action_units")
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"IOSpec action fields differ in length: {lengths}; expected one entry per action")

    @property
    def action_dim(self) -> int:
        """Number of action dimensions A."""
        return len(self.action_names)

    def differences(self, other: IOSpec) -> list[str]:
        """Every difference that keeps a policy made for `self` from running on `other`, one line each."""
        lines = []
        for key in sorted(self.obs.keys() - other.obs.keys()):
            lines.append(f"observation '{key}' {_spec(self.obs[key])} is missing there")
        for key in sorted(other.obs.keys() - self.obs.keys()):
            lines.append(f"observation '{key}' {_spec(other.obs[key])} is unknown here")
        for key in sorted(self.obs.keys() & other.obs.keys()):
            mine, theirs = _spec(self.obs[key]), _spec(other.obs[key])
            if mine != theirs:
                lines.append(f"observation '{key}' is {mine} here and {theirs} there")
        if self.obs_names and other.obs_names and self.obs_names != other.obs_names:
            pairs = enumerate(zip(self.obs_names, other.obs_names))
            first = next((f"{i}: '{a}' against '{b}'" for i, (a, b) in pairs if a != b), "different lengths")
            lines.append(f"components of 'state' differ, first at {first}")
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
                if not np.allclose(mine, theirs, rtol=1e-6, atol=1e-9):
                    lines.append(f"action {i} ({name}) spans {list(mine)} here and {list(theirs)} there")
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
            "action_names": list(self.action_names),
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
            "action_units": list(self.action_units),
            "control_hz": self.control_hz,
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
                action_names=tuple(raw["action_names"]),
                action_low=tuple(float(x) for x in raw["action_low"]),
                action_high=tuple(float(x) for x in raw["action_high"]),
                action_units=tuple(raw["action_units"]),
                control_hz=float(raw["control_hz"]),
            )
        except KeyError as error:
            raise ValueError(f"io.json lacks the field {error}; expected the form written by IOSpec.to_dict") from error


def _spec(item: tuple[tuple[int, ...], str]) -> str:
    return f"{item[1]}{list(item[0])}"
