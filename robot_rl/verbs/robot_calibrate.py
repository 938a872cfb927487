"""robot-rl robot calibrate: lens and place of a robot's camera from pictures, onto its card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field

from robot_rl import build, card
from robot_rl.types import Options
from robot_rl.types.card import OPEN, CameraCard, Card
from robot_rl.types.option_words import Meaning
from robot_rl.types.options import Positive
from robot_rl.verbs import answer
from robot_rl.verbs.reading import read_words
from robot_rl.words import Refused

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
