"""The verb replay: a recorded flight again, bit for bit, or as it would have been with something changed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from omegaconf import DictConfig
from pydantic import Field

from robot_rl import build
from robot_rl.types import Loaded
from robot_rl.types.options import Meaning, Number
from robot_rl.verbs import answer
from robot_rl.verbs.options import Folders, VerbOptions
from robot_rl.verbs.reading import plain
from robot_rl.verbs.robot_policy import load_robot_policy
from robot_rl.words import Refused

if TYPE_CHECKING:
    from robot_rl.data.flight_read import Flight

Limits = Annotated[dict[str, Number | dict[str, Number]], Meaning("names with numbers, limits.velocity=0.5")]


class ReplayOptions(VerbOptions):
    """robot-rl replay."""

    path: Folders
    """A flight (flight_….mcap), several of one deployment as a list, or a folder of them."""
    only: Literal["supervisor", "policy"] | None = None
    """One part alone."""
    limits: Limits = Field(default_factory=dict)
    """What if: other limits, of all joints (limits.velocity=0.5), of one (limits.j1.velocity=0.5), or settings
    (limits.command_timeout=0.05)."""
    robot: str | None = None
    """What if: another robot of the same joints, its card or RobotSpec."""
    policy_path: str | None = None
    """What if: another policy's run folder (also policy=); with the files that flew: where they lie now."""
    out: str | None = None
    """Write the flights as one file."""


def as_replay_option(item: str) -> str:
    """`limits.NAME=NUMBER` as Hydra takes names that are in no file, and `policy=`, which is a group of other verbs."""
    if item.startswith("policy="):
        return f"policy_path={item.removeprefix('policy=')}"
    return f"+{item}" if item.startswith("limits.") else item


def replay(cfg: DictConfig) -> None:
    """Replay and compare; ends with 0 when all was the same, 1 when not.

    Raises:
        Refused: an altered file, or a question that does not fit the flight.
    """
    tools = build.tool("real.flight_tools")
    paths = [cfg.path] if isinstance(cfg.path, str) else plain(cfg.path)

    def load(path: str, device: str, threads: int) -> Loaded:
        return load_robot_policy(path, device=device, threads=threads, trust=cfg.trust is True)

    def say(text: object) -> None:
        print(text, file=sys.stderr)

    if cfg.out and Path(cfg.out).exists():
        raise Refused(f"out={cfg.out} exists; nothing is overwritten, give another name")
    question = tools.Question(
        supervisor=cfg.only != "policy",
        policy=cfg.only != "supervisor",
        limits=flat(plain(cfg.limits)),
        robot=cfg.robot or "",
        other=cfg.policy_path or "",
    )
    try:
        found = tools.replay(paths, question, load, build.tool("sim.tool:tool_position"), say)
    except (KeyError, TypeError) as error:  # facts without what they are made of
        raise Refused(f"{', '.join(paths)}: no deployment of this version wrote it ({error!r})") from error
    for flight in found.flights:
        tell_flight(flight)
    if cfg.out:
        digest = tools.join(paths, cfg.out)
        answer.note(out=str(cfg.out))
        print(f"{cfg.out}: written, digest {digest[:16]}…")
    if found.supervisor is not None:
        tell_supervisor(found.supervisor, found.changed)
    if found.policy is not None:
        tell_policy(found.policy, bool(cfg.policy_path))
    if found.told or found.untold:
        print(f"  {found.told} messages were given to the supervisor as the other policy's, {found.untold} (chunks, "
              "or of no recorded decision) stayed as they were")  # fmt: skip
    if found.changed:
        print("  what was measured is the flight's: the robot would have moved otherwise")
    elif not found.same and found.machines:
        rows = ", ".join(f"{name} {there} ({here} here)" for name, (there, here) in found.machines.items())
        print(f"  written with {rows}: the last bit of a number may depend on it")
    answer.note(same=found.same, what_if=found.changed, told=found.told, untold=found.untold)
    print("the same, bit for bit" if found.same else "not the same" if not found.changed else "changed")
    if not found.same:
        sys.exit(1)


def flat(limits: Mapping[str, Any]) -> dict[str, float]:
    """`{j1: {velocity: 1}}` as `{j1.velocity: 1}`."""
    found: dict[str, float] = {}
    for name, value in limits.items():
        found |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    return found


def tell_flight(flight: Flight) -> None:
    """What was read."""
    end = "" if flight.closed else "; its process was killed, all but the last tenths of a second is here"
    print(f"{flight.path}: {flight.records} records, {flight.seconds:.1f} s, unaltered{end}")
    print(f"  digest {flight.digest}")
    answer.note(digest=flight.digest, closed=flight.closed)


def tell_supervisor(found: Any, changed: bool) -> None:
    """The supervisor's part."""
    print(f"supervisor: {found.ticks} ticks and {found.calls} calls, {found.others} not the same")
    answer.note(supervisor={**asdict(found), "same": found.same})
    if found.same:
        return
    tell_first(found.first)
    if found.largest:
        tick, joint = found.at
        print(f"  largest difference of a command {found.largest:.6g}, {joint} in tick {tick}")
    if changed:
        print(f"  cut to a limit: {found.clipped[0]} ticks in the flight, {found.clipped[1]} now")
    for code in dict.fromkeys([*found.faults[0], *found.faults[1]]):
        there, here = (table.get(code) for table in found.faults)
        if there != here:
            words = ["not at all" if tick is None else f"in tick {tick}" for tick in (there, here)]
            print(f"  fault {code}: {words[0]} in the flight, {words[1]} now")


def tell_policy(found: Any, changed: bool) -> None:
    """The policy's part."""
    print(f"policy: {found.ticks} ticks, asked in {found.asked}, {found.others} not the same")
    content = {key: value for key, value in vars(found).items() if key not in ("decisions", "first")}
    first = None if found.first is None else asdict(found.first)
    answer.note(policy={**content, "first": first, "same": found.same})
    if found.same:
        return
    tell_first(found.first)
    print(f"  largest difference of an action {found.largest:.6g}, of a command {found.largest_command:.6g}")
    if changed and found.bad:
        print(f"  in {found.bad} ticks the other policy's command is not finite")


def tell_first(first: Any) -> None:
    """Where it begins."""
    print(f"  first in tick {first.tick}, after {first.when:.3f} s: {first.what}")
    print(f"    in the flight  {first.recorded}")
    print(f"    now            {first.replayed}")
