"""The states of the safety supervisor: faults latch, only the operator clears them, and clearing moves nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum


class State(str, Enum):
    """Where the supervisor stands; see docs/safety.md for the output in each state."""

    STARTUP = "STARTUP"
    IDLE = "IDLE"
    ARMED = "ARMED"
    ACTIVE = "ACTIVE"
    STOPPING = "STOPPING"
    FAULT = "FAULT"
    ESTOP = "ESTOP"


# for what runs every tick: a name of a module is found ten times faster than a member by its Enum
STARTUP, IDLE, ARMED, ACTIVE, STOPPING, FAULT, ESTOP = State


class Event(str, Enum):
    """What can happen to the machine."""

    READY = "ready"  # inputs fresh for the settle time, robot inside its limits
    ENABLE = "enable"
    DISABLE = "disable"
    FOLLOW = "follow"  # a valid command close to the robot
    RELEASE = "release"  # the source lets go: brake and hold
    LOST = "lost"  # no fresh command
    FAULT = "fault"  # the brake can rely on the state
    UNTRUSTED = "untrusted"  # a fault of the state itself
    ESTOP = "estop"
    STOPPED = "stopped"  # braking has ended
    RESET = "reset"
    SHUTDOWN = "shutdown"


WORDS = {
    "state_stale": "stale_state",
    "state_never": "stale_state",
    "state_nonfinite": "bad_state",
    "state_name_missing": "bad_state",
    "state_jump": "bad_state",
    "state_frozen": "bad_state",
    "limit_measured": "limit",
    "velocity_measured": "rate",
    "acceleration_measured": "rate",
    "fallen": "limit",
    "effort_measured": "force",
    "force": "force",
    "tracking": "tracking",
    "left_place": "tracking",
    "cmd_timeout": "stale_command",
    "cmd_flood": "bad_command",
    "cmd_nonfinite": "bad_command",
    "cmd_shape": "bad_command",
    "internal": "internal",
}
"""Fault code -> reason of the verdict; others are of the platform."""
LATCHED = (FAULT, ESTOP)
MOVABLE = (ARMED, ACTIVE, STOPPING)


class SafetyMachine:
    """State machine of the supervisor; holds no time and no numbers of the robot, those come with the events.

    Args:
        max_rearm_per_minute: lost commands in 60 s that end in ARMED again; the next one is the fault `cmd_timeout`.

    Source: specification of the bridge, states and transitions.
    """

    def __init__(self, *, max_rearm_per_minute: int = 6) -> None:
        self.state = State.STARTUP
        self.faults: list[str] = []
        self._after = State.ARMED
        self._losses: deque[float] = deque()
        self._limit = max_rearm_per_minute
        self._answers = {
            Event.READY: self._on_ready, Event.ENABLE: self._on_enable, Event.DISABLE: self._on_disable,
            Event.FOLLOW: self._on_follow, Event.RELEASE: self._on_release, Event.LOST: self._on_lost,
            Event.FAULT: self._on_fault, Event.UNTRUSTED: self._on_untrusted, Event.ESTOP: self._on_estop,
            Event.STOPPED: self._on_stopped, Event.RESET: self._on_reset, Event.SHUTDOWN: self._on_shutdown,
        }  # fmt: skip

    @property
    def name(self) -> str:
        """Of the state."""
        return self.state._value_  # what `value` returns after two calls of Python

    @property
    def cause(self) -> str:
        """Code of the first fault, "" without one."""
        return self.faults[0] if self.faults else ""

    @property
    def reasons(self) -> list[str]:
        """What verdicts call each of `faults`."""
        return [WORDS.get(code, "operator" if code.startswith("estop") else "platform") for code in self.faults]

    @property
    def latching(self) -> bool:
        """True when stopped for good, or braking on the way there."""
        return self.state in LATCHED or (self.state is STOPPING and self._after is FAULT)

    @property
    def leaving(self) -> bool:
        """Braking, after which nothing is sent any more."""
        return self.state is STOPPING and self._after is STARTUP

    def handle(self, event: Event, now: float, *, code: str = "", blockers: Sequence[str] = ()) -> list[str]:
        """Apply one event.

        Args:
            event: what happened.
            now: [s of the steady clock].
            code: fault code of FAULT, UNTRUSTED and ESTOP.
            blockers: conditions that stand against READY, ENABLE or RESET.

        Returns:
            Why the event was refused; empty when it was taken or means nothing in this state.
        """
        return self._answers[event](now, code, list(blockers))

    def _on_ready(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state is not State.STARTUP or blockers:
            return blockers
        self.state = State.ESTOP if self.faults else State.IDLE  # an e-stop pressed during start-up
        return []

    def _on_enable(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state in (State.ARMED, State.ACTIVE):
            return []
        if self.state is not State.IDLE:
            return [f"state is {self.state.value}", *self.faults, *blockers]
        if not blockers:
            self.state = State.ARMED
        return blockers

    def _on_disable(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state in (State.ARMED, State.ACTIVE) or (self.state is State.STOPPING and not self.latching):
            self._stop(State.IDLE)
        return []

    def _on_follow(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state is State.ARMED:
            self.state = State.ACTIVE
        return []

    def _on_release(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state is State.ACTIVE:
            self._stop(State.ARMED)
        return []

    def _on_lost(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state is not State.ACTIVE:
            return []
        while self._losses and now - self._losses[0] > 60.0:
            self._losses.popleft()
        if len(self._losses) >= self._limit:
            self.faults.append("cmd_timeout")
            self._stop(State.FAULT)
        else:
            self._losses.append(now)
            self._stop(State.ARMED)
        return []

    def _on_fault(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state is State.STARTUP:
            return [f"state is {self.state.value}"]
        if code not in self.faults:
            self.faults.append(code)
        if self.state is State.IDLE:
            self.state = State.FAULT
        elif self.state in MOVABLE:
            self._stop(State.FAULT)
        return []

    def _on_untrusted(self, now: float, code: str, blockers: list[str]) -> list[str]:
        refused = self._on_fault(now, code, blockers)
        if self.state is State.STOPPING:
            self.state = State.FAULT  # its output still brakes, open loop from the last command
        return refused

    def _on_estop(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if code not in self.faults:
            self.faults.append(code)
        if self.state is not State.STARTUP:
            self.state = State.ESTOP
        return []

    def _on_stopped(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state is State.STOPPING:
            self.state = self._after
        return []

    def _on_reset(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state not in LATCHED:
            return ["nothing to reset"]
        if not blockers:
            self.state = State.IDLE
            self.faults = []
            self._losses.clear()
        return blockers

    def _on_shutdown(self, now: float, code: str, blockers: list[str]) -> list[str]:
        if self.state in MOVABLE and not self.latching:
            self._stop(State.STARTUP)
        elif self.state is State.IDLE:
            self.state = State.STARTUP
        return []

    def _stop(self, after: State) -> None:
        self.state, self._after = State.STOPPING, after
