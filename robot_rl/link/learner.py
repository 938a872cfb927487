"""The learner's end of the link."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch import Tensor

from robot_rl.extras import require
from robot_rl.link.session import LinkSettings, Place, dump_weights, open_session

if TYPE_CHECKING:
    import zenoh


class LearnerLink:
    """Takes rows, says which of them are safe, hands out weights.

    Args:
        settings: where and how.
        facts: what both sides must agree on, besides "io".
        places: actor -> what it should send next, from the learner's disk.
        most: messages that may wait; what comes on top is dropped, and sent again by its actor.
        admit: (actor, identity of its log) -> why it is refused, or ""; called in the link's thread.
    """

    def __init__(
        self,
        settings: LinkSettings,
        facts: Mapping[str, Any],
        places: Mapping[int, Place],
        most: int = 256,
        admit: Callable[[int, str], str] = lambda actor, log: "",
    ) -> None:
        self._admit = admit
        self.settings, self._facts = settings, dict(facts)
        self._greeted = threading.Event()
        self._places = dict(places)
        self._queue: queue.Queue[tuple[dict[str, object], bytes]] = queue.Queue(most)
        self.dropped = self.nonsense = 0
        """Messages that found no room; messages that were none of ours."""
        self._actors: dict[int, tuple[float, dict[str, Any]]] = {}
        self._weights = b"", b""  # safetensors and their name
        self._hash: str | None = None
        self._version = -1
        self.finished = False
        """Set at the end: there will be no newer weights."""
        self._id = uuid.uuid4().hex
        self._session = open_session(settings, listen=True)
        self._drop = require("zenoh").CongestionControl.DROP
        self._prefix = f"robot_rl/{settings.name}"
        self._news, self._stop = threading.Event(), False
        session, prefix = self._session, self._prefix
        self._parts = [
            session.declare_subscriber(f"{prefix}/rows/*", self._on_rows),
            session.declare_subscriber(f"{prefix}/actor/*", self._on_actor),
            session.declare_queryable(f"{prefix}/hello", self._on_hello),
            session.declare_queryable(f"{prefix}/weights", self._on_weights),
        ]
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    @property
    def io(self) -> dict[str, Any] | None:
        """Interface of the actors' robot, as plain values; None before the first actor."""
        return self._facts.get("io")

    def wait_for_actor(self, timeout: float) -> bool:
        """Whether an actor that fits has greeted."""
        return self._greeted.wait(timeout)

    def drain(self, timeout: float) -> list[tuple[dict[str, object], bytes]]:
        """Heads and bodies that came; waits for the first up to `timeout` seconds."""
        found = []
        with suppress(queue.Empty):
            found.append(self._queue.get(timeout=timeout) if timeout > 0 else self._queue.get_nowait())
            while True:
                found.append(self._queue.get_nowait())
        return found

    def confirm(self, places: Mapping[int, Place]) -> None:
        """What is on the disk."""
        self._places = dict(places)
        self._news.set()

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Newer weights."""
        blob = dump_weights(tensors)
        digest = hashlib.sha256(blob).hexdigest()
        self._weights = blob, json.dumps({"version": version, "hash": digest}).encode()
        self._version, self._hash = version, digest
        self._news.set()

    def alive(self) -> list[int]:
        """Actors that have been heard of lately."""
        now = time.monotonic()
        return [actor for actor, (seen, _) in list(self._actors.items()) if now - seen < self.settings.lost_s]

    def words(self) -> dict[int, dict[int, tuple[bool, bool]]]:
        """Actor -> episode -> (success, taken back): what was said about it last, after its end."""
        return {actor: life["words"] for actor, (_, life) in list(self._actors.items())}

    def complete(self) -> bool:
        """Every actor that was heard of is done, and all that it has is on our disk."""
        known = list(self._actors.items())
        return bool(known) and all(
            life.get("done") and tuple(life["end"]) == self._places.get(actor, (0, 0)) for actor, (_, life) in known
        )

    def is_served(self) -> bool:
        """Every living actor has the newest weights."""
        return all(self._actors[actor][1].get("version") == self._version for actor in self.alive())

    def close(self) -> None:
        """End the link."""
        self._stop = True
        self._news.set()
        self._thread.join(10.0)
        self._session.close()

    # ------------------------------------------------------------ in the link's threads

    def _run(self) -> None:
        while not self._stop:
            life = {
                "session": self._id,
                "places": {str(actor): place for actor, place in self._places.items()},
                "version": self._version,
                "hash": self._hash,
                "finished": self.finished,
            }
            with suppress(Exception):  # a session that is being closed
                self._session.put(
                    f"{self._prefix}/learner", json.dumps(life).encode(), congestion_control=self._drop, express=True
                )
            self._news.wait(self.settings.heartbeat_s)
            self._news.clear()

    def _on_rows(self, sample: zenoh.Sample) -> None:
        try:
            head = json.loads(bytes(sample.attachment or b""))
            if not isinstance(head, dict):
                raise ValueError("no object")
        except (ValueError, TypeError):
            self.nonsense += 1
            return
        try:
            self._queue.put_nowait((head, bytes(sample.payload)))
        except queue.Full:
            self.dropped += 1

    def _on_actor(self, sample: zenoh.Sample) -> None:
        try:
            life = json.loads(bytes(sample.payload))
            life["end"] = (int(life["end"][0]), int(life["end"][1]))
            life["words"] = {int(number): (bool(good), bool(undone)) for number, good, undone in life.get("words", [])}
            actor = int(str(sample.key_expr).rpartition("/")[2])
        except (ValueError, TypeError, KeyError, IndexError):
            self.nonsense += 1
            return
        self._actors[actor] = time.monotonic(), life

    def _on_hello(self, query: zenoh.Query) -> None:
        try:
            greeting = json.loads(bytes(query.payload or b""))
            theirs, actor, log = dict(greeting["facts"]), int(greeting["actor"]), str(greeting["log"])
        except (ValueError, TypeError, KeyError):
            query.reply(f"{self._prefix}/hello", json.dumps({"refused": "the greeting is none"}).encode())
            return
        names = sorted({*theirs, *self._facts} - ({"io"} if "io" not in self._facts else set()))
        wrong = [
            f"{name}: {theirs.get(name)!r} there, {self._facts.get(name)!r} here"
            for name in names
            if theirs.get(name) != self._facts.get(name)
        ]
        if not wrong:
            wrong = [why] if (why := self._admit(actor, log)) else []
        if not wrong:
            self._facts.setdefault("io", theirs.get("io"))
            self._greeted.set()
        answer = {"refused": "; ".join(wrong)}
        query.reply(f"{self._prefix}/hello", json.dumps(answer).encode())

    def _on_weights(self, query: zenoh.Query) -> None:
        if self._hash is not None:
            blob, head = self._weights
            query.reply(f"{self._prefix}/weights", blob, attachment=head)
