"""The operator of a simulated robot: enables it when somebody drives, and again after a fault."""

from __future__ import annotations

from robot_rl.real.core.machine import State
from robot_rl.real.core.supervisor import SafetySupervisor


class AutoArm:
    """Enables when the first good command is there, and clears faults at rest; for simulation only.

    Whoever enables earlier enables a robot that nobody drives: a policy takes seconds to load, and what goes wrong
    meanwhile would latch. An e-stop stays, and so does what a person has disabled, until a person enables again.

    Args:
        safety: whom it enables.

    Attributes:
        resets: faults cleared so far.
    """

    def __init__(self, safety: SafetySupervisor) -> None:
        self._safety, self._on, self.resets = safety, True, 0

    def note_request(self, on: bool) -> None:
        """A person has enabled or disabled the robot."""
        self._on = on

    def tick(self, heard: bool) -> None:
        """Once per period, before its command is chosen.

        Args:
            heard: a command has been accepted since the last tick.
        """
        state = self._safety.state
        if not self._on:
            return
        if state == State.FAULT.value and self._safety.still:
            self.resets += not self._safety.rearm()
        elif state == State.IDLE.value and heard:
            self._safety.enable()
