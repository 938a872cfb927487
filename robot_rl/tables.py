"""Tables in YAML files: plain values by name, from a file that may be a stranger's or may have a typing error.

A key that stands twice is an error, because one of the two is not meant. Aliases are refused: with them a few lines can
stand for gigabytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

_MOST = 1 << 24  # bytes
_DEEPEST = 50  # libyaml recurses, and dies of too much of it
_OPEN = (
    yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken, yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken,
)  # fmt: skip
_CLOSE = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


_Loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # libyaml, where PyYAML was built with it


class TableError(ValueError):
    """A file holds no table; the message names it, what is wrong and what to do."""


class _Strict(_Loader):
    """Refuses a mapping that holds a key twice; PyYAML takes the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            name, line = self.construct_object(key, deep=True), key.start_mark.line + 1
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{name} stands in line {seen[name]} and again in line {line}; leave one of them out"
                )
            seen[name] = line
        return super().construct_mapping(node, deep)


def read_table(path: str | Path) -> dict[str, Any]:
    """The names and plain values of a YAML file; an empty file holds none.

    Raises:
        FileNotFoundError: there is no such file.
        TableError: it cannot be read, is larger than 16 MiB, no text, no YAML or no mapping; it uses aliases, is nested
            more than 50 deep, or holds a key twice.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MOST:
            raise TableError(f"{path} has {path.stat().st_size:,} bytes, expected at most {_MOST:,} of text")
        text, depth = path.read_text(encoding="utf-8"), 0
        for token in yaml.scan(text, Loader=_Loader):
            if isinstance(token, yaml.AliasToken):
                raise TableError(f"{path} uses YAML aliases (*name); write the values out")
            depth += isinstance(token, _OPEN) - isinstance(token, _CLOSE)
            if depth > _DEEPEST:
                raise TableError(f"{path} is nested more than {_DEEPEST} deep; correct the file")
        value = yaml.load(text, _Strict) or {}
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:  # a file where a folder was meant
        raise FileNotFoundError(f"{path} does not exist") from error
    except (OSError, yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        if isinstance(error, TableError):
            raise
        kind = "text" if isinstance(error, UnicodeDecodeError) else "YAML"
        why = " ".join(str(error).split())[:200]
        raise TableError(f"{path} is no {kind} ({why}); correct the file") from error
    if not isinstance(value, dict):
        raise TableError(f"{path} holds a {type(value).__name__}, expected keys and values")
    return value


def table_text(head: str, table: Mapping[str, Any]) -> str:
    """A table as YAML that people edit: a comment, a line for each key, and one for each row of a list of tables."""
    style: dict[str, Any] = {"sort_keys": False, "width": 10_000}
    lines = [f"# {head}"]
    for key, value in table.items():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            rows = (yaml.safe_dump(row, default_flow_style=True, **style).strip() for row in value)
            lines += [f"{key}:", *(f"  - {row}" for row in rows)]
        else:
            flow = None if isinstance(value, (dict, list)) else False
            lines.append(yaml.safe_dump({key: value}, default_flow_style=flow, **style).strip())
    return "\n".join(lines) + "\n"
