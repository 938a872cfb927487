"""The policy's part of a flight recorder: what it saw, what it answered, and what was commanded of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robot_rl.data.exact import pack
from robot_rl.data.flight import FlightWriter
from robot_rl.data.flight_read import AlteredFlight, Record
from robot_rl.real.core.flight import machine
from robot_rl.real.core.flight_replay import Difference
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions, Setpoints
from robot_rl.real.port import IMAGE
from robot_rl.types import Policy, Port, Seen

_numbers = count()


class RecordedRunner(PolicyRunner):
    """A runner that tells a flight recorder of every call, with what came of it.

    Pictures are kept as the policy saw them, in its own size. Everything is copied, since a port may show the same
    arrays again.

    Args:
        policy: to ask.
        port: of the robot.
        options: rates and ways.
        identity: for recordings.
        flight: where it is told.
        facts: where the policy comes from: `path`, `files` (name -> SHA-256), and what else a loader needs to know.
        seen: see `PolicyRunner`.
        say: see `PolicyRunner`.
    """

    def __init__(
        self,
        policy: Policy,
        port: Port,
        options: RunnerOptions,
        *,
        identity: str,
        flight: FlightWriter,
        facts: Mapping[str, object],
        seen: Seen | None = None,
        say: Callable[[str], object] = print,
    ) -> None:
        super().__init__(policy, port, options, identity=identity, seen=seen, say=say)
        self.number, self._flight = next(_numbers), flight
        own = {"number": self.number, "identity": identity, "options": options.model_dump(), "machine": machine()}
        flight.put("facts", math.nan, {"of": "policy", **own, **facts})

    def restart(self) -> None:
        """See `PolicyRunner.restart`; told where it changes anything."""
        if self._count or len(self._to):
            self._flight.put("policy", self._flight.now(), ("restart", self.number))
        super().restart()

    def follow(self, other: PolicyRunner) -> None:
        """See `PolicyRunner.follow`."""
        assert isinstance(other, RecordedRunner), "a recorded runner takes over from a recorded one"
        self._flight.put("policy", self._flight.now(), ("follow", self.number, other.number))
        super().follow(other)

    def tick(self, position: np.ndarray, velocity: np.ndarray, task: Mapping[str, np.ndarray]) -> Setpoints | None:
        """See `PolicyRunner.tick`."""
        begin = self._flight.now()
        given = [np.array(position), np.array(velocity)]
        seen = {key: np.array(value) for key, value in task.items() if not key.startswith(IMAGE)}
        before = self.asked
        try:
            wanted = super().tick(position, velocity, task)
        except Exception as error:
            told = ("raise", self.number, *given, seen, type(error).__name__)
            self._flight.put("policy", begin, told)
            raise
        asked = None
        if self.asked is not None and self.asked is not before:
            obs, action = self.asked
            asked = {key: np.array(value) for key, value in obs.items()}, action.copy()
            seen |= {key: value[0] for key, value in asked[0].items() if key.startswith(IMAGE)}
        self._flight.put("policy", begin, ("tick", self.number, *given, seen, asked, wanted))
        return wanted


class RunnerTick(NamedTuple):
    """What a policy wanted in one tick.

    Args:
        when: [ns of the flight].
        recorded: (n, J) of the flight, None where it sent nothing.
        replayed: (n, J) of the replay.
    """

    when: int
    recorded: np.ndarray | None
    replayed: np.ndarray | None


@dataclass
class PolicyComparison:
    """A policy against its recording.

    Attributes:
        ticks: replayed.
        asked: of them those in which the policy was asked.
        others: ticks in which observation, action or command are not the same.
        first: the first of them.
        largest: largest difference of an action, in its range of -1 to 1.
        largest_command: largest difference of what was to be commanded, in its own unit.
        bad: ticks whose command would not be finite.
        decisions: every tick that commands, where they are kept.
    """

    ticks: int = 0
    asked: int = 0
    others: int = 0
    first: Difference | None = None
    largest: float = 0.0
    largest_command: float = 0.0
    bad: int = 0
    decisions: list[RunnerTick] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether everything was the same, bit for bit."""
        return self.others == 0


class PolicyReplay:
    """Feeds the records of a flight to fresh runners.

    Args:
        make: facts of a policy -> a runner of it, or of the policy that is tried in its place.
        keep: keep what is commanded in every tick, for `replace_commands`.
    """

    def __init__(self, make: Callable[[Mapping[str, Any]], PolicyRunner], *, keep: bool = False) -> None:
        self.result = PolicyComparison()
        self._make, self._keep = make, keep
        self._runners: dict[int, PolicyRunner] = {}
        self._begin: int | None = None

    def run(self, records: Iterable[Record]) -> PolicyComparison:
        """All records of a flight.

        Raises:
            AlteredFlight: a record that no runner wrote.
        """
        for record in records:
            if record.topic not in ("facts", "policy"):
                continue
            value = record.value
            if record.topic == "facts":
                if value["of"] == "policy":
                    self._runners[value["number"]] = self._make(value)
                continue
            self._begin = record.when if self._begin is None else self._begin
            try:
                self._take(value, record.when)
            except (TypeError, IndexError, KeyError) as error:
                raise AlteredFlight(f"a record of the topic policy makes no sense: {error!r}") from error
        return self.result

    def _take(self, value: Any, when: int) -> None:
        name, runner = value[0], self._runners[value[1]]
        if name == "restart":
            runner.restart()
        elif name == "follow":
            runner.follow(self._runners[value[2]])
        elif name == "tick":
            self._tick(runner, value, when)
        elif name == "raise":
            self._raise(runner, value, when)
        else:
            raise AlteredFlight(f"{name!r} is no call of a policy")

    def _tick(self, runner: PolicyRunner, value: Any, when: int) -> None:
        if len(value) != 7:
            raise AlteredFlight(f"a record of the topic policy holds {len(value)} values, expected 7")
        _, _, position, velocity, task, asked, recorded = value
        r, runner.asked = self.result, None
        wanted = runner.tick(position, velocity, task)
        before = None if recorded is None else np.asarray(recorded[1])
        after = None if wanted is None else wanted.values
        if self._keep and (before is not None or after is not None):
            r.decisions.append(RunnerTick(when, before, after))
        r.bad += after is not None and not bool(np.isfinite(after).all())
        if pack((asked, recorded)) != pack((runner.asked, wanted)):
            r.others += 1
            self._measure(asked, runner.asked, before, after, when)
        r.ticks += 1
        r.asked += runner.asked is not None

    def _raise(self, runner: PolicyRunner, value: Any, when: int) -> None:
        """A tick that ended in an exception; the counts of the runner have gone on all the same."""
        _, _, position, velocity, task, recorded = value
        said = "an answer"
        try:
            runner.tick(position, velocity, task)
        except Exception as error:  # whatever a policy raises
            said = type(error).__name__
        r = self.result
        if said != recorded:
            r.others += 1
            r.first = r.first or Difference(r.ticks, 1e-9 * (when - (self._begin or when)), "exception", recorded, said)
        r.ticks += 1

    def _measure(self, asked: Any, again: Any, before: Any, after: Any, when: int) -> None:
        r = self.result
        if asked is not None and again is not None:
            r.largest = max(r.largest, _way(asked[1], again[1]))
        r.largest_command = max(r.largest_command, _way(before, after))
        if r.first is None:
            what, words = "command", [_tell(before), _tell(after)]
            if asked is not None and again is not None and pack(asked) != pack(again):
                seen = pack(asked[0]) == pack(again[0])
                what = "action" if seen else "observation"
                words = [_tell(one[1] if seen else one[0]) for one in (asked, again)]
            r.first = Difference(r.ticks, 1e-9 * (when - (self._begin or when)), what, *words)


def _way(a: np.ndarray | None, b: np.ndarray | None) -> float:
    """Largest difference of two arrays; infinite where they have no common shape or one is not finite."""
    if a is None or b is None or np.shape(a) != np.shape(b):
        return 0.0 if a is None and b is None else math.inf
    way = np.abs(np.asarray(a, float) - np.asarray(b, float))
    return float(way.max(initial=0.0)) if np.isfinite(way).all() else math.inf


def _tell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_tell(item)}" for key, item in value.items())
    text = "nothing" if value is None else str(np.asarray(value).tolist())
    return text if len(text) <= 400 else f"{text[:400]} …"


def replace_commands(decisions: list[RunnerTick], records: Iterable[Record]) -> tuple[dict[int, np.ndarray], int]:
    """What another policy would have said in the messages that a supervisor was offered.

    Args:
        decisions: of the policy's part of the flight.
        records: of the supervisor's part.

    Returns:
        Number of an offer, from 0 -> (J,) its command; and how many offers could not be told: chunks, which are played
        between their points, and such that match no decision of the second before.
    """
    found: dict[int, np.ndarray] = {}
    untold, end = 0, 0
    for number, record in enumerate(one for one in records if one.topic == "offer"):
        (source, _, _, _, _, times, values, *_), _, dropped = record.value
        if source != "policy" or dropped or not len(times):
            continue
        while end < len(decisions) and decisions[end].when <= record.when:
            end += 1
        array = np.asarray(next(iter(values.values())))
        lately = (one for one in reversed(decisions[max(end - 200, 0) : end]) if record.when - one.when <= 1e9)
        after = next((one.replayed for one in lately if _equal(one.recorded, array)), None)
        if after is None or len(array) != 1 or after.shape != array.shape:
            untold += 1
        else:
            found[number] = after[0]
    return found, untold


def _equal(a: np.ndarray | None, b: np.ndarray) -> bool:
    return a is not None and a.shape == b.shape and bool(np.array_equal(a, b))


def digests(files: Iterable[str]) -> dict[str, str]:
    """Name of a file -> SHA-256 of what is in it."""
    found = {}
    for name in files:
        digest = hashlib.sha256()
        with open(name, "rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        found[Path(name).name] = digest.hexdigest()
    return found
