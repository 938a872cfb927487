"""Messages of any package: their classes by name, and those that carry a header."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from robot_rl.extras import require, require_foreign

require("rclpy")

from std_msgs.msg import Header  # noqa: E402  (after the check that rclpy is there)


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


@runtime_checkable
class Stamped(Protocol):
    """A message with a header."""

    header: Header
