"""What is wrong with data, said so that its owner can mend it: kind, how often, where first, and the repair offered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing about a log.

    Attributes:
        severity: "error" stops a conversion, "warning" is counted and goes on, "note" is a fact worth knowing.
        case: what kind, such as "not_finite"; stable, for programs.
        message: file or key, first place, count.
        count: how many values, rows, episodes or files.
        where: first place.
        repair: the option that mends it, or what its owner can do.
    """

    severity: Literal["error", "warning", "note"]
    case: str
    message: str
    count: int = 1
    where: str = ""
    repair: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.repair}" if self.repair else self.message

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return dict(vars(self))


def error(case: str, message: str, repair: str = "", *, count: int = 1, where: str = "") -> Finding:
    """A finding that stops a conversion."""
    return Finding("error", case, message, int(count), where, repair)


def warning(case: str, message: str, repair: str = "", *, count: int = 1, where: str = "") -> Finding:
    """A finding that is counted and lived with."""
    return Finding("warning", case, message, int(count), where, repair)


def note(case: str, message: str, *, count: int = 1) -> Finding:
    """A fact worth knowing."""
    return Finding("note", case, message, int(count))


class BadData(ValueError):
    """Data that cannot be read as it is; `findings` holds all that was found before giving up."""

    def __init__(self, findings: Finding | Sequence[Finding]) -> None:
        self.findings = [findings] if isinstance(findings, Finding) else list(findings)
        super().__init__("\n".join(str(item) for item in self.findings if item.severity == "error"))


def refusal(case: str, message: str, repair: str = "", *, count: int = 1, where: str = "") -> BadData:
    """The exception of one `error`."""
    return BadData(error(case, message, repair, count=count, where=where))


def stop_on_errors(findings: Iterable[Finding]) -> None:
    """Raise `BadData` with everything if there is an error among the findings."""
    findings = list(findings)
    if any(item.severity == "error" for item in findings):
        raise BadData(findings)


def exit_code(findings: Iterable[Finding]) -> int:
    """0 clean, 1 warnings, 2 errors."""
    worst = {item.severity for item in findings}
    return 2 if "error" in worst else 1 if "warning" in worst else 0
