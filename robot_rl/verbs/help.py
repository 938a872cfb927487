"""The page of a verb: robot-rl <verb> [policy=online/sac env=reach ...] --help, out of the classes of its options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from robot_rl import build
from robot_rl.verbs.compose import choices, file_of, groups_of
from robot_rl.verbs.option_rows import rows, wrap
from robot_rl.verbs.packaged import compose_config
from robot_rl.verbs.table import OPTIONS


def page(config: str, items: Sequence[str]) -> str:
    """What a verb does, what it chooses from, and every option with type, range, default and its line.

    Args:
        config: name of the verb's configuration.
        items: of the command line; the options of what is chosen there are listed too.
    """
    template = str(file_of(config).hydra.help.template)
    groups = [f"  {group}: {', '.join(choices(group))}" for group in dict.fromkeys(groups_of(config)) if choices(group)]
    shown = [wrap(line, "    ") for line in groups]
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


def _verb(config: str) -> str:
    return f"eval {config}" if config in ("ope", "compare", "fas", "latency") else config
