"""The courier inside one process keeps the contract; envelopes are read strictly."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.deploy.courier_suite import LONG, CourierSuite

from fedveil_federation.deploy.courier import Courier, MemoryCourier, Unreachable
from fedveil_federation.deploy.envelope import BadFrame, Message, seal, unseal
from fedveil_federation.deploy.sockets import (
    _FILES,
    Listening,
    SocketCourier,
    _received,
    _send,
    relay,
    request,
)


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
    content, cuts = bytes(range(256)) * 200, [share]

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


@pytest.mark.parametrize("about", [None, b"", b"about"])
def test_an_answer_may_come_before_the_sender_is_done(about: bytes | None) -> None:
    """Whoever has read all of a message may answer and hang up: nothing is sent after it."""
    here, there = socket.socketpair()

    class Hasty:
        def sendall(self, content: bytes) -> None:
            here.sendall(content)
            self.hang_up()

        def sendmsg(self, *words: Any) -> int:
            sent = here.sendmsg(*words)
            self.hang_up()
            return sent

        def hang_up(self) -> None:
            with _received(there):
                there.close()

    with _FILES.one() as file:
        _send(cast("socket.socket", Hasty()), b"", file, about)
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


def test_a_long_message_that_is_not_all_there_brings_nothing() -> None:
    """It comes in a file in memory: one that is shorter than was said is no message, and no
    descriptor is left open."""

    def said(size: int) -> bytes:
        return (size | 1 << 47).to_bytes(6, "little") + bytes(2)

    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other, _FILES.one() as file:
        before = len(os.listdir("/proc/self/fd"))
        _send(one, bytes(1 << 20), file, b"about")
        with _received(other) as (about, content, came):
            assert (about, content) == (b"about", bytes(1 << 20))
            assert os.path.sameopenfile(came, file)
        with os.fdopen(os.memfd_create("short"), "w+b") as short:
            short.write(bytes(100))
            short.flush()
            socket.send_fds(one, [said(1 << 20)], [short.fileno()])
        with pytest.raises(OSError, match="cut off"), _received(other):
            pass
        socket.send_fds(one, [said(1 << 40)], [one.fileno()])
        with pytest.raises(OSError, match="too long"), _received(other):
            pass
        socket.send_fds(one, [said(100)], [one.fileno()])
        with pytest.raises(OSError, match="Invalid argument"), _received(other):
            pass
        one.sendall(said(100))  # not what is on stdin
        with pytest.raises(OSError, match="no file"), _received(other):
            pass
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_is_used_again_only_after_both_are_done_with_it(tmp_path: Path) -> None:
    """Whoever did not wait for an answer may find it in the file later, where nobody looks."""
    gate, begun, done = threading.Event(), threading.Event(), threading.Event()

    def answer(about: bytes, content: bytes) -> bytes:
        if content[:1] == b"l":
            begun.set()
            assert gate.wait(LONG)
            done.set()
            return b"late" * (1 << 18)
        return content

    long = b"x" * (1 << 20)
    listening = Listening(tmp_path / "a.sock", answer)
    try:
        assert request(tmp_path / "a.sock", long, LONG) == long
        kept = set(_FILES._free)
        assert kept
        assert request(tmp_path / "a.sock", long, LONG) == long
        assert set(_FILES._free) == kept  # the same again
        for size in (1, 1 << 20):
            gate.clear()
            with pytest.raises(Unreachable):
                request(tmp_path / "a.sock", b"l" * size, 0.2)
            gate.set()
            if begun.is_set():
                assert done.wait(LONG)
            assert request(tmp_path / "a.sock", long, LONG) == long
    finally:
        gate.set()
        listening.close()
