"""Messages of any package: their classes by name, and which of them carry a header."""

from __future__ import annotations

from functools import cache
from typing import Any

from robot_rl.extras import require_foreign


def message_class(kind: str) -> Any:
    """Class of a message of any package, "package/msg/Name".

    Raises:
        ValueError: the package is not installed here, or has no such message.
    """
    package, _, name = kind.replace("/msg/", "/").partition("/")
    try:
        return vars(require_foreign(f"{package}.msg", "Source the workspace that builds it."))[name]
    except (ImportError, KeyError) as error:
        raise ValueError(f"message type {kind!r} is not installed here ({error})") from error


@cache
def has_header(kind: Any) -> bool:
    """Whether the messages of a class carry a header; asked once a class, for callbacks are in a hurry."""
    return "header" in kind.get_fields_and_field_types()
