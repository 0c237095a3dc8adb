"""NVIDIA FLARE's transport as the courier: its communicator (F3), and nothing above it.

FLARE's own client and server programs are not started. Above the transport they register handlers
for administration, jobs, files and shells, forward messages between sites and listen on loopback,
and they ask for authorization only where the *sender* says so. `FlareLink` uses the layer below:
gRPC streams with mutual TLS, names bound to certificates, heartbeats and reconnection. It registers
one receiver, for one application number, so every other message finds nobody:

* a site connects to the hub and listens nowhere; it takes requests from the hub's endpoint alone;
* the hub takes answers from the federation's sites to requests that are waiting, and forwards
  nothing between sites;
* payloads are bytes. FLARE's serialisation of objects (FOBS) is never called.

`_Driver` and `_Frames` bound what a peer can occupy: one stream for each site, one frame at a time,
one short greeting with a peer's name.

What is carried is signed by hub and guards themselves, so FLARE need not be believed.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import grpc
import msgpack
from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.communicator import Communicator, Mode
from nvflare.fuel.f3.connection import FrameReceiver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import add_StreamerServicer_to_server
from nvflare.fuel.f3.drivers.grpc.utils import get_grpc_server_credentials
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, Servicer
from nvflare.fuel.f3.drivers.net_utils import get_address, parse_url
from nvflare.fuel.f3.endpoint import Endpoint, EndpointState
from nvflare.fuel.f3.message import Message, MessageReceiver
from nvflare.fuel.f3.sfm import conn_manager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.utils.config_service import ConfigService

from fedveil_federation.deploy.courier import HUB, MAX_FRAME, Answer, Settings, Unreachable

APPLICATION = 0x4656  # of FLARE's frames; its own programs use 1
_LONGEST_PAUSE = 2  # seconds between two attempts to connect; FLARE's own limit is 10
_KEEPALIVE_MS = 10_000  # a peer that vanished without a word is noticed by then
_MOST_QUEUED = 4  # frames to a peer that does not take them
_MOST_GREETING = 4096  # bytes; everything but messages is short
_BETWEEN_STREAMS = 0.5  # seconds; a site waits for 1 before it connects again
_LONGEST_CLOSE = 5.0  # seconds until a stream that was cancelled has ended
_AROUND = 1 << 16  # bytes of a frame around what it carries, at most
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", MAX_FRAME + _AROUND),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.max_concurrent_streams", 1),  # of one connection
    ("grpc.so_reuseport", 0),  # nobody else of this machine may share the hub's port
]

_log = logging.getLogger(__name__)


class FlareLink(MessageReceiver):  # type: ignore[misc]
    """One party's end: sends requests to its peers and answers theirs.

    Args:
        name: this party's endpoint: `HUB`, or the site's name as in its certificate.
        host: where sites reach the hub; at the hub, the address to listen at.
        port: the hub's port.
        credentials: FLARE's names for the files with certificate, key and authority.
        peers: endpoints that may talk to this one; everybody else is ignored.
        most: bytes of a message to this party; a longer one ends the stream before it is read.
        answer: answers a peer's request; None at a party that is never asked.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        credentials: Mapping[str, str],
        peers: Iterable[str],
        most: int,
        answer: Answer | None = None,
    ) -> None:
        self._peers, self._answer = frozenset(peers), answer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        own = CellIdentityResolver(name, exact_identity_map={peer: peer for peer in self._peers})
        self._communicator = Communicator(Endpoint(name, conn_props=dict(credentials)), own)
        self._communicator.register_message_receiver(APPLICATION, self)
        self._communicator.conn_manager.frame_mgr_executor = _SameThread()
        driver = _Driver(self._peers, most)
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


class _SameThread(Executor):
    """Processes frames in the thread that reads them.

    A peer that sends faster than it is answered has to wait. FLARE's own pool has a queue without
    an end, in which such a peer's frames would fill this process's memory.
    """

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        work(*args, **named)
        return Future()


class _Driver(GrpcDriver):  # type: ignore[misc]
    """FLARE's gRPC driver with limits: one stream for each peer, and a short queue to it."""

    def __init__(self, peers: frozenset[str], most: int) -> None:
        super().__init__()
        self.options = [*_GRPC_OPTIONS, ("grpc.max_receive_message_length", most + _AROUND)]
        self.max_workers = 2 * len(peers) + 8  # a stream occupies one as long as it lasts
        self._peers, self._lock = peers, threading.Lock()
        self._streams: dict[str, tuple[str, Any]] = {}  # by site: the newest, and its context
        self._not_before: defaultdict[str, float] = defaultdict(float)

    def listen(self, connector: Any) -> None:
        """Listen at the hub's port. FLARE tries again after an error; its own driver hides one."""
        server = grpc.server(ThreadPoolExecutor(self.max_workers), options=self.options)
        servicer = Servicer(SimpleNamespace(driver=self, connector=connector))
        add_StreamerServicer_to_server(servicer, server)
        place = get_address(connector.params)
        try:
            server.add_secure_port(place, get_grpc_server_credentials(connector.params))
        except RuntimeError as error:
            _log.error("The hub's courier cannot listen at %s and tries again: %s", place, error)
            raise
        self.server = SimpleNamespace(shutdown=partial(server.stop, 0.5))
        server.start()
        server.wait_for_termination()

    def add_connection(self, connection: Any) -> None:
        """Take a stream. It replaces an older one of the same site."""
        if connection.context is not None:
            self._replace(connection)
        connection.oq.q = queue.Queue(_MOST_QUEUED)
        super().add_connection(connection)
        connection.register_frame_receiver(_Frames(connection.frame_receiver, self._peers))

    def _replace(self, connection: Any) -> None:
        """End a site's older stream, which would keep its threads until the site closes it."""
        site = connection.get_conn_properties().get(DriverParams.PEER_CN.value)
        with self._lock:
            if site not in self._peers or monotonic() < self._not_before[site]:
                raise CommError(CommError.NOT_READY, f"a stream of {site!r} was refused")
            self._not_before[site] = monotonic() + _BETWEEN_STREAMS
            name, context = self._streams.get(site, ("", None))
            self._streams[site] = connection.name, connection.context
        if context is not None:
            context.cancel()
            until = monotonic() + _LONGEST_CLOSE
            while name in self.connections and monotonic() < until:
                sleep(0.01)


class _Frames(FrameReceiver):  # type: ignore[misc]
    """Hands a stream's frames to FLARE: first one short greeting with a peer's name, then others.

    An error ends the stream.
    """

    def __init__(self, receiver: Any, peers: frozenset[str]) -> None:
        self._receiver, self._peers, self._greeted = receiver, peers, False

    def process_frame(self, frame: bytes) -> None:
        prefix = Prefix.from_bytes(frame)
        greeting = prefix.type in (Types.HELLO, Types.READY)
        if greeting == self._greeted:
            raise CommError(CommError.BAD_DATA, "a stream begins with one greeting")
        if prefix.type != Types.DATA and len(frame) > _MOST_GREETING:
            raise CommError(CommError.BAD_DATA, "too long")
        if greeting:
            said = msgpack.unpackb(frame[PREFIX_LEN + prefix.header_len :])
            if said[HandshakeKeys.ENDPOINT_NAME] not in self._peers:
                raise CommError(CommError.BAD_DATA, "not a peer")
        self._receiver.process_frame(frame)
        if self._receiver.conn.sfm_endpoint is None:
            raise CommError(CommError.BAD_DATA, "not the name in the certificate")
        self._greeted = True


def hub_link(settings: Settings, place: Path) -> FlareLink:
    """Return the hub's end, which listens at its port.

    Args:
        settings: the hub's.
        place: the directory with certificate, key and authority.
    """
    return _link(settings, place, "0.0.0.0", settings.sites)


def site_link(settings: Settings, place: Path, answer: Answer) -> FlareLink:
    """Return a site's end, which connects to the hub.

    Args:
        settings: the site's.
        place: the directory with certificate, key and authority.
        answer: answers a request of the hub's.
    """
    return _link(settings, place, settings.host, [HUB], answer)


def _link(
    settings: Settings, place: Path, host: str, peers: Iterable[str], answer: Answer | None = None
) -> FlareLink:
    # FLARE looks for settings of its own below the working directory unless it is told where.
    ConfigService.initialize({}, [str(place)])
    conn_manager.MAX_WAIT = _LONGEST_PAUSE
    role = "server" if settings.name == HUB else "client"
    credentials = {
        "ca_cert": str(place / "authority.crt"),
        f"{role}_cert": str(place / "link.crt"),
        f"{role}_key": str(place / "link.pem"),
        "connection_security": "mtls",
    }
    return FlareLink(settings.name, host, settings.port, credentials, peers, settings.most, answer)
