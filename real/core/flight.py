"""The supervisor's part of a flight recorder: all that goes in at its door and all that comes out, in its own order."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.flight import FlightWriter
from robot_rl.real.core.settings import SafetySettings
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.core.supervisor import SafetySupervisor
from robot_rl.real.robot import Command, RobotState, Verdict
from robot_rl.types.card import CalibrationCard
from robot_rl.version import VERSION


def machine() -> dict[str, str]:
    """What the last bit of a number may depend on besides its inputs."""
    return {"robot_rl": VERSION, "numpy": np.__version__, "processor": platform.machine(), "system": platform.system()}


def spec_table(spec: RobotSpec) -> dict[str, Any]:
    """A RobotSpec as the table that `RobotSpec.from_dict` makes the same one of."""
    return {key: _plain(value) for key, value in _changed_fields(spec).items()}


def _changed_fields(item: object) -> dict[str, object]:
    """Fields of a dataclass that are not at their defaults."""
    assert is_dataclass(item)
    found = {}
    for entry in fields(item):
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        value = vars(item)[entry.name]
        if default is MISSING or value != default:
            found[entry.name] = value
    return found


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {key: _plain(item) for key, item in _changed_fields(value).items()}
    if isinstance(value, CalibrationCard):
        return value.model_dump(mode="json")
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


class RecordedSupervisor(SafetySupervisor):
    """A supervisor that tells a flight recorder of every call, with what came of it, in the order of its own lock.

    A second supervisor, made of the same card and settings and called so, answers the same bit for bit (`replay`). The
    arrays of states and commands are kept by reference, as the supervisor itself keeps the last state: whoever calls
    does not write into them afterwards.

    Args:
        spec: of the robot.
        settings: times and tolerances.
        flight: where it is told.
        forward: see `SafetySupervisor`; who gives one tells the flight which model it is of, as the fact `model`.
    """

    def __init__(
        self,
        spec: RobotSpec,
        settings: SafetySettings | None = None,
        *,
        flight: FlightWriter,
        forward: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        super().__init__(spec, settings, forward=forward)
        self._flight = flight
        facts = {"spec": spec_table(spec), "settings": asdict(self.settings), "machine": machine()}
        flight.put("facts", math.nan, {"of": "supervisor", **facts})

    def filter(self, command: Command | None, state: RobotState | None, now: float) -> tuple[Command, Verdict]:
        """See `SafetySupervisor.filter`."""
        with self._lock:
            sent, verdict = super().filter(command, state, now)
            self._flight.put("tick", self._now, (now, command, state, sent, verdict))
            return sent, verdict

    def enable(self, on: bool = True) -> list[str]:
        """See `SafetySupervisor.enable`."""
        with self._lock:
            refused = super().enable(on)
            self._tell("enable", (on,), refused)
            return refused

    def rearm(self) -> list[str]:
        """See `SafetySupervisor.rearm`."""
        with self._lock:
            refused = super().rearm()
            self._tell("rearm", (), refused)
            return refused

    def estop(self, source: str = "operator", *, pressed: bool = True) -> None:
        """See `SafetySupervisor.estop`."""
        with self._lock:
            super().estop(source, pressed=pressed)
            self._tell("estop", (source, pressed))

    def report(self, code: str, numbers: str = "") -> None:
        """See `SafetySupervisor.report`."""
        with self._lock:
            super().report(code, numbers)
            self._tell("report", (code, numbers))

    def hinder(self, conditions: Sequence[str]) -> None:
        """See `SafetySupervisor.hinder`; the same conditions again are no call."""
        wanted = tuple(conditions)
        if wanted != self._outside:
            with self._lock:
                super().hinder(wanted)
                self._tell("hinder", (wanted,))

    def soft_stop(self) -> None:
        """See `SafetySupervisor.soft_stop`."""
        with self._lock:
            super().soft_stop()
            self._tell("soft_stop", ())

    def adopt(self, settings: SafetySettings) -> None:
        """See `SafetySupervisor.adopt`."""
        with self._lock:
            super().adopt(settings)
            self._tell("adopt", (asdict(settings),))

    def shutdown(self) -> None:
        """See `SafetySupervisor.shutdown`."""
        with self._lock:
            super().shutdown()
            self._tell("shutdown", ())

    def _tell(self, name: str, arguments: tuple[object, ...], result: list[str] | None = None) -> None:
        self._flight.put("call", self._now, (name, arguments, None if result is None else tuple(result)))


def tell_model(model: str, site: str) -> dict[str, str]:
    """The fact of a model that a workspace is kept with: a file, with its SHA-256, or a name, which has none."""
    file = Path(model).expanduser()
    if not file.is_file():
        return {"of": "model", "site": site, "path": model, "sha256": ""}
    return {"of": "model", "site": site, "path": str(file.resolve()), "sha256": sha256(file.read_bytes()).hexdigest()}


def tell_card(flight: FlightWriter, path: str | Path) -> None:
    """Keep the file of a robot as it is, for people; what is replayed is the supervisor's own fact."""
    flight.put("facts", math.nan, {"of": "card", "path": str(path), "text": Path(path).read_text(encoding="utf-8")})
