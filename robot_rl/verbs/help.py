"""The page of a verb: robot-rl <verb> [policy=online/sac env=reach ...] --help, out of the classes of its options."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf
from pydantic import BaseModel

from robot_rl import build
from robot_rl.verbs.compose import choices, file_of, groups_of
from robot_rl.verbs.packaged import compose_config
from robot_rl.verbs.table import OPTIONS
from robot_rl.words import describe_field

WIDTH = 100


def page(config: str, items: Sequence[str]) -> str:
    """What a verb does, what it chooses from, and every option with type, range, default and its line.

    Args:
        config: name of the verb's configuration.
        items: of the command line; the options of what is chosen there are listed too.
    """
    template = str(file_of(config).hydra.help.template)
    groups = [f"  {group}: {', '.join(choices(group))}" for group in dict.fromkeys(groups_of(config)) if choices(group)]
    shown = [_wrap(line, "    ") for line in groups]
    lines = ["Options:", *rows(OPTIONS[config](), "")]
    chosen = [item for item in items if item.split("=")[0] in groups_of(config)]
    node: Any = OmegaConf.to_container(compose_config(config, chosen), resolve=False)
    for item in chosen:
        group = item.split("=")[0]
        kind = {"env": "engine", "behaviour": "policy"}.get(group, group)
        lines += ["", f"Options of {item}:", *_node_rows(kind, node[group], group)]
    if groups and not chosen:
        example = groups_of(config)[0]
        lines += ["", f"robot-rl {_verb(config)} {example}=<choice> --help lists the options of a choice as well."]
    return template.replace("$APP_CONFIG_GROUPS", "\n".join(shown)).replace("$OPTIONS", "\n".join(lines))


def words_page(text: str, model: type[BaseModel]) -> str:
    """The page of a verb without a configuration: its options, with two dashes each, in the place of $OPTIONS."""
    return text.replace("$OPTIONS", "\n".join(rows(model, "--")))


def rows(model: type[BaseModel], where: str, values: Mapping[str, object] | None = None) -> Iterator[str]:
    """Lines of a class: `name=default  type and range: what it means`.

    Args:
        model: the options.
        where: prefix of the names.
        values: in place of the class's defaults, where a preset has others.
    """
    values = {**build.values_of(model), **(values or {})}
    for name, field in model.model_fields.items():
        kind, value = field.annotation, values.get(name)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from rows(kind, f"{where}{name}.", value if isinstance(value, Mapping) else None)
            continue
        text = " ".join((field.description or "").split()).rstrip(".")
        text, kinds = f"{text[:1].upper()}{text[1:]}. " if text else "", describe_field(field)
        head = f"{where}{name}={_show(value)}"
        yield _wrap(f"  {head:<24}  {text}{kinds[0].upper()}{kinds[1:]}.", " " * 28)


def _node_rows(kind: str, node: Any, where: str) -> Iterator[str]:
    name = node.get("engine" if kind == "engine" else "name") if isinstance(node, Mapping) else None
    if not name:
        return
    model = build.options_of(kind, build.find(kind, str(name)))
    plain = {key: value for key, value in node.items() if key not in build.NESTED or not isinstance(value, Mapping)}
    for line in rows(model, f"{where}.", plain):
        if not any(line.startswith(f"  {where}.{key}=") and key in node and key not in plain for key in build.NESTED):
            yield line
    for key, inner in build.NESTED.items():
        if isinstance(node.get(key), Mapping):
            yield from _node_rows(inner, node[key], f"{where}.{key}")


def _show(value: object) -> str:
    if isinstance(value, str):
        return "<...>" if value == "???" else value or "''"
    if isinstance(value, list):
        return f"[{','.join(_show(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_show(item)}" for key, item in value.items()) + "}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _wrap(line: str, indent: str) -> str:
    width = min(WIDTH, shutil.get_terminal_size().columns)
    return "\n".join(textwrap.wrap(line, max(width, 60), subsequent_indent=indent, break_on_hyphens=False))


def _verb(config: str) -> str:
    return f"eval {config}" if config in ("ope", "compare", "fas", "latency") else config
