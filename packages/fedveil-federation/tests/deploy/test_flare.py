"""NVIDIA FLARE as the courier: the contract, mTLS, and a smaller demonstration."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.engine_suite import EngineSuite, connected

from benchmarks.deploy_engines import Homes
from fedveil.cli import main
from tools import demo

pytestmark = pytest.mark.skipif(
    find_spec("nvflare") is None, reason="nvflare is not installed: pip install 'fedveil[flare]'"
)


@pytest.fixture(scope="module")
def running() -> Iterator[Homes]:
    with connected() as courier:
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


def in_this_process(self: demo.Demo, *words: str) -> Any:
    """A command without a process of its own, of which there would be fourteen."""
    said = io.StringIO()
    with contextlib.chdir(self.folder), contextlib.redirect_stdout(said):
        assert main([*words, "--json"]) == 0
    return json.loads(said.getvalue())


def one_by_one(self: demo.Demo, words: Callable[[str], Sequence[str]]) -> list[Any]:
    return [self.fedveil(*words(site)) for site in demo.SITES]


@pytest.mark.skipif("FEDVEIL_DATA" not in os.environ, reason="FEDVEIL_DATA names no copy of Adult")
def test_the_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hub and hospitals are processes; the hub and a hospital are killed (-9) on the way."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(demo.Demo, "fedveil", in_this_process)
    monkeypatch.setattr(demo.Demo, "each", one_by_one)
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        folder = Path(made)
        shown = demo.play(folder, rounds=4, rows=1500)
        report = folder / "hospitals" / "runs" / "adult" / "report.html"
        assert "Certified" in report.read_text()
    assert shown["certified"]
    assert shown["result"]["rounds"] == 4
    for ledger in shown["ledgers"]:
        (run,) = ledger["runs"]
        assert 0 < ledger["epsilon"] <= 2.0
        # Nothing is paid twice, whoever was killed; a round that was given up may cost nothing.
        assert 3 <= run["rounds"] <= 4
