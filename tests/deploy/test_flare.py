"""The demonstration over NVIDIA FLARE, smaller: processes, mTLS, two of them killed (-9)."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedveil.deploy.courier import Unreachable
from fedveil.deploy.engine_kit import EngineProcess
from fedveil.deploy.homes import HubHome
from fedveil.deploy.sockets import SocketCourier
from tests.deploy.hospitals import COLUMNS, SITES
from tools import demo

pytestmark = pytest.mark.skipif(
    find_spec("nvflare") is None, reason="nvflare is not installed: pip install 'fedveil[flare]'"
)
SECONDS = 120.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        yield Path(made)


@pytest.mark.skipif("FEDVEIL_DATA" not in os.environ, reason="FEDVEIL_DATA names no copy of Adult")
def test_the_demonstration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shown = demo.play(folder, rounds=4, rows=1500)
    assert shown["certified"]
    assert shown["result"]["rounds"] == 4
    for ledger in shown["ledgers"]:
        (run,) = ledger["runs"]
        assert 0 < ledger["epsilon"] <= 2.0
        # Nothing is paid twice, whoever was killed; a round that was given up may cost nothing.
        assert 3 <= run["rounds"] <= 4
    report = folder / "hospitals" / "runs" / "adult" / "report.html"
    assert "Certified" in report.read_text()


def test_nobody_is_let_in_without_a_certificate(folder: Path) -> None:
    port = demo.free_port()
    schema = {"label": "ill", "columns": COLUMNS}
    home = HubHome.create(folder / "h", "hospitals", f"localhost:{port}", SITES, **schema)
    engine = EngineProcess(home)
    engine.keep_running()
    courier = SocketCourier(home.socket, home.path)
    try:
        demo.Demo(folder).wait("the engine", lambda: _listens(courier, port), SECONDS)
        known = ssl.create_default_context(cadata=home.authority.certificate)
        known.set_alpn_protocols(["h2"])
        assert _greeted(known, port) == b""
        own = folder / "own.pem"
        own.write_text(home.certificate.certificate + home.certificate.key)
        known.load_cert_chain(own)
        assert _greeted(known, port) != b""
    finally:
        engine.stop()


def _listens(courier: SocketCourier, port: int) -> bool:
    try:
        courier.sites()
        socket.create_connection(("localhost", port), timeout=1).close()
    except (Unreachable, OSError):
        return False
    return True


def _greeted(context: ssl.SSLContext, port: int) -> bytes:
    """The first bytes that the engine says to somebody who speaks HTTP/2 to it."""
    plain = socket.create_connection(("localhost", port), timeout=10)
    try:
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + bytes(5))
            return tls.recv(100)
    except (ssl.SSLError, ConnectionError):  # with TLS 1.3 the refusal comes after the handshake
        return b""
