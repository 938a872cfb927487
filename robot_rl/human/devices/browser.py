"""The browser as a device: what the operator does there, and what they see."""

from __future__ import annotations

import io as bytes_io
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from robot_rl.arbiter import Reading
from robot_rl.extras import require
from robot_rl.human.console.server import ConsoleServer, ServeOptions
from robot_rl.human.devices.remote import RemoteTeleop
from robot_rl.human.devices.teleop import Camera, Frame
from robot_rl.real.core.clock import Clock
from robot_rl.types import IOSpec, Obs
from robot_rl.types.options import Count, Positive

FILM_HZ = 40.0
"""Looks for new pictures per second: none of a camera of 30 Hz is missed."""
CAMERAS = 64
"""Number of the second camera on the wire is one more; the first is the large picture, 0."""
GHOST = 128
"""Number of the large picture's ghost on the wire; those of the policy's pictures follow."""


class BrowserOptions(ServeOptions):
    """Of the console of `human=browser`."""

    speed: Positive = 0.6
    """Factor on the axes."""
    frame_every: Count = 1
    """Ticks per camera picture, which may come as pixels or as a JPEG."""
    quality: Annotated[int, Field(ge=1, le=95)] = 75
    """Of the JPEGs; only for the screen, learners never see them."""


class BrowserTeleop(RemoteTeleop):
    """Keyboard, mouse and gamepad of a web page, and its screen.

    Args:
        options: where the console listens, and what it shows.
        io: interface of the policy.
        clock: of the control loop.
        announce: print the address.
    """

    def __init__(
        self, options: BrowserOptions, io: IOSpec, *, clock: Clock | None = None, announce: bool = True
    ) -> None:
        super().__init__(io, clock=clock, speed=options.speed)
        self._every, self._quality, self._tick = options.frame_every, options.quality, 0
        self._hz = io.control_hz
        self._ages: deque[float] = deque(maxlen=200)
        self._episodes = -1
        self.reel = Reel()
        self._newest: bytes | None = None
        self._cameras: list[str] = []
        self._film: threading.Thread | None = None
        self._over, self._torn = threading.Event(), ""
        self._encoder = ThreadPoolExecutor(1, "pictures")
        self._encoding: Future[None] | None = None
        self._image: Any = require("PIL.Image")
        self.server = ConsoleServer(
            self._message, self.disconnect, options, now=self._clock.now, replay=self.reel.picture
        )
        if announce:
            sys.stderr.write(f"console: {self.server.url}\n")
            sys.stderr.flush()

    def read(self, now: float, obs: Obs, policy: np.ndarray) -> Reading:
        """The newest message; its age counts as latency while the operator drives."""
        reading = super().read(now, obs, policy)
        if reading.enable and reading.connected and math.isfinite(reading.stamp):
            self._ages.append(1e3 * max(now - reading.stamp, 0.0))
        return reading

    def show(
        self,
        telemetry: dict[str, Any],
        frame: Camera | None = None,
        views: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Numbers at every tick, pictures at every `frame_every`-th; nothing is rendered while nobody looks.

        Args:
            telemetry: plain values.
            frame: where its picture comes from.
            views: name -> (H, W, 3) what the policy sees.
        """
        self._tick += 1
        views = dict(list((views or {}).items())[:8])
        if self.server.watched and self._tick % self._every == 0 and (self._encoding is None or self._encoding.done()):
            if self._encoding is not None:
                self._encoding.result()  # what went wrong there is told here
            shown, now = None if frame is None else frame(self._quality), self._clock.now()
            pixels = [Frame(np.array(view), now) for view in views.values()]
            episode = int(telemetry.get("episode", -1))
            if shown is not None and not isinstance(shown.picture, bytes):
                shown = replace(shown, picture=np.array(shown.picture))
            self._encoding = self._encoder.submit(self._encode, [shown, *pixels], episode)
        if self._ages:
            p50, p95 = np.percentile(self._ages, (50, 95))
            telemetry = {**telemetry, "input_ms": [round(float(p50), 1), round(float(p95), 1)]}
        kept = [{**line, "pictures": self.reel.count(line["episode"])} for line in telemetry.get("list", ())]
        if self._film is not None and self._newest is not None and "episode" in telemetry:
            self.reel.add(int(telemetry["episode"]), self._newest)
        problem = " ".join(text for text in (telemetry["problem"], self._torn) if text)
        screen = {"list": kept, "hz": self._hz, "views": list(views), "cameras": self._cameras, "problem": problem}
        self.server.publish({**telemetry, **screen})
        if telemetry["episodes"] != self._episodes:
            self._episodes = telemetry["episodes"]
            if telemetry["success"] is not None:
                names = ("episodes", "steps", "success", "intervention_rate", "human_seconds")
                self.server.remember({name: telemetry[name] for name in names})

    def film(self, source: Callable[[], Mapping[str, Frame]]) -> None:
        """In a thread of its own, `FILM_HZ` at most; a picture is sent once, a JPEG as it is."""
        self._film = threading.Thread(target=self._play, args=(source,), name="film", daemon=True)
        self._film.start()

    def _play(self, source: Callable[[], Mapping[str, Frame]]) -> None:
        sent: dict[str, float] = {}
        while not self._over.wait(1.0 / FILM_HZ):
            if not self.server.watched:
                continue
            try:
                found = source()
                self._cameras = list(found)[:8]
                for number, name in enumerate(self._cameras):
                    frame = found[name]
                    if sent.get(name) == frame.taken:
                        continue
                    sent[name] = frame.taken
                    self._send(CAMERAS + number if number else 0, frame)
            except Exception as error:  # the loop must go on without pictures, and the person must know
                self._torn = f"no pictures: {error}"
                return

    def newest(self) -> bytes | None:
        """The large picture that was sent last."""
        return self._newest

    def ghost(self, screen: bytes | None, views: Mapping[str, np.ndarray]) -> None:
        """Shown over the live pictures of the same names while the scene is put back."""
        pictures = [] if screen is None else [(GHOST, screen)]
        pictures += [(GHOST + 1 + i, self._jpeg(view)) for i, view in enumerate(list(views.values())[:8])]
        for which, picture in pictures:
            self.server.show(which, picture, self._clock.now())

    def close(self) -> None:
        """Stop serving."""
        self._over.set()
        if self._film is not None:
            self._film.join(2.0)
        self._encoder.shutdown()
        self.server.close()

    def _encode(self, frames: list[Frame | None], episode: int) -> None:
        """In a thread of its own: the encoder does not hold the interpreter."""
        for which, frame in enumerate(frames):
            if frame is None:
                continue
            picture = self._send(which, frame)
            if which == 0 and episode >= 0:
                self.reel.add(episode, picture)

    def _send(self, which: int, frame: Frame) -> bytes:
        """Show a picture on the page; the first one is the screen."""
        picture = frame.picture if isinstance(frame.picture, bytes) else self._jpeg(frame.picture)
        self.server.show(which, picture, frame.taken)
        if which == 0:
            self._newest = picture
        return picture

    def _jpeg(self, pixels: np.ndarray) -> bytes:
        out = bytes_io.BytesIO()
        self._image.fromarray(pixels).save(out, "JPEG", quality=self._quality)
        return out.getvalue()

    def _message(self, message: dict[str, Any]) -> None:
        kind, at = message.get("type"), message.get("at")
        sent = None if at is None else float(at) * 1e-3
        if kind == "input":
            axes = message.get("axes", {})
            if not isinstance(axes, dict) or len(axes) > 16:
                raise ValueError("axes is no small object of numbers")
            numbers = {str(k): float(v) for k, v in axes.items()}
            factor = float(message.get("factor", 1.0))
            self.message(int(message["seq"]), numbers, bool(message.get("enable")), factor, sent)
        elif kind == "press":
            self.press(str(message["kind"]), int(message.get("episode", -1)), sent)
        else:
            raise ValueError(f"message type '{kind}' is unknown, expected input or press")


class Reel:
    """Pictures of the newest episodes, for looking at them again.

    Args:
        most_bytes: kept in all; the oldest episode goes first, the one under way stays.
    """

    def __init__(self, most_bytes: int = 64 << 20) -> None:
        self._most, self._bytes = most_bytes, 0
        self._episodes: dict[int, list[bytes]] = {}
        self._lock = threading.Lock()

    def add(self, episode: int, picture: bytes) -> None:
        """The next picture of an episode."""
        with self._lock:
            self._episodes.setdefault(episode, []).append(picture)
            self._bytes += len(picture)
            while self._bytes > self._most and len(self._episodes) > 1:
                self._bytes -= sum(map(len, self._episodes.pop(min(self._episodes))))

    def count(self, episode: int) -> int:
        """Pictures of an episode."""
        with self._lock:
            return len(self._episodes.get(episode, ()))

    def picture(self, episode: int, number: int) -> bytes | None:
        """One of them, or None."""
        with self._lock:
            kept = self._episodes.get(episode, [])
            return kept[number] if 0 <= number < len(kept) else None
