"""Recording of a session without ROS: a thread of its own turns raw messages into bags and episode files."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data import bag, session
from robot_rl.real.core.alignment import SourceClock
from robot_rl.real.core.assembler import SAME_CLOCK, Assembler, Picture, StepRules
from robot_rl.real.core.messages import in_order, joint_arrays, sensor_array
from robot_rl.real.core.spec import TWIST, RobotSpec
from robot_rl.types.card import CalibrationCard

JOINTS = "sensor_msgs/msg/JointState"


def topic_table(
    spec: RobotSpec, *, prefix: str = "robot_rl/", namespace: str = "/", tasks: Sequence[str] = ()
) -> dict[str, tuple[str, str]]:
    """What a recording of a robot holds: role -> (absolute topic, message type).

    Roles are `joints`, `sensor:<name>` (also task variables, by their names), `camera:<name>`, `executed`,
    `command:policy`, `command:teleop`, `authority`, `safety`, `takeover`, `estop`, `reward` and `success`.
    """
    root = "/" + namespace.strip("/")
    place = (root if root != "/" else "") + "/"

    def absolute(topic: str) -> str:
        return topic if topic.startswith("/") else place + topic

    table: dict[str, tuple[str, str]] = {}
    for name, sensor in spec.sensors.items():
        kind = _full(sensor.type)
        # several topics of joint states may each send some of the joints
        role = f"joints:{name}" if kind == JOINTS else f"sensor:{name}"
        table[role] = (absolute(sensor.topic), kind)
    if spec.mode != TWIST and not any(role.startswith("joints") for role in table):  # a base has none to tell
        table["joints"] = (absolute("joint_states"), JOINTS)
    for name, camera in spec.cameras.items():
        table[f"camera:{name}"] = (absolute(camera.topic), _full(camera.type))
    for name in tasks:
        table[f"sensor:{name}"] = (absolute(f"{prefix}task/{name}"), "std_msgs/msg/Float64MultiArray")
    trajectory, text, flag = "trajectory_msgs/msg/JointTrajectory", "std_msgs/msg/String", "std_msgs/msg/Bool"
    for role, topic, kind in (
        ("executed", "executed", trajectory),
        ("command:policy", "command/policy", trajectory),
        ("command:teleop", "command/teleop", trajectory),
        ("authority", "authority", text),
        ("safety", "safety/state", text),
        ("takeover", "takeover", flag),
        ("estop", "estop", flag),
        ("reward", "reward", "std_msgs/msg/Float64"),
        ("success", "success", flag),
    ):
        table[role] = (absolute(prefix + topic), kind)
    return table


def _full(kind: str) -> str:
    package, _, name = kind.replace("/msg/", "/").partition("/")
    return f"{package}/msg/{name}"


class Feeder:
    """Hands messages, as `rosbags` reads them, to an assembler.

    Args:
        assembler: what makes steps of them.
        spec: of the robot.
    """

    def __init__(self, assembler: Assembler, spec: RobotSpec) -> None:
        self.assembler, self.spec = assembler, spec
        self.broken = 0
        self._clocks: dict[str, SourceClock] = {}

    def feed(self, role: str, message: Any, when: float) -> None:
        """One message of a role received at `when` [s]; one that makes no sense is counted and passed over."""
        try:
            self._feed(role, message, when)
        except (AttributeError, ValueError, TypeError, IndexError):
            self.broken += 1

    def _feed(self, role: str, message: Any, when: float) -> None:
        a, (group, _, name) = self.assembler, role.partition(":")
        if group == "joints":
            names, position, velocity, effort = joint_arrays(message)
            if len(position):
                a.joints(self._came(role, message, when), names, position, velocity, effort)
        elif group == "sensor":
            a.sensor(name, sensor_array(message))
        elif group == "camera":
            a.image(name, _picture(message))
        elif group == "executed":
            authority, trace, flags = message.header.frame_id.split("|")
            value = self._order(message.joint_names, _values(message.points[0]))
            a.add_executed(self._came(role, message, when), value, authority, trace, flags)
        elif group == "command":
            if message.points:
                value = self._order(message.joint_names, _values(message.points[0]))
                a.command(message.header.frame_id, when, _stamp(message), value)
        elif group == "safety":
            a.safety(message.data)
        elif group == "reward":
            a.reward(float(message.data))
        elif group == "success":
            a.success(bool(message.data))

    def _came(self, role: str, message: Any, when: float) -> float:
        """When a message was here by the shortest way of its kind: a busy recorder takes it late.

        The policy has heard a state as early as that, so a state taken late must not be that of its next decision.
        """
        stamp = _stamp(message)
        if not abs(when - stamp) < SAME_CLOCK:
            return when
        return self._clocks.setdefault(role, SourceClock()).arrive(when, stamp).time

    def _order(self, names: list[str], values: np.ndarray) -> np.ndarray:
        if not len(names):
            return values
        found = in_order(names, values, self.spec.names)
        if found is None:
            raise ValueError(f"joints are {', '.join(names)}, expected {', '.join(self.spec.names)}")
        return found


def _stamp(message: Any) -> float:
    return float(message.header.stamp.sec + 1e-9 * message.header.stamp.nanosec)


def _values(point: Any) -> np.ndarray:
    for values in (point.positions, point.velocities, point.effort):
        if len(values):
            return np.asarray(values, float)
    raise ValueError("the point is empty")


def _picture(message: Any) -> Picture:
    """JPEG as it came; raw colours and greys as PNG bytes, since minutes of pixels would fill the memory."""
    if hasattr(message, "format"):
        return bytes(memoryview(message.data))
    from robot_rl.real.cameras import png, raw_pixels

    pixels = raw_pixels(message)
    try:
        return png(pixels) if pixels.dtype in (np.uint8, np.uint16) else pixels
    except ImportError:  # without OpenCV: larger files, but nothing is lost
        return pixels


@dataclass
class Report:
    """What a recorder has done so far.

    Attributes:
        recording: whether an episode is open.
        episodes: files written.
        steps: rows in them.
        messages: taken.
        dropped: messages that found the queue full.
        broken: messages that made no sense.
        error: last error, "" without one.
        newest: last file or bag finished.
    """

    recording: bool = False
    episodes: int = 0
    steps: int = 0
    messages: int = 0
    dropped: int = 0
    broken: int = 0
    error: str = ""
    newest: str = ""


@dataclass(frozen=True)
class RecordSettings:
    """Where and what is recorded.

    Args:
        folder: of the session; `bags/` and `episode_*.hdf5` appear in it.
        bags: write rosbag2 bags, one per episode.
        hdf5: write episode files.
        storage: of bags: `mcap` or `sqlite3`.
        max_bag_bytes: size after which a bag is split; 0 = never.
        max_bag_seconds: duration after which a bag is split; 0 = never.
        max_steps: rows after which an episode file is closed and the next one begun.
        queue: messages that may wait for the disk; more are dropped and counted.
        rules: what a step is.
        facts: further attributes of the files: git commit, rates, task.
    """

    folder: str
    bags: bool = True
    hdf5: bool = True
    storage: str = "mcap"
    max_bag_bytes: int = 1 << 30
    max_bag_seconds: float = 0.0
    max_steps: int = 100_000
    queue: int = 20_000
    rules: StepRules = field(default_factory=StepRules)
    facts: Mapping[str, object] = field(default_factory=dict)


class SessionRecorder:
    """Takes raw messages from any thread and writes them in its own; `put` never blocks.

    An error of the disk ends the episode that is open, is kept in the report, and leaves all finished files alone.

    Args:
        spec: of the robot.
        topics: role -> (topic, type), see `topic_table`.
        settings: where and what.

    Raises:
        ValueError: a type of messages that cannot be recorded.
        OSError: the folder cannot be made.
    """

    def __init__(self, spec: RobotSpec, topics: Mapping[str, tuple[str, str]], settings: RecordSettings) -> None:
        self.spec, self.topics, self.settings = spec, dict(topics), settings
        self._types = bag.typestore()
        for topic, kind in self.topics.values():
            if kind not in self._types.fielddefs:
                raise ValueError(f"{topic} has type {kind}, which is no standard message; it cannot be recorded")
        self.folder = Path(settings.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.report = Report()
        self._assembler = Assembler(spec, settings.rules)
        self._feeder = Feeder(self._assembler, spec)
        self._newest: dict[str, tuple[str, bytes, int]] = {}  # role -> message that an episode begins with
        self._bag: bag.BagWriter | None = None
        # a message waits in the queue; so does a request, which keeps its place among the messages
        self._queue: queue.Queue[tuple[str, bytes | Future[str], int]] = queue.Queue(settings.queue)
        self._origin = time.time_ns() - time.monotonic_ns()
        self._last = 0
        self._over = False
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def now(self) -> int:
        """Receive time [ns]: wall clock at the start of the session, running on with the steady clock."""
        self._last = max(self._origin + time.monotonic_ns(), self._last + 1)
        return self._last

    def put(self, role: str, raw: bytes) -> None:
        """Take one message; drops it, and counts that, when the disk cannot keep up."""
        try:
            self._queue.put_nowait((role, raw, self.now()))
            self.report.messages += 1
        except queue.Full:
            self.report.dropped += 1

    def start(self) -> Future[str]:
        """Open an episode; an open one is finished first. The future tells what was done."""
        return self._ask("start")

    def stop(self) -> Future[str]:
        """Finish the episode; the future holds its file."""
        return self._ask("stop")

    def discard(self) -> Future[str]:
        """Throw the open episode away."""
        return self._ask("discard")

    def close(self, timeout: float = 5.0) -> None:
        """Finish the open episode and end the thread; a second call does nothing."""
        if not self._over:
            self._over = True
            with suppress(Exception):
                self._ask("close").result(timeout)
            self._thread.join(timeout)

    def waiting(self) -> int:
        """Messages that wait for the disk."""
        return self._queue.qsize()

    # ------------------------------------------------------------ writer thread

    def _ask(self, what: str) -> Future[str]:
        future: Future[str] = Future()
        self._queue.put((what, future, self.now()))
        return future

    def _work(self) -> None:
        answers = {"start": self._start, "stop": self._stop, "discard": self._discard, "close": self._close}
        while True:
            role, item, when = self._queue.get()
            if isinstance(item, bytes):
                self._message(role, item, when)
                continue
            try:
                item.set_result(answers[role]())
            except Exception as error:  # whatever is wrong with one episode, the next is recorded
                self._fail(error)
                item.set_exception(error)
            if role == "close":
                return

    def _message(self, role: str, raw: bytes, when: int) -> None:
        topic, kind = self.topics[role]
        if role.startswith(("joints", "sensor", "camera", "safety", "authority")):
            self._newest[role] = (role, raw, when)
        if not self.report.recording:
            return
        try:
            if self._bag is not None:
                self._bag.write(topic, kind, raw, when)
        except (OSError, ValueError) as error:
            self._fail(error)
        if not self.settings.hdf5 or not self.report.recording or role.startswith("extra"):  # of the bag alone
            return
        try:
            message = self._types.deserialize_cdr(raw, kind)
        except Exception:  # bytes from the network: whatever is wrong with them, the recording goes on
            self.report.broken += 1
            return
        self._feeder.feed(role, message, 1e-9 * when)
        if len(self._assembler) > self.settings.max_steps:  # the last of them has just begun, and goes into the next
            try:
                self._write_episode(going_on=True)
            except (OSError, ValueError) as error:
                self._fail(error)

    def _start(self) -> str:
        done = self._stop() if self.report.recording else ""
        self._assembler = Assembler(self.spec, self.settings.rules)
        self._feeder = Feeder(self._assembler, self.spec)
        if self.settings.bags:
            number = len(list((self.folder / "bags").glob("episode_??????"))) if (self.folder / "bags").exists() else 0
            path = self.folder / "bags" / f"episode_{number:06d}"
            while path.exists():
                number += 1
                path = path.with_name(f"episode_{number:06d}")
            self._bag = bag.BagWriter(
                path,
                storage=self.settings.storage,
                max_bytes=self.settings.max_bag_bytes,
                max_seconds=self.settings.max_bag_seconds,
            )
        self.report.recording, self.report.error = True, ""
        # the first step has an observation, live and out of the bag
        for role, raw, when in sorted(self._newest.values(), key=lambda item: item[2]):
            self._message(role, raw, when)
        return f"recording; {done}" if done else "recording"

    def _stop(self) -> str:
        if not self.report.recording:
            return "nothing was being recorded"
        self.report.recording = False
        written, self._bag, parts = self._bag, None, []
        try:
            path = self._write_episode() if self.settings.hdf5 else None
        finally:  # whatever is wrong with the steps, the bag is whole
            if written is not None:
                written.close()
                parts = [str(part) for part in written.parts]
        self.report.broken += self._feeder.broken
        self._feeder.broken = 0
        found = ([str(path)] if path else []) + parts
        self.report.newest = found[0] if found else ""
        return ", ".join(found) or "no step was executed; nothing written"

    def _discard(self) -> str:
        if not self.report.recording:
            return "nothing was being recorded"
        self.report.recording = False
        if self._bag is not None:
            self._bag.remove()
            self._bag = None
        return "discarded"

    def _close(self) -> str:
        return self._stop()

    def _write_episode(self, *, going_on: bool = False) -> Path | None:
        columns = self._assembler.end(going_on=going_on)
        if columns is None:
            return None
        path = session.write(session.next_path(self.folder), columns, attributes(self.spec, self.settings))
        self.report.episodes += 1
        self.report.steps += len(columns["actions"])
        return path

    def _fail(self, error: Exception) -> None:
        self.report.error = str(error)
        self.report.recording = False
        if self._bag is not None:
            self._bag.abort()
            self._bag = None


def attributes(spec: RobotSpec, settings: RecordSettings) -> dict[str, Any]:
    """Attributes of an episode file."""
    rules = settings.rules
    return {
        "robot": spec.name,
        "robot_spec": json.dumps(asdict(spec), default=CalibrationCard.model_dump),
        "rate": rules.rate,
        "ticks": rules.ticks,
        "tolerance": rules.patience,
        "action_mapping": spec.action.mapping,
        **settings.facts,
    }


def convert(
    path: str | Path,
    out: str | Path,
    spec: RobotSpec,
    rules: StepRules,
    *,
    topics: Mapping[str, str] | None = None,
    namespace: str = "/",
    tasks: Sequence[str] = (),
    terminated: bool | None = None,
) -> int:
    """A bag of ours or of a third party to one episode file.

    Args:
        path: bag; topics may come in any order and at any rate.
        out: new `.hdf5` file.
        spec: of the robot.
        rules: what a step is.
        topics: role -> topic, where the bag's names differ from `topic_table`'s. A bag without `executed` needs
            `executed` mapped to the robot's command topic (JointTrajectory, Float64MultiArray or JointState).
        namespace: of all topics.
        tasks: task variables that were recorded.
        terminated: whether the task ended the episode; None asks the `success` messages.

    Returns:
        Steps written.

    Raises:
        ValueError: no steps: names the roles whose topics the bag lacks.
        FileExistsError: the file exists.
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists already; nothing is overwritten, choose another name")
    known = topic_table(spec, namespace=namespace, tasks=tasks)
    table = {role: topic for role, (topic, _) in known.items()}
    table |= dict(topics or {})
    roles = {topic: role for role, topic in table.items()}
    facts: dict[str, object] = {"source": Path(path).name}
    settings = RecordSettings(str(out.parent), rules=rules, facts=facts)
    assembler = Assembler(spec, rules)
    feeder, types, found = Feeder(assembler, spec), bag.typestore(), set()
    for topic, kind, raw, when in bag.read(path, lambda topic: topic in roles):
        role = roles[topic]
        found.add(role)
        try:
            message = types.deserialize_cdr(raw, kind)
        except Exception:  # as live: a damaged message is counted, and the others are read
            feeder.broken += 1
            continue
        if role == "executed" and not (hasattr(message, "header") and message.header.frame_id.count("|") == 2):
            value = _foreign(message, spec)
            if value is not None:
                assembler.add_executed(1e-9 * when, value, "external", "", "")
            continue
        feeder.feed(role, message, 1e-9 * when)
    columns = assembler.end(terminated=terminated)
    if columns is None:
        needed = [role for role in table if role.startswith(("joints", "executed"))]
        lacking = [f"{role} ({table[role]})" for role in needed if role not in found]
        raise ValueError(f"{path} gave no step; it lacks {', '.join(lacking) or 'states before the first command'}")
    if feeder.broken:
        facts["broken_messages"] = feeder.broken
    session.write(out, columns, attributes(spec, settings))
    return len(columns["actions"])


def _foreign(message: Any, spec: RobotSpec) -> np.ndarray | None:
    """A third party's command as numbers in the spec's order; None when it does not fit."""
    if hasattr(message, "points"):
        if not len(message.points):
            return None
        return in_order(message.joint_names, _values(message.points[-1]), spec.names)
    if hasattr(message, "name"):
        return in_order(message.name, message.position, spec.names)
    return in_order(spec.names, message.data, spec.names)
