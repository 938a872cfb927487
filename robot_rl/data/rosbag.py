"""rosbag2 recordings (sqlite3 and MCAP) as episodes, through a map of topics to an interface.

A map is a YAML file:

    clock: 50                                    # control rate in Hz, or the topic whose messages are the steps
    observation:
      - {topic: /joint_states, field: position, joints: [shoulder, elbow], kind: angle, key: state}
      - {topic: /joint_states, field: velocity, joints: [shoulder, elbow]}
      - {topic: /imu, field: orientation, kind: quaternion}       # fields x, y, z, w
    action: {topic: /command, field: data, latency_s: 0.0}
    reward: {topic: /reward, field: data}        # or a number per step; left out: zeros
    episode: {start: /episode_start, stop: /episode_stop, gap_s: 2.0}
    max_age_s: 0.1                               # default 2.5 periods of the clock
    action_low: -2.0                             # physical bounds, a number or a list: they become -1 and +1
    action_high: 2.0
    action_units: N*m                            # or a list

Joints are looked up by name in every message, because their order may change. Times are those of the headers; where a
stamp is 0 or runs backwards the time of reception counts, and is reported. Commands and `kind: zoh` hold their last
value before t, `linear` (the default for floats) interpolates, `angle` unwraps before, `quaternion` follows the great
arc after its signs are aligned. The action of a step is the command in force over [t, t + dt).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator

from robot_rl import extras
from robot_rl.data import bag_check, foreign, mcap_salvage
from robot_rl.data.bounds import read_declared
from robot_rl.data.episode import Logs, episode_from_columns
from robot_rl.data.findings import BadData, Finding, error, note, refusal, stop_on_errors, warning
from robot_rl.data.lerobot import action_lag
from robot_rl.data.log_map import Hertz, Real, read_map
from robot_rl.data.read_options import AS_IT_IS, ReadOptions
from robot_rl.data.tables import even_times, hold, interpolate
from robot_rl.types import Episode, IOSpec, Options

HEEDS = ("map", "ros_distro", "salvage")
_STORES = ("humble", "jazzy", "kilted", "iron", "foxy", "galactic", "dashing", "eloquent", "latest")


class _Entry(Options):
    """A field of the messages of a topic."""

    topic: str
    field: str
    joints: tuple[str, ...] | None = None


class _Seen(_Entry):
    kind: Literal["linear", "zoh", "angle", "quaternion"] = "linear"
    key: str = "state"


class _Held(_Entry):
    kind: Literal["zoh"] = "zoh"


class _Command(_Held):
    latency_s: Real = 0.0


class _Rule(Options):
    """Where episodes begin and end: topics whose messages say so, seconds of silence."""

    start: str | None = None
    stop: str | None = None
    gap_s: Real | None = None

    @model_validator(mode="after")
    def _check(self) -> _Rule:
        if self.stop and not self.start:
            raise ValueError("there is a stop alone, expected start (a topic), with it stop, and gap_s (seconds)")
        return self


def _kind(reward: object) -> str:
    return "topic" if isinstance(reward, Mapping) else "number"


_Reward = Annotated[Annotated[_Held, Tag("topic")] | Annotated[Real, Tag("number")], Discriminator(_kind)]


class BagMap(Options):
    """See above."""

    clock: Hertz | str
    observation: Annotated[tuple[_Seen, ...], Field(min_length=1)]
    action: _Command
    reward: _Reward | None = None
    episode: _Rule = _Rule()
    max_age_s: Real | None = None
    action_low: object = None
    action_high: object = None
    action_units: object = None

    @property
    def topics(self) -> list[str]:
        """Names of all that it reads."""
        read = [*self.observation, self.action, *([self.reward] if isinstance(self.reward, _Held) else [])]
        more = [self.episode.start, self.episode.stop, self.clock if isinstance(self.clock, str) else None]
        return list(dict.fromkeys([item.topic for item in read] + [name for name in more if name]))


@dataclass
class _Topic:
    """Samples of one topic, in the order of the bag."""

    received: list[float] = field(default_factory=list)
    stamped: list[float] = field(default_factory=list)
    message: list[Any] = field(default_factory=list)
    time: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def add(self, received_ns: int, message: object) -> None:
        """The next one."""
        self.received.append(received_ns * 1e-9)
        self.stamped.append(_stamp(message))
        self.message.append(message)


def read(path: str | os.PathLike[str], options: ReadOptions = AS_IT_IS) -> Logs:
    """Read a bag.

    Args:
        path: its folder, or a single .mcap or .db3 file.
        options: `map` says which topics are what, see above; `salvage` reads what comes before a break.

    Raises:
        FileNotFoundError: there is nothing.
        BadData: the bag is damaged, cannot be deserialised, or lacks a topic; no map; with the remedy.
    """
    path = Path(path)
    findings: list[Finding] = []
    wanted = "a YAML file that names observation and action topics"
    plan = None if options.map is None else read_map(options.map, BagMap, wanted)
    topics = _read(path, plan, options, findings)
    assert plan is not None  # else `_read` has refused the bag
    return _convert(path, plan, topics, findings)


def _read(path: Path, plan: BagMap | None, options: ReadOptions, findings: list[Finding]) -> dict[str, _Topic]:
    """Topic -> samples of those that the plan names."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; expected a bag's folder, or a .mcap or .db3 file")
    if path.is_dir() and not (path / "metadata.yaml").is_file():
        single = sorted([*path.glob("*.mcap"), *path.glob("*.db3")])
        names = ", ".join(p.name for p in single) or "none"
        repair = f"name {names} itself, or run `ros2 bag reindex`"
        if len(single) != 1:
            repair = f"run `ros2 bag reindex`, or name one data file (there are: {names})"
        raise refusal("no_metadata", f"{path} has no metadata.yaml", repair)
    bag_check.check(path)
    reader = extras.require("rosbags.highlevel").AnyReader
    rosbag2 = extras.require("rosbags.interfaces").ConnectionExtRosbag2
    given = {} if options.ros_distro is None else {"default_typestore": _typestore(options.ros_distro)}
    topics = {name: _Topic() for name in ([] if plan is None else plan.topics)}
    try:
        with reader([path], **given) as bag:
            counted: dict[str, tuple[str, int]] = {}
            for connection in bag.connections:
                kind, count = counted.get(connection.topic, (str(connection.msgtype), 0))
                counted[connection.topic] = (kind, count + int(connection.msgcount))
                ext = connection.ext
                serial = ext.serialization_format if isinstance(ext, rosbag2) else "cdr"
                if serial != "cdr":
                    message = f"{path}: topic {connection.topic} is serialised as '{serial}', expected 'cdr'"
                    findings.append(error("serialization", message, _CONVERT))
            stop_on_errors(findings)
            if plan is None:
                for connection in bag.connections:  # can the messages be understood at all?
                    for _, _, raw in bag.messages(connections=[connection]):
                        bag.deserialize(raw, connection.msgtype)
                        break
                listed = "; ".join(f"{name} ({kind}, {count:,})" for name, (kind, count) in counted.items())
                message = f"{path} has the topics {listed}, but nothing says what they are"
                repair = "give map=<file.yaml> that names observation and action topics; docs/data.md has one"
                raise BadData([*findings, error("no_map", message, repair)])
            absent = [name for name in topics if name not in counted]
            if absent:
                message = f"{path} has no topic {', '.join(absent)}; it has {', '.join(sorted(counted))}"
                raise BadData([*findings, error("missing_key", message, "correct the map", where=absent[0])])
            try:
                chosen = [c for c in bag.connections if c.topic in topics]
                for connection, received, raw in bag.messages(connections=chosen):
                    topics[connection.topic].add(received, bag.deserialize(raw, connection.msgtype))
            except Exception as problem:
                if not options.salvage:
                    raise
                count = sum(len(t.message) for t in topics.values())
                text = f"{path} breaks off after {count:,} messages ({problem}): only those are read (salvage)"
                findings.append(warning("cut_short", text, count=count))
    except (BadData, ImportError):
        raise
    except Exception as problem:  # rosbags raises its own and those of sqlite3, struct, lz4 ...
        why = _explain(path, problem)
        if options.salvage and plan is not None and why.case == "cut_short":
            return _salvage(path, plan, options.ros_distro, findings, why)
        raise BadData([*findings, why]) from problem
    return topics


_CONVERT = "convert the bag on the robot (`ros2 bag convert`)"


def _typestore(distro: str | None) -> Any:
    """Definitions of the messages of a distribution; without its name there are none.

    Raises:
        BadData: there is no such distribution.
    """
    typesys = extras.require("rosbags.typesys")
    names = {s.name.lower().removeprefix("ros2_"): s for s in typesys.Stores}
    if (distro or "empty") not in names:
        message = f"ros_distro is '{distro}', expected one of {', '.join(sorted(names))}"
        raise refusal("option", message, where="ros_distro")
    return typesys.get_typestore(names[distro or "empty"])


def _salvage(path: Path, plan: BagMap, distro: str | None, findings: list[Finding], why: Finding) -> dict[str, _Topic]:
    """Messages of the MCAP files up to their break, types from their own definitions."""
    types = _typestore(distro)
    topics = {name: _Topic() for name in plan.topics}
    count = 0
    for file in sorted(path.glob("*.mcap")) if path.is_dir() else [path]:
        for raw in mcap_salvage.messages(file):
            if raw.topic not in topics:
                continue
            if raw.kind not in types.types:
                fresh = extras.require("rosbags.typesys").get_types_from_msg(raw.definition, raw.kind)
                types.register({name: item for name, item in fresh.items() if name not in types.types})
            topics[raw.topic].add(raw.received_ns, types.deserialize_cdr(raw.data, raw.kind))
            count += 1
    message = f"{why.message}: the {count:,} messages before the break are read (salvage)"
    findings.append(warning("cut_short", message, count=count))
    return topics


def _explain(path: Path, problem: Exception) -> Finding:
    text = f"{problem}".strip()
    if "type definitions" in text or "typestore" in text:
        repair = f"give ros_distro=<the distribution that recorded it>, one of {', '.join(_STORES)}"
        return error("no_types", f"{path} contains no type definitions", repair)
    if "erialization" in text:
        return error("serialization", f"{path}: {text}", _CONVERT)
    if isinstance(problem, sqlite3.DatabaseError) or "malformed" in text or "not a database" in text:
        repair = "run `ros2 bag reindex`, or copy it again"
        return error("malformed", f"{path}: its database is malformed ({text})", repair)
    if not text or any(word in text for word in ("magic", "End of", "unpack", "ord()", "truncated", "Truncated")):
        repair = "`mcap recover`, `ros2 bag reindex`, or salvage=true to read up to the break"
        ours = not text or "ord()" in text or "unpack" in text  # Python's words for a record that ends early
        return error("cut_short", f"{path} is cut short ({'a record ends early' if ours else text})", repair)
    return error("unreadable", f"{path} cannot be read: {text}", "check it with `ros2 bag info`")


def _fields(message: object) -> dict[str, Any]:
    """Name -> value of the fields of a message; nothing for numbers, texts and arrays."""
    return {name: value for name, value in vars(message).items() if name[0] != "_"} if is_dataclass(message) else {}


def _stamp(message: object) -> float:
    fields = _fields(message)
    stamp = _fields(_fields(fields.get("header")).get("stamp") or fields.get("stamp"))
    return float(stamp.get("sec", 0)) + float(stamp.get("nanosec", 0)) * 1e-9


def _times(name: str, topic: _Topic, findings: list[Finding]) -> None:
    """Header stamps where they can be used, else the time of reception; sorted."""
    stamped, received = np.array(topic.stamped), np.array(topic.received)
    topic.time = received
    if len(stamped) and (stamped > 0).any():
        back = int((np.diff(stamped) < 0).sum())
        zero = int((stamped == 0).sum())
        if back or zero:
            message = f"{name}: {zero} stamps are 0 and {back} run backwards: times of reception are used"
            findings.append(warning("stamps_backwards", message, count=back + zero, where=name))
        else:
            topic.time = stamped
    order = np.argsort(topic.time, kind="stable")
    if (order[1:] < order[:-1]).any():
        message = f"{name}: messages were received out of order: sorted"
        findings.append(warning("out_of_order", message, count=int((order[1:] < order[:-1]).sum()), where=name))
        topic.time, topic.message = topic.time[order], [topic.message[i] for i in order]


def _values(topic: _Topic, item: _Entry) -> np.ndarray:
    """(n, width) numbers of one field; joints by name in every message."""
    rows, name = [], item.topic
    for message in topic.message:
        value: Any = message
        for part in item.field.split("."):
            fields = _fields(value)
            if part not in fields:
                raise refusal("missing_key", f"{name} has no field '{part}'; it has {', '.join(fields)}")
            value = fields[part]
        if item.joints:
            have = list(_fields(message).get("name", ()))[: len(value)]  # velocities and efforts may be left out
            lost = [joint for joint in item.joints if joint not in have]
            if lost:
                told = f"it has {', '.join(have) or 'none'} in '{item.field}'"
                raise refusal("missing_key", f"{name} has no joint {', '.join(lost)}; {told}")
            value = [value[have.index(joint)] for joint in item.joints]
        elif {"x", "y"} <= _fields(value).keys():  # Vector3, Point, Quaternion
            value = [number for axis, number in _fields(value).items() if axis in ("x", "y", "z", "w")]
        rows.append(np.atleast_1d(np.asarray(value, np.float64)).reshape(-1))
    return np.stack(rows) if rows else np.zeros((0, 1))


def slerp(stamp: np.ndarray, value: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Unit quaternions (n, 4) at times `at`, along great arcs after aligning neighbouring signs."""
    value = value / np.linalg.norm(value, axis=1, keepdims=True)
    flips = np.where((value[1:] * value[:-1]).sum(1) < 0, -1.0, 1.0)
    value = value * np.concatenate(([1.0], np.cumprod(flips)))[:, None]
    left = np.clip(np.searchsorted(stamp, at, "right") - 1, 0, max(len(stamp) - 2, 0))
    right = np.minimum(left + 1, len(stamp) - 1)
    span = np.maximum(stamp[right] - stamp[left], 1e-12)
    part = np.clip((at - stamp[left]) / span, 0.0, 1.0)[:, None]
    angle = np.arccos(np.clip((value[left] * value[right]).sum(1), -1.0, 1.0))[:, None]
    small = angle < 1e-6
    safe = np.where(small, 1.0, np.sin(angle))
    a = np.where(small, 1.0 - part, np.sin((1.0 - part) * angle) / safe)
    b = np.where(small, part, np.sin(part * angle) / safe)
    mixed = a * value[left] + b * value[right]
    return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def _resample(kind: str, stamp: np.ndarray, value: np.ndarray, at: np.ndarray) -> np.ndarray:
    if kind == "zoh":
        return hold(stamp, value, at)
    if kind == "angle":
        return interpolate(stamp, np.unwrap(value, axis=0), at)
    return slerp(stamp, value, at) if kind == "quaternion" else interpolate(stamp, value, at)


def _convert(path: Path, plan: BagMap, topics: dict[str, _Topic], findings: list[Finding]) -> Logs:
    for name, topic in topics.items():
        _times(name, topic, findings)
    empty = [name for name, topic in topics.items() if not len(topic.time)]
    if empty:
        raise BadData([*findings, error("no_rows", f"{path}: no message on {', '.join(empty)}")])
    steps = topics[plan.clock].time if isinstance(plan.clock, str) else None
    hz = float(plan.clock) if steps is None else 1.0 / float(np.median(np.diff(steps)))
    max_age = plan.max_age_s or 2.5 / hz
    inputs = [(item, topics[item.topic].time, _values(topics[item.topic], item)) for item in plan.observation]
    command = _values(topics[plan.action.topic], plan.action)
    episodes = []
    spans = _spans(plan, topics)
    if not spans:
        told = ", ".join(f"{name} from {t.time[0]:.3f} to {t.time[-1]:.3f} s" for name, t in topics.items())
        message = f"{path}: there is no time at which every topic speaks: {told}"
        raise BadData([*findings, error("no_rows", message, "leave a topic out of the map, or correct its stamps")])
    for begin, end, stopped in spans:
        foreign.room(path, int(8 * (end - begin) * hz), "its steps at this rate")
        grid = even_times(begin, end, hz) if steps is None else steps[(steps >= begin) & (steps <= end)]
        for part, whole in _fresh(grid, [time for _, time, _ in inputs], max_age, findings):
            if len(part) < 2:
                continue
            episodes.append(_episode(plan, part, inputs, command, topics, whole and stopped))
    if not episodes:
        message = f"{path}: no two steps in a row have fresh observations (max_age_s {max_age:.3g})"
        raise BadData([*findings, error("no_rows", message, "raise max_age_s, or lower the clock's rate")])
    width, low, high = command.shape[1], plan.action_low, plan.action_high
    bounds = read_declared(low, high, width, plan.action_units)
    if bounds is None and not (low is None and high is None):
        message = f"action_low is {low} and action_high {high}, expected for both a number or a list of {width}"
        raise BadData([*findings, error("map", f"{path}: {message}, the first below the second")])
    names = tuple(plan.action.joints or (f"a{i}" for i in range(width)))
    obs = {key: (tuple(value.shape[1:]), "float32") for key, value in episodes[0].obs.items()}
    io = IOSpec(obs, names, (None,) * width, (None,) * width, ("1",) * width, hz)
    lag = action_lag(episodes)
    if lag is not None:
        findings.append(note("lag", f"states follow actions by {lag} steps ({lag / hz:.3g} s)"))
    return Logs(episodes, findings, io, {"path": str(path), "format": "rosbag", "name": path.stem}, bounds=bounds)


def _spans(plan: BagMap, topics: dict[str, _Topic]) -> list[tuple[float, float, bool]]:
    """(begin, end, whole) of every episode; the time at which every topic speaks bounds them."""
    rule = plan.episode
    streams = [t for name, t in topics.items() if name not in (rule.start, rule.stop)]
    begin, end = max(t.time[0] for t in streams), min(t.time[-1] for t in streams)
    spans = [(begin, end, True)]
    if rule.start:
        starts = topics[rule.start].time
        stops = topics[rule.stop].time if rule.stop else np.append(starts[1:], end)
        spans = []
        for start, again in zip(starts, np.append(starts[1:], np.inf)):  # begun anew before its stop: it ends there
            later = stops[stops > start]
            stop = float(later[0]) if len(later) else end
            spans.append((max(start, begin), min(stop, float(again), end), bool(len(later)) and stop <= again))
    if rule.gap_s:
        time = np.sort(np.concatenate([t.time for t in streams]))
        left = np.flatnonzero(np.diff(time) > rule.gap_s)
        uncut, spans = spans, []
        for a, b, whole in uncut:
            inside = left[(time[left] >= a) & (time[left + 1] <= b)]
            ends = [*time[inside].tolist(), b]
            pieces = zip([a, *time[inside + 1].tolist()], ends)
            spans += [(x, y, whole and (y == b or not rule.start)) for x, y in pieces]
    return [span for span in spans if span[1] > span[0]]


def _fresh(
    grid: np.ndarray, times: list[np.ndarray], max_age: float, findings: list[Finding]
) -> list[tuple[np.ndarray, bool]]:
    """Runs of the grid in which every source has spoken at most `max_age` before; True where a run ends the grid."""
    good = np.ones(len(grid), bool)
    for time in times:
        last = np.searchsorted(time, grid, "right") - 1
        good &= (last >= 0) & (grid - time[np.maximum(last, 0)] <= max_age)
    if good.all():
        return [(grid, True)]
    count = int((~good).sum())
    at = float(grid[int(np.argmin(good))] - grid[0])
    message = (
        f"{count} of {len(grid)} steps have an observation older than {max_age:.3g} s, first {at:.3g} s in: cut there"
    )
    findings.append(warning("stale", message, "raise max_age_s in the map, or accept the cuts", count=count))
    edge = np.flatnonzero(np.diff(np.concatenate(([0], good.astype(np.int8), [0]))))
    return [(grid[a:b], b == len(grid)) for a, b in zip(edge[::2], edge[1::2])]


def _episode(
    plan: BagMap,
    grid: np.ndarray,
    inputs: list[tuple[_Seen, np.ndarray, np.ndarray]],
    command: np.ndarray,
    topics: dict[str, _Topic],
    whole: bool,
) -> Episode:
    parts: dict[str, list[np.ndarray]] = {}
    for item, time, value in inputs:
        parts.setdefault(item.key, []).append(_resample(item.kind, time, value, grid))
    obs = {key: np.concatenate(value, 1).astype(np.float32) for key, value in parts.items()}
    action = hold(topics[plan.action.topic].time + plan.action.latency_s, command, grid[:-1]).astype(np.float32)
    rule = plan.reward
    reward = np.full(len(action), 0.0 if rule is None or isinstance(rule, _Held) else rule, np.float32)
    if isinstance(rule, _Held):  # the reward of a step is the last one told by its end
        topic = topics[rule.topic]
        reward = hold(topic.time, _values(topic, rule)[:, 0], grid[1:]).astype(np.float32)
    return episode_from_columns(obs, action, reward, stamp=grid, meta={} if whole else {"cut": True})
