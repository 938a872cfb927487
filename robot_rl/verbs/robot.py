"""Cards: robot-rl robot new | show | …, and robot=<card> of every verb that steps an environment."""

from __future__ import annotations

import html
import os
import re
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from omegaconf import DictConfig, OmegaConf

from robot_rl import build, card, policy_card
from robot_rl.types import Options
from robot_rl.types.card import DEFAULTS, OPEN, Card, ModelCard, SensorCard
from robot_rl.types.card_model import with_model
from robot_rl.types.options import NotNegative, Positive
from robot_rl.verbs import answer
from robot_rl.verbs.option_rows import rows
from robot_rl.verbs.reading import read_named
from robot_rl.verbs.robot_calibrate import (
    CalibrateArmOptions,
    CalibrateOptions,
    LeaderOptions,
    MotorsOptions,
    calibrate,
    calibrate_arm,
    leader,
    motors,
)
from robot_rl.verbs.robot_drive import BoundsOptions, SteerOptions, steer, tell_bounds
from robot_rl.words import Refused, near

Mode = Literal["forward_position", "forward_velocity", "forward_effort", "jtc", "joint_command", "twist", "servo", "pd"]


class PolicyOptions(Options):
    """robot-rl robot policy <policy.yaml>: the card of a walking policy, from the description that came with it."""

    robot: str
    """Card of the robot that it moves: its joints are the policy's, in the order of the model."""
    weights: str = ""
    """TorchScript file, beside which the card is written; left out = policy.pt beside the description."""


class NewOptions(Options):
    """robot-rl robot new <model>: what the model's file does not say; left out = asked for, or `?`. In place of a model
    the name of a card that comes with the package, with model=<file>."""

    name: str
    """Of the robot, and of its file ./<name>.yaml."""
    model: str = ""
    """File of the model of a ready card; left out = where the card looks for it."""
    tool: str = ""
    """Site or body that tasks move; left out = guessed by its name."""
    base: str = ""
    """Body below which the arm begins, or that legs carry; left out = the world, or the one with the free joint."""
    policy: str = ""
    """Description of a walking policy (unitree_rl_gym's deploy_mujoco layout): gains and standing pose of the legs."""
    velocity: Positive | None = None
    """Largest speed of joints whose file states none [rad/s]."""
    acceleration: Positive | None = None
    """Largest acceleration of every joint [rad/s2]."""
    effort: Positive | None = None
    """Largest torque of joints whose file states none [N m]."""
    command_mode: Mode | None = None
    """What the controller takes."""
    controller_topic: str | None = None
    """Where commands go; "" = the usual one of the mode."""
    controller_timeout: NotNegative | None = None
    """Seconds after which the controller stops by itself without commands; 0 = never."""
    states: str | None = None
    """Topic of the joint states."""
    imu: str | None = None
    """Topic of the sensor_msgs/Imu of legs, in the frame of the body that they carry."""
    command: str | None = None
    """Topic of the geometry_msgs/Twist that says where legs should walk; left out = the card's, or cmd_vel."""
    stop: Literal["damp", "sit"] | None = None
    """Of legs, after a fault, an e-stop or a lost command."""
    estop: Literal["brake", "zero", "halt"] | None = None
    """What an emergency stop sends."""


_STYLE = (
    "body{font:15px sans-serif;margin:2em;max-width:70em} td{padding:.2em .8em;text-align:right} "
    "tr:first-child{font-weight:bold} figure{display:inline-block;margin:0 1em 1em 0} img{width:30em}"
)
QUESTIONS = {
    "velocity": "largest joint speed [rad/s], where the model's file states none",
    "acceleration": "largest joint acceleration [rad/s2]",
    "effort": "largest joint torque [N m], where the model's file states none",
    "command_mode": "controller: jtc, joint_command, forward_position, forward_velocity, forward_effort",
    "controller_topic": "its topic",
    "controller_timeout": "seconds after which it stops by itself without commands (0 = never)",
    "states": "topic of the joint states, such as joint_states",
    "estop": "emergency stop: brake, zero or halt",
    "imu": "topic of the IMU, such as imu",
    "stop": "legs after a fault, an e-stop or a lost command: damp or sit",
}
OF_LEGS = ("imu", "stop", "command")


@answer.code_of
def robot(arguments: list[str]) -> None:
    """What is asked of a card."""
    verbs = {"new": _new, "show": _show, "safety": _safety, "policy": _policy}
    verbs |= {"bounds": tell_bounds, "calibrate": calibrate, "steer": steer}
    verbs |= {"calibrate-arm": calibrate_arm, "motors": motors, "leader": leader}
    verb = arguments[0] if arguments else ""
    if {"-h", "--help"} & set(arguments):
        print(_page(verb))
        return
    if verb not in verbs:
        raise Refused(f"robot-rl robot {'|'.join(verbs)}; there is no '{verb}'{near(verb, verbs)}")
    verbs[verb](arguments[1:])


def _page(verb: str) -> str:
    """What a line takes, out of the classes of its options."""
    models = {"new": NewOptions, "policy": PolicyOptions, "bounds": BoundsOptions, "calibrate": CalibrateOptions}
    models |= {
        "steer": SteerOptions,
        "calibrate-arm": CalibrateArmOptions,
        "motors": MotorsOptions,
        "leader": LeaderOptions,
    }
    model = models.get(verb)
    if model is None:
        verbs = "|".join(["new", "show", "safety", *list(models)[1:]])
        return f"robot-rl robot {verbs}; pages of options: {', '.join(models)}"
    assert model.__doc__ is not None
    return "\n".join([model.__doc__.strip(), "", "Options:", *rows(model, "")])


def _new(arguments: list[str]) -> None:
    say = (
        "model: robot-rl robot new <robot.urdf | robot.xml | menagerie:franka_fr3> name=my_arm, or which "
        f"card of this package: robot-rl robot new <{' | '.join(card.ready())}> name=my_arm model=<file>"
    )
    model, options = read_named(NewOptions, arguments, "robot new", say)
    if not re.fullmatch(r"\w[\w.-]*", options.name):
        raise Refused(
            f"name={options.name}: expected letters, digits, _, - and . only, since files and runs are called so; the "
            "card is written here"
        )
    path = Path(f"{options.name}.yaml")
    if path.exists():
        raise Refused(f"{path} exists; take another name= or remove it")
    made, notes = (_of_ready if model in card.ready() else _of_model)(model, options)
    if options.policy:
        made = policy_card.standing(made, policy_card.read_description(Path(options.policy)))
        notes = [note for note in notes if not note.startswith(("home is", "kp and kd"))]
    made, doubts = _without_placeholders(made)
    for note in (*notes, *doubts):
        print(f"  {note}")
    given = options.model_dump(exclude_none=True)
    if made.legs is None and (wrong := [key for key in OF_LEGS if key in given and key not in made.sensors]):
        raise Refused(f"{wrong[0]}= is for robots on legs, and {model} is none; leave it out")
    if sys.stdin.isatty() and sys.stdout.isatty():
        given = options.model_validate(given | _ask(made, given)).model_dump(exclude_none=True)
    made = _with(made, given)
    card.write(made, path)
    if made.legs is not None:
        what = f"{len(made.joints)} joints, legs of {made.base}"
    elif not made.tool:
        what = f"a base that takes velocities: {', '.join(joint.name for joint in made.joints)}"
    else:
        what = f"{len(made.joints)} joints, {'a' if made.gripper is not None else 'no'} gripper, tool {made.tool}"
    print(f"{path}: {what}, home {' '.join(f'{x:g}' for x in made.home)}")
    left = made.open_keys()
    answer.note(card=str(path), open=list(left))
    if left:
        print(f"  still ? (nothing is deployed before they are known): {_few(left)}")


def _without_placeholders(made: Card) -> tuple[Card, list[str]]:
    """The card with `?` for limits that its file states only because a URDF has to, and what is to be said of them."""
    most = build.tool("real.core.spec:PLAUSIBLE")["velocity"]  # the supervisor would not begin with more
    false = [joint.name for joint in made.joints if joint.velocity != OPEN and float(joint.velocity) > most]
    if not false:
        return made, []
    joints = tuple(
        joint.model_copy(update={"velocity": OPEN, "effort": OPEN}) if joint.name in false else joint
        for joint in made.joints
    )
    stated = max(float(joint.velocity) for joint in made.joints if joint.name in false)
    said = (
        f"the file lets {_few(false)} turn at up to {stated:g} rad/s, and more than {most:g} is no speed of a robot: "
        "it states no real limits there, so velocity and effort are ?; velocity=, effort= or the card say them"
    )
    return made.model_copy(update={"joints": joints}), [said]


def _of_model(model: str, options: NewOptions) -> tuple[Card, list[str]]:
    """The card of a model that nobody has met."""
    if options.model:
        raise Refused(
            f"model= goes with the name of a card that comes with the package ({', '.join(card.ready())}), and {model} "
            "is none"
        )
    if not {".", "/", ":"} & set(model):
        raise Refused(
            f"'{model}' is no file of a model (URDF or MJCF) and none of the cards of this package, which are "
            f"{', '.join(card.ready())}{near(model, card.ready())}"
        )
    legs = None if options.tool else build.tool("sim.legs_card:new_legs_card")(model, options.name, base=options.base)
    if legs is None and options.policy:
        raise Refused(f"policy= is for a robot on legs, and {model} has a fixed base")
    return legs or build.tool("sim.robot_card:new_card")(model, options.name, tool=options.tool, base=options.base)


def _of_ready(ready: str, options: NewOptions) -> tuple[Card, list[str]]:
    """A card that comes with the package, on this machine's copy of the model."""
    if options.tool or options.base:
        raise Refused(f"the ready card {ready} has its tool and base; write them into {options.name}.yaml")
    found = card.read(ready)
    if options.model and not Path(options.model).expanduser().is_file():
        raise Refused(f"model={options.model}: there is no such file; expected a copy of {Path(found.model.path).name}")
    if options.model:
        found = with_model(found, Path(options.model).expanduser().resolve())
    path = card.need_model(found).model.path
    own = ModelCard(path=path, sha256=build.tool("sim.robot_model:digest")(path))
    found = found.model_copy(update={"name": options.name, "model": own})
    return found, build.tool("sim.card_scene:fit")(found)


def _ask(made: Card, given: Mapping[str, object]) -> dict[str, object]:
    """Answers of whoever sits at the terminal; nothing = `?`."""
    answers: dict[str, object] = {}
    for key, question in QUESTIONS.items():
        stated = key in DEFAULTS and all(x != OPEN for joint in made.joints for x in (joint.model_dump()[key],))
        if key in given or stated or (key in OF_LEGS and made.legs is None):
            continue
        if key == "command_mode" and made.command_mode != OPEN:
            continue
        answer = input(f"{question} [?]: ").strip()
        if answer and answer != OPEN:
            answers[key] = answer
    return answers


def _with(made: Card, given: dict[str, Any]) -> Card:
    """A card with what was given in the places that the model left open."""
    limits = {key: given[key] for key in DEFAULTS if key in given}
    joints = tuple(
        joint.model_copy(update={key: value for key, value in limits.items() if joint.model_dump()[key] == OPEN})
        for joint in made.joints
    )
    update: dict[str, object] = {"joints": joints}
    update |= {key: given[key] for key in ("command_mode", "controller_topic", "controller_timeout") if key in given}
    if "estop" in given:
        update["estop"] = made.estop.model_copy(update={"action": given["estop"]})
    if made.gripper is not None and "effort" in limits and made.gripper.effort == OPEN:
        update["gripper"] = made.gripper.model_copy(update={"effort": limits["effort"]})
    sensors = made.sensors or {"joints": SensorCard(type="sensor_msgs/JointState")}
    if made.legs is not None and not made.sensors:
        sensors["imu"] = SensorCard(type="sensor_msgs/Imu")
        sensors["command"] = SensorCard(topic="cmd_vel", type="geometry_msgs/Twist", required=False, timeout=0.5)
    told = {"joints": given.get("states"), "imu": given.get("imu"), "command": given.get("command")}
    update["sensors"] = {
        name: sensor.model_copy(update={"topic": told[name]}) if told.get(name) is not None else sensor
        for name, sensor in sensors.items()
    }
    if made.legs is not None and "stop" in given:
        update["legs"] = made.legs.model_copy(update={"stop": given["stop"]})
    return made.model_copy(update=update)


def _policy(arguments: list[str]) -> None:
    """Write the card of a walking policy beside its weights."""
    say = "description: robot-rl robot policy <policy.yaml> robot=g1"
    name, options = read_named(PolicyOptions, arguments, "robot policy", say)
    description = Path(name)
    weights = Path(options.weights) if options.weights else description.parent / "policy.pt"
    file = policy_card.write(description, weights, card.read(options.robot))
    answer.note(card=str(file))
    told = "" if weights.suffix == ".onnx" else ". The weights are a program; deploy runs them with trust=true"
    print(f"{file}: what {weights.name} sees and does{told}")


def _one(arguments: list[str], verb: str) -> Card:
    if len(arguments) != 1 or "=" in arguments[0]:
        raise Refused(f"say which card: robot-rl robot {verb} <name or path of its YAML>")
    return card.read(arguments[0])


def _show(arguments: list[str]) -> None:
    found = _one(arguments, "show")
    pictures, told = build.tool("sim.card_pictures:pictures")(card.need_model(found))
    page = Path(f"{found.name}.html")
    body = f"<h1>{html.escape(found.name)}</h1>"
    for text, data in pictures:
        body += f'<figure><img src="data:image/png;base64,{data}"><figcaption>{html.escape(text)}</figcaption></figure>'
    rows: list[tuple[object, ...]] = [("joint", "lower", "home", "upper", "velocity", "acceleration", "effort")]
    for joint, home in zip(found.joints, found.home):
        limits = (joint.velocity, joint.acceleration, joint.effort)
        rows.append((joint.name, joint.lower, home, joint.upper, *limits))
    cells = ("".join(f"<td>{html.escape(_cell(value))}</td>" for value in row) for row in rows)
    body += f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
    body += f"<p>Still ?: {html.escape(_few(found.open_keys(), 30) or 'none')}</p>"
    body += f"<pre>{html.escape(yaml.safe_dump(card.to_table(found), sort_keys=False))}</pre>"
    page.write_text(f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style>{body}", encoding="utf-8")
    for line in told:
        print(f"  {line}")
    answer.note(page=str(page))
    print(page)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(page.resolve().as_uri())


def _safety(arguments: list[str]) -> None:
    """The limits and parameters that the supervisor takes from a card, as YAML."""
    found = _one(arguments, "safety")
    spec, parameters = build.tool("real.core.spec:of_card")(found)
    table = {"robot_spec": spec, "safety_supervisor": parameters}
    answer.note(**table)
    print(yaml.safe_dump(table, sort_keys=False, default_flow_style=None, width=120), end="")


def put_card(cfg: DictConfig) -> None:
    """Put the card that `robot=` names into the world of a configuration; changed in place.

    Raises:
        Refused: an environment that takes no card, or a card that cannot be used.
    """
    if not cfg.get("robot"):
        return
    over_ros = cfg.get("env") is not None and "world" in (cfg.env.get("port") or {})
    if cfg.get("env") is not None and not over_ros and "robot" not in (cfg.env.get("world") or {}):
        what = (cfg.env.get("world") or {}).get("name") or cfg.env.get("engine")
        raise Refused(
            f"robot={cfg.robot}: {what} is made for one robot; env=reach takes any arm with a card, env=pick and "
            "env=insert one with a gripper, env=walk one on legs"
        )
    try:
        found = card.need_model(card.read(str(cfg.robot)))
    except card.CardError as error:
        raise Refused(str(error)) from error
    now = build.tool("sim.robot_model:digest")(found.model.path)
    if found.model.sha256 and now and now != found.model.sha256:
        print(
            f"  note: {found.model.path} is not the file that the card {cfg.robot} was written from (another SHA-256)"
        )
    found = found.model_copy(update={"model": found.model.model_copy(update={"sha256": now})})
    for key in ("velocity", "effort"):
        taken = zip(found.joints, found.limit(key), strict=True)
        unstated = {joint.name: limit for joint, limit in taken if joint.model_dump()[key] == OPEN}
        if unstated:
            values = " to ".join(
                dict.fromkeys(f"{limit:.4g}" for limit in (min(unstated.values()), max(unstated.values())))
            )
            print(f"  {key} of {_few(list(unstated))} is ? in the card: simulation takes {values}")
    # Every key, also those that are null: an older card in a saved run is replaced as a whole.
    whole = {"robot": found.model_dump(mode="json")}
    if over_ros:  # the world's terms on the robot behind topics, which the same card describes
        port = {**cfg.env.port, "options": {**(cfg.env.port.options or {}), **whole}}
        table = OmegaConf.create({"robot_spec": str(card.find(str(cfg.robot))), "port": port})
    else:
        table = OmegaConf.create({"world": whole})
    cfg.env = table if cfg.get("env") is None else OmegaConf.merge(cfg.env, table)


def _cell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)


def _few(items: list[str], most: int = 6) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")
