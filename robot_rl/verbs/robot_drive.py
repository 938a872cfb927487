"""robot-rl robot bounds | steer: a robot whose deployment is up, driven by a person or told where to go."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from robot_rl import build, card
from robot_rl.types import Options
from robot_rl.types.card import Card
from robot_rl.types.options import NotNegative, Number, Positive
from robot_rl.verbs import answer
from robot_rl.verbs.reading import read_named, robot_file
from robot_rl.words import Refused


class BoundsOptions(Options):
    """robot-rl robot bounds <my_arm>: drive to the corners, however you like, until Ctrl-C; it only listens."""

    seconds: Positive = 300.0
    """How long it listens at most."""
    margin: NotNegative = 0.0
    """Added on every side of the box and of the joints' ranges [m, rad]."""
    model: str = ""
    """MJCF or URDF of the robot, where its file names none; without one there are ranges of joints alone."""
    tool: str = ""
    """Site of the tool in it; left out = that of the robot's file, or tip."""
    namespace: str = ""
    """Of the robot's topics."""


def tell_bounds(arguments: list[str]) -> None:
    """The workspace and the ranges of joints that a person drives through, as YAML to be pasted into a robot's file."""
    say = "robot: robot-rl robot bounds my_arm, and drive it to the corners of its task"
    found = bounds(*read_named(BoundsOptions, arguments, "robot bounds", say))
    answer.note(**found)
    print(yaml.safe_dump(found, sort_keys=False, default_flow_style=None).rstrip())


def bounds(name: str, options: BoundsOptions) -> dict[str, object]:
    """What was driven to, as it stands in a robot's file: `workspace` and the `lower` and `upper` of joints.

    Args:
        name: of the robot's file.
        options: see there.

    Raises:
        Refused: there is no such robot, or no joint was heard.
    """
    path = robot_file(name)
    robot = build.tool("real.core.spec:RobotSpec").load(path)
    own = card.in_file(Path(path))
    forward, site = _forward(own, robot, options)
    joints: np.ndarray | None = None
    places: np.ndarray | None = None
    try:
        positions = build.tool("real.ros.driven:positions")
        for position in positions(robot, seconds=options.seconds, namespace=options.namespace):
            if joints is None:  # not before: a corner that nobody has heard of would be missing
                sys.stderr.write(f"{robot.name} is heard: drive it to the corners of its task; Ctrl-C when done\n")
                sys.stderr.flush()
            joints = _widen(joints, position)
            if forward is not None:
                places = _widen(places, forward(position))
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    if joints is None:
        raise Refused(
            f"nothing was heard of the joints of {robot.name} within {options.seconds:g} s; is its driver up, and in "
            f"this ROS_DOMAIN_ID? robot-rl doctor ros {name} says more"
        )
    found: dict[str, object] = {}
    if places is not None:
        box = dict(zip(("lower", "upper"), _ends(places, options.margin)))
        found["workspace"] = box if own is not None else {**box, "ee_site": site}
    ends = zip(robot.names, *_ends(joints, options.margin))
    found["joints"] = [{"name": joint, "lower": low, "upper": high} for joint, low, high in ends]
    return found


def _widen(ends: np.ndarray | None, value: np.ndarray) -> np.ndarray:
    """(2, n) least and largest so far, with one more vector (n,)."""
    given = np.array(value, float)
    return np.stack([given, given] if ends is None else [np.minimum(ends[0], given), np.maximum(ends[1], given)])


def _ends(ends: np.ndarray, margin: float) -> tuple[list[float], list[float]]:
    """Both with a margin on either side, to four decimals."""
    return np.round(ends[0] - margin, 4).tolist(), np.round(ends[1] + margin, 4).tolist()


def _forward(
    own: Card | None, robot: Any, options: BoundsOptions
) -> tuple[Callable[[np.ndarray], np.ndarray] | None, str]:
    """(J,) -> (3,) of the tool, or None without a model or, of legs, a tool; and the name of the tool's site."""
    model, site = options.model, options.tool
    if own is not None:
        model, site = model or own.model.path, site or own.tool
    elif not site:
        site = "tip" if robot.workspace is None or not robot.workspace.ee_site else robot.workspace.ee_site
    if not model or not site:
        return None, site
    if not Path(model).exists():
        raise Refused(f"model is {model}, which does not exist; give a path of MJCF or URDF")
    return build.tool("sim.tool:tool_position")(model, site, robot.names), site


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
