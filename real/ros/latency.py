"""Measures the way of a state to a policy and of its command back, between two processes, at a fixed rate.

`python -m robot_rl.real.ros.latency probe --rate 500 …` ticks, publishes joint states and takes the commands; it starts
`… answer`, which computes a policy of 2 x 256 units for every state and publishes the command. Both run on the steady
clock of one machine, so the stamps of one are read by the other. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from robot_rl import child
from robot_rl.extras import require

require("rclpy")

import rclpy  # noqa: E402  (after the check that it is there)
from rclpy.node import Node  # noqa: E402
from rclpy.signals import SignalHandlerOptions  # noqa: E402
from sensor_msgs.msg import JointState  # noqa: E402

from robot_rl.real.core.priority import lift  # noqa: E402
from robot_rl.real.core.scheduler import Tick  # noqa: E402
from robot_rl.real.ros.executor import TopicExecutor  # noqa: E402
from robot_rl.real.ros.io import qos, seconds, time_message  # noqa: E402
from robot_rl.real.ros.node_base import ControlLoop, freeze_garbage, node_beside  # noqa: E402

JOINTS = 7
HIDDEN = 256


class Answer:
    """A policy that answers every state at once: 2 x 256 units in NumPy, or an echo.

    Args:
        node: to talk through.
        policy: False echoes.
    """

    def __init__(self, node: Node, *, policy: bool) -> None:
        rng = np.random.default_rng(0)
        sizes = [2 * JOINTS, HIDDEN, HIDDEN, JOINTS]
        self._layers = [rng.normal(0.0, 1.0 / a**0.5, (a, b)).astype(np.float32) for a, b in pairwise(sizes)]
        self._policy = policy
        self._out = node.create_publisher(JointState, "probe/command", qos("hardware"))
        node.create_subscription(JointState, "probe/state", self._on_state, qos("state"))

    def _on_state(self, message: JointState) -> None:
        arrived = time.monotonic()
        value = message.position
        if self._policy:
            x = np.concatenate([message.position, message.velocity]).astype(np.float32)
            for layer in self._layers[:-1]:
                x = np.maximum(x @ layer, 0.0)
            value = np.tanh(x @ self._layers[-1])
        answer = JointState(position=np.asarray(value, float).tolist(), velocity=[arrived, time.monotonic()])
        answer.header.stamp = message.header.stamp
        answer.header.frame_id = message.header.frame_id
        self._out.publish(answer)


class Probe:
    """Publishes states at a rate and collects what comes back.

    Args:
        node: to talk through.
        rate: states per second.
        priority: SCHED_FIFO priority of the loop, 0 = ordinary.
        ticks: states to be sent.
    """

    def __init__(self, node: Node, *, rate: float, priority: int, ticks: int) -> None:
        self._out = node.create_publisher(JointState, "probe/state", qos("state_out"))
        node.create_subscription(JointState, "probe/command", self._on_command, qos("hardware"))
        self._message = JointState(position=[0.1] * JOINTS, velocity=[0.0] * JOINTS)
        self.rows = np.full((ticks, 4), np.nan)  # lateness, one way, compute, closed loop [s]
        self.starts, self.index = np.full(ticks, np.nan), np.zeros(ticks, int)
        self.sent = 0
        self._warm = int(0.5 * rate)  # the thread gets its priority and its memory locked first
        self.done = threading.Event()
        self.loop = ControlLoop(rate, self._tick, on_error=_complain, priority=priority)

    def _tick(self, tick: Tick) -> None:
        if self.sent >= len(self.rows):
            self.done.set()
            return
        if self._warm > 0:
            self._warm -= 1
            return
        now = time.monotonic()
        self.index[self.sent] = tick.index
        self.rows[self.sent, 0], self.starts[self.sent] = tick.lateness, now
        self._message.header.stamp = time_message(now)
        self._message.header.frame_id = str(self.sent)
        self.sent += 1
        self._out.publish(self._message)

    def _on_command(self, message: JointState) -> None:
        now, index = time.monotonic(), int(message.header.frame_id)
        begun = seconds(message.header.stamp)
        arrived, finished = message.velocity
        self.rows[index, 1:] = arrived - begun, finished - arrived, now - begun

    def summary(self, rate: float) -> dict[str, object]:
        """Percentiles in ms, missed periods, and the rate that was held."""
        rows, starts = self.rows[: self.sent], self.starts[: self.sent]
        span, periods = starts[-1] - starts[0], int(self.index[self.sent - 1] - self.index[0])
        out: dict[str, object] = {
            "rate_hz": rate,
            "fifo": self.loop.fifo,
            "held_hz": periods / span,
            "ticks": self.sent,
            "missed": periods + 1 - self.sent,
            "answered": float(np.isfinite(rows[:, 3]).mean()),
        }
        for k, name in enumerate(("lateness", "one_way", "compute", "closed_loop")):
            known = rows[np.isfinite(rows[:, k]), k]
            for q in (50, 99, 100):
                key = f"{name}_{'max' if q == 100 else f'p{q}'}_ms"
                out[key] = float(1e3 * np.percentile(known, q)) if len(known) else float("nan")
        return out


def _complain(error: Exception) -> None:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")


def answer(args: argparse.Namespace) -> int:
    """The other process: ends with its parent."""
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("answer")
    Answer(node, policy=args.policy)
    executor = TopicExecutor()
    executor.add_node(node)
    lift(args.fifo)
    freeze_garbage()
    parent = os.getppid()
    while os.getppid() == parent:
        executor.spin_once(timeout_sec=0.2)
    return 0


def probe(args: argparse.Namespace) -> int:
    """Measure, print JSON."""
    command = child.command("robot_rl.real.ros.latency", "answer", "--fifo", args.fifo)
    other = subprocess.Popen([*command, *(["--policy"] if args.policy else [])])
    try:
        with node_beside("probe", thread="callbacks") as node:
            ticks = max(int(args.rate * args.seconds), 10)
            made = Probe(node, rate=args.rate, priority=args.fifo, ticks=ticks)
            patience = time.monotonic() + 60.0
            while node.count_subscribers("probe/state") < 1 or node.count_publishers("probe/command") < 1:
                if time.monotonic() > patience or other.poll() is not None:
                    sys.stderr.write("the answering process did not appear\n")
                    return 1
                time.sleep(0.02)
            time.sleep(0.5)
            freeze_garbage()
            made.loop.start()
            made.done.wait(args.seconds * 3.0 + 10.0)
            made.loop.stop()
            time.sleep(0.2)  # the last answers
    finally:
        other.kill()
        other.wait()
    sys.stdout.write(json.dumps(made.summary(args.rate)) + "\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m robot_rl.real.ros.latency`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("probe", "answer"))
    parser.add_argument("--rate", type=float, default=500.0, help="states per second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--fifo", type=int, default=0, help="SCHED_FIFO priority, 0 = ordinary")
    parser.add_argument("--policy", action="store_true", help="compute 2 x 256 units instead of an echo")
    args = parser.parse_args(arguments)
    return answer(args) if args.role == "answer" else probe(args)


if __name__ == "__main__":
    raise SystemExit(main())
