"""The courier inside one process keeps the contract; envelopes are read strictly."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.deploy.courier_suite import LONG, CourierSuite

from benchmarks.deploy_engines import MemoryCourier
from fedveil.core.errors import ConfigError
from fedveil_federation.deploy import carry
from fedveil_federation.deploy.courier import Courier, Settings, Unreachable, place_of
from fedveil_federation.deploy.envelope import BadFrame, Message, seal, unseal
from fedveil_federation.deploy.sockets import (
    SocketCourier,
    _send,
    relay,
    request,
)


def test_another_package_brings_a_courier_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="pigeons"):
        place_of("pigeons")
    (tmp_path / "pigeons-1.0.dist-info").mkdir()
    (tmp_path / "pigeons-1.0.dist-info" / "METADATA").write_text("Name: pigeons\nVersion: 1.0\n")
    entries = "[fedveil.couriers]\npigeons = pigeons_carry\nhttps = pigeons_carry\n"
    (tmp_path / "pigeons-1.0.dist-info" / "entry_points.txt").write_text(entries)
    (tmp_path / "pigeons_carry.py").write_text(
        "def site_link(settings, place, answer):\n    return settings.name, answer(b'coo')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert place_of("pigeons") == "pigeons_carry"
    assert place_of("https") != "pigeons_carry"  # nobody takes the place of fedveil's own
    settings = Settings("pigeons", "north", ("north", "south"), "hub", 8002, "guard.sock", 9)
    (tmp_path / "link.json").write_text(json.dumps(asdict(settings)))
    monkeypatch.setattr(carry.sockets, "request", lambda *_, **__: b"home")
    link, listening = carry._opened(tmp_path)
    assert (link, listening) == (("north", b"home"), None)


class TestMemoryCourier(CourierSuite):
    def make(self) -> Courier:
        return MemoryCourier()


class TestSocketCourier(CourierSuite):
    """Through Unix sockets, with a relay that forwards within this machine."""

    @pytest.fixture(autouse=True)
    def relayed(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path

        def site(name: str) -> Path:
            return tmp_path / "guards" / f"{name}.sock"

        def names() -> tuple[str, ...]:
            return tuple(sorted(path.stem for path in site("x").parent.glob("*.sock")))

        listening = relay(
            tmp_path / "hub.sock", lambda name, frame, s: request(site(name), frame, s), names
        )
        yield
        listening.close()

    def make(self) -> Courier:
        return SocketCourier(self.folder / "hub.sock", self.folder / "guards")

    def test_nobody_else_may_open_a_socket(self, courier: Courier) -> None:
        courier.attach("a", lambda frame: frame)
        for path in (self.folder / "hub.sock", self.folder / "guards" / "a.sock"):
            assert path.stat().st_mode & 0o777 == 0o600

    def test_more_requests_than_a_guard_answers_at_once_are_all_answered(
        self, courier: Courier
    ) -> None:
        """They wait for their turn: none is turned away while another is still ending."""
        courier.attach("a", lambda frame: frame)
        path = self.folder / "guards" / "a.sock"
        asked = [b"%d" % number for number in range(40)]
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda frame: request(path, frame, LONG), asked))
        assert answers == asked

    def test_nonsense_at_a_socket_ends_that_connection_alone(self, courier: Courier) -> None:
        courier.attach("a", lambda frame: frame)
        for nonsense in (b"", b"\xff" * 8, b"\x05" + bytes(7) + b"ab"):
            with socket.socket(socket.AF_UNIX) as asking:
                asking.connect(str(self.folder / "hub.sock"))
                asking.sendall(nonsense)
        assert courier.ask({"a": b"x"}, LONG) == {"a": b"x"}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_connection_cut_in_the_middle_of_an_upload_brings_nothing(
    share: float, tmp_path: Path
) -> None:
    """The first reply ends after a share of its bytes; whoever asks again gets all of it."""
    content, cuts = bytes(range(256)) * 200, [share]

    def serve() -> None:
        for _ in range(2):
            asking, _ = listening.accept()
            asking.recv(9, socket.MSG_WAITALL)
            whole = len(content).to_bytes(8, "little") + content
            asking.sendall(whole[: int(cuts.pop() * (len(whole) - 1))] if cuts else whole)
            asking.close()

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "hub.sock"))
        listening.listen()
        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises(Unreachable):
            request(tmp_path / "hub.sock", b"x", LONG)
        assert request(tmp_path / "hub.sock", b"x", LONG) == content
        serving.join()


@pytest.mark.parametrize("content", [b"", b"content"])
def test_a_receiver_may_answer_as_soon_as_it_has_the_whole_message(content: bytes) -> None:
    """Nothing is sent to a peer that has read everything and hung up."""
    here, there = socket.socketpair()
    left = 8 + len(b"about") + len(content)

    class Hasty:
        def sendall(self, part: bytes) -> None:
            nonlocal left
            here.sendall(part)
            left -= len(there.recv(len(part), socket.MSG_WAITALL)) if part else 0
            if not left:
                there.close()

    with here, there:
        _send(cast("socket.socket", Hasty()), content, b"about")
    assert left == 0


KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()


def test_every_changed_byte_is_noticed() -> None:
    frame = seal(Message({"kind": "open"}, (b"abc",)), KEY)
    for at in range(len(frame)):
        changed = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        with pytest.raises(BadFrame):
            unseal(changed, [PUBLIC])
    for end in range(len(frame)):
        with pytest.raises(BadFrame):
            unseal(frame[:end], [PUBLIC])


def test_a_reply_answers_one_request_and_is_no_request() -> None:
    frame = seal(Message({"status": "done"}), KEY, b"request")
    for other in (b"", b"another request"):
        with pytest.raises(BadFrame, match="not signed"):
            unseal(frame, [PUBLIC], other)


def test_strangers_and_giants_are_refused() -> None:
    frame = seal(Message({"kind": "hello"}), KEY)
    stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    with pytest.raises(BadFrame, match="not signed"):
        unseal(frame, [stranger])
    with pytest.raises(BadFrame, match="at most 10"):
        unseal(frame, [PUBLIC], most=10)
