"""Names and options become objects: the only place (beside `extras`) that imports by name.

Configuration is data. A node says `name` (a world's node `engine` and `world`) and options; a name leads to one file of
our rooms, to an entry point of an installed package, or to a class of the user's own that stood on the command line or
was trusted aloud. Nothing that is read from a folder can name anything else: no word of a run is executed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module, resources
from importlib.metadata import EntryPoints, entry_points
from typing import Any, TypeVar, cast, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from typing_extensions import is_protocol

from robot_rl import extras
from robot_rl.types import Learner, Options, Port
from robot_rl.words import Refused, describe_field, near, option_error

PLACES: dict[str, dict[str, str]] = {
    "policy": {
        "leapp": "robot_rl.leapp_policy:LeappPolicy",
        "onnx": "robot_rl.onnx_policy:OnnxPolicy",
        "sb3": "robot_rl.policies.online.sb3_zip:Sb3Policy",
        "vla/folder": "robot_rl.policies.vla.player:from_folder",
    },
    "world": {},
    "engine": {
        "array": "robot_rl.sim.array_env:ArrayVectorEnv",
        "gym": "robot_rl.sim.gym_env:make",
        "gym_hil": "robot_rl.sim.gym_hil:make",
        "isaac": "robot_rl.sim.isaac_env:make",
        "isaac_lab": "robot_rl.sim.isaac_lab_env:make",
        "mujoco": "robot_rl.sim.mujoco_env:make",
        "ros2": "robot_rl.real.ros.env_vector:make",
        "shown_goal": "robot_rl.verbs.shown_goal:make",
        "text": "robot_rl.sim.text:TextVectorEnv",
        "warp": "robot_rl.sim.warp_env:make",
    },
    "port": {"world_task": "robot_rl.sim.robot_task:world_task"},
    "human": {
        "browser": "robot_rl.human.devices.browser:BrowserTeleop",
        "gamepad": "robot_rl.human.devices.gamepad:make",
        "keyboard": "robot_rl.human.devices.keyboard:make",
        "ros": "robot_rl.human.devices.ros:RosTeleop",
        "scripted": "robot_rl.human.devices.scripted:ScriptedHuman",
    },
    "pilot": {"simulated": "robot_rl.human.pilot:simulated_pilot"},
    "rewarder": {
        "annotator": "robot_rl.policies.reward.annotator:annotator",
        "contrast": "robot_rl.policies.reward.contrast:contrast",
        "critic": "robot_rl.policies.reward.critic_reward:CriticReward",
        "program": "robot_rl.policies.reward.program:ProgramReward",
    },
    "critic": {
        "in_context": "robot_rl.policies.vla.context:ContextLearner",
        "tiny": "robot_rl.policies.vla.critic:CriticLearner",
    },
    "classifier": {"success": "robot_rl.policies.reward.success:SuccessClassifier"},
    "preference": {"reward": "robot_rl.policies.reward.preference:RewardEnsemble"},
    "pictures_reward": {"cnn": "robot_rl.policies.reward.picture_preference:PictureReward"},
    "compatibility": {"clones": "robot_rl.policies.human.compatibility:Compatibility"},
    "ope": {
        "fqe": "robot_rl.policies.offline.fqe:Fqe",
        "model": "robot_rl.policies.offline.model_value:ModelValue",
    },
    "encoder": {
        "frozen": "robot_rl.policies.encoders.frozen:Frozen",
        "robot": "robot_rl.policies.encoders.robot:RobotEncoder",
        "selftrained": "robot_rl.policies.encoders.selftrained:SelfTrained",
    },
    "track": {"files": "robot_rl.track:files", "wandb": "robot_rl.track:wandb"},
    "clips": {"tabletop": "robot_rl.sim.worlds.tabletop_clips:TabletopClips"},
    "graph": {"processes": "robot_rl.real.graph:GraphArgs"},
}
"""Kind of thing -> name -> where it is. Policies and worlds are also found by the file that is named."""

ROOMS = {"policy": "robot_rl.policies", "world": "robot_rl.sim.worlds"}
"""Kinds whose names are files of a room."""

ENTRY_POINTS = {"policy": "robot_rl.policies", "world": "robot_rl.worlds"}
"""Groups under which an installed package registers its own."""


GIVEN = {"io", "seed", "device", "gamma", "num_envs", "render_mode"}
"""Arguments that whoever builds a thing passes: no options of it."""

GIVEN_TO = {
    "policy": {"path", "options"},
    "port": {"make_world"},
    "human": {"expert", "listen"},
    "pilot": {"env", "human"},
    "rewarder": {"judge"},
    "preference": {"state", "action"},
    "pictures_reward": {"goals", "image_size"},
    "ope": {"target", "policy", "deterministic"},
    "compatibility": {"states", "actions", "control_hz"},
    "track": {"folder", "resume_step", "config"},
}
"""The same, of single kinds."""

NESTED = {"world": "world", "port": "port"}
"""Options of an environment that are nodes themselves, and their kinds."""

M = TypeVar("M", bound=BaseModel)
NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")


def tool(place: str) -> Any:
    """What a verb uses of a room that is loaded only where it is needed: a module, or `<module>:<name>` of it."""
    return _load(f"robot_rl.{place}")


def find(kind: str, name: str) -> Callable[..., Any]:
    """What a name of a kind means: a class or a function that makes one.

    Raises:
        Refused: there is no such name, or it names code outside our rooms and was not given on the command line.
    """
    if ":" in name:
        found = extras.own(name, f"{kind}=")
        if kind == "policy" and not (isinstance(found, type) and issubclass(found, Learner)):
            raise Refused(f"{name} is no learner; a method inherits from robot_rl.types.Learner (docs/add_a_method.md)")
        return found
    if not NAME.fullmatch(name):
        example = {"policy": "online/sac", "world": "reach"}.get(kind) or next(iter(PLACES[kind]))
        raise Refused(f"{kind}: '{name}' is no name; expected one such as {example}")
    if name in PLACES[kind]:
        return _load(PLACES[kind][name])
    if kind in ROOMS:
        for point in _points(kind).select(name=name):
            return point.load()
        module = f"{ROOMS[kind]}.{name.replace('/', '.')}"
        if module.rpartition(".")[2] in _files(ROOMS[kind], name):
            found = _the_one(kind, module)
            if found is not None:
                return found
    raise Refused(f"there is no {kind} '{name}'{near(name, names(kind))}")


@cache
def _points(kind: str) -> EntryPoints:
    """What other packages have registered; every folder of the path is read for it, so once a process."""
    return entry_points(group=ENTRY_POINTS[kind])


def names(kind: str) -> list[str]:
    """Every name of a kind, sorted; files of a room are not imported for it."""
    found = set(PLACES[kind])
    if kind in ROOMS:
        found |= _points(kind).names | _named_files(kind)
    return sorted(found)


def make(kind: str, node: Mapping[str, object], *context: object, where: str = "", **given: object) -> Any:
    """The object that a node describes.

    Args:
        kind: of `PLACES`.
        node: `name` (an environment's: `engine`) and options.
        context: positional arguments of whoever builds it.
        where: prefix of options in messages; "" takes the kind.
        given: named arguments of whoever builds it; those that this thing does not take are left out.

    Raises:
        Refused: no such name or option, or a value outside its range; one readable sentence.
    """
    return prepare(kind, node, where=where)(*context, **given)


def make_world(node: str | Mapping[str, Any]) -> Any:
    """A world from the name of its file, or from a node with `name` and options; ValueError if it is wrong."""
    try:
        return make("world", {"name": node} if isinstance(node, str) else node)
    except Refused as error:
        raise ValueError(str(error)) from error


def world_port(node: Mapping[str, object], joints: Sequence[str], *, proprio: Sequence[str] | None = None) -> Port:
    """What a policy of the world of a node drives a robot through: `WorldPort`, or `LeggedPort` of one that walks."""
    world = make_world(node)
    walks = tool("sim.world:parts_of")(world).policy_card
    return (
        tool("real.legged_port:LeggedPort")(walks, joints)
        if walks
        else tool("sim.port:WorldPort")(world, joints, proprio=proprio)
    )


def prepare(kind: str, node: Mapping[str, Any], *, where: str = "") -> Callable[..., Any]:
    """`make` in two steps: names and options are checked now, the object is made when the answer is called."""
    values = {key: value for key, value in node.items() if key not in ("name", "engine", "sha256")}
    name = str(node.get("engine" if kind == "engine" else "name") or "")
    where = where or {"engine": "env"}.get(kind, kind)
    if not name:
        raise Refused(f"{where} says no name; expected one of {', '.join(names(kind)[:8])} ...")
    if ":" in name:
        extras.check_hash(name, node.get("sha256"), f"{kind}=")
    maker = find(kind, name)
    if kind == "engine" and "inner" in values:  # what it does not take itself is of the one that it shows
        own = inspect.signature(maker).parameters
        rest = {key: values.pop(key) for key in list(values) if key not in own}
        values["inner"] = prepare("engine", {**rest, "engine": values["inner"]}, where=where)
    made = {}
    for key in NESTED if kind == "engine" else ():
        if isinstance(values.get(key), Mapping):
            given = {"make_world": make_world} if key == "port" else {}
            made[key] = make(NESTED[key], values.pop(key), where=f"{where}.{key}", **given)
        elif isinstance(values.get(key), str):
            raise Refused(
                f"{where}.{key} is '{values[key]}', and holds options; a world is chosen with {where}={values[key]}"
            )
    if kind == "policy" and isinstance(values.get("method"), Mapping):
        values["method"] = prepare("policy", values["method"], where=f"{where}.method")
    if kind == "policy" and isinstance(values.get("encoder"), Mapping):
        values["encoder"] = prepare("encoder", values["encoder"])
    if kind == "engine" and ":" in str(values.get("id") or ""):
        extras.check_allowed(str(values["id"]), "id=")
    if _options_class(maker) is None:
        return partial(_call, maker, (), dict(read(kind, maker, {**values, **made}, where, name)))
    parameters = inspect.signature(maker).parameters
    beside = {key: made.pop(key) for key in NESTED if key in made and key in parameters}
    options = read(kind, maker, {**values, **made}, where, name)
    for key in NESTED:
        if key in parameters and parameters[key].default is inspect.Parameter.empty and key not in beside:
            raise Refused(f"this has to be given: {where}.{key}=<its options>")
    if parameters["options"].kind is inspect.Parameter.KEYWORD_ONLY:
        return partial(_call, maker, (), {"options": options, **beside})
    return partial(_call, maker, (options,), beside)


def look(kind: str, node: Mapping[str, Any]) -> None:
    """Check the options of a node; nothing is made, and code of the user's own is not touched.

    Raises:
        Refused: no such name or option, one that is missing, or a value outside its range.
    """
    name = str(node.get("name") or "")
    if not name or ":" in name:
        return
    maker, values = find(kind, name), {key: value for key, value in node.items() if key not in ("name", "sha256")}
    if isinstance(values.get("method"), Mapping):
        look(kind, values["method"])
        values["method"] = maker
    if kind == "policy" and isinstance(values.get("encoder"), Mapping):
        look("encoder", values["encoder"])
        values["encoder"] = maker
    read(kind, maker, values, kind, name)


def read(kind: str, maker: Callable[..., Any], values: Mapping[str, Any], where: str, name: str) -> BaseModel:
    """The options of a class or function, typed and checked.

    Raises:
        Refused: an unknown name, a missing one, or a value of another type or outside its range.
    """
    return check(options_of(kind, maker), values, where, name)


def check(model: type[M], values: Mapping[str, object], where: str, name: str) -> M:
    """The options of a class, typed and checked.

    Args:
        model: the class.
        values: name -> value, as configurations hold them.
        where: prefix of the options on the command line, "" where they have none.
        name: of what the options are of.

    Raises:
        Refused: an unknown name, a missing one, or a value of another type or outside its range.
    """
    for key, value in values.items():
        field = model.model_fields.get(str(key))
        if isinstance(value, bool) and field is not None and not _takes_bool(field.annotation):  # true is no 1
            option = f"{where}.{key}" if where else key
            raise Refused(f"{option} is {str(value).lower()}, expected {describe_field(field)}")
    try:
        return model.model_validate({str(key): value for key, value in values.items()})
    except ValidationError as error:
        raise Refused(option_error(error, model, where, name)) from error


@cache
def options_of(kind: str, maker: Callable[..., Any]) -> type[BaseModel]:
    """The options class that a method states, or one made of a signature: types and defaults of its keywords."""
    stated = _options_class(maker)
    if stated is not None:
        return stated
    hints = get_type_hints(maker.__init__ if isinstance(maker, type) else maker, include_extras=True)
    fields: dict[str, Any] = {}
    lines = _lines(maker)
    extra, given = "forbid", GIVEN | GIVEN_TO.get(kind, set())
    for parameter in list(inspect.signature(maker).parameters.values()):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = "allow"
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL and parameter.name not in given:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            field = Field(default, description=lines.get(parameter.name))
            fields[parameter.name] = (_checkable(hints.get(parameter.name, Any)), field)
    config = ConfigDict(
        extra=cast(Any, extra), arbitrary_types_allowed=True, frozen=True, protected_namespaces=(), allow_inf_nan=False
    )
    return create_model(f"{maker.__name__}Options", __config__=config, **fields)


def defaults(kind: str, name: str) -> dict[str, Any]:
    """A node with every option of a name at its default, as configurations show it; "???" where one has to be given."""
    return {"engine" if kind == "engine" else "name": name, **values_of(options_of(kind, find(kind, name)))}


def values_of(model: type[BaseModel]) -> dict[str, Any]:
    """Every option of a class at its default, as configurations show it; "???" where one has to be given."""
    return {
        key: "???" if item.is_required() else plain(item.get_default(call_default_factory=True))
        for key, item in model.model_fields.items()
    }


def _lines(maker: Callable[..., object]) -> dict[str, str]:
    """Argument -> what its docstring says of it."""
    found: dict[str, str] = {}
    for text in (maker.__doc__, maker.__init__.__doc__ if isinstance(maker, type) else ""):
        block = re.split(r"^(?:Args|Attributes):\n", inspect.cleandoc(text or ""), flags=re.MULTILINE)
        name = ""
        for line in block[1].splitlines() if len(block) > 1 else ():
            if not line.startswith("    "):
                break
            head, colon, rest = line.strip().partition(": ")
            if colon and not line.startswith("     ") and head.isidentifier():
                name = head
                found[name] = rest
            elif name:
                found[name] += " " + line.strip()
    return found


def _call(
    maker: Callable[..., object],
    first: tuple[object, ...],
    values: Mapping[str, object],
    *context: object,
    **given: object,
) -> Any:
    """Call with the given arguments that the maker takes."""
    parameters = inspect.signature(maker).parameters
    anything = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
    taken = {key: value for key, value in given.items() if key in parameters or anything}
    try:
        return maker(*first, *context, **{**values, **taken})
    except ValueError as error:  # what goes together shows here: the options, the world and the interface
        raise Refused(str(error)) from error


def _checkable(hint: object) -> Any:
    """A type as pydantic can check it: objects that nodes became (worlds, ports) are checked where they were made."""
    parts = [hint, *get_args(hint)]
    return Any if any(isinstance(item, type) and is_protocol(item) for item in parts) else hint


def _takes_bool(hint: object) -> bool:
    return hint in (bool, Any, object) or any(item is True or _takes_bool(item) for item in get_args(hint))


def _options_class(maker: object) -> type[BaseModel] | None:
    """The `Options` in `class X(LogLearner[XOptions])`, of the nearest base that states them; else of `options=`."""
    if not (isinstance(maker, type) and issubclass(maker, Learner)):
        asked = get_type_hints(maker.__init__ if isinstance(maker, type) else maker).get("options")
        return asked if isinstance(asked, type) and issubclass(asked, Options) else None
    for kind in maker.__mro__:
        for base in kind.__dict__.get("__orig_bases__", ()):  # getattr would give a subclass its parent's
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Options):
                    return argument
        if kind is not maker and "__init__" in vars(kind):
            break
        if "__init__" in vars(maker):  # a constructor of its own, with keywords
            break
    return None


def plain(value: object) -> Any:
    """A value as configurations hold it."""
    if isinstance(value, BaseModel):
        return {key: plain(item) for key, item in value}
    if isinstance(value, tuple | list | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    found = import_module(module)
    return vars(found)[name] if name else found


def _the_one(kind: str, module: str) -> Callable[..., Any] | None:
    """The learner of a method's file, or the class of a world's file that has the file's name."""
    found = import_module(module)
    own = [item for item in vars(found).values() if isinstance(item, type) and item.__module__ == found.__name__]
    if kind == "policy":
        own = [item for item in own if issubclass(item, Learner) and not inspect.isabstract(item)]
        if len(own) > 1:  # the last one: a file's earlier learners are what it builds on
            own = [item for item in own if not any(item in other.__mro__[1:] for other in own)] or own
    else:
        own = [item for item in own if item.__name__.lower() == module.rpartition(".")[2].replace("_", "")]
    return own[-1] if own else None


def _files(room: str, name: str) -> set[str]:
    """Names of the Python files beside the one that a name would mean."""
    folder = resources.files(room)
    for part in name.split("/")[:-1]:
        folder = folder.joinpath(part)
    if not folder.is_dir():
        return set()
    return {item.name.removesuffix(".py") for item in folder.iterdir() if item.name.endswith(".py")}


@cache
def _named_files(kind: str) -> frozenset[str]:
    """Names of a room's files that hold a learner or a world, by the heads of their classes: nothing is imported."""
    room, heads = resources.files(ROOMS[kind]), {}
    families = [("", room), *((f"{item.name}/", item) for item in room.iterdir() if item.is_dir())]
    for family, folder in families:
        for item in folder.iterdir():
            if item.name.endswith(".py"):
                found = re.findall(r"^class (\w+)(?:\(([^)]*)\))?", item.read_text("utf-8"), re.MULTILINE)
                heads[f"{family}{item.name.removesuffix('.py')}"] = found
    if kind == "world":
        return frozenset(
            name for name, found in heads.items() if any(x.lower() == name.replace("_", "") for x, _ in found)
        )
    classes = [head for found in heads.values() for head in found]
    learners, size = {item.__name__ for item in _heirs(Learner)}, 0
    while len(learners) > size:  # heirs of heirs
        size = len(learners)
        learners |= {name for name, bases in classes if {x.split("[")[0].strip() for x in bases.split(",")} & learners}
    return frozenset(
        name
        for name, found in heads.items()
        if not name.startswith("nets/") and any(head in learners for head, _ in found)
    )


def _heirs(kind: type) -> list[type]:
    return [kind, *(item for below in kind.__subclasses__() for item in _heirs(below))]
