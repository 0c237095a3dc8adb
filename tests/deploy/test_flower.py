"""Flower as the courier keeps the contract, and shows strangers nothing."""

from __future__ import annotations

import os
import ssl
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)

from benchmarks.deploy_engines import Homes
from tests.deploy.engine_suite import EngineSuite, connected
from tools import demo

pytestmark = pytest.mark.skipif(
    find_spec("flwr") is None, reason="flwr is not installed: pip install 'fedveil[flower]'"
)


@pytest.fixture(scope="module")
def running() -> Iterator[Homes]:
    with connected("flower") as courier:
        yield courier


class TestFlowerCourier(EngineSuite):
    """The contract, with real processes."""


PATHS = (
    "/v1/fleet/pull-messages",
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/runtime/acquire-task",
    "/docs",
)


def status_of(running: Homes, path: str, headers: dict[str, str]) -> int:
    home = running.home
    known = ssl.create_default_context(cadata=home.authority.certificate)
    kind = {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}
    asking = Request(f"https://{home.agreement.address}{path}", b"", {**kind, **headers})
    with pytest.raises(HTTPError) as refused:
        urlopen(asking, context=known, timeout=60)
    return refused.value.code


def proof(running: Homes, site: str, by: str) -> dict[str, str]:
    """What a site shows with a request, signed by another one."""
    keys = [
        load_ssh_private_key((running.homes[one].engine / "node.key").read_bytes(), None)
        for one in (site, by)
    ]
    stamp = datetime.now(UTC).isoformat()
    public = keys[0].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = keys[1].sign(stamp.encode(), ECDSA(SHA256()))  # type: ignore[call-arg, union-attr, arg-type]
    parts = {"flwr-public-key": b64encode(public), "flwr-signature": b64encode(signature)}
    return {"flwr-timestamp": stamp, **{name: part.decode() for name, part in parts.items()}}


def test_strangers_get_nothing(running: Homes) -> None:
    for path in PATHS:
        assert status_of(running, path, {}) == 401
        assert status_of(running, path, proof(running, "a", by="b")) == 401
    with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urlopen(f"https://{running.home.agreement.address}/", context=ssl.create_default_context())


def test_a_site_gets_its_own_messages_and_nothing_else(running: Homes) -> None:
    known = proof(running, "a", by="a")
    for path in PATHS[1:]:
        assert status_of(running, path, known) == 404
    assert status_of(running, PATHS[0], known) == 401  # an empty request names no node


def test_no_file_of_the_engine_is_for_others(running: Homes) -> None:
    for path in running.home.engine.iterdir():
        if path.is_file():
            assert not path.stat().st_mode & 0o077, path


@pytest.mark.slow
@pytest.mark.skipif("FEDVEIL_DATA" not in os.environ, reason="FEDVEIL_DATA names no copy of Adult")
def test_the_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="fedveil-") as made:
        shown = demo.play(Path(made), rounds=4, rows=1500, engine="flower")
    assert shown["certified"]
    for ledger in shown["ledgers"]:
        (run,) = ledger["runs"]
        assert 3 <= run["rounds"] <= 4
