"""A peer, a local user or a courier that misbehaves disturbs nobody but itself.

The peers here speak the transport's frames directly, with certificates of the federation.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.victims import Victims, highest_memory, of_hub, running, victims, wait_for

from fedveil_federation.deploy import sockets
from fedveil_federation.deploy.courier import Unreachable
from fedveil_federation.deploy.courier_process import CourierProcess
from fedveil_federation.deploy.sockets import SocketCourier

__all__ = ["victims"]
pytestmark = pytest.mark.skipif(
    find_spec("nvflare") is None,
    reason="nvflare is not installed: pip install 'fedveil-federation[flare]'",
)
ENGINE = "flare"
MEGABYTE = 1 << 20
MOST_MEMORY = 400  # megabytes of a courier, which has about 100


class Peer:
    """A stream to the hub, with a site's certificate; it sends whatever it is told to."""

    def __init__(self, victims: Victims, certificate: str, *, reads: bool = True) -> None:
        import grpc
        from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub

        pair = victims.bundles[certificate].pair
        own = grpc.ssl_channel_credentials(
            victims.hub.authority.certificate.encode(), pair.key.encode(), pair.certificate.encode()
        )
        self._frames: queue.Queue[Any] = queue.Queue()
        self._channel = grpc.secure_channel(
            f"localhost:{victims.hub.agreement.port}",
            own,
            [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
        )
        self._stream = StreamerStub(self._channel).Stream(iter(self._frames.get, None))
        self.arrived: list[bytes] = []
        self.ended = threading.Event()
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def send(self, kind: int, headers: bytes = b"", payload: bytes = b"", app: int = 0) -> None:
        from nvflare.fuel.f3.drivers.grpc.streamer_pb2 import Frame

        size = 16 + len(headers) + len(payload)
        prefix = struct.pack(">IHBBHHHH", size, len(headers), kind, 0, 0, app, 1, 1)
        self._frames.put(Frame(seq=1, data=prefix + headers + payload))

    def greet(self, name: str) -> None:
        import msgpack
        from nvflare.fuel.f3.sfm.constants import Types

        self.send(Types.HELLO, payload=msgpack.packb({"endpoint_name": name, "timestamp": 0.0}))

    def close(self) -> None:
        self._frames.put(None)
        self._channel.close()

    def _read(self) -> None:
        try:
            for frame in self._stream:
                self.arrived.append(frame.data)
        except Exception:
            pass
        self.ended.set()


@pytest.fixture
def hub(victims: Victims) -> Iterator[CourierProcess]:
    """The hub's courier, listening."""
    with running(victims.hub) as (process,):
        wait_for(lambda: sockets.accepts(victims.hub.agreement.port))
        yield process


def test_streams_of_one_site_keep_no_other_out(victims: Victims, hub: CourierProcess) -> None:
    crowd = [Peer(victims, "south") for _ in range(60)]
    crowd += [Peer(victims, "east", reads=False) for _ in range(60)]
    try:
        for peer in crowd:
            peer.greet("south")
        time.sleep(5)
        with running(victims.site):
            wait_for(lambda: "north" in of_hub(victims).sites(), 60)
    finally:
        for peer in crowd:
            peer.close()


def test_the_newest_stream_of_a_site_is_the_one_that_counts(
    victims: Victims, hub: CourierProcess
) -> None:
    """A site that vanished comes back while its old stream is still there."""
    old = Peer(victims, "south", reads=False)
    old.greet("south")
    wait_for(lambda: of_hub(victims).sites() == ("south",))
    for _ in range(5):
        time.sleep(1)
        new = Peer(victims, "south")
        new.greet("south")
        wait_for(lambda new=new: new.arrived, 30)
        time.sleep(0.5)
        assert of_hub(victims).sites() == ("south",)
        old.close()
        old = new
    assert of_hub(victims).sites() == ("south",)
    old.close()


@pytest.mark.parametrize(
    "name", ["north", "server", "server.south", "south.x", "SOUTH", " south ", "", "south/x"]
)
def test_a_stream_ends_unless_it_greets_by_the_certificates_name(
    victims: Victims, hub: CourierProcess, name: str
) -> None:
    peer = Peer(victims, "south")
    peer.greet(name)
    assert peer.ended.wait(30)
    assert of_hub(victims).sites() == ()
    peer.close()


def test_a_second_greeting_ends_the_stream(victims: Victims, hub: CourierProcess) -> None:
    peer = Peer(victims, "south")
    peer.greet("south")
    peer.greet("south")
    assert peer.ended.wait(30)
    wait_for(lambda: of_hub(victims).sites() == ())


def test_a_long_greeting_costs_the_hub_no_memory(victims: Victims, hub: CourierProcess) -> None:
    """Each of its bytes is an empty map, and would become 64 bytes."""
    from nvflare.fuel.f3.sfm.constants import Types

    peer = Peer(victims, "south")
    peer.send(Types.HELLO, payload=b"\xdd" + struct.pack(">I", 16 * MEGABYTE) + b"\x80" * 2**24)
    assert peer.ended.wait(60)
    assert highest_memory(hub.pid) < MOST_MEMORY


def test_a_site_that_does_not_read_costs_the_hub_no_memory(
    victims: Victims, hub: CourierProcess
) -> None:
    peer = Peer(victims, "south", reads=False)
    peer.greet("south")
    asking = of_hub(victims)
    wait_for(lambda: asking.sites() == ("south",))
    for _ in range(60):
        found = asking.ask({"south": bytes(8 * MEGABYTE)}, 0.2)
        assert isinstance(found["south"], Unreachable)
    assert highest_memory(hub.pid) < MOST_MEMORY
    peer.close()


def test_a_hub_that_asks_without_end_costs_the_sites_courier_no_memory(victims: Victims) -> None:
    """The guard is busy with the first request, and the hub sends a hundred more."""
    from nvflare.fuel.f3.message import Message

    from fedveil_federation.deploy.flare import APPLICATION, Link

    busy, done = threading.Event(), threading.Event()

    def answer(frame: bytes) -> bytes:
        busy.set()
        done.wait(120)
        return b""

    place = victims.folder / "hub-files"
    place.mkdir()
    pair = victims.hub.certificate
    files = {"ca_cert": victims.hub.authority.certificate, "server_cert": pair.certificate}
    credentials = {"connection_security": "mtls"}
    for name, text in {**files, "server_key": pair.key}.items():
        (place / name).write_text(text)
        credentials[name] = str(place / name)
    port = victims.hub.agreement.port
    link = Link("server", "0.0.0.0", port, credentials, ["north"])
    process = CourierProcess(victims.site)
    process.keep_running()
    guard = SocketCourier(victims.site.socket, victims.site.courier)
    guard.attach("fedveil", answer)
    link.start()
    try:
        wait_for(lambda: link.present() == ("north",))
        endpoint = link._endpoint("north")
        until, number = time.monotonic() + 20, 0
        while time.monotonic() < until and number < 200:
            request = Message({"kind": "request", "number": number}, bytes(8 * MEGABYTE))
            try:
                link._communicator.send(endpoint, APPLICATION, request)
                number += 1
            except Exception:  # the queue to the site is full
                time.sleep(0.05)
        assert busy.wait(30)
        time.sleep(2)
        assert highest_memory(process.pid) < MOST_MEMORY
        assert threading.active_count() < 60  # of this process: the guard's threads among them
    finally:
        done.set()
        process.stop()
        guard.close()
        link.stop()


def test_a_site_cannot_answer_in_anothers_place(victims: Victims, hub: CourierProcess) -> None:
    import msgpack
    from nvflare.fuel.f3.sfm.constants import Types

    from fedveil_federation.deploy.flare import APPLICATION

    north, south = (Peer(victims, site) for site in ("north", "south"))
    asking, found = of_hub(victims), dict[str, Any]()
    try:
        north.greet("north")
        south.greet("south")
        wait_for(lambda: asking.sites() == ("north", "south"))
        asked = threading.Thread(target=lambda: found.update(asking.ask({"north": b"?"}, 10.0)))
        asked.start()
        wait_for(lambda: len(north.arrived) > 1)  # the greeting, then the request
        for kind in ("answer", "failure"):
            for number in range(10):
                headers = msgpack.packb({"kind": kind, "number": number})
                south.send(Types.DATA, headers, b"forged", APPLICATION)
        time.sleep(1)
        headers = msgpack.packb({"kind": "answer", "number": 1})
        north.send(Types.DATA, headers, b"true", APPLICATION)
        asked.join()
        assert found == {"north": b"true"}
    finally:
        north.close()
        south.close()


def test_a_taken_port_is_listened_at_as_soon_as_it_is_free(victims: Victims) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("0.0.0.0", victims.hub.agreement.port))
        taken.listen()
        process = CourierProcess(victims.hub)
        process.keep_running()
        log = victims.hub.path / "courier.log"
        wait_for(lambda: "cannot listen" in log.read_text())
    try:
        with running(victims.site):
            wait_for(lambda: of_hub(victims).sites() == ("north",), 60)
    finally:
        process.stop()


def test_settings_below_the_working_directory_are_not_read(
    victims: Victims, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """FLARE looks for them there: another user's file could stop the courier."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "comm_config.json").write_text("{ this is no JSON")
    monkeypatch.chdir(tmp_path)
    with running(victims.hub, victims.site):
        wait_for(lambda: of_hub(victims).sites() == ("north",), 60)
