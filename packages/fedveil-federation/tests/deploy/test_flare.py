"""NVIDIA FLARE as the courier: the contract, and mTLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.deploy.engine_suite import EngineSuite, connected

from benchmarks.deploy_engines import Homes

pytestmark = pytest.mark.skipif(
    find_spec("nvflare") is None,
    reason="nvflare is not installed: pip install 'fedveil-federation[flare]'",
)


@pytest.fixture(scope="module")
def running() -> Iterator[Homes]:
    with connected("flare") as courier:
        yield courier


class TestFlareCourier(EngineSuite):
    """The contract, with real processes."""


def test_nobody_is_let_in_without_a_certificate(running: Homes, tmp_path: Path) -> None:
    home = running.home
    known = ssl.create_default_context(cadata=home.authority.certificate)
    known.set_alpn_protocols(["h2"])
    assert _greeted(known, home.agreement.port) == b""
    own = tmp_path / "own.pem"
    own.write_text(home.certificate.certificate + home.certificate.key)
    known.load_cert_chain(own)
    assert _greeted(known, home.agreement.port) != b""


def _greeted(context: ssl.SSLContext, port: int) -> bytes:
    """The first bytes that the courier says to somebody who speaks HTTP/2 to it."""
    plain = socket.create_connection(("localhost", port), timeout=60)
    try:
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + bytes(5))
            return tls.recv(100)
    except (ssl.SSLError, ConnectionError):  # with TLS 1.3 the refusal comes after the handshake
        return b""
