"""NVIDIA FLARE's transport as the courier: its communicator (F3), and nothing above it.

FLARE's own client and server programs are not started. Above the transport they register handlers
for administration, jobs, files and shells, forward messages between sites and listen on loopback,
and they ask for authorization only where the *sender* says so. `Link` uses the layer below: gRPC
streams with mutual TLS, names bound to certificates, heartbeats and reconnection. It registers one
receiver, for one application number, so every other message finds nobody:

* a site connects to the hub and listens nowhere; it takes requests from the hub's endpoint alone;
* the hub takes answers from the federation's sites to requests that are waiting, and forwards
  nothing between sites;
* payloads are bytes. FLARE's serialisation of objects (FOBS) is never called.

What is carried is signed by hub and guards themselves, so FLARE need not be believed.

    python -m fedveil.deploy.flare DIRECTORY     # what courier_process wrote for this party
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.communicator import Communicator, Mode
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver
from nvflare.fuel.f3.drivers.net_utils import parse_url
from nvflare.fuel.f3.endpoint import Endpoint, EndpointState
from nvflare.fuel.f3.message import Message, MessageReceiver
from nvflare.fuel.f3.sfm import conn_manager

from fedveil.deploy import sockets
from fedveil.deploy.courier import Unreachable
from fedveil.deploy.envelope import MAX_FRAME

HUB = "server"  # the hub's endpoint; FLARE expects this name
APPLICATION = 0x4656  # of FLARE's frames; its own programs use 1
_LONGEST = 60.0  # seconds for one request: guards answer sooner, or say that they are working
_LOOK = 1.0  # seconds between two looks at the files
_LONGEST_PAUSE = 2  # seconds between two attempts to connect; FLARE's own limit is 10
_KEEPALIVE_MS = 10_000  # a peer that vanished without a word is noticed by then
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", MAX_FRAME + (1 << 16)),
    ("grpc.max_receive_message_length", MAX_FRAME + (1 << 16)),  # known before it is buffered
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.so_reuseport", 0),  # nobody else of this machine may share the hub's port
]

_log = logging.getLogger(__name__)

Answer = Callable[[bytes], bytes]


class Link(MessageReceiver):  # type: ignore[misc]
    """One party's end: sends requests to its peers and answers theirs.

    Args:
        name: this party's endpoint: `HUB`, or the site's name as in its certificate.
        host: where sites reach the hub; at the hub, the address to listen at.
        port: the hub's port.
        credentials: FLARE's names for the files with certificate, key and authority.
        peers: endpoints that may talk to this one; everybody else is ignored.
        answer: answers a peer's request; None at a party that is never asked.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        credentials: Mapping[str, str],
        peers: Iterable[str],
        answer: Answer | None = None,
    ) -> None:
        self._peers, self._answer = frozenset(peers), answer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        own = CellIdentityResolver(name, exact_identity_map={peer: peer for peer in self._peers})
        self._communicator = Communicator(Endpoint(name, conn_props=dict(credentials)), own)
        self._communicator.register_message_receiver(APPLICATION, self)
        driver = GrpcDriver()
        driver.options = _GRPC_OPTIONS
        driver.max_workers = 2 * len(self._peers) + 8  # a stream occupies one as long as it lasts
        place = parse_url(f"grpcs://{host}:{port}")
        mode = Mode.PASSIVE if name == HUB else Mode.ACTIVE
        self._communicator.add_connector_advanced(driver, mode, place, secure=True)

    def start(self) -> None:
        """Listen, or connect; a lost connection is made again by itself."""
        self._communicator.start()

    def stop(self) -> None:
        """Close all connections."""
        self._communicator.stop()

    def present(self) -> tuple[str, ...]:
        """Return the peers that are connected now, sorted."""
        return tuple(sorted(peer for peer in self._peers if self._endpoint(peer) is not None))

    def request(self, peer: str, frame: bytes, seconds: float) -> bytes:
        """Send a request and wait for its answer.

        Args:
            peer: one of this link's peers.
            frame: the request.
            seconds: how long to wait.

        Returns:
            The peer's answer.

        Raises:
            Unreachable: the peer is not connected, does not answer in time or could not answer.
        """
        endpoint = self._endpoint(peer)
        if endpoint is None:
            raise Unreachable(f"site {peer!r} is not connected")
        number, waiting = next(self._numbers), _Waiting(peer)
        self._waiting[number] = waiting
        try:
            request = Message({"kind": "request", "number": number}, frame)
            self._communicator.send(endpoint, APPLICATION, request)
            if not waiting.arrived.wait(seconds) or waiting.answer is None:
                raise Unreachable(f"site {peer!r} did not answer")
            return waiting.answer
        except CommError:
            raise Unreachable(f"site {peer!r} is not connected") from None
        finally:
            del self._waiting[number]

    def process_message(
        self, endpoint: Endpoint, connection: Any, app_id: int, message: Message
    ) -> None:
        """Take a request or an answer from a peer; ignore everything else."""
        headers = message.headers if isinstance(message.headers, dict) else {}
        kind, number = headers.get("kind"), headers.get("number")
        if endpoint.name not in self._peers or type(number) is not int:
            _log.warning("a message from %r was ignored", endpoint.name)
        elif kind == "request" and self._answer is not None:
            self._reply(endpoint, number, self._answer, bytes(message.payload or b""))
        elif kind in ("answer", "failure"):
            waiting = self._waiting.get(number)
            if waiting is not None and waiting.peer == endpoint.name:
                waiting.answer = bytes(message.payload or b"") if kind == "answer" else None
                waiting.arrived.set()
        else:
            _log.warning("a message of kind %r from %r was ignored", kind, endpoint.name)

    def _reply(self, endpoint: Endpoint, number: int, answer: Answer, frame: bytes) -> None:
        try:
            reply = Message({"kind": "answer", "number": number}, answer(frame))
        except Unreachable:
            reply = Message({"kind": "failure", "number": number}, None)
        try:
            self._communicator.send(endpoint, APPLICATION, reply)
        except CommError:
            _log.warning("%r was gone before it could be answered", endpoint.name)

    def _endpoint(self, peer: str) -> Endpoint | None:
        found = self._communicator.find_endpoint(peer)
        return found if found is not None and found.state == EndpointState.READY else None


class _Waiting:
    """A request that has not been answered yet."""

    def __init__(self, peer: str) -> None:
        self.peer, self.arrived = peer, threading.Event()
        self.answer: bytes | None = None


def carry(directory: Path) -> None:
    """Run a party's link from the files in a directory until the process is told to end.

    Waits until the files are there, and begins anew when they change: a certificate was renewed.

    Args:
        directory: what `courier_process.write_kit` wrote, for this process to read.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="INFO")
    conn_manager.MAX_WAIT = _LONGEST_PAUSE
    ended, changed = threading.Event(), False
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    while not (directory / "link.json").exists() and not ended.wait(_LOOK):
        pass
    if ended.is_set():
        return
    before = _versions(directory)
    link, listening = _opened(directory)
    link.start()
    try:
        while not ended.wait(_LOOK) and not (changed := _versions(directory) != before):
            pass
    finally:
        if listening is not None:
            listening.close()
        if not changed:
            link.stop()
    if changed:
        _log.info("The files of this courier have changed, so it begins anew.")
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _opened(place: Path) -> tuple[Link, sockets.Listening | None]:
    """Return the link of the party whose files lie in a directory; at the hub, with its socket."""
    settings = json.loads((place / "link.json").read_text(encoding="utf-8"))
    name, host, port = settings["name"], settings["host"], settings["port"]
    role = "server" if name == HUB else "client"
    credentials = {
        "ca_cert": str(place / "authority.crt"),
        f"{role}_cert": str(place / "link.crt"),
        f"{role}_key": str(place / "link.pem"),
        "connection_security": "mtls",
    }
    socket = Path(settings["socket"])
    if name == HUB:
        link = Link(HUB, "0.0.0.0", port, credentials, settings["sites"])
        shared = bool(socket.parent.stat().st_mode & stat.S_ISGID)
        return link, sockets.relay(socket, link.request, link.present, shared=shared)
    guard = partial(sockets.request, socket, seconds=_LONGEST)
    return Link(name, host, port, credentials, [HUB], guard), None


def _versions(directory: Path) -> list[tuple[int, int]]:
    files = (directory / name for name in ("link.json", "link.crt", "authority.crt"))
    return [(found.st_ino, found.st_mtime_ns) for found in map(os.stat, files)]


if __name__ == "__main__":
    if "--end-with-parent" in sys.argv[2:]:
        sockets.end_with_parent()
    carry(Path(sys.argv[1]))
