"""RobotSpec: everything that the bridge must know about one robot, read from YAML and checked at the door."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import ValidationError

from robot_rl import card
from robot_rl.real.core.legs_spec import LegsSpec
from robot_rl.real.core.sensor_spec import CameraSpec, SensorSpec
from robot_rl.real.core.status_spec import StatusSpec
from robot_rl.tables import TableError, read_table
from robot_rl.types.card import CalibrationCard, Card
from robot_rl.types.option_words import file_error

T = TypeVar("T")

Mode = Literal["position", "velocity", "effort", "twist", "pd"]
"""What a command says of each joint."""
POSITION, VELOCITY, EFFORT, TWIST, PD = "position", "velocity", "effort", "twist", "pd"
MODES: dict[str, Mode] = {
    "forward_position": POSITION,
    "forward_velocity": VELOCITY,
    "forward_effort": EFFORT,
    "jtc": POSITION,
    "joint_command": POSITION,
    "twist": TWIST,
    "servo": TWIST,
    "pd": PD,
}
TOPICS = {
    "jtc": "joint_trajectory_controller/joint_trajectory",
    "joint_command": "joint_command",
    "twist": "cmd_vel",
    "servo": "servo_node/delta_twist_cmds",
}
"""Command mode -> topic of the robot's controller unless the RobotSpec says another; the rest are forward."""
MAPPINGS = ("absolute", "delta", "velocity", "effort")
FIELDS = {POSITION: "positions", VELOCITY: "velocities", EFFORT: "effort", TWIST: "velocities", PD: "positions"}
"""Mode -> field of a trajectory point."""
PD_INTERFACES = ("position", "velocity", "effort", "kp", "kd")
"""What a controller takes of every joint in pd mode, in this order; velocity and effort are 0."""
AXES: tuple[str, ...] = ("linear_x", "linear_y", "linear_z", "angular_x", "angular_y", "angular_z")
"""What the joints of a RobotSpec are called in a twist mode, in the order of a Twist."""
PLAUSIBLE = {
    "lower": 4.0 * math.pi,
    "upper": 4.0 * math.pi,
    "velocity": 50.0,
    "acceleration": 1e3,
    "stop_acceleration": 1e3,
}
"""Largest amount [rad, rad/s, rad/s2] that is believed without being asked about; degrees are larger."""
MOTION = ("nav_msgs/Odometry", "geometry_msgs/TwistStamped")
"""Sensor types that tell how a robot in a twist mode moves."""


class SpecError(ValueError):
    """A RobotSpec that cannot be used; the message names the key, what it holds and what it should hold."""


@dataclass(frozen=True)
class JointSpec:
    """One joint.

    Args:
        name: as in the robot's joint states.
        lower: smallest position [rad or m]; ignored when continuous.
        upper: largest position.
        velocity: largest speed [rad/s or m/s].
        acceleration: largest acceleration; has no default, because none is not infinity.
        effort: largest effort [N m or N]; has no default either, but axes of a twist have none.
        jerk: largest change of acceleration, or None.
        stop_acceleration: deceleration of stops, at least `acceleration`; None = the same.
        continuous: turns for ever.
        kp: gain of the simulated servo.
        kd: damping of the simulated servo; kp and kd are also the wall of effort mode.
        effort_rate: largest change of a commanded effort [N m/s]; None = `effort` in 0.1 s.
        limit_slack: how far a measured position may lie outside its limits [rad or m]; None = as the settings say.
    """

    name: str
    velocity: float
    acceleration: float
    effort: float = math.nan
    lower: float = -math.inf
    upper: float = math.inf
    jerk: float | None = None
    stop_acceleration: float | None = None
    continuous: bool = False
    kp: float = 0.0
    kd: float = 0.0
    effort_rate: float | None = None
    limit_slack: float | None = None


@dataclass(frozen=True)
class Workspace:
    """Box that the tool stays in: `lower` and `upper` (x, y, z) [m] in the base frame, for the site `ee_site`."""

    lower: tuple[float, float, float]
    upper: tuple[float, float, float]
    ee_site: str = ""


@dataclass(frozen=True)
class ActionSpec:
    """How actions in [-1, 1] become commands: `absolute`, `delta`, `velocity` or `effort`, times `scale` per joint."""

    mapping: str = "absolute"
    scale: tuple[float, ...] = ()


@dataclass(frozen=True)
class RobotSpec:
    """One robot.

    Args:
        name: of the robot.
        joints: in the order of commands and observations; in a twist mode the axes that may move, named as in AXES.
        command_mode: jtc and joint_command name their joints; forward_position, forward_velocity and forward_effort
            send arrays in the order of `joints`, which must be the controller's, and so does pd, which sends targets
            with their gains; twist or servo.
        controller_topic: where the supervisor sends commands; "" = the usual one of the mode, see TOPICS.
        controller: node whose parameters `joints` and `interface_name` are read; "" = the one its topic belongs to.
        controller_timeout: seconds after which the robot's own controller stops without commands; 0 = never.
        dead_time: seconds from a command's leaving to the joints' following it, the longest that occurs; velocity mode
            needs it to keep position limits, and `robot-rl doctor ros … wiggle=true` measures it.
        stiction: how far commands go before joints at rest follow them [rad]: standing still for so long is no sign of
            a driver that repeats its last numbers.
        sensors: name -> topic that is read.
        cameras: name -> topic, type, timeout.
        status: name -> value that the driver tells of itself.
        workspace: box for the tool, or None.
        home: (J,) start configuration; in pd mode enabling moves the legs there.
        rest: (J,) configuration to switch off in; () = home.
        legs: of pd mode.
        margin: kept free at both ends of every position range [rad]; 5 % of a smaller range.
        force: largest force at the tool [N], or None.
        observation: keys in the order that the policy reads.
        action: from [-1, 1] to commands.
        stamped: a twist mode sends TwistStamped; False = Twist.
        frame: of the twists that are sent.
        confirmed: numbers beyond what is plausible that are meant, e.g. wheel.velocity.
    """

    name: str
    joints: tuple[JointSpec, ...]
    command_mode: str = "jtc"
    controller_topic: str = ""
    controller: str = ""
    controller_timeout: float = 0.0
    dead_time: float | None = None
    stiction: float = 0.0
    sensors: dict[str, SensorSpec] = field(default_factory=dict)
    cameras: dict[str, CameraSpec] = field(default_factory=dict)
    status: dict[str, StatusSpec] = field(default_factory=dict)
    workspace: Workspace | None = None
    home: tuple[float, ...] = ()
    rest: tuple[float, ...] = ()
    legs: LegsSpec | None = None
    margin: float = 0.02
    force: float | None = None
    observation: tuple[str, ...] = ()
    action: ActionSpec = field(default_factory=ActionSpec)
    stamped: bool = True
    frame: str = "base_link"
    confirmed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.controller_topic:
            usual = TOPICS.get(self.command_mode, "forward_command_controller/commands")
            object.__setattr__(self, "controller_topic", usual)
        if self.command_mode in MODES and self.mode == TWIST:  # a twist's axes turn and roll for ever
            joints = tuple(
                replace(j, continuous=True, effort=1.0 if math.isnan(j.effort) else j.effort) for j in self.joints
            )
            object.__setattr__(self, "joints", joints)
        _check(self)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Joint names in order."""
        return tuple(joint.name for joint in self.joints)

    @cached_property
    def turning(self) -> tuple[bool, ...]:
        """Which joints turn for ever."""
        return tuple(joint.continuous for joint in self.joints)

    @cached_property
    def mode(self) -> Mode:
        """`position`, `velocity`, `effort`, `twist` or `pd`."""
        return MODES[self.command_mode]

    @property
    def has_positions(self) -> bool:
        """Whether commands are joint positions or velocities, whose way can be told in advance."""
        return self.mode in (POSITION, VELOCITY)

    @property
    def stands_after(self) -> float:
        """Seconds without a command after which the joints stand; inf where physics or nobody ends their motion."""
        if self.mode == POSITION:
            return 0.0
        return (self.mode in (VELOCITY, TWIST) and self.controller_timeout) or math.inf

    @cached_property
    def state_topics(self) -> tuple[str, ...]:
        """Topics of joint states; one of the usual name where the sensors list none."""
        return tuple(s.topic for s in self.sensors.values() if s.kind == "sensor_msgs/JointState") or ("joint_states",)

    @cached_property
    def imu(self) -> str:
        """Name of the first sensor of type sensor_msgs/Imu, or ""."""
        return self._first("sensor_msgs/Imu")

    @cached_property
    def wrench(self) -> str:
        """Name of the first sensor of type geometry_msgs/WrenchStamped, or ""."""
        return self._first("geometry_msgs/WrenchStamped")

    @cached_property
    def velocity_command(self) -> str:
        """Name of the first sensor that tells a wanted velocity of the base, or ""."""
        return self._first("geometry_msgs/Twist")

    def _first(self, kind: str) -> str:
        return next((name for name, s in self.sensors.items() if s.kind == kind), "")

    def array(self, key: str) -> np.ndarray:
        """One number of every joint as (J,) float64, e.g. `array("velocity")`; None becomes nan."""
        return np.array([math.nan if (v := getattr(joint, key)) is None else v for joint in self.joints], float)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Position limits of commands, (J,) each: the joint's own minus the margin; infinite for continuous joints."""
        lower, upper, margin = self._hard()
        return lower + margin, upper - margin

    def hard_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The joint's own position limits, (J,) each; infinite for continuous joints."""
        return self._hard()[:2]

    def _hard(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        turning = np.array(self.turning)
        lower = np.where(turning, -np.inf, self.array("lower"))
        upper = np.where(turning, np.inf, self.array("upper"))
        return lower, upper, np.minimum(self.margin, 0.05 * (upper - lower))

    @classmethod
    def from_dict(cls, raw: object) -> RobotSpec:
        """Build from plain dicts and lists, as YAML and Hydra give them.

        Raises:
            SpecError: names the key.
        """
        raw = dict(_mapping(raw, "robot spec"))
        if "joints" in raw:
            items = _sequence(raw["joints"], "joints")
            raw["joints"] = tuple(_build(JointSpec, item, f"joints[{i}]") for i, item in enumerate(items))
        for key, sort in (("sensors", SensorSpec), ("cameras", CameraSpec), ("status", StatusSpec)):
            table = _mapping(raw.get(key) or {}, key)
            raw[key] = {name: _build(sort, item, f"{key}.{name}") for name, item in table.items()}
        for key, kind in (("workspace", Workspace), ("action", ActionSpec), ("legs", LegsSpec)):
            if raw.get(key) is None:
                raw.pop(key, None)
            else:
                raw[key] = _build(kind, raw[key], key)
        return _build(cls, raw, "")

    @classmethod
    def load(cls, path: str | Path) -> RobotSpec:
        """Read a YAML file.

        Raises:
            FileNotFoundError: no such file.
            SpecError: not YAML, or a key that is wrong; the message starts with the file.
        """
        path = Path(path)
        try:
            table = read_table(path)
            if card.is_card(table):
                table = of_card(card.of_table(table, "card"))[0]
            return cls.from_dict(table)
        except TableError as error:
            raise SpecError(str(error)) from error
        except (SpecError, card.CardError) as error:
            raise SpecError(f"{path}: {error}") from error


def of_card(found: Card) -> tuple[dict[str, Any], dict[str, Any]]:
    """A RobotSpec's table and the supervisor's parameters out of a card, which is the one source of both.

    Raises:
        SpecError: the card still holds `?`, or numbers that no RobotSpec may hold; names the keys.
    """
    unknown = found.open_keys()
    if unknown:
        raise SpecError(
            f"the card of {found.name} still says ? at {', '.join(unknown)}: write down what the data sheet and the "
            "driver say; before that nothing is sent to a robot"
        )
    table = card.to_table(found.as_commanded())
    stop = table.pop("estop")
    for key in ("model", "base", "tool", "gripper", "servos", "ignore"):
        table.pop(key, None)
    table.get("legs", {}).pop("gains", None)
    for joint in table["joints"]:
        del joint["armature"]
    if "workspace" in table:
        table["workspace"]["ee_site"] = found.tool
    parameters = {f"estop_{key}": value for key, value in stop.items()}
    RobotSpec.from_dict(table)
    return table, {**parameters, **({"model": found.model.path} if found.workspace is not None else {})}


def _mapping(raw: object, where: str) -> Mapping[str, object]:
    if not isinstance(raw, Mapping):
        raise SpecError(f"{where} is {raw!r}, expected a table of keys")
    return raw


def _sequence(raw: object, where: str) -> Sequence[object]:
    if isinstance(raw, (str, bytes)) or not isinstance(raw, Sequence):
        raise SpecError(f"{where} is {raw!r}, expected a list")
    return raw


def _build(kind: type[T], raw: object, where: str) -> T:
    """Construct a dataclass from a table: unknown, missing and mistyped keys are errors that name the key."""
    table, dot = _mapping(raw, where or "robot spec"), f"{where}." if where else ""
    assert is_dataclass(kind)
    known = {item.name: item for item in fields(kind)}
    for key in table:
        if key not in known:
            raise SpecError(f"{dot}{key} is not a key of the spec; valid keys: {', '.join(known)}")
    values: dict[str, object] = {}
    for name, item in known.items():
        if name in table:
            values[name] = _convert(str(item.type), table[name], f"{dot}{name}")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise SpecError(f"{dot}{name} is missing; write it down, there is no safe default")
    return kind(**values)


def _convert(kind: str, value: object, where: str) -> object:
    if value is None and kind.endswith("| None"):
        return None
    if kind.startswith("CalibrationCard"):
        try:
            return CalibrationCard.model_validate(dict(_mapping(value, where)))
        except ValidationError as error:
            raise SpecError(f"{where}: {file_error(error, CalibrationCard, 'a calibration')}") from error
    if kind.startswith("float"):
        return _number(value, where)
    if kind == "bool" and not isinstance(value, bool):
        raise SpecError(f"{where} is {value!r}, expected true or false")
    if kind == "str" and not isinstance(value, str):
        raise SpecError(f"{where} is {value!r}, expected text; quote it")
    if kind.startswith("tuple[float"):
        return tuple(_number(v, f"{where}[{i}]") for i, v in enumerate(_sequence(value, where)))
    if kind.startswith("tuple[str"):
        return tuple(_convert("str", v, f"{where}[{i}]") for i, v in enumerate(_sequence(value, where)))
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SpecError(f"{where} is {value!r}, expected a number (YAML reads 1e3 as text; write 1.0e+3)")
    return float(value)


def _positive(value: float | None, where: str) -> None:
    if value is not None and not (math.isfinite(value) and value > 0.0):
        raise SpecError(f"{where} is {value}, expected a finite number > 0")


def _ask(joint: JointSpec, where: str, confirmed: tuple[str, ...]) -> None:
    """Numbers that are probably of another unit have to be confirmed."""
    for key, most in PLAUSIBLE.items():
        value = getattr(joint, key)
        if value is None or (joint.continuous and key in ("lower", "upper")) or not math.isfinite(value):
            continue
        if abs(value) > most and f"{joint.name}.{key}" not in confirmed:
            raise SpecError(
                f"{where}.{key} is {value:g}, more than {most:g}: are these degrees, or is a point missing? The spec "
                f"is in rad (or m) and s; if the number is meant, write confirmed: [{joint.name}.{key}]"
            )


def _check(spec: RobotSpec) -> None:
    if not spec.joints:
        raise SpecError("joints is empty, expected at least one joint")
    for i, joint in enumerate(spec.joints):
        where = f"joints[{i}] ({joint.name})"
        if not joint.name:
            raise SpecError(f"joints[{i}].name is empty, expected the name in the joint states")
        if math.isnan(joint.effort):
            raise SpecError(f"{where}.effort is missing; write it down, there is no safe default")
        for key in ("velocity", "acceleration", "effort", "jerk", "stop_acceleration", "effort_rate"):
            _positive(getattr(joint, key), f"{where}.{key}")
        if joint.stop_acceleration is not None and joint.stop_acceleration < joint.acceleration:
            raise SpecError(f"{where}.stop_acceleration is {joint.stop_acceleration}, expected >= acceleration")
        if joint.limit_slack is not None and not 0.0 <= joint.limit_slack < math.inf:
            raise SpecError(f"{where}.limit_slack is {joint.limit_slack}, expected a finite number >= 0")
        _ask(joint, where, spec.confirmed)
        if not joint.continuous:
            for key in ("lower", "upper"):
                if not math.isfinite(getattr(joint, key)):
                    raise SpecError(f"{where}.{key} is missing or not finite; give it or set continuous: true")
            if joint.lower >= joint.upper:
                raise SpecError(f"{where}.lower is {joint.lower}, expected below upper = {joint.upper}")
    doubles = sorted({name for name in spec.names if spec.names.count(name) > 1})
    if doubles:
        raise SpecError(f"joints: the name {doubles[0]} occurs more than once, expected unique names")
    if spec.command_mode not in MODES:
        raise SpecError(f"command_mode is {spec.command_mode!r}, expected one of {', '.join(MODES)}")
    if spec.mode == TWIST:
        odd = [name for name in spec.names if name not in AXES]
        if odd:
            raise SpecError(f"joints: {odd[0]} is no axis of a twist, expected names among {', '.join(AXES)}")
        if not any(s.kind in MOTION and s.required for s in spec.sensors.values()):
            raise SpecError(f"sensors: a twist mode needs a required one of type {' or '.join(MOTION)}: how it moves")
    if not (math.isfinite(spec.margin) and spec.margin >= 0.0):
        raise SpecError(f"margin is {spec.margin}, expected a finite number >= 0")
    if not (math.isfinite(spec.controller_timeout) and spec.controller_timeout >= 0.0):
        raise SpecError(f"controller_timeout is {spec.controller_timeout}, expected seconds >= 0 (0 = it has none)")
    if spec.mode == VELOCITY and spec.dead_time is None:
        raise SpecError(
            "dead_time is missing: in velocity mode the joints move on for it after a command; measure the time from a "
            "command to the joints' following it (some 0.01 to 0.1 s) and write it down, 0.0 only for a simulation"
        )
    if spec.mode == PD:
        _check_legs(spec)
    if spec.dead_time is not None and not (0.0 <= spec.dead_time <= 1.0):
        raise SpecError(f"dead_time is {spec.dead_time}, expected seconds in [0, 1]")
    _positive(spec.force, "force")
    if not 0.0 <= spec.stiction <= 0.2:
        raise SpecError(f"stiction is {spec.stiction}, expected radians in [0, 0.2]")
    for key in ("sensors", "cameras"):
        for name, sensor in getattr(spec, key).items():
            _positive(sensor.timeout, f"{key}.{name}.timeout")
            if wrong := sensor.wrong():
                raise SpecError(f"{key}.{name}.{wrong}")
    if spec.action.mapping not in MAPPINGS:
        raise SpecError(f"action.mapping is {spec.action.mapping!r}, expected one of {', '.join(MAPPINGS)}")
    if spec.action.mapping != "absolute" and not spec.action.scale:
        raise SpecError(
            f"action.scale is missing: with {spec.action.mapping} an action of 1 would be 1 rad per decision or "
            "second; give what 1 shall mean, e.g. scale: [0.05]"
        )
    for i, scale in enumerate(spec.action.scale):
        _positive(scale, f"action.scale[{i}]")
    if spec.action.scale and len(spec.action.scale) not in (1, len(spec.joints)):
        raise SpecError(f"action.scale has {len(spec.action.scale)} entries, expected 1 or {len(spec.joints)}")
    _check_places(spec)


def _check_legs(spec: RobotSpec) -> None:
    if spec.legs is None or not spec.home:
        raise SpecError("pd mode needs legs: {stop: damp or sit} and the pose `home` that they stand up into")
    weak = [joint.name for joint in spec.joints if not (joint.kp > 0.0 and joint.kd > 0.0)]
    if weak:
        raise SpecError(f"joint {weak[0]} has no kp and kd > 0: in pd mode they go to the driver with each target")
    if spec.legs.stop == "sit" and not spec.rest:
        raise SpecError("legs.stop is sit, and rest is missing: the pose that the robot sits down in")
    if spec.legs.tilt is not None and not spec.imu:
        raise SpecError("legs.tilt needs a sensor of type sensor_msgs/Imu; tilt: null leaves a fall unwatched")
    if spec.legs.stop not in ("damp", "sit"):
        raise SpecError(f"legs.stop is {spec.legs.stop!r}, expected damp or sit")
    for key in ("stop_seconds", "stand_seconds", "tilt"):
        _positive(getattr(spec.legs, key), f"legs.{key}")


def _check_places(spec: RobotSpec) -> None:
    for key, pose in (("home", spec.home), ("rest", spec.rest)):
        if pose and len(pose) != len(spec.joints):
            raise SpecError(f"{key} has {len(pose)} entries, expected {len(spec.joints)}: one per joint")
        lower, upper = spec.bounds() if key == "home" else spec.hard_bounds()
        for name, value, low, high in zip(spec.names, pose, lower, upper):
            if not low <= value <= high:
                of = "limits minus margin" if key == "home" else "its limits"
                raise SpecError(f"{key} of {name} is {value}, expected in [{low:g}, {high:g}]: {of}")
    box = spec.workspace
    if box is not None:
        if len(box.lower) != 3 or len(box.upper) != 3:
            raise SpecError("workspace.lower and workspace.upper need three numbers: x, y, z")
        if not all(low < high for low, high in zip(box.lower, box.upper)):
            raise SpecError(f"workspace.lower is {box.lower}, expected below upper = {box.upper} on every axis")
