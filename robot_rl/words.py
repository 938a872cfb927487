"""What the user reads when a request cannot be carried out: one sentence that says how to mend it."""

from __future__ import annotations

from robot_rl.types.option_words import describe_field, file_error, near, option_error

__all__ = ["Refused", "describe_field", "file_error", "near", "option_error"]


class Refused(Exception):
    """The request cannot be carried out; the message is the paragraph that the user reads."""
