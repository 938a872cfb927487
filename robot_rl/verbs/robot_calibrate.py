"""robot-rl robot calibrate | calibrate-arm | motors | leader: cameras, and arms of serial bus servos such as SO-101."""

from __future__ import annotations

import select
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field

from robot_rl import build, card
from robot_rl.types import Options
from robot_rl.types.card import OPEN, CameraCard, Card, ServosCard
from robot_rl.types.option_words import Meaning
from robot_rl.types.options import Positive
from robot_rl.verbs import answer
from robot_rl.verbs.reading import read_named, read_words
from robot_rl.words import Refused, near

Squares = Annotated[int, Field(ge=3, le=30)]


class CalibrateOptions(Options):
    """robot-rl robot calibrate <card>: where a camera stands and what its lens does, from pictures of it."""

    board: str = ""
    """Print a board instead: .pdf or .png, in its true size."""
    camera: str = ""
    """Its name; the card need not have it yet."""
    pictures: str = ""
    """Folder of pictures with poses.csv: picture and every joint, or picture, x, y, z, qw, qx, qy, qz of the tool."""
    record: Annotated[int, Field(ge=0, le=500)] = 0
    """Take so many pictures first, from the running robot, whenever it rests in a new pose; Ctrl-C ends it earlier."""
    by: Literal["board", "motion"] = "board"
    """A printed board, or a ball on the tool (motion; the camera stands still)."""
    mount: Literal["world", "tool"] = "world"
    """What carries the camera: it stands still, or the hand carries it (tool)."""
    columns: Squares = 7
    """Squares of the board along its longer side."""
    rows: Squares = 5
    """Squares along its shorter side."""
    square: Positive = 0.035
    """Side of a square as measured on the paper [m]."""
    colour: Literal["red", "orange", "yellow", "green", "cyan", "blue", "magenta"] = "magenta"
    """Of the ball."""
    marker: Annotated[
        tuple[float, float, float] | None, BeforeValidator(lambda x: _list(x)), Meaning("[x,y,z] in metres")
    ] = None
    """Middle of the ball in the tool's frame [m]; left out = found, where the tool turns."""
    topic: str = ""
    """Of its pictures, onto the card; one that ends in compressed has CompressedImage. Left out = as it is there, or
    `?`."""


def _list(value: object) -> object:
    try:
        return yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError as error:
        raise ValueError(f"'{value}' is no list of numbers, expected [x,y,z]") from error


def calibrate(arguments: list[str]) -> None:
    """Print a board, or find a camera and write it onto the card.

    Raises:
        Refused: says what is missing.
        ValueError: the pictures do not do; says why.
    """
    names = [item for item in arguments if "=" not in item]
    options = read_words(CalibrateOptions, [item for item in arguments if "=" in item], "robot calibrate")
    tools = build.tool("real.calibration.camera")
    board = tools.Board(options.columns, options.rows, options.square)
    if options.board:
        print(board.print_to(Path(options.board)))
        answer.note(board=options.board)
        return
    if len(names) != 1 or not options.camera or not options.pictures:
        raise Refused(
            "say which card, which camera and where its pictures are: robot-rl robot calibrate my_arm camera=front "
            "pictures=calib/front; or print a board: robot-rl robot calibrate board=board.pdf"
        )
    if options.by == "motion" and options.mount == "tool":
        raise Refused(
            "by=motion is for a camera that stands still and sees the tool move; a camera in the hand moves with it: "
            "use by=board mount=tool, with the board on the table"
        )
    path = card.find_own(names[0])
    found = card.read(path)
    if options.record:
        _record(found, path, options)
    joints = [joint.name for joint in found.joints]
    views = tools.read_views(
        Path(options.pictures), joints, build.tool("sim.tool:tool_pose")(found.model.path, found.tool, joints)
    )
    if options.by == "board":
        seen = tools.by_board(views, board, options.mount)
    else:
        seen = tools.by_motion(views, colour=options.colour, marker=options.marker)
    _write(found, path, options, seen)


def _record(robot: Card, path: Path, options: CalibrateOptions) -> None:
    """Pictures of the running robot into the folder; the card gets the camera's topic first."""
    camera = _camera(robot, options)
    if camera.topic == OPEN:
        raise Refused(f"record={options.record} needs the topic of {options.camera}: topic=camera/image_raw")
    card.put_camera(path, options.camera, camera)
    spec = build.tool("real.core.spec:RobotSpec").load(path)
    record = build.tool("real.ros.calibration_recorder:record")
    record(spec, spec.cameras[options.camera], Path(options.pictures), count=options.record)


def _camera(robot: Card, options: CalibrateOptions) -> CameraCard:
    """The camera as it is on the card, with the topic that was given."""
    old = robot.cameras.get(options.camera) or CameraCard(type="sensor_msgs/Image")
    if not options.topic:
        return old
    kind = "CompressedImage" if options.topic.endswith("compressed") else "Image"
    return old.model_copy(update={"topic": options.topic, "type": f"sensor_msgs/{kind}"})


def _write(robot: Card, path: Path, options: CalibrateOptions, seen: Any) -> None:
    made, name = seen.card, options.camera
    camera = _camera(robot, options).model_copy(update={"calibration": made})
    card.put_camera(path, name, camera)
    for note in seen.notes:
        print(f"  {note}")
    print(f"  residual {made.residual:.2f} pixels over {made.views} pictures")
    place = " ".join(f"{1e3 * x:.1f}" for x in made.position)
    print(f"  focal lengths {made.focal[0]:.1f} {made.focal[1]:.1f}, centre {made.centre[0]:.1f} {made.centre[1]:.1f}")
    print(
        f"  at {place} mm in the frame of the {made.mount}, standard deviation {1e3 * made.sigma[0]:.1f} mm and "
        f"{57.29578 * made.sigma[1]:.2f} degrees"
    )
    print(f"{path}: cameras.{name}.calibration")
    if camera.topic == OPEN:
        print(f"  the topic of {name} is ? on the card, and nothing is deployed before it is known: topic=…")
    answer.note(card=str(path), camera=name, calibration=made.model_dump(mode="json"))


Names = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda x: tuple(filter(None, x.strip("[]").split(","))) if isinstance(x, str) else x),
    Meaning("names between commas"),
]
Renamed = Annotated[
    dict[str, str] | None,
    BeforeValidator(lambda x: _pairs(x) if isinstance(x, str) else x),
    Meaning("{name: name}"),
]


def _pairs(text: str) -> object:
    """A text {a: b, c: d} as a dict; any other as it is, which is refused then."""
    pairs = [item.split(":") for item in text.strip().removeprefix("{").removesuffix("}").split(",")]
    return {pair[0].strip(): pair[1].strip() for pair in pairs} if all(len(pair) == 2 for pair in pairs) else text


class CalibrateArmOptions(Options):
    """robot-rl robot calibrate-arm <card>: middle and ends of the joints of an arm of Feetech servos, moved by hand."""

    port: str = ""
    """Of its board, such as /dev/serial/by-id/usb-…; left out = the card's."""
    turning: Names = ("wrist_roll",)
    """Joints without ends, beside those that are continuous on the card: the middle pose is their zero."""
    reversed: Names = ()
    """Joints whose servo counts against the model."""


class MotorsOptions(Options):
    """robot-rl robot motors <card>: who answers on the bus of an arm, and how its servos are; or give one its id."""

    port: str = ""
    """Of its board; left out = the card's."""
    set: str = ""
    """A joint: the one servo that is plugged in gets the id of it."""
    free: bool = False
    """Switch the torque off: the arm sinks, so hold it."""


class LeaderOptions(Options):
    """robot-rl robot leader <card>: a leader arm's joints on ROS topics, with the space bar as dead-man's switch."""

    port: str = ""
    """Of its board; left out = the card's."""
    names: Renamed = None
    """Joint of the leader -> joint of the robot, such as names={wrist_roll: joint_6}; left out = the same names."""
    rate: Positive = 50.0
    """Messages per second."""
    topic: str = "leader/joint_states"
    """Of the joints."""
    namespace: str = ""
    """Of the topics, such as /left."""
    deadman: Literal["space", "elsewhere"] = "space"
    """elsewhere: somebody else publishes robot_rl/deadman, or holds the button of a game pad."""


def calibrate_arm(arguments: list[str]) -> None:
    """Lead a person through the calibration of an arm, and write it onto the card and into the servos.

    Raises:
        Refused: says what is missing.
        ValueError, RuntimeError: a range that is not plausible, or a servo that fails; says which.
    """
    found, path, options = _read(arguments, CalibrateArmOptions, "calibrate-arm")
    servos = build.tool("real.servos.tools")
    joints, hand = list(found.joints), found.gripper
    wrong = [name for name in options.reversed if name not in _names(found)]
    if wrong:
        raise Refused(f"reversed={wrong[0]}: {found.name} has no such joint{near(wrong[0], _names(found))}")
    numbers = _numbers(found)
    plans = [
        servos.JointPlan(
            joint.name, numbers[joint.name], joint.lower or 0.0, joint.upper or 0.0,
            turning=joint.continuous or joint.name in options.turning,
            sign=-1 if joint.name in options.reversed else 1,
        )
        for joint in joints
    ]  # fmt: skip
    if hand is not None:
        plans += [
            servos.JointPlan(
                name, numbers[name], min(ends), max(ends), gripper=True, sign=-1 if name in options.reversed else 1
            )
            for name, *ends in zip(hand.joints, hand.open, hand.closed)
        ]
    port = _port(found, options.port)
    print("The torque goes off: hold the arm, and let it sink to where it may lie.")
    try:
        with closing(servos.ServoBus(port, names={number: name for name, number in numbers.items()})) as bus:
            motors = servos.calibrate(bus, plans, _Terminal())
    except KeyboardInterrupt:
        raise Refused("ended by Ctrl-C: neither card nor servos were changed; their torque is off") from None
    silence = found.servos.silence if found.servos is not None else "hold"
    card.put_servos(path, ServosCard(port=port, silence=silence, motors=motors))
    for name, motor in motors.items():
        low, high = motor.ends()
        print(f"  {name}: servo {motor.id}, {low:.2f} to {high:.2f} rad")
    print(f"{path}: servos; the same is in the servos")
    answer.note(card=str(path), motors={name: motor.model_dump() for name, motor in motors.items()})


def motors(arguments: list[str]) -> None:
    """Say who answers on the bus of an arm, give one servo its id, or let the arm go.

    Raises:
        Refused: says what is missing.
        RuntimeError: a servo that fails; says which.
    """
    found, _, options = _read(arguments, MotorsOptions, "motors")
    servos, numbers = build.tool("real.servos.tools"), _numbers(found)
    if options.set and options.set not in numbers:
        raise Refused(f"set={options.set}: {found.name} has no such joint{near(options.set, numbers)}")
    names = {number: name for name, number in numbers.items()}
    with closing(servos.ServoBus(_port(found, options.port), names=names)) as bus:
        if options.set:
            before = servos.set_number(bus, numbers[options.set])
            print(f"the servo of {options.set} has id {numbers[options.set]} now; it was {before}")
            return
        if options.free:  # first, and to all at once: a servo that fails must not keep the others stiff
            for _ in range(2):  # nobody answers to it
                bus.write_all(servos.TORQUE, dict.fromkeys(numbers.values(), 0))
        rows = [servos.look(bus, number) for number in numbers.values()]
    for name, row in zip(numbers, rows):
        print(f"  {name}: " + (f"no answer from id {numbers[name]}" if row is None else _line(row)))
    answer.note(motors=dict(zip(numbers, rows)))


def leader(arguments: list[str]) -> None:
    """Tell a leader arm's joints until Ctrl-C.

    Raises:
        Refused: says what is missing.
        RuntimeError: a servo that fails; says which.
    """
    found, _, options = _read(arguments, LeaderOptions, "leader")
    if found.servos is None:
        raise Refused(f"{found.name} has not been calibrated: robot-rl robot calibrate-arm {arguments[0]}")
    lead = build.tool("real.ros.leader:lead")
    lead(
        found, print, port=options.port, names=options.names or {}, rate=options.rate, topic=options.topic,
        namespace=options.namespace, space=options.deadman == "space",
    )  # fmt: skip


class _Terminal:
    """Leads a person who sits at the terminal."""

    def __init__(self) -> None:
        self._said = ""

    def ask(self, what: str) -> None:
        print(f"{what}; then press Enter.", flush=True)
        if not sys.stdin.readline():
            raise Refused("nobody is at the terminal: the calibration is a person's work. Nothing was written")

    def say(self, what: str) -> None:
        print(f"{what}; then press Enter.", flush=True)

    def moving(self, ways: Mapping[str, tuple[float, float]]) -> bool:
        line = "  ".join(f"{name} {low:.2f} {high:+.2f}" for name, (low, high) in ways.items())
        if sys.stdout.isatty() and line != self._said:
            self._said = line
            print(f"\r{line}", end="", flush=True)
        if not select.select([sys.stdin], [], [], 0.0)[0]:
            return True
        if not sys.stdin.readline():
            raise Refused("the terminal was closed before all joints had been moved. Nothing was written")
        if self._said:
            self._said = ""
            print()
        return False


def _read(arguments: list[str], kind: type[Any], verb: str) -> tuple[Card, Path, Any]:
    say = f"card: robot-rl robot {verb} my_arm port=/dev/serial/by-id/…"
    name, options = read_named(kind, arguments, f"robot {verb}", say)
    path = card.find_own(name)
    return card.read(path), path, options


def _names(found: Card) -> list[str]:
    """Joints of the arm and of its gripper, in the order of the ids of their servos: from the base on."""
    return [joint.name for joint in found.joints] + list(found.gripper.joints if found.gripper is not None else ())


def _numbers(found: Card) -> dict[str, int]:
    """Joint -> id of its servo: the card's, or counted from the base on where that has not all of them."""
    if found.servos is not None and set(_names(found)) <= set(found.servos.motors):
        return {name: motor.id for name, motor in found.servos.motors.items()}
    return {name: i for i, name in enumerate(_names(found), 1)}


def _port(found: Card, given: str) -> str:
    port = given or (found.servos.port if found.servos is not None else OPEN)
    if port == OPEN:
        there = build.tool("real.servos.tools").ports()
        raise Refused(
            "say at which port it is: port=… "
            + (f"(there are {', '.join(there)})" if there else "(no serial port is plugged in)")
        )
    return port


def _line(row: Mapping[str, object]) -> str:
    state = row["faults"] or "well"
    return (
        f"id {row['id']}, model {row['model']}, at {row['position']}, {row['volts']:.1f} V, {row['celsius']} C, "
        f"torque {'on' if row['torque'] else 'off'}, {state}"
    )
