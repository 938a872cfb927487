"""Human-in-the-loop episodes on disk: append-only segments, a manifest, and a journal of the episode under way.

A folder holds the segments of `data.recorder`, `manifest.jsonl` with one line per episode (key, counts, hash), and
`open/`, the journal: every step is written there as it happens. Whatever kills the process, the next `HilLog` on the
folder closes the episode that was under way as truncated and gives new episodes numbers of their own.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.atomic import append_line, write_bytes
from robot_rl.data.hil_episode import EpisodeDraft, EpisodeRules, to_episode, to_steps
from robot_rl.data.hil_record import ControlStep, EndReason, Invalid, Key
from robot_rl.data.hil_words import CORRECTIONS, episode_key, read_corrections, read_lines
from robot_rl.data.recorder import Recorder, Recording
from robot_rl.types import Episode, IOSpec

MANIFEST = "manifest.jsonl"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors of a disk that may have room again."""


class HilLog:
    """Writes the episodes of one actor and reads those of all.

    Args:
        path: the folder; made when missing.
        io: interface of the robot, stored with every episode.
        run_id: of the run; together with actor and episode it is the key of an episode.
        actor_id: of the process that drives; several may share a folder only one after another.
        rules: rewards and ends for an episode that a killed process had left open; its steps were not settled yet.

    Raises:
        ValueError: the folder holds episodes of another interface.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        io: IOSpec,
        *,
        run_id: int = 0,
        actor_id: int = 0,
        rules: EpisodeRules | None = None,
    ) -> None:
        self.path, self.io = Path(path), io
        self.run_id, self.actor_id, self._rules = run_id, actor_id, rules or EpisodeRules()
        self.path.mkdir(parents=True, exist_ok=True)
        self.identity = self._identity()
        """Tells this log from every other; rows are named within it."""
        self._recorder = Recorder(self.path)
        self._journal: Recorder | None = None
        self._open: Key | None = None
        self._teaching = False
        self.manifest: list[dict[str, Any]] = self._reconcile()
        self._keys = {episode_key(line) for line in self.manifest}
        self.recovered: list[Key] = self._recover()
        """Episodes that a killed process had left open; they are closed and stored now."""
        self.words: dict[int, tuple[bool, bool]] = {}
        """Episode of this actor -> (success, taken back): what a person said about it last, after its end."""
        self.unwritten: list[dict[str, object]] = []
        """Words for which a full disk has no room yet; they count, and are lost only if the process ends before."""
        for line in read_corrections(self.path):
            key = episode_key(line)
            if (key.run_id, key.actor_id) == (run_id, actor_id):
                self.words[key.episode_id] = bool(line["success"]), bool(line.get("undone"))

    @property
    def next_episode(self) -> int:
        """Number of the next episode of this actor."""
        mine = [key.episode_id for key in self._keys if (key.run_id, key.actor_id) == (self.run_id, self.actor_id)]
        return max(mine, default=-1) + 1

    @property
    def steps(self) -> int:
        """Steps on disk, invalid ones included."""
        return sum(line["steps"] for line in self.manifest)

    def begin(self, *, teaching: bool = False) -> Key:
        """Open the next episode, a demonstration where `teaching`; its steps may be journalled now."""
        if self._open is not None:
            raise RuntimeError(f"episode {self._open.episode_id} is still open; commit it first")
        self._open, self._teaching = Key(self.run_id, self.actor_id, self.next_episode), teaching
        shutil.rmtree(self.path / "open", ignore_errors=True)
        self._journal = Recorder(self.path / "open", sync=False)
        return self._open

    def journal(self, step: ControlStep) -> None:
        """Note a step as it happens.

        Raises:
            OSError: the disk is full or gone; the steps before are unharmed.
        """
        if self._journal is None or self._open is None:
            raise RuntimeError("journal() without an open episode; call begin() first")
        facts = {**self.facts(self._open), "teaching": self._teaching}
        self._journal.append(to_episode([step], EndReason.NONE, facts))

    def commit(self, draft: EpisodeDraft, facts: Mapping[str, object] | None = None) -> Episode | None:
        """Store the closed episode; when this returns it is on the disk for good.

        Args:
            draft: closed.
            facts: further plain values for `Episode.meta`, e.g. operator or notes.

        Returns:
            The episode, or None when it had no steps.

        Raises:
            OSError: the disk is full or gone; the journal keeps the steps, and commit may be tried again.
        """
        if self._open is None:
            raise RuntimeError("commit() without an open episode; call begin() first")
        episode = None
        if len(draft):
            episode = draft.episode({**self.facts(self._open), **(facts or {})})
            self._append(episode)
        self._close_journal()
        return episode

    def episodes(self) -> Iterator[Episode]:
        """Every complete episode in the order of recording; a key that occurs twice is given once."""
        if not list(self.path.glob("segment-*.episodes")):
            return
        seen: set[Key] = set()
        for episode in Recording(self.path):
            key = episode_key(episode.meta)
            if key not in seen:
                seen.add(key)
                yield episode

    def read(self, number: int) -> Episode:
        """The complete episode `number` of this actor.

        Raises:
            KeyError: there is none.
        """
        wanted = Key(self.run_id, self.actor_id, number)
        places = [i for i, line in enumerate(self.manifest) if episode_key(line) == wanted]
        if not places:
            raise KeyError(f"{self.path} holds no complete episode {number} of actor {self.actor_id}")
        recording = Recording(self.path)
        order = [*range(places[0], len(recording)), *range(places[0])]  # where it is, but for records that occur twice
        return next(recording[i] for i in order if episode_key(recording[i].meta) == wanted)

    def correct(self, number: int, success: bool, *, undone: bool = False) -> None:
        """A person says after the end how episode `number` of this actor went; kept beside the episodes.

        Args:
            number: of the episode.
            success: or failure.
            undone: they take back what was said about it; `success` is what counts without it.
        """
        key = Key(self.run_id, self.actor_id, number)
        line = {"run_id": key.run_id, "actor_id": key.actor_id, "episode_id": number, "success": success}
        self.unwritten.append({**line, **({"undone": True} if undone else {})})
        self.words[number] = success, undone
        self.write_words()

    def write_words(self) -> None:
        """Write what a person said; a full disk keeps it in `unwritten`, and it is tried again at the next call.

        Raises:
            OSError: the file cannot be written, for another reason.
        """
        try:
            while self.unwritten:
                append_line(self.path / CORRECTIONS, self.unwritten[0])
                del self.unwritten[0]
        except OSError as error:
            if error.errno not in FULL:
                raise

    def close(self) -> None:
        """Close the files; an episode under way stays in the journal."""
        self.write_words()
        self._recorder.close()
        if self._journal is not None:
            self._journal.close()

    def _identity(self) -> str:
        path = self.path / "identity"
        if not path.exists():
            write_bytes(path, uuid.uuid4().hex.encode())
        return path.read_text()

    def facts(self, key: Key) -> dict[str, Any]:
        """What is said of every episode, whole or a piece of it."""
        return {"run_id": key.run_id, "actor_id": key.actor_id, "episode_id": key.episode_id, "io": self.io}

    def _append(self, episode: Episode) -> None:
        key = episode_key(episode.meta)
        if key in self._keys:
            return
        segment = self._recorder.append(episode)
        self._keys.add(key)
        line = _line(episode, segment.name)
        self.manifest.append(line)
        append_line(self.path / MANIFEST, line)

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
        self._journal = self._open = None
        shutil.rmtree(self.path / "open", ignore_errors=True)

    def _reconcile(self) -> list[dict[str, object]]:
        """The manifest, with lines for episodes that were stored just before a kill; the segments are the truth."""
        listed = read_manifest(self.path)
        known = {episode_key(line): line for line in listed}
        lines = []
        if list(self.path.glob("segment-*.episodes")):
            recording, seen = Recording(self.path), set()
            if len(recording) == len(listed) == len(known):
                self._check(listed)
                return listed
            for index in range(len(recording)):
                episode = recording[index]
                key = episode_key(episode.meta)
                if key not in seen:
                    seen.add(key)
                    lines.append(known.get(key) or _line(episode, ""))
        self._check(lines)
        if lines != listed:
            write_bytes(self.path / MANIFEST, "".join(json.dumps(line) + "\n" for line in lines).encode())
        return lines

    def _check(self, lines: Sequence[Mapping[str, object]]) -> None:
        if not lines:
            return
        first = Recording(self.path)[0].meta.get("io")
        if isinstance(first, IOSpec):
            differences = first.differences(self.io)
            if differences:
                raise ValueError(
                    f"{self.path} holds episodes of another robot or world:\n  - "
                    + "\n  - ".join(differences)
                    + "\nchoose another folder"
                )

    def _recover(self) -> list[Key]:
        """Close what a killed process left open: truncated, its last step invalid; a demonstration has failed."""
        folder = self.path / "open"
        if not list(folder.glob("segment-*.episodes")):
            shutil.rmtree(folder, ignore_errors=True)
            return []
        pieces = list(Recording(folder))
        found: list[Key] = []
        if pieces and episode_key(pieces[0].meta) not in self._keys:
            key = episode_key(pieces[0].meta)
            steps = [to_steps(piece)[0] for piece in pieces if episode_key(piece.meta) == key]
            draft = EpisodeDraft(self._rules, self.io.control_hz)
            for step in steps:
                if step.invalid_reason != Invalid.GAP:
                    draft.add(step)
            draft.close(EndReason.FAULT)
            draft.steps[-1].invalid_reason = Invalid.RECOVERED
            failed = {"teaching": True, "shown": True, "discarded": True} if pieces[0].meta.get("teaching") else {}
            self._append(draft.episode({**self.facts(key), **failed, "recovered": True}))
            found.append(key)
        shutil.rmtree(folder, ignore_errors=True)
        return found


def read_manifest(path: Path) -> list[dict[str, Any]]:
    """Lines of a folder's manifest; one that was cut off by a kill is left out."""
    return read_lines(path / MANIFEST)


def _line(episode: Episode, segment: str) -> dict[str, object]:
    columns = episode.meta["columns"]
    key = episode_key(episode.meta)
    digest = hashlib.sha256()
    for name in sorted(episode.obs):
        digest.update(np.ascontiguousarray(episode.obs[name]).tobytes())
    for array in (episode.action, episode.proposed, episode.reward):
        digest.update(np.ascontiguousarray(array).tobytes())
    return {
        "run_id": key.run_id,
        "actor_id": key.actor_id,
        "episode_id": key.episode_id,
        "segment": segment,
        "steps": len(episode),
        "valid": int(columns["valid"].sum()),
        "human_steps": int(episode.intervened.sum()),
        "demo": bool(episode.meta.get("demo", False)),
        "teaching": bool(episode.meta.get("teaching", False)),
        "end_reason": EndReason(episode.meta["end_reason"]).name.lower(),
        "sha256": digest.hexdigest(),
    }
