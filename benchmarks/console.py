"""The operator's console: how late a key arrives at the control loop, how many pictures arrive at the page.

A client on this machine sends inputs over the console's WebSocket as the page does; a control loop reads the device at
its rate and notes which input it sees first at what time. Both read the same clock. The browser's own share (a key
event, a decoded JPEG) is not in it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from robot_rl.extras import require
from robot_rl.human.devices.browser import BrowserOptions, BrowserTeleop
from robot_rl.human.devices.teleop import Frame
from robot_rl.types import IOSpec

IO = IOSpec({"state": ((3,), "float32")}, ("tip_dx", "tip_dy"), (-1.0,) * 2, (1.0,) * 2, ("m",) * 2, 10.0)


def run(
    quick: bool = False,
    seconds: float = 10.0,
    rates: tuple[float, ...] = (10.0, 50.0),
    size: tuple[int, ...] = (480, 640),
) -> dict[str, Any]:
    """Measure at several rates of the control loop.

    Args:
        quick: 2 seconds each.
        seconds: of each rate.
        rates: of the control loop [Hz]; every tick has a picture.
        size: of the pictures (H, W).

    Returns:
        {"rows": one per rate: milliseconds from sending an input to the control loop having it (what waiting for the
        next tick costs on average is given beside it), pictures per second at the client, their age on arrival, and the
        time that a tick spent on showing}.
    """
    rows = [_measure(rate, 2.0 if quick else seconds, (size[0], size[1])) for rate in rates]
    return {"rows": rows}


def _measure(rate: float, seconds: float, size: tuple[int, int]) -> dict[str, Any]:
    teleop = BrowserTeleop(BrowserOptions(port=0), IO, announce=False)
    client = _Client(teleop.server.url)
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    client.ready.wait(10.0)
    picture = np.random.default_rng(0).integers(0, 256, (size[0] // 16, size[1] // 16, 3), np.uint8)
    picture = np.kron(picture, np.ones((16, 16, 1), np.uint8))  # coarse structure, as scenes have
    seen: dict[int, float] = {}
    shown: list[float] = []
    tick, period = 0, 1.0 / rate
    following = time.monotonic()
    end = following + seconds
    while time.monotonic() < end:
        reading = teleop.read(time.monotonic(), {}, np.zeros(2, np.float32))
        number = round(float(reading.value[0]) / 0.6 * 0.95 * 1e4)  # undo speed and dead zone
        if reading.connected and reading.enable and number not in seen:
            seen[number] = time.monotonic()
        begun = time.perf_counter()
        client.drawn[tick] = time.monotonic()
        teleop.show(
            {"episodes": 0, "success": None, "tick": tick, "problem": ""}, lambda _: Frame(picture, time.monotonic())
        )
        shown.append(1e3 * (time.perf_counter() - begun))
        tick += 1
        following += period
        time.sleep(max(following - time.monotonic(), 0.0))
    client.stop.set()
    thread.join(5.0)
    teleop.close()
    # an input has arrived when the loop has it or a later one
    late: list[float] = []
    for number, sent in client.sent.items():
        later = [when for n, when in seen.items() if n >= number]
        late += [1e3 * (min(later) - sent)] if later else []
    if not late:
        raise RuntimeError("no input arrived at the control loop; is something else listening there?")
    ages = 1e3 * np.array(client.ages) if client.ages else np.array([np.nan])
    return {
        "control_hz": rate,
        "inputs": len(late),
        "input_ms_p50": float(np.percentile(late, 50)),
        "input_ms_p95": float(np.percentile(late, 95)),
        "mean_wait_for_a_tick_ms": 500.0 / rate,
        "pictures_per_s": len(client.ages) / seconds,
        "picture_age_ms_p50": float(np.percentile(ages, 50)),
        "picture_age_ms_p95": float(np.percentile(ages, 95)),
        "show_ms_p95": float(np.percentile(shown, 95)),
    }


@asynccontextmanager
async def page_socket(url: str) -> AsyncIterator[Any]:
    """The socket of a session's page, whose address with its token this is."""
    aiohttp: Any = require("aiohttp")
    base, _, token = url.partition("?")
    address = base.replace("http", "ws", 1) + "socket?" + token
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, headers={"Origin": base.rstrip("/")}, max_msg_size=1 << 24) as socket,
    ):
        yield socket


class _Client:
    """What the page does, without a browser: 30 inputs per second, takes every picture."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ready, self.stop = threading.Event(), threading.Event()
        self.sent: dict[int, float] = {}
        self.drawn: dict[int, float] = {}
        self.ages: list[float] = []
        self._tick = -1

    def run(self) -> None:
        """Until `stop`."""
        asyncio.run(self._session())

    async def _session(self) -> None:
        async with page_socket(self._url) as socket:
            self.ready.set()
            listening = asyncio.ensure_future(self._listen(socket))
            number = 0
            while not self.stop.is_set():
                number += 1
                # the number travels as a deflection; the dead zone of 0.05 is added so that none of it is lost
                value = number * 1e-4 + 0.05
                self.sent[number] = time.monotonic()
                await socket.send_str(
                    json.dumps({"type": "input", "seq": number, "axes": {"x": value}, "enable": True})
                )
                await asyncio.sleep(1 / 30)
            listening.cancel()

    async def _listen(self, socket: Any) -> None:
        async for message in socket:
            if message.type.name == "TEXT":
                found = json.loads(message.data)
                self._tick = found.get("tick", self._tick)
            elif message.type.name == "BINARY":
                await socket.send_str(json.dumps({"type": "seen"}))
                if self._tick in self.drawn:
                    self.ages.append(time.monotonic() - self.drawn[self._tick])
