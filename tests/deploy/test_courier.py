"""The courier inside one process keeps the contract; envelopes are read strictly."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.deploy.courier import Courier, MemoryCourier, Unreachable
from fedveil.deploy.envelope import BadFrame, Message, seal, unseal
from fedveil.deploy.sockets import SocketCourier, _receive, _send, relay, request
from tests.deploy.courier_suite import LONG, CourierSuite


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
    content, cuts = bytes(range(256)) * 1000, [share]

    def serve() -> None:
        for _ in range(2):
            asking, _ = listening.accept()
            asking.recv(100)
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


def test_an_answer_to_nothing_may_come_before_the_sender_is_done() -> None:
    """An empty message is whole with its length: whoever reads it may answer and hang up."""
    here, there = socket.socketpair()

    class Hasty:
        def sendall(self, content: bytes) -> None:
            here.sendall(content)
            there.recv(8)
            there.close()

    _send(cast("socket.socket", Hasty()), b"")
    here.close()


KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()


def test_a_message_comes_out_as_it_went_in() -> None:
    message = Message({"kind": "open", "round": 3}, (b"", b"\x00\xff", b"x" * 1000))
    assert unseal(seal(message, KEY), [PUBLIC]) == message
    assert unseal(seal(message, KEY, b"request"), [PUBLIC], b"request") == message


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


def test_a_long_message_that_is_not_all_there_brings_nothing(tmp_path: Path) -> None:
    """It comes as a file in memory: one that is shorter than was said is no message, and no
    descriptor is left open."""
    one, other = socket.socketpair(socket.AF_UNIX)
    before = len(os.listdir("/proc/self/fd"))
    with one, other:
        _send(one, bytes(1 << 20))
        assert _receive(other) == bytes(1 << 20)
        with (tmp_path / "short").open("w+b") as file:
            file.write(bytes(100))
            file.flush()
            socket.send_fds(one, [(1 << 20).to_bytes(8, "little")], [file.fileno()])
        with pytest.raises(OSError, match="cut off"):
            _receive(other)
        socket.send_fds(one, [(1 << 40).to_bytes(8, "little")], [one.fileno()])
        with pytest.raises(OSError, match="too long"):
            _receive(other)
        assert len(os.listdir("/proc/self/fd")) == before
