"""Starts the graph as child processes: restarts, an ordered end in which the robot brakes first, no orphans."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import IO

from robot_rl.child import command as run_module
from robot_rl.extras import require
from robot_rl.real.graph import EXECUTABLES, ORDER, GraphArgs, NodeSpec, environment, graph

NODES = "robot_rl.nodes"
"""The module that starts a node by the name of its executable."""
PARENT = "ROBOT_RL_PARENT"  # the nodes end when the process of this id is gone
RESTARTS_PER_MINUTE = 5
END = 1.8
"""Seconds after which a deployment that was told to end no longer waits for a recorder."""
UNMADE = 2
"""Exit status of a process that could not be made: an argument or a file is wrong, and the next try will say so too."""


@dataclass
class _Child:
    node: NodeSpec
    process: subprocess.Popen[bytes]
    started: float


class Relay:
    """Passes lines on to a stream without ever making the writer wait.

    A terminal that is held (Ctrl-S), or a pager that nobody scrolls, takes no more after some 64 KiB. Whoever writes
    to it directly then stands still: a supervisor in the middle of its tick, and the launcher that should end it. Here
    a thread of its own waits, and what does not fit into its queue is left out and counted.

    Args:
        stream: where lines go.
        room: lines that may wait.
    """

    def __init__(self, stream: IO[bytes] | FileIO, room: int = 1000) -> None:
        self._stream = stream
        self._lines: queue.Queue[bytes | None] = queue.Queue(room)
        self._lost, self._lock = 0, threading.Lock()
        self._readers: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._write, name="relay", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Pass on a line, or drop it."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            with self._lock:
                self._lost += 1

    def follow(self, source: IO[bytes]) -> None:
        """Pass on what comes from `source` until it ends, in a thread of its own."""

        def read() -> None:
            with contextlib.suppress(OSError, ValueError), source:
                for line in source:
                    self.put(line)

        reader = threading.Thread(target=read, name="relay-reader", daemon=True)
        self._readers = [old for old in self._readers if old.is_alive()] + [reader]
        reader.start()

    def close(self, patience: float = 0.1) -> None:
        """Wait up to `patience` s for those who still print, and as long until all is written."""
        end = time.monotonic() + patience
        for reader in self._readers:
            reader.join(max(end - time.monotonic(), 0.0))
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=patience)
            self._thread.join(patience)

    def _write(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader is gone: nobody wants to know
            line: bytes | None = b""
            while line is not None:
                line = self._lines.get()
                with self._lock:
                    lost, self._lost = self._lost, 0
                said = b"[deploy] %d lines left out: the terminal did not take them\n" % lost if lost else b""
                rest = said + (line or b"")
                while rest:  # an unbuffered stream may take a part
                    rest = rest[self._stream.write(rest) or len(rest) :]
                self._stream.flush()


class Launcher:
    """Runs the processes of a graph until one of them that is essential ends or cannot start, or somebody stops it.

    Args:
        nodes: what to run, from `graph`.
        say: called with one line per event.
        command: NodeSpec -> command line; default that of `NODES`.
        relay: what the processes print goes through it; None: straight to where the launcher prints.

    Attributes:
        children: node name -> process.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        *,
        say: Callable[[str], None],
        command: Callable[[NodeSpec], list[str]] | None = None,
        relay: Relay | None = None,
    ) -> None:
        self._nodes, self._say, self._relay = list(nodes), say, relay
        self._command = command or (lambda node: run_module(NODES, node.executable, *node.arguments(), abrupt=True))
        self.children: dict[str, _Child] = {}
        self._restarts: dict[str, list[float]] = {}
        self._ending = False  # no Event: a signal may come while its lock is held

    def run(self) -> int:
        """Start everything and wait.

        Returns:
            0 after `stop` or a signal; otherwise the exit status of the process that ended it.
        """
        status = 0
        try:
            for node in self._nodes:
                self._start(node)
            while not self._ending:
                time.sleep(0.1)
                ended = self._look()
                if ended is not None:
                    status = ended
                    break
        finally:
            self.end()
        return status

    def stop(self) -> None:
        """End soon; callable from a signal handler."""
        self._ending = True

    def end(self) -> None:
        """End all processes: sources and supervisor at once, then the robot, then the recorder, who sees it all.

        The supervisor brakes whatever its sources say meanwhile, so it need not wait until they are gone. Who has not
        ended within its grace is killed; the graces are chosen so that all of it takes two seconds at most. A recorder
        that is still writing when these are over is left to it: the robot stands, and what was recorded stays.
        """
        limit = time.monotonic() + END
        for names in (*ORDER, tuple(self.children)):
            group = [(name, self.children.pop(name)) for name in names if name in self.children]
            begin = time.monotonic()
            for _, child in group:
                if child.process.poll() is None:
                    child.process.send_signal(signal.SIGINT)
            for name, child in group:
                self._await_end(name, child, limit if child.node.finishes else begin + child.node.grace)

    def _await_end(self, name: str, child: _Child, limit: float) -> None:
        try:
            code = child.process.wait(max(limit - time.monotonic(), 0.0))
            self._say(f"{name}: ended ({code})")
        except subprocess.TimeoutExpired:
            if child.node.finishes:
                self._say(f"{name}: is still writing; process {child.process.pid} ends when all is on the disk")
                return
            child.process.kill()
            child.process.wait()
            self._say(f"{name}: did not end within {child.node.grace:g} s, killed")

    def _start(self, node: NodeSpec) -> None:
        sim = any(other.executable == EXECUTABLES["sim_robot"] for other in self._nodes)
        env = {**environment(sim=sim), PARENT: str(os.getpid())}
        # a session of its own: Ctrl-C of the terminal reaches only us, and we end the processes in order
        if self._relay is None:
            process = subprocess.Popen(self._command(node), env=env, start_new_session=True)
        else:
            env.setdefault("PYTHONUNBUFFERED", "1")  # lines come when they are printed, as in a terminal
            process = subprocess.Popen(
                self._command(node), env=env, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert process.stdout is not None
            self._relay.follow(process.stdout)
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
            if code == UNMADE and child.node.restart == "never":
                self._say(f"{name} could not be started; ending the others, which would wait for it")
                return code
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
    require("rclpy")

    # unbuffered: a buffer's lock, held by a write that waits, would hang the interpreter's end
    relay = Relay(FileIO(2, "w", closefd=False))

    def say(line: str) -> None:
        relay.put(f"[deploy] {line}\n".encode())

    launcher = Launcher(nodes, say=say, relay=relay)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: launcher.stop())
    try:
        return launcher.run()
    finally:
        relay.close()
        for number, handler in before.items():
            signal.signal(number, handler)
