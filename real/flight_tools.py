"""What `robot-rl replay` asks of the robot's room: flights again, as they were or with something changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.exact import pack
from robot_rl.data.flight_read import AlteredFlight, Record, read, write
from robot_rl.real.core.flight import machine, tell_model
from robot_rl.real.core.flight_replay import Changes, Comparison, Forward, SupervisorReplay
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.graph import find_file
from robot_rl.real.policy_runner import PolicyRunner, RunnerOptions, fit_policy
from robot_rl.real.runner_flight import PolicyComparison, PolicyReplay, digests, replace_commands
from robot_rl.types import Loaded

LoadPolicy = Callable[[str, str, int], Loaded]
"""(path, device, threads) -> policy."""
ToolPosition = Callable[[str, str, Sequence[str]], Forward]
"""(model, site, joints) -> forward kinematics."""


@dataclass(frozen=True)
class Question:
    """What is to be replayed.

    Args:
        supervisor: replay its part.
        policy: replay its part.
        limits: see `Changes`.
        robot: another robot's file or name, "" = that of the flight.
        other: folder of another policy, or where the flight's own lies now; "" = where it lay.
    """

    supervisor: bool = True
    policy: bool = True
    limits: Mapping[str, float] = field(default_factory=dict)
    robot: str = ""
    other: str = ""


@dataclass(frozen=True)
class FlightSummary:
    """A flight that was read: its file, number of records, length [s], and the attributes of `Flight`."""

    path: Path
    records: int
    seconds: float
    closed: bool
    digest: str


@dataclass
class FlightAnswer:
    """What came of it; None where a flight has no such part, or was not asked.

    Attributes:
        flights: that were read.
        supervisor: of the supervisor's part.
        policy: of the policy's.
        changed: whether anything was asked to be otherwise.
        told: offers of the policy that the supervisor was given from the other policy.
        untold: offers that could not be told from the other policy, and stayed.
        machines: what the flight was written with, where that differs from here: name -> (there, here).
    """

    flights: list[FlightSummary] = field(default_factory=list)
    supervisor: Comparison | None = None
    policy: PolicyComparison | None = None
    changed: bool = False
    told: int = 0
    untold: int = 0
    machines: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether everything was the same, bit for bit."""
        return all(part is None or part.same for part in (self.supervisor, self.policy))


def find_flights(paths: Sequence[str]) -> list[Path]:
    """Files of flights: as given, and all in a folder.

    Raises:
        FileNotFoundError: nothing is there.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.glob("*.mcap")) if path.is_dir() else [path]
        if not inside or not inside[0].is_file():
            raise FileNotFoundError(f"there is no flight at {path}; expected a flight_*.mcap, or a folder with some")
        found += inside
    return found


def replay(
    paths: Sequence[str],
    question: Question,
    load: LoadPolicy,
    tool_position: ToolPosition,
    say: Callable[[str], object],
) -> FlightAnswer:
    """Flights of one deployment again; one file at a time is in memory.

    Args:
        paths: their files, or a folder.
        question: what of it, and with what changed.
        load: reads a policy.
        tool_position: forward kinematics of a model, for a robot with a workspace.
        say: is told what a policy says while it is made.

    Raises:
        ValueError: altered files, or changes that do not fit.
        OSError: files that are not there.
    """
    files, answer = find_flights(paths), FlightAnswer()
    facts: list[dict[str, Any]] = []
    for flight in map(read, files):
        told = [one.value for one in flight.records if one.topic == "facts"]
        if not all(isinstance(fact, dict) and "of" in fact for fact in told):
            raise AlteredFlight(f"{flight.path} holds facts of nothing; no deployment wrote it")
        summary = FlightSummary(flight.path, len(flight.records), flight.seconds, flight.closed, flight.digest)
        answer.flights.append(summary)
        facts += told
    for name, here in machine().items():
        others = [there for fact in facts if (there := fact.get("machine", {}).get(name, here)) != here]
        if others:
            answer.machines[name] = others[0], here
    parts = {str(fact["of"]) for fact in facts}
    _check(question, parts, files[0])
    commands: list[Mapping[int, np.ndarray]] = [{} for _ in files]
    if question.policy and "policy" in parts:
        again = PolicyReplay(lambda made: _runner(made, question.other, load, say), keep=bool(question.other))
        for file in files:
            again.run(read(file).records)
        answer.policy = again.result
        if not again.result.same:
            for number, file in enumerate(files):
                commands[number], untold = replace_commands(again.result.decisions, read(file).records)
                answer.told, answer.untold = answer.told + len(commands[number]), answer.untold + untold
    spec = RobotSpec.load(find_file(question.robot)) if question.robot else None
    answer.changed = bool(question.limits or question.robot or question.other)
    if question.supervisor and "supervisor" in parts:
        replayed = SupervisorReplay(lambda model: _forward(model, tool_position, facts))
        for file, other in zip(files, commands):
            replayed.run(read(file).records, Changes(spec, question.limits, other))
        answer.supervisor = replayed.result
    return answer


def _check(question: Question, parts: set[str], file: Path) -> None:
    if not parts & {"supervisor", "policy"}:
        raise ValueError(f"{file} holds neither a supervisor's nor a policy's part; nothing had begun when it ended")
    if (question.limits or question.robot) and "supervisor" not in parts:
        raise ValueError("other limits are a question to a supervisor, and none is in this flight; give its file too")
    if question.other and "policy" not in parts:
        raise ValueError("another policy is a question to a policy's part, and none is in this flight; give its file")


def _runner(facts: Mapping[str, Any], other: str, load: LoadPolicy, say: Callable[[str], object]) -> PolicyRunner:
    """A runner of the policy that flew, or of another."""
    path = other or str(facts["path"])
    if not Path(path).exists():
        raise FileNotFoundError(
            f"the policy of this flight lay at {path}, and nothing is there now; give policy=<run folder> with the "
            "same files, or only=supervisor"
        )
    loaded = load(path, str(facts["device"]), int(facts["threads"]))
    found = digests(loaded.files)
    others = sorted(name for name in {*found, *facts["files"]} if found.get(name) != facts["files"].get(name))
    if others and not other:
        raise ValueError(
            f"{', '.join(others)} of the policy at {path} are not the files that flew (another SHA-256); give "
            "policy=<run folder> that holds those, or ask what this one would have done with "
            f"policy={path}"
        )
    loaded = replace(loaded, io=replace(loaded.io, crop={}))  # the pictures of a flight are cut already
    policy, port = fit_policy(loaded, RobotSpec.from_dict(facts["spec"]), facts["said"], say)
    return PolicyRunner(policy, port, RunnerOptions(**facts["options"]), identity=str(facts["identity"]), say=say)


def _forward(model: Mapping[str, Any], tool_position: ToolPosition, facts: Sequence[Mapping[str, Any]]) -> Forward:
    path = str(model["path"])
    if tell_model(path, "")["sha256"] != model["sha256"]:
        raise ValueError(
            f"the workspace of this flight was kept with the model {path}, and that file is not there as it was "
            f"(SHA-256 {model['sha256'][:16]}…); put it back"
        )
    spec = next(RobotSpec.from_dict(fact["spec"]) for fact in facts if fact["of"] == "supervisor")
    return tool_position(path, str(model["site"]), spec.names)


def join(paths: Sequence[str], out: str | Path) -> str:
    """The parts of one deployment as one file, in the order of their times; their digests stand in it as a fact.

    Returns:
        Digest of the new file.

    Raises:
        FileExistsError: there is such a file.
    """
    flights = [read(path) for path in find_flights(paths)]
    told = {"of": "join", "digests": [one.digest for one in flights], "closed": [one.closed for one in flights]}
    records = sorted((one for flight in flights for one in flight.records), key=lambda one: one.when)
    begin = records[0].when if records else 0
    return write(out, [Record("facts", begin, memoryview(pack(told))), *records])
