"""What every node shares: the control thread, diagnostics, and a life that ends in order."""
# pyright: reportAttributeAccessIssue=false
# (fields of messages are lists in truth; rclpy's stubs say less)

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from robot_rl.extras import require
from robot_rl.real.core.clock import SteadyClock
from robot_rl.real.core.scheduler import Scheduler, Tick

require("rclpy")

import rclpy  # noqa: E402  (after the check that it is there)
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue  # noqa: E402
from rclpy.clock import Clock  # noqa: E402
from rclpy.clock_type import ClockType  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks  # noqa: E402
from rclpy.exceptions import InvalidParameterTypeException, ParameterException  # noqa: E402
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import QoSCompatibility, qos_check_compatible, qos_policy_name_from_kind  # noqa: E402
from rclpy.signals import SignalHandlerOptions  # noqa: E402

from robot_rl.real.core.priority import lift_all  # noqa: E402
from robot_rl.real.ros.executor import TopicExecutor  # noqa: E402
from robot_rl.real.ros.io import qos  # noqa: E402
from robot_rl.real.ros.parameters import OVERRIDE, told_overrides  # noqa: E402
from robot_rl.real.ros.transport import spare_shared_memory  # noqa: E402

OK, WARN, ERROR, STALE = 0, 1, 2, 3
PARENT = "ROBOT_RL_PARENT"
"""Environment variable with the process id of the launcher; a node ends when that process is gone."""
END_WITHIN = 20
"""Whole seconds that a node's end may take, its brake included, before the kernel ends the process."""
_PR_SET_PDEATHSIG = 1


def steady_timer(node: Node, seconds: float, callback: Callable[[], Any]) -> Any:
    """Timer on the steady clock: one on ROS time stands still while /clock does, and with it what it watches."""
    return node.create_timer(seconds, callback, clock=Clock(clock_type=ClockType.STEADY_TIME))


# ---------------------------------------------------------------- control thread


class Ring:
    """The last rows of numbers, written by one thread and read by another without locks.

    Args:
        rows: how many are kept.
        columns: names of the numbers.
    """

    def __init__(self, rows: int, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.count = 0
        self._data = np.full((rows, len(self.columns)), np.nan)

    def add(self, *values: float) -> None:
        """Append a row."""
        self._data[self.count % len(self._data)] = values
        self.count += 1

    def last(self, rows: int | None = None) -> np.ndarray:
        """(n, columns) newest rows, oldest first."""
        count, size = self.count, len(self._data)
        n = min(count, size if rows is None else rows)
        return self._data[np.arange(count - n, count) % size]


class ControlLoop:
    """A thread that ticks at absolute deadlines of the steady clock.

    An exception in a tick goes to `on_error` and the loop goes on: what drives a robot has to keep braking it.

    Args:
        rate: ticks per second.
        tick: called with each period.
        on_error: called with an exception of `tick`.
        priority: SCHED_FIFO priority, 0 = ordinary; without the right to it the loop runs ordinarily and says so.
        spin: seconds before a deadline that are waited for busily, under SCHED_FIFO only.
    """

    COLUMNS = ("deadline", "lateness", "compute", "age", "skipped")

    def __init__(
        self,
        rate: float,
        tick: Callable[[Tick], float | None],
        *,
        on_error: Callable[[Exception], None],
        priority: int = 0,
        spin: float = 2e-4,
    ) -> None:
        self.rate, self.fifo, self.errors = rate, "off", 0
        self.log = Ring(4096, self.COLUMNS)
        self._tick, self._on_error, self._priority, self._spin = tick, on_error, priority, spin
        self._clock = SteadyClock()
        self.scheduler = Scheduler(1.0 / rate, self._clock)
        self._thread: threading.Thread | None = None  # that ticks; one that was stopped is at its last tick

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin; a second call does nothing."""
        if self._thread is not None:
            return
        self.scheduler.restart()
        self._thread = threading.Thread(target=self._work, name="control", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End after the present tick; callable from the loop itself and more than once."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def summary(self) -> dict[str, float]:
        """Rate, period and lateness percentiles [ms], compute time [ms] and missed ticks of the recent past."""
        rows = self.log.last()
        if len(rows) < 3:
            return {"rate": 0.0, "missed": float(self.scheduler.missed)}
        period = np.diff(rows[:, 0] + rows[:, 1])
        # sorted once: np.percentile takes 5 times as long, and at its first call loads a module between two ticks
        ranks = [len(period) // 2, -len(period) // 100, -1]
        half, most, worst = 1e3 * np.sort(np.column_stack([period, rows[1:, 1:3]]), axis=0)[ranks]
        figures = {"rate": float(1.0 / period.mean()), "missed": float(self.scheduler.missed)}
        for column, name in enumerate(("period", "lateness", "compute")):
            figures |= {f"{name}_p50_ms": float(half[column]), f"{name}_p99_ms": float(most[column])}
        return {**figures, "period_max_ms": float(worst[0])}

    def _work(self) -> None:
        self.fifo = lift_all(self._priority)
        self._clock.spin = self._spin if self.fifo == "on" else 0.0
        while self._thread is threading.current_thread():
            tick = self.scheduler.wait()
            begin = time.monotonic()
            age: float | None = None
            try:
                age = self._tick(tick)
            except Exception as error:  # a tick that fails must not end the loop that brakes the robot
                self.errors += 1
                with contextlib.suppress(Exception):
                    self._on_error(error)
            spent = time.monotonic() - begin
            self.log.add(tick.deadline, tick.lateness, spent, np.nan if age is None else age, tick.skipped)


def spare_garbage() -> None:
    """Collect once, then leave all that is there out of later collections, which take 0.3 s where torch is loaded."""
    gc.collect()
    gc.freeze()


def freeze_garbage() -> None:
    """Collect once, then keep the collector from running inside control ticks."""
    spare_garbage()
    gc.disable()


def thaw_garbage() -> None:
    """Undo `freeze_garbage`."""
    gc.enable()
    gc.unfreeze()


# ---------------------------------------------------------------- diagnostics

Seen = tuple[int, str, dict[str, object]]  # level, one sentence, and numbers by name
Aspect = Callable[[], Seen]


def hardware_id(robot: str, namespace: str) -> str:
    """What diagnostics call a robot: its name, behind its namespace where several robots of one name may be about."""
    return "/".join(part for part in (namespace.strip("/"), robot) if part)


class Health:
    """Publishes DiagnosticStatus per aspect of a node, once a second and at once when a level changes.

    Args:
        node: whose health it is.
        robot: name of the robot; with the namespace it is the hardware id.

    Attributes:
        mismatches: topic -> QoS policy that keeps a sender's messages from us.
        listeners: topic -> QoS policy that keeps ours from a listener.
    """

    def __init__(self, node: Node, robot: str) -> None:
        self._node, self._robot = node, hardware_id(robot, node.get_namespace())
        self._aspects: dict[str, Aspect] = {}
        self._levels: dict[str, int] = {}
        self._sent_at = -np.inf
        self.mismatches: dict[str, str] = {}
        self.listeners: dict[str, str] = {}
        self._noted: dict[str, float] = {}
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.add("listeners", self._listening)
        self._timer = steady_timer(node, 0.2, self.update)

    def add(self, name: str, aspect: Aspect) -> None:
        """Add an aspect."""
        self._aspects[name] = aspect

    def summary(self) -> dict[str, dict[str, Any]]:
        """Aspect -> level, message and numbers, the same that are published."""
        seen = ((name, *aspect()) for name, aspect in self._aspects.items())
        return {name: {"level": level, "message": message, **values} for name, level, message, values in seen}

    def update(self) -> None:
        """Publish when it is time or when a level has changed."""
        now = time.monotonic()
        if now - self._sent_at >= 1.0:
            self._forget(now)
        report = self.summary()
        levels = {name: item["level"] for name, item in report.items()}
        if levels == self._levels and now - self._sent_at < 1.0:
            return
        self._levels, self._sent_at = levels, now
        message = DiagnosticArray()
        message.header.stamp = self._node.get_clock().now().to_msg()
        for name, item in report.items():
            values = [
                KeyValue(key=key, value=_text(value)) for key, value in item.items() if key not in ("level", "message")
            ]
            message.status.append(
                DiagnosticStatus(
                    level=bytes([item["level"]]),
                    name=f"robot_rl/{self._node.get_name()}: {name}",
                    message=item["message"],
                    hardware_id=self._robot,
                    values=values,
                )
            )
        self._publisher.publish(message)

    def note(self, topic: str, policy: str, *, listener: bool) -> None:
        """A peer on `topic` does not match because of a QoS policy; forgotten once it is gone."""
        (self.listeners if listener else self.mismatches)[topic] = policy
        self._noted[topic] = time.monotonic()

    def _forget(self, now: float) -> None:
        """Forget mismatches whose peer is gone; nothing else tells when it is."""
        own = self._node.get_name()
        for table in (self.mismatches, self.listeners):
            for topic in list(table):
                if now - self._noted[topic] < 3.0:  # its event may come before its endpoint is discovered
                    continue
                name = self._node.resolve_topic_name(topic)
                senders = self._node.get_publishers_info_by_topic(name)
                listeners = self._node.get_subscriptions_info_by_topic(name)
                if not any(
                    own in (sender.node_name, listener.node_name)
                    and qos_check_compatible(sender.qos_profile, listener.qos_profile)[0] == QoSCompatibility.ERROR
                    for sender in senders
                    for listener in listeners
                ):
                    del table[topic]

    def _listening(self) -> Seen:
        found = [f"{topic}: QoS {policy} keeps a listener from hearing us" for topic, policy in self.listeners.items()]
        return (WARN, "; ".join(found), {}) if found else (OK, "all who listen hear us", {})

    def watch_loop(self, loop: ControlLoop, *, warn_missed: float = 0.1) -> None:
        """Add the aspect `loop`; WARN when more than `warn_missed` of the last second's ticks were skipped.

        A loop that was refused SCHED_FIFO is said once in the log: on a busy machine it will miss ticks.
        """
        told: set[str] = set()
        figures: dict[str, float] = {}
        counted = -math.inf

        def aspect() -> Seen:
            nonlocal figures, counted
            if not loop.alive:
                return STALE, "not running", {}
            if loop.fifo not in ("on", "off") and loop.fifo not in told:
                told.add(loop.fifo)
                self._node.get_logger().warning(
                    f"no SCHED_FIFO for the control loop, {loop.fifo}: on a busy machine it misses ticks and the robot "
                    "is stopped; allow it (ulimit -r 98, or CAP_SYS_NICE), or say realtime=false on an idle machine"
                )
            recent = loop.log.last(int(loop.rate))[:, 4]
            share = float(recent.sum() / max(len(recent), 1)) if len(recent) else 0.0
            level = WARN if share > warn_missed else OK
            message = f"{share:.0%} of the ticks of the last second were missed" if level else "on time"
            message += "" if loop.fifo in ("on", "off") else f"; no SCHED_FIFO, {loop.fifo}"
            if (now := time.monotonic()) - counted > 0.9:  # as often as they are published; levels are asked oftener
                figures, counted = loop.summary(), now
            return level, message, {**figures, "fifo": loop.fifo, "errors": loop.errors}

        self.add("loop", aspect)


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- topics


def subscribe(node: Node, kind: Any, topic: str, callback: Callable[..., None], profile: str, health: Health) -> Any:
    """Subscription with our QoS, or what `qos_overrides` say; mismatches show up in the diagnostics."""
    events = SubscriptionEventCallbacks(incompatible_qos=lambda event: note_mismatch(health, topic, event))
    with told_overrides(topic):
        return node.create_subscription(
            kind, topic, callback, qos(profile), event_callbacks=events, qos_overriding_options=OVERRIDE
        )


def publisher(node: Node, kind: Any, topic: str, profile: str, health: Health) -> Any:
    """As `subscribe`."""
    mismatch = functools.partial(note_mismatch, health, topic, listener=True)
    events = PublisherEventCallbacks(incompatible_qos=mismatch)
    with told_overrides(topic):
        return node.create_publisher(kind, topic, qos(profile), event_callbacks=events, qos_overriding_options=OVERRIDE)


def note_mismatch(health: Health, topic: str, event: object, *, listener: bool = False) -> None:
    """Remember which QoS policy of a topic keeps a peer from matching."""
    health.note(topic, qos_policy_name_from_kind(event.last_policy_kind), listener=listener)


# ---------------------------------------------------------------- life of a process


def die_with_parent(sign: int) -> None:
    """Have the kernel send this process a signal when its parent is gone; 0 asks for none.

    No thread of Python can see to it while a library holds the interpreter: Fast DDS 3.2 locks up for good where a
    peer leaves at the moment of an announcement (eProsima/Fast-DDS issue 6502), also while a node is being made.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, sign)


def run(
    make: Callable[[], Any],
    args: Sequence[str] | None = None,
    *,
    survive: Callable[[Any, Exception], None] | None = None,
    shared_memory: bool = True,
    finishes: bool = False,
) -> int:
    """Process of one node: callbacks in one background thread, an orderly end on SIGINT, SIGTERM or a lost parent.

    Args:
        make: constructs the node; its ValueError, OSError or ImportError ends the process with one line. The node's
            `wind_down()` brakes and says goodbye: called once, while callbacks still run, for 2 s at most.
        args: command line for rclpy; None takes the process's own.
        survive: called with the node and an exception of one of its callbacks, which go on; None = the process ends,
            as fits a source of commands, whose silence is a soft stop.
        shared_memory: messages may come by it; else by UDP alone.
        finishes: it moves nothing, and its end may take longer than `END_WITHIN`, as on a slow disk.

    Returns:
        Exit status: 0 after an orderly end, 1 when the callback thread died, 2 when the node could not be made.
    """
    over = threading.Event()
    made = ending = False

    def on_signal(*_: object) -> None:
        nonlocal ending
        ending = True  # no Event: its lock may be held by the very thread that the next signal interrupts
        if not made:  # nothing moves yet: give up at once instead of first finishing to load
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    parent = int(os.environ.get(PARENT) or 0)
    if parent:  # nothing moves before the node is made: end at once
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            return 0
    if not shared_memory:
        spare_shared_memory()
    rclpy.init(args=list(args) if args is not None else None, signal_handler_options=SignalHandlerOptions.NO)
    node = None
    try:
        node = make()
        made = True
        die_with_parent(0)  # from here on it brakes first
        executor = TopicExecutor()
        executor.add_node(node)
        work = functools.partial(survive, node) if survive is not None else None
        spinning = threading.Thread(target=spin, args=(executor, over, work), name="callbacks", daemon=True)
        spinning.start()
        while not ending:
            time.sleep(0.05)
            if not spinning.is_alive() or (parent and os.getppid() != parent):
                break
        healthy = spinning.is_alive()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(0 if finishes else END_WITHIN)  # in the kernel: goodbyes may meet a locked library too
        node.wind_down()
        over.set()
        spinning.join(1.0)
        executor.shutdown(timeout_sec=1.0)
        return 0 if healthy else 1
    except KeyboardInterrupt:
        return 0
    except (ValueError, OSError, ImportError, ParameterException, InvalidParameterTypeException) as error:
        if ending:  # the signal came while a library was loading, which calls that an error of its own
            return 0
        sys.stderr.write(f"{sys.argv[0].rsplit('/', 1)[-1]}: {error}\n")
        return 2
    finally:
        # Ctrl-C reaches the process group and then each process once more from the launcher: the second signal must not
        # kill an interpreter that is cleaning up, whose exit status tells that the end was orderly.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if node is not None:
            with contextlib.suppress(Exception):
                node.destroy_node()
        rclpy.try_shutdown()


def leave(status: int) -> NoReturn:
    """End the process after `run`; the interpreter's own end takes up to seconds where torch or MuJoCo are loaded."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def spin(
    executor: SingleThreadedExecutor, over: threading.Event, survive: Callable[[Exception], None] | None = None
) -> None:
    """Answer callbacks until `over` is set: the work of a thread.

    Args:
        executor: with its nodes.
        over: ends it, within 0.2 s.
        survive: called with an exception of a callback, which then go on; None raises it here.
    """
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException):
        while not over.is_set():
            try:
                executor.spin_once(timeout_sec=0.2)
            except ExternalShutdownException:
                raise
            except Exception as error:  # whatever it was, whoever brakes the robot has to stay
                if survive is None:
                    raise
                survive(error)


@contextlib.contextmanager
def node_beside(name: str, *, namespace: str = "", thread: str = "") -> Iterator[Node]:
    """A node in a context of its own, whose callbacks run in a thread until the block ends.

    Args:
        name: of the node.
        namespace: of the node.
        thread: its name; left out = the node's.
    """
    context = Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(name, context=context, namespace=namespace or None, enable_rosout=False)
    executor = TopicExecutor(context=context)
    executor.add_node(node)
    over = threading.Event()
    spinner = threading.Thread(target=spin, args=(executor, over), name=thread or name, daemon=True)
    spinner.start()
    try:
        yield node
    finally:
        over.set()
        spinner.join(2.0)
        executor.shutdown(timeout_sec=0.5)
        node.destroy_node()
        rclpy.try_shutdown(context=context)
