"""YAML of numbers that keep people safe: a key that stands twice is an error, because one of the two is not meant."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class _Strict(yaml.SafeLoader):
    """Refuses a mapping that holds a key twice; PyYAML takes the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            name, line = self.construct_object(key, deep=True), key.start_mark.line + 1
            if name in seen and name != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"{name} stands in line {seen[name]} and again in line {line}; leave one of them out"
                )
            seen[name] = line
        return super().construct_mapping(node, deep)


def read_table(text: str) -> Any:
    """Plain values of a YAML text.

    Raises:
        yaml.YAMLError: not YAML, or a key that stands twice; the message names its lines.
    """
    return yaml.load(text, _Strict)
