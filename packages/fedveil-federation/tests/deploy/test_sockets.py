"""Unix sockets between a party and its courier: whoever misbehaves disturbs nobody but itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.deploy.victims import Victims, victims

from benchmarks.deploy_engines import memory_of
from fedveil_federation.deploy import sockets
from fedveil_federation.deploy.courier import Unreachable
from fedveil_federation.deploy.sockets import SocketCourier

__all__ = ["victims"]
LIMIT = 1 << 20  # bytes of a request to the guard


@pytest.fixture
def guard(victims: Victims) -> Iterator[Path]:
    """A guard's socket; it answers a request with as many bytes as the request says."""
    listening = SocketCourier(victims.site.socket, victims.folder, most=LIMIT)
    listening.attach("g", lambda frame: bytes(int(frame[:16])))
    yield victims.folder / "g.sock"
    listening.close()


def connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(30)
    made.connect(str(path))
    return made


def test_a_courier_cannot_make_the_guard_reserve_memory(guard: Path) -> None:
    """Eight bytes announce a gigabyte, and nothing follows."""
    before = memory_of(os.getpid()).resident
    crowd = [connected(guard) for _ in range(20)]
    for one in crowd:
        with suppress(OSError):
            one.sendall((2**30).to_bytes(6, "little") + bytes(2))
            assert one.recv(1) == b""  # refused
    assert memory_of(os.getpid()).resident < before + 200
    for one in crowd:
        one.close()


def test_a_request_beyond_the_limit_is_refused_before_it_is_read(guard: Path) -> None:
    with connected(guard) as asking:
        asking.sendall((LIMIT + 1).to_bytes(6, "little") + bytes(2))
        assert asking.recv(8) == b""
    with pytest.raises(Unreachable):
        sockets.request(guard, b"3".ljust(LIMIT + 1), 60.0)
    assert sockets.request(guard, b"3".ljust(LIMIT), 60.0) == bytes(3)


def test_an_answer_beyond_the_limit_is_refused_before_it_is_read(guard: Path) -> None:
    with pytest.raises(Unreachable):
        sockets.request(guard, b"1000000", 60.0, most=999_999)
    assert len(sockets.request(guard, b"1000000", 60.0, most=1_000_000)) == 1_000_000
