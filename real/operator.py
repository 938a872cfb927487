"""From an operator's hands to joint commands, without ROS: dead-man's switch, dead band, bumpless begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from robot_rl.real.core.spec import EFFORT, PD, POSITION, RobotSpec

Array = np.ndarray


def deadband(axes: Array, width: float = 0.05) -> Array:
    """Axes in [-1, 1] with `width` around 0 cut out and the rest stretched to the whole range."""
    axes = np.clip(np.nan_to_num(np.asarray(axes, float)), -1.0, 1.0)
    return np.sign(axes) * np.maximum(np.abs(axes) - width, 0.0) / (1.0 - width)


def pick(values: Sequence[float], indices: Sequence[int]) -> Array:
    """Values at indices; 0 where an index is negative or the sender has fewer."""
    return np.array([values[i] if 0 <= i < len(values) else 0.0 for i in indices], float)


class Edge:
    """A button that counts once per press."""

    def __init__(self) -> None:
        self._was = True  # a button that is held when we begin does not count

    def __call__(self, pressed: bool) -> bool:
        """True in the first look at a press."""
        new = pressed and not self._was
        self._was = pressed
        return new


def refuse_hands(mode: str, spec: RobotSpec) -> str:
    """Why a robot would take hands for something else, in one sentence; "" where it would not.

    Args:
        mode: joy, twist or leader.
        spec: of the robot.
    """
    if spec.mode not in (EFFORT, PD) and (mode != "leader" or spec.mode == POSITION):
        return ""
    return (
        f"teleop={mode} cannot drive command_mode {spec.command_mode}: a leader gives positions of joints, other hands "
        "speeds, and this robot would take them for something else"
    )


class JointSteer:
    """Integrates joint or tool speeds from the present command on.

    Args:
        spec: of the robot.
        rate: ticks per second.
        jacobian: (J,) joint positions -> (6, J) of the tool, for twists.
        damping: of the least-squares inverse [m].
        lead: how far the command may run ahead of the robot, in seconds at each joint's largest speed: whoever pushes
            against a limit does not have to push all that way back.

    Source: damped least squares, J^T (J J^T + damping^2 I)^-1 (Wampler 1986).
    """

    def __init__(
        self,
        spec: RobotSpec,
        rate: float,
        *,
        jacobian: Callable[[Array], Array] | None = None,
        damping: float = 0.05,
        lead: float = 0.3,
    ) -> None:
        self._spec, self._dt, self._jacobian, self._damping = spec, 1.0 / rate, jacobian, damping
        self._lower, self._upper = spec.bounds()
        self._speed = spec.array("velocity")
        self._reach = lead * self._speed
        self._command: Array | None = None

    def release(self) -> None:
        """The hands are off: the next steering begins at the command that holds then."""
        self._command = None

    def joints(self, speed: Array, present: Array) -> Array:
        """Command for joint speeds.

        Args:
            speed: (J,) wanted [rad/s].
            present: (J,) the command that is in force, or the measured position [rad].

        Returns:
            (J,) positions [rad], or velocities in a velocity mode.
        """
        speed = np.clip(speed, -self._speed, self._speed)
        if self._spec.mode == EFFORT:
            raise ValueError("steering by hand gives speeds; an effort mode takes none")
        if self._spec.mode != POSITION:
            return speed
        if self._command is None:
            self._command = np.array(present, float)
        wanted = np.clip(self._command + speed * self._dt, present - self._reach, present + self._reach)
        self._command = np.clip(wanted, self._lower, self._upper)
        return self._command.copy()

    def twist(self, twist: Array, present: Array) -> Array:
        """Command for a tool twist (6,): velocity [m/s], turning rate [rad/s] in the base frame.

        Raises:
            ValueError: no Jacobian was given.
        """
        if self._jacobian is None:
            raise ValueError("twists need the robot's kinematics; give model and site")
        where = self._command if self._command is not None else present
        jacobian = self._jacobian(np.asarray(where, float))
        square = jacobian @ jacobian.T + self._damping**2 * np.eye(6)
        speed = jacobian.T @ np.linalg.solve(square, np.asarray(twist, float))
        fastest = float(np.max(np.abs(speed) / self._speed))
        return self.joints(speed / max(fastest, 1.0), present)  # too fast: slower, in the same direction


class LeaderFollow:
    """A leader arm's pose as commands that begin where the robot is, and come to the leader's own pose by and by.

    Args:
        rate: ticks per second.
        catch_up: how fast each joint of the robot comes to the leader's pose, beside what the leader moves [rad/s]; 0
            keeps the distance of the begin.
    """

    def __init__(self, rate: float, catch_up: float) -> None:
        self._step = catch_up / rate
        self._apart: Array | None = None

    def release(self) -> None:
        """The hands are off: the next command begins where the robot is then."""
        self._apart = None

    def command(self, leader: Array, present: Array) -> Array:
        """(J,) positions [rad].

        Args:
            leader: (J,) where the leader is [rad].
            present: (J,) the command that is in force, or the measured position [rad].
        """
        if self._apart is None:
            self._apart = np.asarray(present - leader, float)
        else:
            self._apart = self._apart - np.clip(self._apart, -self._step, self._step)
        return leader + self._apart
