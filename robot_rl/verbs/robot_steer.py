"""robot-rl robot steer <card>: a velocity for a walking policy or a base, and what became of it."""

from __future__ import annotations

from robot_rl import build
from robot_rl.types import Options
from robot_rl.types.options import Number, Positive
from robot_rl.verbs import answer
from robot_rl.verbs.reading import read_named, robot_file


class SteerOptions(Options):
    """robot-rl robot steer <robot>: tell legs, or a base behind the supervisor, where to go; prints where it went."""

    x: Number = 0.0
    """Ahead [m/s]."""
    y: Number = 0.0
    """To the left [m/s]."""
    turn: Number = 0.0
    """To the left [rad/s]."""
    seconds: Positive = 5.0
    """How long; after that, 0."""
    patience: Positive = 60.0
    """Seconds to wait until the robot is driven."""
    namespace: str = ""
    """Of the robot's topics, such as /left."""


def steer(arguments: list[str]) -> None:
    """Steer a robot whose deployment is up.

    Raises:
        Refused: there is no such robot.
        ValueError: it takes no velocities, nobody listens, or it was stopped on its way.
    """
    say = "robot: robot-rl robot steer my_go2 x=0.5 seconds=10"
    name, options = read_named(SteerOptions, arguments, "robot steer", say)
    robot = build.tool("real.core.spec:RobotSpec").load(robot_file(name))
    wanted = (options.x, options.y, options.turn)
    found = build.tool("real.ros.steer:steer")(
        robot, wanted, seconds=options.seconds, patience=options.patience, namespace=options.namespace
    )
    table: dict[str, object] = {"asked": _words(wanted)}
    if found.velocity is not None:
        table |= {"went": _words(found.velocity), "moved": f"{found.moved:.2f} m in {options.seconds:g} s"}
    answer.table({**table, "supervisor": found.state or "not heard"})
    # A base that is told nothing more brakes, too; legs brake after a fault alone.
    if found.state in ("FAULT", "ESTOP") or (found.state == "STOPPING" and robot.velocity_command):
        raise ValueError(
            f"{robot.name} was stopped on its way: the terminal of its deployment says why, and so does "
            f"robot-rl doctor ros {name}"
        )


def _words(velocity: tuple[float, float, float]) -> str:
    x, y, turn = velocity
    return f"{x:.2f} m/s ahead, {y:.2f} m/s to the left, turning {turn:.2f} rad/s"
