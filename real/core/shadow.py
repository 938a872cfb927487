"""Before the first motion: does what the robot tells fit what its policy was trained on, and its card?

The policy proposes and moves nothing. At rest this names another unit, another order of the quaternion, another frame
of gravity, delay, and cameras that were swapped; order, sign and velocity of joints once somebody else has moved them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from robot_rl.real.core.shadow_body import judge_body
from robot_rl.real.core.shadow_joints import DEGREES, Followed, derivative, follow, follow_alone, in_limits
from robot_rl.real.core.shadow_report import ShadowNote, ShadowReport
from robot_rl.real.core.spec import PD, POSITION, VELOCITY, RobotSpec
from robot_rl.types import IOSpec, Seen

FIRST = 10.0
"""Seconds that are compared with what training saw."""
ENOUGH = 2.0
"""Seconds before anything is said."""
MOTION = 5.0
"""Seconds of motion before joints are judged."""
SPEED = 0.005
"""From which on a joint moves [rad/s or m/s]."""
LATE = 0.15
"""How far joints may be behind their commands where the card tells no dead_time [s]; servos take up to 0.1."""
KEPT, SPACING = 4500, 0.018
"""Rows that are kept, and the least time between two [s]: some 90 s."""
IMAGE = "image."
WIGGLE = "let a person drive, or run `robot-rl doctor ros … wiggle=true` beside it"


@dataclass(frozen=True)
class ShadowSample:
    """What was known in one tick.

    Args:
        now: [s of the steady clock].
        stamp: when the state was acquired [s of the same clock].
        position: (J,).
        velocity: (J,).
        imu: (10,) as `real.core.messages.imu_array`, None where there is none.
        pictures: camera -> when its picture was acquired, and `types.io.mosaic` of it.
    """

    now: float
    stamp: float
    position: np.ndarray
    velocity: np.ndarray
    imu: np.ndarray | None = None
    pictures: Mapping[str, tuple[float, np.ndarray]] = field(default_factory=dict)


class Shadow:
    """Collects what a robot tells, what a policy proposes and what is executed, and says what does not fit.

    `take`, `propose` and `execute` only append, from any one thread each; `judge` may run in another.

    Args:
        spec: of the robot.
        seen: what training saw; None where the policy does not tell.
        io: interface of the policy.
        cameras: that the policy looks through.
        body: whether the policy reads an IMU.
    """

    def __init__(
        self, spec: RobotSpec, seen: Seen | None, io: IOSpec, *, cameras: tuple[str, ...] = (), body: bool = False
    ) -> None:
        self.spec, self.seen, self.io, self.cameras, self.body = spec, seen, io, cameras, body
        self._rows: list[ShadowSample] = []
        self._ages: list[float] = []
        self._asked: list[tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]] = []
        self._sent: list[tuple[float, np.ndarray]] = []
        self._start = np.nan
        self._fine: dict[int, Followed] = {}  # joints that were seen to be right, once
        self._true: set[int] = set()  # the same of velocities

    # ------------------------------------------------------------ what happens

    def take(self, sample: ShadowSample) -> None:
        """A tick with a state, however old."""
        if not np.isfinite(self._start):
            self._start = sample.now
        if sample.now - self._start <= FIRST:
            self._ages.append(sample.now - sample.stamp)
        if self._rows and sample.stamp - self._rows[-1].stamp < SPACING:
            return
        self._rows.append(sample)
        if len(self._rows) > KEPT:
            del self._rows[: KEPT // 10]

    def propose(self, now: float, obs: Mapping[str, np.ndarray], action: np.ndarray, target: np.ndarray) -> None:
        """What the policy saw, (1, ...) each, its answer (1, A), and the command (J,) that it would have been."""
        if not now - self._start <= FIRST or len(self._asked) >= KEPT:
            return
        vectors = {key: np.array(value[0]) for key, value in obs.items() if np.ndim(value) == 2}
        self._asked.append((vectors, np.array(action[0]), np.array(target)))

    def execute(self, now: float, value: np.ndarray) -> None:
        """What the supervisor has sent (J,)."""
        if self.spec.mode == VELOCITY:  # as a way
            before, way = self._sent[-1] if self._sent else (now, np.zeros(len(value)))
            value = way + np.asarray(value) * min(now - before, 0.1)
        self._sent.append((now, np.array(value)))
        if len(self._sent) > 3 * KEPT:
            del self._sent[:KEPT]

    # ------------------------------------------------------------ what comes of it

    def judge(self) -> ShadowReport:
        """Everything that is known by now."""
        rows, ages = self._rows[:], self._ages[:]
        seconds = rows[-1].now - self._start if rows else 0.0
        if seconds < ENOUGH or len(rows) < 20:
            text = f"{seconds:.1f} s of states so far, {ENOUGH:g} are needed"
            if not rows:
                text = "no complete state has come yet: is the robot's driver up? see the diagnostics"
            return ShadowReport(seconds, 0.0, (ShadowNote("states", "open", text),), {})
        times = np.array([row.stamp for row in rows])
        place, turning = np.array([row.position for row in rows]), np.array(self.spec.turning)
        place[:, turning] = np.unwrap(place[:, turning], axis=0)  # of a joint that goes round
        speed = np.array([row.velocity for row in rows])
        moving = _moving(times, place)
        first = times <= times[0] + FIRST
        followed, lag = self._follow(times, place, moving)
        notes = [self._delay(rows, ages, lag)]
        notes += self._joints(followed, np.median(place[first], axis=0), moving)
        notes.append(self._velocity(times, place, speed, moving))
        if self.body:
            notes += self._body(rows)
        if self.cameras:
            notes.append(self._views(rows))
        notes.append(self._range(any(note.state == "wrong" for note in notes)))
        figures: dict[str, object] = {"age_ms": 1e3 * float(np.median(ages)), "lag_ms": lag, **self._proposals()}
        return ShadowReport(seconds, moving, tuple(notes), figures)

    def _follow(self, times: np.ndarray, place: np.ndarray, moving: float) -> tuple[list[Followed], dict[str, float]]:
        names, sent = self.spec.names, self._sent[:]
        found = [Followed("open", text="has not moved") for _ in names]
        if moving >= MOTION and self.spec.mode in (POSITION, VELOCITY, PD):
            told = np.array([when for when, _ in sent]), np.array([value for _, value in sent])
            found = (follow_alone if self.spec.mode == PD else follow)(names, (times, place), told)
            self._fine |= {i: one for i, one in enumerate(found) if one.kind == "fine"}
        found = [self._fine.get(i, one) for i, one in enumerate(found)]
        return found, {name: 1e3 * one.lag for name, one in zip(names, found) if one.kind == "fine"}

    def _joints(self, followed: list[Followed], place: np.ndarray, moving: float) -> Iterator[ShadowNote]:
        """Scale, order and sign."""
        names = self.spec.names
        lower, upper = self.spec.hard_bounds()
        inside, small = in_limits(place, lower, upper), in_limits(place / DEGREES, lower, upper)
        wrong = {check: _list(names, followed, check) for check in ("scale", "sign", "joint order", "following")}
        if not inside.all() and small.all():
            i = int(np.argmax(~inside))
            yield ShadowNote(
                "scale",
                "wrong",
                f"{names[i]} stands at {place[i]:.4g}, its limits are {lower[i]:.4g} to {upper[i]:.4g} rad: the joint "
                "states are in degrees; let the driver tell radians",
            )
        elif not inside.all():
            i = int(np.argmax(~inside))
            yield ShadowNote(
                "scale",
                "wrong",
                f"{names[i]} stands at {place[i]:.4g}, outside its limits of {lower[i]:.4g} to {upper[i]:.4g}: another "
                "unit, zero or order of joints in the driver than on the card, or limits that are not this robot's",
            )
        elif wrong["scale"]:
            yield ShadowNote(
                "scale", "wrong", f"{wrong['scale']}: another unit (degrees?) or gain of the joint states or commands"
            )
        elif not small.all() or any(one.kind == "fine" for one in followed):
            yield ShadowNote("scale", "fine")
        else:
            yield ShadowNote("scale", "open", f"here radians and degrees are both within the limits; {WIGGLE}")
        if wrong["following"]:
            yield ShadowNote(
                "joint order", "wrong", f"{wrong['following']}: not driven, blocked, or states of another robot"
            )
        for check, mend in (
            ("joint order", "order or names of the joints differ between the driver and the card"),
            ("sign", "the sign of its states, or of its commands, is the wrong one: mend the driver or the card"),
        ):
            if wrong[check]:
                yield ShadowNote(check, "wrong", f"{wrong[check]}: {mend}")
            elif any(one.kind != "fine" for one in followed):
                yield ShadowNote(check, "open", self._why_open(followed, moving))
            else:
                yield ShadowNote(check, "fine")

    def _why_open(self, followed: list[Followed], moving: float) -> str:
        if self.spec.mode not in (POSITION, VELOCITY, PD):
            return f"{self.spec.command_mode} tells joints no places: nothing of this can be seen from commands"
        if moving < MOTION:
            return f"the robot has moved for {moving:.1f} s, {MOTION:g} s are needed: {WIGGLE}"
        still: dict[str, list[str]] = {}
        for name, one in zip(self.spec.names, followed):
            if one.kind == "open":
                still.setdefault(one.text, []).append(name)
        told = "; ".join(f"{', '.join(names)} {text}" for text, names in still.items())
        if "nothing was commanded" in still:
            return f"it moved, but by no command through the supervisor: {WIGGLE}"
        return f"{told}: {WIGGLE}" if told else "see what is wrong"

    def _velocity(self, times: np.ndarray, place: np.ndarray, speed: np.ndarray, moving: float) -> ShadowNote:
        if moving < MOTION:
            return ShadowNote("velocity", "open", f"moved for {moving:.1f} s, {MOTION:g} s are needed: {WIGGLE}")
        wrong, still = [], []
        for i, name in enumerate(self.spec.names):
            kind, text = derivative(times, place[:, i], speed[:, i])
            if kind == "fine":
                self._true.add(i)
            elif kind == "wrong":
                wrong.append(f"velocity of {name} {text}")
            elif i not in self._true:
                still.append(name)
        if wrong:
            more = f" (and {len(wrong) - 1} more joints)" if len(wrong) > 1 else ""
            mend = "let the driver fill it in, or leave it empty: then it is estimated from the positions"
            return ShadowNote("velocity", "wrong", f"{wrong[0]}{more}: {mend}")
        if still:
            return ShadowNote("velocity", "open", f"{', '.join(still)} has not moved: {WIGGLE}")
        return ShadowNote("velocity", "fine")

    def _delay(self, rows: list[ShadowSample], ages: list[float], lag: Mapping[str, float]) -> ShadowNote:
        age = float(np.median(ages))
        limit = 0.5 / self.io.control_hz + 0.03
        if age > limit:
            return ShadowNote(
                "delay",
                "wrong",
                f"states are {1e3 * age:.0f} ms old when they are acted on, by their own stamps, and {1e3 * limit:.0f} "
                f"ms are bearable for {self.io.control_hz:g} decisions per second: look for a queue, a slow bus or a "
                "network on their way; robot-rl doctor ros shows the ages",
            )
        for name in self.cameras:
            late = [row.now - row.pictures[name][0] for row in rows if name in row.pictures]
            allowed = self.spec.cameras[name].timeout
            if late and float(np.median(late)) > allowed:
                text = f"pictures of {name} are {1e3 * float(np.median(late)):.0f} ms old, its card allows"
                return ShadowNote("delay", "wrong", f"{text} {1e3 * allowed:.0f} ms: a slower link or larger pictures?")
        slow, own = float(np.median(list(lag.values()) or [0.0])), self.spec.dead_time
        most = 1e3 * (LATE if own is None else own + 0.05)
        if slow > most:
            return ShadowNote(
                "delay",
                "wrong",
                f"the joints follow their commands {slow:.0f} ms late, and {most:.0f} ms are expected: a delay on the "
                "way of commands or states that stamps do not show; if it is the robot's own, write it on the card as "
                "dead_time",
            )
        return ShadowNote("delay", "fine")

    def _body(self, rows: list[ShadowSample]) -> Iterator[ShadowNote]:
        told = [(row.stamp, row.imu) for row in rows if row.imu is not None]
        if len(told) < 20:
            yield ShadowNote("quaternion order", "open", "the IMU has told nothing yet: see the diagnostics")
            return
        imu = np.array([imu for _, imu in told])
        if self.spec.sensors[self.spec.imu].acceleration is not None:
            imu[:, 7:] = 0.0  # without gravity it says nothing of where up is
        found = judge_body(np.array([when for when, _ in told]), imu)
        for check, (state, text) in found.items():
            yield ShadowNote(check, state, f"the IMU: {text}" if state == "wrong" else text)

    def _views(self, rows: list[ShadowSample]) -> ShadowNote:
        shots = {
            name: np.array([row.pictures[name][1] for row in rows if name in row.pictures]) for name in self.cameras
        }
        silent = [name for name, some in shots.items() if len(some) < 3]
        if silent:
            return ShadowNote("cameras", "open", f"no pictures of {', '.join(silent)} yet: see the diagnostics")
        taught = {} if self.seen is None else self.seen.pictures
        unknown = [name for name in self.cameras if IMAGE + name not in taught]
        if unknown:
            text = f"the policy does not tell what {', '.join(unknown)} saw in training: look at the pictures yourself"
            return ShadowNote("cameras", "unknown", text)
        now = {name: np.median(some, axis=0) for name, some in shots.items()}
        far = {(a, b): _unlike(now[a], np.array(taught[IMAGE + b])) for a in self.cameras for b in self.cameras}
        for i, a in enumerate(self.cameras):
            for b in self.cameras[i + 1 :]:
                if far[a, b] + far[b, a] < 0.6 * (far[a, a] + far[b, b]) and far[a, a] + far[b, b] > 1.0:
                    text = f"{a} shows what {b} saw in training, and {b} what {a} saw: exchange their topics"
                    return ShadowNote("cameras", "wrong", text)
        strange = [name for name in self.cameras if far[name, name] > 3.0]
        if strange:
            text = f"{', '.join(strange)} shows nothing like training's pictures (place, light, robot): look yourself"
            return ShadowNote("cameras", "unknown", text)
        return ShadowNote("cameras", "fine")

    def _range(self, explained: bool) -> ShadowNote:
        """Observations beyond all that training saw, in the middle of the first seconds."""
        asked = self._asked[:]
        if len(asked) < 3:
            return ShadowNote("range", "open", "the policy was not asked yet: what it waits for is in the diagnostics")
        if self.seen is None:
            text = "the policy does not tell what training saw (no quantiles in its io.json)"
            return ShadowNote("range", "unknown", text)
        lines = []
        for key, ends in self.seen.obs.items():
            middle = np.median([obs[key] for obs, _, _ in asked if key in obs], axis=0)
            for i, (row, value) in enumerate(zip(ends, np.atleast_1d(middle))):
                low, high = row[0], row[-1]
                room = max(high - low, 0.1 * max(abs(low), abs(high)), 0.01)
                if not low - room <= value <= high + room:
                    named = key == "state" and len(self.io.obs_names) == len(ends)
                    name = self.io.obs_names[i] if named else f"{key}[{i}]"
                    lines.append(f"{name} is {value:.4g}, training saw {low:.4g} to {high:.4g}")
        if not lines:
            return ShadowNote("range", "fine")
        more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        mend = "it may come of the above" if explained else "bring the robot, or the task, to where training was"
        return ShadowNote("range", "wrong", f"{'; '.join(lines[:3])}{more}: {mend}")

    def _proposals(self) -> dict[str, object]:
        """How the policy's actions lie beside those of training."""
        asked = self._asked[:]
        if not asked:
            return {}
        action = np.array([one for _, one, _ in asked])
        figures: dict[str, object] = {"proposals": len(asked), "saturated": float((np.abs(action) > 0.999).mean())}
        if self.seen is not None and len(self.seen.action) == action.shape[1]:
            ends = np.array(self.seen.action)
            figures["beyond_training"] = float(((action < ends[:, 0]) | (action > ends[:, -1])).mean())
        return figures


def _moving(times: np.ndarray, place: np.ndarray) -> float:
    """Seconds in which any joint moved."""
    step = 5
    if len(times) <= step:
        return 0.0
    span = np.maximum(times[step:] - times[:-step], 1e-6)
    fast = np.abs(place[step:] - place[:-step]).max(1) / span > SPEED
    return float(np.minimum(np.diff(times)[step - 1 :], 0.2)[fast].sum())


def _list(names: tuple[str, ...], followed: list[Followed], check: str) -> str:
    wrong = [(name, one) for name, one in zip(names, followed) if one.kind == "wrong" and one.check == check]
    return "; ".join(f"{name} {one.text}" for name, one in wrong[:4]) + ("; and more" if len(wrong) > 4 else "")


def _unlike(mosaic: np.ndarray, taught: np.ndarray) -> float:
    """How far the colours of a picture (48,) are from quantiles (48, 5), in their spread and some grey levels."""
    spread = 0.5 * (taught[:, -1] - taught[:, 0]) + 8.0
    return float((np.abs(mosaic - taught[:, 2]) / spread).mean())
