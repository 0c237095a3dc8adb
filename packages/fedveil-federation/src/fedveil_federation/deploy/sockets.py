"""Unix sockets between fedveil's processes and the courier's, which carries bytes elsewhere.

At a site the guard listens, and the courier asks it. At the hub the courier listens (`relay`), and
`SocketCourier` asks it to forward requests. The courier holds no key of fedveil's. A socket is for
its owner alone (0600), or shared with the courier's own account: the guard's by its group (0660),
the one at the hub by the folder it is in, which hub and courier alone can enter (0666).

    message = length of the content (6 bytes), and of what it is about (2), about, content
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil_federation.deploy.courier import (
    MAX_FRAME,
    Answer,
    Courier,
    Reply,
    T,
    Unreachable,
    most_reply,
)

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # of Linux, where couriers run
_LONGEST_REQUEST = 60.0  # seconds between two parts of it
_LOOK = 0.05  # seconds between two looks whether to close
_MOST_AT_GUARD = 2  # the request of a courier that was killed, and one of its successor

Forward = Callable[[str, bytes, float], bytes]  # site, frame, seconds; raises if nothing comes back
Handler = Callable[[bytes, bytes], bytes]  # what it is about, content; the answer


class Listening:
    """Answers at a socket, in threads of its own, until it is closed.

    Args:
        path: where to listen.
        answer: answers one request.
        mode: the socket's permissions.
        most: bytes of a request; a longer one is refused before any of it is read.
        connections: how many are answered at once; others wait until one of them has ended.
        foreign: whether whoever connects must run under another account than this process, and
            not as root: the courier of a site that gave it an account of its own.
    """

    def __init__(
        self,
        path: Path,
        answer: Handler,
        *,
        mode: int = 0o600,
        most: int = MAX_FRAME,
        connections: int = 1024,
        foreign: bool = False,
    ) -> None:
        free, closing = threading.Semaphore(connections), threading.Event()

        class Asked(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                if foreign and _account_of(self.request) in (0, os.geteuid()):
                    _log.error(
                        "The courier runs under the owner's account or as root, and is not "
                        "answered. Start it under an account of its own: fedveil site courier DIR."
                    )
                    return
                try:
                    self.request.settimeout(_LONGEST_REQUEST)
                    _send(self.request, answer(*_received(self.request, most)))
                except Exception:  # whoever asked sees the end of the connection, and no more
                    return

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            request_queue_size = 1024  # a hub connects once for each site, all at the same time

            def process_request(self, request: Any, client_address: Any) -> None:
                # A handler that has just answered may not have ended yet, so nobody is turned away.
                while not free.acquire(timeout=_LOOK):
                    if closing.is_set():
                        self.shutdown_request(request)
                        return
                try:
                    super().process_request(request, client_address)
                except BaseException:  # no thread was started, so none will end
                    free.release()
                    raise

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    free.release()

        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # left by a process that was killed
        before = os.umask(0o777 & ~mode)
        try:
            self._server = Server(str(path), Asked)
        except OSError as error:
            raise ConfigError(f"socket {path}: {error}") from None
        finally:
            os.umask(before)
        self._path, self._closing = path, closing
        threading.Thread(target=self._server.serve_forever, args=(_LOOK,), daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def request(
    path: Path, content: bytes, seconds: float, about: bytes = b"", most: int | None = None
) -> bytes:
    """Return what a socket answers.

    Args:
        path: where somebody listens.
        content: the request.
        seconds: how long to wait.
        about: what the request is about.
        most: bytes of the answer; without it what a reply to this request may have.

    Raises:
        Unreachable: nobody answers in time, or the answer is too long.
    """
    most = most_reply(len(content)) if most is None else most
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(max(0.001, seconds))
            asking.connect(str(path))
            _send(asking, content, about)
            return _received(asking, most)[1]
    except OSError:
        raise Unreachable(f"nobody answers at {path.name}") from None


def _account_of(peer: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[1])


def relay(
    path: Path, forward: Forward, sites: Callable[[], tuple[str, ...]], *, mode: int = 0o600
) -> Listening:
    """Listen at the hub, and forward what a `SocketCourier` asks for."""

    def answer(about: bytes, frame: bytes) -> bytes:
        name, seconds = about[4:].decode(), int.from_bytes(about[:4], "little")
        if not name:
            return json.dumps(sites()).encode()
        return forward(name, frame, seconds / 1000)

    return Listening(path, answer, mode=mode)


class SocketCourier(Courier):
    """Either end of a party's courier.

    Args:
        hub: where the hub's courier listens.
        folder: where guards do.
        separate: whether the courier runs under an account of its own, and must.
        most: bytes of a request to a guard.
    """

    def __init__(
        self, hub: Path, folder: Path, *, separate: bool = False, most: int = MAX_FRAME
    ) -> None:
        self._hub, self._folder, self._separate, self._most = hub, folder, separate, most
        self._attached: dict[str, Listening] = {}

    def attach(self, site: str, answer: Answer) -> None:
        if site in self._attached:
            raise ConfigError(f"site {site!r} is attached already")
        alone = threading.Lock()

        def one_at_a_time(about: bytes, frame: bytes) -> bytes:
            with alone:
                return answer(frame)

        self._attached[site] = Listening(
            self._folder / f"{site}.sock",
            one_at_a_time,
            mode=0o660 if self._separate else 0o600,
            most=self._most,
            connections=_MOST_AT_GUARD,
            foreign=self._separate,
        )

    def detach(self, site: str) -> None:
        found = self._attached.pop(site, None)
        if found is not None:
            found.close()

    def sites(self) -> tuple[str, ...]:
        return tuple(json.loads(request(self._hub, b"", 10.0, _about("", 1.0))))

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        return self.exchange(frames, seconds, lambda site, reply: reply or b"")

    def exchange(
        self, frames: Mapping[str, bytes], seconds: float, read: Callable[[str, Reply], T]
    ) -> dict[str, T]:
        def one(site: str) -> T:
            reply: Reply
            try:
                reply = request(self._hub, frames[site], seconds, _about(site, seconds))
            except Unreachable:
                reply = Unreachable(f"site {site!r} did not answer in time, or is not there")
            return read(site, reply)

        with ThreadPoolExecutor(max(1, len(frames))) as pool:
            return dict(zip(frames, pool.map(one, frames), strict=True))

    def close(self) -> None:
        for site in tuple(self._attached):
            self.detach(site)


def _about(site: str, seconds: float) -> bytes:
    """Return a hub's request without its content."""
    return min(int(seconds * 1000), 2**32 - 1).to_bytes(4, "little") + site.encode()


def _send(to: socket.socket, content: bytes, about: bytes = b"") -> None:
    """Send a message, and what it is about."""
    to.sendall(len(content).to_bytes(6, "little") + len(about).to_bytes(2, "little") + about)
    if content:  # whoever has all of a message may have answered and hung up already
        to.sendall(content)


def _received(of: socket.socket, most: int) -> tuple[bytes, bytes]:
    """Return what a message is about, and its content of at most so many bytes."""
    head = _exactly(of, 8)
    if (size := int.from_bytes(head[:6], "little")) > most:
        raise OSError("too long")
    return _exactly(of, int.from_bytes(head[6:], "little")), _exactly(of, size)


def _exactly(of: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        got = of.recv_into(view)
        if not got:
            raise OSError("cut off")
        view = view[got:]
    return bytes(content)


def check_free(port: int, seconds: float = 10.0) -> None:
    """Refuse a port at which somebody goes on listening: an engine would only log it."""
    until = monotonic() + seconds  # an engine that was killed takes a moment to end
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed ones linger
            try:
                probe.bind(("0.0.0.0", port))
                return
            except OSError as error:
                if monotonic() >= until:
                    raise ConfigError(
                        f"port {port}: {error.strerror}; stop what listens there, or found the "
                        "federation with another --hub"
                    ) from None
        sleep(0.1)


def end_with_parent() -> None:
    """This process ends with the one that started it, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
