"""A small web server beside the control loop: serves the page, takes commands, shows what happens.

It listens on the loopback interface, asks for a token, and accepts WebSockets only from its own page (Host and Origin),
so that no other web page of the operator's browser can drive the robot. One page has the seat and drives; every page
may stop and hold. The control loop never waits for it: telemetry and pictures are overwritten by newer ones until a
client has taken them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import ipaddress
import json
import secrets
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import Field

from robot_rl.extras import require
from robot_rl.types import Options

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware

FOLDER = Path(__file__).parent
FILES = {"/console.js": "text/javascript", "/input.js": "text/javascript", "/console.css": "text/css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
LARGEST_MESSAGE = 4096
FOR_ALL = ("estop", "hold")
"""Keys that count from every page."""
SILENT_S = 2.0
"""A page in the seat that says nothing for so long may be replaced without being asked."""


class ServeOptions(Options):
    """Where a console listens, and who may open it."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8765
    """0 takes a free one."""
    token: str | None = None
    """What clients must know; null makes one."""
    hosts: tuple[str, ...] = ()
    """Further names under which the page may be opened, for listening elsewhere: `robot.lab`, `10.0.0.7`."""
    certificate: str | None = None
    """PEM file with certificate chain; with `key` the console speaks TLS."""
    key: str | None = None
    """PEM file with the private key."""


class ConsoleServer:
    """Serves one operator, and viewers.

    Args:
        on_message: called in the server's thread with every message of the operator (a dict with "type").
        on_leave: called when the operator is gone.
        options: where it listens, and who may open it.
        now: the clock of the control loop [s]; pages learn it, so that they know how old what they get is.
        replay: (episode, number) -> a JPEG of a past episode, or None; called in the server's thread.

    Raises:
        ImportError: aiohttp is not installed.
        ValueError: an address other than loopback without TLS.
        RuntimeError: the port is taken.
    """

    def __init__(
        self,
        on_message: Callable[[dict[str, object]], None],
        on_leave: Callable[[], None],
        options: ServeOptions,
        *,
        now: Callable[[], float] = time.monotonic,
        replay: Callable[[int, int], bytes | None] | None = None,
    ) -> None:
        o, self._web = options, require("aiohttp.web")
        if not _loopback(o.host) and not o.certificate:
            raise ValueError(
                f"host is {o.host}: commands would cross the network in the clear. Use an SSH tunnel to 127.0.0.1, or "
                "give a TLS certificate and key"
            )
        self.token = o.token or secrets.token_urlsafe(18)
        self._host, self._port = o.host, o.port
        self._ssl = None
        if o.certificate:
            self._ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._ssl.load_cert_chain(o.certificate, o.key)
        self._hosts, self._replay = o.hosts, replay
        self._on_message, self._on_leave, self._now = on_message, on_leave, now
        self._operator: web.WebSocketResponse | None = None
        self._page_of: dict[web.WebSocketResponse, str] = {}  # client -> what its page calls itself
        self._owed: dict[web.WebSocketResponse, int] = {}  # client -> pictures that it has not said it saw
        self._asks: web.WebSocketResponse | None = None  # the client that wants the seat
        self._heard = 0.0  # when the operator last said anything
        self._clients: dict[web.WebSocketResponse, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._telemetry = "{}"
        self._pictures: dict[int, tuple[int, bytes]] = {}  # which -> how many there were, the newest with its head
        self._history: list[dict[str, object]] = []
        self._loop = None
        self._failure: BaseException | None = None
        self._ready, self._done = threading.Event(), None
        self._thread = threading.Thread(target=self._run, daemon=True, name="console")
        self._thread.start()
        self._ready.wait(20.0)
        if self._failure is not None:
            taken = isinstance(self._failure, OSError) and self._failure.errno == errno.EADDRINUSE
            why = (
                f"the port is taken, by another session perhaps: end that one, or choose another port, such as "
                f"human.port={o.port + 1} (0 takes a free one)"
                if taken
                else str(self._failure)
            )
            raise RuntimeError(f"the console cannot listen on {o.host}:{o.port}: {why}") from self._failure

    @property
    def port(self) -> int:
        """The port that was taken."""
        return self._port

    @property
    def url(self) -> str:
        """Address to open, with the token."""
        scheme = "https" if self._ssl else "http"
        return f"{scheme}://{self._hosts[0] if self._hosts else self._host}:{self._port}/?token={self.token}"

    @property
    def watched(self) -> bool:
        """Somebody looks at the page."""
        return bool(self._clients)

    def publish(self, telemetry: Mapping[str, object]) -> None:
        """Newest numbers; never blocks."""
        told = {"type": "state", "at": 1e3 * self._now(), **telemetry}
        self._call(self._set, json.dumps(told, allow_nan=False, default=str))

    def show(self, which: int, picture: bytes, taken: float) -> None:
        """Newest JPEG, taken at `taken` [s]: 0 is the large picture, 1 and more are the policy's; never blocks."""
        self._call(self._draw, which, struct.pack("<Bd", which, 1e3 * taken) + picture)

    def remember(self, point: Mapping[str, object]) -> None:
        """A point of the curves: one per episode; new clients get them all."""
        self._call(self._append, point)

    def close(self) -> None:
        """Stop serving."""
        if self._done is not None:
            self._call(self._done.set)
        self._thread.join(5.0)

    # ------------------------------------------------------------ in the server's thread

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _set(self, text: str) -> None:
        self._telemetry = text
        self._wake()

    def _draw(self, which: int, picture: bytes) -> None:
        count, _ = self._pictures.get(which, (0, b""))
        self._pictures[which] = count + 1, picture
        self._wake()

    def _wake(self) -> None:
        for event in self._clients.values():
            event.set()

    def _append(self, point: dict[str, object]) -> None:
        self._history.append(point)
        del self._history[:-5000]
        for client in list(self._clients):
            self._soon(client, json.dumps({"type": "history", "points": [point]}))

    def _soon(self, client: web.WebSocketResponse, text: str) -> None:
        """Send without waiting: one page that has frozen holds nobody up."""
        task = asyncio.ensure_future(_send(client, text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # the thread that made us has to know
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        web = self._web
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(middlewares=[self._guard()])
        app.router.add_get("/", self._page)
        for path in FILES:
            app.router.add_get(path, self._file)
        app.router.add_get("/replay/{episode:[0-9]+}/{number:[0-9]+}", self._past)
        app.router.add_get("/socket", self._socket)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host, self._port, ssl_context=self._ssl)
            await site.start()
            self._port = runner.addresses[0][1]
            self._ready.set()
            await self._done.wait()
            for client in list(self._clients):
                await _send(client, json.dumps({"type": "over"}))
                await client.close()
        finally:
            await runner.cleanup()

    def _guard(self) -> Middleware:
        web = self._web

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            # a foreign name in Host is how DNS rebinding looks
            name = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
            if name not in (self._host, "localhost", "127.0.0.1", "::1", *self._hosts):
                told = f"the console is not served under the name {name!r}; start it with 'human.hosts=[{name}]'"
                raise web.HTTPForbidden(text=told if name.replace(".", "").replace("-", "").isalnum() else "wrong host")
            response = await handler(request)
            if not response.prepared:
                response.headers.update(HEADERS)
            return response

        return guard

    def _is_known(self, request: web.Request) -> bool:
        return hmac.compare_digest(request.query.get("token", "").encode(), self.token.encode())

    async def _page(self, request: web.Request) -> web.Response:
        if not self._is_known(request):
            raise self._web.HTTPForbidden(text="open the address that robot-rl printed: it holds the token")
        return self._web.Response(text=(FOLDER / "page.html").read_text(), content_type="text/html")

    async def _file(self, request: web.Request) -> web.Response:
        return self._web.Response(text=(FOLDER / request.path[1:]).read_text(), content_type=FILES[request.path])

    async def _past(self, request: web.Request) -> web.Response:
        if not self._is_known(request):
            raise self._web.HTTPForbidden(text="wrong token")
        where = int(request.match_info["episode"][:9]), int(request.match_info["number"][:9])
        found = None if self._replay is None else self._replay(*where)
        if found is None:
            raise self._web.HTTPNotFound(text="this picture is not kept any more")
        return self._web.Response(body=found, content_type="image/jpeg")

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        web = self._web
        origin = urlsplit(request.headers.get("Origin", ""))
        if origin.netloc != request.headers.get("Host") or not self._is_known(request):
            raise web.HTTPForbidden(text="wrong origin or token")
        client = web.WebSocketResponse(heartbeat=2.0, max_msg_size=LARGEST_MESSAGE)
        await client.prepare(request)
        page = request.query.get("page", "")[:64]
        self._clients[client], self._page_of[client], self._owed[client] = asyncio.Event(), page, 0
        if self._operator is None or (page and page == self._page_of.get(self._operator)):
            self._seat(client)  # nobody sits there, or the same page over a connection that died
        await client.send_str(self._role(client))
        self._tell()
        await client.send_str(json.dumps({"type": "history", "points": self._history}))
        sender = asyncio.ensure_future(self._send(client))
        try:
            async for message in client:
                if message.type.name == "TEXT":
                    await self._take(client, message.data)
        finally:
            sender.cancel()
            for table in (self._clients, self._page_of, self._owed):
                table.pop(client, None)
            if client is self._asks:
                self._asks = None
            if client is self._operator:
                self._seat(None)
            self._tell()
        return client

    async def _take(self, client: web.WebSocketResponse, text: str) -> None:
        try:
            message = json.loads(text)
            if not isinstance(message, dict):
                raise ValueError("expected an object")
            if message.get("type") == "seen":
                self._owed[client] -= 1
                self._clients[client].set()
            elif message.get("type") == "ping":
                pass
            elif message.get("type") == "seat":
                self._ask(client, str(message.get("do")))
            elif client is self._operator:
                self._heard = time.monotonic()
                self._on_message(message)
            elif message.get("type") == "press" and message.get("kind") in FOR_ALL:
                self._on_message(message)
            else:
                raise ValueError("another page has the seat; this one may stop and hold, or take the seat")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            await _send(client, json.dumps({"type": "refused", "why": str(error)[:200]}))
            return
        if "sent" in message:
            kind = message["kind"] if message.get("type") == "press" else None
            await _send(
                client, json.dumps({"type": "echo", "sent": message["sent"], "kind": kind, "at": 1e3 * self._now()})
            )

    def _ask(self, client: web.WebSocketResponse, what: str) -> None:
        """Change hands: "take" the seat (asked for while somebody is in it), or "hand" it to whoever asked."""
        if what == "take" and client is not self._operator:
            if self._operator is None or time.monotonic() - self._heard > SILENT_S:
                self._seat(client)
            else:
                self._asks = client
        elif what == "hand" and client is self._operator:
            self._seat(self._asks)
        elif what != "take":
            raise ValueError(f"seat: '{what}' is not for this page, expected take, or hand from the page that has it")
        self._tell()

    def _seat(self, client: web.WebSocketResponse | None) -> None:
        """Put a client into the seat, or nobody; whoever drove before has let go."""
        before, self._operator, self._heard = self._operator, client, time.monotonic()
        if client is self._asks:
            self._asks = None
        if before is not None:
            self._on_leave()

    def _tell(self) -> None:
        """Every page hears who has the seat."""
        for client in list(self._clients):
            self._soon(client, self._role(client))

    def _role(self, client: web.WebSocketResponse) -> str:
        facts = {"operator": client is self._operator, "free": self._operator is None}
        return json.dumps({"type": "role", **facts, "asked": self._asks is not None, "pages": len(self._clients)})

    async def _send(self, client: web.WebSocketResponse) -> None:
        """Newest numbers and pictures to one client, at its pace.

        It says of each picture that it was seen, and no third round is sent before the first was: a slow link, or a
        browser that is busy, would be given what lies in buffers, and numbers behind it, seconds late.
        """
        shown: dict[int, int] = {}
        told, round_of = "", 0
        while True:
            event = self._clients[client]
            await event.wait()
            event.clear()
            if self._telemetry is not told:  # the same text twice is news, the same object is not
                told = self._telemetry
                await client.send_str(told)
            if self._owed[client] > round_of:  # of the round before the last one, too
                continue
            new = [(which, *item) for which, item in self._pictures.items() if shown.get(which) != item[0]]
            round_of = len(new) or round_of
            for which, count, picture in new:
                shown[which] = count
                self._owed[client] += 1
                await client.send_bytes(picture)


async def _send(client: web.WebSocketResponse, text: str) -> None:
    if not client.closed:
        with contextlib.suppress(ConnectionError):  # it is leaving
            await client.send_str(text)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
