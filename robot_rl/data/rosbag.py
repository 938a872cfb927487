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
from typing import Any

import numpy as np

from robot_rl import extras
from robot_rl.data import bag_check, foreign, mcap_salvage
from robot_rl.data.bounds import read_declared
from robot_rl.data.episode import Logs, episode_from_columns
from robot_rl.data.findings import BadData, Finding, error, note, refusal, warning
from robot_rl.data.lerobot import action_lag
from robot_rl.data.read_options import AS_IT_IS, ReadOptions
from robot_rl.data.tables import even_times, hold, interpolate
from robot_rl.types import Episode, IOSpec

_RANGE = ("action_low", "action_high", "action_units")
_KEYS = {"clock", "observation", "action", "reward", "episode", "max_age_s", *_RANGE}
HEEDS = ("map", "ros_distro", "salvage")
_ENTRY = {"topic", "field", "joints", "kind"}
_EPISODE = {"start", "stop", "gap_s"}
_KINDS = ("linear", "zoh", "angle", "quaternion")
_STORES = ("humble", "jazzy", "kilted", "iron", "foxy", "galactic", "dashing", "eloquent", "latest")


@dataclass
class _Topic:
    """Samples of one topic, in the order of the bag."""

    received: list[float] = field(default_factory=list)
    stamped: list[float] = field(default_factory=list)
    message: list[Any] = field(default_factory=list)
    time: np.ndarray = field(default_factory=lambda: np.zeros(0))


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
    plan = None if options.map is None else _plan(options.map)
    topics = _read(path, plan, options.ros_distro, options.salvage, findings)
    if plan is None:
        listed = "; ".join(f"{name} ({kind}, {count:,})" for name, (kind, count) in topics[1].items())
        repair = "give map=<file.yaml> that names observation and action topics; docs/data.md has one"
        raise BadData(
            [*findings, error("no_map", f"{path} has the topics {listed}, but nothing says what they are", repair)]
        )
    return _convert(path, plan, topics[0], findings)


def _plan(given: str | Path | dict[str, object]) -> dict[str, Any]:
    if isinstance(given, dict):
        plan, name = dict(given), "the map"
    else:
        name = str(given)
        if not Path(given).is_file():
            message = f"there is no map '{given}'; expected a YAML file that names observation and action topics"
            raise refusal("map", message)
        plan = foreign.read_yaml(Path(given))
    unknown = {str(key) for key in plan} - _KEYS
    if unknown or not plan.get("observation") or not plan.get("action") or not plan.get("clock"):
        what = f"unknown keys {sorted(unknown)}" if unknown else "no 'clock', 'observation' or 'action'"
        raise refusal("map", f"{name} has {what}; a map has {', '.join(sorted(_KEYS))}")
    parts = plan["observation"] if isinstance(plan["observation"], list) else [None]
    held = [(plan["action"], {"latency_s"}), (plan.get("reward"), set())]  # a reward may be a number
    held = [(item, more, ("zoh",)) for item, more in held if item is plan["action"] or isinstance(item, Mapping)]
    for item, more, kinds in (*((item, {"key"}, _KINDS) for item in parts), *held):
        if not isinstance(item, Mapping) or not all(isinstance(item.get(key), str) for key in ("topic", "field")):
            raise refusal("map", f"{name}: {str(item)[:200]} names no topic and field; docs/data.md has a map")
        if item.keys() - _ENTRY - more:
            extra, known = sorted(map(str, item.keys() - _ENTRY - more)), ", ".join(sorted(_ENTRY | more))
            raise refusal("map", f"{name}: {item['topic']} has unknown entries {extra}; there are {known}")
        if item.get("kind", "zoh") not in kinds:
            raise refusal("map", f"{name}: kind '{item['kind']}' is unknown; there are {', '.join(kinds)}")
    rule = plan.get("episode") or {}
    if not isinstance(rule, Mapping) or rule.keys() - _EPISODE or (rule.get("stop") and not rule.get("start")):
        message = f"{name}: episode is {str(rule)[:200]}, expected start (a topic), with it stop, and gap_s (seconds)"
        raise refusal("map", message)
    if not isinstance(plan["clock"], str) and not 0.0 < foreign.number(name, "clock", plan["clock"]) <= 1e5:
        raise refusal("map", f"{name}: clock is {plan['clock']}, expected Hz, up to 100,000, or a topic")
    return plan


def _topics_of(plan: Mapping[str, Any]) -> list[str]:
    names = [item["topic"] for item in plan["observation"]] + [plan["action"]["topic"]]
    if isinstance(plan.get("reward"), Mapping):
        names.append(plan["reward"]["topic"])
    names += [(plan.get("episode") or {}).get(key) for key in ("start", "stop")]
    if isinstance(plan["clock"], str):
        names.append(plan["clock"])
    return list(dict.fromkeys(name for name in names if name))


def _read(
    path: Path, plan: Mapping[str, object] | None, distro: str | None, salvage: bool, findings: list[Finding]
) -> tuple[dict[str, _Topic], dict[str, tuple[str, int]]]:
    """(topic -> samples of those that the plan names, topic -> (type, messages) of all)."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; expected a bag's folder, or a .mcap or .db3 file")
    if path.is_dir() and not (path / "metadata.yaml").is_file():
        single = sorted([*path.glob("*.mcap"), *path.glob("*.db3")])
        if len(single) != 1:
            names = ", ".join(p.name for p in single) or "none"
            message = f"{path} has no metadata.yaml (its data files: {names})"
            raise refusal("no_metadata", message, "run `ros2 bag reindex`, or name one data file")
        repair = f"name {single[0].name} itself, or run `ros2 bag reindex`"
        raise refusal("no_metadata", f"{path} has no metadata.yaml", repair)
    bag_check.check(path)
    reader = extras.require("rosbags.highlevel")
    stores = extras.require("rosbags.typesys")
    rosbag2 = extras.require("rosbags.interfaces").ConnectionExtRosbag2
    options: dict[str, object] = {}
    if distro is not None:
        names = {s.name.lower().removeprefix("ros2_"): s for s in stores.Stores}
        if distro not in names:
            message = f"ros_distro is '{distro}', expected one of {', '.join(sorted(names))}"
            raise refusal("option", message, where="ros_distro")
        options["default_typestore"] = stores.get_typestore(names[distro])
    topics: dict[str, _Topic] = {}
    counted: dict[str, tuple[str, int]] = {}
    try:
        with reader.AnyReader([path], **options) as bag:
            for connection in bag.connections:
                kind, count = counted.get(connection.topic, (str(connection.msgtype), 0))
                counted[connection.topic] = (kind, count + int(connection.msgcount))
                ext = connection.ext
                serial = ext.serialization_format if isinstance(ext, rosbag2) else "cdr"
                if serial != "cdr":
                    message = f"{path}: topic {connection.topic} is serialised as '{serial}', expected 'cdr'"
                    findings.append(
                        error("serialization", message, "convert the bag on the robot (`ros2 bag convert`)")
                    )
            if any(item.severity == "error" for item in findings):
                raise BadData(findings)
            if plan is None:
                for connection in bag.connections:  # can the messages be understood at all?
                    for connection_, _, raw in bag.messages(connections=[connection]):
                        bag.deserialize(raw, connection_.msgtype)
                        break
                return topics, counted
            wanted = _topics_of(plan)
            absent = [name for name in wanted if name not in counted]
            if absent:
                message = f"{path} has no topic {', '.join(absent)}; it has {', '.join(sorted(counted))}"
                raise BadData([*findings, error("missing_key", message, "correct the map", where=absent[0])])
            topics = {name: _Topic() for name in wanted}
            try:
                chosen = [c for c in bag.connections if c.topic in topics]
                for connection, received, raw in bag.messages(connections=chosen):
                    message = bag.deserialize(raw, connection.msgtype)
                    topic = topics[connection.topic]
                    topic.received.append(received * 1e-9)
                    topic.stamped.append(_stamp(message))
                    topic.message.append(message)
            except BadData:
                raise
            except Exception as problem:
                if not salvage:
                    raise
                count = sum(len(t.message) for t in topics.values())
                text = f"{path} breaks off after {count:,} messages ({problem}): only those are read (salvage)"
                findings.append(warning("cut_short", text, count=count))
    except (BadData, ImportError):
        raise
    except Exception as problem:  # rosbags raises its own and those of sqlite3, struct, lz4 ...
        why = _explain(path, problem)
        if salvage and plan is not None and why.case == "cut_short":
            return _salvage(path, plan, distro, findings, why), counted
        raise BadData([*findings, why]) from problem
    return topics, counted


def _salvage(
    path: Path, plan: Mapping[str, object], distro: str | None, findings: list[Finding], why: Finding
) -> dict[str, _Topic]:
    """Messages of the MCAP files up to their break, types from their own definitions."""
    typesys = extras.require("rosbags.typesys")
    files = sorted(path.glob("*.mcap")) if path.is_dir() else [path]
    names = {s.name.lower().removeprefix("ros2_"): s for s in typesys.Stores}
    types = typesys.get_typestore(names[distro] if distro else typesys.Stores.EMPTY)
    topics = {name: _Topic() for name in _topics_of(plan)}
    count = 0
    for file in files:
        for raw in mcap_salvage.messages(file):
            if raw.topic not in topics:
                continue
            if raw.kind not in types.types:
                fresh = typesys.get_types_from_msg(raw.definition, raw.kind)
                types.register({name: item for name, item in fresh.items() if name not in types.types})
            message = types.deserialize_cdr(raw.data, raw.kind)
            topic = topics[raw.topic]
            topic.received.append(raw.received_ns * 1e-9)
            topic.stamped.append(_stamp(message))
            topic.message.append(message)
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
        return error("serialization", f"{path}: {text}", "convert the bag on the robot (`ros2 bag convert`)")
    if isinstance(problem, sqlite3.DatabaseError) or "malformed" in text or "not a database" in text:
        return error(
            "malformed", f"{path}: its database is malformed ({text})", "run `ros2 bag reindex`, or copy it again"
        )
    if (
        "magic" in text
        or "End of" in text
        or "unpack" in text
        or "ord()" in text
        or "truncated" in text.lower()
        or not text
    ):
        repair = "`mcap recover`, `ros2 bag reindex`, or salvage=true to read up to the break"
        return error("cut_short", f"{path} is cut short ({text or type(problem).__name__})", repair)
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


def _values(name: str, topic: _Topic, item: Mapping[str, Any]) -> np.ndarray:
    """(n, width) numbers of one field; joints by name in every message."""
    rows = []
    for message in topic.message:
        value: Any = message
        for part in str(item["field"]).split("."):
            fields = _fields(value)
            if part not in fields:
                raise refusal("missing_key", f"{name} has no field '{part}'; it has {', '.join(fields)}")
            value = fields[part]
        if item.get("joints"):
            have = list(_fields(message).get("name", ()))[: len(value)]  # velocities and efforts may be left out
            lost = [joint for joint in item["joints"] if joint not in have]
            if lost:
                told = f"it has {', '.join(have) or 'none'} in '{item['field']}'"
                raise refusal("missing_key", f"{name} has no joint {', '.join(lost)}; {told}")
            value = [value[have.index(joint)] for joint in item["joints"]]
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


def _convert(path: Path, plan: Mapping[str, Any], topics: dict[str, _Topic], findings: list[Finding]) -> Logs:
    for name, topic in topics.items():
        _times(name, topic, findings)
    empty = [name for name, topic in topics.items() if not len(topic.time)]
    if empty:
        raise BadData([*findings, error("no_rows", f"{path}: no message on {', '.join(empty)}")])
    clock = plan["clock"]
    steps = topics[clock].time if isinstance(clock, str) else None
    hz = 1.0 / float(np.median(np.diff(steps))) if steps is not None else float(clock)
    max_age = float(plan.get("max_age_s") or 2.5 / hz)
    inputs = [(i, topics[i["topic"]], _values(i["topic"], topics[i["topic"]], i)) for i in plan["observation"]]
    command = plan["action"]
    command_time = topics[command["topic"]].time + float(command.get("latency_s", 0.0))
    command_value = _values(command["topic"], topics[command["topic"]], command)
    episodes = []
    spans = _spans(plan, topics)
    if not spans:
        told = ", ".join(f"{name} from {t.time[0]:.3f} to {t.time[-1]:.3f} s" for name, t in topics.items())
        message = f"{path}: there is no time at which every topic speaks: {told}"
        raise BadData([*findings, error("no_rows", message, "leave a topic out of the map, or correct its stamps")])
    for begin, end, stopped in spans:
        foreign.room(path, int(8 * (end - begin) * hz), "its steps at this rate")
        grid = even_times(begin, end, hz) if steps is None else steps[(steps >= begin) & (steps <= end)]
        for part, whole in _fresh(grid, [t.time for _, t, _ in inputs], max_age, findings):
            if len(part) < 2:
                continue
            episodes.append(_episode(plan, part, inputs, command_time, command_value, topics, whole and stopped))
    if not episodes:
        message = f"{path}: no two steps in a row have fresh observations (max_age_s {max_age:.3g})"
        raise BadData([*findings, error("no_rows", message, "raise max_age_s, or lower the clock's rate")])
    width = command_value.shape[1]
    low, high, units = (plan.get(key) for key in _RANGE)
    bounds = read_declared(low, high, width, units)
    if bounds is None and not (low is None and high is None):
        message = f"action_low is {low} and action_high {high}, expected for both a number or a list of {width}"
        raise BadData([*findings, error("map", f"{path}: {message}, the first below the second")])
    names = tuple(command.get("joints") or (f"a{i}" for i in range(width)))
    obs = {key: (tuple(value.shape[1:]), "float32") for key, value in episodes[0].obs.items()}
    io = IOSpec(obs, names, (None,) * width, (None,) * width, ("1",) * width, hz)
    lag = action_lag(episodes)
    if lag is not None:
        findings.append(note("lag", f"states follow actions by {lag} steps ({lag / hz:.3g} s)"))
    return Logs(episodes, findings, io, {"path": str(path), "format": "rosbag", "name": path.stem}, bounds=bounds)


def _spans(plan: Mapping[str, Any], topics: dict[str, _Topic]) -> list[tuple[float, float, bool]]:
    """(begin, end, whole) of every episode; the time at which every topic speaks bounds them."""
    rule = plan.get("episode") or {}
    signal = {rule.get("start"), rule.get("stop")}
    streams = [t for name, t in topics.items() if name not in signal]
    begin, end = max(t.time[0] for t in streams), min(t.time[-1] for t in streams)
    spans = [(begin, end, True)]
    if rule.get("start"):
        starts = topics[rule["start"]].time
        stops = topics[rule["stop"]].time if rule.get("stop") else np.append(starts[1:], end)
        spans = []
        for start, again in zip(starts, np.append(starts[1:], np.inf)):  # begun anew before its stop: it ends there
            later = stops[stops > start]
            stop = float(later[0]) if len(later) else end
            spans.append((max(start, begin), min(stop, float(again), end), bool(len(later)) and stop <= again))
    if rule.get("gap_s"):
        time = np.sort(np.concatenate([t.time for t in streams]))
        left = np.flatnonzero(np.diff(time) > float(rule["gap_s"]))
        uncut, spans = spans, []
        for a, b, whole in uncut:
            inside = left[(time[left] >= a) & (time[left + 1] <= b)]
            ends = [*time[inside].tolist(), b]
            pieces = zip([a, *time[inside + 1].tolist()], ends)
            spans += [(x, y, whole and (y == b or not rule.get("start"))) for x, y in pieces]
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
    plan: Mapping[str, Any],
    grid: np.ndarray,
    inputs: list[tuple[Mapping[str, Any], _Topic, np.ndarray]],
    command_time: np.ndarray,
    command: np.ndarray,
    topics: dict[str, _Topic],
    whole: bool,
) -> Episode:
    parts: dict[str, list[np.ndarray]] = {}
    for item, topic, value in inputs:
        parts.setdefault(str(item.get("key", "state")), []).append(
            _resample(item.get("kind", "linear"), topic.time, value, grid)
        )
    obs = {key: np.concatenate(value, 1).astype(np.float32) for key, value in parts.items()}
    action = hold(command_time, command, grid[:-1])
    action = action.astype(np.float32)
    reward, rule = np.zeros(len(action), np.float32), plan.get("reward")
    if isinstance(rule, Mapping):  # the reward of a step is the last one told by its end
        topic = topics[rule["topic"]]
        reward = hold(topic.time, _values(rule["topic"], topic, rule)[:, 0], grid[1:]).astype(np.float32)
    elif rule is not None:
        reward[:] = float(rule)
    return episode_from_columns(obs, action, reward, stamp=grid, meta={} if whole else {"cut": True})
