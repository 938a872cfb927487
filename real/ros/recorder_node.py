"""Node that records sessions: rosbag2 bags and D4RL episode files, started and stopped by services."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from robot_rl.extras import require

require("rclpy")

from rclpy.node import Node  # noqa: E402  (after the check that it is there)
from std_srvs.srv import Trigger  # noqa: E402

from robot_rl.data import session  # noqa: E402
from robot_rl.real.core.assembler import TICKS, StepRules  # noqa: E402
from robot_rl.real.core.priority import lift  # noqa: E402
from robot_rl.real.core.recording import RecordSettings, SessionRecorder, topic_table  # noqa: E402
from robot_rl.real.core.spec import RobotSpec  # noqa: E402
from robot_rl.real.ros.io import qos  # noqa: E402
from robot_rl.real.ros.message_kinds import message_class  # noqa: E402
from robot_rl.real.ros.node_base import ERROR, OK, WARN, Health, steady_timer  # noqa: E402
from robot_rl.real.ros.parameters import check_parameters, declare  # noqa: E402

LOW_DISK = 1 << 30


class RecorderNode(Node):
    """Subscribes raw to everything that a session needs and never takes part in control.

    Callbacks take the bytes and the time and return; a thread of the recorder writes. A full disk or a slow one costs
    recordings, never control: this node publishes nothing but diagnostics.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Read the parameters and subscribe.

        Raises:
            ValueError: a parameter or the RobotSpec is wrong.
            OSError: no such spec, or the folder cannot be made.
        """
        super().__init__("recorder", **kwargs)
        text = declare(self, "robot_spec", "", "path of the RobotSpec (YAML)")
        if not text:
            raise ValueError("parameter robot_spec is empty, expected the path of a RobotSpec (YAML)")
        spec = RobotSpec.load(text)
        folder = declare(self, "folder", "recordings", "folder of the session")
        rules = StepRules(
            ticks=declare(self, "ticks", "executed", f"what one step is: {', '.join(TICKS)}"),
            rate=declare(self, "rate", 100.0, "decisions per second", low=0.1, high=2000.0),
            tolerance=declare(self, "tolerance", 0.0, "largest age of an observation [s]; 0 = 1.5 periods", low=0.0),
            end_on_success=declare(self, "end_on_success", False, "the first success message ends the episode"),
        )
        task = declare(self, "task", "", "what the session is about")
        settings = RecordSettings(
            folder=folder,
            bags=declare(self, "bags", True, "write rosbag2 bags"),
            hdf5=declare(self, "hdf5", True, "write D4RL episode files"),
            storage=declare(self, "storage", "mcap", "storage of bags: mcap or sqlite3"),
            max_bag_bytes=declare(self, "max_bag_bytes", 1 << 30, "size that splits a bag; 0 = never", low=0),
            max_bag_seconds=declare(self, "max_bag_seconds", 0.0, "duration that splits a bag; 0 = never", low=0.0),
            queue=declare(self, "queue", 20_000, "messages that may wait for the disk", low=10),
            rules=rules,
            facts={"task": task, "recorded": time.strftime("%FT%T%z")},
        )
        topics = topic_table(
            spec,
            prefix=declare(self, "prefix", "robot_rl/", "prefix of our topics"),
            namespace=self.get_namespace(),
            tasks=[name for name in declare(self, "tasks", "", "task variables, comma-separated").split(",") if name],
        )
        extra = declare(self, "topics", "", 'further topics for the bag as JSON: {"/tf": "geometry_msgs/msg/..."}')
        topics |= {f"extra:{topic}": (topic, kind) for topic, kind in (json.loads(extra) if extra else {}).items()}
        priority = int(
            declare(self, "realtime", 0, "SCHED_FIFO priority of receiving and writing, 0 = ordinary", high=38)
        )
        autostart = declare(self, "autostart", True, "begin an episode at once")
        check_parameters(self, sys.argv)
        self.recorder = SessionRecorder(spec, topics, settings)
        self.health = Health(self, spec.name)
        self.health.add("recorder", self._aspect)
        self._seen = (0, 0)
        self._open = [self._listen(role, topic, kind) for role, (topic, kind) in topics.items()]
        for name, act in (
            ("start", self.recorder.start),
            ("stop", self.recorder.stop),
            ("discard", self.recorder.discard),
        ):
            self.create_service(Trigger, f"~/{name}", lambda _, answer, act=act: _answer(act, answer))
        self._lifting = steady_timer(self, 0.1, lambda: self._lift(priority)) if priority else None
        if autostart:
            self.recorder.start()

    def wind_down(self) -> None:
        """Finish the open episode."""
        self.recorder.close()

    def _lift(self, priority: int) -> None:
        """In the callback thread, once: a recorder that is put aside for half a second loses messages."""
        assert self._lifting is not None
        self._lifting.cancel()
        lift(priority)
        lift(priority, ("recorder",))

    def _listen(self, role: str, topic: str, kind: str) -> Any:
        take = partial(self.recorder.put, role)
        return self.create_subscription(message_class(kind), topic, take, qos("record"), raw=True)

    def _aspect(self) -> tuple[int, str, dict[str, object]]:
        report = self.recorder.report
        free = session.free_bytes(self.recorder.folder)
        dropped, before = report.dropped + report.broken, sum(self._seen)
        self._seen = (report.dropped, report.broken)
        values = {
            "recording": report.recording,
            "episodes": report.episodes,
            "steps": report.steps,
            "messages": report.messages,
            "queue": self.recorder.waiting(),
            "dropped": report.dropped,
            "broken": report.broken,
            "free_gb": free / 1e9,
            "newest": report.newest,
        }
        if report.error:
            return ERROR, f"stopped: {report.error}", values
        if dropped > before:
            return WARN, f"{dropped - before} messages lost since the last report", values
        if free < LOW_DISK:
            return WARN, f"only {free / 1e9:.2f} GB free", values
        return OK, "recording" if report.recording else "waiting for recorder/start", values


def _answer(act: Callable[[], Future[str]], answer: Any) -> Any:
    try:
        answer.message, answer.success = act().result(4.0), True
    except Exception as error:  # of the disk or a timeout; the caller reads it
        answer.message, answer.success = str(error) or type(error).__name__, False
    return answer
