"""Steps out of message streams: the same rows whether the messages come live or out of a bag."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from robot_rl.data.session import Column
from robot_rl.real.core.alignment import JointMerger, Timeline
from robot_rl.real.core.codec import ActionCodec, StateCodec
from robot_rl.real.core.spec import RobotSpec
from robot_rl.real.robot import RobotState
from robot_rl.types.options import NotNegative, Options, Positive

Picture: TypeAlias = bytes | np.ndarray
"""JPEG or PNG, or pixels (H, W, C) or (H, W)."""
Ticks = Literal["executed", "rate", "command"]
TICKS: tuple[Ticks, ...] = get_args(Ticks)
SAME_CLOCK = 1.0
"""A stamp farther than this from its receipt [s] is of a clock of its own, and says nothing here."""


class StepRules(Options):
    """What one step of a recording is."""

    ticks: Ticks = "executed"
    """executed: every message of the supervisor; rate: one step per period, whose action is what was executed by its
    end; command: one step per decision of whoever was followed, seen at the stamp of its command."""
    rate: Positive = 100.0
    """Decisions per second; scales delta actions."""
    tolerance: NotNegative = 0.0
    """Largest age of an observation [s]; 0 = 1.5 periods. Older ones make a step invalid."""
    end_on_success: bool = False
    """The first `success` is the task's end; otherwise it is a level that is noted with every step."""

    @property
    def patience(self) -> float:
        """Largest age of an observation [s]."""
        return self.tolerance or 1.5 / self.rate


@dataclass
class _Row:
    seen: float  # time of the observation's tick
    when: float  # of its state
    state: RobotState
    acted: float  # time of the first executed message
    before: np.ndarray  # command when the step began
    last: np.ndarray  # action of the step before
    requested: np.ndarray | None
    stamp: float  # of the command behind it, nan without one
    value: np.ndarray  # executed last
    authority: str
    trace: str
    flags: set[str] = field(default_factory=set)
    reward: float = 0.0
    success: bool = False
    valid: bool = True
    images: dict[str, Picture] = field(default_factory=dict)

    @property
    def age(self) -> float:
        return self.seen - self.when


class Assembler:
    """Collects samples in the order of their receipt and makes D4RL columns of one episode.

    All times are seconds of the recorder's clock. An observation is the newest state at or before its tick; rewards
    belong to the step in whose period they arrive. Without any reward message a step in success is worth 1.

    Args:
        spec: of the robot.
        rules: what a step is.
        sizes: length of the readings of sensors in the spec's observation list.
    """

    def __init__(self, spec: RobotSpec, rules: StepRules, sizes: Mapping[str, int] | None = None) -> None:
        self.spec, self.rules = spec, rules
        self.codec = ActionCodec(spec, rules.rate)
        self._sizes = sizes
        self._states: StateCodec | None = None
        self._merger = JointMerger(spec.names, spec.turning)
        self._line: Timeline[RobotState] = Timeline(512)
        self._sensors: dict[str, np.ndarray] = {}
        self._effort = np.full(len(spec.joints), np.nan)
        self._images: dict[str, Picture] = {}
        self._commands: deque[tuple[str, float, np.ndarray]] = deque(maxlen=64)  # trace, stamp, first point
        self._sent: np.ndarray | None = None
        self._due = -np.inf
        self._gap, self._executed_at = 0.0, -np.inf
        self._fault = False
        self._rewarded = False
        self.begin()

    def begin(self) -> None:
        """Start an episode; what is known of the robot stays."""
        self._rows: list[_Row] = []
        self._finals: list[np.ndarray] = []
        self._row: _Row | None = None
        self._last = np.zeros(len(self.spec.joints), np.float32)
        self.succeeded = self._level = False
        self._due = -np.inf
        self._rewarded = False

    def __len__(self) -> int:
        return len(self._rows) + (self._row is not None)

    # ------------------------------------------------------------ samples

    def joints(
        self,
        time: float,
        names: list[str],
        position: np.ndarray,
        velocity: np.ndarray | None,
        effort: np.ndarray | None,
    ) -> None:
        """One message of joint states."""
        if self._merger.add(time, names, position, velocity):
            return
        if effort is not None and len(effort) == len(names):
            for k, i in self._merger.places(names) or ():
                self._effort[i] = effort[k]
        oldest = min(self._merger.time)
        if np.isfinite(oldest):
            state = RobotState(
                oldest,
                np.array(self._merger.position),
                np.array(self._merger.velocity),
                None if np.isnan(self._effort).any() else self._effort.copy(),
                self._sensors.get(self.spec.wrench),
                dict(self._sensors),
            )
            self._line.add(time, state)
            row = self._row
            if row is not None and time <= row.seen and not time < row.when <= row.seen:
                row.when, row.state = time, state  # it was there at the tick of the open step, and was taken late

    def sensor(self, name: str, value: np.ndarray) -> None:
        """A reading of any other sensor."""
        self._sensors[name] = value

    def image(self, camera: str, value: Picture) -> None:
        """A picture: JPEG or PNG bytes, or an array (H, W, C) or (H, W)."""
        self._images[camera] = value

    def command(self, trace: str, time: float, stamp: float, value: np.ndarray) -> None:
        """A request on `command/*`: its trace `<source>/<seq>`, receipt, stamp, and first point (J,)."""
        self._commands.append((trace, stamp if abs(time - stamp) < SAME_CLOCK else time, value))

    def safety(self, state: str) -> None:
        """State of the safety machine."""
        self._fault = state in ("FAULT", "ESTOP")

    def reward(self, value: float) -> None:
        """Reward that arrives now."""
        if self._row is not None and not self.succeeded:
            self._row.reward += value
            self._rewarded = True

    def success(self, value: bool) -> None:
        """Outcome that arrives now and stands until the next one."""
        if self.succeeded:
            return
        self._level = value
        if self._row is not None:
            self._row.success = value
            self.succeeded = value and self.rules.end_on_success

    def add_executed(self, time: float, value: np.ndarray, authority: str, trace: str, flags: str) -> None:
        """A message of the supervisor: what the robot was told at `time`; the first one only says where it stands."""
        if np.isfinite(self._executed_at):
            self._gap += 0.1 * (time - self._executed_at - self._gap) if self._gap else time - self._executed_at
        self._executed_at = time
        if self._sent is None:
            self._sent = value
            return
        if not self.succeeded and self._opens(time, trace, authority):
            self._turn(time, authority, trace)
        row = self._row
        if row is not None and not self.succeeded:
            row.value = value
            row.flags |= set(flags)
            if authority == "human":
                row.authority = "human"
            row.valid = row.valid and not self._fault
        self._sent = value

    def end(self, *, terminated: bool | None = None, going_on: bool = False) -> dict[str, Any] | None:
        """Columns of the episode, None when there is no step.

        Args:
            terminated: whether the task ended it; None asks the `success` messages. Otherwise it is a timeout.
            going_on: only the columns become another file; the step that is open is the first of that.
        """
        if self._row is not None and self._line:
            if going_on:
                self._finals.append(self._codec().vector(self._row.state, self._row.last))
            else:
                self._close()
                self._finals.append(self._codec().vector(self._newest(np.inf)[1], self._last))
        rows, finals = self._rows, self._finals
        self._rows, self._finals = [], []
        if not rows:
            return None
        ended = self.succeeded if terminated is None else terminated
        last = np.arange(len(rows)) == len(rows) - 1
        reward = np.array([row.reward for row in rows], np.float32)
        if not self._rewarded:
            reward += np.array([row.success for row in rows], np.float32)
        states = self._codec()
        action = np.stack([self.codec.action(row.value, row.before) for row in rows])
        nothing = np.full(len(self.spec.joints), np.nan, np.float32)
        columns: dict[str, Column] = {
            "observations": np.stack([states.vector(row.state, row.last) for row in rows]),
            "actions": action,
            "rewards": reward,
            "terminals": last & ended,
            "timeouts": last & (not ended),
            "next_observations": np.stack(finals),
            "infos/qpos": np.stack([row.state.position for row in rows]),
            "infos/qvel": np.stack([row.state.velocity for row in rows]),
            "infos/command": np.stack([row.value for row in rows]),
            "infos/action_requested": np.stack(
                [nothing if r.requested is None else self.codec.action(r.requested, r.before) for r in rows]
            ),
            "infos/intervened": np.array([row.authority == "human" for row in rows]),
            "infos/authority": np.array([row.authority for row in rows], "S8"),
            "infos/flags": np.array(["".join(sorted(row.flags)) for row in rows], "S8"),
            "infos/clipped": np.array(["c" in row.flags for row in rows]),
            "infos/valid": np.array([row.valid for row in rows]),
            "infos/success": np.array([row.success for row in rows]),
            "infos/t_obs": np.array([row.seen for row in rows]),
            "infos/t_act": np.array([row.acted for row in rows]),
            "infos/obs_age": np.array([row.age for row in rows]),
            "infos/latency": np.array([row.acted - row.stamp for row in rows]),
            "infos/policy_id": np.array([r.trace.rpartition("/")[0].encode("ascii", "replace") for r in rows], "S64"),
        }
        for name in self._sensors:
            values = [row.state.sensors.get(name) for row in rows]
            known = [value for value in values if value is not None]
            if len(known) == len(rows) and len({value.shape for value in known}) == 1:
                columns[f"infos/sensor_{name}"] = np.stack(known).astype(np.float32)
        for camera in {name for row in rows for name in row.images}:
            columns |= _pictures(camera, [row.images.get(camera) for row in rows])
        return columns

    # ------------------------------------------------------------ steps

    def _opens(self, time: float, trace: str, authority: str) -> bool:
        if not len(self._line):
            return False
        if self.rules.ticks == "executed":
            return True
        if self.rules.ticks == "command":
            return bool(trace) and authority != "none" and (self._row is None or self._row.trace != trace)
        period = 1.0 / self.rules.rate
        # the message nearest to the due time opens the step
        if time < self._due - min(0.5 * self._gap, 0.5 * period):
            return False
        self._due = self._due + period if abs(time - self._due) < period else time + period
        return True

    def _turn(self, time: float, authority: str, trace: str) -> None:
        """Close the present step and open the next one."""
        assert self._sent is not None
        asked = next((item for item in reversed(self._commands) if item[0] == trace), None)
        tick = asked[1] if asked is not None and self.rules.ticks == "command" else time
        if self._row is not None:
            gap = self.rules.ticks == "command" and time - self._row.acted > 1.5 / self.rules.rate + 0.05
            self._row.valid = self._row.valid and not gap
            self._close()
        when, state = self._newest(tick)
        self._row = _Row(
            seen=tick,
            when=when,
            state=state,
            acted=time,
            before=self._sent,
            last=self._last,
            requested=None if asked is None else asked[2],
            stamp=np.nan if asked is None else asked[1],
            value=self._sent,
            authority=authority,
            trace=trace,
            success=self._level,
            images=dict(self._images),
        )

    def _newest(self, tick: float) -> tuple[float, RobotState]:
        """State of a tick, with its time; the first one where there was none yet."""
        found = self._line.newest(tick)
        return found if found is not None else self._line.oldest()

    def _close(self) -> None:
        row, self._row = self._row, None
        assert row is not None
        values = np.concatenate([row.state.position, row.state.velocity])
        row.valid = bool(row.valid and 0.0 <= row.age <= self.rules.patience and np.isfinite(values).all())
        if self._rows:  # what follows the step before
            self._finals.append(self._codec().vector(row.state, row.last))
        self._rows.append(row)
        self._last = self.codec.action(row.value, row.before)

    def _codec(self) -> StateCodec:
        if self._states is None:
            self._states = StateCodec(self.spec, self._sizes or {k: v.size for k, v in self._sensors.items()})
        return self._states


def _pictures(camera: str, shots: Sequence[Picture | None]) -> dict[str, Column]:
    """Columns of one camera: every picture once, and which of them each row saw; cameras are slower than steps."""
    pictures = {id(shot): shot for shot in shots if shot is not None}
    places = {key: place for place, key in enumerate(pictures)}
    seen = np.array([places.get(id(shot), -1) for shot in shots], np.int32)
    files = [shot for shot in pictures.values() if isinstance(shot, bytes)]
    arrays = [shot for shot in pictures.values() if isinstance(shot, np.ndarray)]
    if arrays and (files or len({shot.shape for shot in arrays}) > 1):
        return {}
    return {f"images/{camera}": np.stack(arrays) if arrays else files, f"infos/picture_{camera}": seen}
