"""The recorder as a process beside a live graph."""

import signal
import time

from ros_harness import wait
from std_srvs.srv import Trigger


class Recorder:
    """A recorder process and the way to its services."""

    count = 0

    def __init__(self, processes, station, folder, *parameters, spec="arm.yaml") -> None:
        Recorder.count += 1
        self.name = f"recorder_{Recorder.count}"  # a killed one stays on the wire for a while
        self.processes, self.station, self.folder = processes, station, folder
        self.process = processes.start(
            "recorder_node",
            f"folder:={folder}",
            "autostart:=false",
            "realtime:=20",  # behind the robot's driver, as on a real one
            *parameters,
            spec=spec,
            key=self.name,
            args=("-r", f"__node:={self.name}"),
        )
        self.clients = {
            name: station.node.create_client(Trigger, f"{self.name}/{name}") for name in ("start", "stop", "discard")
        }
        self.met = False

    def meet(self):
        """A new process is ready to us before we are to it, and answers to nobody: ask what changes nothing."""
        end = time.monotonic() + 60.0
        client = self.clients["discard"]
        while not self.met:
            assert time.monotonic() < end, f"{self.name} never answered"
            future = client.call_async(Trigger.Request())
            try:
                self.met = wait(future.done, 3.0)
            except AssertionError:
                client.remove_pending_request(future)

    def ask(self, name):
        client = self.clients[name]
        wait(lambda: all(item.service_is_ready() for item in self.clients.values()), 60.0, f"service {name}")
        self.meet()
        future = client.call_async(Trigger.Request())
        wait(future.done, 15.0, f"answer of {name}")
        return future.result()

    def diagnostic(self):
        return self.station.diagnostic(f"{self.name}: recorder")

    def end(self, sign=signal.SIGTERM):
        return self.processes.end(self.name, sign, limit=15.0)
