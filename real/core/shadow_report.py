"""What a shadow has found, as text, as a file, and as the leave to move."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

State = Literal["fine", "wrong", "open", "unknown"]
STATES: tuple[State, ...] = ("wrong", "open", "unknown")
PREFIX = "shadow_"


@dataclass(frozen=True)
class ShadowNote:
    """One thing that was looked at.

    Args:
        check: such as `joint order`.
        state: `fine`; `wrong`; `open`: not checked yet, and the text says what it waits for; `unknown`: there is
            nothing to compare with, and a person has to look.
        text: what is wrong and what to do; "" when fine.
    """

    check: str
    state: str
    text: str = ""


@dataclass(frozen=True)
class ShadowReport:
    """All of it.

    Args:
        seconds: of states so far.
        moved: of them those in motion.
        notes: one or more per check.
        figures: ages, lags and how the proposals lie beside training's actions.
    """

    seconds: float
    moved: float
    notes: tuple[ShadowNote, ...]
    figures: Mapping[str, object]

    def of(self, state: State) -> list[ShadowNote]:
        """The notes in a state."""
        return [note for note in self.notes if note.state == state]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong, and nothing is left to check."""
        return not self.of("wrong") and not self.of("open")

    def lines(self) -> list[str]:
        """For people, what is wrong first."""
        heads = {"wrong": "WRONG", "open": "not yet checked", "unknown": "cannot be checked"}
        found = [f"{heads[str(note.state)]}: {note.check}: {note.text}" for state in STATES for note in self.of(state)]
        fine = [note.check for note in self.of("fine")]
        return found + ([f"fits: {', '.join(dict.fromkeys(fine))}"] if fine else [])

    def table(self, **facts: object) -> dict[str, object]:
        """For a file: `facts` of robot and policy, then what was found."""
        told: dict[str, object] = {"format": 1, **facts, "clean": self.clean}
        told |= {"seconds": round(self.seconds, 3), "moved_seconds": round(self.moved, 3)}
        for state in STATES:
            told[state] = [{"check": note.check, "text": note.text} for note in self.of(state)]
        return told | {"fits": [note.check for note in self.of("fine")], "figures": dict(self.figures)}


def card_digest(path: str | Path) -> str:
    """SHA-256 of a robot's file as it is."""
    return sha256(Path(path).read_bytes()).hexdigest()


def report_path(folder: Path, robot: str) -> Path:
    """Where a new report of a robot goes."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", robot)
    stem, number = f"{PREFIX}{time.strftime('%Y-%m-%d_%H-%M-%S')}_{name}", 2
    path = folder / f"{stem}.json"
    while path.exists():
        path, number = folder / f"{stem}_{number}.json", number + 1
    return path


def reports(folder: Path) -> list[tuple[Path, dict[str, object]]]:
    """All reports in a folder, the newest first; files that are none are passed over."""
    found = []
    for path in sorted(folder.glob(f"{PREFIX}*.json"), key=lambda one: one.stat().st_mtime, reverse=True):
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(table, dict) and table.get("format") == 1:
            found.append((path, table))
    return found


def missing_leave(folder: Path, robot: str, card: str, files: Mapping[str, str]) -> str:
    """Why a policy may not drive a robot yet; "" when the newest shadow of just these two is clean.

    Args:
        folder: of the reports.
        robot: its name.
        card: `card_digest` of its file.
        files: name -> SHA-256 of what the policy was read from.
    """
    do = (
        "run `robot-rl deploy … propose=true` first: the policy proposes, moves nothing, and what the robot tells is "
        "compared with its training; or say checked=false"
    )
    mine = [(path, table) for path, table in reports(folder) if table.get("robot") == robot]
    if not mine:
        return f"no policy has been shadowed on {robot} yet (no report in {folder}): {do}"
    same = [(path, table) for path, table in mine if table.get("files") == dict(files)]
    if not same:
        return f"the reports of {robot} in {folder} are of other weights than these: {do}"
    path, table = same[0]
    if table.get("card") != card:
        return f"the card of {robot} has changed since {path} was written: {do}"
    if table.get("clean") is True:
        return ""
    told = []
    for state, head in (("wrong", ""), ("open", "not yet checked: ")):
        entries = table.get(state)
        for note in entries if isinstance(entries, list) else []:
            told.append(f"{head}{note['check']}: {note['text']}")
    return f"{path} is not clean: {'; '.join(told[:2])}{' …' if len(told) > 2 else ''}. Mend it and {do}"
