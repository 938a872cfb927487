"""The processes of a robot as one list: `robot-rl deploy` starts it, launch/*.launch.py map it to launch actions."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from robot_rl import card
from robot_rl.leapp_bundle import bundle_of, read_bundle
from robot_rl.real.core.spec import RobotSpec, SpecError, of_card
from robot_rl.real.operator import refuse_hands
from robot_rl.tables import TableError, read_table
from robot_rl.types.card import Card
from robot_rl.types.card_model import READY
from robot_rl.types.options import Bound, Count, Positive, Whole
from robot_rl.types.policy_card import FILE

BOUNDS = ("action_low", "action_high")
TELEOP = ("none", "joy", "twist", "leader")
EXECUTABLES = {
    "sim_robot": "sim_robot_node",
    "servo_arm": "servo_arm_node",
    "safety_supervisor": "safety_supervisor_node",
    "policy": "policy_node",
    "teleop": "teleop_node",
    "follow_trajectory": "follow_trajectory_node",
    "recorder": "recorder_node",
}
"""Node name -> executable, of `robot_rl.nodes`."""
ORDER = (
    ("policy", "teleop", "follow_trajectory", "safety_supervisor"),
    ("sim_robot", "servo_arm"),
    ("recorder",),
)
"""Who ends at once, in the order of ending: sources and the supervisor, which brakes, then the robot, and the recorder
sees it all."""
LIFECYCLE = ("safety_supervisor", "policy")
RAW_PROFILE = "fastdds_shm.xml"
"""Fast DDS profile of processes that send or read raw pictures."""
PRIORITY = 40
"""SCHED_FIFO priority of control loops, below the 50 of ros2_control."""


class GraphError(ValueError):
    """Arguments that make no graph; the message names the argument and what it should be."""


@dataclass(frozen=True)
class GraphArgs:
    """What can be chosen; launch files declare the same names.

    Args:
        robot_spec: path of the RobotSpec YAML.
        sim: simulate the robot.
        world: world of the simulated robot, e.g. reach.
        world_options: arguments of the world, JSON.
        model: MuJoCo model of the robot: simulation without a world, workspace and twists.
        policy_path: run or checkpoint folder, LEAPP bundle, or a policy of others with its card; empty = none.
        policy_root: folder that policies must lie in.
        trust: run a method of somebody's own that the run folder names, or TorchScript: they are programs.
        action: normalised: -1 and +1 of the log that the policy comes from are the robot's own bounds.
        action_low: lower bound of that log's actions where the checkpoint does not tell, a number or a list.
        action_high: upper bound.
        teleop: none, joy, twist or leader.
        follow_trajectory: offer the action FollowJointTrajectory, in place of a policy; needs control_msgs.
        record: record the session.
        record_folder: folder that recordings go to.
        namespace: of every node and topic.
        params_file: YAML of ROS parameters, `/**` or node names on top.
        use_sim_time: stamps from /clock, which the simulated robot publishes then.
        realtime: SCHED_FIFO where it is allowed.
        autostart: configure and activate lifecycle nodes at once.
        auto_arm: enable the robot at once; in simulation only.
        allow_external: accept foreign command topics.
        chunk_steps: points per chunk of the policy, 1 = steps.
        rate: ticks per second of supervisor, policy and simulated robot.
        seed: of the simulation.
        log_level: debug, info, warn or error.
        enclave: SROS2 enclaves lie below this name, one per node, e.g. / for /policy; empty = none.
        flight: folder of flight recordings, one file per deployment of supervisor and policy; empty = none.
        propose: the policy proposes and moves nothing; what the robot tells is compared with its training.
        checked: on a real robot a policy drives only once such a comparison of it has come out clean.
    """

    robot_spec: str
    sim: bool = True
    world: str = ""
    world_options: str = "{}"
    model: str = ""
    policy_path: str = ""
    policy_root: str = ""
    trust: bool = False
    action: Literal["", "normalised"] = ""
    action_low: Bound | None = None
    action_high: Bound | None = None
    teleop: Literal["none", "joy", "twist", "leader"] = "none"
    follow_trajectory: bool = False
    record: bool = False
    record_folder: str = "runs/record"
    namespace: str = ""
    params_file: str = ""
    use_sim_time: bool = False
    realtime: bool = True
    autostart: bool = True
    auto_arm: bool = False
    allow_external: bool = False
    chunk_steps: Count = 1
    rate: Positive = 100.0
    seed: Whole = 0
    log_level: Literal["debug", "info", "warn", "error"] = "info"
    enclave: str = ""
    flight: str = "runs/flight"
    propose: bool = False
    checked: bool = True


@dataclass(frozen=True)
class NodeSpec:
    """One process.

    Args:
        name: of the node.
        executable: of the package robot_rl.
        namespace: of the node.
        parameters: ROS parameters, after those of `params_file`.
        params_file: YAML of parameters, or "".
        restart: `never` or `failure`.
        essential: when it ends, everything ends.
        lifecycle: whether it is a lifecycle node.
        grace: seconds that it may take to end before it is killed.
        finishes: it moves nothing, and is left to end by itself where that takes longer.
        log_level: of its logger.
        enclave: of its keys, or "".
    """

    name: str
    executable: str
    namespace: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    params_file: str = ""
    restart: str = "never"
    essential: bool = False
    lifecycle: bool = False
    grace: float = 1.0
    finishes: bool = False
    log_level: str = "info"
    enclave: str = ""

    def arguments(self) -> list[str]:
        """Command line for the executable: `--ros-args …`."""
        out = ["--ros-args", "--log-level", self.log_level, "-r", f"__node:={self.name}"]
        if self.namespace:
            out += ["-r", f"__ns:=/{self.namespace.strip('/')}"]
        if self.enclave:
            out += ["--enclave", self.enclave]
        if self.params_file:
            out += ["--params-file", self.params_file]
        for key, value in self.parameters.items():
            out += ["-p", f"{key}:={_literal(value)}"]
        return out


def graph(args: GraphArgs) -> list[NodeSpec]:
    """The processes for these arguments, in the order of starting.

    Raises:
        GraphError: names the argument.
    """
    args = replace(args, robot_spec=find_file(args.robot_spec), params_file=find_file(args.params_file))
    _check(args)
    shared: dict[str, object] = {"robot_spec": str(Path(args.robot_spec).expanduser().resolve())}
    if args.use_sim_time:
        shared["use_sim_time"] = True
    priority = PRIORITY if args.realtime else 0
    robot_card = _card(args.robot_spec)
    made: list[NodeSpec] = []

    def add(name: str, parameters: Mapping[str, object], **rest: Any) -> None:
        made.append(
            NodeSpec(
                name,
                EXECUTABLES[name],
                args.namespace,
                {**shared, **parameters},
                args.params_file,
                lifecycle=name in LIFECYCLE,
                log_level=args.log_level,
                enclave=f"{args.enclave.rstrip('/')}/{name}" if args.enclave else "",
                **rest,
            )
        )

    if args.sim:
        robot: dict[str, object] = {"rate": args.rate, "seed": args.seed, "realtime": priority}
        if args.world:
            robot |= {"world": args.world, "world_options": _world_options(args, robot_card)}
        elif args.model:
            robot["model"] = args.model
        if robot_card is not None and (robot_card.legs is not None or args.world):
            _require_model(robot_card)
        if robot_card is not None and robot_card.legs is not None:
            robot |= {"model": robot_card.model.path, "base": robot_card.base}
        if args.use_sim_time:
            robot["publish_clock"] = True
        add("sim_robot", robot, essential=True, grace=0.4)
        if args.use_sim_time:  # it makes the time and must not wait for it
            made[-1].parameters.pop("use_sim_time")
    elif robot_card is not None and robot_card.servos is not None:
        add("servo_arm", {"rate": args.rate, "realtime": priority}, essential=True, grace=1.0)
    flight = {"flight": str(Path(args.flight).expanduser().resolve())} if args.flight else {}
    supervisor: dict[str, Any] = {"rate": args.rate, "realtime": priority, "autostart": args.autostart, **flight}
    if robot_card is not None:
        supervisor |= of_card(robot_card)[1]
    if args.model:
        supervisor["model"] = args.model
    if args.auto_arm:
        supervisor["auto_arm"] = True
    if args.allow_external:
        supervisor["allow_external"] = True
    add("safety_supervisor", supervisor, essential=True, grace=1.4)  # it brakes for a second at most
    if args.policy_path:
        policy: dict[str, object] = {
            "policy_path": str(Path(args.policy_path).expanduser().resolve()),
            "rate": args.rate,
            "realtime": priority,
            "autostart": args.autostart,
            "chunk_steps": args.chunk_steps,
            "trust": args.trust,
            **flight,
        }
        if args.propose or (args.checked and not args.sim):
            policy |= {"propose": args.propose, "shadow": flight["flight"]}
        if args.policy_root:
            policy["policy_root"] = str(Path(args.policy_root).expanduser().resolve())
        if args.action:
            policy["action"] = args.action
        ends = {"action_low": args.action_low, "action_high": args.action_high}
        policy |= {name: json.dumps(value) for name, value in ends.items() if value is not None}
        add("policy", policy)
    if args.teleop != "none":
        steering = {"mode": args.teleop, "realtime": priority, **({"model": args.model} if args.model else {})}
        add("teleop", steering, restart="failure")
    if args.follow_trajectory:
        add("follow_trajectory", {"rate": args.rate, "realtime": priority})
    if args.record:
        add("recorder", {"folder": str(Path(args.record_folder).expanduser().resolve())}, grace=5.0, finishes=True)
    return made


def _card(path: str) -> Card | None:
    """The card in a robot's file, or None where it is a plain RobotSpec."""
    return card.read(path) if card.is_card(_parameters(path, "robot_spec")) else None


def _require_model(robot_card: Card) -> Card:
    """The card, whose model is there to be simulated."""
    try:
        return card.need_model(robot_card)
    except card.CardError as error:
        raise GraphError(str(error)) from error


def _world_options(args: GraphArgs, robot_card: Card | None) -> str:
    """What the simulated world is made with: on a card's robot unless the options say another."""
    if robot_card is None:
        return args.world_options
    return json.dumps({"robot": robot_card.model_dump(mode="json"), **json.loads(args.world_options or "{}")})


def find_file(name: str) -> str:
    """Path of a YAML file: as given, by bare name in the current folder, or of those that come with the package.

    Returns:
        The path found, or `name` as it was.
    """
    if not name or Path(name).expanduser().is_file() or "/" in name:
        return name
    file = name if name.endswith((".yaml", ".xml")) else f"{name}.yaml"
    if Path(file).is_file():
        return file
    prefixes = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix]
    places = [Path(__file__).resolve().parents[1] / "launch" / "params"]
    places += [Path(prefix) / "share" / "robot_rl" / "config" for prefix in prefixes if prefix]
    places.append(READY)
    return next((str(place / file) for place in places if (place / file).is_file()), name)


def cameras_of(name: str) -> tuple[str, ...]:
    """Names of the cameras of a robot.

    Args:
        name: of its file, as `find_file` takes it.
    """
    return tuple(RobotSpec.load(find_file(name)).cameras)


def environment(base: Mapping[str, str] | None = None, *, sim: bool) -> dict[str, str]:
    """Environment for the processes: one BLAS thread, what ROS's discovery may reach, and how raw pictures travel.

    Args:
        base: to start from; None = that of this process. What it says already stays.
        sim: the robot is simulated: discovery stays on this machine. The driver of a real one may run on the robot's
            computer, which discovery has to reach: then ROS's own default holds.
    """
    made = dict(os.environ if base is None else base)
    if sim:
        made.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        made.setdefault(name, "1")
    profile = find_file(RAW_PROFILE)  # raw camera images do not pass Fast DDS's defaults
    if "FASTRTPS_DEFAULT_PROFILES_FILE" not in made and Path(profile).is_file():
        made.setdefault("FASTDDS_DEFAULT_PROFILES_FILE", profile)
    return made


def has_card(path: Path) -> bool:
    """Whether a policy of others lies here, a folder or a file, with what says what it means: a card, or its bundle."""
    zipped = path.suffix == ".zip" and (path.parent / "io.json").is_file()
    return path.exists() and (_card_of(path).is_file() or bundle_of(path) is not None or zipped)


def is_program(path: Path) -> bool:
    """Whether card or bundle says that the policy is one; what they say else their readers judge."""
    if path.suffix == ".zip":  # of stable-baselines3: tensors are read of it, and nothing else
        return False
    if _card_of(path).is_file():
        return _parameters(str(_card_of(path)), FILE).get("format") != "onnx"
    file = bundle_of(path)
    return file is not None and bool(read_bundle(file).programs)


def _card_of(path: Path) -> Path:
    return (path if path.is_dir() else path.parent) / FILE


def holds_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint, or a run or a checkpoints folder with a complete one in it."""
    found = [folder, *folder.glob("step_*"), *folder.glob("checkpoints/step_*")]
    return any(
        ((one / "meta.json").is_file() and (one / "policy.pt").is_file()) or (one / "policy.onnx").is_file()
        for one in found
    )


def _parameters(path: str, what: str = "params_file") -> dict[str, Any]:
    """What a file of ROS parameters, or of a robot, says.

    Raises:
        GraphError: not YAML, a key that stands twice, or no table of nodes.
    """
    try:
        return read_table(Path(path).expanduser())
    except TableError as error:
        begins = "bridge" if what == "params_file" else "desk_arm"
        raise GraphError(f"{what} {error}; it begins as launch/params/{begins}.yaml does") from error


def _check(args: GraphArgs) -> None:
    if not args.robot_spec:
        raise GraphError("robot_spec is empty; give the path of the robot's YAML, e.g. robot_spec=arm.yaml")
    for name, path in (("robot_spec", args.robot_spec), ("params_file", args.params_file)):
        if path and not Path(path).expanduser().is_file():
            raise GraphError(f"{name} is {path}, which is no file")
    if args.params_file:
        _parameters(args.params_file)
    if args.policy_path.endswith(".zip") and not has_card(Path(args.policy_path).expanduser()):
        raise GraphError(
            f"policy_path {args.policy_path} is a zip of stable-baselines3, which does not say what its numbers mean: "
            "it needs the io.json of its interface beside it; robot-rl export policy=sb3 writes one, with a graph"
        )
    for name, path in (("policy_path", args.policy_path), ("policy_root", args.policy_root)):
        if path and not Path(path).expanduser().is_dir() and not (name == "policy_path" and has_card(Path(path))):
            raise GraphError(f"{name} is {path}, which is no folder")
    if args.policy_path and has_card(Path(args.policy_path).expanduser()):
        if not args.trust and is_program(Path(args.policy_path).expanduser()):
            raise GraphError(
                f"policy_path {args.policy_path} is TorchScript, a program that runs with your rights; if you trust "
                "whoever wrote it, add trust=true"
            )
    elif args.policy_path and not holds_checkpoint(Path(args.policy_path).expanduser()):
        raise GraphError(
            f"policy_path {args.policy_path} holds no complete checkpoint; give a run folder in which a training has "
            "saved one (runs/train/<run>), one of its checkpoints/step_… folders, or TorchScript weights with their "
            f"card {FILE} (robot-rl robot policy writes it)"
        )
    if args.policy_path and args.follow_trajectory:
        raise GraphError("policy_path and follow_trajectory both speak as the policy, and one may: leave one out")
    if args.auto_arm and args.follow_trajectory:
        raise GraphError(
            "auto_arm waits for a first command, and follow_trajectory takes no goal before the robot is enabled: "
            "leave auto_arm out, and call /safety_supervisor/enable"
        )
    robot_card = _card(args.robot_spec)
    if robot_card is not None and robot_card.legs is not None and args.teleop != "none":
        raise GraphError(
            f"teleop={args.teleop} moves joints or a tool; {robot_card.name} walks: leave it out, and tell its policy "
            "where to on the Twist topic of its card, such as with teleop_twist_keyboard"
        )
    if args.teleop not in TELEOP:
        raise GraphError(f"teleop is {args.teleop!r}, expected one of {', '.join(TELEOP)}")
    if args.teleop != "none":
        with suppress(SpecError):  # the supervisor says what is wrong with a spec
            spec = RobotSpec.load(find_file(args.robot_spec))
            if refused := refuse_hands(args.teleop, spec):
                raise GraphError(refused)
    if (args.action_low is None) != (args.action_high is None):
        raise GraphError(f"action_low is {args.action_low} and action_high {args.action_high}; give both or neither")
    if args.propose and not args.policy_path:
        raise GraphError("propose=true compares a policy with a robot; give policy_path=<run folder>")
    if args.policy_path and not args.flight and (args.propose or (args.checked and not args.sim)):
        raise GraphError(
            "what is compared before the first motion is written into, and read from, the folder of flights, and "
            "flight= is empty: leave it out, or say checked=false to drive a real robot unchecked"
        )
    if args.auto_arm and not args.sim:
        raise GraphError("auto_arm is for simulation only: a real robot is enabled by a person")
    if args.world and not args.sim:
        raise GraphError("world belongs to the simulated robot; leave it out with sim=false")
    if args.use_sim_time and not args.sim:
        raise GraphError("use_sim_time needs the simulated robot, which publishes /clock")
    if args.world and args.model:
        raise GraphError("give world or model for the simulated robot, not both")
    if not args.rate > 0.0 or args.chunk_steps < 1:
        raise GraphError(f"rate is {args.rate} and chunk_steps {args.chunk_steps}, expected > 0 and >= 1")


def from_strings(values: Mapping[str, str]) -> GraphArgs:
    """Arguments from texts, as launch and the command line have them.

    Raises:
        GraphError: an unknown name, or a text that is no number or truth value.
    """
    kinds = {
        item.name: "str" if item.name == "robot_spec" else type(item.default).__name__ for item in fields(GraphArgs)
    }
    made: dict[str, object] = {}
    for name, text in values.items():
        if name in BOUNDS:
            made[name] = bound(name, text)
            continue
        if name not in kinds:
            raise GraphError(f"{name} is no argument; they are {', '.join(kinds)}")
        kind = kinds[name]
        try:
            if kind == "bool":
                made[name] = {"true": True, "false": False}[text.lower()]
            else:
                made[name] = {"float": float, "int": int, "str": str}[kind](text)
        except (KeyError, ValueError) as error:
            wanted = "true or false" if kind == "bool" else "a number"
            raise GraphError(f"{name} is {text!r}, expected {wanted}") from error
    return GraphArgs(**{"robot_spec": "", **made})


def bound(name: str, text: str) -> float | tuple[float, ...] | None:
    """A bound of actions from a text: a number, or a list [-1,-2] with one for each; None where it is empty.

    Raises:
        GraphError: it is neither.
    """
    try:
        value = json.loads(text or "null")
        return tuple(float(x) for x in value) if isinstance(value, list) else None if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{name} is {text!r}, expected a number or a list such as [-1.0,-2.0]") from error


def _literal(value: object) -> str:
    return json.dumps(value)  # YAML reads JSON; texts must be quoted, or "1" would become a number
