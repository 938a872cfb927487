"""Recorded steps on their way from the process that drives to the process that learns: named, in order, each once.

A piece is a run of settled steps of one episode. A place (episode, step) says "everything before this is there"; the
actor keeps no queue of its own: what the learner lacks is read back from the actor's log, however long it was away.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.atomic import append_line, write_json
from robot_rl.data.hil_episode import is_unaided, to_episode, to_steps
from robot_rl.data.hil_record import ControlStep, EndReason, Key
from robot_rl.data.hil_words import read_lines
from robot_rl.data.recorder import Recorder, Recording, pack, unpack
from robot_rl.human.log import HilLog
from robot_rl.types import Episode, IOSpec

Place = tuple[int, int]
"""(episode, step) of the next step that is wanted."""
CLOSED = "closed.jsonl"
LARGEST_PIECE = 1 << 22
"""Bytes of observations in a piece, so that a slow network is never busy with one for long."""


@dataclass(frozen=True)
class PieceHead:
    """Name and fate of a piece.

    Attributes:
        actor: whose.
        episode: number of the episode.
        first: index of its first step.
        count: steps.
        final: the episode ends with it.
        demo: the episode is a demonstration that counts (demonstrations are sent when they have ended).
        discarded: the episode is thrown away; known once it has ended.
        success: it ended in success; known when it is final.
        alone: nobody helped and nobody stopped it; known when it is final.
    """

    actor: int
    episode: int
    first: int
    count: int
    final: bool = False
    demo: bool = False
    discarded: bool = False
    success: bool = False
    alone: bool = False

    @property
    def after(self) -> Place:
        """The place behind it."""
        return (self.episode + 1, 0) if self.final else (self.episode, self.first + self.count)

    @staticmethod
    def parse(values: Mapping[str, Any]) -> PieceHead:
        """From JSON values of anybody.

        Raises:
            ValueError: they name no piece.
        """
        kinds = {item.name: str(item.type) for item in fields(PieceHead)}
        try:
            head = PieceHead(**{name: {"int": int, "bool": bool}[kind](values[name]) for name, kind in kinds.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this names no piece of an episode: {error!r}") from error
        if min(head.actor, head.episode, head.first, head.count) < 0:
            raise ValueError(f"a piece with negative numbers: {head}")
        return head


class Outbox:
    """What an actor has to send: the settled steps of the episode under way, and its log.

    The control loop calls `begin`, `rows` and `finish`; `piece` may be called from another thread.

    Args:
        log: of the actor.
        keep: finished episodes that are held in memory; older ones are read back from the log.
    """

    def __init__(self, log: HilLog, keep: int = 4) -> None:
        self._log, self._keep = log, keep
        self._lock = threading.Lock()
        self._open: tuple[int, list[ControlStep]] | None = None
        self._recent: dict[int, Episode] = {}
        lengths = {line["episode_id"]: line["steps"] for line in log.manifest if line["actor_id"] == log.actor_id}
        self._lengths: dict[int, int] = lengths

    def begin(self, episode: int) -> None:
        """An episode whose steps may go out while it lasts; a demonstration goes out at its end."""
        with self._lock:
            self._open = episode, []

    def rows(self, steps: Sequence[ControlStep]) -> None:
        """Settled steps of it."""
        with self._lock:
            if self._open is not None:
                self._open[1].extend(steps)

    def finish(self, number: int, episode: Episode | None) -> None:
        """The log has it, or it had no steps."""
        with self._lock:
            self._open = None
            if episode is not None:
                self._lengths[number] = len(episode)
                self._recent[number] = episode
                for old in sorted(self._recent)[: -self._keep]:
                    del self._recent[old]

    def end(self) -> Place:
        """The place behind everything that could be sent now."""
        with self._lock:
            if self._open is not None:
                return self._open[0], len(self._open[1])
            return max(self._lengths, default=-1) + 1, 0

    def waiting(self, place: Place) -> int:
        """Steps at and behind a place."""
        with self._lock:
            done = sum(count for number, count in self._lengths.items() if number >= place[0])
            more = len(self._open[1]) if self._open is not None else 0
        return max(done + more - place[1], 0)

    def piece(self, place: Place, most: int = 256) -> tuple[PieceHead, bytes] | None:
        """The piece that begins at a place, or None when nothing is there yet.

        Args:
            place: where to begin.
            most: steps in it.
        """
        number, first = place
        facts = self._log.facts(Key(self._log.run_id, self._log.actor_id, number))
        size = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self._log.io.obs.values())
        most = max(1, min(most, LARGEST_PIECE // max(size, 1)))
        running: list[ControlStep] | None = None
        episode: Episode | None = None
        with self._lock:
            if self._open is not None and self._open[0] == number:
                running = self._open[1][first : first + most]
            elif number not in self._lengths:
                return None
            else:
                episode = self._recent.get(number)
        if running is not None:  # packed outside the lock: the control loop never waits for it
            if not running:
                return None
            head = PieceHead(self._log.actor_id, number, first, len(running))
            return head, pack(to_episode(running, EndReason.NONE, facts))
        if episode is None:
            episode = self._log.read(number)
        told, whole = episode.meta, to_steps(episode)
        steps = whole[first : first + most]
        final = first + len(steps) >= len(episode)
        head = PieceHead(
            self._log.actor_id,
            number,
            first,
            len(steps),
            final,
            demo=bool(told.get("demo")),
            discarded=bool(told.get("discarded")),
            success=final and bool(told.get("success")),
            alone=final and is_unaided(sum(step.human for step in whole), EndReason(told["end_reason"])),
        )
        if not steps:  # the learner has more of it than the log: the machine lost power before the log was on its disk
            return head, b""
        reason = EndReason(told["end_reason"]) if final else EndReason.NONE
        return head, pack(to_episode(steps, reason, facts))


@dataclass(frozen=True)
class Received:
    """New steps of one episode.

    Attributes:
        head: of the piece, cut to what is new.
        steps: in order.
    """

    head: PieceHead
    steps: list[ControlStep]


class ActorBook:
    """Which actor numbers belong to which logs.

    Rows are named within a log. A new run under an old number would begin with episode 0 again, and its rows would be
    taken for those that are there already.

    Args:
        path: JSON file; made when missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logs: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        self._lock = threading.Lock()

    def admit(self, actor: int, log: str) -> str:
        """Why an actor is refused, or ""; a new number is noted down."""
        with self._lock:
            known = self._logs.get(str(actor))
            if known == log:
                return ""
            if known is not None:
                return (
                    f"this learner has rows of another run under link.actor_id={actor}: continue that run "
                    "(robot-rl hil resume=<its folder>), choose another actor_id, or start a new learner"
                )
            self._logs[str(actor)] = log
            write_json(self.path, self._logs)
            return ""


class Inbox:
    """Takes pieces in order, keeps each step once and for good, and knows what comes next.

    Args:
        path: folder of the learner's copy.
        io: interface that the steps must have.

    Raises:
        ValueError: the folder holds something else.
    """

    def __init__(self, path: str | os.PathLike[str], io: IOSpec) -> None:
        self.path, self.io = Path(path), io
        self.path.mkdir(parents=True, exist_ok=True)
        self.places: dict[int, Place] = {}
        """Actor -> what it should send next."""
        self.doubled = 0
        """Pieces that were there already."""
        self.early = 0
        """Pieces that came before one that is still missing."""
        self._restored: list[Received] = []
        self._shut = self._ends_elsewhere()
        if list(self.path.glob("segment-*.episodes")):
            for episode in Recording(self.path):
                self._restored.append(Received(self._again(episode), to_steps(episode)))
        for actor in list(self.places):
            self._skip_closed(actor)
        self._recorder = Recorder(self.path)

    def place(self, actor: int) -> Place:
        """What an actor should send next."""
        return self.places.get(actor, (0, 0))

    def take_restored(self) -> list[Received]:
        """What an earlier process had received, in order; given once."""
        found, self._restored = self._restored, []
        return found

    def take(self, head: PieceHead, body: bytes) -> Received | None:
        """Store a piece; when this returns its new steps are on the disk for good.

        Returns:
            The new steps, or None when there are none: it was there already, or something before it is missing.

        Raises:
            ValueError: it is damaged or of another robot.
            OSError: the disk is full; nothing was taken.
        """
        wanted = self.place(head.actor)
        if head.after <= wanted:
            self.doubled += 1
            return None
        if (head.episode, head.first) > wanted or head.episode != wanted[0]:
            self.early += 1
            return None
        skip = wanted[1] - head.first
        values = {**asdict(head), "first": head.first + skip, "count": head.count - skip}
        steps = self._steps(head, body)[skip:] if head.count else []
        cut = PieceHead(**values)
        if steps:
            facts = {"actor_id": head.actor, "episode_id": head.episode, "piece": asdict(cut)}
            self._recorder.append(to_episode(steps, EndReason.NONE, {**facts, "run_id": 0, "io": self.io}))
        else:
            append_line(self.path / CLOSED, asdict(cut))
        self.places[head.actor] = cut.after
        return Received(cut, steps)

    def steps(self, actor: int, episode: int) -> list[ControlStep]:
        """What was received of an episode, read back from the disk."""
        found: list[ControlStep] = []
        for piece in Recording(self.path):
            if (piece.meta["actor_id"], piece.meta["episode_id"]) == (actor, episode):
                found += to_steps(piece)
        return found

    def close(self) -> None:
        """Close the files."""
        self._recorder.close()

    def _again(self, episode: Episode) -> PieceHead:
        if "piece" not in episode.meta:
            raise ValueError(f"{self.path} holds recordings that no learner received; choose another folder")
        self._fits(episode)
        head = PieceHead.parse(episode.meta["piece"])
        self._skip_closed(head.actor)
        if (head.episode, head.first) != self.place(head.actor):
            raise ValueError(
                f"{self.path} is incomplete: actor {head.actor} goes on with {head.episode}.{head.first}, expected "
                f"{self.place(head.actor)}; a segment was removed"
            )
        self.places[head.actor] = head.after
        return head

    def _steps(self, head: PieceHead, body: bytes) -> list[ControlStep]:
        episode = unpack(body)
        self._fits(episode)
        steps = to_steps(episode)
        if len(steps) != head.count:
            raise ValueError(f"a piece of {len(steps)} steps says that it has {head.count}")
        return steps

    def _fits(self, episode: Episode) -> None:
        io = episode.meta.get("io")
        differences = io.differences(self.io) if isinstance(io, IOSpec) else ["it names no interface"]
        for key, (shape, dtype) in self.io.obs.items():
            found = episode.obs.get(key)
            if found is None or found.shape[1:] != tuple(shape) or found.dtype != dtype:
                differences.append(f"observation {key} is not of shape {tuple(shape)} and type {dtype}")
        if episode.action.shape[1:] != (self.io.action_dim,):
            differences.append(f"actions of shape {episode.action.shape[1:]}, expected ({self.io.action_dim},)")
        if differences:
            raise ValueError("steps of another robot or world:\n  - " + "\n  - ".join(differences))

    def _skip_closed(self, actor: int) -> None:
        while (place := self.place(actor)) in self._shut.get(actor, {}):
            self.places[actor] = self._shut[actor][place]

    def _ends_elsewhere(self) -> dict[int, dict[Place, Place]]:
        """Actor -> ends of episodes that came without a step of their own."""
        found: dict[int, dict[Place, Place]] = {}
        for head in map(PieceHead.parse, read_lines(self.path / CLOSED)):
            found.setdefault(head.actor, {})[(head.episode, head.first)] = head.after
        return found
