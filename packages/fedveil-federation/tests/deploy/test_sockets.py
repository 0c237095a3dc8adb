"""Unix sockets between a party and its courier: whoever misbehaves disturbs nobody but itself."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.deploy.victims import Victims, victims, wait_for

from benchmarks.deploy_engines import memory_of
from fedveil_federation.deploy import sockets
from fedveil_federation.deploy.courier import Unreachable
from fedveil_federation.deploy.sockets import SocketCourier

__all__ = ["victims"]
LIMIT = 1 << 20  # bytes of a request to the guard


def test_a_leg_reaches_hundreds_of_sites_at_once(tmp_path: Path) -> None:
    all_there = threading.Barrier(400)

    def forward(site: str, frame: bytes, seconds: float) -> bytes:
        all_there.wait(60.0)
        return frame

    listening = sockets.relay(tmp_path / "r", forward, lambda: ())
    try:
        frames = {f"site-{number}": b"x" for number in range(all_there.parties)}
        assert SocketCourier(tmp_path / "r", tmp_path).ask(frames, 60.0) == frames
    finally:
        listening.close()


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


def test_a_courier_with_many_connections_occupies_few_threads(guard: Path) -> None:
    before = threading.active_count()
    crowd = [connected(guard) for _ in range(200)]
    wait_for(lambda: threading.active_count() <= before + 4, 10)
    for one in crowd:
        one.close()
    wait_for(lambda: sockets.request(guard, b"3", 5.0) == bytes(3), 30)


def test_a_courier_cannot_make_the_guard_reserve_memory(guard: Path) -> None:
    """Eight bytes announce a gigabyte, and nothing follows."""
    before = memory_of(os.getpid())
    crowd = [connected(guard) for _ in range(20)]
    for one in crowd:
        with suppress(OSError):
            one.sendall((2**30).to_bytes(6, "little") + bytes(2))
            assert one.recv(1) == b""  # refused
    assert memory_of(os.getpid()) < before + 200
    for one in crowd:
        one.close()


def test_a_request_beyond_the_limit_is_refused_before_it_is_read(guard: Path) -> None:
    """It lies in a file in memory, of which nothing is copied; one at the limit is answered."""
    before = memory_of(os.getpid())
    for size in (900 << 20, LIMIT + 1):
        with os.fdopen(os.memfd_create("long"), "w+b") as file, connected(guard) as asking:
            file.truncate(size)
            socket.send_fds(
                asking, [(size | 1 << 47).to_bytes(6, "little") + bytes(2)], [file.fileno()]
            )
            assert asking.recv(8) == b""
    assert memory_of(os.getpid()) < before + 100
    assert sockets.request(guard, b"3".ljust(LIMIT), 60.0) == bytes(3)


def test_an_answer_beyond_the_limit_is_refused_before_it_is_read(guard: Path) -> None:
    with pytest.raises(Unreachable):
        sockets.request(guard, b"1000000", 60.0, most=999_999)
    assert len(sockets.request(guard, b"1000000", 60.0, most=1_000_000)) == 1_000_000


def test_a_long_answer_needs_the_file_that_came_with_the_request(
    guard: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without one, the answer would go to whatever has descriptor 0."""
    written = []
    monkeypatch.setattr(os, "pwrite", lambda file, *_: written.append(file) or 1 << 20)
    with connected(guard) as asking:
        asking.sendall((7).to_bytes(6, "little") + bytes(2) + b"1000000")
        assert asking.recv(8) == b""
    assert written == []


def test_a_request_in_a_file_that_is_not_in_memory_is_refused(guard: Path, tmp_path: Path) -> None:
    """Reading one could take for ever: the courier may have made the file system."""
    place = Path.home() / ".fedveil-test-request"
    place.write_bytes(b"5".ljust(1 << 17))
    try:
        if os.statvfs(place).f_fsid == os.statvfs("/dev/shm").f_fsid:
            pytest.skip("no file here that is not in memory")
        with place.open("r+b") as file, connected(guard) as asking:
            size = (1 << 17 | 1 << 47).to_bytes(6, "little")
            socket.send_fds(asking, [size + bytes(2)], [file.fileno()])
            assert asking.recv(8) == b""
    finally:
        place.unlink()
