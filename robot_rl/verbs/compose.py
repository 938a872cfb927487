"""Configurations of the command line: what Hydra finds beside the files of `configs`, and names of the user's own.

A class states its options once; a file in `configs` is written only where something differs from them (presets) or
where several things belong together (worlds, verbs). `ClassSource` gives Hydra the rest: `policy=online/sac` without a
file is the method's options at their defaults, and a preset builds on `/method/online/sac`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Annotated, Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, QuotedString
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, TypeAdapter, ValidationError

from robot_rl import build, extras
from robot_rl.verbs.items import OWN, OWN_NAMES, find_unreadable, take_own
from robot_rl.verbs.packaged import compose_config
from robot_rl.verbs.reading import PLAIN
from robot_rl.verbs.table import OPTIONS
from robot_rl.words import Refused, describe_field, near

BASES = {"method": "policy", "simulator": "engine", "world_defaults": "world"}
"""Groups that files build on -> kind: `/method/online/sac` is a method's options where a preset has taken its name."""


VERB = "options"
"""Group of the options of verbs, on which their files build."""


class ClassSource(ConfigSource):
    """Options of classes, made when they are asked for: only the class that was chosen is imported."""

    @staticmethod
    def scheme() -> str:
        """Of its address on Hydra's search path."""
        return "classes"

    def available(self) -> bool:
        """Always."""
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        """The node of `<group>/<name>`."""
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        kind = BASES.get(group, group)
        if group == VERB:
            return self._result(build.values_of(OPTIONS[name]()))
        if group == "env" and name == OWN:
            world = OWN_NAMES[f"world={OWN}"]
            node = build.defaults("engine", "mujoco")
            return self._result(node | {"world": build.defaults("world", world) | {"sha256": extras.file_hash(world)}})
        if not self.is_config(config_path):
            raise ConfigLoadError(f"there is no {group} '{name}'")
        name = OWN_NAMES.get(f"{kind}={name}", name)
        node = build.defaults(kind, name)
        if ":" in name:
            node["sha256"] = extras.file_hash(name)
        return self._result(node)

    def _result(self, node: dict[str, Any]) -> ConfigResult:
        return ConfigResult(
            provider=self.provider, path="classes://", config=OmegaConf.create(node), header={"package": None}
        )

    def is_group(self, config_path: str) -> bool:
        """Whether names of this group begin so."""
        group, _, part = config_path.strip("/").partition("/")
        if group == VERB:
            return not part
        if group not in (*PLAIN, *BASES):  # a kind is no group by itself: `world=reach` is a plain option of deploy
            return False
        kind = BASES.get(group, group)
        return not part or any(name.startswith(f"{part}/") for name in build.names(kind))

    def is_config(self, config_path: str) -> bool:
        """Whether a name is one of the group."""
        group, _, name = config_path.removesuffix(".yaml").strip("/").partition("/")
        if group == VERB:
            return name in OPTIONS
        if group == "env" and name == OWN:
            return f"world={OWN}" in OWN_NAMES
        if group not in BASES and (group not in PLAIN or _file(group, name)):
            return False
        kind = BASES.get(group, group)
        return f"{kind}={name}" in OWN_NAMES or name in build.names(kind)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Names and groups directly below a path."""
        group, _, part = config_path.strip("/").partition("/")
        if group not in PLAIN:
            return []
        below = part + "/" if part else ""
        found = {name.removeprefix(below).split("/")[0] for name in build.names(group) if name.startswith(below)}
        kinds = {None: (True, True), ObjectType.GROUP: (True, False), ObjectType.CONFIG: (False, True)}[results_filter]
        return sorted(
            item
            for item in found
            if (kinds[0] and self.is_group(f"{group}/{below}{item}"))
            or (kinds[1] and self.is_config(f"{group}/{below}{item}"))
        )


class ClassPath(SearchPathPlugin):
    """Puts `ClassSource` behind the files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra."""
        search_path.append("robot_rl", "classes://options")


def register() -> None:
    """Tell Hydra of both; again is harmless."""
    from hydra._internal.sources_registry import SourcesRegistry

    registry = SourcesRegistry.instance()
    if "classes" not in registry.types:
        registry.register(ClassSource)
        Plugins.instance().register(ClassPath)


def find_wrong_value(config: str, items: Sequence[str]) -> str:
    """What is wrong with the first of several values of an option (-m seed=0,1), or ""; they would fail late."""
    fields = OPTIONS[config]().model_fields
    for item in items if {"-m", "--multirun"} & set(items) else ():
        field = fields.get(item.partition("=")[0])
        plain = [value for value in _values(item) if not isinstance(value, list | dict)] if field is not None else []
        if field is None or not plain:
            continue
        kind: Any = field.annotation
        if field.metadata:
            kind = Annotated.__class_getitem__((kind, *field.metadata))  # type: ignore[attr-defined]
        check = TypeAdapter(kind, config=ConfigDict(coerce_numbers_to_str=True))
        for value in plain:
            try:
                check.validate_python(value)
            except ValidationError:
                return f"{item.partition('=')[0]} is '{value}' in one of the runs, expected {describe_field(field)}"
    return ""


def _values(item: str) -> list[Any]:
    """What `key=a,b`, `key=choice(a,b)` or `key=range(a,b)` gives to one run after the other; else the only value."""
    override = OverridesParser.create().parse_override(item)
    whole: Any = override.value()
    if isinstance(whole, Glob):
        return whole.filter(choices(override.key_or_group)) or [item.partition("=")[2]]
    values: list[Any] = list(override.sweep_iterator()) if override.is_discrete_sweep() else [whole]
    return [value.text if isinstance(value, QuotedString) else value for value in values]


def find_wrong_name(config: str, items: Sequence[str], kept: DictConfig | None = None) -> str:
    """What is wrong with the first choice or option that does not exist, with the near name, or "".

    Hydra would answer a choice with its search path and an option with the advice to add it.

    Args:
        config: of the verb.
        items: words of the command.
        kept: configuration of the run that goes on, whose groups have these options; None: what the words choose.
    """
    groups = set(groups_of(config))
    chosen, options = [], []
    for item in items:
        key, equals, _ = item.partition("=")
        group = key.split("@")[0]
        if not equals or key[0] in "+~-" or key.startswith("hydra"):
            continue
        if group not in groups:
            if "." in key:
                options.append(key)
            continue
        names = ["null" if name is None else str(name) for name in _values(item)]
        for name in names:
            if name not in ("null", OWN) and name not in choices(group):
                return f"there is no {group} '{name}'{near(name, choices(group))}"
        chosen.append(f"{key}={names[0]}")
    if not options:
        return ""
    node = compose_config(config, chosen) if kept is None else kept
    for key in options:
        found = _wrong_option(node, key.split("."))
        if found:
            return found
    return ""


def compose_verb(verb: str, chosen: Mapping[str, str], values: Mapping[str, object]) -> DictConfig:
    """The configuration of a verb, as its command line would make it.

    Args:
        verb: name of its configuration.
        chosen: group -> name.
        values: what differs from the defaults; a group's value is a name, or a node that stands in its place.

    Raises:
        Refused: there is no such name in a group.
    """
    groups = set(groups_of(verb))
    named = {key: value for key, value in values.items() if key in groups and isinstance(value, str)}
    values = {key: value for key, value in values.items() if key not in named}
    items = take_own([f"{group}={name}" for group, name in {**chosen, **named}.items()])
    wrong = find_unreadable(items) or find_wrong_name(verb, items)
    if wrong:
        raise Refused(wrong)
    replaced = [key for key in groups - set(chosen) if key in values]
    cfg = compose_config(verb, items)
    OmegaConf.set_struct(cfg, False)
    for key in replaced:
        cfg[key] = None
    known = {*cfg, *OPTIONS[verb]().model_fields}
    for key in values:
        if key not in known:
            raise Refused(f"robot_rl has no option '{key}' here{near(str(key), sorted(map(str, known)))}")
    return OmegaConf.merge(cfg, OmegaConf.create(dict(values)))  # type: ignore[return-value]


def groups_of(config: str) -> list[str]:
    """Groups that a verb's configuration chooses from."""
    return [name for name in (key.split("@")[0] for key in _group_keys(file_of(config))) if name.isidentifier()]


def other_keys(config: str) -> list[str]:
    """Keys of a verb that are neither options nor groups: a group under another name, nodes."""
    made = file_of(config)
    names = [key.partition("@")[2].split(".")[0] for key in _group_keys(made)]
    nodes = [str(key) for key in made if key not in ("defaults", "hydra")]
    return [name for name in names if name.isidentifier()] + nodes


@cache
def file_of(config: str) -> DictConfig:
    """The YAML of a verb, as it is written: the same object each time, to be read only."""
    text = resources.files("robot_rl.configs").joinpath(f"{config}.yaml").read_text()
    return OmegaConf.create(text)  # type: ignore[return-value]


def _group_keys(made: DictConfig) -> list[str]:
    return [str(key) for item in made.get("defaults", ()) if isinstance(item, DictConfig) for key in item]


def choices(group: str) -> list[str]:
    """Every name of a group: files and, where options need none, classes."""
    folder = resources.files("robot_rl.configs").joinpath(group)
    found = set(build.names(group)) if group in PLAIN else set()
    waiting = [("", folder)] if folder.is_dir() else []
    while waiting:
        prefix, here = waiting.pop()
        for item in here.iterdir():
            if item.is_dir():
                waiting.append((f"{prefix}{item.name}/", item))
            elif item.name.endswith(".yaml"):
                found.add(prefix + item.name.removesuffix(".yaml"))
    return sorted(found)


def _wrong_option(node: object, path: list[str]) -> str:
    for depth, part in enumerate(path):
        if isinstance(node, (bool, int, float)):
            whole = ".".join(path[:depth])
            return f"{whole} is a value and holds no {'.'.join(path[depth:])}; set {whole}=..."
        if node is None and depth > 1:  # an option of which nothing is set
            whole, rest = ".".join(path[:depth]), ".".join(path[depth:])
            return f"{whole} is null, so that {rest} cannot be set alone; give the whole: '{whole}={{{rest}: ...}}'"
        if not isinstance(node, DictConfig):  # a value with an inner form of its own, or a group that is null
            return "" if node is not None else f"{'.'.join(path)}: there is no {'.'.join(path[:depth])} here"
        if part not in list(node):  # `in` would not find what has still to be given
            if not len(node):  # names with values that anybody may add
                return ""
            whole, where = node.get("name") or node.get("engine") or "", ".".join(path[:depth])
            if not depth:  # a group of which nothing is chosen
                return f"{'.'.join(path)}: there is no {part} here; choose one first with {part}=<name>"
            said = f"{where}.{part} is no option of {whole or where}"
            if part in ("gamma", "seed", "device"):
                return f"{said}; {part}=… (without {where}.) sets it for the whole run"
            return said + near(part, [str(key) for key in node if key not in ("name", "engine", "sha256")])
        unknown = OmegaConf.is_missing(node, part) or OmegaConf.is_interpolation(node, part)
        node = "" if unknown else node.get(part)
    return ""


def _file(group: str, name: str) -> bool:
    return resources.files("robot_rl.configs").joinpath(f"{group}/{name}.yaml").is_file()


register()
