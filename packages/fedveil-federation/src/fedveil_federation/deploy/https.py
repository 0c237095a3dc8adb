"""HTTPS as the courier: a mailbox at the hub, which sites ask for their next message.

The hub runs one HTTPS server (TLS 1.3). Sites connect outwards only, also by a proxy (CONNECT).
Everybody shows a certificate of the federation's authority, and a site *is* the name in its
certificate: nothing in a request says who sends it. There is one resource:

    GET    /mailbox          wait for the next message: 200 with its number, or 204 after a while
    POST   /mailbox/NUMBER   answer it
    DELETE /mailbox/NUMBER   say that it could not be answered

A message stays in the mailbox until it is answered or nobody waits for the answer any more. A site
that lost its connection gets it again, and guards give the same request the same answer.

What a peer can occupy is bounded before it is buffered. A body must state its length, which is held
to what the answer may have; a refusal closes the connection without reading on. Bodies, headers and
handshakes have deadlines, and of the connections of one site only the newest count.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import itertools
import json
import logging
import math
import socket
import ssl
import threading
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from fedveil_federation.deploy.certificates import key_of
from fedveil_federation.deploy.courier import KEYS, Answer, Settings, Unreachable, most_reply

if TYPE_CHECKING:
    from aiohttp import web

_log = logging.getLogger(__name__)

_MAILBOX = "/mailbox"
_NUMBER = "Fedveil-Message"  # the header with a message's number
_POLL = 25.0  # seconds that a site waits for a message; proxies close what is silent for a minute
_HANDSHAKE = 10.0  # seconds
_CONNECT = 10.0  # seconds to reach the hub
_IDLE = 75.0  # seconds without a whole request; a site is silent while its guard works
_BODY = 10.0  # seconds that any body may take, and one more for each of:
_SLOWEST = 1 << 18  # bytes
_CHUNK = 1 << 18  # bytes
_MOST_CONNECTIONS = 2  # of a site: the one that counts, and one that it may have lost
_GRACE = 1.0  # seconds in which a site that lost its connection makes another
_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two attempts to connect
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}


def body_seconds(size: int) -> float:
    """Return how many seconds a body of so many bytes may take."""
    return _BODY + size / _SLOWEST


def server_context(place: Path) -> ssl.SSLContext:
    """Return what the hub asks of TLS: version 1.3, and a certificate of everybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a session that goes on later would not show its certificate again
    return _with_files(context, place)


def client_context(place: Path) -> ssl.SSLContext:
    """Return what a site asks of TLS: version 1.3, and the hub's certificate."""
    return _with_files(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), place)


def _with_files(context: ssl.SSLContext, place: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(place / "authority.crt")
    context.load_cert_chain(place / "link.crt", place / "link.pem")
    return context


# --- the hub ------------------------------------------------------------------------------------


class _Letter:
    """A message that waits for its answer."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def fail(self) -> None:
        """End the wait for the answer: there will be none."""
        if not self.answer.done():
            self.answer.set_exception(Unreachable("the site did not answer"))


class _Box:
    """One site's mailbox, and its connections, the newest last."""

    def __init__(self) -> None:
        self.letters: dict[int, _Letter] = {}
        self.connections: list[asyncio.Transport] = []
        self.polls = 0  # so far; the newest is the one that gets messages
        self.changed = asyncio.Condition()
        self._left = -math.inf  # when the last connection was lost

    def leave(self, connection: asyncio.Transport | None) -> None:
        """Forget a connection that was lost, if it is one of these."""
        if connection in self.connections:
            self.connections.remove(connection)
            self._left = monotonic()

    @property
    def present(self) -> bool:
        """Whether the site is connected, or was a moment ago and may be about to be again."""
        return bool(self.connections) or monotonic() - self._left < _GRACE


class HubLink:
    """The hub's end: puts requests into the sites' mailboxes and waits for their answers.

    Args:
        settings: the sites that may connect, and the port to listen at.
        place: the directory with certificate, key and authority.
    """

    def __init__(self, settings: Settings, place: Path) -> None:
        self._settings, self._context = settings, server_context(place)
        self._place = place
        self._read_at: tuple[int, dict[str, list[str]]] = (0, {})  # the keys, and of which time
        self._boxes: dict[str, _Box] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Listen, in a thread of its own; a port that is taken is tried again."""
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._ended.set)

    def present(self) -> tuple[str, ...]:
        """Return the sites that are connected now, sorted."""
        return tuple(sorted(site for site, box in self._boxes.items() if box.present))

    def request(self, site: str, frame: bytes, seconds: float) -> bytes:
        """Send a request and wait for its answer.

        Args:
            site: one of the federation's.
            frame: the request.
            seconds: how long to wait.

        Returns:
            The site's answer.

        Raises:
            Unreachable: the site is not connected, does not answer in time or could not answer.
        """
        box = self._boxes.get(site)
        if box is None or not box.present:
            raise Unreachable(f"site {site!r} is not connected")
        delivery = asyncio.run_coroutine_threadsafe(self._deliver(box, frame, seconds), self._loop)
        try:
            return delivery.result()
        except (TimeoutError, Unreachable):
            raise Unreachable(f"site {site!r} did not answer") from None

    async def _deliver(self, box: _Box, frame: bytes, seconds: float) -> bytes:
        number, letter = next(self._numbers), _Letter(frame)
        box.letters[number] = letter
        try:
            async with asyncio.timeout(seconds):
                async with box.changed:
                    box.changed.notify_all()
                return await letter.answer
        finally:
            del box.letters[number]

    def _site_of(self, transport: asyncio.BaseTransport | None) -> str:
        """Return the name in the certificate that a connection has shown.

        It is empty if the certificate's key is not one of those that the hub knows this site by
        now: that of a bundle counts until the site has come with it and has a key of its own.
        """
        shown: Any = None if transport is None else transport.get_extra_info("ssl_object")
        certificate = {} if shown is None else shown.getpeercert()
        names = [value for ((key, value),) in certificate.get("subject", ()) if key == "commonName"]
        if len(names) != 1 or key_of(shown.getpeercert(True)) not in self._keys().get(names[0], ()):
            return ""
        return str(names[0])

    def _keys(self) -> dict[str, list[str]]:
        """Return the keys of each site, as the hub has written them last."""
        try:
            changed = (self._place / KEYS).stat().st_mtime_ns
            if changed != self._read_at[0]:
                self._read_at = changed, json.loads((self._place / KEYS).read_bytes())
        except (OSError, ValueError):
            return {}
        return self._read_at[1]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())

    async def _listen(self) -> None:
        from aiohttp import web  # sites do without it

        boxes = self._boxes = {site: _Box() for site in self._settings.sites}
        site_of = self._site_of

        class Server(web.Server):
            """Counts the connections of every site; whoever is none of them has none."""

            def connection_made(
                self, handler: web.RequestHandler, transport: asyncio.Transport
            ) -> None:
                super().connection_made(handler, transport)
                box = boxes.get(site_of(transport))
                if box is None:
                    transport.abort()
                    return
                _notice_loss(transport.get_extra_info("socket"))
                box.connections.append(transport)
                while len(box.connections) > _MOST_CONNECTIONS:
                    box.connections.pop(0).abort()

            def connection_lost(
                self, handler: web.RequestHandler, exc: BaseException | None = None
            ) -> None:
                transport = self._connections.get(handler)
                for box in boxes.values():
                    box.leave(transport)
                super().connection_lost(handler, exc)

        server = Server(
            self._serve,
            handler_cancellation=True,
            keepalive_timeout=_IDLE,
            lingering_time=0,
            read_bufsize=_CHUNK,
            auto_decompress=False,
            access_log=None,
            logger=_log,
        )
        address, pause = ("0.0.0.0", self._settings.port), _PAUSE
        while not self._ended.is_set():
            try:
                listening = await self._loop.create_server(
                    server,
                    *address,
                    ssl=self._context,
                    ssl_handshake_timeout=_HANDSHAKE,
                    ssl_shutdown_timeout=1.0,
                )
                break
            except OSError as error:
                _log.error("The hub's courier cannot listen at %s:%d: %s", *address, error.strerror)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            return
        _log.info("listening at %s:%d", *address)
        while not self._ended.is_set():
            for box in boxes.values():
                for letter in () if box.present else box.letters.values():
                    letter.fail()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _GRACE / 4)
        listening.close()
        await server.shutdown(1.0)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a site's request; whatever is not about the mailbox ends the connection."""
        transport = request.transport
        box = self._boxes.get(self._site_of(transport))
        if box is None:
            return _refused(request, 403)
        try:
            if (request.method, request.raw_path) == ("GET", _MAILBOX):
                return await self._next(box, request)
            folder, _, number = request.raw_path.rpartition("/")
            if folder != _MAILBOX or not number.isdecimal() or len(number) > 18:
                return _refused(request, 404)
            if request.method not in ("POST", "DELETE"):
                return _refused(request, 405)
            return await self._answered(box, box.letters.get(int(number)), request)
        except TimeoutError:
            if transport is not None:
                transport.abort()  # a peer that is too slow would be too slow for an error as well
            raise ConnectionResetError("too slow") from None

    async def _next(self, box: _Box, request: web.BaseRequest) -> web.StreamResponse:
        """Give the oldest message that waits, or nothing after a while."""
        from aiohttp import web

        box.polls += 1
        poll = box.polls
        async with box.changed:
            box.changed.notify_all()  # an older poll, of a connection that may be lost, has ended
            try:
                async with asyncio.timeout(_POLL):
                    await box.changed.wait_for(lambda: box.letters or box.polls != poll)
            except TimeoutError:
                return web.Response(status=204)
        if box.polls != poll:
            return _refused(request, 409)
        number, letter = next(iter(box.letters.items()))
        headers = {_NUMBER: str(number), "Content-Length": str(len(letter.frame))}
        response, content = web.StreamResponse(headers=headers), memoryview(letter.frame)
        async with asyncio.timeout(body_seconds(len(content))):
            await response.prepare(request)
            for at in range(0, len(content), _CHUNK):
                await response.write(content[at : at + _CHUNK])
            await response.write_eof()
        return response

    async def _answered(
        self, box: _Box, letter: _Letter | None, request: web.BaseRequest
    ) -> web.StreamResponse:
        """Take the answer to a message, whose size is known before any of it is read."""
        from aiohttp import web

        if letter is None:  # nobody waits for it any more, or it is another site's
            return _refused(request, 404)
        if request.method == "DELETE":
            letter.fail()
            return web.Response(status=204)
        size = request.content_length
        if size is None or size > most_reply(len(letter.frame)):
            _log.warning("An answer of %s bytes was refused.", "unknown" if size is None else size)
            letter.fail()
            return _refused(request, 411 if size is None else 413)
        parts = []
        async with asyncio.timeout(body_seconds(size)):
            async for part in request.content.iter_any():
                parts.append(part)
        if not letter.answer.done():
            letter.answer.set_result(b"".join(parts))
        return web.Response(status=204)


def _refused(request: web.BaseRequest, status: int) -> web.StreamResponse:
    """Return a refusal after which the connection is closed, whatever was to come."""
    from aiohttp import web

    if request.transport is not None:  # a peer that goes on sending does not keep it open
        asyncio.get_running_loop().call_later(_GRACE / 4, request.transport.abort)
    response = web.Response(status=status)
    response.force_close()
    return response


def _notice_loss(connection: socket.socket) -> None:
    """Have the system notice a peer that has vanished without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


# --- a site -------------------------------------------------------------------------------------


class SiteLink:
    """A site's end: asks the hub for requests, one after the other, and hands them to the guard.

    A proxy is taken from the environment (`HTTPS_PROXY`, `NO_PROXY`), as other programs do.

    Args:
        settings: the hub's address, and how many bytes a request may have.
        place: the directory with certificate, key and authority.
        answer: answers a request.
    """

    def __init__(self, settings: Settings, place: Path, answer: Answer) -> None:
        self._settings, self._answer = settings, answer
        self._context = client_context(place)
        self._ended = threading.Event()
        self._said = ""  # the last line of the log

    def start(self) -> None:
        """Connect, in a thread of its own; a lost connection is made again by itself."""
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Take no more requests."""
        self._ended.set()

    def present(self) -> tuple[str, ...]:
        """Return nobody: a site asks nobody."""
        return ()

    def request(self, site: str, frame: bytes, seconds: float) -> bytes:
        """Refuse: a site asks nobody."""
        raise Unreachable(f"site {site!r} cannot be asked from here")

    def _run(self) -> None:
        pause = _PAUSE
        while not self._ended.is_set():
            try:
                with closing(self._connection()) as connection:
                    connection.connect()
                    _notice_loss(connection.sock)
                    connection.sock.settimeout(_POLL + _CONNECT)
                    while not self._ended.is_set():
                        self._take_one(connection)
                        self._say(f"connected to the hub at {self._address}")
                        pause = _PAUSE
            except (OSError, http.client.HTTPException, ValueError) as error:  # also a bad proxy
                self._say(f"no connection to the hub at {self._address}: {error}")
                self._ended.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _take_one(self, connection: http.client.HTTPSConnection) -> None:
        """Wait for a request, have it answered and send the answer."""
        connection.request("GET", _MAILBOX)
        response = connection.getresponse()
        if response.status == 204:
            response.read()
            return
        number, size = response.getheader(_NUMBER, ""), response.length
        if response.status != 200 or not number.isdecimal() or size is None:
            raise http.client.HTTPException(f"the hub answers {response.status}")
        answer: bytes | None = None
        if size > self._settings.most:
            _log.error("A request of %d bytes was refused: at most %d.", size, self._settings.most)
            connection.close()  # and opened again for the next line, without reading on
        else:
            frame = response.read()
            try:
                answer = self._answer(frame)
            except Unreachable as error:
                self._say(f"the guard does not answer: {error}")
        if answer is None:
            connection.request("DELETE", f"{_MAILBOX}/{number}")
        else:
            connection.request("POST", f"{_MAILBOX}/{number}", answer)
        connection.getresponse().read()  # also of an answer that came too late

    @property
    def _address(self) -> str:
        return f"{self._settings.host}:{self._settings.port}"

    def _connection(self) -> http.client.HTTPSConnection:
        host, port = self._settings.host, self._settings.port
        proxy = None if proxy_bypass(f"{host}:{port}") else getproxies().get("https")
        if proxy is None:
            return http.client.HTTPSConnection(host, port, timeout=_CONNECT, context=self._context)
        found = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        if not found.hostname:
            raise OSError(f"HTTPS_PROXY has no host: {proxy}")
        headers = {}
        if found.username is not None:
            named = f"{unquote(found.username)}:{unquote(found.password or '')}".encode()
            headers["Proxy-Authorization"] = f"Basic {base64.b64encode(named).decode()}"
        connection = http.client.HTTPSConnection(
            found.hostname, found.port or 3128, timeout=_CONNECT, context=self._context
        )
        connection.set_tunnel(host, port, headers)
        return connection

    def _say(self, line: str) -> None:
        """Log a line unless it was the last one."""
        if line != self._said:
            _log.info("%s", line)
            self._said = line


hub_link, site_link = HubLink, SiteLink  # as `carry` calls them, of any courier
