"""The actor's end of the link."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch import Tensor

from robot_rl.extras import require
from robot_rl.link.session import LinkSettings, Place, load_weights, open_session, token_path

if TYPE_CHECKING:
    import zenoh

Rows = Callable[[Place], "tuple[dict[str, Any], bytes, Place] | None"]
"""Place -> head, body and the place behind it of the rows that begin there, or None."""


class ActorLink:
    """Sends rows until they are confirmed, fetches weights; all in a thread of its own.

    Args:
        settings: where and how.
        rows: what there is to send, by place; called in the link's thread.
        end: () -> place behind everything that could be sent now.
        like: names, shapes and types of the weights.
        facts: what both sides must agree on; the learner refuses an actor with others.
        log: identity of the actor's log: rows are named within it, so a learner that has rows of another log under
            this actor's number refuses instead of taking new rows for old ones.
        words: episode -> (success, taken back), what a person said about it last, after its end. Every sign of life
            carries them all, so none is lost.
    """

    def __init__(
        self,
        settings: LinkSettings,
        rows: Rows,
        end: Callable[[], Place],
        like: Mapping[str, Tensor],
        facts: Mapping[str, object],
        log: str = "",
        words: Mapping[int, tuple[bool, bool]] | None = None,
    ) -> None:
        self.settings, self._words = settings, {} if words is None else words
        self._rows, self._end, self._like = rows, end, dict(like)
        self._greeting = {"facts": dict(facts), "actor": settings.actor_id, "log": log}
        self._session = open_session(settings, listen=False)
        control = require("zenoh").CongestionControl
        # a piece larger than a congested queue would be dropped for ever; waiting costs this thread alone
        self._drop, self._block = control.DROP, control.BLOCK
        self._prefix = f"robot_rl/{settings.name}"
        self._news = threading.Event()
        self._beat: dict[str, Any] = {}
        self._heard = self._moved = -1e9
        self._agreed = ""
        self.refused = ""
        """Why the learner will not work with this actor, or ""."""
        self.acked: Place = (0, 0)
        """Everything before this is on the learner's disk."""
        self._cursor: Place | None = None
        self._flight: list[tuple[Place, int]] = []
        self.sent = self.resent = self.rejected = 0
        """Rows sent; of them sent again; weights that were refused."""
        self.alarm = ""
        """What is wrong, or ""."""
        self._newest: tuple[int, dict[str, Tensor]] | None = None
        self._known = ("", -1)  # hash and version of the newest weights that were fetched
        self._bad = ("", -1e9)
        self.listens = False
        """Something answers at the endpoint; whether it admits us shows in `alive`."""
        self._tried = -1e9
        self.done = False
        """Set at the end: nothing more will be driven."""
        self._stop = False
        self._subscriber = self._session.declare_subscriber(f"{self._prefix}/learner", self._on_beat)
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    @property
    def silence(self) -> float:
        """Seconds since the learner's last sign of life."""
        return time.monotonic() - self._heard

    @property
    def alive(self) -> bool:
        """The learner has been heard of."""
        return self.silence < self.settings.lost_s

    @property
    def standing(self) -> str:
        """Where we stand with the learner while it is not heard of, or ""."""
        endpoint = self.settings.endpoint
        if self.alive:
            return ""
        if not self.listens:
            return f"no learner answers at {endpoint}"
        if self.settings.secret:
            how = "does it know link.certificate, and do we know its authority?"
        elif self.settings.password:
            how = "do both sides give the same link.user and password?"
        else:
            how = f"each user and machine has a token of its own ({token_path()}); give both ROBOT_RL_LINK_PASSWORD"
        return f"connected to {endpoint}, not admitted: {how}"

    @property
    def finished(self) -> bool:
        """The learner says that it has learned all it will, and we have its last weights."""
        return bool(self._beat.get("finished")) and self._beat.get("hash") == self._known[0]

    @property
    def version(self) -> int:
        """Of the newest weights that arrived, -1 before the first."""
        return self._known[1]

    def notify(self) -> None:
        """There may be more to send."""
        self._news.set()

    def take(self) -> tuple[int, dict[str, Tensor]] | None:
        """The newest weights since the last call: version and tensors."""
        found, self._newest = self._newest, None
        return found

    def close(self) -> None:
        """End the link."""
        self._stop = True
        self._news.set()
        self._thread.join(10.0)
        self._session.close()

    # ------------------------------------------------------------ in the link's threads

    def _on_beat(self, sample: zenoh.Sample) -> None:
        with suppress(ValueError, TypeError, AttributeError):
            beat = json.loads(bytes(sample.payload))
            place = beat.get("places", {}).get(str(self.settings.actor_id), (0, 0))
            self._beat = {**beat, "place": (int(place[0]), int(place[1]))}
            self._heard = time.monotonic()
            self._news.set()

    def _run(self) -> None:
        last = -1e9
        while not self._stop:
            self._news.wait(self.settings.heartbeat_s / 2)
            self._news.clear()
            now = time.monotonic()
            try:
                if not self.alive and now - self._tried > 1.0:
                    self._tried, self.listens = now, self._answers()
                if now - last >= self.settings.heartbeat_s:
                    last = now
                    life = {"done": self.done, "end": self._end(), "version": self._known[1]}
                    life["words"] = [(number, *word) for number, word in list(self._words.items())]
                    self._put(f"actor/{self.settings.actor_id}", json.dumps(life).encode())
                self._exchange(now)
            except Exception as error:  # a thread that ended here would leave a robot that records for nobody
                self.alarm = f"the link stumbled and goes on ({type(error).__name__}: {error})"
                time.sleep(min(self.settings.resend_s, 1.0))

    def _answers(self) -> bool:
        """Whether anything listens at the endpoint; for telling a person, no more."""
        address = self.settings.address
        with suppress(OSError):
            if address is not None:
                socket.create_connection(address, timeout=0.5).close()
                return True
        return False

    def _exchange(self, now: float) -> None:
        if not self.alive or not self._agree():
            return
        self._follow(self._beat["place"], now)
        self._send()
        if self._beat.get("hash") not in (None, self._known[0]):
            self._fetch(now)

    def _agree(self) -> bool:
        """Show the learner what we run; once for each life of it."""
        session = str(self._beat.get("session"))
        if self._agreed == session:
            return not self.refused
        answer = self._ask("hello", json.dumps(self._greeting).encode())
        if answer is None:
            return False
        self.refused = str(json.loads(answer[0]).get("refused", ""))
        self._agreed, self._cursor = session, None
        return not self.refused

    def _follow(self, acked: Place, now: float) -> None:
        """Set where to go on from what the learner says it has."""
        if acked != self.acked or self._cursor is None:
            self._moved = now
        self.acked = acked
        self._flight = [(place, count) for place, count in self._flight if place > acked]
        if self._cursor is None or acked > self._cursor:
            self._cursor, self._flight = acked, []
        elif self._flight and now - self._moved > self.settings.resend_s:
            self.resent += sum(count for _, count in self._flight)
            self._cursor, self._flight, self._moved = acked, [], now

    def _send(self) -> None:
        while sum(count for _, count in self._flight) < self.settings.window and self._cursor is not None:
            found = self._rows(self._cursor)
            if found is None:
                return
            head, body, after = found
            self._put(f"rows/{self.settings.actor_id}", body, json.dumps(head).encode(), wait=True)
            if not self._flight:
                self._moved = time.monotonic()
            self._cursor = after
            self._flight.append((after, int(head["count"])))
            self.sent += int(head["count"])

    def _fetch(self, now: float) -> None:
        wanted = str(self._beat["hash"])
        if self._bad[0] == wanted and now - self._bad[1] < 2.0:
            return
        answer = self._ask("weights", b"")
        if answer is None:
            return
        blob, head = answer
        try:
            facts = json.loads(head)
            if hashlib.sha256(blob).hexdigest() != facts["hash"]:
                raise ValueError("their hash differs")
            tensors = load_weights(blob, self._like)
            version = int(facts["version"])
        except (ValueError, KeyError, TypeError) as error:
            self.rejected += 1
            self._bad = wanted, now
            self.alarm = f"weights from the learner were refused ({error}); the last good ones drive on"
            return
        self.alarm, self._known, self._newest = "", (facts["hash"], version), (version, tensors)

    def _put(self, key: str, payload: bytes, attachment: bytes | None = None, wait: bool = False) -> None:
        control = self._block if wait else self._drop
        with suppress(Exception):  # a session that is being closed; rows are sent again anyway
            self._session.put(f"{self._prefix}/{key}", payload, attachment=attachment, congestion_control=control)

    def _ask(self, key: str, payload: bytes) -> tuple[bytes, bytes] | None:
        with suppress(Exception):  # the learner died meanwhile
            for reply in self._session.get(f"{self._prefix}/{key}", payload=payload, timeout=5.0):
                if reply.ok is not None:
                    extra = reply.ok.attachment
                    return bytes(reply.ok.payload), bytes(extra) if extra is not None else b""
        return None
