"""Starts the graph as child processes: restarts, an ordered end in which the robot brakes first, no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from robot_rl.extras import require
from robot_rl.real.graph import ORDER, GraphArgs, NodeSpec, environment, graph

PARENT = "ROBOT_RL_PARENT"  # the nodes end when the process of this id is gone
RESTARTS_PER_MINUTE = 5


@dataclass
class _Child:
    node: NodeSpec
    process: subprocess.Popen[bytes]
    started: float


class Launcher:
    """Runs the processes of a graph until one of them that is essential ends, or somebody stops it.

    Args:
        nodes: what to run, from `graph`.
        say: called with one line per event.
        command: NodeSpec -> command line; default the node's Python module.

    Attributes:
        children: node name -> process.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        *,
        say: Callable[[str], None],
        command: Callable[[NodeSpec], list[str]] | None = None,
    ) -> None:
        self._nodes, self._say = list(nodes), say
        self._command = command or (lambda node: [sys.executable, "-m", node.module, *node.arguments()])
        self.children: dict[str, _Child] = {}
        self._restarts: dict[str, list[float]] = {}
        self._ending = threading.Event()

    def run(self) -> int:
        """Start everything and wait.

        Returns:
            0 after `stop` or a signal; otherwise the exit status of the essential process that ended.
        """
        status = 0
        try:
            for node in self._nodes:
                self._start(node)
            while not self._ending.wait(0.1):
                ended = self._look()
                if ended is not None:
                    status = ended
                    break
        finally:
            self.end()
        return status

    def stop(self) -> None:
        """End soon; callable from a signal handler."""
        self._ending.set()

    def end(self) -> None:
        """End all processes in order: sources, supervisor (brakes), robot, recorder; who does not go is killed."""
        for name in [*ORDER, *(name for name in list(self.children) if name not in ORDER)]:
            child = self.children.pop(name, None)
            if child is None or child.process.poll() is not None:
                continue
            child.process.send_signal(signal.SIGINT)
            try:
                code = child.process.wait(child.node.grace)
                self._say(f"{name}: ended ({code})")
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
                self._say(f"{name}: did not end within {child.node.grace:g} s, killed")

    def _start(self, node: NodeSpec) -> None:
        env = {**environment(), PARENT: str(os.getpid())}
        # a session of its own: Ctrl-C of the terminal reaches only us, and we end the processes in order
        process = subprocess.Popen(self._command(node), env=env, start_new_session=True)
        self.children[node.name] = _Child(node, process, time.monotonic())
        self._say(f"{node.name}: started, process {process.pid}")

    def _look(self) -> int | None:
        for name, child in list(self.children.items()):
            code = child.process.poll()
            if code is None:
                continue
            del self.children[name]
            self._say(f"{name}: ended with status {code}")
            if child.node.essential:
                return code or 1
            if child.node.restart == "failure" and code != 0 and self._may_restart(name):
                self._start(child.node)
        return None

    def _may_restart(self, name: str) -> bool:
        now = time.monotonic()
        recent = [when for when in self._restarts.get(name, []) if now - when < 60.0]
        if len(recent) >= RESTARTS_PER_MINUTE:
            self._say(f"{name}: failed {len(recent)} times in a minute, not restarted")
            return False
        self._restarts[name] = [*recent, now]
        return True


def deploy(arguments: GraphArgs) -> int:
    """Run the graph until Ctrl-C or SIGTERM; what `robot-rl deploy` does.

    Returns:
        0 after an orderly end; otherwise the exit status of the essential process that ended.

    Raises:
        GraphError: arguments that make no graph.
        ImportError: rclpy is missing.
    """
    nodes = graph(arguments)
    require("rclpy", extra="ros")

    def say(line: str) -> None:
        sys.stderr.write(f"[deploy] {line}\n")

    launcher = Launcher(nodes, say=say)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: launcher.stop())
    try:
        return launcher.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
