"""Flower as the courier keeps the contract, and shows strangers nothing."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from benchmarks.deploy_engines import Homes, engines
from fedveil.deploy.courier import Courier
from tests.deploy.courier_suite import CourierSuite
from tools import demo

pytestmark = pytest.mark.skipif(
    find_spec("flwr") is None, reason="flwr is not installed: pip install 'fedveil[flower]'"
)
SITES = ("a", "b", "c", "quick", "slow")


@pytest.fixture(scope="module")
def running() -> Iterator[Homes]:
    with (
        tempfile.TemporaryDirectory(prefix="fedveil-") as made,  # short: sockets lie in it
        engines(Path(made), SITES, "flower") as courier,
    ):
        yield courier


class TestFlowerCourier(CourierSuite):
    @pytest.fixture(autouse=True)
    def use(self, running: Homes) -> None:
        self.running = running

    def make(self) -> Courier:
        return self.running


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/control/start-run", 404),
        ("/v1/control/register-node", 404),
        ("/v1/control/stop-run", 404),
        ("/v1/runtime/acquire-task", 404),
        ("/docs", 404),
        ("/v1/fleet/pull-messages", 401),  # without a registered key
    ],
)
def test_strangers_get_nothing(path: str, status: int, running: Homes) -> None:
    home = running.home
    known = ssl.create_default_context(cadata=home.authority.certificate)
    asking = Request(
        f"https://{home.agreement.address}{path}",
        data=b"",
        headers={"Content-Type": "application/protobuf", "Accept": "application/protobuf"},
    )
    with pytest.raises(HTTPError) as refused:
        urlopen(asking, context=known, timeout=60)
    assert refused.value.code == status
    with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urlopen(asking, context=ssl.create_default_context(), timeout=60)


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
