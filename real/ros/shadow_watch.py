"""The comparison before the first motion, fed by the policy node: says what it finds, and keeps it as a file."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np
from rclpy.node import Node

from robot_rl.real.cameras import WHOLE, crop_pixels
from robot_rl.real.core.shadow import IMAGE, Shadow, ShadowSample
from robot_rl.real.core.shadow_report import ShadowReport, card_digest, report_path
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.legged_port import IMU
from robot_rl.real.robot import RobotState
from robot_rl.real.ros.camera_inputs import CameraInputs
from robot_rl.real.ros.io import JointTrajectory, read_executed
from robot_rl.real.ros.node_base import OK, WARN, Health, steady_timer, subscribe
from robot_rl.real.runner_flight import digests
from robot_rl.types import Loaded, Port, Seen
from robot_rl.types.io import mosaic

EVERY = 1.0
"""Seconds between two judgements."""
PICTURES = 0.2
"""Seconds between two looks at a camera."""


class ShadowFacts(TypedDict):
    """Whose comparison it is."""

    robot: str
    robot_spec: str
    card: str
    policy: str
    files: dict[str, str]


def shadow_facts(spec: RobotSpec, robot_spec: str, policy: str, loaded: Loaded) -> ShadowFacts:
    """Robot and policy with the SHA-256 of their files."""
    return {
        "robot": spec.name,
        "robot_spec": robot_spec,
        "card": card_digest(robot_spec),
        "policy": policy,
        "files": digests(loaded.files),
    }


class ShadowWatch:
    """Feeds a `Shadow` from a node, judges once a second in the thread of the callbacks, and tells.

    Args:
        node: of the policy.
        spec: of the robot.
        seen: what training saw.
        port: of the policy on this robot.
        facts: for the report.
        folder: where it goes; a second report of the same second gets a number.

    Raises:
        OSError: nothing can be written there.
    """

    def __init__(
        self, node: Node, spec: RobotSpec, seen: Seen | None, port: Port, facts: ShadowFacts, folder: Path
    ) -> None:
        self._node, self._spec, self._facts = node, spec, facts
        self.watched = Shadow(spec, seen, port.io, cameras=port.cameras, body=IMU in port.external)
        self._cameras, self._looked, self._crop = port.cameras, -np.inf, port.io.crop
        folder.mkdir(parents=True, exist_ok=True)
        self.path = report_path(folder, spec.name)
        self._said: set[str] = set()
        self._before: set[str] = set()
        self._report: ShadowReport | None = None

    def open(self, health: Health) -> None:
        """Listen to what is executed, and begin to judge."""
        self._executed = subscribe(
            self._node, JointTrajectory, "robot_rl/executed", self._on_executed, "executed", health
        )
        self._timer = steady_timer(self._node, EVERY, self._judge)
        self._node.get_logger().info(
            f"shadow: the policy proposes and moves nothing; the comparison goes to {self.path}"
        )

    def take(self, now: float, state: RobotState, cameras: CameraInputs) -> None:
        """A tick with a state; in the control thread.

        Args:
            now: [s of the steady clock].
            state: newest.
            cameras: of the policy.
        """
        shots: dict[str, tuple[float, np.ndarray]] = {}
        if self._cameras and now - self._looked >= PICTURES:
            self._looked = now
            for name in self._cameras:
                pixels = cameras[name].picture(now)
                if pixels is not None and pixels.ndim == 3:
                    seen = crop_pixels(pixels, self._crop.get(IMAGE + name, WHOLE))
                    shots[name] = now - cameras[name].age(now), mosaic(seen)
        imu = state.sensors.get(self._spec.imu) if self._spec.imu else None
        self.watched.take(ShadowSample(now, state.stamp, state.position, state.velocity, imu, shots))

    def aspect(self, values: Mapping[str, object]) -> tuple[int, str, dict[str, object]]:
        """For the diagnostics."""
        report = self._report
        told = {**values, "shadow": str(self.path)}
        if report is None:
            return OK, "proposing; nothing is compared yet", told
        lines = [line for line in report.lines() if not line.startswith("fits")]
        told |= {"clean": report.clean, "wrong": len(report.of("wrong")), "open": len(report.of("open"))}
        return (OK if report.clean else WARN), "proposing; " + ("; ".join(lines) or "everything fits"), told

    def close(self) -> None:
        """End, and keep what was found."""
        self._timer.cancel()
        self.write()

    def write(self) -> None:
        """The newest report as a file; what cannot be written is said."""
        report = self._report
        if report is None:
            return
        text = json.dumps(report.table(**self._facts), indent=1, ensure_ascii=False)
        try:
            part = self.path.with_suffix(".part")
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(self.path)
        except OSError as error:
            self._node.get_logger().error(f"shadow: no report: {error}", throttle_duration_sec=10.0)

    def _on_executed(self, message: JointTrajectory) -> None:
        item = read_executed(message)
        self.watched.execute(time.monotonic(), item.value)

    def _judge(self) -> None:
        report = self._report = self.watched.judge()
        say = self._node.get_logger()
        lines = report.lines()
        for line in lines:  # what is wrong twice in a row is told once; what is open as it is in the end
            if line.startswith("WRONG"):
                check = line.split(": ")[1]
                if check in self._before and check not in self._said:
                    self._said.add(check)
                    say.error(f"shadow: {line}")
        self._before = {note.check for note in report.of("wrong")}
        summary = ", ".join(dict.fromkeys(note.check for note in report.of("open")))
        if summary != self._summary:
            self._summary = summary
            if summary:
                say.warning(f"shadow: not yet checked: {summary}. {report.of('open')[0].text}")
        if report.clean and "clean" not in self._said:
            self._said.add("clean")
            for line in lines:
                say.info(f"shadow: {line}")
            say.info(f"shadow: everything fits after {report.seconds:.0f} s; the policy may drive ({self.path})")
        self.write()

    _summary = "?"
