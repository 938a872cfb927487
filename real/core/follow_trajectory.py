"""What a FollowJointTrajectory action server decides, without ROS: is a goal good, where to be now, how it ends.

Codes and meanings are those of control_msgs/action/FollowJointTrajectory; interpolation and tolerances those of
ros2_control's joint_trajectory_controller, where nothing else is said. What comes out are wishes: the safety supervisor
stands between them and the robot, as between any source and the robot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from robot_rl.real.core.chunk_player import Piece, cubic, quintic
from robot_rl.real.core.limiter import short_way
from robot_rl.types.options import NotNegative, Options

Array = np.ndarray
SUCCESSFUL, INVALID_GOAL, INVALID_JOINTS, OLD_HEADER_TIMESTAMP = 0, -1, -2, -3
PATH_TOLERANCE_VIOLATED, GOAL_TOLERANCE_VIOLATED = -4, -5
ERASED = -1.0
"""A tolerance that is not checked; 0 is the default of the server."""


class FollowOptions(Options):
    """Defaults of a server, for goals that say nothing else."""

    start_tolerance: NotNegative = 0.02
    """Largest distance between the command of now and a first point at time 0 [rad]."""
    path_tolerance: NotNegative = 0.0
    """Largest distance from the trajectory on the way [rad]; 0 = any."""
    goal_tolerance: NotNegative = 0.0
    """Largest distance from the last point at the end [rad]; 0 = any."""
    goal_time: NotNegative = 0.0
    """Time after the end within which the goal has to be reached [s]; 0 = any."""
    stopped_velocity: NotNegative = 0.01
    """Largest speed at the end [rad/s]."""


@dataclass(frozen=True)
class FollowGoal:
    """A goal as the message has it.

    Args:
        joints: names, in the order of the columns.
        times: (n,) after `start` [s].
        positions: (n, J) [rad].
        velocities: (n, J) [rad/s], or None.
        accelerations: (n, J) [rad/s^2], or None; used with velocities only.
        start: time of the header's stamp [s]; None: when it is accepted.
        path_tolerance: name -> largest distance on the way [rad]; 0 = default, -1 = any.
        goal_tolerance: the same at the end.
        goal_time: of the goal [s]; 0 = default.
    """

    joints: Sequence[str]
    times: Array
    positions: Array
    velocities: Array | None = None
    accelerations: Array | None = None
    start: float | None = None
    path_tolerance: Mapping[str, float] = field(default_factory=dict)
    goal_tolerance: Mapping[str, float] = field(default_factory=dict)
    goal_time: float = 0.0


class FollowResult(NamedTuple):
    """How a goal ended, or why it was not taken.

    Args:
        status: of the action.
        code: of control_msgs.
        text: for people.
    """

    status: Literal["succeeded", "aborted", "canceled", "rejected"]
    code: int
    text: str = ""


class FollowStep(NamedTuple):
    """One tick, in the robot's order of joints.

    Args:
        position: (J,) wanted [rad].
        velocity: (J,) wanted [rad/s].
        error: (J,) wanted minus measured position [rad].
        result: of the goal, in the tick in which it ends.
    """

    position: Array
    velocity: Array
    error: Array
    result: FollowResult | None


@dataclass(frozen=True)
class _Followed:
    pieces: tuple[Piece, ...]
    start: float
    path: Array  # (J,) largest distance, inf where none
    goal: Array
    deadline: float

    @property
    def end(self) -> float:
        return self.pieces[-1].end

    def at(self, time: float) -> tuple[Array, Array]:
        inside = next((piece for piece in self.pieces if time < piece.end), self.pieces[-1])
        position, velocity, _ = inside.at(min(max(time, inside.start), inside.end))
        return position, velocity if self.pieces[0].start <= time <= self.end else np.zeros_like(velocity)


class TrajectoryFollower:
    """Takes goals one at a time; a good one takes over from the one that runs, without a jump.

    Args:
        joints: of the robot, in its order.
        lower: (J,) limits of positions [rad], -inf where there is none: such a joint turns for ever, and goes the short
            way to a goal's first point.
        upper: likewise.
        options: defaults.
    """

    def __init__(self, joints: Sequence[str], lower: Array, upper: Array, options: FollowOptions | None = None) -> None:
        self._joints, self._lower, self._upper = tuple(joints), np.asarray(lower, float), np.asarray(upper, float)
        self._turning = np.isinf(self._lower)
        self._o = options or FollowOptions()
        self._goal: _Followed | None = None

    @property
    def busy(self) -> bool:
        """Whether a goal runs."""
        return self._goal is not None

    def take(self, goal: FollowGoal, now: float, position: Array) -> tuple[FollowResult | None, FollowResult | None]:
        """A new goal; a bad one changes nothing.

        Args:
            goal: as it came.
            now: [s].
            position: (J,) commanded now, which a running goal continues from by itself.

        Returns:
            Why it is rejected, or None; and how the goal ended that ran until now, or None.
        """
        if (rejected := self._flaw(goal, now)) is not None:
            return rejected, None
        order = np.array([list(goal.joints).index(name) for name in self._joints])
        begin = now if goal.start is None else goal.start
        from_here, speed = (np.asarray(position, float), np.zeros(len(order)))
        if self._goal is not None:
            from_here, speed = self._goal.at(now)
        times = begin + np.asarray(goal.times, float)
        positions, first = np.array(goal.positions, float), 0 if goal.start is None else int(np.argmax(times > now))
        way = positions[first, order] - from_here
        positions[:, order] += short_way(way, self._turning) - way
        goal, apart = replace(goal, positions=positions), np.abs(short_way(way, self._turning))
        if goal.start is None and times[0] <= now and (apart > self._o.start_tolerance).any():
            name = self._joints[int(apart.argmax())]
            return _rejection(INVALID_GOAL, f"begins {apart.max():.3g} rad from where {name} is commanded now"), None
        before = self._end("a new goal took over", INVALID_GOAL) if self.busy else None
        knots = [(now, from_here, speed, np.zeros(len(order))), *_knots(goal, times, order, now)]
        path, end = (
            self._limits(given, default)
            for given, default in (
                (goal.path_tolerance, self._o.path_tolerance),
                (goal.goal_tolerance, self._o.goal_tolerance),
            )
        )
        patience = goal.goal_time or self._o.goal_time or np.inf
        pieces = tuple(_piece(a, b) for a, b in pairwise(knots))
        self._goal = _Followed(pieces, max(begin, now), path, end, times[-1] + patience)
        return None, before

    def stop(self) -> FollowResult:
        """End the running goal because its client asks for it; whoever commands brakes and holds from here.

        Raises:
            RuntimeError: none runs.
        """
        if self._goal is None:
            raise RuntimeError("no goal runs that could be stopped; ask `busy` first")
        return self._end("canceled", SUCCESSFUL)

    def _end(self, why: str, code: int) -> FollowResult:
        self._goal = None
        return FollowResult("canceled", code, why)

    def tick(self, now: float, position: Array, velocity: Array) -> FollowStep | None:
        """Where the robot is to be now; None when no goal runs.

        Args:
            now: [s].
            position: (J,) measured.
            velocity: (J,) measured.
        """
        goal = self._goal
        if goal is None:
            return None
        wanted, speed = goal.at(now)
        error = short_way(wanted - np.asarray(position, float), self._turning)
        result = self._judge(goal, now, error, np.asarray(velocity, float))
        if result is not None:
            self._goal = None
        return FollowStep(wanted, speed, error, result)

    def _judge(self, goal: _Followed, now: float, error: Array, velocity: Array) -> FollowResult | None:
        far = np.abs(error)
        if now < goal.end:
            if goal.start <= now and (far > goal.path).any():
                i = int((far - goal.path).argmax())
                text = (
                    f"{self._joints[i]} is {far[i]:.3g} rad from the trajectory, at most {goal.path[i]:.3g} is allowed"
                )
                return FollowResult("aborted", PATH_TOLERANCE_VIOLATED, text)
            return None
        slow = (np.abs(velocity) <= self._o.stopped_velocity) | ~np.isfinite(goal.goal)
        if (far <= goal.goal).all() and slow.all():
            return FollowResult("succeeded", SUCCESSFUL)
        if now <= goal.deadline:
            return None
        i = int((far - goal.goal).argmax()) if (far > goal.goal).any() else int(np.abs(velocity).argmax())
        text = (
            f"{self._joints[i]} is {far[i]:.3g} rad from the goal at {abs(velocity[i]):.3g} rad/s when its time is over"
        )
        return FollowResult("aborted", GOAL_TOLERANCE_VIOLATED, text)

    def _flaw(self, goal: FollowGoal, now: float) -> FollowResult | None:
        names = list(goal.joints)
        if len(set(names)) != len(names) or set(names) != set(self._joints):
            odd = sorted(set(names) ^ set(self._joints)) or sorted(n for n in names if names.count(n) > 1)
            return _rejection(INVALID_JOINTS, f"the joints are {', '.join(self._joints)}; the goal differs in {odd[0]}")
        strange = [name for name in (*goal.path_tolerance, *goal.goal_tolerance) if name not in names]
        if strange:
            return _rejection(INVALID_JOINTS, f"a tolerance is of {strange[0]}, which is no joint")
        times, count = np.asarray(goal.times, float), len(goal.times)
        if count == 0:
            return _rejection(INVALID_GOAL, "the trajectory has no points")
        for what, x in zip(("positions", "velocities", "accelerations"), _points(goal)):
            if x is not None and (np.shape(x) != (count, len(names)) or not np.isfinite(x).all()):
                return _rejection(
                    INVALID_GOAL, f"{what} are {list(np.shape(x))}, expected {count} finite rows of the joints"
                )
        if not np.isfinite(times).all() or times[0] < 0.0 or (np.diff(times) <= 0.0).any():
            return _rejection(INVALID_GOAL, "times do not grow from point to point, beginning at 0 or later")
        if goal.velocities is not None and np.asarray(goal.velocities)[-1].any():
            return _rejection(INVALID_GOAL, "the last point has a velocity; a trajectory ends at rest")
        sizes = (*goal.path_tolerance.values(), *goal.goal_tolerance.values())
        if any(not (x >= 0.0 or x == ERASED) for x in sizes) or not goal.goal_time >= 0.0:
            return _rejection(INVALID_GOAL, "a tolerance is negative; 0 is the default, -1 means any")
        order = [self._joints.index(name) for name in names]
        points = np.asarray(goal.positions, float)
        outside = ((points < self._lower[order] - 1e-9) | (points > self._upper[order] + 1e-9)).any(0)
        if outside.any():
            i = int(outside.argmax())
            low, high = self._lower[order[i]], self._upper[order[i]]
            return _rejection(INVALID_GOAL, f"{names[i]} would leave {low:.4g} to {high:.4g} rad")
        begin = now if goal.start is None else goal.start
        if goal.start is None and times[-1] == 0.0:
            return _rejection(INVALID_GOAL, "the only point is at time 0, when it begins")
        if begin + times[-1] <= now:
            return _rejection(OLD_HEADER_TIMESTAMP, f"the trajectory ended {now - begin - times[-1]:.3g} s ago")
        return None

    def _limits(self, given: Mapping[str, float], default: float) -> Array:
        values = [given.get(name, 0.0) or default for name in self._joints]
        return np.array([np.inf if x in (0.0, ERASED) else x for x in values])


def _points(goal: FollowGoal) -> tuple[Array | None, Array | None, Array | None]:
    return goal.positions, goal.velocities, goal.accelerations if goal.velocities is not None else None


_Knot = tuple[float, Array, Array | None, Array | None]


def _knots(goal: FollowGoal, times: Array, order: Array, now: float) -> list[_Knot]:
    """The points that are still ahead; what lies behind is not gone back to."""
    position, velocity, acceleration = (None if x is None else np.asarray(x, float)[:, order] for x in _points(goal))
    assert position is not None
    return [
        (t, position[k], None if velocity is None else velocity[k], None if acceleration is None else acceleration[k])
        for k, t in enumerate(times)
        if t > now
    ]


def _piece(a: _Knot, b: _Knot) -> Piece:
    """As ros2_control has it: degree 5 with accelerations, 3 with velocities, a straight line with positions alone."""
    (start, p0, v0, a0), (end, p1, v1, a1) = a, b
    if v0 is None or v1 is None:
        powers = np.zeros((6, len(p0)))
        powers[0], powers[1] = p0, (p1 - p0) / (end - start)
        return Piece(start, end, powers)
    if a0 is None or a1 is None:
        return cubic(start, end, p0, v0, p1, v1)
    return quintic(start, end, (p0, v0, a0), (p1, v1, a1))


def _rejection(code: int, text: str) -> FollowResult:
    return FollowResult("rejected", code, text)
