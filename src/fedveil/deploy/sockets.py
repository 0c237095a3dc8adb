"""Unix sockets (0600) between fedveil's processes and an engine's, which carries bytes elsewhere.

At a site the guard listens; the engine's part there asks it. At the hub the engine's part listens
(`relay`), and `SocketCourier` asks it to forward requests. The engine's parts hold no fedveil keys.

    message = length (8 bytes), content

A long content goes as a file in memory, whose descriptor is sent: a socket holds little at a time,
and two processes that fill and empty it by turns wait for each other on a busy machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from fedveil.core.errors import ConfigError
from fedveil.deploy.courier import Answer, Courier, Unreachable
from fedveil.deploy.envelope import MAX_FRAME

_PR_SET_PDEATHSIG = 1  # of Linux, where engines run
_LONG = 1 << 16  # bytes

Forward = Callable[[str, bytes, float], bytes]  # site, frame, seconds; raises if nothing comes back


class Listening:
    """Answers at a socket, in threads of its own, until it is closed."""

    def __init__(self, path: Path, answer: Answer) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                try:
                    _send(self.request, answer(_receive(self.request)))
                except Exception:  # whoever asked sees the end of the connection, and no more
                    return

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            request_queue_size = 64

        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # left by a process that was killed
        before = os.umask(0o177)
        try:
            self._server = Server(str(path), Handler)
        except OSError as error:
            raise ConfigError(f"socket {path}: {error}") from None
        finally:
            os.umask(before)
        self._path = path
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def request(path: Path, content: bytes, seconds: float) -> bytes:
    """What a socket answers; `Unreachable` if nobody does in time."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(max(0.001, seconds))
            asking.connect(str(path))
            _send(asking, content)
            return _receive(asking)
    except OSError:
        raise Unreachable(f"nobody answers at {path.name}") from None


def relay(path: Path, forward: Forward, sites: Callable[[], tuple[str, ...]]) -> Listening:
    """The engine's part at the hub: forwards what a `SocketCourier` asks for."""

    def answer(content: bytes) -> bytes:
        size = int.from_bytes(content[:2], "little")
        name, seconds = (
            content[2 : 2 + size].decode(),
            int.from_bytes(content[2 + size :][:4], "little"),
        )
        if not name:
            return json.dumps(sites()).encode()
        return forward(name, content[6 + size :], seconds / 1000)

    return Listening(path, answer)


class SocketCourier(Courier):
    """Either end: `hub` is where the engine's part at the hub listens, `folder` where guards do."""

    def __init__(self, hub: Path, folder: Path) -> None:
        self._hub, self._folder = hub, folder
        self._attached: dict[str, Listening] = {}

    def attach(self, site: str, answer: Answer) -> None:
        if site in self._attached:
            raise ConfigError(f"site {site!r} is attached already")
        alone = threading.Lock()

        def one_at_a_time(frame: bytes) -> bytes:
            with alone:
                return answer(frame)

        self._attached[site] = Listening(self._folder / f"{site}.sock", one_at_a_time)

    def detach(self, site: str) -> None:
        found = self._attached.pop(site, None)
        if found is not None:
            found.close()

    def sites(self) -> tuple[str, ...]:
        return tuple(json.loads(request(self._hub, _asking("", b"", 1.0), 10.0)))

    def ask(self, frames: Mapping[str, bytes], seconds: float) -> dict[str, bytes | Unreachable]:
        def one(site: str) -> bytes | Unreachable:
            try:
                return request(self._hub, _asking(site, frames[site], seconds), seconds)
            except Unreachable:
                return Unreachable(f"site {site!r} did not answer in time, or is not there")

        with ThreadPoolExecutor(max(1, len(frames))) as pool:
            return dict(zip(frames, pool.map(one, frames), strict=True))

    def close(self) -> None:
        for site in tuple(self._attached):
            self.detach(site)


def _asking(site: str, frame: bytes, seconds: float) -> bytes:
    name, limit = site.encode(), min(int(seconds * 1000), 2**32 - 1)
    return b"".join((len(name).to_bytes(2, "little"), name, limit.to_bytes(4, "little"), frame))


def _send(to: socket.socket, content: bytes) -> None:
    size = len(content).to_bytes(8, "little")
    if len(content) < _LONG:
        to.sendall(size + content)
        return
    with _in_memory() as file:
        file.write(content)
        socket.send_fds(to, [size], [file.fileno()])


def _receive(of: socket.socket) -> bytes:
    head, files, _, _ = socket.recv_fds(of, 8, 1)
    try:
        size = int.from_bytes(head + _exactly(of, 8 - len(head)), "little")
        if size > MAX_FRAME + 1024:
            raise OSError("too long")
        if not files:
            return _exactly(of, size)
        with open(files[0], "rb", buffering=0, closefd=False) as file:
            file.seek(0)
            content = file.read(size) or b""
        if len(content) < size:
            raise OSError("cut off")
        return content
    finally:
        for one in files:
            os.close(one)


def _in_memory() -> IO[bytes]:
    return open(os.memfd_create("fedveil", os.MFD_CLOEXEC), "wb", buffering=0)


def _exactly(of: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        got = of.recv_into(view)
        if not got:
            raise OSError("cut off")
        view = view[got:]
    return bytes(content)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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


def accepts(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def end_with_parent() -> None:
    """This process ends with the one that started it, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
