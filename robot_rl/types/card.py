"""The card of a robot: all that this project is told about one robot, as data.

Simulation, teleoperation, the safety supervisor, the ROS bridge and the doctor read the same card. What nobody knows
yet is written as `?`: simulation then takes a default and says so, and nothing is sent to a robot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from robot_rl.types.camera import Calibration
from robot_rl.types.options import Count, Meaning, NotNegative, Options, Positive

OPEN = "?"
"""What stands for a value that nobody has given."""
Unknown = Literal["?"]
Limit = Annotated[Positive | Unknown, Meaning("a number above 0, or '?'")]
"""A largest velocity, acceleration or effort."""
Text = Annotated[str, Meaning("a text, or '?'")]
Place = tuple[float, float, float]
"""x, y, z [m]."""

DEFAULTS: dict[str, float] = {"velocity": 1.5, "acceleration": 10.0, "effort": 50.0}
"""What simulation takes for limits that are `?` [rad/s, rad/s2, N m]; heavy joints get more, `simulated_effort`."""
SERVO_SPEED = 25.0
"""Natural frequency of simulated servos whose gains no file states [rad/s]."""


def simulated_effort(effort: float | str, kp: float) -> float:
    """The effort of a joint in simulation: what its card states, else `DEFAULTS`, or what accelerates it.

    A servo's gain is that for its joint's inertia, kp = I w^2; industrial arms, whose URDFs state an effort of 0, would
    stand still under 50 N m. Half as much again as the default acceleration takes is for the motion of its neighbours.

    Args:
        effort: of the card [N m or N], or `?`.
        kp: gain of the simulated servo.
    """
    if effort != OPEN:
        return float(effort)
    return max(DEFAULTS["effort"], 1.5 * DEFAULTS["acceleration"] * kp / SERVO_SPEED**2)


class ModelCard(Options):
    """The file of the model."""

    path: str
    """MJCF or URDF; a relative path counts from the card's folder."""
    sha256: str = ""
    """Of the file and of everything that it names, when the card was written."""
    source: str = ""
    """Who publishes it, of a card that comes with the package."""


class JointCard(Options):
    """One joint [rad or m, N m or N]."""

    name: str
    """As in the model and in the robot's joint states."""
    lower: float | None = None
    """Smallest position; null when continuous."""
    upper: float | None = None
    """Largest position."""
    continuous: bool = False
    """Turns for ever."""
    velocity: Limit = OPEN
    """Largest speed."""
    acceleration: Limit = OPEN
    """Largest acceleration."""
    effort: Limit = OPEN
    """Largest torque or force."""
    jerk: Positive | None = None
    """Largest change of acceleration."""
    stop_acceleration: Positive | None = None
    """Deceleration of stops; null = acceleration."""
    effort_rate: Positive | None = None
    """Largest change of a commanded effort; null = effort in 0.1 s."""
    limit_slack: NotNegative | None = None
    """How far a measured position may lie outside its limits; null = as the supervisor's settings say."""
    kp: NotNegative = 0.0
    """Gain of the simulated servo; in pd mode of the real one, too."""
    kd: NotNegative = 0.0
    """Its damping."""
    armature: NotNegative = 0.0
    """Inertia of its rotor as seen at the joint [kg m2 or kg]; 0 = as the model says."""

    @model_validator(mode="after")
    def _range(self) -> JointCard:
        if not self.continuous and (self.lower is None or self.upper is None or self.lower >= self.upper):
            raise ValueError(
                f"joint {self.name} goes from {self.lower} to {self.upper}, expected lower below upper, or "
                "continuous: true"
            )
        return self


class GripperCard(Options):
    """Fingers that are commanded together; other joints of the hand follow by the model's own constraints."""

    joints: tuple[str, ...]
    """The commanded joints."""
    open: tuple[float, ...]
    """Their positions when open [rad or m]."""
    closed: tuple[float, ...]
    """Their positions when closed."""
    effort: Limit = OPEN
    """Largest torque or force of one joint."""
    kp: NotNegative = 0.0
    """Gain of the simulated servos."""
    kd: NotNegative = 0.0
    """Their damping."""
    velocity: Limit | None = None
    """Largest speed of one joint. With both limits they are commanded with the joints of the arm; null = nobody
    commands them on the robot."""
    acceleration: Limit | None = None
    """Largest acceleration of one joint."""

    @model_validator(mode="after")
    def _lengths(self) -> GripperCard:
        if not len(self.joints) == len(self.open) == len(self.closed):
            raise ValueError("gripper: joints, open and closed need the same number of entries")
        return self


TICK = 2.0 * math.pi / 4096.0
"""What a servo's encoder can tell apart [rad]."""
Ticks = Annotated[int, Field(ge=0, le=4095)]


class MotorCard(Options):
    """The servo of one joint, and how it stands; `robot-rl robot calibrate-arm` finds it [ticks of 4096 to a turn]."""

    id: Annotated[int, Field(ge=1, le=252)]
    """On its bus."""
    homing: Annotated[int, Field(ge=-2047, le=2047)] = 0
    """The servo's own offset: it tells the encoder minus this, so that no joint passes the seam of its encoder."""
    low: Ticks
    """What it tells at one end of its range."""
    high: Ticks
    """What it tells at the other."""
    zero: float
    """What it tells where the joint is at 0."""
    sign: Literal[1, -1] = 1
    """-1 = the servo counts against the joint."""
    scale: Positive = 1.0
    """Radians of the joint for one of the servo."""

    @model_validator(mode="after")
    def _ends(self) -> MotorCard:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low} and high {self.high}, expected low below high")
        return self

    def to_joint(self, ticks: float) -> float:
        """Position of the joint [rad] for what the servo tells, the nearest to `zero` that it can mean."""
        return self.sign * self.scale * TICK * ((ticks - self.zero + 2048.0) % 4096.0 - 2048.0)

    def to_ticks(self, position: float) -> int:
        """Goal of the servo for a position of the joint [rad], within its ends."""
        return round(min(max(self.zero + self.sign * position / (self.scale * TICK), self.low), self.high))

    def ends(self) -> tuple[float, float]:
        """Smallest and largest position of the joint [rad]."""
        low, high = (self.sign * self.scale * TICK * (end - self.zero) for end in (self.low, self.high))
        return min(low, high), max(low, high)


class ServosCard(Options):
    """Servos on a serial bus, which our own driver moves: docs/howto/so101.md."""

    port: Text = OPEN
    """Of their board; /dev/serial/by-id/… stays the same whatever else is plugged in."""
    baud: Literal[1_000_000, 500_000, 250_000, 128_000, 115_200, 57_600, 38_400] = 1_000_000
    """Bits per second of their bus."""
    silence: Literal["hold", "limp"] = "hold"
    """What they do without commands for controller_timeout, and after the driver's end: hold where they are, or let go,
    and the arm sinks."""
    motors: dict[str, MotorCard]
    """Joint -> its servo."""

    @model_validator(mode="after")
    def _one_id_each(self) -> ServosCard:
        ids = [motor.id for motor in self.motors.values()]
        twice = sorted({number for number in ids if ids.count(number) > 1})
        if twice:
            raise ValueError(f"motors: the id {twice[0]} occurs more than once, expected one servo for each")
        return self


class SensorCard(Options):
    """One topic that is read."""

    topic: Text = OPEN
    """Its name."""
    type: str
    """Of its messages."""
    required: bool = True
    """Nothing moves without it."""
    timeout: Positive = 0.1
    """Largest age [s]."""
    clock: Literal["auto", "common", "foreign"] = "auto"
    """Whose clock its stamps are of; docs/ros2.md."""
    acceleration: Literal["free", "rate"] | None = None
    """Of an IMU whose driver takes gravity out: free, or rate: how its velocity changes in its own frame, as Isaac Sim
    tells it; null = as an accelerometer reads, 9.81 m/s2 upwards at rest."""


class CalibrationCard(Options):
    """What a camera's lens does and where it stands; `robot-rl robot calibrate` finds it."""

    height: Count
    """Of the pictures that it was found from [pixels]."""
    width: Count
    """Of the pictures that it was found from [pixels]."""
    focal: tuple[Positive, Positive]
    """fx, fy [pixels]."""
    centre: tuple[float, float]
    """cx, cy [pixels]; the middle of the first pixel is at (0.5, 0.5)."""
    distortion: tuple[float, ...] = ()
    """k1, k2, p1, p2 and perhaps k3, as OpenCV has them; () = none. Pictures are straightened before anybody sees
    them."""
    mount: Literal["world", "tool"]
    """What carries it: the model's world, or the frame of `tool`."""
    position: Place
    """Of the camera in that frame [m]."""
    rotation: tuple[float, ...]
    """(9,) rows of the matrix whose columns are its axes there: x to the right of the picture, y down, z ahead."""
    residual: NotNegative
    """Root mean square distance of what was found in the pictures from where it should be [pixels]."""
    views: Count
    """How many pictures it was found from."""
    sigma: tuple[NotNegative, NotNegative] = (0.0, 0.0)
    """Standard deviations of its place [m] and turn [rad] that follow from the residual."""

    @model_validator(mode="after")
    def _is_a_camera(self) -> CalibrationCard:
        if len(self.distortion) not in (0, 4, 5):
            raise ValueError(f"distortion has {len(self.distortion)} numbers, expected k1, k2, p1, p2 and perhaps k3")
        self.of_size(self.height, self.width)  # refuses what is no rotation
        return self

    def of_size(
        self, height: int, width: int, crop: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    ) -> Calibration:
        """The straightened pictures, or a part of them, scaled to another size: where points fall in them.

        Args:
            height: of the scaled pictures [pixels].
            width: of the scaled pictures [pixels].
            crop: left, top, right, bottom of the part, as shares of width and height.
        """
        left, top = crop[0] * self.width, crop[1] * self.height
        down = height / ((crop[3] - crop[1]) * self.height)
        across = width / ((crop[2] - crop[0]) * self.width)
        return Calibration(
            height=height,
            width=width,
            focal=(self.focal[0] * across, self.focal[1] * down),
            centre=((self.centre[0] - left) * across, (self.centre[1] - top) * down),
            mount=self.mount,
            position=self.position,
            rotation=self.rotation,
        )


class StatusCard(Options):
    """One value that the driver tells of itself."""

    topic: Text = OPEN
    """Its name."""
    type: str
    """Of its messages."""
    good: tuple[bool | int | str, ...]
    """Values with which the robot may move."""
    estop: tuple[bool | int | str, ...] = ()
    """Values that are an emergency stop for as long as they last."""
    field: str = "data"
    """Of the message."""
    timeout: Positive | None = None
    """Longest silence of one that is repeated all the time [s]; null = told when it changes."""


class CameraCard(SensorCard):
    """One topic of pictures."""

    calibration: CalibrationCard | None = None
    """Where points fall in them; null = not known."""


class WorkspaceCard(Options):
    """Box in the model's world frame that the tool stays in, and targets are drawn from."""

    lower: Place
    """x, y, z [m]."""
    upper: Place
    """x, y, z [m]."""

    @model_validator(mode="after")
    def _box(self) -> WorkspaceCard:
        if not all(low < high for low, high in zip(self.lower, self.upper)):
            raise ValueError(f"workspace.lower is {self.lower}, expected below upper = {self.upper} on every axis")
        return self


class EstopCard(Options):
    """What an emergency stop is on this robot."""

    action: Literal["brake", "zero", "halt", "?"] = OPEN
    """What the supervisor sends: brake to rest, zero, or nothing more (halt: the controller's own timeout stops)."""
    heartbeat: NotNegative = 0.5
    """A stop button's topic that was heard and falls silent for so long [s] is pressed; 0 = not watched."""
    required: bool = False
    """Nothing moves before that topic has been heard."""


class ActionCard(Options):
    """How actions in [-1, 1] become commands where no world says it."""

    mapping: Literal["absolute", "delta", "velocity", "effort"] = "absolute"
    """Of actions to commands."""
    scale: tuple[Positive, ...] = ()
    """What 1 means, one number or one per joint."""


class LegsCard(Options):
    """Of a robot that walks: its base moves freely, and its driver takes joint targets with gains."""

    stop: Literal["damp", "sit", "?"] = OPEN
    """After a fault, an e-stop or a lost command: damp (kp 0, the joints' kd), or sit: go to rest first."""
    gains: Text = "driver"
    """Where kp and kd of the joints come from, in words; ? = from a rule that is good for simulation only."""
    stop_seconds: Positive = 3.0
    """Of the way to rest."""
    stand_seconds: Positive = 2.0
    """Of the way to home, when it is enabled."""
    tilt: Positive | None = 1.0
    """Largest angle between trunk and upright [rad]; beyond it the robot counts as fallen; null = not watched."""


class Card(Options):
    """One robot: an arm with a tool, or legs on a base that moves freely."""

    name: str
    """Of the robot."""
    model: ModelCard
    """Kinematics, masses and shapes."""
    base: str = ""
    """Body of the model that is fixed to the world, or the trunk of legs."""
    legs: LegsCard | None = None
    """null = an arm."""
    tool: str = ""
    """Site or body that tasks move."""
    joints: tuple[JointCard, ...] = Field(min_length=1)
    """In the order of commands and observations: from base to tool."""
    gripper: GripperCard | None = None
    """null = none."""
    home: tuple[float, ...]
    """Positions of the joints at the start of work [rad or m]."""
    rest: tuple[float, ...] | None = None
    """Positions in which it may be switched off; null = home."""
    workspace: WorkspaceCard | None = None
    """null = none."""
    servos: ServosCard | None = None
    """null = the robot has a driver of its own."""
    ignore: tuple[tuple[str, str], ...] = ()
    """Pairs of bodies whose contact in the model means nothing: their shapes overlap where they are joined."""
    command_mode: Literal[
        "forward_position", "forward_velocity", "forward_effort", "jtc", "joint_command", "twist", "servo", "pd", "?"
    ] = OPEN
    """What the controller takes."""
    controller_topic: Text = OPEN
    """Where the supervisor sends commands; "" = the usual one of the mode."""
    controller: str = ""
    """Node whose parameters `joints` and `interface_name` are read; "" = the one its topic belongs to."""
    controller_timeout: Annotated[NotNegative | Unknown, Meaning("seconds, 0 = never, or '?'")] = OPEN
    """Seconds after which the controller stops by itself without commands; 0 = never."""
    dead_time: Annotated[float, Field(ge=0, le=1)] | None = None
    """Seconds from a command to the joints' following it; doctor ros wiggle=true measures it."""
    stiction: Annotated[float, Field(ge=0, le=0.2)] = 0.0
    """How far commands go before joints at rest follow them [rad]: friction and play of cheap gears."""
    sensors: dict[str, SensorCard] = Field(default_factory=dict)
    """Name -> topic that is read."""
    cameras: dict[str, CameraCard] = Field(default_factory=dict)
    """Name -> topic of pictures."""
    status: dict[str, StatusCard] = Field(default_factory=dict)
    """Name -> value that the driver tells of itself."""
    estop: EstopCard = EstopCard()
    """Emergency stop."""
    margin: NotNegative = 0.02
    """Kept free at both ends of every range [rad]."""
    force: Positive | None = None
    """Largest force at the tool [N]."""
    observation: tuple[str, ...] = ()
    """Keys that a policy reads where no world says it."""
    action: ActionCard = ActionCard()
    """Of a policy that no world describes."""
    confirmed: tuple[str, ...] = ()
    """Numbers beyond what is plausible that are meant, such as wheel.velocity."""

    @model_validator(mode="after")
    def _fits(self) -> Card:
        names = [joint.name for joint in self.joints]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"joints: the name {twice[0]} occurs more than once, expected unique names")
        for key in ("home", "rest"):
            pose: tuple[float, ...] | None = self.rest if key == "rest" else self.home
            if pose is None:
                continue
            if len(pose) != len(names):
                raise ValueError(f"{key} has {len(pose)} entries, expected {len(names)}: one per joint")
            for joint, value in zip(self.joints, pose):
                if joint.lower is not None and joint.upper is not None and not joint.lower <= value <= joint.upper:
                    raise ValueError(
                        f"{key} of {joint.name} is {value:g}, expected in [{joint.lower:g}, {joint.upper:g}]"
                    )
        return self

    def as_commanded(self) -> Card:
        """The card as whoever commands the robot sees it: with the joints of a gripper that has limits of its own, and
        each joint within the ends of its servo."""
        joints, homes, rests = list(self.joints), self.home, self.rest
        hand = self.gripper
        if hand is not None and hand.velocity is not None and hand.acceleration is not None:
            ends = [sorted(pair) for pair in zip(hand.open, hand.closed)]
            moves = JointCard(
                name="", continuous=True, velocity=hand.velocity, acceleration=hand.acceleration, effort=hand.effort,
                kp=hand.kp, kd=hand.kd,
            )  # fmt: skip
            joints += [
                moves.model_copy(update={"name": name, "continuous": False, "lower": low, "upper": high})
                for name, (low, high) in zip(hand.joints, ends)
            ]
            middle = tuple(0.5 * (low + high) for low, high in ends)
            homes, rests = homes + middle, None if rests is None else rests + middle
        for i, joint in enumerate(joints):
            motor = None if self.servos is None else self.servos.motors.get(joint.name)
            if motor is not None and joint.lower is not None and joint.upper is not None:
                low, high = motor.ends()
                within = {"lower": max(joint.lower, low), "upper": min(joint.upper, high)}
                joints[i] = joint.model_copy(update=within)
        return self.model_copy(update={"joints": tuple(joints), "home": homes, "rest": rests})

    def open_keys(self) -> list[str]:
        """Keys that are still `?`, such as joints.elbow.acceleration."""
        return list(_open(self, ""))

    def limit(self, key: Literal["velocity", "acceleration", "effort"]) -> tuple[float, ...]:
        """A limit of every joint, with the default of simulation where it is `?`."""
        if key == "effort":
            return tuple(simulated_effort(joint.effort, joint.kp) for joint in self.joints)
        values = ({"velocity": j.velocity, "acceleration": j.acceleration}[key] for j in self.joints)
        return tuple(DEFAULTS[key] if value == OPEN else float(value) for value in values)


def _open(value: object, where: str) -> Iterator[str]:
    if value == OPEN:
        yield where
    elif isinstance(value, BaseModel):
        for key, item in value:
            yield from _open(item, f"{where}.{key}" if where else key)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _open(item, f"{where}.{key}")
    elif isinstance(value, tuple):
        for item in value:
            if isinstance(item, JointCard):
                yield from _open(item, f"{where}.{item.name}")
