"""A foreign robot with its supervisor in one hand: what its tests begin with, and how a stop is measured."""
# pyright: reportOptionalMemberAccess=false

import contextlib

import numpy as np
from foreign_driver import ForeignDriver
from ros_harness import NAMES, RT, SPEC, Station, lifted, wait
from std_msgs.msg import Bool

START = {"j0": 0.6, "j1": -0.6, "j2": 0.2}
SUPERVISOR = (RT, "autostart:=true")


class Cell:
    """A foreign robot, the supervisor with its defaults as a process, and a station."""

    def __init__(self, processes, *, spec=None, driver=None, parameters=()):
        self.processes = processes
        self.others = contextlib.ExitStack()  # whoever else a test has brought in, ended before the next one
        text = spec or SPEC.format(mode="forward_position", timeout=0.0)
        (processes.folder / "foreign.yaml").write_text(text)
        self.driver = ForeignDriver(**{"joints": NAMES, "start": START, **(driver or {})})
        self.station = Station()
        self.parameters = (*SUPERVISOR, *parameters)
        self.supervisor = self.start()
        self.replace = False  # not fit for another test
        self._priority = contextlib.ExitStack()
        self._priority.enter_context(lifted())

    def start(self, key="safety_supervisor_node"):
        return self.processes.start("safety_supervisor_node", *self.parameters, spec="foreign.yaml", key=key)

    def idle(self):
        self.station.connected().wait_state("IDLE", limit=60.0)
        return self

    def armed(self):
        self.idle()
        wait(lambda: self.station.enable().success, limit=10.0, what="enable")
        self.station.wait_state("ARMED")
        return self

    def active(self):
        self.armed()
        self.station.driver.value = lambda t: np.array([START[name] for name in NAMES])
        self.station.driver.on = True
        self.station.wait_state("ACTIVE")
        return self

    def moving(self, target=1.5):
        """ACTIVE at more than half of the largest speed on the way to `target`."""
        self.active()
        self.station.driver.value = lambda t: np.full(3, target)
        self.station.until(lambda: np.abs(self.station.last.velocity).min() > 0.5, what="motion")
        return self

    def home(self):
        """Everything undone: the robot back at its start, nothing wrong with it, IDLE."""
        station = self.station
        self.others.close()
        station.quiet()
        self.driver.undo()
        station.connected()
        station.takeover.publish(Bool(data=False))
        station.estop.publish(Bool(data=False))
        if station.state in ("ARMED", "ACTIVE", "STOPPING"):
            station.enable(False)
            station.wait_state("IDLE", "FAULT", "ESTOP")
        self.driver.place(START)
        if station.state in ("FAULT", "ESTOP"):
            wait(lambda: station.reset().success or station.state == "IDLE", limit=30.0, what="a reset")
        station.wait_state("IDLE", limit=60.0)
        self.driver.place(START)  # a stop that is latched may have sent its last command since
        station.states.clear()
        station.authority.clear()
        station.executed.clear()
        wait(lambda: station.state == "IDLE", what="the state, said once a second")
        return self

    def told(self, aspect="safety"):
        """Numbers of an aspect of the supervisor's diagnostics."""
        return self.station.diagnostic(f"safety_supervisor: {aspect}")[2]

    def dropped(self, reason):
        return int(self.told().get(f"dropped_{reason}", 0))

    def stopped_after(self, since):
        """Seconds from `since` until the joints truly stood, for half a second by now."""

        def standing():
            times, path = self.driver.path(since)
            if len(times) < 2:
                return None
            moved = np.flatnonzero(np.abs(np.diff(path, axis=0)).max(axis=1) > 1e-3 / self.driver.rate)
            last = times[moved[-1] + 1] if len(moved) else since
            return last if times[-1] - last > 0.5 else None

        return wait(standing, what="a robot that stands") - since

    def check_commands(self):
        """Nothing that was sent lay outside position, velocity or acceleration limits, and nor did the joints.

        A driver that is late hears the newest command only; what was sent is on `executed`, every tick of it.
        """
        if self.driver.interface == "position" and self.station.executed:
            self.station.check_limits()
        heard = np.array([value for _, value in list(self.driver.commands)])
        assert np.abs(heard).max(initial=0.0) <= (1.98 if self.driver.interface == "position" else 1.0) + 1e-9

    def fault(self):
        return self.told().get("fault")

    def close(self):
        with contextlib.ExitStack() as ends:  # all of them, whichever fails
            ends.callback(self._priority.close)
            ends.callback(self.driver.close)
            ends.callback(self.processes.end, "safety_supervisor_node")
            ends.callback(self.station.close)
            ends.callback(self.others.close)
