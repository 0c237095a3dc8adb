"""HTTPS as the courier: the contract, and peers of every kind that get nothing by it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.courier_suite import LONG
from tests.deploy.engine_suite import EngineSuite, connected
from tests.deploy.victims import SITES, Victims, highest_memory, of_hub, running, victims, wait_for

from benchmarks.deploy_engines import Homes, free_port
from fedveil.cli import main
from fedveil_federation.deploy import certificates, https
from fedveil_federation.deploy.certificates import Pair
from fedveil_federation.deploy.courier import HUB, KEYS, Settings, Unreachable, most_reply
from fedveil_federation.deploy.https import HubLink, SiteLink

__all__ = ["victims"]
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def running_engines() -> Iterator[Homes]:
    with connected() as courier:
        yield courier


class TestHttpsCourier(EngineSuite):
    """The contract, with real processes."""

    @pytest.fixture(autouse=True)
    def use(self, running_engines: Homes) -> None:
        self.running = running_engines


# --- who is let in ------------------------------------------------------------------------------


class World:
    """A hub's link in this process, with an authority and certificates of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, certificates.new_authority("hospitals")
        self.keys: dict[str, list[str]] = {}
        self.settings = Settings("https", HUB, SITES, "localhost", free_port(), "", 10 * MEGABYTE)
        self.hub = HubLink(self.settings, self.kit("hub", "localhost"))
        self.hub.start()
        wait_for(self._listens)

    def kit(self, name: str, host: str | None = None, pair: Pair | None = None) -> Path:
        """A party's files; those of its certificate may be given. The hub is told of its key."""
        place = self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        own = pair or certificates.new_pair(self.authority, name, host)
        (place / "authority.crt").write_text(self.authority.certificate)
        (place / "link.crt").write_text(own.certificate)
        (place / "link.pem").write_text(own.key)
        self.keys.setdefault(name, []).append(certificates.key_of(own.certificate))
        (self.folder / "hub" / KEYS).write_text(json.dumps(self.keys))
        return place

    def peer(self, name: str = "south", **options: Any) -> http.client.HTTPSConnection:
        """A connection with a site's certificate, which says whatever it is told to."""
        context = https.client_context(self.kit(name, **options))
        made = http.client.HTTPSConnection(
            "localhost", self.settings.port, timeout=LONG, context=context
        )
        made.connect()
        wait_for(lambda: name in self.hub.present())  # its handshake has ended on both sides
        return made

    def site(self, name: str, answer: Callable[[bytes], bytes], **changed: Any) -> SiteLink:
        link = SiteLink(replace(self.settings, name=name, **changed), self.kit(name), answer)
        link.start()
        return link

    def asked(self, site: str, frame: bytes, seconds: float = LONG) -> list[bytes | str]:
        """What becomes of a request of the hub's; the list is empty until that is known."""
        found: list[bytes | str] = []

        def ask() -> None:
            try:
                found.append(self.hub.request(site, frame, seconds))
            except Unreachable:
                found.append("unreachable")

        threading.Thread(target=ask, daemon=True).start()
        return found

    def _listens(self) -> bool:
        socket.create_connection(("localhost", self.settings.port), timeout=1).close()
        return True


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.hub.stop()


def answered(context: ssl.SSLContext, port: int) -> bool:
    """Whether the hub answers anything to somebody who asks for the mailbox."""
    connection = http.client.HTTPSConnection("localhost", port, timeout=LONG, context=context)
    try:
        connection.request("DELETE", "/mailbox/1")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def test_nobody_is_let_in_without_a_certificate(world: World) -> None:
    context = ssl.create_default_context(cadata=world.authority.certificate)
    assert not answered(context, world.settings.port)


@pytest.mark.parametrize(
    "kind", ["another authority", "expired", "the hub's", "unknown name", "a bundle that was used"]
)
def test_nobody_is_let_in_with_another_certificate(world: World, kind: str) -> None:
    if kind == "another authority":
        pair = certificates.new_pair(certificates.new_authority("hospitals"), "south")
    elif kind == "expired":
        own = certificates.new_pair(world.authority, "south")
        old = certificates.renewed(world.authority, own.certificate, days=0)
        pair = Pair(old, own.key)
    elif kind == "the hub's":
        pair = certificates.new_pair(world.authority, "localhost", "localhost")
    else:
        used = kind == "a bundle that was used"
        pair = certificates.new_pair(world.authority, "south" if used else "west")
    for name in ("south", "west", "localhost"):  # so that its key is not why it is refused
        world.kit(name, pair=None if kind == "a bundle that was used" else pair)
    context = https.client_context(world.kit("stranger", pair=pair))
    assert not answered(context, world.settings.port)
    assert world.hub.present() == ()


def test_tls_before_version_1_3_is_refused(world: World) -> None:
    context = https.client_context(world.kit("south"))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert not answered(context, world.settings.port)


@pytest.mark.parametrize("name", ["south", "hub"])
def test_a_site_talks_to_no_hub_but_its_own(tmp_path: Path, name: str) -> None:
    """A fellow site's certificate is not the hub's, nor is one of another authority."""
    hub, other = (World(tmp_path / folder) for folder in "ab")
    hub.hub.stop()
    other.hub.stop()
    place = hub.kit("south") if name == "south" else other.kit("hub", "localhost")
    (place / "authority.crt").write_text(hub.authority.certificate)  # lets north in
    imposter = HubLink(replace(hub.settings, port=free_port()), place)
    imposter.start()
    seen = []
    try:
        port = imposter._settings.port
        wait_for(lambda: socket.create_connection(("localhost", port), timeout=1).close() is None)
        site = hub.site("north", lambda frame: seen.append(frame) or b"", port=port)
        wait_for(lambda: "certificate" in site._said.lower())
        assert imposter.present() == ()
        site.stop()
    finally:
        imposter.stop()
    assert seen == []


# --- what a site can ask for --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/", "/mailbox/", "/mailbox/1", "/mailbox?site=north", "//")),
        *(("POST", path) for path in ("/mailbox", "/mailbox/x", "/mailbox/../1", "/mailbox/-1")),
        *((method, "/mailbox") for method in ("PUT", "HEAD", "OPTIONS", "DELETE", "CONNECT")),
        ("POST", "/mailbox/999"),
    ],
)
def test_there_is_nothing_but_the_mailbox(world: World, method: str, path: str) -> None:
    peer = world.peer()
    peer.putrequest(method, path, skip_host=False)
    peer.endheaders()
    response = peer.getresponse()
    assert response.status in (400, 404, 405)
    with contextlib.suppress(ConnectionError, http.client.HTTPException):
        response.read()
        assert peer.sock is None or peer.sock.recv(1) == b""  # and it is closed


def test_a_site_cannot_answer_or_read_in_anothers_place(world: World) -> None:
    north, south = world.peer("north"), world.peer("south")
    found = world.asked("north", b"for north")
    north.request("GET", "/mailbox")
    response = north.getresponse()
    assert response.read() == b"for north"
    number = response.getheader("Fedveil-Message")
    for method, body in (("POST", b"forged"), ("DELETE", None)):
        south.request(method, f"/mailbox/{number}", body)
        assert south.getresponse().status == 404
        south.close()
    north.request("POST", f"/mailbox/{number}", b"true")
    assert north.getresponse().status == 204
    wait_for(lambda: found == [b"true"])


def test_a_message_stays_until_it_is_answered(world: World) -> None:
    """The site loses its connection after it has read the message, and gets it again."""
    peer = world.peer()
    found = world.asked("south", b"question")
    peer.request("GET", "/mailbox")
    assert peer.getresponse().read() == b"question"
    peer.close()
    link = world.site("south", lambda frame: frame + b"!")
    wait_for(lambda: found == [b"question!"])
    link.stop()


def test_the_newest_connection_of_a_site_is_the_one_that_counts(world: World) -> None:
    old = [world.peer() for _ in range(20)]
    for one in old:
        with contextlib.suppress(OSError):
            one.request("GET", "/mailbox")
    link = world.site("south", lambda frame: frame)
    found = world.asked("south", b"first")
    wait_for(lambda: found)
    wait_for(lambda: link._said.startswith("connected"))
    wait_for(lambda: len(world.hub._boxes["south"].connections) <= 2)
    assert world.hub.request("south", b"x", LONG) == b"x"
    north = world.site("north", lambda frame: frame)
    wait_for(lambda: "north" in world.hub.present())
    assert world.hub.request("north", b"y", LONG) == b"y"
    for one in (link, north):
        one.stop()


# --- sizes and slowness -------------------------------------------------------------------------


def sent_until_closed(peer: http.client.HTTPSConnection, most: int) -> int:
    """How many bytes the other side takes before it hangs up."""
    sent, part = 0, bytes(MEGABYTE)
    try:
        while sent < most:
            peer.sock.sendall(part)
            sent += len(part)
    except OSError:
        pass
    return sent


@pytest.mark.parametrize("kind", ["too long", "chunked", "no length", "compressed bomb"])
def test_a_body_is_refused_before_it_is_buffered(world: World, kind: str) -> None:
    peer = world.peer()
    found = world.asked("south", b"question")
    peer.request("GET", "/mailbox")
    number = (response := peer.getresponse()).getheader("Fedveil-Message")
    assert response.read() == b"question"
    peer.putrequest("POST", f"/mailbox/{number}")
    if kind == "too long":
        peer.putheader("Content-Length", str(most_reply(len(b"question")) + 1))
    elif kind == "chunked":
        peer.putheader("Transfer-Encoding", "chunked")
    elif kind == "compressed bomb":
        peer.putheader("Content-Length", str(900 * MEGABYTE))
        peer.putheader("Content-Encoding", "gzip")
    peer.endheaders()
    assert sent_until_closed(peer, 900 * MEGABYTE) < 50 * MEGABYTE
    wait_for(lambda: found == ["unreachable"])


def test_an_oversized_answer_costs_the_hubs_courier_no_memory(victims: Victims) -> None:
    """The courier is a process of its own here, so that its memory can be looked at."""
    with running(victims.hub) as (process,):
        port = victims.hub.agreement.port
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=victims.hub.authority.certificate)
        own, pair = victims.folder / "own.pem", victims.bundles["south"].pair
        own.write_text(pair.certificate + pair.key)
        context.load_cert_chain(own)
        wait_for(lambda: answered(context, port))
        for _ in range(4):
            asking = threading.Thread(
                target=lambda: of_hub(victims).ask({"south": b"x"}, LONG), daemon=True
            )
            peer = http.client.HTTPSConnection("localhost", port, timeout=LONG, context=context)
            peer.connect()
            wait_for(lambda: of_hub(victims).sites() == ("south",))
            asking.start()
            peer.request("GET", "/mailbox")
            number = (response := peer.getresponse()).getheader("Fedveil-Message")
            response.read()
            peer.putrequest("POST", f"/mailbox/{number}")
            peer.putheader("Content-Length", str(900 * MEGABYTE))
            peer.endheaders()
            assert sent_until_closed(peer, 900 * MEGABYTE) < 50 * MEGABYTE
            asking.join()
        assert highest_memory(process.pid) < 100


def test_a_request_beyond_the_owners_limit_is_not_read(world: World) -> None:
    """The hub is told at once that it was not answered, and the next one is."""
    taken = []
    link = world.site("south", lambda frame: taken.append(len(frame)) or b"", most=MEGABYTE)
    wait_for(lambda: world.hub.present() == ("south",))
    with pytest.raises(Unreachable):
        world.hub.request("south", bytes(MEGABYTE + 1), LONG)
    wait_for(lambda: world.hub.present() == ("south",))
    assert world.hub.request("south", bytes(MEGABYTE), LONG) == b""
    assert taken == [MEGABYTE]
    link.stop()


@pytest.mark.parametrize("kind", ["handshake", "header", "body", "reading"])
def test_a_slow_peer_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It holds its connection and says nothing, or little; the deadlines are short here."""
    for name in ("_HANDSHAKE", "_IDLE", "_BODY"):
        monkeypatch.setattr(https, name, 0.5)
    monkeypatch.setattr(https, "_SLOWEST", 1 << 30)
    world = World(tmp_path)
    if kind == "handshake":
        plain = socket.create_connection(("localhost", world.settings.port), timeout=LONG)
        with plain, contextlib.suppress(ConnectionError):
            assert plain.recv(1000) == b""
    else:
        monkeypatch.setattr(https, "_IDLE", 0.5 if kind == "header" else LONG)
        world.hub.stop()
        world = World(tmp_path)
        peer = world.peer()
        if kind == "header":
            peer.sock.sendall(b"GET /mail")
        else:
            frame = b"x" if kind == "body" else bytes(50 * MEGABYTE)
            found = world.asked("south", frame, 10 * LONG)
            peer.request("GET", "/mailbox")
            if kind == "body":
                number = (response := peer.getresponse()).getheader("Fedveil-Message")
                response.read()
                peer.putrequest("POST", f"/mailbox/{number}")
                peer.putheader("Content-Length", "100")
                peer.endheaders()
                peer.sock.sendall(b"x")
            assert found == []
        wait_for(lambda: world.hub.present() == ())
    world.hub.stop()


# --- on the way ---------------------------------------------------------------------------------


def pump(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on, in one direction, until one side hangs up."""
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def tunnel(listening: socket.socket, seen: list[bytes]) -> None:
    """A proxy that knows CONNECT alone, as hospitals have them."""
    while True:
        try:
            asking, _ = listening.accept()
        except OSError:
            return
        head = b""
        while b"\r\n\r\n" not in head:
            head += asking.recv(1000)
        seen.append(head)
        host, _, port = head.split()[1].decode().rpartition(":")
        there = socket.create_connection((host, int(port)))
        asking.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for ends in ((asking, there), (there, asking)):
            threading.Thread(target=pump, args=ends, daemon=True).start()


def test_a_site_reaches_the_hub_through_a_proxy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=tunnel, args=(listening, seen), daemon=True).start()
        port = listening.getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://north:s%20cret@127.0.0.1:{port}")
        monkeypatch.setenv("https_proxy", f"http://north:s%20cret@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")
        link = world.site("north", lambda frame: frame)
        wait_for(lambda: world.hub.present() == ("north",))
        content = os.urandom(3 * MEGABYTE)
        assert world.hub.request("north", content, LONG) == content
        link.stop()
        listening.shutdown(socket.SHUT_RDWR)
    assert seen[0].startswith(b"CONNECT localhost:%d " % world.settings.port)
    assert b"Proxy-Authorization: Basic bm9ydGg6cyBjcmV0" in seen[0]


def test_a_revoked_site_is_let_in_no_more(victims: Victims, capsys: Any) -> None:
    """While the hub runs, and although its certificate is valid."""
    with running(victims.hub, victims.site) as (hub, _):
        wait_for(lambda: of_hub(victims).sites() == ("north",))
        assert main(["federation", "revoke", "north", "--home", str(victims.hub.path)]) == 0
        hub.keep_running()  # as `hub start` does all the time
        wait_for(lambda: of_hub(victims).sites() == ())
        assert "north" in victims.hub.revoked
    assert main(["federation", "renew", "north", "--home", str(victims.hub.path)]) == 2
    assert main(["federation", "revoke", "west", "--home", str(victims.hub.path)]) == 2
    capsys.readouterr()


# --- all of it ----------------------------------------------------------------------------------
