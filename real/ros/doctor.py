"""`robot-rl doctor ros`: what is on the wire of a robot, and what keeps it from moving; moves it only when asked to."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np

from robot_rl.extras import require

require("rclpy")

from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import QoSCompatibility, QoSProfile, ReliabilityPolicy, qos_check_compatible  # noqa: E402
from rclpy.serialization import deserialize_message  # noqa: E402
from std_msgs.msg import String  # noqa: E402

from robot_rl.real.core.recording import topic_table  # noqa: E402
from robot_rl.real.core.spec import RobotSpec  # noqa: E402
from robot_rl.real.ros.io import hardware_type, qos, seconds  # noqa: E402
from robot_rl.real.ros.message_kinds import has_header, message_class  # noqa: E402
from robot_rl.real.ros.node_base import hardware_id, node_beside  # noqa: E402
from robot_rl.real.ros.wiggle import SPINS, Wiggle, try_timeout  # noqa: E402

POLICY_SIDE = ("policy", "teleop", "follow_trajectory", "robot_env", "doctor")
LEVELS = ("OK", "WARN", "ERROR", "STALE")


@dataclass
class Heard:
    """Messages of one topic while we listened."""

    kind: Any
    times: list[float] = field(default_factory=list)
    stamps: list[tuple[float, bytes]] = field(default_factory=list)

    def take(self, raw: bytes) -> None:
        """Note one message."""
        self.times.append(time.monotonic())
        if len(self.stamps) < 200:
            self.stamps.append((time.time(), raw))

    def rate(self) -> float:
        """Messages per second, nan below two."""
        return (len(self.times) - 1) / (self.times[-1] - self.times[0]) if len(self.times) > 1 else np.nan

    def offset(self) -> float:
        """Smallest receipt - stamp [s]: the sender's clock behind ours, plus the shortest way; nan without stamps."""
        gaps = []
        for when, raw in self.stamps:
            message = deserialize_message(raw, self.kind)
            if has_header(self.kind) and (stamp := seconds(message.header.stamp)) > 0.0:
                gaps.append(when - stamp)
        return min(gaps, default=np.nan)


@dataclass
class Findings:
    """What the doctor saw.

    Attributes:
        lines: report, in order.
        problems: what has to be mended, with the remedy; empty when the robot may be armed.
        topics: topic -> rate, age, offset, publishers and subscribers.
        dead_time: joint -> seconds by which it followed a small command late, where it was wiggled.
    """

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    topics: dict[str, dict[str, Any]] = field(default_factory=dict)
    dead_time: dict[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """The report with the problems at its end."""
        end = (
            ["", "problems"] + [f"  - {line}" for line in self.problems] if self.problems else ["", "no problems found"]
        )
        return "\n".join([*self.lines, *end])


def examine(
    robot_spec: str | RobotSpec, *, namespace: str = "", listen: float = 3.0, timing: bool = True, wiggle: bool = False
) -> Findings:
    """Look at the graph of a robot.

    Args:
        robot_spec: path of the RobotSpec, or the spec.
        namespace: of the robot's graph.
        listen: seconds to listen.
        timing: also measure how well this machine wakes up.
        wiggle: where nothing is wrong so far, move each joint by 0.01 rad and see whether it is the right one, and be
            silent for the controller's timeout to see whether it notices.

    Raises:
        ValueError: the RobotSpec is wrong, or a mode in which nothing can be wiggled.
        OSError: there is no such file.
    """
    spec = robot_spec if isinstance(robot_spec, RobotSpec) else RobotSpec.load(robot_spec)
    found = Findings()
    _platform(found, timing)
    with node_beside("doctor", namespace=namespace, thread=SPINS) as node:
        _listen(node, spec, namespace, listen, found)
        if wiggle and found.problems:
            found.problems.append("wiggle: nothing was moved; mend these first")
        elif wiggle:
            _try(node, spec, found)
    return found


def _try(node: Node, spec: RobotSpec, found: Findings) -> None:
    """Small motions, and silence."""
    trial = Wiggle(node, spec).run()
    found.lines += ["", "wiggle: 0.01 rad out and back", *trial.lines]
    found.problems += trial.problems
    found.dead_time = trial.dead_time
    if trial.dead_time:
        worst = max(trial.dead_time.values())
        found.lines.append(f"  dead_time: {worst:.3f}   # the longest, for the RobotSpec")
        if spec.dead_time is not None and worst > spec.dead_time + 0.02:
            found.problems.append(
                f"the RobotSpec says dead_time {spec.dead_time:g}, measured {worst:.3f}: limits may be passed; write "
                "the measured one down"
            )
    if not trial.problems:
        silence = try_timeout(node, spec)
        found.lines += ["", "the controller without commands", *silence.lines]
        found.problems += silence.problems


def _platform(found: Findings, timing: bool) -> None:
    value = os.environ.get
    found.lines += [
        f"rclpy {metadata.version('rclpy')}  domain {value('ROS_DOMAIN_ID', '0')}"
        f"  discovery {value('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET')}"
        f"  security {'on' if value('ROS_SECURITY_ENABLE', '') == 'true' else 'off'}",
        f"Fast DDS profile {value('FASTDDS_DEFAULT_PROFILES_FILE') or 'default'}",
    ]
    allowed = "no (Linux alone has it)"
    if sys.platform == "linux":
        before = os.sched_getscheduler(0)
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            os.sched_setscheduler(0, before, os.sched_param(0))
            allowed = "yes"
        except OSError as error:
            allowed = f"no ({error}); loops run without real-time priority"
    line = f"SCHED_FIFO allowed: {allowed}"
    if timing:
        late = _wake_up()
        line += f"   wake-up lateness p50 {late[0]:.2f} ms, p99 {late[1]:.2f} ms, worst {late[2]:.2f} ms"
    found.lines.append(line)


def _wake_up(count: int = 100, period: float = 0.005) -> np.ndarray:
    """p50, p99 and worst lateness of an ordinary thread [ms]."""
    begin, late = time.monotonic(), np.empty(count)
    for k in range(count):
        due = begin + (k + 1) * period
        time.sleep(max(due - time.monotonic(), 0.0))
        late[k] = time.monotonic() - due
    return 1e3 * np.percentile(late, [50, 99, 100])


def _settle(node: Node, topics: list[str], needed: list[str], limit: float = 8.0, quiet: float = 0.7) -> None:
    """Wait until discovery has come to rest: endpoints come before the names of their nodes, nodes one by one.

    Somebody may be found at once and the robot only when it announces itself again, after 3 s with Fast DDS, or 6 s
    where that is lost too: a topic that is needed and that nobody publishes yet is waited for until the limit.
    """
    end, seen, since = time.monotonic() + limit, None, time.monotonic()
    while time.monotonic() < end:
        names = tuple(sorted(node.get_node_names_and_namespaces()))
        ends = tuple(
            sorted(
                info.node_name
                for topic in topics
                for info in (*node.get_publishers_info_by_topic(topic), *node.get_subscriptions_info_by_topic(topic))
            )
        )
        if (names, ends) != seen:
            seen, since = (names, ends), time.monotonic()
        found = all(node.count_publishers(topic) for topic in needed)
        named = len(names) > 1 and not any("UNKNOWN" in name for name in ends)
        if found and named and time.monotonic() - since >= quiet:
            return
        time.sleep(0.1)


def _listen(node: Node, spec: RobotSpec, namespace: str, listen: float, found: Findings) -> None:
    table = topic_table(spec, namespace=namespace or "/")
    hardware = node.resolve_topic_name(spec.controller_topic)
    needed = [topic for role, (topic, _) in table.items() if role == "safety" or _need(role, spec)[0]]
    _settle(node, [topic for topic, _ in table.values()], needed)
    heard: dict[str, Heard] = {}
    offers = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
    for role, (topic, kind) in table.items():
        if role.startswith(("joints", "sensor", "camera", "executed", "command")):
            cls = message_class(kind)
            heard[topic] = Heard(cls)
            node.create_subscription(cls, topic, heard[topic].take, offers, raw=True)
    states: list[str] = []
    reports: dict[str, object] = {}
    ours = ("", hardware_id(spec.name, node.get_namespace()))
    node.create_subscription(String, table["safety"][0], lambda m: states.append(m.data), qos("latched"))
    node.create_subscription(
        DiagnosticArray,
        "/diagnostics",
        lambda m: reports.update({s.name: s for s in m.status if s.hardware_id in ours}),
        50,
    )
    time.sleep(listen)
    names = sorted(f"{space.rstrip('/')}/{name}" for name, space in node.get_node_names_and_namespaces())
    names = [name for name in names if not name.endswith("/doctor")]
    found.lines += ["", f"nodes ({len(names)})", *(f"  {name}" for name in names)]
    if not names:
        found.problems.append(
            "no nodes discovered: same ROS_DOMAIN_ID and ROS_AUTOMATIC_DISCOVERY_RANGE on both sides?"
        )
    found.lines += ["", f"{'topic':44} {'rate':>8} {'age':>9} {'clock':>10}  publishers -> subscribers"]
    for role, (topic, _) in table.items():
        _topic(node, role, topic, heard.get(topic), spec, found)
    _hardware(node, hardware, spec, found)
    _safety(states, reports, found)


def _topic(node: Node, role: str, topic: str, heard: Heard | None, spec: RobotSpec, found: Findings) -> None:
    publishers = node.get_publishers_info_by_topic(topic)
    subscribers = [s for s in node.get_subscriptions_info_by_topic(topic) if s.node_name != "doctor"]
    rate, age, offset = np.nan, np.nan, np.nan
    if heard is not None and heard.times:
        rate, age, offset = heard.rate(), time.monotonic() - heard.times[-1], heard.offset()
    found.topics[topic] = {
        "rate": rate,
        "age": age,
        "offset": offset,
        "publishers": [p.node_name for p in publishers],
        "subscribers": [s.node_name for s in subscribers],
    }
    sides = f"{_names(publishers)} -> {_names(subscribers)}"
    cells = f"{_cell(rate, ' Hz', 1):>8} {_cell(1e3 * age, ' ms', 1):>9} {_cell(1e3 * offset, ' ms', 1):>10}"
    found.lines.append(f"{topic:44} {cells}  {sides}")
    required, timeout = _need(role, spec)
    if required and not publishers:
        found.problems.append(f"{topic}: nobody publishes it; start the robot's driver, or remap it in the RobotSpec")
    elif required and heard is not None and not heard.times:
        found.problems.append(f"{topic}: {_names(publishers)} announces it, but nothing arrives")
    elif required and age > timeout:
        found.problems.append(f"{topic}: silent for {age:.2f} s, allowed {timeout:g} s")
    if abs(offset) > 0.5:
        found.lines.append(f"  the clock of {_names(publishers)} differs by {offset:+.3f} s; ages are corrected for it")
    for p in publishers:
        for s in subscribers:
            verdict, reason = qos_check_compatible(p.qos_profile, s.qos_profile)
            if verdict == QoSCompatibility.ERROR:
                found.problems.append(
                    f"{topic}: QoS of publisher {p.node_name} does not match subscriber {s.node_name}: "
                    f"{_policy(reason)}; no message will pass"
                )
    if role.startswith("command:"):
        for p in publishers:
            if p.node_name not in POLICY_SIDE:
                found.problems.append(f"{topic}: unexpected publisher {p.node_name}; the supervisor refuses to arm")


def _need(role: str, spec: RobotSpec) -> tuple[bool, float]:
    group, _, name = role.partition(":")
    if group in ("joints", "sensor", "camera"):
        sensor = (spec.cameras if group == "camera" else spec.sensors).get(name)
        return (sensor.required, sensor.timeout) if sensor is not None else (True, 0.1)
    return False, np.inf


def _hardware(node: Node, topic: str, spec: RobotSpec, found: Findings) -> None:
    publishers = node.get_publishers_info_by_topic(topic)
    subscribers = [s for s in node.get_subscriptions_info_by_topic(topic) if s.node_name != "doctor"]
    found.lines += ["", f"command topic {topic} ({hardware_type(spec).__name__})"]
    found.lines.append(f"  {_names(publishers)} -> {_names(subscribers)}")
    strangers = [p.node_name for p in publishers if p.node_name != "safety_supervisor"]
    if strangers:
        found.problems.append(
            f"{topic}: {', '.join(strangers)} publishes commands beside the supervisor; end it before arming"
        )
    if not any(p.node_name == "safety_supervisor" for p in publishers):
        found.problems.append(f"{topic}: the safety supervisor does not publish it; start safety_supervisor_node")
    if len(subscribers) != 1:
        found.problems.append(f"{topic}: {len(subscribers)} subscribers, expected exactly one controller")
    for p in publishers:
        for s in subscribers:
            if p.topic_type != s.topic_type:
                found.problems.append(
                    f"{topic}: {p.node_name} sends {p.topic_type}, {s.node_name} wants {s.topic_type}"
                )


def _safety(states: list[str], reports: dict[str, Any], found: Findings) -> None:
    found.lines += ["", f"supervisor: {states[-1] if states else 'silent'}"]
    if not states:
        found.problems.append("no safety state is published: is the supervisor configured and active?")
    for name, status in sorted(reports.items()):
        level = LEVELS[min(status.level[0], 3)]
        found.lines.append(f"  {level:5} {name}: {status.message}")
        if level == "ERROR":
            found.problems.append(f"{name}: {status.message}")


def _names(endpoints: Any) -> str:
    return ", ".join(sorted({endpoint.node_name for endpoint in endpoints})) or "nobody"


def _cell(value: float, unit: str, digits: int) -> str:
    return "-" if not np.isfinite(value) else f"{value:.{digits}f}{unit}"


def _policy(reason: str) -> str:
    return reason.replace("ERROR: ", "").strip().rstrip(";") or "unknown policy"
