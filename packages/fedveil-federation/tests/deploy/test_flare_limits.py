"""A peer, a local user or a courier that misbehaves disturbs nobody but itself.

The peers here speak the transport's frames directly, with certificates of the federation.
"""

from __future__ import annotations

import queue
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.courier_suite import LONG
from tests.deploy.victims import Victims, highest_memory, of_hub, running, wait_for

from benchmarks.deploy_engines import accepts
from fedveil_federation.deploy.courier import Unreachable

pytestmark = pytest.mark.skipif(
    find_spec("nvflare") is None,
    reason="nvflare is not installed: pip install 'fedveil-federation[flare]'",
)
BETWEEN = 1.0  # seconds; a site has to wait for less before it connects again


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


@pytest.fixture(scope="module")
def shared() -> Iterator[Victims]:
    """A hub whose courier listens, for all tests: FLARE takes long to start."""
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        found = Victims(Path(made), "flare")
        with running(found.hub) as (process,):
            # As `hub start` does, which starts a courier again that has ended.
            wait_for(lambda: process.keep_running() or accepts(found.hub.agreement.port))
            yield found


@pytest.fixture
def victims(shared: Victims) -> Victims:
    """The hub, when the sites of the test before have left it."""
    wait_for(lambda: of_hub(shared).sites() == ())
    time.sleep(BETWEEN)
    return shared


def test_streams_of_one_site_keep_no_other_out(victims: Victims) -> None:
    crowd = [Peer(victims, "south") for _ in range(60)]
    crowd += [Peer(victims, "east", reads=False) for _ in range(60)]
    try:
        for peer in crowd:
            peer.greet("south")
        time.sleep(5)
        with running(victims.site):
            wait_for(lambda: "north" in of_hub(victims).sites())
    finally:
        for peer in crowd:
            peer.close()


def test_a_request_beyond_the_owners_limit_is_not_buffered(victims: Victims) -> None:
    """The hub, or who has its key, sends 800 MB; the site is there for what it allows."""
    with running(victims.site) as (process,):
        wait_for(lambda: "north" in of_hub(victims).sites())
        found = of_hub(victims).ask({"north": bytes(800 << 20)}, 20.0)["north"]
        assert isinstance(found, Unreachable)
        wait_for(lambda: isinstance(of_hub(victims).ask({"north": b"?"}, 2.0)["north"], bytes))
        assert highest_memory(process.pid) < 300  # of which FLARE takes 100 to 160


def test_a_stream_ends_unless_it_greets_by_the_certificates_name(victims: Victims) -> None:
    names = ("north", "server", "server.south", "south.x", "SOUTH", " south ", "", "south/x")
    for name in (*names, "south"):
        time.sleep(BETWEEN)
        peer = Peer(victims, "south")
        peer.greet(name)
        if name == "south":
            wait_for(lambda: of_hub(victims).sites() == ("south",))
        else:
            assert peer.ended.wait(LONG), name
            assert of_hub(victims).sites() == (), name
        peer.close()


def test_a_site_cannot_answer_in_anothers_place(victims: Victims) -> None:
    import msgpack
    from nvflare.fuel.f3.sfm.constants import Types

    from fedveil_federation.deploy.flare import APPLICATION

    north, south = (Peer(victims, site) for site in ("north", "south"))
    asking, found = of_hub(victims), dict[str, Any]()
    try:
        north.greet("north")
        south.greet("south")
        wait_for(lambda: asking.sites() == ("north", "south"))
        asked = threading.Thread(target=lambda: found.update(asking.ask({"north": b"?"}, LONG)))
        asked.start()
        wait_for(lambda: len(north.arrived) > 1)  # the greeting, then the request
        request = north.arrived[1]
        length = int.from_bytes(request[4:6], "big")
        asked_as = msgpack.unpackb(request[16 : 16 + length])["number"]
        for kind in ("answer", "failure"):
            for number in range(asked_as + 5):
                headers = msgpack.packb({"kind": kind, "number": number})
                south.send(Types.DATA, headers, b"forged", APPLICATION)
        time.sleep(1)
        headers = msgpack.packb({"kind": "answer", "number": asked_as})
        north.send(Types.DATA, headers, b"true", APPLICATION)
        asked.join()
        assert found == {"north": b"true"}
    finally:
        north.close()
        south.close()
